"""The pairs of a swap, from the inputs that its run directory holds."""

from collections.abc import Sequence

from anchorlens.errors import RunError
from anchorlens.models.adapter import Adapter
from anchorlens.protocols.swap.pairing import NULL, Pair, Pairs, Placement
from anchorlens.protocols.swap.preparing import PreparedSwap
from anchorlens.protocols.swap.reading import Reading, answer_reading, probe_reading, truth_question_reading
from anchorlens.protocols.swap.spec import Swap
from anchorlens.protocols.swap.statistic_donors import StreamStatistics
from anchorlens.protocols.written import Written
from anchorlens.questions.donors import pair_positions
from anchorlens.questions.tokens import TokenRow
from anchorlens.truth.labelled import TruthRows
from anchorlens.vocabulary import STATISTIC_RULES


def restored_swap(adapter: Adapter, spec: Swap, written: Written) -> PreparedSwap:
    """All pairs of a sweep, its reading, and what its statistics are taken over.

    Raises:
        RunError: An input is missing, or does not go with its donor.
    """
    statistics = None
    if spec.donors in STATISTIC_RULES:
        statistics = StreamStatistics(adapter, written.of("donor"), spec.site, spec.seed)
    base = written.of("base")
    pairs = tuple(_pair(spec, written, row, donor) for row in base for donor in written.donor_ids[row.row_id])
    found = Pairs(pairs, (), {}, {})
    return PreparedSwap(
        (), base[0].ids, (spec.site,), written.layers, base, found, statistics, _reading(adapter, spec, written), {}
    )


def _pair(spec: Swap, written: Written, base: TokenRow, donor_id: str) -> Pair:
    """A row with a donor, or with the statistic of this name."""
    donor = None if spec.donors in STATISTIC_RULES else written.row("donor", donor_id)
    target, source = base, donor
    if spec.direction == "denoising":
        # Corrupt inputs are named by the donor's question; where it has two rows, these say after it which answer they hold.
        question = donor_id if ("corrupt", f"{base.row_id}~{donor_id}") in written.rows else donor_id.rpartition("|")[0]
        target, source = written.row("corrupt", f"{base.row_id}~{question}"), base
    placements: list[Placement] = []
    for anchor in spec.anchors:
        own = (target.positions[anchor],) * 2 if source is None else pair_positions(target, source, anchor, spec.align)
        if own is None:
            raise RunError(f"examples.parquet: {anchor} of {target.row_id} and {donor_id} cannot be paired.")
        placements.append(Placement(anchor, "none", *own))
        null = target.positions.get(f"{NULL}:{anchor}:{donor_id}")
        if null is not None:
            placements.append(Placement(anchor, NULL, null, own[1][: len(null)]))
    return Pair(base, target, source, donor, donor_id, tuple(placements))


def _reading(adapter: Adapter, spec: Swap, written: Written) -> Reading:
    if not spec.of_truth:
        return answer_reading(spec.readout)
    rows: Sequence[TokenRow] = written.of("base")
    truth = TruthRows(tuple(rows), ("test",) * len(rows), ())
    if spec.readout == "p_true":
        return truth_question_reading(adapter, truth)
    if "none" not in written.probes:
        raise RunError("The run lacks its probes: cells that they read cannot be measured again.")
    return probe_reading(
        adapter, truth, written.probes["none"], site=spec.probe_site, batch_size=1, model=written.result.model,
        dataset=written.result.dataset, seed=spec.seed,
    )  # fmt: skip


__all__ = ["restored_swap"]
