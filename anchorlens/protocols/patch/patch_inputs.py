"""Inputs of a patch sweep: measured rows, sources, places and controls, made from pairs or from a
run directory.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from typing_extensions import override

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM, PATCH_CONTROLS
from anchorlens.display import warn
from anchorlens.engine.cost import rows_per_batch
from anchorlens.engine.hooked_passes import full_reader, measure, states_at
from anchorlens.engine.logits import Reads
from anchorlens.engine.patches import TokenBatch, pad_rows
from anchorlens.engine.readouts import KL
from anchorlens.errors import EmptySweepError, RunError
from anchorlens.measure.patched_pairs import Pair, Placement, check_stored_pairs
from anchorlens.models.adapter import Adapter
from anchorlens.prompts.dataset import explain_drops
from anchorlens.prompts.pairs import TokenizedPair, drop_pair
from anchorlens.prompts.tokenize_pairs import PairContext
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.protocols.base import SweepInputs
from anchorlens.protocols.patch.metric_reading import (
    Answers,
    MetricReading,
    UnpatchedReads,
    choose_metric,
    explain_choice,
    find_reads,
    lacks,
    tokens_to_append,
)
from anchorlens.protocols.patch.other_pairs import DirectionPair, OtherPairs, pair_direction_id
from anchorlens.protocols.patch.placements import (
    NORM_MATCHED,
    OTHER_PAIR,
    PAIRED,
    READS,
    PatchPair,
    anchor_order,
    make_placements,
)
from anchorlens.protocols.patch.spec import AUTO, BY_POSITION, NONE, PairSpecification, without_mean
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.runs.schema import InputTable

# Logits of unpatched runs that are kept at most: 64 MB in float32.
_MOST_KEPT = 2**24
# Reason why a pair has no place, by ``by``.
_NO_PLACE = {"segment": "no_segment"}


@dataclass(kw_only=True)
class ControlCounts:
    """Counts of the controls.

    Attributes:
        with_template: Number of pairs whose template is known; the others of a control are of the
            same one.
        without_partner: Number of pairs without an ``other_pair``.
        gaussian_directions: Number of pairs with fewer than two other pairs for the direction of
            ``norm_matched``, which is then Gaussian.
    """

    with_template: int = 0
    without_partner: int = 0
    gaussian_directions: int = 0

    def record(self, controls: Sequence[str]) -> dict[str, int]:
        """Return the counts of the measured controls, for the record."""
        counts = {"with_template": self.with_template}
        if OTHER_PAIR in controls:
            counts["without_other_pair"] = self.without_partner
        if NORM_MATCHED in controls:
            counts["gaussian_directions"] = self.gaussian_directions
        return counts


@dataclass(frozen=True, kw_only=True)
class PatchInputs(SweepInputs):
    """Inputs of a patch sweep.

    Attributes:
        n_layers: Number of layers of the model.
        pairs: Patched row (``target``) and source of the activations, with a placement per place.
            The control ``other_pair`` has pairs of its own.
        reading: Metric with the answers of the pairs.
        controls: Measured controls.
        counts: Counts of the controls: :class:`ControlCounts`; None without controls.
        source_values: Pair id -> metric of the source's own run; empty before :meth:`read_sources`.
    """

    n_layers: int
    pairs: tuple[PatchPair, ...]
    reading: MetricReading
    controls: tuple[str, ...] = ()
    counts: "ControlCounts | None" = None
    source_values: "Mapping[str, float] | None" = None

    @property
    @override
    def max_tokens(self) -> int:
        return max(len(row.ids) for row in (*self.targets, *self.sources))

    @property
    def own_pairs(self) -> list[PatchPair]:
        """Pairs of the measurement, without those of ``other_pair``."""
        return [pair for pair in self.pairs if pair.placements[0].control == "none"]

    @property
    def targets(self) -> list[TokenizedPrompt]:
        """Patched prompts of the pairs of the measurement."""
        return [pair.target for pair in self.own_pairs]

    @property
    def sources(self) -> list[TokenizedPrompt]:
        """Sources of the pairs of the measurement."""
        return [pair.source for pair in self.own_pairs if pair.source is not None]

    @cached_property
    def places(self) -> Mapping[tuple[str, str, str, str], Placement]:
        """Pair id, source id, anchor and control -> placement."""
        places: dict[tuple[str, str, str, str], Placement] = {}
        for pair in self.pairs:
            for place in pair.placements:
                places[pair.base.id, pair.donor_id, place.anchor, place.control] = place
        return places

    @override
    def table(self) -> InputTable:
        ids: dict[str, list[str]] = {}
        for pair in self.pairs:
            ids.setdefault(pair.base.id, []).append(pair.donor_id)
        directions: dict[str, TokenizedPrompt] = {}
        for pair in self.own_pairs:
            for place in pair.placements:
                for one in place.towards or ():
                    directions[one.prompt.id] = one.prompt
        inputs = {
            "base": self.targets,
            "donor": self.sources,
            "direction": list(directions.values()),
        }
        return InputTable(inputs, ids)

    @override
    def record(self, spec: Any) -> dict[str, Any]:
        values = self.source_values or {}
        anchors: list[str] = []
        groups: set[str] = set()
        pairs: dict[str, dict[str, Any]] = {}
        for pair in self.own_pairs:
            anchors += [place.anchor for place in pair.placements]
            groups.add(pair.base.group)
            own = self.reading.answers[pair.base.id]
            pairs[pair.base.id] = {
                "answer_ids": list(own.answer),
                "wrong_ids": list(own.wrong),
                "source_value": values.get(pair.base.id),
            }
            if own.any_of:
                pairs[pair.base.id]["any_of"] = True
            if self.reading.pair_rows:
                pairs[pair.base.id]["row"] = dict(self.reading.pair_rows[pair.base.id])
        unpaired = 0
        for row in (*self.targets, *self.sources):
            n_prompt = row.positions["last"][0] + 1
            unpaired += n_prompt - len(row.positions[PAIRED])
        counts: dict[str, Any] = {
            "evaluated": len(self.own_pairs),
            "groups": len(groups),
            "unpaired_positions": unpaired,
            "different_targets": len({row.ids for row in self.targets}),
            "different_sources": len({row.ids for row in self.sources}),
        }
        if self.counts is not None:
            counts |= self.counts.record(self.controls)
        config = {
            "anchors": anchor_order(anchors),
            "metric": self.reading.name,
            "controls": list(self.controls) or NONE,
        }
        return {"config": config, "counts": counts, "pairs": pairs}

    def read_sources(self, adapter: Adapter, spec: PairSpecification) -> "PatchInputs":
        """Return the inputs with the metric of every source's own run and, for ``kl``, the states
        of the clean runs.
        """
        reading = self.reading
        ids = [row.id for row in self.targets]
        size = rows_per_batch(
            adapter.shape, adapter.devices, self.max_tokens, spec.batch_size, spec.max_memory
        )
        if reading.metric == KL:
            clean = self.sources if spec.direction == "denoising" else self.targets
            states: dict[str, torch.Tensor] = {}
            for some, rows in zip(_parts(ids, size), _parts(clean, size), strict=True):
                tokens = _batch(rows)
                last = torch.tensor([row.positions["last"][0] for row in rows])
                with torch.no_grad():
                    found = states_at(adapter, tokens, (), None, torch.arange(len(rows)), last)
                states |= dict(zip(some, found.cpu(), strict=True))
            reading = replace(reading, clean_states=states)
        values: dict[str, float] = {}
        for some, rows in zip(_parts(ids, size), _parts(self.sources, size), strict=True):
            reader = full_reader(reading.reader(rows, some))
            found = measure(adapter, _batch(rows), (), reader).values[reading.name]
            values |= dict(zip(some, found.tolist(), strict=True))
        return replace(self, reading=reading, source_values=values)

    def record_again(
        self, adapter: Adapter, spec: PairSpecification, rows: Collection[str]
    ) -> dict[str, Any]:
        """Measure the sources' own runs of some pairs again, and return their entries of
        ``run.json``.
        """
        some = replace(self, pairs=tuple(pair for pair in self.pairs if pair.base.id in rows))
        values = some.read_sources(adapter, spec).source_values or {}
        return {"pairs": {name: {"source_value": value} for name, value in values.items()}}


def _batch(rows: Sequence[TokenizedPrompt]) -> TokenBatch:
    return pad_rows([row.ids for row in rows])


def _parts(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def prepare_patch(context: PairContext, spec: PairSpecification) -> PatchInputs:
    """Make the inputs of a sweep; pairs that the metric or the places do not allow are dropped and
    counted.
    """
    where = f"in {context.data.name}"
    if not context.pairs:
        raise EmptySweepError(explain_drops(context.dropped, where))
    adapter = context.adapter
    dropped = list(context.dropped)
    answers: dict[str, Answers] = {}
    for one in context.pairs:
        answers[one.corrupted.pair.id] = Answers(one.answer, one.wrong, one.any_of)
    metric = choose_metric(spec.metric, list(answers.values()))
    if spec.metric == AUTO and (why := explain_choice(metric, list(answers.values()))):
        warn(why)
    reading = MetricReading(metric, answers)
    if spec.takes_row:
        rows = {one.corrupted.pair.id: one.corrupted.pair.row() for one in context.pairs}
        reading = replace(reading, pair_rows=rows)
    made: list[PatchPair] = []
    unpatched: dict[str, UnpatchedReads] = {}
    n_kept = 0
    for one in context.pairs:
        own = one.corrupted.pair
        if reason := lacks(reading.metric, answers[own.id]):
            dropped.append(drop_pair(own, context.data.name, reason, ""))
            continue
        pair = _make_pair(adapter, spec, one, reading, answers[own.id])
        reason, detail = _reason_against(adapter, spec, pair)
        if reason:
            dropped.append(drop_pair(own, context.data.name, reason, detail))
            continue
        if not isinstance(reading.metric, str):
            pair_row = reading.pair_rows.get(own.id)
            found = find_reads(pair, reading.metric, adapter, spec.metric_positions, pair_row)
            n_kept += len(found.logits) * adapter.shape.d_vocab
            unpatched[own.id] = found if n_kept <= _MOST_KEPT else replace(found, logits={})
            pair = _with_reads(pair, found.reads)
        made.append(pair)
    reading = replace(reading, unpatched=unpatched)
    if not made:
        raise EmptySweepError(explain_drops(dropped, where))
    controls = _choose_controls(spec, made)
    draw = OtherPairs(spec, made, answers)
    pairs, control_counts = _with_controls(
        adapter,
        spec,
        made,
        controls,
        partner_of=draw.pick_partner,
        directions_of=draw.pick_directions,
    )
    _warn_of_limits(spec, made, controls, control_counts)
    return PatchInputs(
        dropped=tuple(dropped),
        trial=made[0].target.ids,
        sites=(spec.site,),
        layers=spec.layers_of(adapter.n_layers),
        n_layers=adapter.n_layers,
        pairs=pairs,
        reading=reading,
        controls=controls,
        counts=control_counts,
    )


def _warn_of_limits(
    spec: PairSpecification,
    pairs: Sequence[PatchPair],
    controls: Sequence[str],
    counts: ControlCounts,
) -> None:
    """Warn, before anything is measured, of what would leave the sweep without claims."""
    if OTHER_PAIR in controls and counts.without_partner == len(pairs):
        or_without = f", or pass controls={NORM_MATCHED!r}" if NORM_MATCHED in controls else ""
        warn(
            "No pair has another pair of the same length with another prompt to patch from and"
            " another answer, so the control other_pair is missing and nothing can be claimed"
            " against it. Give pairs with other prompts and answers too, such as each pair in the"
            f" other direction{or_without}."
        )
    lengths = {pair.target.positions["last"][0] + 1 for pair in pairs}
    if spec.by in BY_POSITION and (why := without_mean(lengths)):
        warn(f"{why[0].upper()}{why[1:]}")


def _reason_against(adapter: Adapter, spec: PairSpecification, pair: PatchPair) -> tuple[str, str]:
    """Return the reason why a pair cannot be measured, and its detail; empty if it can."""
    assert pair.source is not None  # every pair has two prompts
    n_target = len(pair.target.ids)
    n_source = len(pair.source.ids)
    longest = max(n_target, n_source)
    n_ctx = adapter.shape.n_ctx
    if longest > n_ctx:
        return "too_long", f"{longest} tokens with the answer, the model takes {n_ctx}"
    if not pair.placements:
        return _NO_PLACE.get(spec.by, "no_paired_position"), f"by={spec.by!r}"
    if spec.site == "pattern" and n_target != n_source:
        return "length_differs", "attention patterns of prompts of different length"
    return "", ""


def _make_pair(
    adapter: Adapter,
    spec: PairSpecification,
    one: TokenizedPair,
    reading: MetricReading,
    answers: Answers,
) -> PatchPair:
    """Return a pair with its places; the answer's first tokens are appended to both prompts."""
    forced = tokens_to_append(reading.metric, answers)
    name = one.corrupted.pair.id

    def row(at: int, prompt: TokenizedPrompt, row_id: str) -> TokenizedPrompt:
        paired = tuple(positions[at] for positions in one.alignment)
        positions = {**prompt.positions, PAIRED: paired}
        return replace(prompt, id=row_id, ids=prompt.ids + forced, positions=positions)

    if spec.direction == "denoising":
        target = row(1, one.corrupted, name)
        source = row(0, one.clean, f"{name}|clean")
    else:
        target = row(0, one.clean, name)
        source = row(1, one.corrupted, f"{name}|corrupted")
    places = make_placements(spec, target, source, adapter.n_heads(spec.site))
    return Pair(target, target, source, source, source.id, places)


def _with_reads(pair: PatchPair, reads: Reads) -> PatchPair:
    """Return a pair whose patched prompt names the positions that the metric reads."""
    target = replace(pair.target, positions={**pair.target.positions, READS: tuple(sorted(reads))})
    return replace(pair, base=target, target=target)


def _choose_controls(spec: PairSpecification, pairs: Sequence[PatchPair]) -> tuple[str, ...]:
    if spec.controls == NONE:
        return ()
    wanted = set(spec.controls)
    if spec.controls == AUTO:
        groups = {pair.base.group for pair in pairs}
        is_enough = len(groups) >= MIN_QUESTIONS_FOR_CLAIM
        wanted = set(spec.automatic_controls) if is_enough else set()
    return tuple(name for name in PATCH_CONTROLS if name in wanted)


def _with_controls(
    adapter: Adapter,
    spec: PairSpecification,
    pairs: Sequence[PatchPair],
    controls: Sequence[str],
    *,
    partner_of: Callable[[PatchPair], TokenizedPrompt | None],
    directions_of: Callable[[PatchPair], DirectionPair | None],
) -> tuple[tuple[PatchPair, ...], ControlCounts]:
    """Return all pairs, those of ``other_pair`` included, and the counts of the controls."""
    heads = adapter.n_heads(spec.site)
    out: list[PatchPair] = []
    counts = ControlCounts()
    for pair in pairs:
        source = pair.source
        assert source is not None  # every pair has two prompts
        counts.with_template += bool(pair.base.cluster)
        own = pair
        if NORM_MATCHED in controls:
            label = f"{spec.seed}:{NORM_MATCHED}:{pair.base.id}"
            towards = directions_of(pair)
            counts.gaussian_directions += towards is None
            turned = make_placements(
                spec, pair.target, source, heads, NORM_MATCHED, label=label, towards=towards
            )
            own = replace(pair, placements=pair.placements + turned)
        out.append(own)
        if OTHER_PAIR in controls:
            other = partner_of(pair)
            counts.without_partner += other is None
            if other is not None:
                places = make_placements(spec, pair.target, source, heads, OTHER_PAIR)
                out.append(Pair(pair.target, pair.target, other, other, other.id, places))
    return tuple(out), counts


def restore_patch(adapter: Adapter, spec: PairSpecification, stored: StoredInputs) -> PatchInputs:
    """Rebuild the inputs of a sweep from its run directory, without data set and tokenizer."""
    record = stored.result.record.get("pairs", {})
    if missing := [name for name in stored.donor_ids if name not in record]:
        raise RunError(
            f"run.json lacks the answers of pair {missing[0]!r}, so its cells cannot be measured"
            " again."
        )
    answers: dict[str, Answers] = {}
    for name, one in record.items():
        both = Answers(tuple(one["answer_ids"]), tuple(one["wrong_ids"]), one.get("any_of", False))
        answers[name] = both
        if max((*both.answer, *both.wrong), default=0) >= adapter.shape.d_vocab:
            raise RunError(
                f"run.json is damaged: answers of pair {name!r} are not in the vocabulary. Make the"
                " run again."
            )
        if reason := lacks(spec.metric, both):
            raise RunError(
                f"run.json is damaged: answers of pair {name!r} do not allow {spec.metric!r}:"
                f" {reason}. Make the run again."
            )
    pair_rows: dict[str, Any] = {}
    if spec.takes_row:
        if lacking := [name for name, one in record.items() if one.get("row") is None]:
            raise RunError(
                f"run.json lacks the row of pair {lacking[0]!r}, which the metric takes. Pass the"
                " metric of the run, or make the run again."
            )
        pair_rows = {name: one["row"] for name, one in record.items()}
    pairs: list[PatchPair] = []
    partners: dict[str, TokenizedPrompt] = {}
    for name, (own, *other) in stored.donor_ids.items():
        target = TokenizedPrompt(**stored.fields("base", name))
        source = TokenizedPrompt(**stored.fields("donor", own))
        places = make_placements(spec, target, source, adapter.n_heads(spec.site))
        pairs.append(Pair(target, target, source, source, own, places))
        if other:
            partners[name] = TokenizedPrompt(**stored.fields("donor", other[0]))
    controls = () if spec.controls == NONE else tuple(spec.controls)
    check_stored_pairs(pairs)
    whole, control_counts = _with_controls(
        adapter,
        spec,
        pairs,
        controls,
        partner_of=lambda pair: partners.get(pair.base.id),
        directions_of=lambda pair: _load_directions(stored, pair),
    )
    check_stored_pairs(whole)
    metric = spec.metric if callable(spec.metric) else str(spec.metric)
    inputs = PatchInputs(
        dropped=(),
        trial=pairs[0].target.ids,
        sites=(spec.site,),
        layers=stored.layers,
        n_layers=adapter.n_layers,
        pairs=whole,
        reading=MetricReading(metric, answers, pair_rows=pair_rows),
        controls=controls,
        counts=control_counts,
    )
    return inputs.read_sources(adapter, spec) if metric == KL else inputs


def _load_directions(stored: StoredInputs, pair: PatchPair) -> DirectionPair | None:
    """Return the two prompts of a direction of a saved sweep; None if it was Gaussian."""
    first, second = (pair_direction_id(pair.base.id, side) for side in (0, 1))
    if ("direction", first) not in stored.records:
        return None
    return (
        TokenizedPrompt(**stored.fields("direction", first)),
        TokenizedPrompt(**stored.fields("direction", second)),
    )
