"""Inputs of a swap: rows, donors and their pairs, drawn for a new sweep or rebuilt from a run directory."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from anchorlens.constants import STATISTIC_RULES
from anchorlens.engine.cost import rows_per_batch
from anchorlens.errors import EmptySweepError, InputError, RunError
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.probing.cross_fitting import CrossFittedProbes
from anchorlens.probing.fit_probes import fit_probes
from anchorlens.probing.model_answers import generate_rows, select_known_rows
from anchorlens.probing.records import probe_record, row_columns
from anchorlens.probing.states import last_answer_states
from anchorlens.probing.text_baseline import TextBaseline, text_baselines
from anchorlens.probing.truth_rows import TruthRows
from anchorlens.prompts.dataset import Dropped
from anchorlens.protocols.base import SweepInputs
from anchorlens.protocols.pair_sweep.donor_pairs import Pair, Placement, check_stored_pairs
from anchorlens.protocols.probe_sweep.variants import build_truth_rows
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.protocols.swap.pairing import (
    NORM_MATCHED,
    SAME_ROLE,
    PairMaker,
    QAPair,
    direction_label,
    donor_picker,
    pre_answer_token_differs,
)
from anchorlens.protocols.swap.reading import Reading
from anchorlens.protocols.swap.spec import Swap
from anchorlens.protocols.swap.statistic_donors import StreamStatistics, reference_rows
from anchorlens.questions.build_rows import Rows, check_not_empty, make_rows
from anchorlens.questions.donors import pair_positions
from anchorlens.questions.qa_context import QuestionContext
from anchorlens.questions.tokens import TokenRow
from anchorlens.results.tables import InputTable


@dataclass(frozen=True)
class SwapInputs(SweepInputs):
    """Inputs of a swap.

    Attributes:
        pairs: Rows with their donors, in row order.
        statistics: Mean and spread of clean streams; None for donor rows.
        reading: Readout with its rows and probes.
        counts: ``null_shortfall`` and ``failed_pairs``, see :class:`~anchorlens.protocols.swap.pairing.PairMaker`.
        texts: Text baselines ``answer_text_auc`` and ``qa_text_auc``; empty for answer readouts, and if training or test rows lack
            a label.
    """

    pairs: tuple[QAPair, ...]
    statistics: StreamStatistics | None
    reading: Reading
    counts: Mapping[str, dict[str, int]]
    texts: Mapping[str, TextBaseline]

    @property
    @override
    def max_tokens(self) -> int:
        return max(len(row.ids) for p in self.pairs for row in (p.target, p.source) if row is not None)

    @property
    @override
    def all_probes(self) -> Mapping[str, CrossFittedProbes]:
        return {} if self.reading.probes is None else {"none": self.reading.probes}

    @override
    def table(self) -> InputTable:
        truth = self.reading.truth
        donor_ids: dict[str, list[str]] = {}
        nulls: dict[str, dict[str, list[int]]] = {}
        for pair in self.pairs:
            donor_ids.setdefault(pair.base.id, []).append(pair.donor_id)
            own = nulls.setdefault(pair.target.id, {})
            for place in pair.placements:
                if place.control != "none":
                    own[f"{place.control}:{place.anchor}:{pair.donor_id}"] = list(place.target)
                if place.control == SAME_ROLE:
                    own[f"{SAME_ROLE}_source:{place.anchor}:{pair.donor_id}"] = list(place.source)
        donors = self.statistics.reference if self.statistics is not None else [p.donor for p in self.pairs if p.donor]
        # p_true measures every row; a probe is fitted on the rows of other splits.
        splits = ("train", "validation") if truth is not None and self.reading.probes is not None else ()
        tested = set() if truth is None else set(truth.of("test"))
        inputs = {
            "base": list({p.base.id: p.base for p in self.pairs}.values()),
            **{name: [truth.rows[i] for i in truth.of(name) if i not in tested] for name in splits if truth is not None},
            "donor": list({row.id: row for row in donors}.values()),
            "corrupt": list({p.target.id: p.target for p in self.pairs if p.target is not p.base}.values()),
        }
        return InputTable(inputs, donor_ids, nulls, row_columns(truth, self.texts))

    @override
    def record(self, spec: Swap) -> dict[str, Any]:
        reading = self.reading
        counts: dict[str, Any] = {
            "evaluated": len({p.base.id for p in self.pairs}), **self.counts,
            "pre_answer_token_differs": len({p.base.id for p in self.pairs if pre_answer_token_differs(p)}),
        }  # fmt: skip
        record: dict[str, Any] = {"config": {"delta_kind": spec.kind, **_resolve_config(spec)}, "counts": counts}
        if reading.truth is None:
            return record
        counts["rows"] = reading.truth.sizes
        if reading.probes is not None:
            given = {"probes": reading.probes.fingerprint} if spec.probes else {}
            record["config"] |= {"probe_site": reading.probes.site, **given}
        record["probe"] = {"answer_text_auc": None, "qa_text_auc": None} | probe_record(reading.probes, self.texts)
        return record


def _resolve_config(spec: Swap) -> dict[str, Any]:
    """Return the resolved values of arguments that differ from the given ones."""
    rows = spec.donors not in STATISTIC_RULES
    resolved: dict[str, Any] = {} if rows else {"n_donors": 1, "null": [*(spec.nulls or spec.null)]}
    # Answer readouts do not use the truth of answers.
    return resolved | ({"donor_label": "same" if rows else "both"} if spec.is_truth_readout else {"answers": "", "distractor": ""})


def prepare_swap(context: QuestionContext, spec: Swap) -> SwapInputs:
    """Draw donors and build the inputs of a sweep."""
    rows, reading = _rows_and_reading(context, spec)
    reading = replace(reading, n_layers=context.adapter.n_layers)
    dropped = [*context.dropped, *rows.dropped]
    where = f"in {context.data.name}"
    check_not_empty(rows.rows, dropped, where)
    # donors='zero' needs no pool.
    pool = _pool(context, spec, reading) if spec.donors != "zero" else ()
    maker = PairMaker(spec, context.tokenizer, null_shortfall=dict.fromkeys(spec.anchors, 0) if spec.n_null_donors else {})
    statistics = None
    if spec.donors in STATISTIC_RULES:
        statistics = StreamStatistics(context.adapter, reference_rows(pool, spec.seed), spec.site, spec.seed)
        pairs = tuple(maker.with_statistic(rows.rows, statistics))
    else:
        pairs = tuple(maker.with_donors(rows.rows, donor_picker(spec, pool)))
    dropped += maker.dropped
    _check_pairs(pairs, dropped, spec, where)
    requested = spec.layers_of(context.adapter.n_layers)
    layers = tuple(layer for layer in requested if any(reading.reaches(spec, anchor, "none", layer) for anchor in spec.anchors))
    if not layers:
        raise InputError(
            f"layers={requested}: no change of {spec.site} reaches the probe at layer {reading.probe_layer}. Take lower layers.",
            argument="layers",
        )
    read = reading.reader(context.adapter, pairs).where
    sites: list[SiteLike] = [spec.site, *([read[0]] if read is not None else [])]
    counts = {"null_shortfall": maker.null_shortfall, "failed_pairs": maker.failed_pairs}
    texts = _texts(reading.truth, spec)
    return SwapInputs(tuple(dropped), pairs[0].target.ids, tuple(sites), layers, pairs, statistics, reading, counts, texts)


def _texts(truth: TruthRows | None, spec: Swap) -> Mapping[str, TextBaseline]:
    roles = [one.of(name) for one in truth.each for name in ("train", "test")] if truth is not None else []
    if truth is None or any(len({truth.rows[i].answer.label for i in role}) < 2 for role in roles):
        return {}
    return text_baselines(truth, n_resamples=spec.n_resamples, seed=spec.seed)


def _pool(context: QuestionContext, spec: Swap, reading: Reading) -> tuple[TokenRow, ...]:
    """Return the pool of donors: all rows of the file with gold answers; for truth readouts with true and false ones.

    With ``answers='generated'`` the pool has the rows of the sweep only, because generating answers for the whole file takes longer
    than the sweep.
    """
    if reading.truth is None:
        return make_rows(context.pool, context.tokenizer).rows
    if spec.answers == "generated" or len(context.pool) == len(context.examples):
        return reading.truth.rows
    return build_truth_rows(context, spec, context.pool).rows


def _check_pairs(pairs: Sequence[QAPair], dropped: Sequence[Dropped], spec: Swap, where: str) -> None:
    """Raise EmptySweepError if no row has a donor; the message names arguments to change."""
    counts = Counter(d.reason for d in dropped).most_common()
    if pairs or counts[0][0] != "no_donor":
        return check_not_empty(pairs, dropped, where)
    cures = ["Take more rows (donors come from the whole file)"]
    cures += ["donors='random'"] if spec.donors == "same_relation" else []
    cures += ["align='last'"] if spec.align != "last" else []
    reasons = ", ".join(f"{reason} {n}" for reason, n in counts)
    raise EmptySweepError(f"No row is left to measure {where}. Dropped: {reasons}. {', or '.join(cures)}.")


def _rows_and_reading(context: QuestionContext, spec: Swap) -> tuple[Rows, Reading]:
    """Return the measured rows and their readout."""
    if not spec.is_truth_readout:
        if not spec.known_only:
            return make_rows(context.examples, context.tokenizer), Reading(spec.readout)
        answered = generate_rows(
            context.adapter, context.examples, context.tokenizer, max_new_tokens=spec.max_new_tokens, batch_size=spec.batch_size,
            progress=context.progress,
        )  # fmt: skip
        return select_known_rows(answered, context.prompt), Reading(spec.readout)
    truth = build_truth_rows(context, spec, context.examples)
    check_not_empty(truth.rows, [*context.dropped, *truth.dropped], f"in {context.data.name}")
    if spec.readout == "p_true":
        return Rows(truth.rows, truth.dropped), Reading(spec.readout, truth)
    truth.check()
    adapter, probes = context.adapter, spec.probes and CrossFittedProbes.of(spec.probes)
    if probes is None:
        longest = max(len(row.ids) for row in truth.rows)
        size = rows_per_batch(adapter.shape, adapter.devices, longest, spec.batch_size)
        states = last_answer_states(adapter, truth.rows, spec.probe_site, batch_size=size)
        probes = fit_probes(
            truth, range(adapter.n_layers), states, site=spec.probe_site, model=context.model_name, dataset=context.data.name
        )
    return Rows(tuple(truth.rows[i] for i in truth.of("test")), truth.dropped), Reading(spec.readout, truth, probes)


def restore_swap(adapter: Adapter, spec: Swap, stored: StoredInputs) -> SwapInputs:
    """Rebuild the inputs of a saved sweep.

    Raises:
        RunError: If an input is missing or cannot be paired with its donor.
    """
    base, statistics, truth = stored.of("base"), None, None
    if spec.donors in STATISTIC_RULES:
        statistics = StreamStatistics(adapter, stored.of("donor"), spec.site, spec.seed)
    pairs = tuple(_load_pair(spec, stored, row, donor) for row in base for donor in stored.donor_ids[row.id])
    check_stored_pairs(pairs)
    if spec.is_truth_readout:
        truth = TruthRows(base, (("test",) * len(base),), ())
    if spec.readout == "probe" and "none" not in stored.probes:
        raise RunError("The run directory lacks its probes, so its cells cannot be measured again.")
    probes = stored.probes["none"] if spec.readout == "probe" else None
    reading = Reading(spec.readout, truth, probes, adapter.n_layers)
    return SwapInputs((), base[0].ids, (spec.site,), stored.layers, pairs, statistics, reading, {}, {})


def _load_pair(spec: Swap, stored: StoredInputs, base: TokenRow, donor_id: str) -> QAPair:
    """Rebuild the pair of a row with a donor or a statistic."""
    donor = None if spec.donors in STATISTIC_RULES else stored.row("donor", donor_id)
    target, source = base, donor
    if spec.direction == "denoising":
        # Corrupt inputs are named by the donor's question, without the suffix of its answer.
        question = donor_id if ("corrupt", f"{base.id}~{donor_id}") in stored.rows else donor_id.rpartition("|")[0]
        target, source = stored.row("corrupt", f"{base.id}~{question}"), base
    placements: list[Placement] = []
    for anchor in spec.anchors:
        both = (target.positions[anchor],) * 2 if source is None else pair_positions(target, source, anchor, spec.align)
        if both is None:
            raise RunError(f"examples.parquet: {anchor} of {target.id} and {donor_id} cannot be paired.")
        placements.append(Placement(anchor, "none", both[0], both[1]))
        for control in spec.null_controls:
            null = target.positions.get(f"{control}:{anchor}:{donor_id}")
            if null is not None:
                by = target.positions[f"{SAME_ROLE}_source:{anchor}:{donor_id}"] if control == SAME_ROLE else both[1][: len(null)]
                label = direction_label(spec, base.id, donor_id, anchor) if control == NORM_MATCHED else ""
                placements.append(Placement(anchor, control, null, by, label))
    return Pair(base, target, source, donor, donor_id, tuple(placements))
