"""Named metrics of a patch sweep: logit difference, probability, log-probability and KL divergence.

A reader unembeds only the positions that its metric reads, for many cells at once: ``logit_diff``
unembeds two tokens per read, the others the whole vocabulary in slices. Functions of the logits
have :class:`~anchorlens.engine.function_reader.FunctionReader`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.readouts import Metrics
from anchorlens.models.adapter import Adapter

LOGIT_DIFF = "logit_diff"
PROB = "prob"
LOGPROB = "logprob"
KL = "kl"

# Rows whose logits over the whole vocabulary are held at once.
_ROWS = 64


@dataclass(frozen=True)
class LogitDiffReader:
    """Reader of the logit of the answer minus that of the wrong answer, at one position of each
    row.

    Attributes:
        position: Position that is read in each row.
        tokens: Tokens of the answer and of the wrong answer.
    """

    position: Int[Tensor, "example"]
    tokens: Int[Tensor, "example 2"]
    where = None

    @property
    def row(self) -> Int[Tensor, "example"]:
        """Row of each read: 0 .. n-1."""
        return torch.arange(len(self.position), device="cpu")

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
class KLReader:
    """Reader of the KL divergence of the next-token distribution from that of the clean run, at one
    position of each row.

    Attributes:
        position: Position that is read in each row.
        clean: Final residual stream of the clean run; None while only positions are needed.
    """

    position: Int[Tensor, "example"]
    clean: Float[Tensor, "example d_model"] | None
    where = None

    @property
    def row(self) -> Int[Tensor, "example"]:
        """Row of each read: 0 .. n-1."""
        return torch.arange(len(self.position), device="cpu")

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


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of tokens that two answers begin with in common."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )
