"""Metric of a patch sweep: which positions and tokens of a row it reads, and its reader."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.constants import METRIC_UNITS, POINTS, UNITS
from anchorlens.display import list_counts, short_repr
from anchorlens.engine.alternatives import AnyAnswerDiffReader, AnyAnswerReader, TokenSets
from anchorlens.engine.function_reader import Call, FunctionReader, LogitMetric, Place
from anchorlens.engine.logits import Logits, Reads, union_of_reads
from anchorlens.engine.observed_logits import observe, resolve
from anchorlens.engine.patches import common_prefix
from anchorlens.engine.readouts import (
    KL,
    LOGIT_DIFF,
    LOGPROB,
    PROB,
    AnswerProbabilityReader,
    KLReader,
    LogitDiffReader,
    Reader,
)
from anchorlens.errors import InputError, ShapeError
from anchorlens.fingerprint import call_user_function, callable_name
from anchorlens.measure.metric_state import check_repeats
from anchorlens.models.adapter import Adapter
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.protocols.patch.placements import READS, PatchPair
from anchorlens.protocols.patch.spec import AUTO

Tokens = tuple[int, ...]
PairRow = Mapping[str, Any]
"""Row of a pair: id, group, prompts, answers and the columns named in ``columns=``."""


@dataclass(frozen=True)
class Answers:
    """Token ids of the answer and the wrong answer of a pair; () for none.

    ``any_of`` is True for the first tokens of several alternatives, of which any counts.
    """

    answer: Tokens
    wrong: Tokens
    any_of: bool = False

    @property
    def n_common(self) -> int:
        """Number of tokens that both begin with, after which the logit difference is read."""
        n = min(len(self.answer), len(self.wrong))
        return 0 if self.any_of else common_prefix([self.answer, self.wrong], n)


def choose_metric(metric: "str | LogitMetric", answers: Sequence[Answers]) -> "str | LogitMetric":
    """Return the metric that ``auto`` stands for: the first that every pair allows."""
    if metric != AUTO:
        return metric
    for name in (LOGIT_DIFF, LOGPROB):
        if not any(lacks(name, one) for one in answers):
            return name
    return KL


def explain_choice(chosen: "str | LogitMetric", answers: Sequence[Answers]) -> str:
    """Return why ``auto`` stands for another metric than the answers suggest; empty if it stands
    for the one that they suggest.
    """
    no_answer = [one for one in answers if not one.answer]
    if chosen == KL and len(no_answer) == len(answers):
        return (
            "The pairs have no answers, so the metric is kl: the divergence from the clean run's"
            " next-token distribution. Give answers (columns={'answer': ...}), or pass metric='kl'."
        )
    wanted = LOGPROB if chosen == KL else LOGIT_DIFF
    reasons = Counter(reason for one in answers if (reason := lacks(wanted, one)))
    n = reasons.total()
    if chosen == wanted or n == len(answers):
        return ""
    return (
        f"{n} of {len(answers)} pairs do not allow {wanted} ({list_counts(reasons)}), so the metric"
        f" of all pairs is {chosen}. Pass metric={wanted!r} to leave those pairs out, or"
        f" metric={chosen!r} to keep them without this warning."
    )


def lacks(metric: "str | LogitMetric", answers: Answers) -> str:
    """Return the reason why a pair does not allow a metric; empty if it does."""
    if metric not in (LOGIT_DIFF, PROB, LOGPROB):
        return ""
    if not answers.answer:
        return "no_answer"
    if metric == LOGIT_DIFF and not answers.wrong:
        return "no_wrong_answer"
    shortest = min(len(answers.answer), len(answers.wrong))
    if metric == LOGIT_DIFF and answers.n_common == shortest:
        return "answer_equals_wrong"
    return ""


def tokens_to_append(metric: "str | LogitMetric", answers: Answers) -> Tokens:
    """Return the answer tokens that are appended to both prompts (teacher forcing)."""
    if answers.any_of:
        return ()
    if metric == LOGIT_DIFF:
        return answers.answer[: answers.n_common]
    return answers.answer[:-1] if metric in (PROB, LOGPROB) else ()


@dataclass(frozen=True)
class UnpatchedReads:
    """Reads of a metric function on unpatched logits.

    Attributes:
        reads: Reads on the logits of the patched prompt, and on those of its source if it is as
            long.
        logits: Position -> logits of the patched prompt's own run, where it is read, [d_vocab].
    """

    reads: Reads
    logits: Mapping[int, Float[Tensor, "d_vocab"]]


def find_reads(
    pair: PatchPair,
    metric: LogitMetric,
    adapter: Adapter,
    declared: Sequence[int] | None,
    pair_row: PairRow | None = None,
) -> UnpatchedReads:
    """Return what a metric function reads on the logits of a patched prompt, and on those of its
    source if it is as long.

    Args:
        pair: Patched prompt and its source.
        metric: Function of the logits.
        adapter: The model.
        declared: Positions that are computed in every cell in addition; if None, none.
        pair_row: Row of the pair, for a function that takes it.

    Raises:
        InputError: If a declared position lies outside the prompt, or the function reads no logits
            or gives another value for the same logits.
    """
    row = pair.target
    n = len(row.ids)
    out: Reads = {}
    known: dict[int, Tensor] = {}
    for position in declared or ():
        if not -n <= position < n:
            raise InputError(
                f"metric_positions={tuple(declared or ())}: the prompt of pair {row.id!r} has {n}"
                f" tokens, so {position} is outside. Give positions from {-n} to {n - 1}.",
                argument="metric_positions",
            )
        out[position % n] = set()
    prompts = [one for one in (row, pair.source) if one is not None and len(one.ids) == n]
    for prompt in prompts:
        _, whole = adapter.whole(torch.tensor(prompt.ids, device="cpu").to(adapter.device))
        logits = Logits.of(whole.float()[None])
        rows = None if pair_row is None else [pair_row]
        call = partial(metric_values, metric, [row.id], rows, 0)
        value = observe(call, logits)
        check_repeats(
            "metric", metric, partial(observe, call, Logits.of(whole.float()[None])), value
        )
        if not logits.reads:
            raise InputError(
                f"metric={callable_name(metric)}: reads no logits (pair {row.id!r}), so no patch"
                " can change it. Return a value that depends on the logits.",
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
        clean_states: Pair id -> final residual stream of the clean run at its last prompt position;
            for ``kl``.
        unpatched: Pair id -> what a metric function reads on the unpatched logits; where a pair is
            missing, the positions stored in its prompt, over the whole vocabulary.
        pair_rows: Pair id -> row of the pair, for a metric function that takes it; empty for
            another metric.
    """

    metric: "str | LogitMetric"
    answers: Mapping[str, Answers]
    clean_states: Mapping[str, Tensor] = field(default_factory=dict)
    unpatched: Mapping[str, UnpatchedReads] = field(default_factory=dict)
    pair_rows: Mapping[str, PairRow] = field(default_factory=dict)

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
        """Factor of differences of values: 100 for probabilities, whose effect is in percentage
        points.
        """
        return 100.0 if self.unit == POINTS else 1.0

    @property
    def stored_bytes(self) -> int:
        """Memory of what is kept of clean and unpatched runs, in bytes."""
        kept = list(self.clean_states.values())
        for one in self.unpatched.values():
            kept += one.logits.values()
        return sum(tensor.nbytes for tensor in kept)

    def positions(self, row: TokenizedPrompt, pair_id: str) -> list[int]:
        """Return the positions of a row that are read."""
        last = row.positions["last"][0]
        if self.metric in (PROB, LOGPROB):
            own = self.answers[pair_id]
            return [last + i for i in range(1 if own.any_of else len(own.answer))]
        if self.metric == LOGIT_DIFF:
            return [last + self.answers[pair_id].n_common]
        return [last] if self.metric == KL else list(row.positions[READS])

    def reader(self, rows: Sequence[TokenizedPrompt], pair_ids: Sequence[str]) -> Reader:
        """Return the reader of some rows."""
        if not isinstance(self.metric, str):
            return self._function_reader(self.metric, rows, pair_ids)
        reads = [self.positions(row, name) for row, name in zip(rows, pair_ids, strict=True)]
        has_alternatives = any(self.answers[name].any_of for name in pair_ids)
        if has_alternatives and self.metric != KL:
            return self._alternatives_reader(reads, pair_ids)
        if self.metric in (PROB, LOGPROB):
            tokens = [list(self.answers[name].answer) for name in pair_ids]
            return AnswerProbabilityReader(_rows(reads), _flat(reads), _flat(tokens), len(rows))
        if self.metric == KL:
            # While planning, the states are not known.
            states = [self.clean_states[name] for name in pair_ids if name in self.clean_states]
            is_known = len(states) == len(pair_ids)
            return KLReader(_flat(reads), torch.stack(states) if is_known else None)
        both: list[list[int]] = []
        for name in pair_ids:
            own = self.answers[name]
            both.append([own.answer[own.n_common], own.wrong[own.n_common]])
        return LogitDiffReader(_flat(reads), torch.tensor(both))

    def _alternatives_reader(
        self, reads: Sequence[Sequence[int]], pair_ids: Sequence[str]
    ) -> Reader:
        """Return the reader of rows of which some have alternative answers."""
        answers: list[Tokens] = []
        wrong: list[Tokens] = []
        for name in pair_ids:
            own = self.answers[name]
            at = own.n_common
            if own.any_of:
                answers.append(own.answer)
                wrong.append(own.wrong)
            elif self.metric == LOGIT_DIFF:
                answers.append((own.answer[at],))
                wrong.append((own.wrong[at],))
            else:
                answers += [(token,) for token in own.answer]
        if self.metric == LOGIT_DIFF:
            return AnyAnswerDiffReader(_flat(reads), TokenSets.of(answers), TokenSets.of(wrong))
        return AnyAnswerReader(_rows(reads), _flat(reads), TokenSets.of(answers), len(reads))

    def _function_reader(
        self, metric: LogitMetric, rows: Sequence[TokenizedPrompt], pair_ids: Sequence[str]
    ) -> FunctionReader:
        """Return the reader of a metric function, which gets one prompt at a time."""
        calls = [Call(i, 1, len(row.ids), 1) for i, row in enumerate(rows)]
        reads: list[Reads] = []
        known: dict[Place, Tensor] = {}
        for i, (row, name) in enumerate(zip(rows, pair_ids, strict=True)):
            stored = UnpatchedReads(dict.fromkeys(row.positions.get(READS, ())), {})
            found = self.unpatched.get(name, stored)
            reads.append(found.reads)
            for position, logits in found.logits.items():
                known[i, position] = logits
        pair_rows = [self.pair_rows[name] for name in pair_ids] if self.pair_rows else None
        values = partial(metric_values, metric, pair_ids, pair_rows)
        return FunctionReader.of_reads(self.name, values, calls, reads, unpatched=known.get)


def metric_values(
    metric: LogitMetric,
    pair_ids: Sequence[str],
    pair_rows: Sequence[PairRow] | None,
    number: int,
    logits: Float[Tensor, "1 pos d_vocab"],
) -> Tensor:
    """Return the value of a metric function of one prompt, [1].

    Args:
        metric: Logits [1 pos d_vocab], or these and the row of the pair -> a scalar or [1], as a
            tensor, NumPy value or number.
        pair_ids: Pair of each prompt.
        pair_rows: Row of each prompt's pair; None for a function of the logits alone.
        number: Number of the prompt.
        logits: Logits of the prompt.

    Raises:
        InputError: If the function raises, or its value is not finite.
        ShapeError: If it returns anything but one number.
    """
    given: dict[str, Any] = {"logits": logits}
    if pair_rows is not None:
        # A copy, so that the function cannot change the row for other cells.
        given["row"] = dict(pair_rows[number])
    value = resolve(call_user_function("metric", metric, **given))
    try:
        whole = torch.as_tensor(value, device="cpu").detach().reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        whole = None
    name = getattr(metric, "__name__", "function")
    if whole is None or whole.numel() != 1:
        got = short_repr(value)
        if whole is not None:
            got = f"shape {tuple(getattr(value, 'shape', whole.shape))}"
        fix = (
            "It is called for one prompt at a time, with logits [1 pos d_vocab]. Return a scalar or"
            " [1]."
        )
        raise ShapeError(f"metric={name}: returned {got}. {fix}", argument="metric")
    if not whole.isfinite().all():
        raise InputError(
            f"metric={name}: returned {float(whole)} for pair {pair_ids[number]!r}. Return finite"
            " numbers, or leave the pair out.",
            argument="metric",
        )
    return whole.float()


def _rows(reads: Sequence[Sequence[int]]) -> Tensor:
    rows: list[int] = []
    for i, each in enumerate(reads):
        rows += [i] * len(each)
    return torch.tensor(rows, dtype=torch.long)


def _flat(reads: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor(list(chain.from_iterable(reads)), dtype=torch.long)
