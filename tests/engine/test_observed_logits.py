"""Metrics on logits that are computed where they look, beside the same metrics on ordinary
tensors.
"""

import copy

import einops
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anchorlens.engine.logits import Logits, UnreadLogitsError
from anchorlens.engine.observed_logits import observe

LOGITS = torch.randn(3, 7, 50, generator=torch.Generator().manual_seed(0))
P = 5
ROWS, POSITIONS, TOKENS = torch.arange(3), torch.tensor([6, 5, 4]), torch.tensor([1, 2, 3])


def masked(logits):
    logits[..., 7] = -1e9
    return logits[0, -1].log_softmax(-1)[5]


def centred(logits):
    logits[:, -1] -= logits[:, -1].mean()
    return logits[0, -1, 3] * logits.sum()


def filled(logits):
    logits.masked_fill_(logits > 1, 0.0)
    return logits[0, -1].sum()


def zeroed(logits):
    logits[:, :-1] = 0
    return logits.log_softmax(-1)[:, :, 5].sum()


def halved(logits):
    logits /= 2
    return logits[0, -1].log_softmax(-1)[5]


def written_after_a_softmax(logits):
    log_p = logits.log_softmax(-1)
    logits[:, -1] = 0
    return log_p[0, -1, 5] + logits[0, -1, 5]


def written_through_a_view(logits):
    view = logits[0]
    view[-1].add_(3.0)
    return logits[0, -1, 4] + view[0, 0]


def written_through_an_ordinary_alias(logits):
    alias = logits.as_strided((3,), (1,), 2)
    converted = logits.float().double().exp()
    alias.mul_(4)
    return converted[0, 0, 2] + logits[0, 0, 2]


def written_at_index_tensors(logits):
    logits[0, -1, [3, 4]] = 7.0
    logits[ROWS, POSITIONS] = 2.0
    return logits.sum()


def written_into_a_copy(logits):
    other = logits.clone()
    other[..., 5] = -9
    return other[0, -1].max() + logits[0, -1, 5]


def compared_with_itself(logits):
    answer = logits[0, -1, 5]
    return (logits[0, -1] >= answer).sum()


def written_in_numpy(logits):
    logits.numpy()[0, -1, 5] = 100.0
    return logits[0, -1, 5]


def moved_within(logits):
    logits[0, 2:4] = logits[0, 4:6]
    logits[0, -1, 3] = logits[0, -1, 4]
    return logits[0].sum()


def written_as_out(logits):
    torch.exp(logits[0, -1], out=logits[0, 0])
    return logits[0, 0].sum()


@torch.jit.script
def scripted(logits):
    return logits[0, -1].max() + logits.sum()


# Metric, and the number of the 21 rows of logits that it needs.
METRICS = {
    "logit difference": (lambda x: (x[:, -1, P] - x[:, -1, 9]).mean(), 3),
    "accuracy": (lambda x: (x[:, -1].argmax(-1) == P).float().mean(), 3),
    "two tokens right": (lambda x: (x[0, -2:].argmax(-1) == 3).all().float(), 2),
    "probability over a half": (lambda x: (x[0, -1].softmax(-1)[P] > 0.5).float(), 1),
    "median over positions": (lambda x: x[0, :, P].median(), 7),
    "own positions and tokens": (lambda x: x[ROWS, POSITIONS, TOKENS].mean(), 3),
    "own positions": (lambda x: x[ROWS, POSITIONS].log_softmax(-1)[ROWS, TOKENS].sum(), 3),
    "everything": (lambda x: x.log_softmax(-1).mean(), 21),
    "loss": (
        lambda x: F.cross_entropy(x[:, :-1].reshape(-1, 50), torch.ones(18, dtype=torch.long)),
        18,
    ),
    "einops": (lambda x: einops.reduce(x[:, -1], "b v -> v", "mean").max(), 3),
    "gather": (lambda x: x[:, -1, :].gather(1, TOKENS[:, None]).mean(), 3),
    "token by another arg max": (lambda x: x[0, -2, x[0, -1].argmax()], 2),
    "position by an arg max": (lambda x: x[0, x[0, :, P].argmax(), 7], 7),
    "top k": (lambda x: (x[1, -1].topk(10).indices == P).any().float(), 1),
    "loop over the batch": (lambda x: sum(one[-1, 2] for one in x), 3),
    "per example": (lambda x: x[:, -1, P], 3),
    "float64": (lambda x: x.double()[:, -1].logsumexp(-1).sum(), 3),
    "number": (lambda x: x[0, -1, P].item(), 1),
    "numpy": (lambda x: np.argmax(x[0, -1]), 1),
    "list": (lambda x: max(x[0, -1].tolist()), 1),
    "mask": (lambda x: x[0, torch.tensor([False] * 5 + [True] * 2)].sum(), 2),
    "mask of all": (lambda x: x[x > 0].sum(), 21),
    "log-softmax of all, one read": (lambda x: x.log_softmax(-1)[0, -1, P], 1),
    "softmax over positions": (lambda x: x.softmax(1)[0, 2, P], 21),
    "temperature": (lambda x: (x / 2).log_softmax(dim=-1)[0, -1, P], 1),
    "deep copy": (lambda x: copy.deepcopy(x)[0, -1, 3], 21),
    "margin": (lambda x: x[0, -1, P] - torch.cat([x[0, -1, :P], x[0, -1, P + 1 :]]).max(), 1),
    "lists": (lambda x: x[[0, 1], [-1, -2], [4, 5]].sum(), 2),
    "steps": (lambda x: x[0, ::2, ::3].sum(), 4),
    "transposed": (lambda x: x.permute(1, 0, 2)[-1, 0, 4] + x[0].T[3, -1], 1),
    "flat": (lambda x: x.view(-1)[351], 1),
    "across rows": (lambda x: x.view(3, -1)[1, 60:120].sum(), 2),
    "condition": (lambda x: x[0, 0, 1] if x[0, -1, 2] > 9 else x[1, 2, 3], 2),
    "format": (lambda x: len(f"{x[0, -1, 2]:.3f}"), 1),
    "index select": (lambda x: x.index_select(1, torch.tensor([6]))[0, 0, 3], 3),
    "where": (lambda x: torch.where(x[0, -1] > 0, x[0, -1], 0.0).sum(), 1),
    "vmap": (lambda x: torch.vmap(lambda one: one[-1].max())(x).sum(), 21),
    "scripted": (scripted, 21),
    "bool": (lambda x: x[0, -1, P] > 0, 1),
    "whole number": (lambda x: x[:, -1].argmax(-1).sum(), 3),
    "masked": (masked, 1),
    "centred": (centred, 21),
    "filled": (filled, 21),
    "zeroed": (zeroed, 3),
    "halved": (halved, 21),
    "written after a softmax": (written_after_a_softmax, 1),
    "written through a view": (written_through_a_view, 2),
    "written through an alias": (written_through_an_ordinary_alias, 21),
    "written at index tensors": (written_at_index_tensors, 21),
    "written into a copy": (written_into_a_copy, 1),
    "compared with itself": (compared_with_itself, 1),
    "written in numpy": (written_in_numpy, 21),
    "moved within": (moved_within, 5),
    "written as out": (written_as_out, 2),
}


def logits_of(flat, counted=None, by_token=True):
    def tokens_of(rows, tokens):
        # As in a model, where single tokens and whole rows round differently.
        return flat[rows][:, tokens] + 1e-6

    return Logits(
        LOGITS.shape,
        LOGITS.dtype,
        LOGITS.device,
        rows=lambda rows: flat[rows].clone(),
        tokens=tokens_of if by_token else None,
    )


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_gives_what_it_gives_on_an_ordinary_tensor_and_reads_no_more_than_it_needs(name):
    metric, n_rows = METRICS[name]
    flat = LOGITS.reshape(-1, 50)
    logits = logits_of(flat, by_token=False)
    wanted, found = metric(LOGITS.clone()), observe(metric, logits)
    assert type(found) is type(wanted)
    assert torch.equal(torch.as_tensor(found), torch.as_tensor(wanted))
    assert len(logits.reads) == n_rows


def test_a_token_that_was_read_alone_keeps_its_value_in_its_row():
    """Else an answer would be counted as less likely than itself."""
    logits = logits_of(LOGITS.reshape(-1, 50))
    order = LOGITS[0, -1].sort(descending=True).indices
    rank = observe(lambda x: [float((x[0, -1] > x[0, -1, token]).sum()) for token in order], logits)
    assert rank == [float(i) for i in range(50)]


def test_logits_that_nobody_computed_are_an_error_also_where_the_metric_catches_it():
    def compute(rows):
        if any(row != 20 for row in rows):
            raise UnreadLogitsError("not computed")
        return LOGITS.reshape(-1, 50)[rows]

    def make():
        return Logits(LOGITS.shape, LOGITS.dtype, LOGITS.device, rows=compute)

    assert observe(lambda x: x[2, -1, 4], make()) == LOGITS[2, -1, 4]
    with pytest.raises(UnreadLogitsError):
        observe(lambda x: x[0, -1, 4], make())


def test_stored_logits_stay_valid_after_the_call():
    stored = []
    observe(
        lambda x: stored.append((x, x[0, -1], x.log_softmax(-1))) or x[0, 0, 0],
        logits_of(LOGITS.reshape(-1, 50), by_token=False),
    )
    whole, last, log_p = stored[0]
    assert torch.equal(whole + 0, LOGITS)
    assert torch.equal(last + 0, LOGITS[0, -1])
    assert torch.equal(log_p + 0, LOGITS.log_softmax(-1))
