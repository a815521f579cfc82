"""The cone engine gives the oracle's numbers: every family, site, window, reader and kind of swap."""

import copy
from dataclasses import dataclass

import pytest
import torch

from anchorlens.engine.cone import Cone
from anchorlens.engine.interventions import AnchorSwap, Slots, SwapBatch
from anchorlens.engine.readouts import AnswerReader, ChoiceReader, ReadPlan, StateReader, answer_joint, first_token
from anchorlens.engine.reference import Oracle, last_stream
from anchorlens.models.adapter import Adapter
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowTokenizer, pad_rows
from tests.models.tiny import FAMILIES, VOCAB, WINDOW
from tests.questions.make import capital

TEXT_FAMILIES = sorted(set(FAMILIES) - {"gemma3_multimodal"})
# Every family in the fast tier; what is a variant of one (untied, by layer, sequential, ...) in the slow one.
VARIANTS = ("llama_untied", "qwen2_yarn", "gpt2_by_layer", "neox_sequential", "qwen3_sliding")
EACH = [pytest.param(f, marks=pytest.mark.slow) if f in VARIANTS else f for f in TEXT_FAMILIES]
SOME = ["llama", "qwen3_sliding", "gemma3", "gpt2", "neox"]
TWO = ["llama", "gemma3", *(pytest.param(f, marks=pytest.mark.slow) for f in ("qwen3_sliding", "gpt2", "neox"))]
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


def random_rows(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCAB, (n,), generator=generator).tolist() for n in lengths]


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
    adapter = Adapter(model)
    rows, donors = random_rows(LENGTHS, 1), random_rows(DONOR_LENGTHS, 2)
    return adapter, batch_of(answer_reader(adapter, rows, readout=readout), rows, donors)


@pytest.mark.parametrize("family", EACH)
def test_the_oracles_numbers_in_every_family_at_every_site(tiny_model, family):
    """Windows of one layer and of all, layers in any order, five swaps in one batch, rows longer than the sliding window."""
    adapter, batch = case(tiny_model(family))
    assert min(LENGTHS) > WINDOW
    for site in adapter.sites:
        for window, layers in ((1, (2, 0)), (3, (1, 2))):
            gap = compared(adapter, batch, site=site, layers=layers, window=window)
            assert gap.p <= SAME_P, (site, window)
            assert gap.log_p <= SAME_LOG, (site, window)
            assert gap.logit_diff <= SAME_LOG, (site, window)
            *own, late, nowhere = gap.effects
            assert min(own) > EFFECT, (site, window, own)
            assert max(own) > 0.05, (site, window, own)
            assert late > 0, (site, window)
            assert nowhere == 0


class Own(torch.nn.Module):
    """A module of another class around one of TransformerLens's."""

    def __init__(self, inner, scale=1.0):
        super().__init__()
        self.inner, self.scale, self.cfg = inner, scale, inner.cfg

    def forward(self, x):
        return self.scale * self.inner(x)


@pytest.mark.parametrize("family", SOME)
def test_parts_of_another_kind_give_the_oracles_numbers(tiny_model, family):
    """Norms and MLPs that are no module of TransformerLens's run as they are."""
    model = copy.deepcopy(tiny_model(family))
    for block in model.blocks:
        block.mlp = Own(block.mlp, 1.1)
        for name in ("ln1", "ln2", "ln1_post", "ln2_post"):
            if hasattr(block, name):
                setattr(block, name, Own(getattr(block, name), 0.9))
    adapter, batch = case(model)
    for site in adapter.sites:
        gap = compared(adapter, batch, site=site, layers=(0, 2), window=1)
        assert gap.p <= SAME_P, site
        assert gap.log_p <= SAME_LOG, site
        assert min(gap.effects[:-1]) > EFFECT, (site, gap.effects)


@pytest.mark.parametrize("family", TWO)
def test_given_streams_beside_donors(tiny_model, family):
    """Swaps with streams of the user's and swaps with donors, mixed in one batch."""
    adapter, batch = case(tiny_model(family))
    given = given_swaps(adapter)
    mixed = SwapBatch(batch.tokens, batch.reader, (*given[:2], *batch.swaps[:2], *given[2:]), batch.donors)
    alone = SwapBatch(batch.tokens, batch.reader, given)
    for site in ("resid_pre", "mlp_out"):
        for swaps in (mixed, alone):
            gap = compared(adapter, swaps, site=site, layers=(1, 0), window=2)
            assert gap.p <= SAME_P, site
            assert gap.log_p <= SAME_LOG, site
            assert min(gap.effects[:-1]) > EFFECT, (site, gap.effects)


def test_given_streams_of_one_layer_are_not_those_of_another(tiny_model):
    """The engine puts what is given for the layer that is changed: other streams at that layer alone change its cell."""
    adapter, batch = case(tiny_model("llama"))
    given = given_swaps(adapter)[:1]
    other = AnchorSwap("question", "given", given[0].slots, streams=given[0].streams.clone())
    other.streams[1] += 1.0
    first, second = (
        Cone(adapter).run_swaps(
            SwapBatch(batch.tokens, batch.reader, swaps), site="resid_pre", layers=(0, 1, 2), window=1
        )[1][0].log_p
        for swaps in (given, (other,))
    )  # fmt: skip
    moved = (first - second).abs().amax(1)
    assert moved[1] > 0.01
    assert torch.equal(moved[[0, 2]], torch.zeros(2))


@pytest.mark.parametrize("family", SOME)
def test_first_token_reads_one_position(tiny_model, family):
    adapter = Adapter(tiny_model(family))
    rows, donors = random_rows(LENGTHS, 3), random_rows(DONOR_LENGTHS, 4)
    reader = answer_reader(adapter, rows, [where[:1] for where in READS], first_token)
    gap = compared(adapter, batch_of(reader, rows, donors), site="resid_pre", layers=(2, 0), window=1)
    assert gap.p <= SAME_P
    assert gap.log_p <= SAME_LOG
    assert gap.logit_diff <= SAME_LOG
    assert min(gap.effects[:2]) > EFFECT


@pytest.mark.parametrize("family", TWO)
def test_a_choice_between_token_sets(tiny_model, family):
    adapter = Adapter(tiny_model(family))
    rows, donors = random_rows(LENGTHS, 3), random_rows(DONOR_LENGTHS, 4)
    reader = ChoiceReader(torch.tensor([where[-1] for where in READS]), yes=(5, 77, 200), no=(6, 300))
    for site in adapter.sites:
        gap = compared(adapter, batch_of(reader, rows, donors), site=site, layers=(0, 1, 2), window=1)
        assert gap.p <= SAME_P, site
        assert gap.logit_diff <= SAME_LOG, site
        assert min(gap.effects[:2]) > EFFECT, site


def state_reader(adapter, site, layer):
    weight = torch.randn(adapter.d_model, generator=torch.Generator().manual_seed(5)) / adapter.d_model
    return StateReader(layer, site, torch.tensor([where[-1] for where in READS]), lambda states: states @ weight)


# Order of the sites in a block: a change at one of them is seen in the same layer at those that follow.
ORDER = ["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"]


@pytest.mark.parametrize("seen_at", ORDER)
@pytest.mark.parametrize("family", ["llama", "gemma2", "neox"])
def test_a_probe_reads_the_changed_state_at_a_middle_layer(tiny_model, family, seen_at):
    """Changes below the probe's layer, read at every site."""
    adapter = Adapter(tiny_model(family))
    if seen_at not in adapter.sites:
        assert (family, seen_at) == ("neox", "resid_mid")
        return
    rows, donors = random_rows(LENGTHS, 3), random_rows(DONOR_LENGTHS, 4)
    batch = batch_of(state_reader(adapter, seen_at, 1), rows, donors)
    for site in adapter.sites:
        gap = compared(adapter, batch, site=site, layers=(0,), window=1)
        assert gap.p <= SAME_P, site
        assert gap.logit_diff <= SAME_LOG, site
        assert max(gap.effects) > 1e-2, (site, gap.effects)


@pytest.mark.parametrize("seen_at", ORDER)
@pytest.mark.parametrize("site", ORDER)
def test_a_probe_in_a_changed_layer(tiny_model, site, seen_at):
    """A change at the probe's own layer is seen where it comes before the probe; one above it never is."""
    adapter = Adapter(tiny_model("llama"))
    rows, donors = random_rows(LENGTHS, 3), random_rows(DONOR_LENGTHS, 4)
    last = ANCHORS["question"][0][0], *[where[-1:] for where in READS[1:]]
    anchors = ANCHORS | {"probed": (last, ((4, 3, 2), (5,), (6,), (7,)))}
    batch = batch_of(state_reader(adapter, seen_at, 1), rows, donors, anchors)
    options = {"site": site, "layers": (2, 1, 0), "window": 1}
    wanted = Oracle(adapter).run_swaps(batch, **options)
    effects = (wanted[1][-1].log_p - wanted[0].log_p).abs().amax(1).tolist()
    assert effects[0] == 0
    assert (effects[1] > 1e-3) is (ORDER.index(site) <= ORDER.index(seen_at))
    assert effects[2] > 1e-3
    gap = gap_of(Cone(adapter).run_swaps(batch, **options), wanted)
    assert gap.p <= SAME_P
    assert gap.logit_diff <= SAME_LOG


FACTS = [("France", "Paris"), ("Japan", "Tokyo"), ("Kazakhstan", "Astana city"), ("Italy", "Rome")]


@pytest.mark.parametrize("site", ["resid_pre", "resid_post"])
def test_the_oracles_numbers_on_the_real_model(smollm2, site):
    """SmolLM2, four questions with each other as donors: within 0.001 points at the first, a middle and the last layer."""
    adapter, tokenizer = Adapter(smollm2), RowTokenizer(smollm2.tokenizer, QAPrompt())
    rows = [tokenizer.row(capital(*fact)) for fact in FACTS]
    donors = [rows[1], rows[0], rows[3], rows[1]]
    n = [min(len(a.positions["question"]), len(b.positions["question"])) for a, b in zip(rows, donors, strict=True)]
    where = {
        "question": [
            [r.positions["question"][-k:] for r, k in zip(side, n, strict=True)] for side in (rows, donors)
        ],
        "answer_site": [[r.positions["answer_site"] for r in side] for side in (rows, donors)],
    }  # fmt: skip
    reader = AnswerReader(ReadPlan.make(rows, donors, first_only=False), answer_joint)
    batch = batch_of(reader, [r.ids for r in rows], [d.ids for d in donors], where)
    gap = compared(adapter, batch, site=site, layers=(29, 0, 14), window=1)
    assert gap.p <= SAME_P
    assert gap.log_p <= SAME_LOG
    assert min(gap.effects) > 1


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_the_last_stream_is_the_oracles(tiny_model, family):
    adapter = Adapter(tiny_model(family))
    tokens = pad_rows(random_rows(LENGTHS, 3))
    mine, wanted = Cone(adapter).last_stream(tokens), last_stream(adapter, tokens)
    assert float((mine - wanted)[tokens.mask].abs().max()) <= 1e-3
    assert float(wanted[tokens.mask].abs().max()) > 1
    assert torch.equal(mine[~tokens.mask], torch.zeros_like(mine[~tokens.mask]))


def test_a_pass_tells_its_share(tiny_model):
    """Shares of the layers add up to one, and one comes after each layer."""
    adapter, batch = case(tiny_model("llama"))
    shares = []
    Cone(adapter).run_swaps(batch, site="resid_pre", layers=(0, 1), window=1, on_share=shares.append)
    assert len(shares) == adapter.n_layers
    assert sum(shares) == pytest.approx(1)
