"""Ragged rows as tensors, for workers that pass all rows of a job at once. Needs only torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from protocol import Job
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Right-padded rows of a job.

    There is no mask, because padding on the right does not affect a row of a causal model. Without
    a mask every library uses its fastest attention.

    Attributes:
        ids: Token ids of bases, [row pos].
        donor_ids: Token ids of donors, [row donor_pos].
        row: 0 .. n-1, [row].
        read: Read position, [row].
        token: Token whose P is read, [row].
    """

    ids: Tensor
    donor_ids: Tensor
    row: Tensor
    read: Tensor
    token: Tensor

    @classmethod
    def of(cls, job: Job, device: "torch.device | str | None" = "cpu") -> "Rows":
        """Make the tensors of a job."""
        rows = job["rows"]
        return cls(
            ids=padded([row["ids"] for row in rows]).to(device),
            donor_ids=padded([row["donor_ids"] for row in rows]).to(device),
            row=torch.arange(len(rows), device=device),
            read=torch.tensor([row["read"] for row in rows], device=device),
            token=torch.tensor([row["token"] for row in rows], device=device),
        )


@dataclass(frozen=True)
class Part:
    """The rows of a job that have some places, one copy per place, and the slots (positions) that
    are changed in them.

    Attributes:
        sizes: Number of rows of each place.
        rows: Indices of the rows in the job, [row].
        ids: Token ids, [row pos].
        row: 0 .. n-1, [row].
        read: Read position, [row].
        token: Token whose P is read, [row].
        slot_row: Row of each slot in this part, [slot].
        donor_row: Row of each slot in the job, [slot].
        target: Position in the base, [slot].
        source: Position in the donor, [slot].
    """

    sizes: tuple[int, ...]
    rows: Tensor
    ids: Tensor
    row: Tensor
    read: Tensor
    token: Tensor
    slot_row: Tensor
    donor_row: Tensor
    target: Tensor
    source: Tensor

    @classmethod
    def of(cls, job: Job, places: Sequence[str], rows: Rows) -> "Part":
        """Select rows and slots of some places."""
        found = [
            [i for i, row in enumerate(job["rows"]) if place in row["target"]] for place in places
        ]
        one_by_one = [
            (i, place) for place, numbers in zip(places, found, strict=True) for i in numbers
        ]
        slots = [
            (at, i, target, source)
            for at, (i, place) in enumerate(one_by_one)
            for target, source in zip(
                job["rows"][i]["target"][place], job["rows"][i]["source"][place], strict=True
            )
        ]
        there = torch.tensor([i for i, _ in one_by_one], device=rows.ids.device)
        own = torch.arange(len(there), device=rows.ids.device)
        columns = torch.tensor(slots, device=rows.ids.device).T
        sizes = tuple(len(numbers) for numbers in found)
        return cls(
            sizes, there, rows.ids[there], own, rows.read[there], rows.token[there], *columns
        )

    def by_place(self, values: Sequence[float]) -> list[list[float]]:
        """Split the values of all rows by place."""
        left = iter(values)
        return [[next(left) for _ in range(size)] for size in self.sizes]


def padded(rows: list[list[int]]) -> Tensor:
    """Pad rows on the right with token 0."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def probability(logits: Tensor, token: Tensor) -> list[float]:
    """Return P of one token in each row of logits [row vocab]."""
    return logits.log_softmax(-1).gather(-1, token[:, None])[:, 0].exp().tolist()


def load_hf(directory: Path) -> torch.nn.Module:
    """Load the Hugging Face model of a directory in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
