"""Logits to read for the probability of an answer."""

from collections.abc import Sequence

import torch

from anchorlens.engine.readouts import ReadPlan
from anchorlens.questions.tokens import TokenRow


def answer_reads(
    rows: Sequence[TokenRow], rivals: Sequence[TokenRow | None], *, first_only: bool
) -> ReadPlan:
    """Plan which logits a batch reads for the probability of its answers.

    A rival is the row whose answer a logit difference compares with. If ``first_only``, one token
    of each answer is read: the first one that differs from the rival's answer.
    """
    reads: list[tuple[int, int, int, int, int]] = []
    for i, (row, rival) in enumerate(zip(rows, rivals, strict=True)):
        differ = -1
        other = -1
        if rival is not None:
            differ, other = first_difference(row.answer_ids, rival.answer_ids)
        answer = list(zip(row.positions["answer"], row.answer_ids, strict=True))
        if first_only:
            position, token = answer[max(differ, 0)]
            reads.append((i, position - 1, token, other, 0))
            continue
        for slot, (position, token) in enumerate(answer):
            reads.append((i, position - 1, token, other if slot == differ else -1, slot))
    columns = torch.tensor(reads, dtype=torch.long, device="cpu").T.contiguous()
    row, position, token, rival, slot = columns
    return ReadPlan(
        row=row, position=position, token=token, rival=rival, slot=slot, n_examples=len(rows)
    )


def first_difference(base: Sequence[int], donor: Sequence[int]) -> tuple[int, int]:
    """Return the first index at which two answers differ, and the donor's token there.

    The result is (-1, -1) if one answer begins with the other, so that no token tells them apart.
    """
    for i, (a, b) in enumerate(zip(base, donor, strict=False)):
        if a != b:
            return i, b
    return -1, -1
