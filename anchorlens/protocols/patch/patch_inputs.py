"""Inputs of a patch sweep: measured rows, sources, places and controls, made from pairs or from a run directory."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from typing_extensions import override

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM, PATCH_CONTROLS
from anchorlens.engine.cost import rows_per_batch
from anchorlens.engine.metrics import KL
from anchorlens.engine.observed_logits import Reads
from anchorlens.engine.reference import full_reader, measure, states_at
from anchorlens.errors import RunError
from anchorlens.models.adapter import Adapter
from anchorlens.prompts.batches import pad_rows
from anchorlens.prompts.pairs import TokenizedPair, drop_pair
from anchorlens.prompts.tokenize_pairs import PairContext
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.protocols.base import SweepInputs
from anchorlens.protocols.pair_sweep.donor_pairs import Pair, Placement, check_stored_pairs
from anchorlens.protocols.patch.metric_reading import (
    Answers,
    MetricReading,
    UnpatchedReads,
    choose_metric,
    find_reads,
    lacks,
    tokens_to_append,
)
from anchorlens.protocols.patch.placements import NORM_MATCHED, OTHER_PAIR, PAIRED, READS, PatchPair, anchor_order, make_placements
from anchorlens.protocols.patch.spec import AUTO, NONE, Patch
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.questions.build_rows import check_not_empty
from anchorlens.results.tables import InputTable

# Logits of unpatched runs that are kept at most: 256 MB in float32.
_MOST_KEPT = 2**26
# Reason why a pair has no place, by ``by``.
_NO_PLACE = {"segment": "no_segment"}


@dataclass(frozen=True)
class PatchInputs(SweepInputs):
    """Inputs of a patch sweep.

    Attributes:
        n_layers: Number of layers of the model.
        pairs: Patched row (``target``) and source of the activations, with a placement per place. The control ``other_pair`` has
            pairs of its own.
        reading: Metric with the answers of the pairs.
        controls: Measured controls.
        without_partner: Number of pairs for which no other pair has the same length.
        source_values: Pair id -> metric of the source's own run; empty before :meth:`read_sources`.
    """

    n_layers: int
    pairs: tuple[PatchPair, ...]
    reading: MetricReading
    controls: tuple[str, ...] = ()
    without_partner: int = 0
    source_values: "Mapping[str, float] | None" = None

    @property
    @override
    def max_tokens(self) -> int:
        return max(len(row.ids) for pair in self.own_pairs for row in (pair.target, pair.source) if row is not None)

    @property
    def own_pairs(self) -> list[PatchPair]:
        """Pairs of the measurement, without those of ``other_pair``."""
        return [pair for pair in self.pairs if pair.placements[0].control == "none"]

    @cached_property
    def places(self) -> Mapping[tuple[str, str, str, str], Placement]:
        """Pair id, source id, anchor and control -> placement."""
        return {(pair.base.id, pair.donor_id, p.anchor, p.control): p for pair in self.pairs for p in pair.placements}

    @override
    def table(self) -> InputTable:
        ids: dict[str, list[str]] = {}
        for pair in self.pairs:
            ids.setdefault(pair.base.id, []).append(pair.donor_id)
        sources = [pair.source for pair in self.own_pairs if pair.source is not None]
        return InputTable({"base": [pair.base for pair in self.own_pairs], "donor": sources}, ids)

    @override
    def record(self, spec: Any) -> dict[str, Any]:
        anchors = anchor_order([place.anchor for pair in self.own_pairs for place in pair.placements])
        counts: dict[str, Any] = {"evaluated": len(self.own_pairs), "groups": len({pair.base.group for pair in self.own_pairs})}
        rows = [row for pair in self.own_pairs for row in (pair.target, pair.source) if row is not None]
        counts["unpaired_positions"] = sum(row.positions["last"][0] + 1 - len(row.positions[PAIRED]) for row in rows)
        if OTHER_PAIR in self.controls:
            counts["without_other_pair"] = self.without_partner
        values = self.source_values or {}
        pairs = {
            pair.base.id: {"answer_ids": list(answer), "wrong_ids": list(wrong), "source_value": values.get(pair.base.id)}
            for pair in self.own_pairs
            for answer, wrong in [self.reading.answers[pair.base.id]]
        }
        config = {"anchors": anchors, "metric": self.reading.name, "controls": list(self.controls) or NONE}
        return {"config": config, "counts": counts, "pairs": pairs}

    def read_sources(self, adapter: Adapter, spec: Patch) -> "PatchInputs":
        """Return the inputs with the metric of every source's own run and, for ``kl``, the states of the clean runs."""
        pairs, reading = self.own_pairs, self.reading
        ids, width = [pair.base.id for pair in pairs], self.max_tokens
        size = rows_per_batch(adapter.shape, adapter.devices, width, spec.batch_size, spec.max_memory)
        targets, sources = [pair.target for pair in pairs], [pair.source for pair in pairs if pair.source is not None]
        if reading.metric == KL:
            clean = sources if spec.direction == "denoising" else targets
            states: dict[str, torch.Tensor] = {}
            for some, rows in zip(_parts(ids, size), _parts(clean, size), strict=True):
                last = torch.tensor([row.positions["last"][0] for row in rows])
                with torch.no_grad():
                    found = states_at(adapter, pad_rows([row.ids for row in rows]), (), None, torch.arange(len(rows)), last)
                states |= dict(zip(some, found.cpu(), strict=True))
            reading = replace(reading, clean_states=states)
        values: dict[str, float] = {}
        for some, rows in zip(_parts(ids, size), _parts(sources, size), strict=True):
            reader = full_reader(reading.reader(rows, some))
            found = measure(adapter, pad_rows([row.ids for row in rows]), (), reader).values[reading.name]
            values |= dict(zip(some, found.tolist(), strict=True))
        return replace(self, reading=reading, source_values=values)


def _parts(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def prepare_patch(context: PairContext, spec: Patch) -> PatchInputs:
    """Make the inputs of a sweep; pairs that the metric or the places do not allow are dropped and counted."""
    check_not_empty(context.pairs, context.dropped, f"in {context.data.name}")
    adapter, dropped = context.adapter, list(context.dropped)
    answers = {one.corrupted.pair.id: (one.answer, one.wrong) for one in context.pairs}
    reading = MetricReading(choose_metric(spec.metric, list(answers.values())), answers)
    made: list[PatchPair] = []
    unpatched: dict[str, UnpatchedReads] = {}
    n_kept = 0
    for one in context.pairs:
        own = one.corrupted.pair
        reason, detail = lacks(reading.metric, *answers[own.id]), ""
        pair = None
        if not reason:
            pair = _make_pair(adapter, spec, one, reading, answers[own.id])
            longest = max(len(pair.target.ids), len(pair.source.ids) if pair.source is not None else 0)
            if longest > adapter.shape.n_ctx:
                reason, detail = "too_long", f"{longest} tokens with the answer, the model takes {adapter.shape.n_ctx}"
            elif not pair.placements:
                reason, detail = _NO_PLACE.get(spec.by, "no_paired_position"), f"by={spec.by!r}"
            elif spec.site == "pattern" and len(pair.target.ids) != len(pair.source.ids if pair.source is not None else ()):
                reason, detail = "length_differs", "attention patterns of prompts of different length"
        if reason or pair is None:
            dropped.append(drop_pair(own, context.data.name, reason, detail))
        else:
            if not isinstance(reading.metric, str):
                found = find_reads(pair, reading.metric, adapter, spec.metric_positions)
                n_kept += len(found.logits) * adapter.shape.d_vocab
                unpatched[own.id] = found if n_kept <= _MOST_KEPT else replace(found, logits={})
                pair = _with_reads(pair, found.reads)
            made.append(pair)
    reading = replace(reading, unpatched=unpatched)
    check_not_empty(made, dropped, f"in {context.data.name}")
    controls = _choose_controls(spec, made)
    pairs, lonely = _with_controls(adapter, spec, made, controls, lambda pair: _draw_partner(spec, pair, made, answers))
    layers = spec.layers_of(adapter.n_layers)
    return PatchInputs(tuple(dropped), made[0].target.ids, (spec.site,), layers, adapter.n_layers, pairs, reading, controls, lonely)


def _make_pair(adapter: Adapter, spec: Patch, one: TokenizedPair, reading: MetricReading, answers: Answers) -> PatchPair:
    """Return a pair with its places; the answer's first tokens are appended to both prompts."""
    forced, name = tokens_to_append(reading.metric, *answers), one.corrupted.pair.id

    def row(at: int, prompt: TokenizedPrompt) -> TokenizedPrompt:
        paired = tuple(positions[at] for positions in one.alignment)
        return replace(prompt, ids=prompt.ids + forced, positions={**prompt.positions, PAIRED: paired})

    rows = {"clean": row(0, one.clean), "corrupted": row(1, one.corrupted)}
    to, by = ("corrupted", "clean") if spec.direction == "denoising" else ("clean", "corrupted")
    target, source = replace(rows[to], id=name), replace(rows[by], id=f"{name}|{by}")
    return Pair(target, target, source, source, source.id, make_placements(spec, target, source, adapter.n_heads(spec.site)))


def _with_reads(pair: PatchPair, reads: Reads) -> PatchPair:
    """Return a pair whose patched prompt names the positions that the metric reads."""
    target = replace(pair.target, positions={**pair.target.positions, READS: tuple(sorted(reads))})
    return replace(pair, base=target, target=target)


def _choose_controls(spec: Patch, pairs: Sequence[PatchPair]) -> tuple[str, ...]:
    if spec.controls == AUTO:
        enough = len({pair.base.group for pair in pairs}) >= MIN_QUESTIONS_FOR_CLAIM
        return tuple(name for name in PATCH_CONTROLS if enough and not (name == NORM_MATCHED and spec.site == "pattern"))
    return () if spec.controls == NONE else tuple(name for name in PATCH_CONTROLS if name in spec.controls)


def _draw_partner(
    spec: Patch, pair: PatchPair, pairs: Sequence[PatchPair], answers: Mapping[str, Answers]
) -> TokenizedPrompt | None:
    """Draw the source of another group with as many prompt tokens, other tokens and another answer; None if there is none."""
    own = pair.source
    assert own is not None  # every pair has two prompts
    fits = [
        other.source
        for other in pairs
        if other.source is not None and other.base.group != pair.base.group
        and other.source.positions["last"] == own.positions["last"] and other.source.ids != own.ids
        and (not answers[pair.base.id][0] or answers[other.base.id][0] != answers[pair.base.id][0])
    ]  # fmt: skip
    return random.Random(f"{spec.seed}:{OTHER_PAIR}:{pair.base.id}").choice(fits) if fits else None


def _with_controls(
    adapter: Adapter, spec: Patch, pairs: Sequence[PatchPair], controls: Sequence[str],
    partner_of: Callable[[PatchPair], TokenizedPrompt | None],
) -> tuple[tuple[PatchPair, ...], int]:  # fmt: skip
    """Return all pairs, those of ``other_pair`` included, and the number of pairs without a partner."""
    heads, out, lonely = adapter.n_heads(spec.site), list[PatchPair](), 0
    for pair in pairs:
        source = pair.source
        assert source is not None  # every pair has two prompts
        own = pair
        if NORM_MATCHED in controls:
            label = f"{spec.seed}:{NORM_MATCHED}:{pair.base.id}"
            own = replace(pair, placements=pair.placements + make_placements(spec, pair.target, source, heads, NORM_MATCHED, label))
        out.append(own)
        if OTHER_PAIR in controls:
            other = partner_of(pair)
            lonely += other is None
            if other is not None:
                places = make_placements(spec, pair.target, source, heads, OTHER_PAIR)
                out.append(Pair(pair.target, pair.target, other, other, other.id, places))
    return tuple(out), lonely


def restore_patch(adapter: Adapter, spec: Patch, stored: StoredInputs) -> PatchInputs:
    """Rebuild the inputs of a sweep from its run directory, without data set and tokenizer."""
    record = stored.result.record.get("pairs", {})
    if missing := [name for name in stored.donor_ids if name not in record]:
        raise RunError(f"run.json lacks the answers of pair {missing[0]!r}, so its cells cannot be measured again.")
    answers = {name: (tuple(one["answer_ids"]), tuple(one["wrong_ids"])) for name, one in record.items()}
    for name, both in answers.items():
        if max((*both[0], *both[1]), default=0) >= adapter.shape.d_vocab:
            raise RunError(f"run.json is damaged: answers of pair {name!r} are not in the vocabulary. Make the run again.")
        if reason := lacks(spec.metric, *both):
            raise RunError(
                f"run.json is damaged: answers of pair {name!r} do not allow {spec.metric!r}: {reason}. Make the run again."
            )
    pairs: list[PatchPair] = []
    partners: dict[str, TokenizedPrompt] = {}
    for name, (own, *other) in stored.donor_ids.items():
        target, source = TokenizedPrompt(**stored.fields("base", name)), TokenizedPrompt(**stored.fields("donor", own))
        pairs.append(Pair(target, target, source, source, own, make_placements(spec, target, source, adapter.n_heads(spec.site))))
        if other:
            partners[name] = TokenizedPrompt(**stored.fields("donor", other[0]))
    controls = () if spec.controls == NONE else tuple(spec.controls)
    check_stored_pairs(pairs)
    whole, lonely = _with_controls(adapter, spec, pairs, controls, lambda pair: partners.get(pair.base.id))
    check_stored_pairs(whole)
    metric = spec.metric if callable(spec.metric) else str(spec.metric)
    reading, sites = MetricReading(metric, answers), (spec.site,)
    inputs = PatchInputs((), pairs[0].target.ids, sites, stored.layers, adapter.n_layers, whole, reading, controls, lonely)
    return inputs.read_sources(adapter, spec) if metric == KL else inputs
