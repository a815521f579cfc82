"""What a swap starts from: rows, donors, and pairs of the two."""

from collections.abc import Sequence
from dataclasses import dataclass

from anchorlens.engine.plan import rows_per_batch
from anchorlens.errors import InputError
from anchorlens.models.adapter import SiteLike
from anchorlens.protocols.plug import Bench, Prepared
from anchorlens.protocols.swap.pairing import PairMaker, Pairs
from anchorlens.protocols.swap.reading import Reading, answer_reading, probe_reading, truth_question_reading
from anchorlens.protocols.swap.spec import Swap
from anchorlens.protocols.swap.statistic_donors import StreamStatistics
from anchorlens.questions.donors import DonorPicker
from anchorlens.questions.tokenised import Rows, check_not_empty, make_rows
from anchorlens.questions.tokens import TokenRow
from anchorlens.truth.labelled import TruthRows, truth_rows
from anchorlens.truth.own_answers import known_rows
from anchorlens.vocabulary import STATISTIC_RULES


@dataclass(frozen=True)
class PreparedSwap(Prepared):
    """A swap that is ready to run.

    Attributes:
        rows: Rows that were made, with or without a donor.
        pairs: Rows with their donors.
        statistics: Mean and spread of clean streams, where donors are no rows.
        reading: What is read.
    """

    rows: tuple[TokenRow, ...]
    pairs: Pairs
    statistics: StreamStatistics | None
    reading: Reading


def prepared_swap(bench: Bench, spec: Swap) -> PreparedSwap:
    """Rows, donors and pairs.

    Raises:
        InputError: No cell can reach what is read.
        EmptySweepError: No row is left.
    """
    rows, reading = _rows_and_reading(bench, spec)
    dropped = [*bench.dropped, *rows.dropped]
    check_not_empty(rows.rows, dropped, f"in {bench.data.name}")
    pool = make_rows(bench.pool, bench.tokenizer).rows
    maker = PairMaker(
        anchors=spec.anchors, direction=spec.direction, align=spec.align, null_donors=spec.null_donors, seed=spec.seed,
        tokenizer=bench.tokenizer,
    )  # fmt: skip
    statistics = None
    if spec.donors in STATISTIC_RULES:
        statistics = StreamStatistics(bench.adapter, pool, spec.site, spec.seed, batch_size=16)
        pairs = maker.with_statistic(rows.rows, spec.donors, statistics)
    else:
        picker = DonorPicker(pool, spec.donors, spec.anchors, spec.align, spec.n_donors, spec.seed)
        pairs = maker.with_donors(rows.rows, picker)
    dropped += pairs.dropped
    check_not_empty(pairs.pairs, dropped, f"in {bench.data.name}")
    asked = spec.layers_of(bench.adapter.n_layers)
    layers = tuple(layer for layer in asked if any(reached(spec, reading, anchor, "none", layer) for anchor in spec.anchors))
    if not layers:
        raise InputError(
            f"The probe reads layer {reading.k_star}, and no change at layers {asked} of {spec.site} can reach it. "
            "Take lower layers."
        )
    reader = reading.make(pairs.pairs)
    sites: list[SiteLike] = [spec.site, *([reader.where[0]] if reader.where is not None else [])]
    return PreparedSwap(tuple(dropped), pairs.pairs[0].target.ids, tuple(sites), layers, rows.rows, pairs, statistics, reading)


def reached(spec: Swap, reading: Reading, anchor: str, control: str, layer: int) -> bool:
    """Whether a cell can reach what is read."""
    first = max(0, layer - (spec.window - 1) // 2)
    return reading.reaches(first, spec.site, at_answer=anchor == "answer" and control == "none")


def trivial(spec: Swap, reading: Reading, anchor: str, layer: int) -> bool:
    """Whether a cell's value says nothing: it follows from how the cell is made.

    The donor's answer tokens come in as inputs at layer 0 of ``answer_site_all``; and where the probe's own state at k* is put
    there, the probe reads the donor.
    """
    first = layer - (spec.window - 1) // 2
    if anchor == "answer_site_all" and spec.site == "resid_pre" and first <= 0:
        return True
    return anchor == "answer" and reading.k_star is not None and first <= reading.k_star < first + spec.window


def _rows_and_reading(bench: Bench, spec: Swap) -> tuple[Rows, Reading]:
    if spec.of_truth:
        return _truth_rows(bench, spec)
    if spec.known_only:
        known = known_rows(
            bench.adapter, bench.examples, bench.tokenizer, max_new_tokens=spec.max_new_tokens, batch_size=spec.batch_size,
            progress=bench.progress,
        )  # fmt: skip
        return known, answer_reading(spec.readout)
    return make_rows(bench.examples, bench.tokenizer), answer_reading(spec.readout)


def _truth_rows(bench: Bench, spec: Swap) -> tuple[Rows, Reading]:
    """Rows with true and false answers, and what reads their truth."""
    truth = truth_rows(
        bench.adapter, bench.examples, bench.tokenizer, answers=spec.answers, distractor=spec.distractor, fractions=spec.fractions,
        max_new_tokens=spec.max_new_tokens, batch_size=spec.batch_size, seed=spec.seed, progress=bench.progress,
    )  # fmt: skip
    check_not_empty(truth.rows, [*bench.dropped, *truth.dropped], f"in {bench.data.name}")
    if spec.readout == "p_true":
        reading = truth_question_reading(bench.adapter, truth)
    else:
        truth.check()
        size = rows_per_batch(bench.adapter, max(len(row.ids) for row in truth.rows), spec.batch_size)
        reading = probe_reading(
            bench.adapter,
            truth,
            spec.probes,
            site=spec.probe_site,
            batch_size=size,
            model=bench.model_name,
            dataset=bench.data.name,
        )
    assert reading.rows is not None  # truth readings choose their rows
    return Rows(reading.rows, truth.dropped), reading


def swap_inputs(ready: PreparedSwap, *, mean: bool) -> dict[str, object]:
    """Base rows, donors and corrupt inputs of a sweep, and the positions of its nulls."""
    donors: dict[str, TokenRow] = {}
    donor_ids: dict[str, list[str]] = {}
    nulls: dict[str, dict[str, list[int]]] = {}
    corrupt: dict[str, TokenRow] = {}
    for pair in ready.pairs.pairs:
        donor_ids.setdefault(pair.base.row_id, []).append(pair.donor_id)
        if pair.donor is not None:
            donors[pair.donor.row_id] = pair.donor
        if pair.target is not pair.base:
            corrupt[pair.target.row_id] = pair.target
        for place in pair.placements:
            if place.control == "null":
                nulls.setdefault(pair.target.row_id, {})[f"null:{place.anchor}:{pair.donor_id}"] = list(place.target)
    if ready.statistics is not None:
        donors = {row.row_id: row for row in ready.statistics.reference} if mean else {}
    base = [row for row in ready.rows if row.row_id in donor_ids]
    fitted = _fitted_rows(ready.reading.truth, ready.reading.rows or ())
    inputs = {"base": base, **fitted, "donor": list(donors.values()), "corrupt": list(corrupt.values())}
    return {"inputs": inputs, "donor_ids": donor_ids, "positions": nulls}


def _fitted_rows(truth: TruthRows | None, measured: Sequence[TokenRow]) -> dict[str, list[TokenRow]]:
    """The rows that probes were fitted on; ``p_true`` measures every row and fits none."""
    if truth is None or len(measured) >= len(truth.rows):
        return {}
    return {name: [truth.rows[i] for i in truth.of(name)] for name in ("train", "validation")}


__all__ = ["PreparedSwap", "prepared_swap", "reached", "swap_inputs", "trivial"]
