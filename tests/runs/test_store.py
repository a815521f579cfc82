"""A run on disk: whole or not there at all, and never in place of something else."""

import pytest

import anchorlens as al
from anchorlens.errors import RunError
from anchorlens.runs import store
from anchorlens.runs.store import check_target
from tests.questions.make import capitals

OPTIONS = {"n_donors": 2, "align": "last", "layers": (0, 2), "seed": 3, "progress": False}


@pytest.fixture(scope="module")
def sweep(tiny_model):
    return al.swap_sweep(tiny_model("llama"), capitals(5), **OPTIONS)


@pytest.fixture(scope="module")
def saved(sweep, tmp_path_factory):
    return sweep.save(tmp_path_factory.mktemp("runs") / "deep" / "a")


def test_a_run_is_not_replaced_unless_asked(sweep, saved, tmp_path):
    with pytest.raises(RunError, match="holds a run already. Choose another path, or give overwrite=True"):
        sweep.save(saved)
    inside = (saved / "samples.parquet").stat().st_ino
    sweep.save(saved, overwrite=True)
    assert (saved / "samples.parquet").stat().st_ino != inside
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="is not a run"):
        sweep.save(tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_an_interrupted_write_leaves_nothing(sweep, tmp_path, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(store.json, "dumps", stop)
    with pytest.raises(KeyboardInterrupt):
        sweep.save(tmp_path / "a")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "run.json").unlink(), "is not a run: it has no run.json"),
        (lambda p: (p / "run.json").write_text("{"), "is damaged"),
        (lambda p: (p / "run.json").write_text('{"schema_version": 99}'), "schema version 99; this anchorlens reads 2, 3, 4"),
        (lambda p: (p / "curves.parquet").unlink(), "lacks curves.parquet"),
        (lambda p: (p / "samples.parquet").write_bytes(b"PAR1"), "samples.parquet is damaged"),
    ],
)
def test_damaged_runs_are_named(sweep, tmp_path, damage, message):
    path = sweep.save(tmp_path / "a")
    damage(path)
    with pytest.raises(RunError, match=message):
        al.load_run(path)


def test_target_is_checked_before_the_work(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is there and is not a run"):
        check_target(tmp_path / "file")
    with pytest.raises(RunError, match="cannot be written"):
        check_target(tmp_path / "file" / "run")
    assert check_target(tmp_path / "new" / "deep") == tmp_path / "new" / "deep"
