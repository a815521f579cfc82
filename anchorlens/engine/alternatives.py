"""Metrics of several alternative answers, of which any counts.

Only the first token of an alternative counts, and a token that several of them share counts once.
P is the sum of the probabilities of these tokens. The logit difference is the logsumexp of the
answers' logits minus that of the wrong answers': the log odds of any answer against any wrong one.
With one token on each side both are the metrics of :mod:`~anchorlens.engine.readouts`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.engine.readouts import LOGIT_DIFF, LOGPROB, PROB, Metrics
from anchorlens.models.adapter import Adapter


@dataclass(frozen=True)
class TokenSets:
    """Sets of tokens, padded to the largest.

    Attributes:
        tokens: Tokens of each set.
        is_used: Whether an entry is a token of the set.
    """

    tokens: Int[Tensor, "set token"]
    is_used: Bool[Tensor, "set token"]

    @classmethod
    def of(cls, sets: Sequence[Sequence[int]]) -> "TokenSets":
        """Build the padded sets."""
        most = max(len(one) for one in sets)
        tokens = torch.zeros(len(sets), most, dtype=torch.long, device="cpu")
        is_used = torch.zeros(len(sets), most, dtype=torch.bool, device="cpu")
        for i, one in enumerate(sets):
            tokens[i, : len(one)] = torch.tensor(one, dtype=torch.long, device="cpu")
            is_used[i, : len(one)] = True
        return cls(tokens, is_used)

    def logsumexp(self, logits: Float[Tensor, "row token"]) -> Float[Tensor, "row"]:
        """Return the logsumexp of the logits of each set, which repeat for every cell."""
        is_used = self.is_used.to(logits.device).repeat(len(logits) // len(self.tokens), 1)
        return logits.masked_fill(~is_used, -torch.inf).logsumexp(-1)

    def repeat(self, n_rows: int) -> Int[Tensor, "row token"]:
        """Return the tokens for the rows of all cells."""
        return self.tokens.repeat(n_rows // len(self.tokens), 1)


@dataclass(frozen=True)
class AnyAnswerReader:
    """Reader of the probability that any of several answers follows.

    Attributes:
        row: Row of each read.
        position: Position of each read.
        answers: Tokens of each read. An answer of several tokens has a read for each of them.
        n_examples: Number of rows of the batch.
    """

    row: Int[Tensor, "read"]
    position: Int[Tensor, "read"]
    answers: TokenSets
    n_examples: int
    where = None

    @torch.no_grad()
    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells read d_model"]) -> Metrics:
        """Compute ``logprob`` and ``prob`` of every cell."""
        flat = states.reshape(-1, states.shape[-1])
        logits, total, _ = adapter.read.scores(flat, self.answers.repeat(len(flat)))
        n_reads = len(self.row)
        each = (self.answers.logsumexp(logits) - total).double().cpu().reshape(-1, n_reads)
        log_p = each.new_zeros(len(each), self.n_examples).index_add_(1, self.row, each).float()
        log_p = log_p.reshape(*states.shape[:-2], self.n_examples)
        return Metrics({LOGPROB: log_p, PROB: log_p.exp()})


@dataclass(frozen=True)
class AnyAnswerDiffReader:
    """Reader of the logit difference of several answers and several wrong answers.

    Attributes:
        position: Position that is read in each row.
        answers: Tokens of the answers of each row.
        wrong: Tokens of the wrong answers of each row.
    """

    position: Int[Tensor, "example"]
    answers: TokenSets
    wrong: TokenSets
    where = None

    @property
    def row(self) -> Int[Tensor, "example"]:
        """Row of each read: 0 .. n-1."""
        return torch.arange(len(self.position), device="cpu")

    @torch.no_grad()
    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells example d_model"]) -> Metrics:
        """Compute the logit difference of every cell."""
        flat = states.reshape(-1, states.shape[-1])
        sides: list[Tensor] = []
        for side in (self.answers, self.wrong):
            logits = adapter.read.token_logits(flat, side.repeat(len(flat)))
            sides.append(side.logsumexp(logits))
        difference = (sides[0] - sides[1]).float().cpu()
        return Metrics({LOGIT_DIFF: difference.reshape(states.shape[:-1])})
