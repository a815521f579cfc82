"""The cone engine: the oracle's numbers from one pass up the layers.

In a causal model a change at layer l and position p alters only layers >= l and positions >= p: its cone. This engine computes
nothing else. Clean rows (bases and donors, each different one once) go up the layers together; the cells of a layer join when the
pass reaches it, as copies of their base from the first changed position to the last read one. What stands before that enters their
attention as keys and values of the clean row, which are there already; so do the tokens that all rows begin with, computed once for
many batches. Donor streams are read from the donors' rows in the same pass. All tokens, whatever they belong to, share each matrix
product.

It has the interface of the oracle, :mod:`anchorlens.engine.reference`, and gives the same numbers up to the rounding of float32:
sums are taken in another order.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.engine.cone_pass import Pass
from anchorlens.engine.cone_plans import CutPlan, SwapPlan, token_rows
from anchorlens.engine.interventions import CutBatch, SwapBatch
from anchorlens.engine.layout import Cut, Lanes, Pack, Prefix, Put, Runs, common_prefix
from anchorlens.engine.readouts import Metrics, Reader
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.models.blocks import FusedBlocks
from anchorlens.questions.tokens import TokenBatch
from anchorlens.typing import Stream

# A prefix has to spare the rows at least this many tokens, for it costs a product of its own in every attention.
_WORTH_A_PASS = 32
# Beside few rows it goes along in their pass, so that weights are read once; beside many, it would be copied with every lane.
_FEW_ROWS = 8


class Cone:
    """Measures batches of one model.

    Args:
        adapter: A model for which :func:`anchorlens.models.blocks.unsupported_reason` is None.
        blocks: Its blocks as functions of tokens; fused ones where they are left out.
    """

    def __init__(self, adapter: Adapter, blocks: FusedBlocks | None = None) -> None:
        self.adapter, self.blocks = adapter, blocks or FusedBlocks(adapter.model)
        self._prefix: Prefix | None = None
        # What the next pass has to compute beside its rows.
        self._lead: tuple[int, ...] = ()

    def run_swaps(
        self,
        batch: SwapBatch,
        *,
        site: SiteLike,
        layers: Sequence[int],
        window: int,
        on_share: Callable[[float], object] = lambda share: None,  # noqa: ARG005
    ) -> tuple[Metrics, list[Metrics]]:
        """Measure every cell of a batch: see :func:`anchorlens.engine.reference.run_swaps`.

        Args:
            batch: Rows, donors, reader and swaps.
            site: Which activation is replaced.
            layers: Layers that are measured.
            window: How many layers are replaced together around each.
            on_share: Called after each layer with its share of the pass.

        Returns:
            Metrics of the clean pass ([example]), and for each swap those of the changed passes ([layer example]).
        """
        with torch.inference_mode():
            where = batch.reader.where
            plan = SwapPlan(partial(self.prefix, alone=where is not None), batch)
            lanes = Lanes.windows(layers, window, self.blocks.n_layers)
            run = self._pass(plan.runs, plan.packs, lanes, str(site), put=plan.put)
            states = run.run(where, plan.reads, on_share)
            self._prefix = run.prefix
            return self._metrics(batch.reader, states, lanes, plan.pack_of_swap)

    def _metrics(
        self, reader: Reader, states: Float[Tensor, "cell read d_model"], lanes: Lanes, pack_of_swap: Sequence[int | None]
    ) -> tuple[Metrics, list[Metrics]]:
        """Metrics of the clean rows and of every swap, lanes in the caller's order."""
        n = len(lanes.start)
        every = reader.metrics(self.adapter, states)
        back = sorted(range(n), key=lambda j: lanes.order[j])

        def at(cells: list[int]) -> Metrics:
            return Metrics(every.p[cells], every.log_p[cells], every.logit_diff[cells])

        clean = at([0])
        before = Metrics(clean.p[0], clean.log_p[0], clean.logit_diff[0])
        # A swap that changes nothing in any row (a null that found no position) leaves everything as it was.
        after = [at([0] * n if p is None else [1 + p * n + j for j in back]) for p in pack_of_swap]
        return before, after

    def cut_states(
        self,
        batch: CutBatch,
        *,
        where: tuple[SiteLike, int] | None,
        windows: Sequence[Sequence[int]],
        on_share: Callable[[float], object] = lambda share: None,  # noqa: ARG005
    ) -> Float[Tensor, "variant window read d_model"]:
        """See :func:`anchorlens.engine.knockout.cut_states`."""
        if where is not None:  # what is cut above is not seen, so windows that agree up to there are one
            windows = [[layer for layer in w if layer <= where[1]] for w in windows]
        if len({w[0] for w in windows if w}) == 1:
            lanes, lane_of = Lanes.cumulative(windows)
        else:
            full = [w for w in windows if w]
            order = sorted(range(len(full)), key=lambda i: (full[i][0], full[i][-1]))
            starts, ends = tuple(full[i][0] for i in order), tuple(full[i][-1] for i in order)
            lanes = Lanes(starts, starts, ends, tuple(order))
            number = iter(range(len(full)))
            lane_of = [order.index(next(number)) if w else -1 for w in windows]
        with torch.inference_mode():
            plan = CutPlan(partial(self.prefix, alone=where is not None), batch, self.blocks.n_heads)
            run = self._pass(plan.runs, plan.packs, lanes, "", cuts=plan.cuts)
            states = run.run(where, plan.reads, on_share)
            self._prefix = run.prefix
        n = len(lanes.start)
        # A variant that cuts nothing in any row leaves everything as it was.
        return torch.stack(
            [states[[0 if p is None or j < 0 else 1 + p * n + j for j in lane_of]] for p in plan.pack_of_variant]
        )

    def cut_states_everywhere(
        self,
        batch: CutBatch,
        *,
        site: SiteLike,
        layers: Sequence[int],
        on_share: Callable[[float], object] = lambda share: None,  # noqa: ARG005
    ) -> Float[Tensor, "run layer read d_model"]:
        """See :func:`anchorlens.engine.knockout.cut_states_everywhere`."""
        lanes = Lanes((layers[0],), (layers[0],), (layers[-1],), (0,))
        with torch.inference_mode():
            plan = CutPlan(self.prefix, batch, self.blocks.n_heads)
            run = self._pass(plan.runs, plan.packs, lanes, "", cuts=plan.cuts)
            states = run.run_everywhere(str(site), plan.reads, on_share).float().cpu()
            self._prefix = run.prefix
        return torch.stack([states[:, 0], *(states[:, 0 if p is None else 1 + p] for p in plan.pack_of_variant)])

    def _pass(
        self, runs: Runs, packs: Sequence[Pack], lanes: Lanes, site: str, *, put: Put | None = None, cuts: Sequence[Cut] = ()
    ) -> Pass:
        # Where nothing is changed in any row, no lane has to run.
        lanes = lanes if packs else Lanes((), (), (), ())
        lead, self._lead = self._lead, ()
        return Pass(self.blocks, self.adapter.device, self._prefix, runs, packs, lanes, site, put=put, cuts=cuts, lead=lead)

    def last_stream(self, tokens: TokenBatch) -> Stream:
        """What leaves the last block in a clean run, as :func:`anchorlens.engine.reference.last_stream` gives it; 0 at padding."""
        rows, self._lead = token_rows(tokens), ()
        with torch.inference_mode():
            runs = Runs.make([(row, len(row)) for row in rows], 0)
            x = self._pass(runs, [], Lanes((), (), (), ()), "").last_stream()
        out = x.new_zeros(*tokens.ids.shape, x.shape[-1])
        out[tokens.mask.to(out.device)] = x
        return out

    def prefix(self, ids: tuple[int, ...], rows: int, *, alone: bool = False) -> int:
        """Make keys and values of a prefix ready, where that is worth it; beside few rows, in their own pass.

        Args:
            ids: What the rows begin with, at most up to the first position that is changed or read.
            rows: How many rows there are.
            alone: Make new ones in a pass of their own, because the next one does not go up all layers.

        Returns:
            Length of the prefix to use.
        """
        had, self._lead = self._prefix, ()
        if had is not None:
            shared = common_prefix([had.ids, ids], min(len(had.ids), len(ids)))
            if shared and (len(ids) - shared) * (rows - 1) < _WORTH_A_PASS:
                return shared
        if len(ids) * (rows - 1) < _WORTH_A_PASS:
            return 0
        if alone or rows > _FEW_ROWS:
            runs = Runs.make([(ids, len(ids))], 0)
            self._prefix = Prefix(ids, *self._pass(runs, [], Lanes((), (), (), ()), "").keys_and_values())
        else:
            self._lead = ids
        return len(ids)


__all__ = ["Cone"]
