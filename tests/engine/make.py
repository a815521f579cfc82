"""Batches that the engine's tests share, and comparisons of two engines' numbers."""

import torch

from anchorlens.engine.hooked_passes import last_stream
from anchorlens.engine.knockout import cut_edges
from anchorlens.engine.patches import AnchorSwap, KnockoutBatch, Slots, SwapBatch, pad_rows
from anchorlens.engine.readouts import AnswerReader, Metrics, ReadPlan, answer_joint
from anchorlens.models.load import adapt
from tests.models.tiny import VOCAB

LENGTHS, DONOR_LENGTHS = (15, 11, 19, 13), (12, 17, 10, 14)
# Row by row: where streams are put, and where they are taken from. All rows are longer than the
# sliding window.
ANCHORS = {
    "exact_question": (
        ((3, 4, 5), (2,), (5, 4, 3, 9), (1, 7)),
        ((2, 3, 4), (6,), (1, 2, 3, 8), (9, 0)),
    ),
    "pre_answer": (((11,), (7,), (14,), (9,)), ((8,), (16,), (5,), (13,))),
    "null": (((), (4,), (), (6, 8)), ((), (3,), (), (1, 1))),
    # The last row's change lies behind its last read, so it alters nothing there.
    "late": (((0,), (9, 10), (16, 17), (12,)), ((4,), (2, 15), (5, 6), (0,))),
    "nowhere": (((), (), (), ()), ((), (), (), ())),
}
# Position of each read, row by row.
READS = ((11,), (7, 8, 9), (14, 15, 16), (9, 10))
# Positions that are no longer read, row by row, for two variants and one that cuts nothing; the
# last row of the first is cut behind its read.
CUT_SOURCES = ([(3, 4, 5), (2,), (5, 9), (12,)], [(1,), (), (4, 6, 7), (2, 3)], [(), (), (), ()])
CUT_READS = (14, 9, 16, 11)


def slots(positions):
    padded = pad_rows([list(p) for p in positions])
    return Slots(padded.ids, padded.mask)


def random_rows(lengths, seed, vocab=VOCAB):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab, (n,), generator=generator).tolist() for n in lengths]


def answer_reader(adapter, rows, positions=READS, readout=answer_joint):
    """Reads the model's own two best tokens; the second row, the fifth, ... have no rival."""
    stream, reads = last_stream(adapter, pad_rows(rows)), []
    for i, where in enumerate(positions):
        best, second = adapter.read.logits(stream[i, list(where)]).topk(2).indices.T.tolist()
        for slot, p in enumerate(where):
            reads.append((i, p, best[slot], second[slot] if slot == 0 and i % 3 != 1 else -1, slot))
    row, position, token, rival, slot = torch.tensor(reads).T
    plan = ReadPlan(
        row=row, position=position, token=token, rival=rival, slot=slot, n_examples=len(rows)
    )
    return AnswerReader(plan, readout)


def batch_of(reader, rows, donors, anchors=ANCHORS):
    swaps = tuple(
        AnchorSwap(anchor=name, control="none", slots=slots(at), source=slots(source))
        for name, (at, source) in anchors.items()
    )
    return SwapBatch(pad_rows(rows), reader, swaps, pad_rows(donors))


def cut_batch_of(*, mode="mask", heads=None, targets=(None,) * 4, begin=(), vocab=VOCAB):
    """Make four ragged rows behind a common prefix, with the edges of ``CUT_SOURCES`` cut."""
    rows, n = [[*begin, *row] for row in random_rows(LENGTHS, 5, vocab)], len(begin)
    targets = [None if where is None else [p + n for p in where] for where in targets]
    width = max(map(len, rows))
    edges = tuple(
        cut_edges([[p + n for p in own] for own in sources], targets, width)
        for sources in CUT_SOURCES
    )
    return KnockoutBatch(
        tokens=pad_rows(rows),
        row=torch.arange(4),
        position=torch.tensor(CUT_READS) + n,
        edges=edges,
        mode=mode,
        heads=heads,
    )


def given_swaps(adapter, anchors=ANCHORS, scale=2.0):
    """The same positions, with random streams in place of a donor's."""
    generator = torch.Generator().manual_seed(7)
    swaps = []
    for name, (at, _) in anchors.items():
        where = slots(at)
        shape = (adapter.n_layers, *where.positions.shape, adapter.d_model)
        swaps.append(
            AnchorSwap(
                anchor=name,
                control="given",
                slots=where,
                streams=scale * torch.randn(shape, generator=generator),
            )
        )
    return tuple(swaps)


# Tolerances by the model's dtype: of P, of logarithms and logits of size 1, of states of size 1. Metrics of a float64 model are
# float32.
ALLOWED = {torch.float32: (2e-5, 2e-4, 1e-4), torch.float64: (2e-6, 1e-5, 1e-6)}


def metrics_off(found: Metrics, wanted: Metrics, dtype: torch.dtype) -> float:
    """Return the largest difference of two metrics, as a multiple of the tolerance; infinite where
    shapes or NaN differ.
    """
    in_p, in_logs, _ = ALLOWED[dtype]
    worst = 0.0
    for name in ("p", "log_p", "logit_diff"):
        a, b = getattr(found, name).double(), getattr(wanted, name).double()
        if a.shape != b.shape or not torch.equal(a.isnan(), b.isnan()):
            return float("inf")
        allowed = torch.full_like(b, in_p) if name == "p" else in_logs * (1 + b.abs())
        worst = max([worst, *((a - b).abs() / allowed)[~b.isnan()].nan_to_num(torch.inf).tolist()])
    return worst


def swaps_off(
    found: tuple[Metrics, list[Metrics]], wanted: tuple[Metrics, list[Metrics]], dtype: torch.dtype
) -> float:
    """Return the largest difference over the clean pass and every swap."""
    assert len(found[1]) == len(wanted[1])
    pairs = zip([found[0], *found[1]], [wanted[0], *wanted[1]], strict=True)
    return max(metrics_off(a, b, dtype) for a, b in pairs)


def states_off(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> float:
    """Return the largest difference of two states, relative to the largest entry, as a multiple of
    the tolerance.
    """
    if found.shape != wanted.shape:
        return float("inf")
    return float(
        (found - wanted).abs().nan_to_num(torch.inf).max()
        / (1 + wanted.abs().max())
        / ALLOWED[dtype][2]
    )


def effects_of(wanted: tuple[Metrics, list[Metrics]]) -> list[float]:
    """Return the largest change of log P or of the logit difference by each swap.

    Near P = 1 only the latter moves.
    """
    before, after = wanted

    def change(metrics: Metrics, name: str) -> float:
        return float((getattr(metrics, name) - getattr(before, name)).abs().nan_to_num(0.0).max())

    return [max(change(metrics, name) for name in ("log_p", "logit_diff")) for metrics in after]


def case(model, readout=answer_joint):
    """An engine's view of a model, and four rows with donors in which all of ``ANCHORS`` are
    swapped.
    """
    adapter, vocab = adapt(model), int(model.cfg.d_vocab)
    rows, donors = random_rows(LENGTHS, 1, vocab), random_rows(DONOR_LENGTHS, 2, vocab)
    return adapter, batch_of(answer_reader(adapter, rows, readout=readout), rows, donors)


def counted(adapter, monkeypatch):
    """Tokens that go through each block from now on."""
    from anchorlens.models.hooked.blocks import HookedBlock

    through, right = [0] * adapter.n_layers, HookedBlock.project

    def project(block, x):
        through[block.layer] += len(x)
        return right(block, x)

    monkeypatch.setattr(HookedBlock, "project", project)
    return through


class Own(torch.nn.Module):
    """A module of another class around one of TransformerLens's."""

    def __init__(self, inner, scale=1.0):
        super().__init__()
        self.inner, self.scale, self.cfg = inner, scale, inner.cfg

    def forward(self, x):
        return self.scale * self.inner(x)
