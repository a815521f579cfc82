"""The cone engine: compute all cells of a batch in one pass through the layers.

In a causal model a change at layer l and position p alters only layers >= l and positions >= p: its
cone. Only the cone is computed:

- The distinct bases and donors pass through the layers together as clean rows. Donor states are
  read in the same pass.
- At each measured layer, its cells join the pass: copies of their base from the first changed to
  the last read position.
- Attention to earlier positions uses keys and values of the clean row. A prefix of all rows is
  computed once for many batches.
- Positions whose stream equals the donor's are not computed
  (:func:`~anchorlens.engine.cone_plans.cone_start`).

Results equal those of the reference engine (:mod:`anchorlens.engine.reference`) up to rounding:
sums have another order.
"""

from collections.abc import Sequence
from operator import itemgetter

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from anchorlens.constants import HEAD_SITES, SITES
from anchorlens.engine.cone_layout import Layout, Prefix
from anchorlens.engine.cone_pass import Pass
from anchorlens.engine.cone_plans import KnockoutPlan, SwapPlan
from anchorlens.engine.cost import PassSize, pass_bytes, pass_flops, pass_memory
from anchorlens.engine.engine import Engine
from anchorlens.engine.evidence import evidence_of_streams
from anchorlens.engine.geometry import Lanes
from anchorlens.engine.head_patches import as_output_patches
from anchorlens.engine.patches import (
    KnockoutBatch,
    OnProgress,
    SwapBatch,
    TokenBatch,
    check_windows,
    common_prefix,
    no_progress,
    token_rows,
)
from anchorlens.engine.readouts import Metrics
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter, ReadSite, SiteLike
from anchorlens.typing import Stream

# Metric with the evidence of what a pass wrote.
EVIDENCE = "evidence"
# Tokens that a prefix must save. It costs an extra product in every attention layer, and on a GPU
# forty more operations, each of which takes as long to launch as several tokens to compute.
_MIN_SAVED_TOKENS = {"cpu": 32, "cuda": 512, "mps": 128}
# Tokens in the top layer of a pass beyond which throughput no longer grows.
_MOST_TOKENS = {"cpu": 2048, "cuda": 131072, "mps": 8192}


class ConeEngine(Engine):
    """Engine that computes only the positions and layers that a change can reach."""

    name = "cone"
    reason = ""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.blocks = adapter.blocks()
        # Prefix of all rows, given to reset; and the prefix cached last, which may be longer.
        self._shared: Prefix | None = None
        self._prefix: Prefix | None = None
        # Common tokens of the last pass; a prefix of two consecutive passes is cached.
        self._last: tuple[int, ...] = ()

    @override
    def reset(self, shared: Sequence[int] = ()) -> None:
        ids = tuple(shared) if len(shared) >= _MIN_SAVED_TOKENS["cpu"] else ()
        if ids != (() if self._shared is None else self._shared.ids):
            self._shared = None
            if ids:
                prefix_pass = Pass(
                    self.adapter, Layout.clean([ids]), Lanes.of([]), None, read_sites={}, keep=True
                )
                self._run([prefix_pass])
                self._shared = prefix_pass.new_prefix
        self._prefix = self._shared
        self._last = ()

    @override
    def run_swaps(
        self,
        batch: SwapBatch,
        *,
        site: SiteLike,
        layers: Sequence[int],
        window: int,
        on_progress: OnProgress = no_progress,
    ) -> tuple[Metrics, list[Metrics]]:
        return self.run_swap_batches(
            [(batch, layers)], site=site, window=window, on_progress=on_progress
        )[0]

    def run_swap_batches(
        self,
        batches: Sequence[tuple[SwapBatch, Sequence[int]]],
        *,
        site: SiteLike,
        window: int,
        on_progress: OnProgress = no_progress,
    ) -> list[tuple[Metrics, list[Metrics]]]:
        """Run several batches, each with its layers, through the blocks together: weights are read
        from memory once.

        All batches must be read at the same site and layer. Returns the result of :meth:`run_swaps`
        of each batch. Its metric :data:`EVIDENCE`, [*cells 1], is evidence of what was patched
        (:mod:`anchorlens.engine.evidence`).
        """
        n_heads = 1
        # Evidence of the patches at the site itself, for the sites that act through z.
        own_evidence: list[Float[Tensor, "swap layer"]] = []
        if site in HEAD_SITES:
            batches, own_evidence = self._as_output_patches(batches, str(site), window)
            site = "z"
            n_heads = self.adapter.shape.n_heads
        assert len({batch.reader.where for batch, _ in batches}) == 1
        read_sites = self._read_sites(batches[0][0].reader.where)
        n_layers = self.adapter.n_layers
        lanes_of = [Lanes.windows(layers, window, n_layers) for _, layers in batches]
        plans = [SwapPlan(batch, site, n_heads) for batch, _ in batches]
        prefix_passes, passes = self._make_passes(plans, lanes_of, read_sites, str(site))
        self._run([*prefix_passes, *passes], on_progress)
        out: list[tuple[Metrics, list[Metrics]]] = []
        for number, (batch, layers) in enumerate(batches):
            before, after = self._measure(batch, lanes_of[number], passes[number])
            if own_evidence:
                self._use_evidence_of_site(batch, layers, after, own_evidence[number])
            out.append((before, after))
        return out

    def _as_output_patches(
        self, batches: Sequence[tuple[SwapBatch, Sequence[int]]], site: str, window: int
    ) -> tuple[list[tuple[SwapBatch, Sequence[int]]], list[Float[Tensor, "swap layer"]]]:
        """Return batches that patch z with the same effect as patches of a head site, and the
        evidence of the patches at this site; no evidence for z.

        Raises:
            InputError: If a window of several layers is patched at another site than z.
        """
        if window > 1 and site != "z":
            raise InputError(
                f"window={window}: not with site={site!r}. Give window=1, or site='z'.",
                argument="window",
            )
        patched: list[tuple[SwapBatch, Sequence[int]]] = []
        evidence: list[Float[Tensor, "swap layer"]] = []
        for batch, layers in batches:
            made = as_output_patches(self.adapter, batch, site)
            patched.append((made.batch, layers))
            if site != "z":
                evidence.append(made.evidence)
        return patched, evidence

    def _read_sites(self, where: ReadSite | None) -> dict[int, str]:
        """Return layer -> site of the states that are read; if None, the final residual stream."""
        if where is None:
            return {self.adapter.n_layers - 1: "resid_post"}
        site, layer = where
        return {layer: str(site)}

    def _measure(
        self, batch: SwapBatch, lanes: Lanes, finished: Pass
    ) -> tuple[Metrics, list[Metrics]]:
        """Return metrics of the clean pass, and of each swap at each layer, with the evidence of
        its patches.
        """
        metrics = batch.reader.metrics(self.adapter, finished.states[finished.top])
        written = finished.evidence()
        evidence = torch.cat([written.new_zeros(1), written.flatten()])[:, None]
        metrics = Metrics({**metrics.values, EVIDENCE: evidence})
        after = [metrics.map(itemgetter(at)) for at in _cells_of(finished, lanes.lane_of)]
        return metrics.map(itemgetter(0)), after

    def _use_evidence_of_site(
        self,
        batch: SwapBatch,
        layers: Sequence[int],
        after: Sequence[Metrics],
        own: Float[Tensor, "swap layer"],
    ) -> None:
        """Replace the evidence of heads' outputs by that of the site itself, in place.

        The pass wrote outputs z; what was asked for is a patch at the site. If the output of a head
        is not what it should be, its difference is added.
        """
        expected = evidence_of_streams(self.adapter, batch, batch.swaps, "z")
        for one, metrics, own_of_swap in zip(expected, after, own, strict=True):
            metrics.values[EVIDENCE].add_((own_of_swap - one.total)[list(layers), None])

    @override
    def knockout_states(
        self,
        batch: KnockoutBatch,
        *,
        where: ReadSite | None,
        windows: Sequence[range],
        on_progress: OnProgress = no_progress,
    ) -> Float[Tensor, "variant window read d_model"]:
        check_windows(windows)
        read_sites = self._read_sites(where)
        (layer,) = read_sites
        # Layers above the one that is read have no effect, so windows are clipped to it.
        clipped = [range(window.start, min(window.stop, layer + 1)) for window in windows]
        lanes, lane_of = Lanes.cuts(clipped)
        plan = KnockoutPlan(batch, self.adapter.shape.n_heads)
        prefix_passes, (finished,) = self._make_passes([plan], [lanes], read_sites)
        self._run([*prefix_passes, finished], on_progress)
        states = finished.states[layer]
        return torch.stack([states[at] for at in _cells_of(finished, lane_of)])

    @override
    def knockout_states_all_layers(
        self,
        batch: KnockoutBatch,
        *,
        site: SiteLike,
        layers: range,
        on_progress: OnProgress = no_progress,
    ) -> Float[Tensor, "run layer read d_model"]:
        check_windows([layers])
        all_layers = range(self.adapter.n_layers)
        plan = KnockoutPlan(batch, self.adapter.shape.n_heads)
        read_sites = dict.fromkeys(all_layers, str(site))
        prefix_passes, (finished,) = self._make_passes([plan], [Lanes.of([layers])], read_sites)
        self._run([*prefix_passes, finished], on_progress)
        states = torch.stack([finished.states[layer].float().cpu() for layer in all_layers])
        cells = [0]
        cells += [finished.cell_of(group, 0) for group in finished.layout.group_of]
        return torch.stack([states[:, cell] for cell in cells])

    def last_stream(self, tokens: TokenBatch) -> Stream:
        """Return the final residual stream of the clean rows; 0 at padding."""
        layout = Layout.clean(token_rows(tokens))
        top = self.adapter.n_layers - 1
        clean = Pass(self.adapter, layout, Lanes.of([]), None, read_sites={top: "resid_post"})
        self._run([clean])
        x = clean.states[top][0]
        out = x.new_zeros(*tokens.ids.shape, x.shape[-1])
        out[tokens.mask.to(out.device)] = x
        return out

    @override
    def pass_bytes(self, size: PassSize, lanes: int) -> int:
        return pass_bytes(self.adapter.shape, self.adapter.device, size, lanes)

    @override
    def pass_terms(self, size: PassSize, lanes: int) -> dict[str, int]:
        return pass_memory(self.adapter.shape, self.adapter.device, size, lanes).terms()

    @override
    def pass_flops(self, size: PassSize, starts: Sequence[int]) -> float:
        return pass_flops(self.adapter.shape, size, starts)

    @override
    def saturates(self, size: PassSize, lanes: int) -> bool:
        if self.adapter.shape.streamed is not None:
            return False
        return size.clean_tokens + lanes * size.lane > _MOST_TOKENS.get(
            self.adapter.device.type, _MOST_TOKENS["cpu"]
        )

    def _make_passes(
        self,
        plans: Sequence[SwapPlan] | Sequence[KnockoutPlan],
        lanes_of: Sequence[Lanes],
        read_sites: dict[int, str],
        site: str = "",
    ) -> tuple[list[Pass], list[Pass]]:
        """Return the passes that compute a prefix, which run first, and those of the plans, up to
        the last layer that is read; the first plan chooses the cached prefix.
        """
        prefix, prefix_passes = self._choose_prefix(plans[0].shared, plans[0].rows)
        passes: list[Pass] = []
        first: Pass | None = None
        for plan, lanes in zip(plans, lanes_of, strict=True):
            n_shared = 0
            if prefix is not None:
                n_shared = common_prefix([prefix.ids, plan.shared], len(prefix.ids))
            layout = plan.layout(n_shared)
            # Equal clean rows are computed once, by the first pass.
            follows = None
            if first is not None and layout.clean_rows.equals(first.layout.clean_rows):
                follows = first
            own = Pass(
                self.adapter,
                layout,
                lanes,
                prefix,
                site=site,
                read_sites=read_sites,
                follows=follows,
            )
            first = first or own
            passes.append(own)
        return prefix_passes, passes

    def _run(self, passes: Sequence[Pass], on_progress: OnProgress = no_progress) -> None:
        """Run passes through the blocks together, and keep the prefix that one of them computes."""
        layers = 1 + max(each.top for each in passes)
        for layer in range(layers):
            with self.blocks.load(layer) as block:
                for each in passes:
                    each.step(block, on_progress)
            on_progress(1 / layers)
        self._prefix = passes[0].new_prefix or self._prefix

    def _choose_prefix(self, ids: tuple[int, ...], rows: int) -> tuple[Prefix | None, list[Pass]]:
        """Choose the cached prefix for ``rows`` rows that begin with ``ids``.

        A cached prefix is reused as far as it matches. It is extended if that saves enough tokens,
        or if ``ids`` recur.

        Returns:
            The prefix, or None, and the passes that compute its new part. In each layer these run
            first.
        """
        cached = self._prefix
        recurring = common_prefix([ids, self._last], len(ids))
        self._last = ids
        shared = common_prefix([cached.ids, ids], len(ids)) if cached is not None else 0
        saved = (len(ids) - shared) * (rows - 1)
        least = _MIN_SAVED_TOKENS.get(self.adapter.device.type, _MIN_SAVED_TOKENS["cpu"])
        length = len(ids) if saved >= least else recurring
        is_short = length - shared < least and length < len(ids)
        if is_short or length <= shared:
            return cached if shared else None, []
        extension = Pass(
            self.adapter,
            Layout.clean([ids[:length]], shared),
            Lanes.of([]),
            cached,
            read_sites={},
            keep=True,
        )
        return extension.new_prefix, [extension]


def find_cone_obstacle(adapter: Adapter, sites: Sequence[SiteLike] = ()) -> str | None:
    """Return the reason why the cone engine cannot be used with a model and sites that are read or
    changed; None if it can.
    """
    # Some bridges attach hooks themselves.
    reason = adapter.find_unsupported_feature() or adapter.find_user_hook()
    if reason is not None:
        return reason
    for site in sites:
        if not isinstance(site, str) or site not in (*SITES, *HEAD_SITES):
            return "a custom site is read or changed"
    return None


def _cells_of(finished: Pass, lane_of: Sequence[int]) -> list[list[int]]:
    """Return the cell of each swap or variant in some lanes, of which -1 is the clean pass."""
    cells: list[list[int]] = []
    for group in finished.layout.group_of:
        own = [finished.cell_of(group, lane) for lane in lane_of]
        cells.append(own)
    return cells
