"""The benchmark's cells are those of a default sweep, every engine gives the same P for them, and
what is written says it.
"""

import json
import sys

import numpy as np
import pytest

import anchorlens as al

ENGINES = ("sweep", "cone", "oracle", "careful", "batched", "transformer_lens", "hf")


@pytest.fixture(scope="module")
def jobs(script, tiny_model, tmp_path_factory):
    """Case name -> job: nulls of one of two donors only, and shots before the question."""
    module = script("peers.jobs")
    cases = [module.Case("qa", "both", 3, donors=2), module.Case("fewshot(2)", "exact_question", 2)]
    files = module.write_jobs(tiny_model("llama"), cases, tmp_path_factory.mktemp("jobs"))
    return {name: json.loads(file.read_text()) for name, file in files.items()}


@pytest.fixture(scope="module")
def answers(script, jobs, tiny):
    """Case name -> engine -> what its worker gives, in this process."""
    found = {name: {} for name in jobs}
    for engine in ENGINES:
        worker = script(f"worker_{engine}")
        model = worker.load(tiny("llama"))
        for name, job in jobs.items():
            sweep = worker.run(model, job)
            found[name][engine] = {"p_before": sweep.p_before, "p": sweep.p}
    return found


@pytest.mark.slow
def test_cells_are_those_of_a_default_sweep(script, jobs, tiny_model):
    job = jobs["qa/both/3/2"]
    data = script("ours")._questions("popqa-sample", 0, tuple(job["sweep"]["examples"]))
    samples = al.swap_sweep(
        tiny_model("llama"), data, n_donors=2, null="displaced", progress=False
    ).samples()
    cells = {
        (
            row["example"],
            row["donor"],
            place.removesuffix(":null"),
            "null" if place.endswith(":null") else "none",
        )
        for row in job["rows"]
        for place in row["target"]
    }
    there = samples[samples["value_after"].notna()]
    assert cells == set(
        there[["example_id", "donor_id", "anchor", "control"]].itertuples(index=False, name=None)
    )
    assert script("peers.jobs").cells_of(job) == len(there)
    assert samples["question_id"].nunique() == 3
    nulls = [
        sum(place in row["target"] for row in job["rows"])
        for place in job["places"]
        if place.endswith(":null")
    ]
    assert len(job["rows"]) > 3 and nulls == [3, 3]  # one donor of each question


def logs(job, answer):
    """log P of every cell less that before the change, place after place."""
    found = []
    for place in job["places"]:
        before = [
            p
            for row, p in zip(job["rows"], answer["p_before"], strict=True)
            if place in row["target"]
        ]
        found += [np.log(layer) - np.log(before) for layer in answer["p"][place]]
    return np.concatenate(found)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", ["qa/both/3/2", "fewshot(2)/exact_question/2/1"])
def test_every_engine_gives_the_same_p(jobs, answers, case, engine):
    """As logarithms: P of a small random model is small."""
    right = logs(jobs[case], answers[case]["transformer_lens"])
    assert np.quantile(np.abs(right), 0.75) > 0.05  # so that a wrong change would be seen
    assert np.abs(logs(jobs[case], answers[case][engine]) - right).max() < 2e-3


def in_process(script):
    """Workers as functions of this process, with the same clock."""

    class InProcess:
        def __init__(self, engine, _, directory):
            self.versions = {"torch": engine}
            self.worker = script(f"worker_{engine}")
            self.model = self.worker.load(directory)

        def measure(self, file):
            job = json.loads(file.read_text())
            return script("protocol")._measure(lambda: self.worker.run(self.model, job), 0)

        def close(self):
            self.model = None

    return InProcess


def driven(script, monkeypatch, worker, *arguments):
    compare = script("compare")
    monkeypatch.setattr(compare, "Worker", worker)
    monkeypatch.setattr(
        script("protocol"), "_hand_back_memory", lambda: None
    )  # takes its time in a process as large as this
    monkeypatch.setattr(
        sys, "argv", ["compare.py", "--quick", "--cases", "qa/*", *map(str, arguments)]
    )
    compare.main()


@pytest.mark.slow
def test_driver_writes_what_was_measured(script, tiny, tmp_path, monkeypatch, capsys):
    """`make bench-quick` on a small model."""
    out, text = tmp_path / "runs" / "bench.json", tmp_path / "benchmarks.md"
    text.write_text(
        "# Benchmarks\n\nWords.\n\n## The same cells with other libraries\n\nold\n\n##"
        " Another\n\nstays\n"
    )
    files = ("--out", out, "--markdown", text, "--model", tiny("llama"))
    driven(script, monkeypatch, in_process(script), "--rounds", 3, *files)
    record = json.loads(out.read_text())
    assert tuple(line["engine"] for line in record["lines"]) == script("peers.client").MAIN
    sweep = record["lines"][0]
    for line in record["lines"]:
        assert (line["case"], line["cells"], line["failed"]) == (
            "qa/exact_question/4/1",
            3 * 4 * 2,
            "",
        )
        assert len(line["cpu_seconds"]) == len(line["seconds"]) == 3
        ratios = sorted(
            a / b for a, b in zip(line["cpu_seconds"], sweep["cpu_seconds"], strict=True)
        )
        assert line["ratio"] == ratios[1] > 0
        assert line["difference"] < 0.001
    written = text.read_text()
    start = (
        "# Benchmarks\n\nWords.\n\n## The same cells with other libraries\n\n`python"
        " benchmarks/compare.py --quick"
    )
    assert written.startswith(start)
    assert written.endswith("\n\n## Another\n\nstays\n")
    assert "old" not in written
    assert "### qa, exact_question, 4 questions, 1 donor each: 24 cells" in written
    shown = capsys.readouterr().out
    assert (
        "anchorlens swap_sweep" in shown
        and "generic_activation_patch" in shown
        and "What is timed" in shown
    )


@pytest.mark.slow
def test_a_worker_is_a_process_that_answers_jobs_or_dies_with_its_reason(
    script, jobs, answers, tiny, tmp_path
):
    client = script("peers.client")
    name = "fewshot(2)/exact_question/2/1"
    file, wrong = tmp_path / "job.json", tmp_path / "wrong.json"
    file.write_text(json.dumps(jobs[name]))
    wrong.write_text(json.dumps(jobs[name] | {"layers": [99]}))
    worker = client.Worker("hf", client.environment_of("hf"), tiny("llama"))
    answer = worker.measure(file)
    assert np.allclose(logs(jobs[name], answer), logs(jobs[name], answers[name]["hf"]), atol=1e-4)
    assert answer["cpu_seconds"] > 0 and answer["seconds"] > 0
    assert set(worker.versions) == {"torch", "transformers"}
    with pytest.raises(client.WorkerError, match="IndexError"):
        worker.measure(wrong)
    worker.close()


@pytest.mark.slow
def test_driver_ends_where_engines_differ(script, tiny, tmp_path, monkeypatch):
    right = in_process(script)

    class Wrong(right):
        """One cell of the careful peer is wrong."""

        def measure(self, file):
            answer = super().measure(file)
            if self.versions["torch"] == "careful":
                answer["p"]["exact_question"][1][0] += 0.001
            return answer

    files = ("--out", tmp_path / "o.json", "--model", tiny("llama"))
    with pytest.raises(SystemExit, match=r"Two engines differ by 0\.1 points"):
        driven(script, monkeypatch, Wrong, "--rounds", 1, "--engines", "sweep", "careful", *files)
