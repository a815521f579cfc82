"""Grids of layer and position on the cone engine, for metrics that are functions of the logits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.choose_engine import choose_engine
from anchorlens.engine.metrics import find_reads
from anchorlens.engine.patches import AnchorSwap, Slots, SwapBatch
from anchorlens.engine.readouts import Metrics
from anchorlens.engine.reference import capture
from anchorlens.errors import InputError
from anchorlens.models.adapt import adapt
from anchorlens.models.adapter import SITES, Adapter
from anchorlens.models.backend import LensModel
from anchorlens.patching.setters import Cache, PatchSetter, layer_pos_patch_setter
from anchorlens.prompts.batches import TokenBatch

# Relative difference of clean and corrupted activations below which a patch is none: rounding of batches of other shapes.
_EQUAL = 1e-5
# Positions that are patched in one pass, and rows that are unembedded at once.
_POSITIONS = 8
_ROWS = 64
# Tolerance of a spot check, relative to the range of the metric and to its value; number of cells.
_TOLERANCE = (1e-3, 1e-5)
_CHECKS = 2


def find_obstacle(
    model: LensModel, tokens: object, setter: PatchSetter, activation_name: str, indices: Sequence[Sequence[int]]
) -> str | None:
    """Return the reason why the cone engine cannot measure these cells; None if it can."""
    theirs = (getattr(setter, "__module__", ""), getattr(setter, "__name__", "")) == (
        "transformer_lens.patching", layer_pos_patch_setter.__name__,
    )  # fmt: skip
    if setter is not layer_pos_patch_setter and not theirs:
        return f"the cone engine has no {getattr(setter, '__name__', 'such setter')}"
    if activation_name not in SITES:
        return f"{activation_name!r} is none of {', '.join(SITES)}"
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.is_floating_point():
        return "corrupted_tokens is no tensor of token ids, [batch pos]"
    if getattr(model.tokenizer, "padding_side", "right") != "right":
        return "the tokenizer pads on the left"
    if not indices or any(len(index) != 2 or min(index) < 0 for index in indices):
        return "an index is not (layer, position) with numbers of at least 0"
    return None


@dataclass(frozen=True)
class _LogitReader:
    """Reader of a metric of the logits; positions that the metric does not read keep the logits of ``template``."""

    row: Int[Tensor, "read"]
    position: Int[Tensor, "read"]
    metric: Callable[[Tensor], Tensor]
    template: Float[Tensor, "batch pos d_vocab"]
    where = None

    @torch.no_grad()
    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells read d_model"]) -> Metrics:
        """Compute the metric of each cell."""
        cells = states.reshape(-1, *states.shape[-2:])
        values: list[float] = []
        for some in cells.split(max(1, _ROWS // len(self.row))):
            logits = adapter.read.logits(some.flatten(0, 1)).to(self.template.dtype).view(*some.shape[:2], -1)
            for cell in logits:
                self.template[self.row, self.position] = cell
                values.append(float(self.metric(self.template)))
        return Metrics({"value": torch.tensor(values).reshape(*states.shape[:-2], 1)})


def measure_grid(
    model: LensModel,
    tokens: Int[Tensor, "batch pos"],
    cache: Cache,
    metric: Callable[[Tensor], Tensor],
    site: str,
    indices: Sequence[Sequence[int]],
    measure_cell: Callable[[Sequence[int]], float],
) -> tuple[list[float] | None, str]:
    """Measure cells (layer, position) on the cone engine, and some of them again with a full forward pass.

    Returns:
        The metric of each index and "", or None and the reason why the numbers cannot be used.

    Raises:
        InputError: If the model has no such site, such as ``resid_mid`` where attention and MLP are parallel.
    """
    adapter = adapt(model)
    if site not in adapter.sites:
        raise InputError(
            f"activation_name={site!r}: the model has none. Give one of {', '.join(adapter.sites)}.", argument="activation_name"
        )
    ids = tokens.to(adapter.device)
    engine = choose_engine(adapter, "cone", ids[0].tolist(), [site])
    if engine.name != "cone":
        return None, engine.reason
    batch = TokenBatch(tokens.cpu(), torch.ones_like(tokens, dtype=torch.bool, device="cpu"))
    n_rows, n_pos = batch.ids.shape
    everywhere = torch.arange(n_pos).expand(n_rows, -1)
    (own,) = capture(adapter, batch, site, [Slots(everywhere, torch.ones_like(everywhere, dtype=torch.bool))])
    clean = torch.stack(
        [cache[adapter.hook_name(site, k)].to(adapter.device).expand(own.shape[1:]) for k in range(adapter.n_layers)]
    )
    changed = ((clean - own).abs().amax((1, 3)) > _EQUAL * own.abs().amax((1, 3))).cpu()
    with torch.no_grad():
        template = model(ids).clone()
    before, positions = float(metric(template)), find_reads(metric, template)
    values = {tuple(index): before for index in indices}
    layers = sorted({layer for layer, _ in values})
    patched = [p for p in sorted({p for _, p in values}) if changed[layers, p].any() and p <= max(positions, default=-1)]
    if patched:
        row = torch.arange(n_rows).repeat_interleave(len(positions))
        reader = _LogitReader(row, torch.tensor(positions).repeat(n_rows), metric, template)
        one = torch.ones(n_rows, 1, dtype=torch.bool)
        for start in range(0, len(patched), _POSITIONS):
            some = patched[start : start + _POSITIONS]
            swaps = tuple(
                AnchorSwap(str(p), "none", Slots(torch.full((n_rows, 1), p), one), streams=clean[:, :, p : p + 1]) for p in some
            )
            _, found = engine.run_swaps(SwapBatch(batch, reader, swaps), site=site, layers=layers, window=1)
            for p, cells in zip(some, found, strict=True):
                column = dict(zip(layers, cells.values["value"][:, 0].tolist(), strict=True))
                values |= {(k, p): column[k] for k, at in values if at == p and changed[k, p]}
    checked = _draw_checks([index for index in values if index[1] in patched and changed[index]] or list(values))
    spread = max(values.values()) - min(values.values())
    for index in checked:
        exact = measure_cell(index)
        if not abs(values[index] - exact) <= _TOLERANCE[0] * spread + _TOLERANCE[1] * abs(exact):
            return (
                None,
                f"a spot check of layer {index[0]}, position {index[1]} gave {exact:.6g}, the cone engine {values[index]:.6g}",
            )
    return [values[tuple(index)] for index in indices], ""


def _draw_checks(indices: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(0)
    return [indices[int(i)] for i in torch.randperm(len(indices), generator=generator)[:_CHECKS]]
