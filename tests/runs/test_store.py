"""A run directory is written as a whole or not at all, and never in place of something else."""

import json

import pandas as pd
import pytest

import anchorlens as al
from anchorlens.errors import RunError
from anchorlens.runs import store
from anchorlens.runs.schema import SCHEMA_VERSION
from anchorlens.runs.store import check_target, read_record, read_table, write_run

TABLES = {name: pd.DataFrame({"run_id": ["a"], "tokens": [[]]}) for name in store.TABLES}


def save(path, more=lambda folder: None):
    return write_run(path, TABLES, [{"run_id": "a"}], more=more)


def test_a_run_is_not_replaced_unless_asked(tmp_path):
    run = save(tmp_path / "deep" / "a")
    with pytest.raises(RunError, match="already holds a run.*overwrite=True"):
        check_target(run)
    assert check_target(run, overwrite=True) == run
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(RunError, match="exists and is not a run"):
            check_target(tmp_path / "mine", overwrite=overwrite)
    with pytest.raises(RunError, match="cannot be written"):
        check_target(tmp_path / "mine" / "thesis.tex" / "run")
    assert check_target(tmp_path / "new" / "deep") == tmp_path / "new" / "deep"


def test_an_interrupted_write_leaves_what_was_there(tmp_path):
    def stop(folder):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "a", stop)
    assert [*tmp_path.iterdir()] == []
    record = (save(tmp_path / "a") / "run.json").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "a", stop)
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a" / "run.json").read_bytes() == record


def test_a_run_that_was_set_aside_by_a_killed_process_comes_back(tmp_path):
    save(tmp_path / "a").rename(tmp_path / f".a.{2**22 + 1}.old")
    check_target(tmp_path / "a", overwrite=True)
    assert len(read_record(tmp_path / "a")["sweeps"]) == 1


def test_a_run_set_aside_under_a_longer_name_stays_where_it_is(tmp_path):
    aside = save(tmp_path / "a").rename(tmp_path / f".a.x.{2**22 + 1}.old")
    check_target(tmp_path / "a")
    assert [*tmp_path.iterdir()] == [aside]
    check_target(tmp_path / "a.x", overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["a.x"]


def other_version(path, version):
    record = json.loads((path / "run.json").read_text()) | {"schema_version": version}
    (path / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "run.json").unlink(), "is not a run: it has no run.json"),
        (lambda p: (p / "run.json").write_text("{"), "is damaged"),
        (lambda p: (p / "run.json").write_text("[]"), "no JSON object"),
        (lambda p: (p / "run.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION})), "no list of sweeps"),
        (lambda p: other_version(p, SCHEMA_VERSION - 1), r"version 6, but only 7 can be read\. Make the run again"),
        (lambda p: other_version(p, 99), "schema version 99"),
        (lambda p: (p / "curves.parquet").unlink(), "lacks curves.parquet"),
        (lambda p: (p / "samples.parquet").write_bytes(b"PAR1"), "samples.parquet is damaged"),
    ],
)
def test_damaged_runs_and_those_of_another_version_are_refused(tmp_path, damage, message):
    path = save(tmp_path / "a")
    assert read_table(path, "samples")["run_id"].tolist() == ["a"]
    damage(path)
    with pytest.raises(RunError, match=message):
        al.load_run(path)
