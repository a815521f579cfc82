"""The cone engine: the oracle's numbers from one pass up the layers.

In a causal model a change at layer l and position p alters only layers >= l and positions >= p: its cone. This engine computes
nothing else. Clean rows (bases and donors, each different one once) go up the layers together; the cells of a layer join when the
pass reaches it, as copies of their base from the first changed position to the last read one. What stands before that enters their
attention as keys and values of the clean row, which are there already; so do the tokens that all rows begin with, computed once for
many batches. Donor streams are read from the donors' rows in the same pass; and where base and donor begin alike, the first changed
tokens go on as their donor's (:func:`~anchorlens.engine.cone_plans.cone_start`), so that they are not computed either. All tokens,
whatever they belong to, share each matrix product.

It is an :class:`~anchorlens.engine.engine.Engine` as the oracle is (:mod:`anchorlens.engine.reference`), and gives the same numbers
up to the rounding of float32: sums are taken in another order.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from anchorlens.engine.cone_layout import Lanes, Layout, Prefix
from anchorlens.engine.cone_pass import Pass
from anchorlens.engine.cone_plans import CutPlan, SwapPlan
from anchorlens.engine.cost import PassSize, pass_bytes, pass_flops
from anchorlens.engine.engine import Engine
from anchorlens.engine.patches import KnockoutBatch, OnProgress, SwapBatch, check_windows, no_progress, token_rows
from anchorlens.engine.readouts import Metrics
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.models.blocks import Blocks
from anchorlens.prompts.batches import TokenBatch, common_prefix
from anchorlens.typing import Stream

# A prefix has to spare the rows at least this many tokens, for it costs a product of its own in every attention.
_WORTH_A_PASS = 32
# Tokens in the top layer of a pass beyond which nothing is gained; a smaller one keeps the progress bar moving.
_MOST_TOKENS = {"cpu": 2048, "cuda": 131072, "mps": 8192}


class ConeEngine(Engine):
    """Measures batches of one model."""

    name, reason = "cone", ""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter, self.blocks = adapter, Blocks(adapter.model)
        # What all rows begin with, once it is said; and what they began with last, which may be more.
        self._shared: Prefix | None = None
        self._prefix: Prefix | None = None
        # What the clean rows of the last pass began with: a beginning that comes again is worth keeping.
        self._last: tuple[int, ...] = ()

    @override
    def reset(self, shared: Sequence[int] = ()) -> None:
        ids = tuple(shared) if len(shared) >= _WORTH_A_PASS else ()
        if ids != (() if self._shared is None else self._shared.ids):
            self._shared = None
            if ids:
                making = Pass(self.adapter, Layout.clean([ids]), Lanes.of([]), None, seen={}, keep=True)
                self._climb([making], no_progress)
                self._shared = making.kept
        self._prefix, self._last = self._shared, ()

    @override
    def run_swaps(
        self, batch: SwapBatch, *, site: SiteLike, layers: Sequence[int], window: int, on_progress: OnProgress = no_progress
    ) -> tuple[Metrics, list[Metrics]]:
        lanes, reader = Lanes.windows(layers, window, self.adapter.n_layers), batch.reader
        site_read, layer_read = reader.where or ("resid_post", self.adapter.n_layers - 1)
        done = self._run(SwapPlan(batch, site), lanes, {layer_read: str(site_read)}, str(site), on_progress)
        every, n = reader.metrics(self.adapter, done.states[done.top]), len(lanes.start)
        clean, back = every.map(lambda value: value[[0]]), sorted(range(n), key=lambda j: lanes.order[j])
        # A swap that changes nothing in any row (a null that found no position) leaves everything as it was.
        cells = [[0] * n if p is None else [1 + p * n + j for j in back] for p in done.layout.pack_of]
        return clean.map(lambda value: value[0]), [every.map(lambda value, at=at: value[at]) for at in cells]

    @override
    def knockout_states(
        self,
        batch: KnockoutBatch,
        *,
        where: tuple[SiteLike, int] | None,
        windows: Sequence[range],
        on_progress: OnProgress = no_progress,
    ) -> Float[Tensor, "variant window read d_model"]:
        check_windows(windows)
        site, layer = ("resid_post", self.adapter.n_layers - 1) if where is None else (str(where[0]), where[1])
        # What is cut above is not seen, so windows that agree up to there are one.
        lanes, lane_of = Lanes.cuts([range(w.start, min(w.stop, layer + 1)) for w in windows])
        one = self._run(CutPlan(batch, self.adapter.shape.n_heads), lanes, {layer: site}, "", on_progress)
        states, n = one.states[layer], len(lanes.start)
        # A variant that cuts nothing in any row leaves everything as it was.
        return torch.stack([states[[0 if p is None or j < 0 else 1 + p * n + j for j in lane_of]] for p in one.layout.pack_of])

    @override
    def knockout_states_all_layers(
        self, batch: KnockoutBatch, *, site: SiteLike, layers: range, on_progress: OnProgress = no_progress
    ) -> Float[Tensor, "run layer read d_model"]:
        check_windows([layers])
        every = range(self.adapter.n_layers)
        plan, seen = CutPlan(batch, self.adapter.shape.n_heads), dict.fromkeys(every, str(site))
        one = self._run(plan, Lanes.of([layers]), seen, "", on_progress)
        states = torch.stack([one.states[layer].float().cpu() for layer in every])
        return torch.stack([states[:, 0], *(states[:, 0 if p is None else 1 + p] for p in one.layout.pack_of)])

    def last_stream(self, tokens: TokenBatch) -> Stream:
        """Return the stream that leaves the last block in a clean run; 0 at padding."""
        layout, top = Layout.clean(token_rows(tokens)), self.adapter.n_layers - 1
        one = Pass(self.adapter, layout, Lanes.of([]), None, seen={top: "resid_post"})
        self._climb([one], no_progress)
        x = one.states[top][0]
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
        return size.runs + lanes * size.lane > _MOST_TOKENS.get(self.adapter.device.type, _MOST_TOKENS["cpu"])

    def _run(self, plan: SwapPlan | CutPlan, lanes: Lanes, seen: dict[int, str], site: str, on_progress: OnProgress) -> Pass:
        """Run the pass of a plan through all layers that are needed."""
        prefix, making = self._beginning(plan.shared, plan.rows)
        n_shared = 0 if prefix is None else common_prefix([prefix.ids, plan.shared], len(prefix.ids))
        one = Pass(self.adapter, plan.layout(n_shared), lanes, prefix, site=site, seen=seen)
        self._climb([*making, one], on_progress)
        self._prefix = prefix or self._prefix
        return one

    def _climb(self, passes: Sequence[Pass], on_progress: OnProgress) -> None:
        layers = 1 + max(one.top for one in passes)
        for layer in range(layers):
            with self.blocks.held(layer) as block:
                for one in passes:
                    one.step(block, on_progress)
            on_progress(1 / layers)

    def _beginning(self, ids: tuple[int, ...], rows: int) -> tuple[Prefix | None, list[Pass]]:
        """Keys and values of what rows begin with, where they are worth it.

        Those that are kept are used as far as they go; a longer beginning grows from them. A single row is worth a beginning that
        the row before it had as well.

        Returns:
            The prefix to use, and the pass that makes what is new of it, to be run before the others in each layer.
        """
        had, again = self._prefix, common_prefix([ids, self._last], len(ids))
        self._last = ids
        shared = common_prefix([had.ids, ids], len(ids)) if had is not None else 0
        wanted = len(ids) if (len(ids) - shared) * (rows - 1) >= _WORTH_A_PASS else again
        if (wanted - shared < _WORTH_A_PASS and wanted < len(ids)) or wanted <= shared:
            return had if shared else None, []
        making = Pass(self.adapter, Layout.clean([ids[:wanted]], shared), Lanes.of([]), had, seen={}, keep=True)
        return making.kept, [making]
