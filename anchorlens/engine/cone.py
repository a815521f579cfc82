"""The cone engine: compute all cells of a batch in one pass through the layers.

In a causal model a change at layer l and position p alters only layers >= l and positions >= p: its cone. Only the cone is computed:

- The distinct bases and donors pass through the layers together as clean rows. Donor states are read in the same pass.
- At each measured layer, its cells join the pass: copies of their base from the first changed to the last read position.
- Attention to earlier positions uses keys and values of the clean row. A prefix of all rows is computed once for many batches.
- Positions whose stream equals the donor's are not computed (:func:`~anchorlens.engine.cone_plans.cone_start`).

Results equal those of the reference engine (:mod:`anchorlens.engine.reference`) up to rounding: sums have another order.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from anchorlens.engine.cone_layout import Lanes, Layout, Prefix
from anchorlens.engine.cone_pass import Pass
from anchorlens.engine.cone_plans import KnockoutPlan, SwapPlan
from anchorlens.engine.cost import PassSize, pass_bytes, pass_flops
from anchorlens.engine.engine import Engine
from anchorlens.engine.expected_evidence import evidence_of_streams
from anchorlens.engine.head_patches import as_output_patches
from anchorlens.engine.patches import KnockoutBatch, OnProgress, SwapBatch, check_windows, no_progress, token_rows
from anchorlens.engine.readouts import Metrics
from anchorlens.errors import InputError
from anchorlens.models.adapter import HEAD_SITES, Adapter, ReadSite, SiteLike
from anchorlens.prompts.batches import TokenBatch, common_prefix
from anchorlens.typing import Stream

LANDED = "landed"
# Tokens that a prefix must save, because it costs an extra product in every attention layer.
_MIN_SAVED_TOKENS = 32
# Tokens in the top layer of a pass beyond which throughput no longer grows.
_MOST_TOKENS = {"cpu": 2048, "cuda": 131072, "mps": 8192}


class ConeEngine(Engine):
    """Engine that computes only the positions and layers that a change can reach."""

    name, reason = "cone", ""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter, self.blocks = adapter, adapter.blocks()
        # Prefix of all rows, given to reset; and the prefix cached last, which may be longer.
        self._shared: Prefix | None = None
        self._prefix: Prefix | None = None
        # Common tokens of the last pass; a prefix of two consecutive passes is cached.
        self._last: tuple[int, ...] = ()

    @override
    def reset(self, shared: Sequence[int] = ()) -> None:
        ids = tuple(shared) if len(shared) >= _MIN_SAVED_TOKENS else ()
        if ids != (() if self._shared is None else self._shared.ids):
            self._shared = None
            if ids:
                prefix_pass = Pass(self.adapter, Layout.clean([ids]), Lanes.of([]), None, read_sites={}, keep=True)
                self._run_passes([prefix_pass], no_progress)
                self._shared = prefix_pass.new_prefix
        self._prefix, self._last = self._shared, ()

    @override
    def run_swaps(
        self, batch: SwapBatch, *, site: SiteLike, layers: Sequence[int], window: int, on_progress: OnProgress = no_progress
    ) -> tuple[Metrics, list[Metrics]]:
        return self.run_swap_batches([(batch, layers)], site=site, window=window, on_progress=on_progress)[0]

    def run_swap_batches(
        self, batches: Sequence[tuple[SwapBatch, Sequence[int]]], *, site: SiteLike, window: int,
        on_progress: OnProgress = no_progress,
    ) -> list[tuple[Metrics, list[Metrics]]]:  # fmt: skip
        """Run several batches, each with its layers, through the blocks together: weights are read from memory once.

        All batches must be read at the same site and layer. Returns the result of :meth:`run_swaps` of each batch. Its metric
        :data:`LANDED`, [*cells 1], is evidence of what was patched (:mod:`anchorlens.engine.landing`).
        """
        n_heads, known = 1, list[Float[Tensor, "swap layer"]]()
        if site in HEAD_SITES:
            if window > 1 and site != "z":
                raise InputError(f"window={window}: not with site={site!r}. Give window=1, or site='z'.", argument="window")
            made = [as_output_patches(self.adapter, batch, str(site)) for batch, _ in batches]
            known = [] if site == "z" else [one.landed for one in made]
            batches = [(one.batch, layers) for one, (_, layers) in zip(made, batches, strict=True)]
            site, n_heads = "z", self.adapter.shape.n_heads
        assert len({batch.reader.where for batch, _ in batches}) == 1
        site_read, layer_read = batches[0][0].reader.where or ("resid_post", self.adapter.n_layers - 1)
        lanes_of = [Lanes.windows(layers, window, self.adapter.n_layers) for _, layers in batches]
        plans = [SwapPlan(batch, site, n_heads) for batch, _ in batches]
        passes = self._run(plans, lanes_of, {layer_read: str(site_read)}, str(site), on_progress)
        out: list[tuple[Metrics, list[Metrics]]] = []
        for number, ((batch, layers), lanes, finished) in enumerate(zip(batches, lanes_of, passes, strict=True)):
            metrics, n = batch.reader.metrics(self.adapter, finished.states[finished.top]), len(lanes.start)
            landed = finished.evidence()
            landed = torch.cat([landed.new_zeros(1), landed.flatten()])[:, None]
            metrics = Metrics({**metrics.values, LANDED: landed})
            by_layer = sorted(range(n), key=lambda j, lanes=lanes: lanes.order[j])
            # Index 0 is the clean pass: the result of a swap without slots in any row.
            cells = [[0] * n if g is None else [1 + g * n + j for j in by_layer] for g in finished.layout.group_of]
            after = [metrics.map(lambda value, at=at: value[at]) for at in cells]
            if known:
                # Evidence of the site itself; that of the heads' outputs is compared with what they should be.
                for swap, one, own in zip(batch.swaps, after, known[number], strict=True):
                    assert swap.streams is not None  # patches of z have them
                    should = evidence_of_streams(self.adapter, batch, swap, swap.streams, "z").total
                    one.values[LANDED].add_((own - should)[list(layers), None])
            out.append((metrics.map(lambda value: value[0]), after))
        return out

    @override
    def knockout_states(
        self, batch: KnockoutBatch, *, where: ReadSite | None, windows: Sequence[range], on_progress: OnProgress = no_progress
    ) -> Float[Tensor, "variant window read d_model"]:
        check_windows(windows)
        site, layer = ("resid_post", self.adapter.n_layers - 1) if where is None else (str(where[0]), where[1])
        # Layers above the one that is read have no effect, so windows are clipped to it.
        lanes, lane_of = Lanes.cuts([range(w.start, min(w.stop, layer + 1)) for w in windows])
        finished = self._run([KnockoutPlan(batch, self.adapter.shape.n_heads)], [lanes], {layer: site}, "", on_progress)[0]
        states, n = finished.states[layer], len(lanes.start)
        # Index 0 is the clean pass: the result of a variant without edges, or of an empty window.
        cells = ([0 if g is None or j < 0 else 1 + g * n + j for j in lane_of] for g in finished.layout.group_of)
        return torch.stack([states[at] for at in cells])

    @override
    def knockout_states_all_layers(
        self, batch: KnockoutBatch, *, site: SiteLike, layers: range, on_progress: OnProgress = no_progress
    ) -> Float[Tensor, "run layer read d_model"]:
        check_windows([layers])
        all_layers = range(self.adapter.n_layers)
        plan, read_sites = KnockoutPlan(batch, self.adapter.shape.n_heads), dict.fromkeys(all_layers, str(site))
        (finished,) = self._run([plan], [Lanes.of([layers])], read_sites, "", on_progress)
        states = torch.stack([finished.states[layer].float().cpu() for layer in all_layers])
        return torch.stack([states[:, 0], *(states[:, 0 if g is None else 1 + g] for g in finished.layout.group_of)])

    def last_stream(self, tokens: TokenBatch) -> Stream:
        """Return the final residual stream of the clean rows; 0 at padding."""
        layout, top = Layout.clean(token_rows(tokens)), self.adapter.n_layers - 1
        clean = Pass(self.adapter, layout, Lanes.of([]), None, read_sites={top: "resid_post"})
        self._run_passes([clean], no_progress)
        x = clean.states[top][0]
        out = x.new_zeros(*tokens.ids.shape, x.shape[-1])
        out[tokens.mask.to(out.device)] = x
        return out

    @override
    def pass_bytes(self, size: PassSize, lanes: int) -> int:
        return pass_bytes(self.adapter.shape, self.adapter.device, size, lanes)

    @override
    def pass_flops(self, size: PassSize, starts: Sequence[int]) -> float:
        return pass_flops(self.adapter.shape, size, starts)

    @override
    def saturates(self, size: PassSize, lanes: int) -> bool:
        if self.adapter.shape.streamed is not None:
            return False
        return size.clean_tokens + lanes * size.lane > _MOST_TOKENS.get(self.adapter.device.type, _MOST_TOKENS["cpu"])

    def _run(
        self, plans: Sequence[SwapPlan] | Sequence[KnockoutPlan], lanes_of: Sequence[Lanes], read_sites: dict[int, str], site: str,
        on_progress: OnProgress,
    ) -> list[Pass]:  # fmt: skip
        """Run the passes of plans up to the last layer that is read; the first plan chooses the cached prefix."""
        prefix, prefix_passes = self._choose_prefix(plans[0].shared, plans[0].rows)
        passes: list[Pass] = []
        for plan, lanes in zip(plans, lanes_of, strict=True):
            n_shared = 0 if prefix is None else common_prefix([prefix.ids, plan.shared], len(prefix.ids))
            layout = plan.layout(n_shared)
            first = passes[0] if passes and layout.clean_rows.equals(passes[0].layout.clean_rows) else None
            passes.append(Pass(self.adapter, layout, lanes, prefix, site=site, read_sites=read_sites, follows=first))
        self._run_passes([*prefix_passes, *passes], on_progress)
        self._prefix = prefix or self._prefix
        return passes

    def _run_passes(self, passes: Sequence[Pass], on_progress: OnProgress) -> None:
        layers = 1 + max(each.top for each in passes)
        for layer in range(layers):
            with self.blocks.load(layer) as block:
                for each in passes:
                    each.step(block, on_progress)
            on_progress(1 / layers)

    def _choose_prefix(self, ids: tuple[int, ...], rows: int) -> tuple[Prefix | None, list[Pass]]:
        """Choose the cached prefix for ``rows`` rows that begin with ``ids``.

        A cached prefix is reused as far as it matches. It is extended if that saves enough tokens, or if ``ids`` recur.

        Returns:
            The prefix, or None, and the passes that compute its new part. In each layer these run first.
        """
        cached, recurring = self._prefix, common_prefix([ids, self._last], len(ids))
        self._last = ids
        shared = common_prefix([cached.ids, ids], len(ids)) if cached is not None else 0
        length = len(ids) if (len(ids) - shared) * (rows - 1) >= _MIN_SAVED_TOKENS else recurring
        if (length - shared < _MIN_SAVED_TOKENS and length < len(ids)) or length <= shared:
            return cached if shared else None, []
        extension = Pass(self.adapter, Layout.clean([ids[:length]], shared), Lanes.of([]), cached, read_sites={}, keep=True)
        return extension.new_prefix, [extension]
