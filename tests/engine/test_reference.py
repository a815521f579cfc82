"""The reference engine's invariants, on SmolLM2's real weights and on small random models of every
family.
"""

import pytest
import torch

from anchorlens.engine.hooked_passes import capture, last_stream
from anchorlens.engine.patches import AnchorSwap, SwapBatch, pad_rows, window_layers
from anchorlens.engine.readouts import AnswerReader, ChoiceReader, answer_joint, first_token
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import HookError, InputError
from anchorlens.models.load import adapt, load_model
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowTokenizer, answer_reads
from tests.engine.configurations import adapter_of
from tests.engine.make import batch_of as swaps_of
from tests.engine.make import slots
from tests.models.tiny import FAMILIES
from tests.questions.make import capital
from tests.raised import raises

FACTS = [("France", "Paris"), ("Japan", "Tokyo"), ("Kazakhstan", "Astana city"), ("Italy", "Rome")]


def rows_of(model, facts=FACTS):
    tokenizer = RowTokenizer(model.tokenizer, QAPrompt())
    return [tokenizer.row(capital(*fact)) for fact in facts]


def batch_of(rows, where, streams, readout, anchor="exact_question", rivals=None):
    reads = answer_reads(rows, rivals or [None] * len(rows), first_only=False)
    return SwapBatch(
        pad_rows([r.ids for r in rows]),
        AnswerReader(reads, readout),
        (AnchorSwap(anchor=anchor, control="none", slots=where, streams=streams),),
    )


@pytest.mark.parametrize("name", ["smollm2", *sorted(set(FAMILIES) - {"gemma3_multimodal"})])
def test_swap_with_itself_is_exactly_zero_and_read_logits_are_the_models_own(
    request, tiny_model, name
):
    real = name == "smollm2"
    model = request.getfixturevalue(name) if real else tiny_model(name)
    adapter, rows = adapt(model), rows_of(model)
    sites, anchor, layers = (
        (("resid_mid",), "exact_question", (0, 29))
        if real
        else (adapter.sites, "pre_answer", range(3))
    )
    batch, where = pad_rows([r.ids for r in rows]), slots([r.positions[anchor] for r in rows])
    for site in sites:
        (streams,) = capture(adapter, batch, site, [where])
        swap = batch_of(rows, where, streams, answer_joint, anchor)
        before, (after,) = ReferenceEngine(adapter).run_swaps(
            swap, site=site, layers=layers, window=1
        )
        assert torch.equal(after.p, before.p.expand(len(layers), -1))
        assert torch.equal(after.log_p, before.log_p.expand(len(layers), -1))
    for i, row in enumerate(rows):
        with torch.no_grad():
            log_probs = model(torch.tensor([row.ids]), prepend_bos=False)[0].log_softmax(-1)
        alone = sum(log_probs[p - 1, row.ids[p]] for p in row.positions["answer"])
        assert before.log_p[i] == pytest.approx(float(alone), abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fact", "site", "layer", "everywhere"),
    [
        (("Japan", "Tokyo"), "resid_pre", 0, True),
        (("Kazakhstan", "Astana city"), "resid_post", 29, False),
    ],
)
def test_all_positions_at_layer_0_and_the_last_resid_post_give_the_donors_input(
    smollm2, fact, site, layer, everywhere
):
    adapter = adapt(smollm2)
    base, donor = rows_of(smollm2, [("France", "Paris"), fact])
    assert not everywhere or len(base.ids) == len(donor.ids)
    to, at = (
        slots([range(len(r.ids)) if everywhere else r.positions["pre_answer"]])
        for r in (base, donor)
    )
    (streams,) = capture(adapter, pad_rows([donor.ids]), site, [at])
    swap = batch_of([base], to, streams, first_token, rivals=[donor])
    before, (after,) = ReferenceEngine(adapter).run_swaps(
        swap, site=site, layers=(layer,), window=1
    )
    with torch.no_grad():
        logits = smollm2(torch.tensor([donor.ids]), prepend_bos=False)[
            0, donor.positions["pre_answer"][0]
        ]
    assert after.p[0, 0] == pytest.approx(float(logits.softmax(-1)[base.answer_ids[0]]), abs=1e-6)
    difference = logits[base.answer_ids[0]] - logits[donor.answer_ids[0]]
    assert after.logit_diff[0, 0] == pytest.approx(float(difference), abs=1e-3)
    assert before.p[0] > 2 * after.p[0, 0]


@pytest.mark.slow
def test_a_batch_gives_every_rows_own_numbers(smollm2):
    """Ragged rows, changed at other positions each: alone and together within 1e-5 in P."""
    adapter, rows = adapt(smollm2), rows_of(smollm2, FACTS[:3])
    donors = [rows[1], rows[2], rows[0]]
    where, at = (
        slots([r.positions["subject"][-1:] for r in rows]),
        slots([d.positions["subject"][-1:] for d in donors]),
    )
    (streams,) = capture(adapter, pad_rows([d.ids for d in donors]), "resid_pre", [at])
    options = {"site": "resid_pre", "layers": (3, 20), "window": 1}
    before, (after,) = ReferenceEngine(adapter).run_swaps(
        batch_of(rows, where, streams, answer_joint), **options
    )
    for i, (row, donor) in enumerate(zip(rows, donors, strict=True)):
        one, one_at = (
            slots([row.positions["subject"][-1:]]),
            slots([donor.positions["subject"][-1:]]),
        )
        (stream,) = capture(adapter, pad_rows([donor.ids]), "resid_pre", [one_at])
        own_before, (own,) = ReferenceEngine(adapter).run_swaps(
            batch_of([row], one, stream, answer_joint), **options
        )
        assert float((own.p[:, 0] - after.p[:, i]).abs().max()) < 1e-5
        assert float((own_before.p[0] - before.p[i]).abs()) < 1e-5


def test_a_window_changes_all_its_layers(tiny_model):
    """mlp_out of all layers in one window equals replacing each of them by hand."""
    model = tiny_model("llama")
    adapter = adapt(model)
    base, donor = rows_of(model, [("France", "Paris"), ("Japan", "Tokyo")])
    where, at = slots([base.positions["pre_answer"]]), slots([donor.positions["pre_answer"]])
    (streams,) = capture(adapter, pad_rows([donor.ids]), "mlp_out", [at])
    _, (after,) = ReferenceEngine(adapter).run_swaps(
        batch_of([base], where, streams, first_token), site="mlp_out", layers=(1,), window=3
    )
    _, cache = model.run_with_cache(torch.tensor([donor.ids]), prepend_bos=False)

    def put(value, hook):
        value[0, base.positions["pre_answer"][0]] = cache[hook.name][
            0, donor.positions["pre_answer"][0]
        ]
        return value

    logits = model.run_with_hooks(
        torch.tensor([base.ids]),
        prepend_bos=False,
        fwd_hooks=[(f"blocks.{i}.hook_mlp_out", put) for i in range(3)],
    )
    wanted = logits[0, base.positions["pre_answer"][0]].softmax(-1)[base.answer_ids[0]]
    assert after.p[0, 0] == pytest.approx(float(wanted), abs=1e-6)


def test_one_cell_a_row_of_rows_that_differ_in_their_padding():
    """A row and the same row with one more token, of the id with which rows are padded: three
    tokens are read, then four.
    """
    adapter = adapter_of("gpt2")
    row, donor = [5, 6, 7], [8, 9, 4]
    for rows in ([row, [*row, 0]], [[*row, 0], row]):
        reader = ChoiceReader(torch.tensor([len(r) - 1 for r in rows]), (1, 2), (3,))
        at = ((0,), (0,))
        batch = swaps_of(reader, rows, [donor, donor], {"first": (at, at)})
        wanted, (changed,) = ReferenceEngine(adapter).run_swaps(
            batch, site="resid_pre", layers=(0, 1), window=1
        )
        before, after = ReferenceEngine(adapter).run_cells(
            batch, site="resid_pre", layers=(0, 1), window=1
        )
        assert abs(wanted.logit_diff[0] - wanted.logit_diff[1]) > 0.1
        assert torch.allclose(before.logit_diff, wanted.logit_diff, atol=1e-4)
        assert torch.allclose(after.logit_diff, changed.logit_diff.diagonal(), atol=1e-4)


def test_windows_are_centred_and_clipped():
    assert [[*window_layers(layer, 3, 5)] for layer in range(5)] == [
        [0, 1],
        [0, 1, 2],
        [1, 2, 3],
        [2, 3, 4],
        [3, 4],
    ]
    assert [[*window_layers(layer, 4, 5)] for layer in range(5)] == [
        [0, 1, 2],
        [0, 1, 2, 3],
        [1, 2, 3, 4],
        [2, 3, 4],
        [3, 4],
    ]
    assert [*window_layers(2, 1, 5)] == [2]


def test_parallel_blocks_have_no_resid_mid_and_say_so(tiny_model):
    with raises(InputError, "site", word="resid_mid"):
        adapt(tiny_model("neox")).hook_name("resid_mid", 0)
    with raises(InputError, "site", word="'resid_pre'"):
        adapt(tiny_model("llama")).hook_name("resid_pred", 0)
    with raises(InputError, "site", word="blocks.0.nothing"):
        adapt(tiny_model("llama")).hook_name(lambda layer: f"blocks.{layer}.nothing", 0)


def test_a_hook_that_does_not_fire_is_an_error(tiny_model):
    """The final norm's hook lies behind the last block, so it never fires here."""
    adapter = adapt(tiny_model("llama"))
    with pytest.raises(HookError, match="ln_final.hook_scale fired 0 times"):
        last_stream(
            adapter, pad_rows([[5, 6, 7]]), [("ln_final.hook_scale", lambda value, hook: value)]
        )


def test_bfloat16_reads_p_in_float32(tiny):
    model = load_model(str(tiny("llama")), device="cpu", dtype="bfloat16")
    adapter, rows = adapt(model), rows_of(model)
    stream = last_stream(adapter, pad_rows([r.ids for r in rows]))
    assert stream.dtype == torch.bfloat16
    assert adapter.read.logits(stream[:, -1]).dtype == torch.float32
