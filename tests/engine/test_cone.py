"""The cone engine gives the oracle's numbers: every family, site, window, reader and kind of swap."""

import copy

import pytest
import torch

from anchorlens.engine.cone import Cone
from anchorlens.engine.interventions import AnchorSwap, SwapBatch
from anchorlens.engine.readouts import AnswerReader, ChoiceReader, ReadPlan, StateReader, answer_joint, first_token
from anchorlens.engine.reference import Oracle, last_stream
from anchorlens.models.adapter import Adapter
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowTokenizer, pad_rows
from tests.engine.make import (
    ANCHORS,
    DONOR_LENGTHS,
    EFFECT,
    LENGTHS,
    READS,
    SAME_LOG,
    SAME_P,
    Own,
    answer_reader,
    batch_of,
    case,
    compared,
    gap_of,
    given_swaps,
    random_rows,
    slots,  # noqa: F401 - tests.models imports it from here
)
from tests.models.tiny import FAMILIES, WINDOW
from tests.questions.make import capital

TEXT_FAMILIES = sorted(set(FAMILIES) - {"gemma3_multimodal"})
# Every family in the fast tier; what is a variant of one (untied, by layer, sequential, ...) in the slow one.
VARIANTS = ("llama_untied", "qwen2_yarn", "gpt2_by_layer", "neox_sequential", "qwen3_sliding")
EACH = [pytest.param(f, marks=pytest.mark.slow) if f in VARIANTS else f for f in TEXT_FAMILIES]
# What tests.engine.fuzz has on every kind of configuration needs few families in the fast tier.
SLOW = [pytest.param(f, marks=pytest.mark.slow) for f in ("qwen3_sliding", "gemma3", "neox")]
ONE = ["llama", pytest.param("gpt2", marks=pytest.mark.slow), *SLOW]
TWO = ["llama", "gpt2", *SLOW]


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


@pytest.mark.parametrize("family", TWO)
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


@pytest.mark.parametrize("family", ONE)
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


@pytest.mark.parametrize("family", ONE)
def test_first_token_reads_one_position(tiny_model, family):
    adapter = Adapter(tiny_model(family))
    rows, donors = random_rows(LENGTHS, 3), random_rows(DONOR_LENGTHS, 4)
    reader = answer_reader(adapter, rows, [where[:1] for where in READS], first_token)
    gap = compared(adapter, batch_of(reader, rows, donors), site="resid_pre", layers=(2, 0), window=1)
    assert gap.p <= SAME_P
    assert gap.log_p <= SAME_LOG
    assert gap.logit_diff <= SAME_LOG
    assert min(gap.effects[:2]) > EFFECT


@pytest.mark.parametrize("family", ONE)
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
@pytest.mark.parametrize("family", ["llama", *(pytest.param(f, marks=pytest.mark.slow) for f in ("gemma2", "neox"))])
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
    """Shares of the layers add up to one, and one comes after each layer; within a layer it tells that it goes on."""
    adapter, batch = case(tiny_model("llama"))
    shares = []
    Cone(adapter).run_swaps(batch, site="resid_pre", layers=(0, 1), window=1, on_share=shares.append)
    assert len([share for share in shares if share]) == adapter.n_layers < len(shares)
    assert sum(shares) == pytest.approx(1)
