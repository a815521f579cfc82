"""The cone engine equals the reference engine: families x sites x windows x readers x kinds of
intervention.
"""

import copy

import pytest
import torch

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.hooked_passes import last_stream
from anchorlens.engine.patches import SwapBatch, check_windows, pad_rows
from anchorlens.engine.readouts import (
    AnswerReader,
    ChoiceReader,
    StateReader,
    answer_joint,
    first_token,
)
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import InputError
from anchorlens.models.load import adapt
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowTokenizer, answer_reads
from tests.engine.make import (
    ANCHORS,
    DONOR_LENGTHS,
    LENGTHS,
    READS,
    Own,
    answer_reader,
    batch_of,
    case,
    cut_batch_of,
    effects_of,
    given_swaps,
    random_rows,
    states_off,
    swaps_off,
)
from tests.models.tiny import FAMILIES, WINDOW
from tests.questions.make import capital
from tests.raised import raises
from tests.tiers import choose_cases

TEXT_FAMILIES = sorted(set(FAMILIES) - {"gemma3_multimodal"})
# Variants of another family (untied, by layer, sequential, ...) run in the slow tier.
VARIANTS = {"llama_untied", "qwen2_yarn", "gpt2_by_layer", "neox_sequential", "qwen3_sliding"}
EACH = choose_cases([name for name in TEXT_FAMILIES if name not in VARIANTS], TEXT_FAMILIES)
F32 = torch.float32
# Sites in the order of a block: a change at one is seen in the same layer at itself and those that
# follow.
ORDER = ["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"]
# Layers in any order, and the window around each.
WAYS = [((2, 0), 1), ((1, 2), 3), ((0, 2, 1), 2), ((1, 0), 1), ((2, 1), 3)]


def compare(adapter, batch, **way):
    """Assert that both engines give the same metrics; return each swap's largest effect."""
    wanted = ReferenceEngine(adapter).run_swaps(batch, **way)
    assert (
        swaps_off(ConeEngine(adapter).run_swaps(batch, **way), wanted, adapter.shape.dtype) <= 1
    ), way
    return effects_of(wanted)


def state_reader(adapter, site, layer):
    weight = (
        torch.randn(adapter.d_model, generator=torch.Generator().manual_seed(5)) / adapter.d_model
    )
    return StateReader(
        layer, site, torch.tensor([where[-1] for where in READS]), lambda states: states @ weight
    )


def readers(adapter, rows):
    """One of every kind."""
    last = torch.tensor([where[-1] for where in READS])
    return [
        answer_reader(adapter, rows),
        answer_reader(adapter, rows, [where[:1] for where in READS], first_token),
        ChoiceReader(last, yes=(5, 77, 200), no=(6, 300)),
        state_reader(adapter, "resid_post", 2),
    ]


@pytest.mark.sampled(5)
@pytest.mark.slow
@pytest.mark.parametrize("family", EACH)
def test_swaps_at_every_site(tiny_model, family):
    """Five swaps from donors and given streams in one batch; ragged rows that are longer than the
    sliding window.

    One reader a site, all of them for one family; the fuzzer draws the other pairs.
    """
    adapter = adapt(tiny_model(family))
    assert min(LENGTHS) > WINDOW
    rows, donors = random_rows(LENGTHS, 1), random_rows(DONOR_LENGTHS, 2)
    given, every = given_swaps(adapter), readers(adapter, rows)
    for i, (site, (layers, window)) in enumerate(zip(adapter.sites, WAYS, strict=False)):
        for reader in every if family == "llama" else [every[i % len(every)]]:
            batch = batch_of(reader, rows, donors)
            mixed = SwapBatch(batch.tokens, batch.reader, (*given[:2], *batch.swaps), batch.donors)
            contrasts = compare(adapter, mixed, site=site, layers=layers, window=window)
            assert min(contrasts[:4]) > 1e-3, (site, contrasts)
            assert max(contrasts) > 0.05, (site, contrasts)
            assert contrasts[-1] == 0  # the swap without positions


@pytest.mark.parametrize("site", ORDER)
def test_a_probe_sees_changes_below_it_and_at_earlier_sites_of_its_layer(tiny_model, site):
    adapter, way = adapt(tiny_model("llama")), {"site": site, "layers": (2, 1, 0), "window": 1}
    rows, donors = random_rows(LENGTHS, 3), random_rows(DONOR_LENGTHS, 4)
    last = ANCHORS["exact_question"][0][0], *[where[-1:] for where in READS[1:]]
    for probed in ORDER:
        reader = state_reader(adapter, probed, 1)
        batch = batch_of(reader, rows, donors, {"probed": (last, ((4, 3, 2), (5,), (6,), (7,)))})
        before, (after,) = wanted = ReferenceEngine(adapter).run_swaps(batch, **way)
        assert swaps_off(ConeEngine(adapter).run_swaps(batch, **way), wanted, F32) <= 1
        above, own, below = (after.log_p - before.log_p).abs().amax(1).tolist()
        assert above == 0
        assert (own > 1e-3) is (ORDER.index(site) <= ORDER.index(probed))
        assert below > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("family", choose_cases(["llama"], ["llama", "gpt2", "gemma3", "neox"]))
def test_modules_of_the_users_own_run_as_they_are(tiny_model, family):
    """Norms and MLPs that are no module of TransformerLens's."""
    model = copy.deepcopy(tiny_model(family))
    for block in model.blocks:
        block.mlp = Own(block.mlp, 1.1)
        for name in ("ln1", "ln2", "ln1_post", "ln2_post"):
            if hasattr(block, name):
                setattr(block, name, Own(getattr(block, name), 0.9))
    adapter, batch = case(model)
    for site in adapter.sites:
        assert min(compare(adapter, batch, site=site, layers=(0, 2), window=1)[:-1]) > 1e-3


FACTS = [("France", "Paris"), ("Japan", "Tokyo"), ("Kazakhstan", "Astana city"), ("Italy", "Rome")]


@pytest.mark.slow
def test_swaps_on_the_real_model(smollm2):
    """SmolLM2, four questions with each other as donors: P within 0.001 points at the first, a
    middle and the last layer.
    """
    adapter, tokenizer = adapt(smollm2), RowTokenizer(smollm2.tokenizer, QAPrompt())
    rows = [tokenizer.row(capital(*fact)) for fact in FACTS]
    donors = [rows[1], rows[0], rows[3], rows[1]]
    n = [
        min(len(a.positions["exact_question"]), len(b.positions["exact_question"]))
        for a, b in zip(rows, donors, strict=True)
    ]
    where = {
        "exact_question": [
            [r.positions["exact_question"][-k:] for r, k in zip(side, n, strict=True)]
            for side in (rows, donors)
        ],
        "pre_answer": [[r.positions["pre_answer"] for r in side] for side in (rows, donors)],
    }
    reader = AnswerReader(answer_reads(rows, donors, first_only=False), answer_joint)
    batch = batch_of(reader, [r.ids for r in rows], [d.ids for d in donors], where)
    way = {"site": "resid_pre", "layers": (29, 0, 14), "window": 1}
    found, wanted = (
        engine.run_swaps(batch, **way) for engine in (ConeEngine(adapter), ReferenceEngine(adapter))
    )
    assert (
        swaps_off(found, wanted, F32) <= 5
    )  # streams of SmolLM2 are large: logarithms within 1e-3
    assert (
        max(float((a.p - b.p).abs().max()) for a, b in zip(found[1], wanted[1], strict=True))
        <= 1e-5
    )
    assert min(effects_of(wanted)) > 1


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_the_last_stream(tiny_model, family):
    adapter, tokens = adapt(tiny_model(family)), pad_rows(random_rows(LENGTHS, 3))
    found, wanted = ConeEngine(adapter).last_stream(tokens), last_stream(adapter, tokens)
    assert float((found - wanted)[tokens.mask].abs().max()) <= 1e-3
    assert float(wanted[tokens.mask].abs().max()) > 1
    assert torch.equal(found[~tokens.mask], torch.zeros_like(found[~tokens.mask]))


def test_a_pass_reports_its_progress(tiny_model):
    """Shares of the layers add up to one, one after each layer; within a layer the share is 0."""
    adapter, batch = case(tiny_model("llama"))
    shares = []
    ConeEngine(adapter).run_swaps(
        batch, site="resid_pre", layers=(0, 1), window=1, on_progress=shares.append
    )
    assert len([share for share in shares if share]) == adapter.n_layers < len(shares)
    assert sum(shares) == pytest.approx(1)


# --- attention knockouts
# ---------------------------------------------------------------------------------------------------------

LATER = (None,) * 4
# Windows: all from one layer (as cumulative curves have them), one of all layers beside short ones,
# gaps, empty ones.
CUTS = [
    {"windows": [range(0), range(1), range(2), range(3)]},
    {"windows": [range(3), range(1), range(1, 2), range(2, 3)], "mode": "zero"},
    {"windows": [range(3), range(2), range(3), range(1, 3)], "heads": (0, 3)},
    {"windows": [range(2), range(2, 3), range(0)], "where": ("attn_out", 1)},
    {
        "windows": [range(1, 2), range(0)],
        "where": ("resid_post", 1),
        "targets": ((10, 12), (8,), (16, 17), (11,)),
    },
    {
        "windows": [range(2, 3), range(1), range(3)],
        "begin": range(40, 75),
        "mode": "zero",
        "heads": (1, 2),
    },
]


@pytest.mark.parametrize("family", EACH)
def test_cuts_in_windows_of_layers(tiny_model, family):
    adapter = adapt(tiny_model(family))
    for cut in CUTS:
        make = {name: value for name, value in cut.items() if name not in ("windows", "where")}
        batch, way = cut_batch_of(**make), {"where": cut.get("where"), "windows": cut["windows"]}
        wanted = ReferenceEngine(adapter).knockout_states(batch, **way)
        assert states_off(ConeEngine(adapter).knockout_states(batch, **way), wanted, F32) <= 1, cut
        assert (wanted[0] - wanted[2]).abs().max() > 0.01  # the last variant cuts nothing
        assert torch.equal(wanted[2], wanted[2, :1].expand_as(wanted[2]))
        if "where" in cut:  # what is cut above the layer that is read is not seen there
            unseen = [not window or window[0] > cut["where"][1] for window in cut["windows"]]
            assert [torch.equal(wanted[0, i], wanted[2, i]) for i in range(len(unseen))] == unseen


@pytest.mark.parametrize("family", EACH)
def test_cuts_read_at_all_layers(tiny_model, family):
    adapter = adapt(tiny_model(family))
    cuts = (
        ("resid_post", "mask", range(3), None),
        ("mlp_out", "zero", range(1, 3), (1, 2)),
        ("attn_out", "mask", range(2, 3), (0,)),
    )
    for site, mode, layers, heads in cuts:
        batch, way = cut_batch_of(mode=mode, heads=heads), {"site": site, "layers": layers}
        wanted = ReferenceEngine(adapter).knockout_states_all_layers(batch, **way)
        assert (
            states_off(ConeEngine(adapter).knockout_states_all_layers(batch, **way), wanted, F32)
            <= 1
        ), site
        moved = (wanted[1] - wanted[0]).abs().amax((1, 2))
        first = layers[0] + (adapter.model.cfg.parallel_attn_mlp and site == "mlp_out")
        assert [bool(m > 0) for m in moved] == [layer >= first for layer in range(3)], site


@pytest.mark.parametrize("kind", [ConeEngine, ReferenceEngine])
def test_windows_with_gaps_are_refused(tiny_model, kind):
    engine, batch = kind(adapt(tiny_model("gpt2"))), cut_batch_of()
    for run, options in (
        (engine.knockout_states, {"where": None, "windows": [range(1), range(0, 3, 2)]}),
        (engine.knockout_states_all_layers, {"site": "resid_post", "layers": range(0, 3, 2)}),
    ):
        with raises(InputError, "layers"):
            run(batch, **options)
    with raises(InputError, "layers"):
        check_windows([range(2), [0, 2]])
