"""The model that is checked, its test rows, and comparisons of log-probabilities."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.diagnosis.model_check import FAILED, NOT_APPLICABLE, OK, ModelCheck
from anchorlens.engine.hooked_passes import last_stream
from anchorlens.engine.patches import TokenBatch, pad_rows
from anchorlens.engine.readouts import AnswerReader, ReadPlan, answer_joint
from anchorlens.models.adapter import Adapter
from anchorlens.models.card import ModelCard
from anchorlens.models.parity import MEAN_TOLERANCE, TOLERANCE

NATS = "nats"
# Lengths of the rows: padding in all but one, and longer than the windows of small models.
_LENGTHS = (17, 12, 14, 10)
# Length of rows that are repeated for every layer.
SHORT = 6


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model with random token rows.

    Attributes:
        adapter: The model.
        card: Card of the model.
        is_loaded: Whether the model was loaded for the checks, so that the card's parity is of this
            moment.
        load_error: Message of the parity check while loading; empty if it passed.
        seed: Random seed of the rows.
    """

    adapter: Adapter
    card: ModelCard
    is_loaded: bool
    load_error: str
    seed: int

    @cached_property
    def rows(self) -> list[list[int]]:
        """Four rows of different lengths."""
        return self.draw_rows("rows", _LENGTHS)

    @cached_property
    def donors(self) -> list[list[int]]:
        """Four other rows of the same lengths."""
        return self.draw_rows("donors", _LENGTHS)

    @cached_property
    def batch(self) -> TokenBatch:
        """Padded :attr:`rows`."""
        return pad_rows(self.rows)

    def draw_rows(self, label: str, lengths: tuple[int, ...]) -> list[list[int]]:
        """Draw rows of random token ids; they begin with BOS if the tokenizer adds it."""
        generator = torch.Generator().manual_seed(self.seed * 2 + (label == "donors"))
        tokenizer = self.adapter.tokenizer
        vocab = min(self.adapter.shape.d_vocab, len(self.adapter.embedding))
        longest = self.adapter.shape.n_ctx
        rows: list[list[int]] = []
        for n in lengths:
            ids = torch.randint(vocab, (min(n, longest),), generator=generator)
            rows.append(ids.tolist())
        if self.card.adds_bos and tokenizer is not None and isinstance(tokenizer.bos_token_id, int):
            for row in rows:
                row[0] = tokenizer.bos_token_id
        return rows

    @cached_property
    def reader(self) -> AnswerReader:
        """Reader of the model's likeliest token at the last position of each row.

        Its second likeliest token is the rival of the logit difference.
        """
        ends = [len(row) - 1 for row in self.rows]
        states = last_stream(self.adapter, self.batch)[range(len(ends)), ends]
        best, second = self.adapter.read.logits(states).topk(2).indices.cpu().T
        rows = torch.arange(len(ends))
        plan = ReadPlan(
            row=rows,
            position=torch.tensor(ends),
            token=best,
            rival=second,
            slot=torch.zeros_like(rows),
            n_examples=len(ends),
        )
        return AnswerReader(plan, answer_joint)

    @property
    def dtype(self) -> torch.dtype:
        return self.adapter.shape.dtype

    def log_probs(self, stream: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_vocab"]:
        """Return the log-probabilities of rows of the final residual stream, on the CPU."""
        return self.adapter.read.logits(stream).float().log_softmax(-1).cpu()

    def compare(
        self,
        found: Float[Tensor, "row d_model"],
        wanted: Float[Tensor, "row d_model"],
        detail: str = "",
    ) -> ModelCheck:
        """Compare log-probabilities of two final residual streams, which differ by rounding
        only.
        """
        return self.compare_log_probs(self.log_probs(found), self.log_probs(wanted), detail)

    def compare_log_probs(
        self,
        found: Float[Tensor, "row d_vocab"],
        wanted: Float[Tensor, "row d_vocab"],
        detail: str = "",
    ) -> ModelCheck:
        """Compare log-probabilities that differ by rounding only, by their largest and mean
        difference.
        """
        gaps = torch.where(found == wanted, torch.zeros_like(found), (found - wanted).abs())
        worst = float(gaps.max())
        mean = float(gaps.mean())
        limit = TOLERANCE[self.dtype]
        passed = worst <= limit and mean <= MEAN_TOLERANCE[self.dtype]
        return ModelCheck(
            name="",
            status=OK if passed else FAILED,
            value=worst,
            limit=limit,
            unit=NATS,
            detail=detail,
        )


def count_faults(faults: list[str], detail: str) -> ModelCheck:
    """Return a check that allows no fault and names the first ones."""
    more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
    return ModelCheck(
        name="",
        status=FAILED if faults else OK,
        value=len(faults),
        limit=0,
        unit="faults",
        detail="; ".join(faults[:3]) + more if faults else detail,
    )


def not_applicable(reason: str) -> ModelCheck:
    """Return a check that this model does not allow."""
    return ModelCheck(name="", status=NOT_APPLICABLE, detail=reason)
