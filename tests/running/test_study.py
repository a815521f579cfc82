"""A study: looked at before the work, and nothing that is finished is lost."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

import anchorlens as al
from anchorlens.models.load import load_model
from anchorlens.running import executors, run_storage
from anchorlens.running import study as module
from anchorlens.running.run_study import Outcome
from anchorlens.runs import final_write
from tests.questions.make import capitals, refused
from tests.raised import raises

SMALL = {"layers": 0, "align": "last", "n_donors": 1, "n_resamples": 20, "progress": False}


def small(**changes):
    return al.Swap(**SMALL | changes)


@pytest.mark.slow
def test_two_specifications_on_one_model_and_set(tiny, tmp_path):
    study = al.Study(str(tiny("llama")), [capitals(4)], [small(), small(seed=1)], device="cpu")
    seen = []
    done = al.run_study(
        study,
        tmp_path / "a",
        on_result=lambda result, outcome: seen.append((result.run_id, outcome.kept)),
    )
    assert [kept for _, kept in seen] == [
        f"1 of 2 sweeps is finished and kept in {tmp_path / 'a'}.",
        f"2 of 2 sweeps are finished and kept in {tmp_path / 'a'}.",
    ]
    assert (
        [r.run_id for r in al.load_run(tmp_path / "a")]
        == [run_id for run_id, _ in seen]
        == [r.run_id for r in done.results]
    )
    assert json.loads((tmp_path / "a" / "run.json").read_text())["pending"] == []


@pytest.mark.parametrize(
    "other", [{}, {"engine": "reference"}, {"batch_size": 1}, {"n_spot_checks": 0}]
)
def test_a_specification_that_stands_twice_is_refused_before_any_model(tiny, other, monkeypatch):
    monkeypatch.setattr(executors, "load_model", lambda *a, **k: pytest.fail("a model was loaded"))
    study = al.Study(str(tiny("llama")), [capitals(4)], [small(), small(**other)])
    with raises(al.InputError, "specifications"):
        al.run_study(study)


@pytest.mark.slow
def test_what_turns_out_to_be_the_same_sweep_is_kept_once(tiny, tmp_path):
    """All layers and 0-2 are one thing for a model of three, which is known only once there is the
    model.
    """
    study = al.Study(
        str(tiny("llama")), [capitals(4)], [small(layers="all"), small(layers="0-2")], device="cpu"
    )
    said = []
    done = al.run_study(study, tmp_path / "a", on_empty=said.append)
    assert (len(done.results), done.total) == (1, 1)
    assert "repeats a finished sweep" in said[0]


@pytest.mark.slow
def test_a_failing_write_counts_nothing_as_kept(tiny, tmp_path, monkeypatch):
    real, calls = run_storage.write_results, []

    def full(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(run_storage, "write_results", full)
    outcome = Outcome(0, None)
    study = al.Study(str(tiny("llama")), [capitals(4)], [small(), small(seed=1)], device="cpu")
    with pytest.raises(OSError, match="No space left"):
        al.run_study(study, tmp_path / "a", outcome=outcome)
    assert (
        outcome.kept
        == f"1 of 2 sweeps is finished and kept in {tmp_path / 'a'}. 1 shard of the next sweep is"
        f" kept in {tmp_path / 'a.parts'}. Continue with resume=True."
    )
    assert len(al.load_run(tmp_path / "a")) == 1
    assert len(al.run_study(study, tmp_path / "a", resume=True).results) == 2


@pytest.mark.slow
def test_a_stop_between_the_two_renames_brings_the_old_run_back(tiny_model, tmp_path, monkeypatch):
    sweep = al.swap_sweep(tiny_model("llama"), capitals(4), **SMALL)
    sweep.save(tmp_path / "a")
    before = (tmp_path / "a" / "samples.parquet").read_bytes()
    real = Path.rename

    def stops(self, target):
        if self.name.endswith(".tmp"):
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "rename", stops)
    with pytest.raises(KeyboardInterrupt):
        sweep.save(tmp_path / "a", overwrite=True)
    assert (tmp_path / "a" / "samples.parquet").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_the_folder_one_stands_in_is_no_target(tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (".", "..", str(tmp_path)):
        with pytest.raises(al.RunError, match="current folder"):
            final_write.check_target(path, overwrite=True)


def test_arguments_of_refused_combinations_are_named():
    with refused(al.InputError, "questions and pairs do not mix", "specifications"):
        al.Study("m", "nq-sample", [small(), al.Patch()]).check()
    with refused(al.InputError, "workers load models by name or path", "executor"):
        executors.refuse_live(executors.RayExecutor.__new__(executors.RayExecutor), [3])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "given",
    [
        {"data": 3},
        {"specifications": ["swap"]},
        {"models": None},
        {"models": []},
        {"models": ["m", "m"]},
        {"stream": "no"},
    ],
    ids=str,
)
def test_invalid_values_of_a_study(given):
    with pytest.raises(al.InputError):
        al.Study(
            **{"models": "m", "data": ["nq-sample"], "specifications": small()} | given
        ).check()


def test_two_models_of_one_name_are_refused_before_any_is_loaded(tiny, tmp_path):
    """Also a folder and a live model that was loaded from a folder of its name."""
    other = tmp_path / "llama"
    shutil.copytree(tiny("gpt2"), other)
    for second in (other, str(other), load_model(str(other), device="cpu")):
        with raises(al.InputError, "models", word="'llama'"):
            al.Study([str(tiny("llama")), second], "nq-sample", small()).check()
    al.Study([tiny("llama"), tiny("gpt2")], "nq-sample", small()).check()


def test_names_and_files_are_taken_as_they_are(tiny, tmp_path):
    file = tmp_path / "quiz.csv"
    pd.DataFrame({"question": ["Who wrote Emma?"], "answer": ["Jane Austen"]}).to_csv(
        file, index=False
    )
    study = al.Study(str(tiny("llama")), ["nq-sample", file], small())
    assert [data.name for data in study.check()] == ["nq-sample", "quiz"]
    assert study.specifications == (small(),)


def test_prompt_pairs_are_loaded_with_their_limit_and_name(tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text("clean,corrupted,answer,wrong\nA B,A C,B,C\nB A,C A,B,C\n")
    for given, name in (({}, "sums"), ({"dataset_name": "mine"}, "mine")):
        (data,) = al.Study(
            "m", al.DatasetSpec("sums", str(file), limit=1, **given), al.Patch()
        ).check(models=False)
        assert (data.name, len(data)) == (name, 1)
    for name, value in {"spans": "rules", "seed": 1}.items():
        with refused(al.InputError, "is only for questions. Leave it out.", name):
            al.Study("m", al.DatasetSpec(str(file), **{name: value}), al.Patch()).check(
                models=False
            )


def test_prompt_pairs_have_the_arguments_of_their_loader(tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text("prompt,corrupted,answer,wrong\nA is ,B is ,x;y,7\n")
    how = {"answers_sep": ";", "answer_space": "add", "numbers": "ids"}
    spec = al.DatasetSpec(None, str(file), columns={"clean": "prompt"}, **how)
    (data,) = al.Study("m", spec, al.Patch()).check(models=False)
    (pair,) = data.pairs
    assert (pair.clean, pair.answer.answers, pair.wrong) == ("A is", (" x", " y"), (7,))
    assert data.record()["reading"] == {"columns": {"clean": "prompt"}, **how}
    with refused(al.InputError, "is only for prompt pairs. Leave it out.", "numbers"):
        al.Study("m", al.DatasetSpec("nq-sample", numbers="ids"), small()).check(models=False)


@pytest.mark.parametrize(
    "text", ['data = [3]\nmodels = ["m"]\nprotocol = ["swap"]', '[[protocol]]\nname = ["swap"]\n']
)
def test_a_file_with_wrong_kinds(tmp_path, text):
    with pytest.raises(al.InputError, match="Cannot read"):
        al.Study.from_toml(tmp_path / "nothing.toml")
    file = tmp_path / "study.toml"
    file.write_text(
        text if text.startswith("data") else f'models = ["m"]\ndata = ["nq-sample"]\n{text}'
    )
    with pytest.raises(al.InputError, match="takes a table or a name|needs a name"):
        al.Study.from_toml(file)


@pytest.mark.usefixtures("unchecked")
def test_a_file_says_how_models_are_loaded(tmp_path, monkeypatch):
    file = tmp_path / "study.toml"
    how = 'device = "cuda:0"\nn_devices = 2\ndtype = "bfloat16"\n'
    file.write_text(
        f'models = ["some/model"]\ndata = ["nq-sample"]\n{how}[[protocol]]\nname = "swap"\n'
    )
    study = al.Study.from_toml(file)
    asked = []
    monkeypatch.setattr(module, "check_model", lambda model, **options: asked.append(options))
    study.check()
    monkeypatch.setattr(executors, "load_model", lambda model, **options: asked.append(options))
    monkeypatch.setattr(executors, "LocalRunner", lambda *_: None)
    executors.LocalExecutor(study.loading).make_runner(None, "some/model", None, al.Swap())
    loading = {
        "device": "cuda:0",
        "dtype": "bfloat16",
        "stream": False,
        "n_devices": 2,
        "backend": None,
    }
    assert asked == [loading, loading | {"progress": True}]


@pytest.mark.usefixtures("unchecked")
def test_a_model_that_failed_to_load_is_loaded_at_the_next_call(monkeypatch):
    loads = []
    monkeypatch.setattr(
        executors,
        "load_model",
        lambda model, **options: loads.append(model) or 1 / (len(loads) - 1),
    )
    monkeypatch.setattr(executors, "LocalRunner", lambda protocol, model, *_: model)
    executor = executors.LocalExecutor()
    with pytest.raises(ZeroDivisionError):
        executor.make_runner(None, "some/model", None, al.Swap())
    assert [executor.make_runner(None, "some/model", None, al.Swap()) for _ in range(2)] == [
        1.0,
        1.0,
    ]
    assert loads == ["some/model"] * 2


def test_arguments_are_given_by_name(tiny_model):
    with pytest.raises(al.InputError, match="keyword"):
        al.swap_sweep(tiny_model("llama"), capitals(4), "exact_question")
