"""Batches that the engine's tests share, and how far two engines' numbers are apart."""

from dataclasses import dataclass

import torch

from anchorlens.engine.cone import Cone
from anchorlens.engine.interventions import AnchorSwap, Slots, SwapBatch
from anchorlens.engine.readouts import AnswerReader, ReadPlan, answer_joint
from anchorlens.engine.reference import Oracle, last_stream
from anchorlens.models.adapter import Adapter
from anchorlens.questions.tokens import pad_rows
from tests.models.tiny import VOCAB

# Probabilities; 1e-5 are 0.001 points.
SAME_P, SAME_LOG = 1e-5, 1e-3
# A change that the oracle sees at all: one that does nothing is exactly 0 there.
EFFECT = 1e-3
LENGTHS, DONOR_LENGTHS = (15, 11, 19, 13), (12, 17, 10, 14)
# Row by row: where streams are put, and where they are taken from. All rows are longer than the sliding window.
ANCHORS = {
    "question": (((3, 4, 5), (2,), (5, 4, 3, 9), (1, 7)), ((2, 3, 4), (6,), (1, 2, 3, 8), (9, 0))),
    "answer_site": (((11,), (7,), (14,), (9,)), ((8,), (16,), (5,), (13,))),
    "null": (((), (4,), (), (6, 8)), ((), (3,), (), (1, 1))),
    # The last row's change lies behind its last read, so it alters nothing there.
    "late": (((0,), (9, 10), (16, 17), (12,)), ((4,), (2, 15), (5, 6), (0,))),
    "nowhere": (((), (), (), ()), ((), (), (), ())),
}
# Position of each read, row by row.
READS = ((11,), (7, 8, 9), (14, 15, 16), (9, 10))


def slots(positions):
    padded = pad_rows([list(p) for p in positions])
    return Slots(padded.ids, padded.mask)


def random_rows(lengths, seed, vocab=VOCAB):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab, (n,), generator=generator).tolist() for n in lengths]


def answer_reader(adapter, rows, positions=READS, readout=answer_joint):
    """Reads the model's own two best tokens; the second row has no rival."""
    logits = [adapter.read.logits(last_stream(adapter, pad_rows([row]))[0]) for row in rows]
    reads = []
    for i, where in enumerate(positions):
        for slot, p in enumerate(where):
            best, second = logits[i][p].topk(2).indices.tolist()
            reads.append((i, p, best, second if slot == 0 and i != 1 else -1, slot))
    columns = [torch.tensor(column) for column in zip(*reads, strict=True)]
    return AnswerReader(ReadPlan(*columns, n_examples=len(rows)), readout)


def batch_of(reader, rows, donors, anchors=ANCHORS):
    swaps = tuple(AnchorSwap(name, "none", slots(at), source=slots(source)) for name, (at, source) in anchors.items())
    return SwapBatch(pad_rows(rows), reader, swaps, pad_rows(donors))


def given_swaps(adapter, anchors=ANCHORS, scale=2.0):
    """The same positions, with random streams in place of a donor's."""
    generator = torch.Generator().manual_seed(7)
    swaps = []
    for name, (at, _) in anchors.items():
        where = slots(at)
        shape = (adapter.n_layers, *where.positions.shape, adapter.d_model)
        swaps.append(AnchorSwap(name, "given", where, streams=scale * torch.randn(shape, generator=generator)))
    return tuple(swaps)


@dataclass
class Gap:
    """Largest differences of all metrics, and the largest effect of each swap on log P or the logit difference (by the oracle)."""

    p: float
    log_p: float
    logit_diff: float
    effects: list[float]


def gap_of(found, wanted):
    """The cone's metrics against the oracle's, clean pass and all swaps; NaN and other shapes count as infinitely far."""
    (before, after), (clean, changed) = found, wanted
    assert len(after) == len(changed)
    largest = {}
    for name in ("p", "log_p", "logit_diff"):
        pairs = [(getattr(a, name), getattr(b, name)) for a, b in [(before, clean), *zip(after, changed, strict=True)]]
        assert all(a.shape == b.shape for a, b in pairs)
        a, b = (torch.cat([x.reshape(-1) for x in side]) for side in zip(*pairs, strict=True))
        assert torch.equal(a.isnan(), b.isnan())
        far = (a - b).abs()[~b.isnan()]
        largest[name] = float(far.nan_to_num(torch.inf).max()) if len(far) else 0.0
    # Where P is near 1 its logarithm hardly moves, and the logit difference does.
    effects = [
        max(float((getattr(x, name) - getattr(clean, name)).abs().nan_to_num(0.0).max()) for name in ("log_p", "logit_diff"))
        for x in changed
    ]
    return Gap(**largest, effects=effects)


def compared(adapter, batch, **options):
    return gap_of(Cone(adapter).run_swaps(batch, **options), Oracle(adapter).run_swaps(batch, **options))


def case(model, readout=answer_joint):
    """An engine's view of a model, and four rows with donors in which all of ``ANCHORS`` are swapped."""
    adapter, vocab = Adapter(model), int(model.cfg.d_vocab)
    rows, donors = random_rows(LENGTHS, 1, vocab), random_rows(DONOR_LENGTHS, 2, vocab)
    return adapter, batch_of(answer_reader(adapter, rows, readout=readout), rows, donors)


class Own(torch.nn.Module):
    """A module of another class around one of TransformerLens's."""

    def __init__(self, inner, scale=1.0):
        super().__init__()
        self.inner, self.scale, self.cfg = inner, scale, inner.cfg

    def forward(self, x):
        return self.scale * self.inner(x)
