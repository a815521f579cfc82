"""What the scripts beside ``compare.py`` count and time."""

from types import SimpleNamespace

import pytest
import torch

import anchorlens as al
from anchorlens.models.load import adapt
from anchorlens.progress import Progress
from anchorlens.running import runner as driver


@pytest.mark.slow
def test_phases_of_a_sweep_are_told_apart(script, tiny_model):
    cost, jobs = script("cost"), script("peers.jobs")
    model = tiny_model("llama")
    data, _ = jobs.some_questions(model, al.load_qa("popqa-sample"), 3, n_donors=1)
    enter, choose = Progress.enter, driver.choose_engine
    spent, total = cost._spent(model, data, {"n_donors": 1})
    assert set(spent) == {"trial", "", "checks"}
    assert all(seconds > 0 for seconds in spent.values())
    assert sum(spent.values()) < total
    assert (Progress.enter, driver.choose_engine) == (enter, choose)


@pytest.mark.slow
def test_a_sweep_without_a_phase_of_checks_is_refused(script, tiny_model):
    """What is spent on checks would be taken for measuring."""
    cost, jobs = script("cost"), script("peers.jobs")
    model = tiny_model("llama")
    data, _ = jobs.some_questions(model, al.load_qa("popqa-sample"), 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "enter", lambda self, phase: None)
        patch.setattr(
            cost, "Progress", type("Another", (), {"__init__": None, "enter": None, "close": None})
        )
        with pytest.raises(SystemExit, match="names other phases: 'trial'"):
            cost._spent(model, data, {})


@pytest.mark.slow
def test_as_many_questions_as_asked_for_with_shots_of_their_own(script, tiny_model):
    jobs, model, data = script("peers.jobs"), tiny_model("llama"), al.load_qa("popqa-sample")
    some, plan = jobs.some_questions(model, data, 5, prompt="fewshot(2)", n_donors=1)
    assert plan.questions == len(some.examples) == 5
    assert some.pool == data.pool
    assert len({example.relation for example in some.examples}) > 1
    with pytest.raises(SystemExit, match=r"can be measured, 500 are needed"):
        jobs.some_questions(model, data, 500)


def test_forwards_are_padded_together(script):
    packed = script("scaling").packed
    rows = [(1,) * n for n in (5, 3, 4, 9, 2)]
    batches = packed(rows, most=12)
    assert [[len(row) for row in batch] for batch in batches] == [[2, 3, 4], [5], [9]]
    assert packed(rows, most=1) == [[list(row)] for row in sorted(rows, key=len)]


def test_rate_is_of_the_products_of_a_block(script, tiny_model, monkeypatch):
    bound, shape = script("bound"), adapt(tiny_model("llama")).shape
    products: list[float] = []

    def counted(work):
        products.append(
            2.0 * bound._TOKENS * work.__defaults__[0].shape[1] * work.__defaults__[1].shape[1]
        )
        return 1.0

    monkeypatch.setattr(bound, "_cpu_seconds", counted)
    rate = bound.product_rate(shape)
    flops = products[:: bound._REPEATS]
    assert sum(flops) == bound._TOKENS * shape.block_flops
    assert rate == pytest.approx(sum(flops) / len(flops))


def test_script_for_gpus_measures_here_too(script, tiny_model):
    parts, model = script("gpu_parts"), tiny_model("llama")
    config = SimpleNamespace(vocab_size=400, num_hidden_layers=3)
    job = parts.random_job(config, 7, ("exact_question", "pre_answer"), 2)
    assert all(
        row["target"] == row["source"] and len(row["ids"]) == len(row["donor_ids"])
        for row in job["rows"]
    )
    setting = parts.Setting(
        device=torch.device("cpu"), is_small=True, config=config, model=model, rate=1e9
    )
    rows = parts.measure_engine(setting)
    assert [row["prompt"] for row in rows] == ["zero-shot"] * (len(rows) - 1) + ["5-shot"]
    assert all(row["s"] > 0 and row["rate"] > 0 and row["careful ×"] > 0 for row in rows)
