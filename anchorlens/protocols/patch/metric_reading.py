"""Metric of a patch sweep: which positions and tokens of a row it reads, and its reader."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from anchorlens.constants import POINTS
from anchorlens.engine.metric_reads import find_reads
from anchorlens.engine.metrics import (
    KL,
    LOGIT_DIFF,
    LOGPROB,
    METRIC_UNITS,
    PROB,
    UNITS,
    AnswerProbabilityReader,
    FunctionReader,
    KLReader,
    LogitDiffReader,
    LogitMetric,
    common_length,
    metric_value,
)
from anchorlens.engine.readouts import Reader
from anchorlens.errors import InputError
from anchorlens.fingerprint import callable_name
from anchorlens.models.adapter import Adapter
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.protocols.patch.placements import READS
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


def read_positions(row: TokenizedPrompt, metric: LogitMetric, adapter: Adapter, declared: Sequence[int] | None) -> Tokens:
    """Return the positions of a prompt that a metric function reads, declared or found.

    Raises:
        InputError: If a declared position lies outside the prompt, or the function reads none.
    """
    n = len(row.ids)
    if declared is not None:
        if wrong := [p for p in declared if not -n <= p < n]:
            raise InputError(
                f"metric_positions={tuple(declared)}: the prompt of pair {row.id!r} has {n} tokens, so {wrong[0]} is outside. Give "
                f"positions from {-n} to {n - 1}.",
                argument="metric_positions",
            )
        return tuple(sorted({p % n for p in declared}))
    _, logits = adapter.whole(torch.tensor(row.ids, device="cpu").to(adapter.device))
    found = find_reads(lambda each: metric_value(metric, each), logits.detach()[None].clone())
    if not found:
        raise InputError(
            f"metric={callable_name(metric)}: has the same value whatever the logits are (pair {row.id!r}). Return a value that "
            "depends on them, or give metric_positions=.",
            argument="metric",
        )
    return tuple(found)


@dataclass(frozen=True)
class MetricReading:
    """Metric of a sweep with the answers of its pairs.

    Attributes:
        metric: Name or function.
        answers: Pair id -> token ids of answer and wrong answer.
        clean_states: Pair id -> final residual stream of the clean run at its last prompt position; for ``kl``.
    """

    metric: "str | LogitMetric"
    answers: Mapping[str, Answers]
    clean_states: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the metric in outputs."""
        return self.metric if isinstance(self.metric, str) else callable_name(self.metric)

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

    def reader(self, rows: Sequence[TokenizedPrompt], pair_ids: Sequence[str], *, everywhere: bool = False) -> Reader:
        """Return the reader of some rows; ``everywhere``: a metric function gets the logits of all positions."""
        reads = [
            list(range(len(row.ids))) if everywhere and callable(self.metric) else self.positions(row, name)
            for row, name in zip(rows, pair_ids, strict=True)
        ]
        if not isinstance(self.metric, str):
            lengths = tuple(len(row.ids) for row in rows)
            return FunctionReader(self.name, self.metric, _rows(reads), _flat(reads), lengths)
        if self.metric in (PROB, LOGPROB):
            tokens = [list(self.answers[name][0]) for name in pair_ids]
            return AnswerProbabilityReader(_rows(reads), _flat(reads), _flat(tokens), len(rows))
        if self.metric == KL:
            known = all(name in self.clean_states for name in pair_ids)  # while planning they are not
            return KLReader(_flat(reads), torch.stack([self.clean_states[name] for name in pair_ids]) if known else None)
        both = [[each[common_length(*self.answers[name])] for each in self.answers[name]] for name in pair_ids]
        return LogitDiffReader(_flat(reads), torch.tensor(both))


def _rows(reads: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([i for i, each in enumerate(reads) for _ in each], dtype=torch.long)


def _flat(reads: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([one for each in reads for one in each], dtype=torch.long)
