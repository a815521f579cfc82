"""What is refused when a sweep goes on; that its bytes are right is in
:mod:`tests.running.test_executors`.
"""

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import anchorlens as al
from anchorlens.errors import EmptySweepError, RunError
from anchorlens.running import run_storage
from anchorlens.running import runner as driver
from anchorlens.runs.files import parts_of, process_tag, shards_in
from anchorlens.runs.merging import refuse_missing
from tests.questions.make import capitals, data_of
from tests.raised import raises
from tests.running.kills import hashes, interrupt
from tests.running.test_executors import OPTIONS, stopped

pytestmark = pytest.mark.usefixtures("small_shards")


def swap(model, data=None, **more):
    return al.swap_sweep(model, capitals(data), **(OPTIONS | more))


@pytest.fixture(scope="module")
def parts(small_shards, tiny_model, tmp_path_factory):
    """Parts of a sweep that was stopped after two shards."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    stopped(lambda **more: swap(tiny_model("llama"), **more), out)
    return parts_of(out)


@pytest.mark.slow
def test_what_is_done_is_done(tiny_model, tmp_path, monkeypatch):
    model, out = tiny_model("llama"), tmp_path / "out"
    first = swap(model, out=out, resume=True)  # nothing is there yet: it begins
    before = hashes(out)
    monkeypatch.setattr(driver.LocalRunner, "measure_shards", None)  # nothing is measured
    assert swap(model, out=out, resume=True).samples().equals(first.samples())
    for more, said in (
        ({"resume": True, "n_donors": 2}, r"n_donors: 1 before, 2 now"),
        ({}, "already holds a run"),
    ):
        with pytest.raises(RunError, match=said):
            swap(model, out=out, **more)
    first.save(tmp_path / "saved")
    with pytest.raises(RunError, match="not stopped"):
        swap(model, out=tmp_path / "saved", resume=True)
    assert hashes(out) == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n_donors": 2}, r"sweeps\[0\]\.config\.n_donors: 1 before, 2 now"),
        ({"data": 11}, r"data\.limit: null before, 11 now"),
        ({"weights": True}, r"model\.weights_sha256: .* before"),
        ({"batch_size": 3}, r"plan\.batches: \[2, 2.* before, \[3, 3"),
        ({"batch_size": 3, "job": "1/2"}, r"plan\.batches: \[2, 2.* before, \[3, 3"),
        ({"n_spot_checks": 2}, r"plan\.n_spot_checks: 4 before, 2 now"),
    ],
)
def test_what_changed_is_named(change, said, parts, tiny, tmp_path):
    model, out = al.load_model(str(tiny("llama")), device="cpu"), tmp_path / "out"
    shutil.copytree(parts, parts_of(out))
    if change.get("weights"):
        with torch.no_grad():
            model.blocks[1].mlp.W_out[0, 0] += 1.0
    with pytest.raises(RunError, match=said):
        swap(
            model,
            out=out,
            **(
                {"resume": "job" not in change}
                | {k: v for k, v in change.items() if k != "weights"}
            ),
        )
    assert shards_in(parts_of(out)) == 2  # nothing lost


@pytest.mark.slow
def test_a_damaged_shard_is_measured_again_and_force_new_begins_again(parts, tiny_model, tmp_path):
    model, out = tiny_model("llama"), tmp_path / "out"
    shutil.copytree(parts, parts_of(out))
    with pytest.raises(RunError, match="2 shards"):
        swap(model, out=out)
    shard = sorted(parts_of(out).glob("*/*.parquet"))[1]
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.warns(UserWarning, match="00001-"):
        swap(model, out=out, resume=True)
    shutil.copytree(parts, parts_of(tmp_path / "new"))
    swap(model, out=tmp_path / "new", restart=True)
    assert hashes(out) == hashes(tmp_path / "new")
    assert not parts_of(tmp_path / "new").exists()


def test_other_inputs_than_those_that_are_drawn_here(parts, tiny_model, tmp_path, monkeypatch):
    """What a model writes may differ between machines; its rows would be put together with shards
    of others.
    """
    shutil.copytree(parts, tmp_path / "out.parts")
    monkeypatch.setattr(driver, "_digest", lambda inputs: "another")
    with pytest.raises(RunError, match="other inputs"):
        swap(tiny_model("llama"), out=tmp_path / "out", resume=True)


def elsewhere(monkeypatch, **changes):
    """Change the environment that a run reports."""
    there = driver.environment
    monkeypatch.setattr(driver, "environment", lambda *args: {**there(*args), **changes})


@pytest.mark.slow
def test_a_shard_of_other_weights_is_refused(parts, tiny, tiny_model, tmp_path):
    """A file that was copied from another run: its name, its hash and its rows are in order."""
    other, out = al.load_model(str(tiny("llama")), device="cpu"), tmp_path / "out"
    with torch.no_grad():
        other.blocks[1].mlp.W_out[0, 0] += 1.0
    stopped(lambda **more: swap(other, **more), tmp_path / "other")
    shutil.copytree(parts, parts_of(out))
    for file in parts_of(out).glob("000/*.parquet"):
        file.unlink()
    for file in parts_of(tmp_path / "other").glob("000/*.parquet"):
        shutil.copy(file, parts_of(out) / "000")
    with pytest.raises(RunError, match="weights_sha256"):
        swap(tiny_model("llama"), out=out, resume=True)
    assert shards_in(parts_of(out)) == 2


def test_shards_of_other_code_are_refused(parts, tiny_model, tmp_path, monkeypatch):
    shutil.copytree(parts, tmp_path / "out.parts")
    elsewhere(monkeypatch, code_sha256="other")
    with raises(RunError, word="Continue it with the version that it was started with"):
        swap(tiny_model("llama"), out=tmp_path / "out", resume=True)
    assert shards_in(tmp_path / "out.parts") == 2


@pytest.mark.slow
def test_every_environment_that_took_part_is_in_the_record(
    parts, tiny_model, tmp_path, monkeypatch
):
    shutil.copytree(parts, tmp_path / "out.parts")
    elsewhere(monkeypatch, threads=77)
    with pytest.warns(UserWarning, match="threads: .*77"):
        record = swap(tiny_model("llama"), out=tmp_path / "out", resume=True).record["environment"]
    (other,) = record["other_environments"]
    assert record["threads"] == 77 != other["threads"]
    assert other["versions"] == record["versions"]


@pytest.mark.slow
def test_a_refused_restart_keeps_the_parts(parts, tiny_model, tmp_path):
    """A run is there already, and may not be replaced."""
    swap(tiny_model("llama"), out=tmp_path / "out")
    shutil.copytree(parts, tmp_path / "out.parts")
    with pytest.raises(RunError, match="already holds a run"):
        swap(tiny_model("llama"), out=tmp_path / "out", restart=True)
    assert shards_in(tmp_path / "out.parts") == 2


@pytest.mark.slow
def test_two_processes_on_one_run(tiny_model, tmp_path):
    model, out = tiny_model("llama"), tmp_path / "out"

    def second(plan):
        with pytest.raises(RunError, match="Another process is writing"):
            swap(model, out=out)

    swap(model, out=out, on_plan=second)
    assert len(al.load_run(out)) == 1


@pytest.mark.parametrize("more", [{}, {"resume": True}, {"job": "1/2"}])
def test_a_place_that_nobody_may_write_is_refused_before_anything_is_measured(
    tiny_model, monkeypatch, more
):
    """/proc refuses even who may do everything."""
    if not Path("/proc/self").is_dir():
        pytest.skip("there is no /proc here")
    monkeypatch.setattr(driver.LocalRunner, "plan", None)
    with pytest.raises(RunError, match="cannot be written"):
        swap(tiny_model("llama"), out=Path("/proc/runs/a"), **more)


@pytest.mark.parametrize(
    "more", [{}, {"resume": True}, {"overwrite": True}, {"restart": True}, {"job": "1/2"}]
)
@pytest.mark.parametrize("name", ["mount", "x" * 240])
def test_a_place_where_the_final_write_would_fail_is_refused_at_once(
    tiny_model, tmp_path, monkeypatch, more, name
):
    """A mount point cannot be renamed, and a long name leaves no room for temporary names."""
    right, out = os.rename, tmp_path / name

    def rename(source, target, **options):
        if out in (Path(source), Path(target)):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        right(source, target, **options)

    if name == "mount":
        out.mkdir()
        monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(driver.LocalRunner, "plan", None)
    said = (
        "busy.*It is a mount point.*give a folder below it"
        if name == "mount"
        else "too long.*Give a shorter path"
    )
    with pytest.raises(RunError, match=said):
        swap(tiny_model("llama"), out=out, **more)
    assert [file.name for file in tmp_path.iterdir()] == (["mount"] if name == "mount" else [])


@pytest.mark.slow
def test_jobs_rehearse_the_final_write_once(tiny_model, tmp_path, monkeypatch):
    """A hundred jobs that start at once would else wait for each other."""
    rehearsed, right, model = [], run_storage.rehearse_write, tiny_model("llama")

    def rehearse(lock):
        rehearsed.append(lock.target)
        right(lock)

    monkeypatch.setattr(run_storage, "rehearse_write", rehearse)
    swap(
        model,
        out=tmp_path / "a",
        job="1/3",
        on_plan=lambda plan: swap(model, out=tmp_path / "a", job="2/3"),
    )
    assert rehearsed == [tmp_path / "a"]
    swap(model, out=tmp_path / "a", job="3/3")
    assert rehearsed == [tmp_path / "a"] * 2


@pytest.mark.slow
def test_a_finished_run_is_cleaned_by_resume(tiny_model, tmp_path):
    """A process was killed while it removed the parts and the run that it had replaced."""
    first = swap(tiny_model("llama"), out=tmp_path / "a", seed=1)
    swap(tiny_model("llama"), out=tmp_path / "out")
    tag = f"{process_tag().split('-')[0]}-0-{process_tag().split('-')[2]}"
    first.save(tmp_path / f".out.{tag}.old")
    (tmp_path / "out.parts" / "000").mkdir(parents=True)
    (tmp_path / "out.parts" / "removed.json").write_text(
        json.dumps({"version": 2, "target": "out", "sweeps": []})
    )
    before = hashes(tmp_path / "out")
    swap(tiny_model("llama"), out=tmp_path / "out", resume=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "out"]
    assert hashes(tmp_path / "out") == before


@pytest.mark.slow
def test_a_folder_that_is_changed_during_a_sweep_has_no_effect_on_its_place(
    tiny_model, tmp_path, monkeypatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    swap(tiny_model("llama"), out="a", on_plan=lambda plan: os.chdir("elsewhere"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "elsewhere"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


# --- studies
# -------------------------------------------------------------------------------------------------------------------


def three_sets(tiny):
    """A study of three sweeps, the last one without a row."""
    sets = [
        capitals(),
        data_of(list(capitals().examples[:8]), name="others"),
        data_of(list(capitals().examples[:1]), name="one"),
    ]
    return al.Study([str(tiny("llama"))], sets, [al.Swap(**OPTIONS)])


@pytest.mark.slow
def test_a_study_goes_on_where_it_was(tiny, tmp_path):
    """Stopped in its second sweep: the first one stands in the run directory, shards of the second
    beside it.
    """
    study = three_sets(tiny)
    al.run_study(study, tmp_path / "whole")
    out, sweeps = (
        tmp_path / "out",
        json.loads((tmp_path / "whole" / "run.json").read_text())["sweeps"],
    )
    patch = interrupt(len(sweeps[0]["plan"]["batches"]) + 1)
    with pytest.raises(KeyboardInterrupt):
        al.run_study(study, out)
    patch.undo()
    record = json.loads((out / "run.json").read_text())
    assert (len(record["sweeps"]), len(record["pending"])) == (1, 2)
    with pytest.raises(RunError, match="unfinished run"):
        al.run_study(study, out)
    with pytest.raises(RunError, match=r"sweeps\[1\]\.config\.readout"):
        al.run_study(
            replace(study, specifications=[al.Swap(**OPTIONS, readout="answer_mean")]),
            out,
            resume=True,
        )
    assert len(al.run_study(study, out, resume=True).results) == 2
    assert hashes(out) == hashes(tmp_path / "whole")
    assert json.loads((out / "run.json").read_text())["pending"] == []
    assert len(al.run_study(study, out, resume=True).results) == 2


@pytest.mark.slow
def test_jobs_of_a_study(tiny, tmp_path):
    """A job has its share of each sweep."""
    study, out = three_sets(tiny), tmp_path / "out"
    assert len(al.run_study(study, tmp_path / "whole").empty) == 1
    for i in (2, 1):
        done = al.run_study(study, out, job=(i, 2))
        assert (done.results, len(done.empty), done.total) == ([], 1, 3)
        if i == 2:
            with pytest.raises(
                RunError,
                match=r"0 \(0, 2.* 1 \(1.* 1/2",
            ):
                refuse_missing(out)
    refuse_missing(out)
    assert len(al.run_study(study, out, resume=True).results) == 2
    assert hashes(out) == hashes(tmp_path / "whole")


def test_a_job_of_a_study_without_a_row_says_so(tiny, tmp_path):
    study = al.Study(
        [str(tiny("llama"))],
        [data_of(list(capitals().examples[:1]), name="one")],
        [al.Swap(**OPTIONS)],
    )
    with pytest.raises(EmptySweepError):
        al.run_study(study, tmp_path / "out", job="1/2")
    assert list(tmp_path.iterdir()) == []


def test_hooks_of_the_user_are_part_of_a_run(tiny, tmp_path):
    """A hook changes the numbers as weights do, and shards of both were merged."""
    model = al.load_model(str(tiny("llama")), device="cpu", progress=False)
    plain = swap(model, engine="reference")
    model.add_hook("blocks.0.hook_resid_post", lambda x, hook: x * 3.0)
    stopped(lambda **more: swap(model, engine="reference", **more), tmp_path / "out")
    for factor in (None, 0.2):
        model.reset_hooks()
        if factor is not None:
            model.add_hook("blocks.0.hook_resid_post", lambda x, hook, by=factor: x * by)
        with pytest.raises(RunError, match=r"model\.hooks"):
            swap(model, engine="reference", out=tmp_path / "out", resume=True)
    hooked = swap(model, engine="reference")
    assert hooked.run_id != plain.run_id
    assert hooked.record["model"]["hooks"].keys() == {"blocks.0.hook_resid_post"}
    assert "hooks" not in plain.record["model"]
