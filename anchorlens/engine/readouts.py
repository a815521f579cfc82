"""Compute P and other metrics from activations (METHOD 3), in float32 or float64 for models of any
dtype.

- Answer readouts: P of the exact answer, from the log-probability of each of its tokens at the
  preceding position.
- ``probe``: P(hallucination) of a truth probe at one layer.
- ``p_true``: P(yes) / (P(yes) + P(no)) after the question whether the answer is right.
- Named metrics of a patch sweep: ``logit_diff`` unembeds two tokens per read; ``prob``, ``logprob``
  and ``kl`` the whole vocabulary in slices.

A :class:`Reader` specifies the states to read in one batch (site, layer, positions), only those
that its metric needs, and computes one of these from them for many cells at once. Functions of the
logits have :class:`~anchorlens.engine.function_reader.FunctionReader`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.display import short_repr
from anchorlens.errors import InputError, ShapeError, did_you_mean
from anchorlens.fingerprint import call_user_function, callable_name
from anchorlens.models.adapter import Adapter, ReadSite, SiteLike

# Tolerance above log P = 0, for rounding of a probability of 1.
_ROUNDING = 1e-4
# Rows whose logits over the whole vocabulary are held at once.
_ROWS = 64

LOGIT_DIFF = "logit_diff"
PROB = "prob"
LOGPROB = "logprob"
KL = "kl"
OF_DONOR = ("donor_p", "donor_logit", "donor_is_top")
"""Metrics of the donor's answer."""

Readout: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Log-probabilities of the exact answer's tokens and mask of used entries, both [example
answer_token] -> log P, [example].
"""

ReadoutLike: TypeAlias = str | Readout


def first_token(
    log_probs: Float[Tensor, "example answer_token"],
    mask: Bool[Tensor, "example answer_token"],  # noqa: ARG001
) -> Float[Tensor, "example"]:
    """Return the log-probability of the first exact answer token, in nats."""
    return log_probs[:, 0]


def answer_joint(
    log_probs: Float[Tensor, "example answer_token"], mask: Bool[Tensor, "example answer_token"]
) -> Float[Tensor, "example"]:
    """Return the log-probability of the whole exact answer, the sum over its tokens, in nats."""
    return (log_probs * mask).sum(-1)


def answer_mean(
    log_probs: Float[Tensor, "example answer_token"], mask: Bool[Tensor, "example answer_token"]
) -> Float[Tensor, "example"]:
    """Return the log of the geometric mean of the exact answer tokens' probabilities, in nats."""
    return (log_probs * mask).sum(-1) / mask.sum(-1)


READOUTS: dict[str, Readout] = {
    "first_token": first_token,
    "answer_mean": answer_mean,
    "answer_joint": answer_joint,
}


def make_readout(readout: ReadoutLike) -> tuple[str, Readout]:
    """Return the name and the function of a readout; raise InputError for an unknown name."""
    if not isinstance(readout, str):
        return callable_name(readout), readout
    if readout not in READOUTS:
        raise InputError(
            f"readout={readout!r}: unknown. {did_you_mean(readout, READOUTS)}", argument="readout"
        )
    return readout, READOUTS[readout]


@dataclass(frozen=True, kw_only=True)
class ReadPlan:
    """Positions and tokens of a batch whose logits are read.

    Attributes:
        row: Row of each read.
        position: Position of each read, one before the token it predicts.
        token: Answer token that is predicted.
        rival: Donor's answer token where the two answers first differ; -1 at all other reads.
        slot: Index of the predicted token in the answer.
        n_examples: Number of rows of the batch.
    """

    row: Int[Tensor, "read"]
    position: Int[Tensor, "read"]
    token: Int[Tensor, "read"]
    rival: Int[Tensor, "read"]
    slot: Int[Tensor, "read"]
    n_examples: int


@dataclass(frozen=True)
class Metrics:
    """Metrics of one or more forward passes. The properties exist if the readout is a probability.

    Attributes:
        values: Metric name -> values [*cells example], float32 on the CPU.
    """

    values: Mapping[str, Float[Tensor, "*cells example"]]

    @classmethod
    def of(cls, *, p: Tensor, log_p: Tensor, logit_diff: Tensor) -> "Metrics":
        """Make the three metrics of a probability, each [*cells example]."""
        return cls({"p": p, "log_p": log_p, "logit_diff": logit_diff})

    @property
    def p(self) -> Float[Tensor, "*cells example"]:
        """Probability of the readout, in [0, 1]."""
        return self.values["p"]

    @property
    def log_p(self) -> Float[Tensor, "*cells example"]:
        """Natural logarithm of :attr:`p`, at most 0."""
        return self.values["log_p"]

    @property
    def logit_diff(self) -> Float[Tensor, "*cells example"]:
        """Logit of the answer token minus that of the donor's, where the two answers first differ;
        NaN without a donor.
        """
        return self.values["logit_diff"]

    @property
    def of_donor(self) -> dict[str, Float[Tensor, "*cells example"]]:
        """Values of the donor's answer token where the two answers first differ: ``donor_p``,
        ``donor_logit``, and ``donor_is_top``, 1 if it is the most likely token. Empty for readouts
        without a donor's answer.
        """
        return {name: value for name, value in self.values.items() if name in OF_DONOR}

    def map(self, function: Callable[[Tensor], Tensor]) -> "Metrics":
        """Apply a function to the values of every metric."""
        return Metrics({name: function(value) for name, value in self.values.items()})


@runtime_checkable
class Reader(Protocol):
    """Interface of the readout of a batch: the states to read, and the metrics of each row computed
    from them.
    """

    @property
    def where(self) -> ReadSite | None:
        """Site and layer of the states; None for the final residual stream."""
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
        """Compute the metrics of the states: [*cells example], float32 on the CPU."""
        ...


@dataclass(frozen=True)
class AnswerReader:
    """Reader of P of the answer in the input."""

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
        *cells, n_reads, _ = states.shape
        flat = states.reshape(-1, states.shape[-1])
        wanted = torch.stack([plan.token, plan.rival.clamp(min=0)], 1).to(flat.device)
        scores = adapter.read.scores(flat, wanted.repeat(len(flat) // n_reads, 1))
        logits, total = scores.logits, scores.total
        chosen = logits[:, 0]
        rival = logits[:, 1]
        log_prob = (chosen - total).float().cpu().reshape(-1, n_reads)
        # Values of the donor's token, where the two answers differ.
        at_rival = {
            "logit_diff": chosen - rival,
            "donor_logit": rival,
            "donor_p": (rival - total).exp(),
            "donor_is_top": (rival >= scores.top).double(),
        }
        mask = torch.zeros(
            plan.n_examples, int(plan.slot.max()) + 1, dtype=torch.bool, device="cpu"
        )
        mask[plan.row, plan.slot] = True
        log_p = torch.stack([self._log_p(cell, mask) for cell in log_prob]).reshape(*cells, -1)
        has = plan.rival >= 0
        values: dict[str, Tensor] = {"p": log_p.exp(), "log_p": log_p}
        for name, of_reads in at_rival.items():
            table = of_reads.float().cpu().reshape(-1, n_reads)
            whole = torch.full(
                (len(table), plan.n_examples), torch.nan, dtype=torch.float32, device="cpu"
            )
            whole[:, plan.row[has]] = table[:, has]
            values[name] = whole.reshape(*cells, -1)
        return Metrics(values)

    def _log_p(
        self, log_prob: Float[Tensor, "read"], mask: Bool[Tensor, "example answer_token"]
    ) -> Float[Tensor, "example"]:
        plan = self.plan
        table = torch.zeros(mask.shape, dtype=torch.float32, device="cpu")
        table[plan.row, plan.slot] = log_prob
        if bool(log_prob.isnan().any()):
            raise InputError(
                "model: the log-probability of an answer is NaN, because its numbers overflow."
                " In float16 numbers above 65,504 are infinite: use dtype='bfloat16' or 'float32'."
                " Otherwise check its weights.",
                argument="model",
            )
        if self.readout in READOUTS.values():
            return self.readout(table, mask)
        # A copy, because the function may write into its arguments.
        return call_readout(self.readout, table, mask.clone())


def call_readout(
    readout: Readout,
    log_probs: Float[Tensor, "example answer_token"],
    mask: Bool[Tensor, "example answer_token"],
) -> Float[Tensor, "example"]:
    """Return the log P of a readout function.

    Raises:
        InputError: If it raises, or returns no tensor or a number above 0.
        ShapeError: If it returns another shape.
    """
    log_p = call_user_function("readout", readout, log_probs=log_probs, mask=mask)
    if not isinstance(log_p, Tensor):
        raise InputError(
            f"readout: returned {short_repr(log_p)}. Return a tensor of log-probabilities.",
            argument="readout",
        )
    if log_p.shape != (len(mask),):
        raise ShapeError(
            f"readout: returned shape {tuple(log_p.shape)}. Return an [example] tensor of"
            f" length {len(mask)}.",
            argument="readout",
        )
    worst = float(log_p.max())
    if not worst <= _ROUNDING:  # NaN too
        raise InputError(
            f"readout: returned {worst:.3g}, but log-probabilities are at most 0. Return log P,"
            " not P.",
            argument="readout",
        )
    return log_p


class _OneReadPerRow:
    """Reader of one position in each row of a batch."""

    position: Int[Tensor, "example"]

    @property
    def row(self) -> Int[Tensor, "example"]:
        """Return the row of each read: 0 .. n-1, one read per row."""
        return torch.arange(len(self.position), device="cpu")


@dataclass(frozen=True)
class ChoiceReader(_OneReadPerRow):
    """Reader of ``p_true``: P(yes) / (P(yes) + P(no)) at one position of each row.

    Attributes:
        position: Position that is read in each row.
        yes: Token ids whose probabilities sum to P(yes).
        no: Token ids whose probabilities sum to P(no).
    """

    position: Int[Tensor, "example"]
    yes: tuple[int, ...]
    no: tuple[int, ...]
    where = None

    @torch.no_grad()
    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells example d_model"]) -> Metrics:
        """Compute P(yes) / (P(yes) + P(no)); ``logit_diff`` is its log-odds."""
        logits = adapter.read.logits(states.reshape(-1, states.shape[-1]), (*self.yes, *self.no))
        yes, no = logits.split([len(self.yes), len(self.no)], -1)
        gap = (yes.logsumexp(-1) - no.logsumexp(-1)).float().cpu().reshape(states.shape[:-1])
        return Metrics.of(
            p=gap.sigmoid(), log_p=torch.nn.functional.logsigmoid(gap), logit_diff=gap
        )


@dataclass(frozen=True)
class StateReader(_OneReadPerRow):
    """Reader of a truth probe's P(hallucination), at one layer and one position of each row.

    Attributes:
        layer: Layer of the probe.
        site: Site of the states.
        position: Position that is read in each row.
        score: States [example d_model] -> log-odds [example].
    """

    layer: int
    site: SiteLike
    position: Int[Tensor, "example"]
    score: Callable[[Tensor], Float[Tensor, "example"]]

    @property
    def where(self) -> ReadSite:
        """Site and layer of the probe."""
        return self.site, self.layer

    def metrics(
        self,
        adapter: Adapter,  # noqa: ARG002
        states: Float[Tensor, "*cells example d_model"],
    ) -> Metrics:
        """Compute P(hallucination); ``logit_diff`` holds the probe's log-odds."""
        flat = states.float().cpu().reshape(-1, *states.shape[-2:])
        odds = torch.stack([self.score(cell) for cell in flat]).reshape(states.shape[:-1])
        return Metrics.of(
            p=odds.sigmoid(), log_p=torch.nn.functional.logsigmoid(odds), logit_diff=odds
        )


@dataclass(frozen=True)
class LogitDiffReader(_OneReadPerRow):
    """Reader of the logit of the answer minus that of the wrong answer, at one position of each
    row.

    Attributes:
        position: Position that is read in each row.
        tokens: Tokens of the answer and of the wrong answer.
    """

    position: Int[Tensor, "example"]
    tokens: Int[Tensor, "example 2"]
    where = None

    @torch.no_grad()
    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells example d_model"]) -> Metrics:
        """Compute the logit difference of every cell."""
        flat = states.reshape(-1, states.shape[-1])
        logits = adapter.read.token_logits(
            flat, self.tokens.repeat(len(flat) // len(self.tokens), 1)
        )
        return Metrics(
            {LOGIT_DIFF: (logits[:, 0] - logits[:, 1]).float().cpu().reshape(states.shape[:-1])}
        )


@dataclass(frozen=True)
class AnswerProbabilityReader:
    """Reader of the joint probability of an answer of one or more tokens.

    Attributes:
        row: Row of each read.
        position: Position of each read, one before the token that it predicts.
        token: Predicted token.
        n_examples: Number of rows of the batch.
    """

    row: Int[Tensor, "read"]
    position: Int[Tensor, "read"]
    token: Int[Tensor, "read"]
    n_examples: int
    where = None

    @torch.no_grad()
    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells read d_model"]) -> Metrics:
        """Compute ``logprob``, the sum over the answer's tokens, and ``prob`` of every cell."""
        flat = states.reshape(-1, states.shape[-1])
        logits, total, _ = adapter.read.scores(
            flat, self.token[:, None].repeat(len(flat) // len(self.token), 1)
        )
        each = (logits[:, 0] - total).double().cpu().reshape(-1, len(self.token))
        log_p = each.new_zeros(len(each), self.n_examples).index_add_(1, self.row, each).float()
        log_p = log_p.reshape(*states.shape[:-2], self.n_examples)
        return Metrics({LOGPROB: log_p, PROB: log_p.exp()})


@dataclass(frozen=True)
class KLReader(_OneReadPerRow):
    """Reader of the KL divergence of the next-token distribution from that of the clean run, at one
    position of each row.

    Attributes:
        position: Position that is read in each row.
        clean: Final residual stream of the clean run; None while only positions are needed.
    """

    position: Int[Tensor, "example"]
    clean: Float[Tensor, "example d_model"] | None
    where = None

    @torch.no_grad()
    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells example d_model"]) -> Metrics:
        """Compute KL(clean || patched) in nats of every cell."""
        assert self.clean is not None  # the sweep has read the clean runs
        cells = states.reshape(-1, *states.shape[-2:]).transpose(0, 1)  # [example cell d_model]
        out = torch.zeros(cells.shape[:2], dtype=torch.float32, device="cpu")
        for i, (own, clean) in enumerate(zip(cells, self.clean, strict=True)):
            wanted = adapter.read.logits(clean[None].to(own.device)).float().log_softmax(-1)
            parts = [adapter.read.logits(part).float().log_softmax(-1) for part in own.split(_ROWS)]
            never = wanted.isneginf()  # padding tokens may have a bias of minus infinity
            out[i] = torch.cat(
                [(wanted.exp() * (wanted - part)).masked_fill(never, 0.0).sum(-1) for part in parts]
            ).cpu()
        return Metrics({KL: out.T.reshape(states.shape[:-1])})
