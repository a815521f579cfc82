"""Inputs of a swap: rows, donors and their pairs, drawn for a new sweep or rebuilt from a run
directory.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from anchorlens.constants import STATISTIC_RULES
from anchorlens.engine.cost import rows_per_batch
from anchorlens.engine.hooked_passes import read_states
from anchorlens.engine.patches import Slots, pad_rows
from anchorlens.errors import EmptySweepError, InputError, RunError
from anchorlens.measure.patched_pairs import Pair, Placement, check_stored_pairs
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.probing.cross_fitting import CrossFittedProbes
from anchorlens.probing.fit_probes import fit_probes
from anchorlens.probing.model_answers import generate_rows, select_known_rows
from anchorlens.probing.records import probe_record, row_columns
from anchorlens.probing.text_baseline import TextBaseline, text_baselines
from anchorlens.probing.truth_rows import TruthRows
from anchorlens.prompts.dataset import Dropped
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.protocols.base import SweepInputs
from anchorlens.protocols.probe_sweep.variants import (
    build_truth_rows,
    items_at,
    rows_for_fitting,
)
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.protocols.swap.pairing import (
    NORM_MATCHED,
    SAME_ANSWER,
    SAME_ROLE,
    PairMaker,
    QAPair,
    Reading,
    SameAnswerPicker,
    at_difference,
    check_readout,
    direction_label,
    donor_picker,
    pre_answer_token_differs,
    swap_direction_id,
    towards,
)
from anchorlens.protocols.swap.spec import Swap
from anchorlens.protocols.swap.statistic_donors import StreamStatistics, reference_rows
from anchorlens.questions.donors import DirectionPicker, pair_positions
from anchorlens.questions.drops import no_rows_left
from anchorlens.questions.tokens import QuestionContext, Rows, TokenRow, make_rows
from anchorlens.runs.schema import InputTable


@dataclass(frozen=True, kw_only=True)
class SwapInputs(SweepInputs):
    """Inputs of a swap.

    Attributes:
        pairs: Rows with their donors, in row order.
        statistics: Mean and spread of clean streams; None for donor rows.
        reading: Readout with its rows and probes.
        counts: ``null_shortfall``, ``failed_pairs``, ``gaussian_draws`` and
            ``without_same_answer``, see :class:`~anchorlens.protocols.swap.pairing.PairMaker`.
        texts: Text baselines ``answer_text_auc`` and ``qa_text_auc``; empty for answer readouts,
            and if training or test rows lack a label.
    """

    pairs: tuple[QAPair, ...]
    statistics: StreamStatistics | None
    reading: Reading
    counts: Mapping[str, Any]
    texts: Mapping[str, TextBaseline]

    @property
    @override
    def max_tokens(self) -> int:
        longest = max(len(pair.target.ids) for pair in self.pairs)
        for pair in self.pairs:
            if pair.source is not None:
                longest = max(longest, len(pair.source.ids))
        return longest

    @property
    @override
    def all_probes(self) -> Mapping[str, CrossFittedProbes]:
        return {} if self.reading.probes is None else {"none": self.reading.probes}

    @override
    def table(self) -> InputTable:
        truth = self.reading.truth
        base: dict[str, TokenRow] = {}
        corrupt: dict[str, TokenRow] = {}
        donors: dict[str, TokenRow] = {}
        if self.statistics is not None:
            donors = {row.id: row for row in self.statistics.reference}
        directions: dict[str, TokenizedPrompt] = {}
        donor_ids: dict[str, list[str]] = {}
        nulls: dict[str, dict[str, list[int]]] = {}
        for pair in self.pairs:
            base[pair.base.id] = pair.base
            if pair.target.id != pair.base.id:
                corrupt[pair.target.id] = pair.target
            if self.statistics is None and pair.donor is not None:
                donors[pair.donor.id] = pair.donor
            donor_ids.setdefault(pair.base.id, []).append(pair.donor_id)
            own = nulls.setdefault(pair.target.id, {})
            for place in pair.placements:
                if place.control != "none":
                    own[f"{place.control}:{place.anchor}:{pair.donor_id}"] = list(
                        place.target_positions
                    )
                for one in place.towards or ():
                    directions[one.prompt.id] = one.prompt
                if place.control == SAME_ROLE:
                    own[f"{SAME_ROLE}_source:{place.anchor}:{pair.donor_id}"] = list(
                        place.source_positions
                    )
        fitted: dict[str, tuple[TokenRow, ...]] = {}
        # p_true measures every row; a probe is fitted on the rows of other splits.
        if truth is not None and self.reading.probes is not None:
            fitted = rows_for_fitting(truth, set(truth.of("test")))
        inputs: dict[str, Sequence[TokenizedPrompt]] = {
            "base": list(base.values()),
            **fitted,
            "donor": list(donors.values()),
            "corrupt": list(corrupt.values()),
            "direction": list(directions.values()),
        }
        columns = {} if truth is None else row_columns(truth, self.texts)
        return InputTable(inputs, donor_ids, nulls, columns)

    @override
    def record(self, spec: Swap) -> dict[str, Any]:
        reading = self.reading
        measured: set[str] = set()
        differs: set[str] = set()
        for pair in self.pairs:
            measured.add(pair.base.id)
            if pre_answer_token_differs(pair):
                differs.add(pair.base.id)
        counts: dict[str, Any] = {
            "evaluated": len(measured),
            **self.counts,
            "pre_answer_token_differs": len(differs),
        }
        record: dict[str, Any] = {
            "config": {"delta_kind": spec.kind, **_resolve_config(spec)},
            "counts": counts,
        }
        if reading.truth is None:
            return record
        counts["rows"] = reading.truth.sizes
        if reading.probes is not None:
            record["config"]["probe_site"] = reading.probes.site
            if spec.probes:
                record["config"]["probes"] = reading.probes.fingerprint
        record["probe"] = {"answer_text_auc": None, "qa_text_auc": None} | probe_record(
            reading.probes, self.texts
        )
        return record


def _resolve_config(spec: Swap) -> dict[str, Any]:
    """Return the resolved values of arguments that differ from the given ones."""
    from_rows = spec.donors not in STATISTIC_RULES
    resolved: dict[str, Any] = {}
    if not from_rows:
        resolved |= {"n_donors": 1, "null": list(spec.nulls or spec.null)}
    if spec.is_truth_readout:
        resolved["donor_label"] = "same" if from_rows else "both"
    else:
        # Answer readouts do not use the truth of answers.
        resolved |= {"answers": "", "distractor": ""}
    return resolved


def prepare_swap(context: QuestionContext, spec: Swap) -> SwapInputs:
    """Draw donors and build the inputs of a sweep."""
    rows, reading = _rows_and_reading(context, spec)
    reading = replace(reading, n_layers=context.adapter.n_layers)
    dropped = [*context.dropped, *rows.dropped]
    where = f"in {context.data.name}"
    if not rows.rows:
        raise no_rows_left(dropped, where)
    # donors='zero' needs no pool.
    pool = _pool(context, spec, reading, rows) if spec.donors != "zero" else ()
    maker = PairMaker(
        spec=spec,
        tokenizer=context.tokenizer,
        null_shortfall=dict.fromkeys(spec.anchors, 0) if spec.n_null_donors else {},
        directions=_direction_picker(spec, pool),
        same_answers=_same_answer_picker(spec, pool),
    )
    statistics = None
    if spec.donors in STATISTIC_RULES:
        statistics = StreamStatistics(
            context.adapter, reference_rows(pool, spec.seed), spec.site, spec.seed
        )
        pairs = tuple(maker.with_statistic(rows.rows, statistics))
    else:
        pairs = tuple(maker.with_donors(rows.rows, donor_picker(spec, pool)))
    dropped += maker.dropped
    _check_pairs(pairs, dropped, spec, where)
    targets = {pair.target.id: pair.target for pair in pairs}
    check_readout(context.adapter, spec.readout, list(targets.values()))
    requested = spec.layers_of(context.adapter.n_layers)

    def is_reached(layer: int) -> bool:
        return any(reading.reaches(spec, anchor, "none", layer) for anchor in spec.anchors)

    layers = tuple(filter(is_reached, requested))
    if not layers:
        raise InputError(
            f"layers={requested}: no change of {spec.site} reaches the probe at layer"
            f" {reading.probe_layer}. Take lower layers.",
            argument="layers",
        )
    sites: list[SiteLike] = [spec.site]
    read = reading.reader(context.adapter, pairs).where
    if read is not None:
        sites.append(read[0])
    return SwapInputs(
        dropped=tuple(dropped),
        trial=pairs[0].target.ids,
        sites=tuple(sites),
        layers=layers,
        pairs=pairs,
        statistics=statistics,
        reading=reading,
        counts={
            "null_shortfall": maker.null_shortfall,
            "failed_pairs": maker.failed_pairs,
            "same_role_positions": maker.same_role_positions,
            "gaussian_draws": maker.gaussian_draws,
            "without_same_answer": maker.without_same_answer,
        },
        texts=_texts(reading.truth, spec),
    )


def _direction_picker(spec: Swap, pool: Sequence[TokenRow]) -> DirectionPicker | None:
    if spec.null_direction != "data" or "norm_matched" not in spec.nulls:
        return None
    return DirectionPicker(
        pool=tuple(pool), anchors=tuple(spec.anchors), align=spec.align, seed=spec.seed
    )


def _same_answer_picker(spec: Swap, pool: Sequence[TokenRow]) -> SameAnswerPicker | None:
    if "same_answer" not in spec.nulls:
        return None
    return SameAnswerPicker(
        pool=tuple(pool),
        rule="random",
        anchors=spec.anchors,
        align=spec.align,
        n_donors=1,
        seed=spec.seed,
    )


def _texts(truth: TruthRows | None, spec: Swap) -> Mapping[str, TextBaseline]:
    if truth is None:
        return {}
    for one, split in product(truth.each, ("train", "test")):
        labels = {row.answer.label for row in items_at(truth.rows, one.of(split))}
        if len(labels) < 2:
            return {}
    return text_baselines(truth, n_resamples=spec.n_resamples, seed=spec.seed)


def _pool(
    context: QuestionContext, spec: Swap, reading: Reading, rows: Rows
) -> tuple[TokenRow, ...]:
    """Return the pool of donors: all rows of the file with gold answers; for truth readouts with
    true and false ones.

    With ``answers='generated'`` the pool has the rows of the sweep only, because generating answers
    for the whole file takes longer than the sweep.
    """
    is_whole = len(context.pool) == len(context.examples)
    if reading.truth is None:
        if is_whole and not spec.known_only:
            return rows.rows
        return make_rows(context.pool, context.tokenizer).rows
    if spec.answers == "generated" or is_whole:
        return reading.truth.rows
    return build_truth_rows(context, spec, context.pool).rows


def _check_pairs(
    pairs: Sequence[QAPair], dropped: Sequence[Dropped], spec: Swap, where: str
) -> None:
    """Raise EmptySweepError if no row has a donor; the message names arguments to change."""
    if pairs:
        return
    counts = Counter(d.reason for d in dropped).most_common()
    if counts[0][0] != "no_donor":
        raise no_rows_left(dropped, where)
    cures = ["Take more rows (donors come from the whole file)"]
    if spec.donors == "same_relation":
        cures.append("donors='random'")
    if spec.align != "last":
        cures.append("align='last'")
    reasons = ", ".join(f"{reason} {n}" for reason, n in counts)
    raise EmptySweepError(
        f"No row is left to measure {where}. Dropped: {reasons}. {', or '.join(cures)}."
    )


def _rows_and_reading(context: QuestionContext, spec: Swap) -> tuple[Rows, Reading]:
    """Return the measured rows and their readout."""
    if not spec.is_truth_readout:
        if not spec.known_only:
            return make_rows(context.examples, context.tokenizer), Reading(spec.readout)
        answered = generate_rows(
            context.adapter,
            context.examples,
            context.tokenizer,
            max_new_tokens=spec.max_new_tokens,
            batch_size=spec.batch_size,
            progress=context.progress,
        )
        return select_known_rows(answered, context.prompt), Reading(spec.readout)
    truth = build_truth_rows(context, spec, context.examples)
    if not truth.rows:
        dropped = [*context.dropped, *truth.dropped]
        raise no_rows_left(dropped, f"in {context.data.name}")
    if spec.readout == "p_true":
        return Rows(truth.rows, truth.dropped), Reading(spec.readout, truth)
    truth.check()
    adapter = context.adapter
    probes = spec.probes and CrossFittedProbes.of(spec.probes)
    if probes is None:
        longest = max(len(row.ids) for row in truth.rows)
        size = rows_per_batch(adapter.shape, adapter.devices, longest, spec.batch_size)
        states = last_answer_states(adapter, truth.rows, spec.probe_site, batch_size=size)
        probes = fit_probes(
            truth,
            range(adapter.n_layers),
            states,
            site=spec.probe_site,
            model=context.model_name,
            dataset=context.data.name,
        )
    tested = items_at(truth.rows, truth.of("test"))
    return Rows(tested, truth.dropped), Reading(spec.readout, truth, probes)


def restore_swap(adapter: Adapter, spec: Swap, stored: StoredInputs) -> SwapInputs:
    """Rebuild the inputs of a saved sweep.

    Raises:
        RunError: If an input is missing or cannot be paired with its donor.
    """
    base = stored.of("base")
    statistics = None
    if spec.donors in STATISTIC_RULES:
        statistics = StreamStatistics(adapter, stored.of("donor"), spec.site, spec.seed)
    pairs: list[QAPair] = []
    for row in base:
        pairs += [_load_pair(spec, stored, row, donor) for donor in stored.donor_ids[row.id]]
    check_stored_pairs(pairs)
    truth = None
    if spec.is_truth_readout:
        truth = TruthRows(base, (("test",) * len(base),), ())
    if spec.readout == "probe" and "none" not in stored.probes:
        raise RunError("The run directory lacks its probes, so its cells cannot be measured again.")
    probes = stored.probes["none"] if spec.readout == "probe" else None
    return SwapInputs(
        dropped=(),
        trial=base[0].ids,
        sites=(spec.site,),
        layers=stored.layers,
        pairs=tuple(pairs),
        statistics=statistics,
        reading=Reading(spec.readout, truth, probes, adapter.n_layers),
        counts={},
        texts={},
    )


def _load_pair(spec: Swap, stored: StoredInputs, base: TokenRow, donor_id: str) -> QAPair:
    """Rebuild the pair of a row with a donor or a statistic."""
    donor = None if spec.donors in STATISTIC_RULES else stored.row("donor", donor_id)
    target = base if donor is None else at_difference(base, donor)
    source = None if donor is None else at_difference(donor, base)
    if spec.direction == "denoising":
        name = f"{base.id}~{donor_id}"
        if ("corrupt", name) not in stored.rows:
            # Corrupt inputs are named by the donor's question, without the suffix of its answer.
            name = f"{base.id}~{donor_id.rpartition('|')[0]}"
        assert donor is not None  # denoising has donor rows
        target = at_difference(stored.row("corrupt", name), donor)
        source = at_difference(base, donor)
    placements: list[Placement] = []
    is_same_answer = f"{SAME_ANSWER}:{spec.anchors[0]}:{donor_id}" in target.positions
    for anchor in spec.anchors:
        if source is None:
            both = target.positions[anchor], target.positions[anchor]
        else:
            both = pair_positions(target, source, anchor, spec.align)
        if both is None:
            raise RunError(
                f"examples.parquet: {anchor} of {target.id} and {donor_id} cannot be paired."
            )
        to, by = both
        placements.append(Placement(anchor, SAME_ANSWER if is_same_answer else "none", to, by))
        for control in () if is_same_answer else spec.null_controls:
            null = target.positions.get(f"{control}:{anchor}:{donor_id}")
            if null is None:
                continue
            null_by = by[: len(null)]
            if control == SAME_ROLE:
                null_by = target.positions[f"{SAME_ROLE}_source:{anchor}:{donor_id}"]
            place = Placement(anchor, control, null, null_by)
            if control == NORM_MATCHED:
                placements += _load_draws(spec, stored, base, donor_id, target, place)
            else:
                placements.append(place)
    return Pair(base, target, source, donor, donor_id, tuple(placements))


def _load_draws(
    spec: Swap,
    stored: StoredInputs,
    base: TokenRow,
    donor_id: str,
    target: TokenRow,
    place: Placement,
) -> Iterator[Placement]:
    """Yield the placement of each draw of ``norm_matched`` of a saved sweep."""
    for draw in range(spec.n_null_draws):
        label = direction_label(spec, base.id, donor_id, place.anchor, draw)
        own = replace(place, direction_label=label, draw=draw)
        names = [swap_direction_id(base.id, donor_id, draw, side) for side in (0, 1)]
        if ("direction", names[0]) in stored.rows:
            rows = stored.row("direction", names[0]), stored.row("direction", names[1])
            own = replace(own, towards=towards(rows, target, own))
        yield own


def last_answer_states(
    adapter: Adapter, rows: Sequence[TokenRow], site: str, *, batch_size: int | None = None
) -> Float[Tensor, "layer example d_model"]:
    """Return the states of every layer at t*, the last exact answer token, float32 on the CPU."""
    if batch_size is not None:
        states = torch.zeros(adapter.n_layers, len(rows), adapter.d_model)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            states[:, batch] = last_answer_states(adapter, [rows[i] for i in batch], site)
        return states
    last = torch.tensor([[row.positions["answer"][-1]] for row in rows])
    slots = Slots(last, torch.ones_like(last, dtype=torch.bool))
    batch = pad_rows([row.ids for row in rows])
    return read_states(adapter, batch, slots, site)[:, :, 0]
