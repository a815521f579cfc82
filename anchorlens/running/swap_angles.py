"""Measure how far a swap turns the streams that it replaces."""

from collections import defaultdict
from typing import Any

import pandas as pd
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from anchorlens.constants import STATISTIC_RULES
from anchorlens.engine.cost import rows_per_batch
from anchorlens.engine.hooked_passes import capture
from anchorlens.engine.patches import pad_rows
from anchorlens.errors import InputError
from anchorlens.measure.patched_pairs import slots_of
from anchorlens.models.adapter import Adapter
from anchorlens.models.load import adapt, as_lens_model
from anchorlens.protocols.base import Recheckable
from anchorlens.protocols.registry import measurement_of
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.results.sweep import SweepResult
from anchorlens.running.remeasure import restore_specification

# Site -> number of blocks above the layer whose first norm reads the site.
_READ_BY = {"resid_pre": 0, "resid_post": 1}


@torch.no_grad()
def swap_angles(model: Any, sweep: SweepResult, *, batch_size: int | None = None) -> pd.DataFrame:
    """Measure the angle between each replaced stream and the donor's, raw and behind the norm.

    A few large coordinates rule the angle of raw streams in many models, so a swap that turns them
    by a few degrees may turn what the block reads by fifty. ``norm_matched`` keeps the raw angle.

    Args:
        model: The model of the sweep, as :func:`anchorlens.load_model` takes it.
        sweep: A swap with rows as donors.
        batch_size: Maximum number of rows of a forward pass; if None, as many as fit into memory.

    Returns:
        One row per anchor and layer: ``n`` (streams), ``angle`` and ``angle_normed``, medians in
        degrees. ``angle_normed`` is that of what the next attention reads; it is missing for sites
        that no attention reads directly.

    Raises:
        InputError: If the sweep is no swap, or its donors are no rows.

    Examples:
        >>> import anchorlens as al
        >>> model = "smollm2-135m-instruct"
        >>> data = al.load_qa("popqa-sample", limit=20)
        >>> sweep = al.swap_sweep(model, data, layers=(0, 24))  # doctest: +SKIP
        >>> al.swap_angles(model, sweep)  # doctest: +SKIP
    """
    if sweep.protocol.name != "swap" or sweep.record["config"]["donors"] in STATISTIC_RULES:
        raise InputError(
            f"{sweep.protocol.name} {sweep.dataset}: has no streams of donor rows. Give a result of"
            " swap_sweep with rows as donors.",
            argument="sweep",
        )
    adapter = adapt(as_lens_model(model))
    spec: Any = restore_specification(sweep, {})
    measurement = measurement_of("swap")
    assert isinstance(measurement, Recheckable)
    inputs: Any = measurement.from_run(adapter, spec, StoredInputs(sweep))
    width = max(max(len(pair.target.ids), len(pair.source.ids)) for pair in inputs.pairs)
    n_rows = rows_per_batch(adapter.shape, adapter.devices, width, batch_size)
    found: dict[tuple[str, int], list[tuple[Tensor, Tensor | None]]] = defaultdict(list)
    for start in range(0, len(inputs.pairs), n_rows):
        pairs = inputs.pairs[start : start + n_rows]
        of_base = pad_rows([list(pair.target.ids) for pair in pairs])
        of_donor = pad_rows([list(pair.source.ids) for pair in pairs])
        # Pairs without an anchor of their own hold other controls only.
        for anchor in spec.anchors:
            own = [_own_place(pair, anchor) for pair in pairs]
            targets = slots_of([() if place is None else place.target_positions for place in own])
            sources = slots_of([() if place is None else place.source_positions for place in own])
            (base,) = capture(adapter, of_base, spec.site, [targets], to_host=True)
            (donor,) = capture(adapter, of_donor, spec.site, [sources], to_host=True)
            for layer in inputs.layers:
                one, two = base[layer][targets.mask], donor[layer][sources.mask]
                behind = None
                above = layer + _READ_BY.get(spec.site, adapter.n_layers)
                if above < adapter.n_layers:
                    behind = _angle(*(_attention_input(adapter, above, x) for x in (one, two)))
                found[anchor, layer].append((_angle(one, two), behind))
    rows: list[dict[str, Any]] = []
    for (anchor, layer), parts in found.items():
        raw = torch.cat([angle for angle, _ in parts])
        normed = [behind for _, behind in parts if behind is not None]
        rows.append(
            {
                "anchor": anchor,
                "layer": layer,
                "n": len(raw),
                "angle": float(raw.median()),
                "angle_normed": float(torch.cat(normed).median()) if normed else float("nan"),
            }
        )
    return pd.DataFrame(rows).sort_values(["anchor", "layer"], ignore_index=True)


def _own_place(pair: Any, anchor: str) -> Any:
    """Return the placement of an anchor in a pair, apart from controls; None if it has none."""
    for place in pair.placements:
        if place.control == "none" and place.anchor == anchor:
            return place
    return None


def _angle(
    one: Float[Tensor, "stream width"], two: Float[Tensor, "stream width"]
) -> Float[Tensor, "stream"]:
    """Return the angle between streams, in degrees."""
    one = torch.nn.functional.normalize(one.double(), dim=-1)
    two = torch.nn.functional.normalize(two.double(), dim=-1)
    cosine = einsum(one, two, "stream width, stream width -> stream")
    return torch.rad2deg(torch.arccos(cosine.clamp(-1, 1)))


def _attention_input(
    adapter: Adapter, layer: int, x: Float[Tensor, "stream width"]
) -> Float[Tensor, "stream width"]:
    """Return streams behind the first norm of a block."""
    with adapter.blocks().load(layer) as block:
        return block.attention_input(x.to(block.device, adapter.shape.dtype)).float().cpu()
