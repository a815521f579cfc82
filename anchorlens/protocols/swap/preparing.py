"""What a swap starts from: rows, donors, and pairs of the two."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anchorlens.engine.cost import rows_per_batch
from anchorlens.engine.interventions import window_layers
from anchorlens.errors import EmptySweepError, InputError
from anchorlens.models.adapter import SiteLike
from anchorlens.protocols.plug import Bench, Prepared
from anchorlens.protocols.swap.pairing import Pair, PairMaker, Pairs, SameLabelPicker, TrueToOthers
from anchorlens.protocols.swap.reading import Reading, answer_reading, probe_reading, truth_question_reading
from anchorlens.protocols.swap.spec import Swap
from anchorlens.protocols.swap.statistic_donors import StreamStatistics, reference_rows
from anchorlens.questions.donors import DonorPicker
from anchorlens.questions.example import Dropped, Example
from anchorlens.questions.tokenised import Rows, check_not_empty, make_rows
from anchorlens.questions.tokens import TokenRow
from anchorlens.truth.labelled import TruthRows, truth_rows
from anchorlens.truth.own_answers import known_rows
from anchorlens.truth.text_baseline import TextBaseline, text_baselines
from anchorlens.vocabulary import STATISTIC_RULES


@dataclass(frozen=True)
class PreparedSwap(Prepared):
    """A swap that is ready to run.

    Attributes:
        rows: Rows that were made, with or without a donor.
        pairs: Rows with their donors.
        statistics: Mean and spread of clean streams, where donors are no rows.
        reading: What is read.
        texts: What text alone tells of truth (``text_only``, ``pair_text``); empty for readouts of the answer, and where training
            or test rows lack one label.
    """

    rows: tuple[TokenRow, ...]
    pairs: Pairs
    statistics: StreamStatistics | None
    reading: Reading
    texts: Mapping[str, TextBaseline]


def prepared_swap(bench: Bench, spec: Swap) -> PreparedSwap:
    """Rows, donors and pairs.

    Raises:
        InputError: No cell can reach what is read.
        EmptySweepError: No row is left.
    """
    rows, reading = _rows_and_reading(bench, spec)
    dropped = [*bench.dropped, *rows.dropped]
    check_not_empty(rows.rows, dropped, f"in {bench.data.name}")
    # Zeros are learnt from no row.
    pool = _pool(bench, spec, reading) if spec.donors != "zero" else ()
    maker = PairMaker(
        anchors=spec.anchors, direction=spec.direction, align=spec.align, null_donors=spec.null_donors, null=spec.null,
        seed=spec.seed, tokenizer=bench.tokenizer,
    )  # fmt: skip
    statistics = None
    if spec.donors in STATISTIC_RULES:
        statistics = StreamStatistics(bench.adapter, reference_rows(pool, spec.seed), spec.site, spec.seed)
        pairs = maker.with_statistic(rows.rows, spec.donors, statistics)
    else:
        how = (spec.donors, spec.anchors, spec.align, spec.n_donors, spec.seed)
        picker = SameLabelPicker(pool, lambda some: TrueToOthers(some, *how)) if spec.of_truth else DonorPicker(pool, *how)
        pairs = maker.with_donors(rows.rows, picker)
    dropped += pairs.dropped
    _check_pairs(pairs, dropped, spec, f"in {bench.data.name}")
    asked = spec.layers_of(bench.adapter.n_layers)
    layers = tuple(layer for layer in asked if any(reached(spec, reading, anchor, "none", layer) for anchor in spec.anchors))
    if not layers:
        raise InputError(
            f"The probe reads layer {reading.k_star}, and no change at layers {asked} of {spec.site} can reach it. "
            "Take lower layers."
        )
    reader = reading.make(pairs.pairs)
    sites: list[SiteLike] = [spec.site, *([reader.where[0]] if reader.where is not None else [])]
    trial, texts = pairs.pairs[0].target.ids, _texts(reading.truth, spec)
    return PreparedSwap(tuple(dropped), trial, tuple(sites), layers, rows.rows, pairs, statistics, reading, texts)


def _texts(truth: TruthRows | None, spec: Swap) -> Mapping[str, TextBaseline]:
    if truth is None or any(len({truth.rows[i].answer.label for i in truth.of(name)}) < 2 for name in ("train", "test")):
        return {}
    return text_baselines(truth, n_resamples=spec.n_resamples, seed=spec.seed)


def reached(spec: Swap, reading: Reading, anchor: str, control: str, layer: int) -> bool:
    """Whether a cell can reach what is read."""
    first = window_layers(layer, spec.window, layer + 1).start
    return reading.reaches(first, spec.site, at_answer=anchor == "answer" and control == "none")


def trivial(spec: Swap, reading: Reading, pair: Pair, anchor: str, layer: int) -> bool:
    """Whether a cell's value says nothing: it follows from how the cell is made.

    The stream that enters block 0 holds nothing but tokens: where they are the same in both inputs (at ``answer_site`` in most
    rows), nothing is changed. The donor's answer tokens come in as inputs at layer 0 of ``answer_site_all``. And where the probe's
    own state at k* is put there, the probe reads the donor.
    """
    changed = window_layers(layer, spec.window, layer + spec.window)
    alone = changed == range(1)
    if spec.site == "resid_pre" and 0 in changed and (anchor == "answer_site_all" or (alone and pair.same_tokens(anchor))):
        return True
    return anchor == "answer" and reading.k_star in changed


def _pool(bench: Bench, spec: Swap, reading: Reading) -> tuple[TokenRow, ...]:
    """Rows that may be donors: the whole file with its gold answers; for truth readouts with true and with false ones.

    The model's own answers are known of the sweep's questions alone: those of the whole file would cost more than the sweep.
    """
    if not spec.of_truth:
        return make_rows(bench.pool, bench.tokenizer).rows
    assert reading.truth is not None  # truth readings have it
    if spec.answers == "generated" or len(bench.pool) == len(bench.examples):
        return reading.truth.rows
    return _all_truth_rows(bench, spec, bench.pool).rows


def _check_pairs(pairs: Pairs, dropped: Sequence[Dropped], spec: Swap, where: str) -> None:
    """Stop where no row has a donor, with what would give some.

    Raises:
        EmptySweepError: With the reasons and how often each occurred.
    """
    counts = Counter(d.reason for d in dropped).most_common()
    if pairs.pairs or counts[0][0] != "no_donor":
        return check_not_empty(pairs.pairs, dropped, where)
    cures = ["take more rows (donors come from the whole file)"]
    cures += ["donors='random'"] if spec.donors == "same_relation" else []
    cures += ["align='last'"] if spec.align != "last" else []
    said = f"{', '.join(cures[:-1])}, or {cures[-1]}" if len(cures) > 1 else cures[0]
    reasons = ", ".join(f"{reason} {n}" for reason, n in counts)
    raise EmptySweepError(f"No row is left to measure {where}. Dropped: {reasons}. {said[0].upper()}{said[1:]}.")


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
    truth = _all_truth_rows(bench, spec, bench.examples)
    check_not_empty(truth.rows, [*bench.dropped, *truth.dropped], f"in {bench.data.name}")
    if spec.readout == "p_true":
        reading = truth_question_reading(bench.adapter, truth)
    else:
        truth.check()
        size = rows_per_batch(
            bench.adapter.shape, bench.adapter.devices, max(len(row.ids) for row in truth.rows), spec.batch_size
        )
        reading = probe_reading(
            bench.adapter,
            truth,
            spec.probes,
            site=spec.probe_site,
            seed=spec.seed,
            batch_size=size,
            model=bench.model_name,
            dataset=bench.data.name,
        )
    assert reading.rows is not None  # truth readings choose their rows
    return Rows(reading.rows, truth.dropped), reading


def _all_truth_rows(bench: Bench, spec: Swap, examples: Sequence[Example]) -> TruthRows:
    return truth_rows(
        bench.adapter, examples, bench.tokenizer, answers=spec.answers, distractor=spec.distractor, fractions=spec.fractions,
        max_new_tokens=spec.max_new_tokens, batch_size=spec.batch_size, seed=spec.seed, progress=bench.progress,
    )  # fmt: skip


def swap_inputs(ready: PreparedSwap) -> dict[str, object]:
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
        donors = {row.row_id: row for row in ready.statistics.reference}
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
