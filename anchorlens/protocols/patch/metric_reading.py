"""Metric of a patch sweep: which positions and tokens of a row it reads, and its reader."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.constants import METRIC_UNITS, POINTS, UNITS
from anchorlens.display import short_repr
from anchorlens.engine.function_reader import Call, FunctionReader, LogitMetric, Place
from anchorlens.engine.metrics import (
    KL,
    LOGIT_DIFF,
    LOGPROB,
    PROB,
    AnswerProbabilityReader,
    KLReader,
    LogitDiffReader,
    common_length,
)
from anchorlens.engine.observed_logits import Logits, Reads, observe, resolve, union_of_reads
from anchorlens.engine.readouts import Reader
from anchorlens.errors import InputError, ShapeError
from anchorlens.fingerprint import call_user_function, callable_name
from anchorlens.models.adapter import Adapter
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.protocols.patch.placements import READS, PatchPair
from anchorlens.protocols.patch.spec import AUTO

Tokens = tuple[int, ...]
Answers = tuple[Tokens, Tokens]
"""Token ids of answer and wrong answer; () for none."""


def choose_metric(metric: "str | LogitMetric", answers: Sequence[Answers]) -> "str | LogitMetric":
    """Return the metric that ``auto`` stands for: the first that every pair allows."""
    if metric != AUTO:
        return metric
    return next((name for name in (LOGIT_DIFF, LOGPROB) if not any(lacks(name, *one) for one in answers)), KL)


def lacks(metric: "str | LogitMetric", answer: Tokens, wrong: Tokens) -> str:
    """Return the reason why a pair does not allow a metric; empty if it does."""
    if metric not in (LOGIT_DIFF, PROB, LOGPROB):
        return ""
    if not answer:
        return "no_answer"
    if metric == LOGIT_DIFF and not wrong:
        return "no_wrong_answer"
    if metric == LOGIT_DIFF and common_length(answer, wrong) == min(len(answer), len(wrong)):
        return "answer_equals_wrong"
    return ""


def tokens_to_append(metric: "str | LogitMetric", answer: Tokens, wrong: Tokens) -> Tokens:
    """Return the answer tokens that are appended to both prompts (teacher forcing)."""
    if metric == LOGIT_DIFF:
        return answer[: common_length(answer, wrong)]
    return answer[:-1] if metric in (PROB, LOGPROB) else ()


@dataclass(frozen=True)
class UnpatchedReads:
    """Reads of a metric function on unpatched logits.

    Attributes:
        reads: Reads on the logits of the patched prompt, and on those of its source if it is as long.
        logits: Position -> logits of the patched prompt's own run, where it is read, [d_vocab].
    """

    reads: Reads
    logits: Mapping[int, Float[Tensor, "d_vocab"]]


def find_reads(pair: PatchPair, metric: LogitMetric, adapter: Adapter, declared: Sequence[int] | None) -> UnpatchedReads:
    """Return what a metric function reads on the logits of a patched prompt, and on those of its source if it is as long.

    Args:
        pair: Patched prompt and its source.
        metric: Function of the logits.
        adapter: The model.
        declared: Positions that are computed in every cell in addition; if None, none.

    Raises:
        InputError: If a declared position lies outside the prompt, or the function reads no logits.
    """
    row = pair.target
    n = len(row.ids)
    out: Reads = {}
    known: dict[int, Tensor] = {}
    for position in declared or ():
        if not -n <= position < n:
            raise InputError(
                f"metric_positions={tuple(declared or ())}: the prompt of pair {row.id!r} has {n} tokens, so {position} is outside. "
                f"Give positions from {-n} to {n - 1}.",
                argument="metric_positions",
            )
        out[position % n] = set()
    prompts = [one for one in (row, pair.source) if one is not None and len(one.ids) == n]
    for prompt in prompts:
        _, whole = adapter.whole(torch.tensor(prompt.ids, device="cpu").to(adapter.device))
        logits = Logits.of(whole.float()[None])
        observe(lambda each: metric_values(metric, [row.id], 0, each), logits)
        if not logits.reads:
            raise InputError(
                f"metric={callable_name(metric)}: reads no logits (pair {row.id!r}), so no patch can change it. Return a value that "
                "depends on the logits.",
                argument="metric",
            )
        if not known:
            known = {position: whole[position].float().clone() for position in logits.reads}
        out = union_of_reads([out, logits.reads])
    return UnpatchedReads(out, known)


@dataclass(frozen=True)
class MetricReading:
    """Metric of a sweep with the answers of its pairs.

    Attributes:
        metric: Name or function.
        answers: Pair id -> token ids of answer and wrong answer.
        clean_states: Pair id -> final residual stream of the clean run at its last prompt position; for ``kl``.
        unpatched: Pair id -> what a metric function reads on the unpatched logits; where a pair is missing, the positions stored in
            its prompt, over the whole vocabulary.
    """

    metric: "str | LogitMetric"
    answers: Mapping[str, Answers]
    clean_states: Mapping[str, Tensor] = field(default_factory=dict)
    unpatched: Mapping[str, UnpatchedReads] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the metric in outputs."""
        return self.metric if isinstance(self.metric, str) else callable_name(self.metric)

    @property
    def is_named(self) -> bool:
        """Whether the metric is one of this package, not a function of the user."""
        return isinstance(self.metric, str)

    @property
    def unit(self) -> str:
        """Unit of the effect."""
        return UNITS.get(self.name, METRIC_UNITS)

    @property
    def factor(self) -> float:
        """Factor of differences of values: 100 for probabilities, whose effect is in percentage points."""
        return 100.0 if self.unit == POINTS else 1.0

    def positions(self, row: TokenizedPrompt, pair_id: str) -> list[int]:
        """Return the positions of a row that are read."""
        last = row.positions["last"][0]
        if self.metric in (PROB, LOGPROB):
            return [last + i for i in range(len(self.answers[pair_id][0]))]
        if self.metric == LOGIT_DIFF:
            return [last + common_length(*self.answers[pair_id])]
        return [last] if self.metric == KL else list(row.positions[READS])

    def reader(self, rows: Sequence[TokenizedPrompt], pair_ids: Sequence[str]) -> Reader:
        """Return the reader of some rows."""
        if not isinstance(self.metric, str):
            return self._function_reader(self.metric, rows, pair_ids)
        reads = [self.positions(row, name) for row, name in zip(rows, pair_ids, strict=True)]
        if self.metric in (PROB, LOGPROB):
            tokens = [list(self.answers[name][0]) for name in pair_ids]
            return AnswerProbabilityReader(_rows(reads), _flat(reads), _flat(tokens), len(rows))
        if self.metric == KL:
            known = all(name in self.clean_states for name in pair_ids)  # while planning they are not
            return KLReader(_flat(reads), torch.stack([self.clean_states[name] for name in pair_ids]) if known else None)
        both = [[each[common_length(*self.answers[name])] for each in self.answers[name]] for name in pair_ids]
        return LogitDiffReader(_flat(reads), torch.tensor(both))

    def _function_reader(self, metric: LogitMetric, rows: Sequence[TokenizedPrompt], pair_ids: Sequence[str]) -> FunctionReader:
        """Return the reader of a metric function, which gets one prompt at a time."""
        calls = [Call(i, 1, len(row.ids), 1) for i, row in enumerate(rows)]
        reads: list[Reads] = []
        known: dict[Place, Tensor] = {}
        for i, (row, name) in enumerate(zip(rows, pair_ids, strict=True)):
            stored = UnpatchedReads(dict.fromkeys(row.positions.get(READS, ())), {})
            found = self.unpatched.get(name, stored)
            reads.append(found.reads)
            known |= {(i, position): logits for position, logits in found.logits.items()}
        values = partial(metric_values, metric, pair_ids)
        return FunctionReader.of_reads(self.name, values, calls, reads, unpatched=known.get)


def metric_values(metric: LogitMetric, pair_ids: Sequence[str], number: int, logits: Float[Tensor, "1 pos d_vocab"]) -> Tensor:
    """Return the value of a metric function of one prompt, [1].

    Args:
        metric: Logits [1 pos d_vocab] -> a scalar or [1], as a tensor, NumPy value or number.
        pair_ids: Pair of each prompt.
        number: Number of the prompt.
        logits: Logits of the prompt.

    Raises:
        InputError: If the function raises, or its value is not finite.
        ShapeError: If it returns anything but one number.
    """
    value = resolve(call_user_function("metric", metric, logits=logits))
    try:
        whole = torch.as_tensor(value, device="cpu").detach().reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        whole = None
    name = getattr(metric, "__name__", "function")
    if whole is None or whole.numel() != 1:
        got = short_repr(value) if whole is None else f"shape {tuple(getattr(value, 'shape', whole.shape))}"
        fix = "It is called for one prompt at a time, with logits [1 pos d_vocab]. Return a scalar or [1]."
        raise ShapeError(f"metric={name}: returned {got}. {fix}", argument="metric")
    if not whole.isfinite().all():
        raise InputError(
            f"metric={name}: returned {float(whole)} for pair {pair_ids[number]!r}. Return finite numbers, or leave the pair out.",
            argument="metric",
        )
    return whole.float()


def _rows(reads: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([i for i, each in enumerate(reads) for _ in each], dtype=torch.long)


def _flat(reads: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([one for each in reads for one in each], dtype=torch.long)
