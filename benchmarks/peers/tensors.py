"""Ragged rows as tensors, for workers that pass all rows of a job at once. Needs torch and nothing else."""

from dataclasses import dataclass
from pathlib import Path

import torch
from protocol import Job
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """All rows of a job, right-padded.

    No mask goes with them: what stands right of a row's last token cannot reach back in a causal model, and without a mask every
    library takes its fastest attention.

    Attributes:
        ids: Bases, [row pos].
        donor_ids: Donors, [row donor_pos].
        row: 0 .. n-1, [row].
        read: Position that is read, [row].
        token: Token whose P is read, [row].
    """

    ids: Tensor
    donor_ids: Tensor
    row: Tensor
    read: Tensor
    token: Tensor

    @classmethod
    def of(cls, job: Job, device: "torch.device | str | None" = "cpu") -> "Rows":
        """The rows of a job."""
        rows = job["rows"]
        return cls(
            ids=padded([row["ids"] for row in rows]).to(device),
            donor_ids=padded([row["donor_ids"] for row in rows]).to(device),
            row=torch.arange(len(rows), device=device),
            read=torch.tensor([row["read"] for row in rows], device=device),
            token=torch.tensor([row["token"] for row in rows], device=device),
        )


@dataclass(frozen=True)
class Cells:
    """Where one anchor's streams come from and go to, all rows in one list.

    Attributes:
        row: [slot].
        target: Position in the base, [slot].
        source: Position in the donor, [slot].
    """

    row: Tensor
    target: Tensor
    source: Tensor

    @classmethod
    def of(cls, job: Job, anchor: str, device: "torch.device | str | None" = "cpu") -> "Cells":
        """The slots of one anchor."""
        slots = [
            (i, target, source)
            for i, row in enumerate(job["rows"])
            for target, source in zip(row["target"][anchor], row["source"][anchor], strict=True)
        ]
        row, target, source = torch.tensor(slots, device=device).T
        return cls(row, target, source)


def padded(rows: list[list[int]]) -> Tensor:
    """Right-padded with token 0."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def probability(logits: Tensor, token: Tensor) -> list[float]:
    """P of one token in each row of logits [row vocab]."""
    return logits.log_softmax(-1).gather(-1, token[:, None])[:, 0].exp().tolist()


def load_hf(directory: Path) -> torch.nn.Module:
    """The Hugging Face model of a directory, in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
