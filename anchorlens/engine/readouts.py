"""Readers of P (METHOD 3), in float32 at least, whatever the model's dtype.

Answer readouts: the probability of the answer that stands in the input, given all before it; they get the log-probabilities of the
exact answer's tokens, each read at the position that predicts it. ``probe``: P(hallucination) of a truth probe at one layer.
``p_true``: P of yes against no, where the model is asked whether the answer is right.

A :class:`Reader` is one of these for one batch: what it has to see on the way, and what it makes of the last stream.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.display import described
from anchorlens.errors import InputError, ShapeError, did_you_mean
from anchorlens.fingerprint import call_user_function, callable_name
from anchorlens.models.adapter import Adapter, SiteLike

# A probability of 1 in float32, as the logarithm of a sum may give it.
_ROUNDING = 1e-4

Readout: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Log-probabilities [example answer_token] of the exact answer's tokens, and a mask of real ones -> log P of each example."""

ReadoutLike: TypeAlias = str | Readout


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
    """Return the name and the function of a readout."""
    if not isinstance(readout, str):
        return callable_name(readout), readout
    if readout not in READOUTS:
        raise InputError(f"Unknown readout {readout!r}. {did_you_mean(readout, READOUTS)}")
    return readout, READOUTS[readout]


@dataclass(frozen=True)
class ReadPlan:
    """Logits of a batch that are read.

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


@dataclass(frozen=True)
class Metrics:
    """Values that a reader takes from one or more forward passes; those of a probability have the names below.

    Attributes:
        values: Name of a metric -> its values, [*cells example], float32 on the CPU.
    """

    values: Mapping[str, Float[Tensor, "*cells example"]]

    @classmethod
    def of(cls, *, p: Tensor, log_p: Tensor, logit_diff: Tensor) -> "Metrics":
        """Make the metrics of a probability."""
        return cls({"p": p, "log_p": log_p, "logit_diff": logit_diff})

    @property
    def p(self) -> Float[Tensor, "*cells example"]:
        """Probability of the readout, in [0, 1]."""
        return self.values["p"]

    @property
    def log_p(self) -> Float[Tensor, "*cells example"]:
        """Natural logarithm of :attr:`p`."""
        return self.values["log_p"]

    @property
    def logit_diff(self) -> Float[Tensor, "*cells example"]:
        """Logit of the base's answer token minus that of the donor's, where the two first differ; NaN without a donor."""
        return self.values["logit_diff"]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Metrics":
        """Return every value after a function."""
        return Metrics({name: function(value) for name, value in self.values.items()})


@runtime_checkable
class Reader(Protocol):
    """Computes P of every row of one batch from the states that it needs."""

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
        """Compute the metrics of the states, float32 on the CPU: [*cells example]."""
        ...


@dataclass(frozen=True)
class AnswerReader:
    """Reads P of the answer in the input."""

    plan: ReadPlan
    readout: Readout
    where = None

    @property
    def row(self) -> Int[Tensor, "read"]:
        """Return the row of each read."""
        return self.plan.row

    @property
    def position(self) -> Int[Tensor, "read"]:
        """Return the position of each read."""
        return self.plan.position

    @torch.no_grad()
    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells read d_model"]) -> Metrics:
        """Compute the readout's P and the logit difference to the rival answer."""
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
        return Metrics.of(p=log_p.exp(), log_p=log_p, logit_diff=diff.reshape(*cells, -1))

    def _log_p(self, log_prob: Float[Tensor, "read"], mask: Bool[Tensor, "example answer_token"]) -> Float[Tensor, "example"]:
        plan = self.plan
        table = torch.zeros(mask.shape, dtype=torch.float32, device="cpu")
        table[plan.row, plan.slot] = log_prob
        log_p = call_user_function("readout", self.readout, log_probs=table, mask=mask)
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


class _OneReadPerRow:
    position: Int[Tensor, "example"]

    @property
    def row(self) -> Int[Tensor, "example"]:
        """Return every row once."""
        return torch.arange(len(self.position), device="cpu")


@dataclass(frozen=True)
class ChoiceReader(_OneReadPerRow):
    """P of one set of tokens against another at one position of each row: yes against no, for ``p_true``.

    Attributes:
        position: Where it is read, one position a row.
        yes: Token ids that count as yes.
        no: Token ids that count as no.
    """

    position: Int[Tensor, "example"]
    yes: tuple[int, ...]
    no: tuple[int, ...]
    where = None

    @torch.no_grad()
    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells example d_model"]) -> Metrics:
        """Compute P(yes) / (P(yes) + P(no)) and the logit difference of the two."""
        logits = adapter.read.logits(states.reshape(-1, states.shape[-1]), (*self.yes, *self.no))
        yes, no = logits.split([len(self.yes), len(self.no)], -1)
        gap = (yes.logsumexp(-1) - no.logsumexp(-1)).float().cpu().reshape(states.shape[:-1])
        return Metrics.of(p=gap.sigmoid(), log_p=torch.nn.functional.logsigmoid(gap), logit_diff=gap)


@dataclass(frozen=True)
class StateReader(_OneReadPerRow):
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

    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells example d_model"]) -> Metrics:  # noqa: ARG002
        """Compute P(hallucination); ``logit_diff`` holds the probe's log-odds."""
        flat = states.float().cpu().reshape(-1, *states.shape[-2:])
        odds = torch.stack([self.score(one) for one in flat]).reshape(states.shape[:-1])
        return Metrics.of(p=odds.sigmoid(), log_p=torch.nn.functional.logsigmoid(odds), logit_diff=odds)
