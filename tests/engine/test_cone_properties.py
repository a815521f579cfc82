"""The cone engine on rows drawn at random: the oracle's numbers, whatever the company, the order and the common beginning."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from anchorlens.engine.cone import Cone
from anchorlens.engine.interventions import AnchorSwap, SwapBatch
from anchorlens.engine.readouts import AnswerReader, ReadPlan, answer_joint
from anchorlens.engine.reference import Oracle, last_stream
from anchorlens.models.adapter import Adapter
from anchorlens.questions.tokens import pad_rows
from tests.engine.make import SAME_P, gap_of, slots
from tests.models.tiny import VOCAB

FAMILIES = ("llama", "qwen3_sliding", "gemma3", "gpt2", "neox")
SITES = ("resid_pre", "resid_post", "attn_out", "mlp_out")
TOKENS = st.integers(0, VOCAB - 1)
checked = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# The slow tier draws other ones at every run, and makes small what fails.
drawn = settings(
    max_examples=100,
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@dataclass(frozen=True)
class Row:
    """One row with its donor, its reads (position, rank of the token that is read) and, for each swap, targets and sources."""

    ids: tuple[int, ...]
    donor: tuple[int, ...]
    reads: tuple[tuple[int, int], ...]
    swaps: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@st.composite
def rows(draw, begin=(), n_swaps=2):
    """A row of 3 to 14 tokens after ``begin``; everything that is changed, taken or read lies behind it."""
    first = len(begin)
    ids, donor = ((*begin, *draw(st.lists(TOKENS, min_size=3, max_size=14))) for _ in range(2))
    if draw(st.integers(0, 2)) == 1:  # a donor of the same template
        other = draw(st.dictionaries(st.integers(first, len(ids) - 1), TOKENS, max_size=3))
        donor = tuple(other.get(p, token) for p, token in enumerate(ids))
        donor = donor[: draw(st.integers(first + 1, len(donor)))]
    at = draw(st.lists(st.integers(first, len(ids) - 1), min_size=1, max_size=3, unique=True))
    reads = tuple((position, draw(st.integers(0, 2))) for position in sorted(at))
    swaps = []
    for k in range(n_swaps):
        # The first swap can reach a read; the others may be empty, or lie behind all of them.
        last = max(at) if k == 0 else len(ids) - 1
        target = draw(st.lists(st.integers(first, last), min_size=k == 0, max_size=3, unique=True))
        source = draw(st.lists(st.integers(first, len(donor) - 1), min_size=len(target), max_size=len(target)))
        if draw(st.integers(0, 2)) == 1:  # streams that stay where they stood, or most of them
            stay = draw(st.lists(st.integers(0, 4).map(bool), min_size=len(target), max_size=len(target)))
            found = zip(target, source, stay, strict=True)
            source = [p if stays and p < len(donor) else other for p, other, stays in found]
        swaps.append((tuple(target), tuple(source)))
    return Row(ids, donor, reads, tuple(swaps))


@st.composite
def ways(draw):
    """Site, layers (each once, in any order) and window."""
    layers = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True))
    return {"site": draw(st.sampled_from(SITES)), "layers": tuple(layers), "window": draw(st.integers(1, 3))}


def batch_of(adapter, some):
    """Read are the tokens that the model itself holds for likely, so that P is large enough to move."""
    reads = []
    for i, row in enumerate(some):
        logits = adapter.read.logits(last_stream(adapter, pad_rows([row.ids]))[0])
        reads += [(i, p, int(logits[p].topk(3).indices[rank]), -1, slot) for slot, (p, rank) in enumerate(row.reads)]
    columns = [torch.tensor(column) for column in zip(*reads, strict=True)]
    swaps = tuple(
        AnchorSwap("made", "none", slots([r.swaps[k][0] for r in some]), source=slots([r.swaps[k][1] for r in some]))
        for k in range(len(some[0].swaps))
    )
    reader = AnswerReader(ReadPlan(*columns, n_examples=len(some)), answer_joint)
    return SwapBatch(pad_rows([r.ids for r in some]), reader, swaps, pad_rows([r.donor for r in some]))


def measured(engine, some, way):
    """P of every cell: [clean and every swap and layer, row]."""
    before, after = engine.run_swaps(batch_of(engine.adapter, some), **way)
    return torch.cat([before.log_p[None], *(metrics.log_p for metrics in after)]).exp()


def largest(a, b):
    assert a.shape == b.shape
    return float((a - b).abs().max())


class Seen:
    """How many of the drawn cells were changed at all."""

    def __init__(self):
        self.cells = 0

    def add(self, p):
        self.cells += int(((p[1:] - p[0]).abs() > 100 * SAME_P).sum())


@pytest.mark.slow
def test_any_batch_has_the_oracles_numbers(tiny_model):
    """On Hugging Face's families; :mod:`tests.engine.fuzz` has all kinds of configurations."""
    seen = Seen()

    @drawn
    @given(family=st.sampled_from(FAMILIES), some=st.lists(rows(), min_size=1, max_size=4), way=ways())
    def holds(family, some, way):
        adapter = Adapter(tiny_model(family))
        wanted = Oracle(adapter).run_swaps(batch_of(adapter, some), **way)
        gap = gap_of(Cone(adapter).run_swaps(batch_of(adapter, some), **way), wanted)
        assert gap.p <= SAME_P
        assert gap.log_p <= 1e-3
        seen.add(torch.cat([wanted[0].p[None], *(m.p for m in wanted[1])]))

    holds()
    assert seen.cells > 10


def test_a_batch_is_each_row_alone(tiny_model):
    """Together, alone, in reversed order and twice over: the same numbers."""
    seen = Seen()

    @checked
    @given(family=st.sampled_from(FAMILIES), some=st.lists(rows(), min_size=2, max_size=4), way=ways())
    def holds(family, some, way):
        engine = Cone(Adapter(tiny_model(family)))
        together = measured(engine, some, way)
        alone = torch.cat([measured(engine, [row], way) for row in some], 1)
        assert largest(together, alone) <= SAME_P
        assert largest(together, measured(engine, some[::-1], way).flip(1)) <= SAME_P
        assert largest(together.repeat(1, 2), measured(engine, [*some, *some], way)) <= SAME_P
        seen.add(together)

    holds()
    assert seen.cells > 10


def test_the_order_of_layers_is_only_an_order(tiny_model):
    seen = Seen()

    @checked
    @given(family=st.sampled_from(FAMILIES), row=rows(n_swaps=1), site=st.sampled_from(SITES), window=st.integers(1, 3))
    def holds(family, row, site, window):
        engine = Cone(Adapter(tiny_model(family)))
        up, down = (
            measured(engine, [row], {"site": site, "layers": layers, "window": window}) for layers in ((0, 1, 2), (2, 1, 0))
        )
        assert largest(up[0], down[0]) <= SAME_P
        assert largest(up[1:], down[1:].flip(0)) <= SAME_P
        seen.add(up)

    holds()
    assert seen.cells > 3


@st.composite
def with_a_beginning(draw):
    """Two batches: rows of the first begin with the same tokens, those of the second with more, fewer or other ones."""
    begin = tuple(draw(st.lists(TOKENS, min_size=20, max_size=28)))
    kind = draw(st.sampled_from(["same", "longer", "shorter", "branched", "other"]))
    n = draw(st.integers(1, len(begin) - 1))
    more = tuple(draw(st.lists(TOKENS, min_size=4, max_size=16)))
    second = {
        "same": begin,
        "longer": begin + more,
        "shorter": begin[:n],
        "branched": begin[:n] + more,
        "other": more + begin[:8],
    }[kind]
    return [draw(st.lists(rows(begin=b), min_size=2, max_size=4)) for b in (begin, second)]


@pytest.mark.slow
def test_a_common_beginning_changes_no_number(tiny_model):
    """It is computed once; also where an engine that has one goes on with a longer, a shorter or another one."""
    seen, kept = Seen(), []

    @settings(drawn, max_examples=60)
    @given(family=st.sampled_from(FAMILIES), batches=with_a_beginning(), way=ways())
    def holds(family, batches, way):
        adapter = Adapter(tiny_model(family))
        engine = Cone(adapter)
        for some in (*batches, batches[0]):
            wanted = Oracle(adapter).run_swaps(batch_of(adapter, some), **way)
            gap = gap_of(engine.run_swaps(batch_of(engine.adapter, some), **way), wanted)
            assert gap.p <= SAME_P
            assert gap.log_p <= 1e-3
            kept.append(engine._prefix is not None and len(engine._prefix.ids))
            seen.add(torch.cat([wanted[0].p[None], *(m.p for m in wanted[1])]))

    holds()
    assert seen.cells > 10
    assert sum(n >= 20 for n in kept) > len(kept) / 4
