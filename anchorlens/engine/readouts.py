"""Where P is read (METHOD 3), in float32 at least, whatever the model's dtype.

Answer readouts: the probability of the answer that stands in the input, given all before it; they get the log-probabilities of the
exact answer's tokens, each read at the position that predicts it. ``probe``: P(hallucination) of a truth probe at one layer.
``p_true``: P of yes against no, where the model is asked whether the answer is right.

A :class:`Reader` is one of these for one batch: what it has to see on the way, and what it makes of the last stream.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.callables import callable_name
from anchorlens.errors import InputError, ShapeError, did_you_mean
from anchorlens.kinds import described
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.questions.tokens import TokenRow

# A probability of 1 in float32, as the logarithm of a sum may give it.
_ROUNDING = 1e-4


@runtime_checkable
class Readout(Protocol):
    """A readout of the user's own.

    It gets log-probabilities [example answer_token] of the exact answer's tokens and a mask that is True at real ones, and returns
    the logarithm of a probability, [example].
    """

    def __call__(
        self, log_probs: Float[Tensor, "example answer_token"], mask: Bool[Tensor, "example answer_token"]
    ) -> Float[Tensor, "example"]:
        """Log P of each example."""
        ...


ReadoutLike: TypeAlias = "str | Readout | Callable[[Tensor, Tensor], Tensor]"


def first_token(
    log_probs: Float[Tensor, "example answer_token"],
    mask: Bool[Tensor, "example answer_token"],  # noqa: ARG001
) -> Float[Tensor, "example"]:
    """Log-probability of the first exact answer token."""
    return log_probs[:, 0]


def answer_joint(
    log_probs: Float[Tensor, "example answer_token"], mask: Bool[Tensor, "example answer_token"]
) -> Float[Tensor, "example"]:
    """Log-probability of the whole exact answer: the sum over its tokens."""
    return (log_probs * mask).sum(-1)


def answer_mean(
    log_probs: Float[Tensor, "example answer_token"], mask: Bool[Tensor, "example answer_token"]
) -> Float[Tensor, "example"]:
    """Log of the geometric mean of the exact answer tokens' probabilities."""
    return (log_probs * mask).sum(-1) / mask.sum(-1)


READOUTS: dict[str, Readout] = {"first_token": first_token, "answer_mean": answer_mean, "answer_joint": answer_joint}


def make_readout(readout: ReadoutLike) -> tuple[str, Readout]:
    """Name and function of a readout.

    Raises:
        InputError: No readout goes by this name.
    """
    if callable(readout):
        return callable_name(readout), readout  # pyright: ignore
    if readout not in READOUTS:
        raise InputError(f"Unknown readout {readout!r}. {did_you_mean(readout, READOUTS)}")
    return readout, READOUTS[readout]


@dataclass(frozen=True)
class ReadPlan:
    """Which logits of a batch are read, and as what.

    Attributes:
        row: Row of each read.
        position: Position that is read.
        token: The answer's token there.
        rival: The donor's answer token at the first place where both answers differ; -1 at all other reads.
        slot: Index of the read inside its row's answer.
        n_examples: Rows of the batch.
    """

    row: Int[Tensor, "read"]
    position: Int[Tensor, "read"]
    token: Int[Tensor, "read"]
    rival: Int[Tensor, "read"]
    slot: Int[Tensor, "read"]
    n_examples: int

    @classmethod
    def make(cls, rows: Sequence[TokenRow], rivals: Sequence[TokenRow | None], *, first_only: bool) -> "ReadPlan":
        """The reads of a batch.

        Args:
            rows: The batch.
            rivals: The donor of each row, whose answer is the other side of the logit difference; None where there is none.
            first_only: Read no answer token but the first (and the one where the two answers first differ).
        """
        reads: list[tuple[int, int, int, int, int]] = []
        for i, (row, rival) in enumerate(zip(rows, rivals, strict=True)):
            differ, other = first_difference(row.answer_ids, rival.answer_ids) if rival is not None else (-1, -1)
            for slot, (position, token) in enumerate(zip(row.positions["answer"], row.answer_ids, strict=True)):
                if slot > 0 and first_only and slot != differ:
                    continue
                reads.append((i, position - 1, token, other if slot == differ else -1, slot))
        columns = [torch.tensor(column, dtype=torch.long, device="cpu") for column in zip(*reads, strict=True)]
        return cls(*columns, n_examples=len(rows))


def first_difference(base: Sequence[int], donor: Sequence[int]) -> tuple[int, int]:
    """Index of the first token where two answers differ, and the donor's token there; (-1, -1) where one begins with the other."""
    for i, (a, b) in enumerate(zip(base, donor, strict=False)):
        if a != b:
            return i, b
    return -1, -1


@dataclass(frozen=True)
class Metrics:
    """What one forward pass tells of each example.

    Attributes:
        p: The readout's probability, in [0, 1].
        log_p: Its natural logarithm.
        logit_diff: Logit of the base's answer token less that of the donor's, at the first token where the two differ; NaN
            where there is no donor answer.
    """

    p: Float[Tensor, "*cells example"]
    log_p: Float[Tensor, "*cells example"]
    logit_diff: Float[Tensor, "*cells example"]


@runtime_checkable
class Reader(Protocol):
    """Reads P of every row of one batch: which states it needs, and what it makes of them."""

    @property
    def where(self) -> tuple[SiteLike, int] | None:
        """Site and layer of the states; None: the stream that leaves the last block."""
        ...

    @property
    def row(self) -> Int[Tensor, "read"]:
        """Row of each state."""
        ...

    @property
    def position(self) -> Int[Tensor, "read"]:
        """Position of each state in its row."""
        ...

    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells read d_model"]) -> Metrics:
        """What the states tell, float32 on the CPU: [*cells example]."""
        ...


@dataclass(frozen=True)
class AnswerReader:
    """P of the answer that stands in the input."""

    plan: ReadPlan
    readout: Readout

    @property
    def where(self) -> None:
        """The last stream."""
        return

    @property
    def row(self) -> Int[Tensor, "read"]:
        """See :class:`ReadPlan`."""
        return self.plan.row

    @property
    def position(self) -> Int[Tensor, "read"]:
        """See :class:`ReadPlan`."""
        return self.plan.position

    @torch.no_grad()
    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells read d_model"]) -> Metrics:
        """The readout's P, and the logit difference to the rival answer.

        Raises:
            ShapeError: A user's readout returned another shape than [example].
        """
        plan = self.plan
        cells, n_reads = states.shape[:-2], states.shape[-2]
        flat = states.reshape(-1, states.shape[-1])
        wanted = torch.stack([plan.token, plan.rival.clamp(min=0)], 1).to(flat.device)
        logits, total = adapter.read.scores(flat, wanted.repeat(len(flat) // n_reads, 1))
        chosen = logits[:, 0]
        log_prob = (chosen - total).float().cpu().reshape(-1, n_reads)
        gap = (chosen - logits[:, 1]).float().cpu().reshape(-1, n_reads)
        mask = torch.zeros(plan.n_examples, int(plan.slot.max()) + 1, dtype=torch.bool, device="cpu")
        mask[plan.row, plan.slot] = True
        log_p = torch.stack([self._log_p(one, mask) for one in log_prob]).reshape(*cells, -1)
        diff = torch.full((len(gap), plan.n_examples), torch.nan, dtype=torch.float32, device="cpu")
        has = plan.rival >= 0
        diff[:, plan.row[has]] = gap[:, has]
        return Metrics(p=log_p.exp(), log_p=log_p, logit_diff=diff.reshape(*cells, -1))

    def _log_p(self, log_prob: Float[Tensor, "read"], mask: Bool[Tensor, "example answer_token"]) -> Float[Tensor, "example"]:
        plan = self.plan
        table = torch.zeros(mask.shape, dtype=torch.float32, device="cpu")
        table[plan.row, plan.slot] = log_prob
        log_p = self.readout(table, mask)
        if not isinstance(log_p, Tensor):
            raise InputError(f"The readout must return a torch tensor of log-probabilities, got {described(log_p)}.")
        if log_p.shape != (plan.n_examples,):
            raise ShapeError(
                f"The readout must return an [example] tensor of length {plan.n_examples}, got {tuple(log_p.shape)}."
            )
        worst = float(log_p.max())
        if not worst <= _ROUNDING:  # NaN too
            raise InputError(
                f"The readout must return logarithms of probabilities, at most 0; got {worst:.3g}. Return log P, not P."
            )
        return log_p


@dataclass(frozen=True)
class ChoiceReader:
    """P of one set of tokens against another at one position of each row: yes against no, for ``p_true``.

    Attributes:
        position: Where it is read, one position a row.
        yes: Token ids that count as yes.
        no: Token ids that count as no.
    """

    position: Int[Tensor, "example"]
    yes: tuple[int, ...]
    no: tuple[int, ...]

    @property
    def where(self) -> None:
        """The last stream."""
        return

    @property
    def row(self) -> Int[Tensor, "example"]:
        """Every row once."""
        return torch.arange(len(self.position), device="cpu")

    @torch.no_grad()
    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells example d_model"]) -> Metrics:
        """P(yes) / (P(yes) + P(no)), and the logit difference of the two."""
        logits = adapter.read.logits(states.reshape(-1, states.shape[-1]), (*self.yes, *self.no))
        yes, no = logits.split([len(self.yes), len(self.no)], -1)
        gap = (yes.logsumexp(-1) - no.logsumexp(-1)).float().cpu().reshape(states.shape[:-1])
        return Metrics(p=gap.sigmoid(), log_p=torch.nn.functional.logsigmoid(gap), logit_diff=gap)


@dataclass(frozen=True)
class StateReader:
    """A truth probe's P(hallucination), from the state at one position of each row at one layer.

    Attributes:
        layer: The probe's layer.
        site: Where in the block it reads.
        position: One position a row.
        score: States [example d_model] -> log-odds [example].
    """

    layer: int
    site: SiteLike
    position: Int[Tensor, "example"]
    score: Callable[[Tensor], Float[Tensor, "example"]]

    @property
    def where(self) -> tuple[SiteLike, int]:
        """The probe's site and layer."""
        return self.site, self.layer

    @property
    def row(self) -> Int[Tensor, "example"]:
        """Every row once."""
        return torch.arange(len(self.position), device="cpu")

    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells example d_model"]) -> Metrics:  # noqa: ARG002
        """P(hallucination); the probe's log-odds stand in place of the logit difference."""
        flat = states.float().cpu().reshape(-1, *states.shape[-2:])
        odds = torch.stack([self.score(one) for one in flat]).reshape(states.shape[:-1])
        return Metrics(p=odds.sigmoid(), log_p=torch.nn.functional.logsigmoid(odds), logit_diff=odds)
