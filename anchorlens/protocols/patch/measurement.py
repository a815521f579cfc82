"""Measure `patch`: patch activations of one prompt of a pair into the other, at every layer and position."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from typing_extensions import override

from anchorlens.engine.metrics import UNITS, MetricReader, logit_difference
from anchorlens.engine.readouts import Metrics
from anchorlens.models.adapter import Adapter
from anchorlens.prompts.pairs import PairPrompt, PromptPair, TokenizedPair, drop_pair
from anchorlens.prompts.tokenize_pairs import PAIRS, PairContext
from anchorlens.protocols.base import SweepInputs
from anchorlens.protocols.pair_sweep.batching import Batch
from anchorlens.protocols.pair_sweep.donor_pairs import Pair, Placement
from anchorlens.protocols.pair_sweep.measurement import Array, PatchingMeasurement
from anchorlens.protocols.patch.analysis import ANALYSIS
from anchorlens.protocols.patch.spec import Patch
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.questions.build_rows import check_not_empty
from anchorlens.results.tables import InputTable

PatchPair: TypeAlias = Pair[PairPrompt]
_PAIRED = "paired"


@dataclass(frozen=True)
class PatchInputs(SweepInputs):
    """Inputs of a patch sweep.

    Attributes:
        pairs: Patched prompt (``target``) and source of the activations (``source``), with a placement per position.
        tokens: Pair id -> first token ids of answer and wrong answer.
    """

    pairs: tuple[PatchPair, ...]
    tokens: Mapping[str, tuple[int, int]]

    @property
    @override
    def max_tokens(self) -> int:
        return max(len(pair.target.ids) for pair in self.pairs)

    @override
    def table(self) -> InputTable:
        sources = [pair.source for pair in self.pairs if pair.source is not None]
        ids = {pair.base.id: [pair.donor_id] for pair in self.pairs}
        return InputTable({"base": [pair.base for pair in self.pairs], "donor": sources}, ids)

    @override
    def record(self, spec: Any) -> dict[str, Any]:
        found = {place.target[0] for pair in self.pairs for place in pair.placements}
        return {"config": {"anchors": [f"pos:{p}" for p in sorted(found)]}, "counts": {"evaluated": len(self.pairs)}}


def _pair(target: PairPrompt, source: PairPrompt) -> PatchPair:
    """Build a pair with one placement per paired position."""
    paired = zip(target.positions[_PAIRED], source.positions[_PAIRED], strict=True)
    places = tuple(Placement(f"pos:{t}", "none", (t,), (s,)) for t, s in sorted(paired))
    return Pair(target, target, source, source, source.id, places)


def _add_pairing(one: TokenizedPair) -> tuple[PairPrompt, PairPrompt]:
    """Return clean and corrupted prompt with their paired positions, in order."""
    clean, corrupted = zip(*one.alignment, strict=True)
    return (
        replace(one.clean, positions={**one.clean.positions, _PAIRED: clean}),
        replace(one.corrupted, positions={**one.corrupted.positions, _PAIRED: corrupted}),
    )


class PatchMeasurement(PatchingMeasurement[Patch, PatchInputs, PairContext]):
    """Measurement of activation patches."""

    spec, analysis, source = Patch, ANALYSIS, PAIRS

    @override
    def check_model(self, spec: Patch, adapter: Adapter) -> None:
        adapter.hook_name(spec.site, spec.layers_of(adapter.n_layers)[0])

    @override
    def prepare(self, context: PairContext, spec: Patch) -> PatchInputs:
        check_not_empty(context.pairs, context.dropped, f"in {context.data.name}")
        kept = [one for one in context.pairs if len(one.answer) == len(one.wrong) == 1]
        detail = "answer and wrong answer must have one token each"
        dropped = context.dropped + tuple(
            drop_pair(one.clean.pair, context.data.name, "answer_not_one_token", detail) for one in context.pairs if one not in kept
        )
        check_not_empty(kept, dropped, f"in {context.data.name}")
        made = [_pair(*_add_pairing(one)[:: -1 if spec.direction == "denoising" else 1]) for one in kept]
        tokens = {pair.base.id: (one.answer[0], one.wrong[0]) for pair, one in zip(made, kept, strict=True)}
        layers = spec.layers_of(context.adapter.n_layers)
        return PatchInputs(dropped, made[0].target.ids, (spec.site,), layers, tuple(made), tokens)

    @override
    def pairs(self, inputs: PatchInputs) -> tuple[PatchPair, ...]:
        return inputs.pairs

    @override
    def metric(self, spec: Patch) -> str:
        return spec.metric

    @override
    def reader(self, adapter: Adapter, inputs: PatchInputs, pairs: Sequence[PatchPair]) -> MetricReader:
        """Return the reader of the metric at the last position of each row."""
        tokens = torch.tensor([inputs.tokens[pair.base.id] for pair in pairs])
        last = torch.tensor([len(pair.target.ids) - 1 for pair in pairs])
        return MetricReader(logit_difference(tokens[:, 0], tokens[:, 1]), torch.arange(len(pairs)), last, len(pairs))

    @override
    def effect(self, inputs: PatchInputs, spec: Patch, pairs: Sequence[PatchPair], before: Array, after: Array) -> Array:
        return after - before

    @override
    def columns(
        self, inputs: PatchInputs, spec: Patch, unit: Batch, place: Placement, before: Metrics, after: Metrics
    ) -> dict[str, Any]:
        return {"position": place.target[0], "unit": UNITS[spec.metric], "by_construction": False}

    def from_run(self, adapter: Adapter, spec: Patch, stored: StoredInputs) -> PatchInputs:
        """Rebuild the pairs from a run directory; answers are tokenized again."""
        hf = adapter.tokenizer
        assert hf is not None  # the run was measured with one
        pairs: list[PatchPair] = []
        tokens: dict[str, tuple[int, int]] = {}
        for name, (donor,) in stored.donor_ids.items():
            record = stored.records["base", name]
            answer, wrong = str(record["answer"]), str(record["wrong_answer"])
            one = PromptPair(name, str(record["question_id"]), "", "", answer, wrong)
            inputs = (("base", name), ("donor", donor))
            texts: dict[str, Any] = {"answer_text": answer, "wrong_text": wrong}
            sides = (PairPrompt(**stored.fields(*key), text=str(stored.records[key]["text"]), pair=one, **texts) for key in inputs)
            pairs.append(_pair(*sides))
            first, second = (int(hf(text, add_special_tokens=False)["input_ids"][0]) for text in (answer, wrong))  # pyright: ignore
            tokens[one.id] = first, second
        return PatchInputs((), pairs[0].target.ids, (spec.site,), stored.layers, tuple(pairs), tokens)


MEASUREMENT = PatchMeasurement()
