"""Logits to read for the probability of an answer."""

from collections.abc import Sequence

import torch

from anchorlens.engine.readouts import ReadPlan
from anchorlens.questions.tokens import TokenRow


def answer_reads(rows: Sequence[TokenRow], rivals: Sequence[TokenRow | None], *, first_only: bool) -> ReadPlan:
    """Plan the reads of a batch's answers; a rival is the row whose answer a logit difference compares with."""
    reads: list[tuple[int, int, int, int, int]] = []
    for i, (row, rival) in enumerate(zip(rows, rivals, strict=True)):
        differ, other = first_difference(row.answer_ids, rival.answer_ids) if rival is not None else (-1, -1)
        for slot, (position, token) in enumerate(zip(row.positions["answer"], row.answer_ids, strict=True)):
            if slot > 0 and first_only and slot != differ:
                continue
            reads.append((i, position - 1, token, other if slot == differ else -1, slot))
    columns = [torch.tensor(column, dtype=torch.long, device="cpu") for column in zip(*reads, strict=True)]
    return ReadPlan(*columns, n_examples=len(rows))


def first_difference(base: Sequence[int], donor: Sequence[int]) -> tuple[int, int]:
    """Return the first index at which two answers differ and the donor's token there; (-1, -1) if one begins with the other."""
    for i, (a, b) in enumerate(zip(base, donor, strict=False)):
        if a != b:
            return i, b
    return -1, -1
