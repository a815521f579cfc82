"""Sweeps of streamed models: the same samples as in memory, in as few passes as memory allows, and
a plan that says so.
"""

import json

import numpy as np
import pytest

import anchorlens as al
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.generate import greedy
from anchorlens.errors import InputError
from anchorlens.measure.budget import MemoryBudget
from anchorlens.models.adapter import stream_of
from anchorlens.models.load import adapt
from tests.models.tiny import llama, random_model, save_model
from tests.questions.make import capitals
from tests.raised import raises
from tests.running.small_sweeps import sweep
from tests.tiers import choose_cases

pytestmark = pytest.mark.filterwarnings("ignore:Few rows")
FAMILIES = ["llama", "qwen3", "gemma3", "gpt2", "neox", "phi"]
VALUES = ["value_before", "value_after", "logp_before", "logp_after"]
KNOCKOUT = {
    "progress": False,
    "n_splits": 1,
    "n_resamples": 50,
    "batch_size": 40,
    "placebos": False,
}


@pytest.fixture(scope="module")
def streamed(tiny):
    return lambda family: al.load_model(tiny(family), device="cpu", stream=True, progress=False)


def same(one, two):
    """Equal to the bit."""
    a, b = one.samples(), two.samples()
    assert len(a) == len(b) > 0
    np.testing.assert_array_equal(a[VALUES].to_numpy(), b[VALUES].to_numpy())
    assert a["value_after"].nunique() > 3  # something is measured
    assert one.record["model"]["weights_sha256"] == two.record["model"]["weights_sha256"]
    assert one.run_id == two.run_id


@pytest.mark.slow
@pytest.mark.parametrize("family", choose_cases(["llama", "gemma3"], FAMILIES, slow=["gpt2"]))
def test_swaps_in_the_same_batches_are_the_same_numbers(tiny_model, streamed, family):
    whole, layers = sweep(tiny_model(family), batch_size=4), sweep(streamed(family), batch_size=4)
    same(whole, layers)
    assert layers.record["plan"]["engine"] == "cone"
    assert layers.noise_floor == whole.noise_floor


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_knockouts_in_the_same_batches_are_the_same_numbers(tiny_model, streamed, family):
    data = al.load_qa("popqa-sample", limit=45)
    whole, layers = (
        al.knockout_sweep(model, data, **KNOCKOUT)
        for model in (tiny_model(family), streamed(family))
    )
    same(whole, layers)
    for k, probe in whole.probes.splits[0].probes.items():
        np.testing.assert_array_equal(probe.coef_, layers.probes.splits[0].probes[k].coef_)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"engine": "reference"},
        {"donors": "mean"},
        {"readout": "p_true"},
        {"site": "mlp_out", "window": 2, "readout": "answer_joint"},
        {"prompt": "fewshot(2)"},
    ],
    ids=str,
)
def test_every_way_of_measuring(tiny_model, streamed, options):
    how = {"batch_size": 6, "n_spot_checks": 2, "layers": [1], "n_donors": 1} | options
    same(*(sweep(model, **how) for model in (tiny_model("llama"), streamed("llama"))))


def test_generated_answers(tiny_model, streamed):
    prompts = [list(range(30 + i, 40 + 2 * i)) for i in range(5)]
    whole, layers = (
        greedy(adapt(model), prompts, max_new_tokens=6, stop=lambda _: False)
        for model in (tiny_model("qwen3"), streamed("qwen3"))
    )
    assert whole == layers


@pytest.mark.slow
def test_a_hook_of_the_users_own_is_heard(streamed):
    model = streamed("llama")
    model.add_perma_hook("blocks.1.hook_mlp_out", lambda value, hook: 0 * value)
    with pytest.warns(UserWarning, match=r"a hook is attached to blocks.1.hook_mlp_out"):
        assert sweep(model, batch_size=4).record["plan"]["engine"] == "reference"


@pytest.mark.slow
def test_all_rows_go_up_the_layers_together(tmp_path, layers_read, monkeypatch):
    import anchorlens.engine.cone as cone

    monkeypatch.setitem(cone._MOST_TOKENS, "cpu", 64)
    directory = save_model(random_model(llama(num_hidden_layers=5)), tmp_path / "llama")
    whole = sweep(al.load_model(directory, device="cpu"))
    model = al.load_model(directory, device="cpu", stream=True)
    plans = []
    layers_read.clear()
    layers = sweep(model, on_plan=plans.append)
    assert len(whole.record["plan"]["batches"]) > 4
    assert (
        len(layers.record["plan"]["batches"]) == 2
    )  # those that measure a null, and those that do not
    one, two = (result.samples()["effect"].to_numpy() for result in (whole, layers))
    np.testing.assert_allclose(one, two, atol=1e-4)
    # The plan's passes, and the trial's two.
    trial = 2
    assert layers_read.count(3) - trial <= plans[0].weight_reads <= layers_read.count(3) - trial + 2
    assert plans[0].weight_bytes == plans[0].weight_reads * stream_of(model).sizes.read_bytes
    blocks = sum(p.numel() * 4 for p in model.blocks.parameters())
    assert stream_of(model).sizes.read_bytes == blocks
    assert f"weights read {plans[0].weight_reads} times" in str(plans[0])
    assert layers.record["plan"]["weight_reads"] == plans[0].weight_reads
    assert "weight_reads" not in whole.record["plan"]


@pytest.mark.slow
def test_memory_is_planned_with_two_layers(tiny_model, streamed):
    plans = []
    sweep(tiny_model("llama"), batch_size=4, on_plan=plans.append)
    sweep(streamed("llama"), batch_size=4, on_plan=plans.append)
    layer = sum(p.numel() * 4 for p in streamed("llama").blocks[0].parameters())
    matrix = 4 * 48 * 80  # of the MLP, which TransformerLens transposes
    resident = stream_of(streamed("llama")).resident_bytes
    assert plans[1].peak_bytes - plans[0].peak_bytes == 2 * layer + matrix + resident
    # What is asked for is kept, with the layers in it.
    limit = plans[1].peak_bytes - 1
    sweep(streamed("llama"), max_memory=limit, on_plan=plans.append)
    assert plans[2].peak_bytes <= limit
    with raises(InputError, "max_memory"):
        sweep(streamed("llama"), max_memory=10**7)


@pytest.mark.parametrize("budget", [2 * 10**6, 3 * 10**6, 10**7, 5 * 10**8])
def test_the_most_rows_that_fit_are_found_in_few_steps(streamed, budget):
    engine = ConeEngine(adapt(streamed("llama")))
    held = engine.adapter.shape.peak_weight_bytes
    room = MemoryBudget(engine, budget + 24 * 2**20 + held, None, 0)
    rows = room.rows(20)
    assert rows == 1 or sum(room.terms_of(rows, 20).values()) <= room.budget
    assert sum(room.terms_of(rows + 1, 20).values()) > room.budget


def test_a_shell_and_a_study_stream_too(tiny, tmp_path, capsys):
    from anchorlens.cli.entry import main

    data = tmp_path / "capitals.jsonl"
    rows = [{"question": e.question, "answers": list(e.answers)} for e in capitals().examples]
    data.write_text("\n".join(json.dumps(row) for row in rows))
    study = tmp_path / "study.toml"
    study.write_text(
        f'models = ["{tiny("llama")}"]\nstream = true\ndevice = "cpu"\n'
        '[[data]]\nname = "capitals.jsonl"\n[[protocol]]\nname = "swap"\n'
    )
    assert al.Study.from_toml(study).stream
    args = [
        "swap",
        "--model",
        str(tiny("llama")),
        "--stream",
        "--device",
        "cpu",
        "--dataset",
        str(data),
        "--dry-run",
        "-q",
    ]
    for command in (args, ["run", str(study), "--dry-run"]):
        with pytest.raises(SystemExit) as ended:
            main(command)
        told = capsys.readouterr()
        assert not ended.value.code, told.err
        assert "weights read" in told.out
    with raises(InputError, "stream"):
        al.run_study(al.Study(["a/b/c.gguf"], [capitals()], [al.Swap()], stream=True))
