"""A run directory is written as a whole or not at all, and never in place of something else."""

import json
import os
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

import anchorlens as al
from anchorlens.errors import RunError
from anchorlens.runs.checksums import find_changed_files, write_sums
from anchorlens.runs.files import process_tag
from anchorlens.runs.final_write import check_target
from anchorlens.runs.locks import lock_run
from anchorlens.runs.schema import SCHEMA_VERSION, TABLE_COLUMNS
from anchorlens.runs.store import read_record, write_run
from anchorlens.runs.validation import _FLAGS, _INTEGERS, _NUMBERS, read_table

RUN_ID = "0123456789ab"
ROW = dict.fromkeys(_INTEGERS, 0) | dict.fromkeys(_NUMBERS, 0.5) | dict.fromkeys(_FLAGS, False)
ROW |= {"run_id": RUN_ID, "token_ids": [1], "tokens": ["a"], "donor_ids": []}
TABLES = {
    name: pd.DataFrame([{column: ROW.get(column, "x") for column in TABLE_COLUMNS[name]}])
    for name in ("examples", "samples", "curves")
}
SWEEP = {
    "run_id": RUN_ID,
    "config": {
        "protocol": "swap",
        "seed": 0,
        "layers": [0],
        "anchors": ["exact_question"],
        "prompt": "qa",
        "add_bos": False,
    },
    "model": {
        "name": "m",
        "source": "directory",
        "revision": None,
        "dtype": "float32",
        "weights_sha256": "",
        "tokenizer_sha256": None,
        "backend": "hooked",
        "weights_processed": False,
    },
    "data": {"name": "d", "source": "s", "sha256": "", "limit": None, "seed": 0, "examples": 1},
    "environment": {"versions": {}, "code_sha256": ""},
    "verdict": "",
    "findings": {},
    "plan": {},
    "counts": {"evaluated": 1, "dropped": {}},
    "noise": {"floor": None, "cells": 0},
    "checks": {"cells": 0, "known": 0, "largest_difference": None, "failed": []},
    "rows": {"examples": 1, "samples": 1, "curves": 1},
}
# No process has this tag: the start of the machine's first process is later.
DEAD = f"1-0-{process_tag().split('-')[2]}"


def save(path, more=lambda folder: None):
    with lock_run(path) as lock:
        return write_run(lock, TABLES, [SWEEP], more=more)


def test_a_run_is_not_replaced_unless_asked(tmp_path):
    run = save(tmp_path / "deep" / "a")
    with pytest.raises(RunError, match="already holds"):
        check_target(run)
    assert check_target(run, overwrite=True) == run
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(RunError, match="exists and is not a run"):
            check_target(tmp_path / "mine", overwrite=overwrite)
    with pytest.raises(RunError, match="cannot be written"):
        save(tmp_path / "mine" / "thesis.tex" / "run")
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


def test_files_of_others_stay_when_a_run_is_replaced(tmp_path):
    run = save(tmp_path / "a", lambda folder: (folder / "old.html").write_text("ours"))
    (run / "notes" / "deep").mkdir(parents=True)
    (run / "notes" / "deep" / "thesis.tex").write_text("mine")
    (run / "figure.html").write_text("mine too")
    save(run, lambda folder: (folder / "figure.html").write_text("ours"))
    assert (run / "notes" / "deep" / "thesis.tex").read_text() == "mine"
    assert (run / "figure.html").read_text() == "ours"
    assert (run / "figure.html.kept").read_text() == "mine too"
    assert not (run / "old.html").exists()
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert find_changed_files(run) == ([], ["figure.html.kept", "notes/deep/thesis.tex"])


def test_a_folder_with_a_run_json_of_another_program_is_not_replaced(tmp_path):
    for text in ("{}", "[]", "{", '{"schema_version": 7}'):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(RunError, match="exists and is not a run"):
            check_target(tmp_path, overwrite=True)


def test_a_linked_run_directory_is_followed(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "disk" / "a")
    save(check_target(link))
    assert link.is_symlink()
    assert (tmp_path / "disk" / "a" / "run.json").is_file()
    save(check_target(link, overwrite=True))
    assert [file.name for file in (tmp_path / "disk").iterdir()] == ["a"]
    assert len(read_record(link)["sweeps"]) == 1


def test_a_run_is_on_the_disk_before_the_old_one_goes(tmp_path, monkeypatch):
    """Files and folders are flushed, then renamed, then the parent is flushed; only then the
    replaced run is removed.
    """
    run = save(tmp_path / "a", lambda folder: (folder / "old.html").write_text("ours"))
    calls, names = [], {name: getattr(os, name) for name in ("fsync", "rename", "unlink")}

    def record(kind, subject, *rest):
        path = (
            Path(f"/proc/self/fd/{subject}").readlink() if kind == "fsync" else os.fspath(subject)
        )
        calls.append((kind, Path(path).relative_to(tmp_path.parent).as_posix()))
        return names[kind](subject, *rest)

    for kind in names:
        monkeypatch.setattr(os, kind, partial(record, kind))
    save(
        run,
        lambda folder: (
            (folder / "probes").mkdir() or (folder / "probes" / "p.json").write_text("x")
        ),
    )
    monkeypatch.undo()
    top, work, old = (
        f"{tmp_path.name}{part}"
        for part in ("", f"/.a.{process_tag()}.tmp", f"/.a.{process_tag()}.old")
    )
    renamed = [i for i, call in enumerate(calls) if call[0] == "rename"]
    assert [calls[i][1] for i in renamed] == [f"{top}/a", work]
    flushed = {path for kind, path in calls[: renamed[0]] if kind == "fsync"}
    files = {
        "SHA256SUMS",
        "run.json",
        "examples.parquet",
        "samples.parquet",
        "curves.parquet",
        "probes",
        "probes/p.json",
    }
    assert flushed == {top, work, *(f"{work}/{name}" for name in files)}
    assert calls[renamed[1] + 1] == ("fsync", top)
    removed = [i for i, call in enumerate(calls) if call[0] == "unlink" and call[1].startswith(old)]
    assert len(removed) == 6
    assert calls[removed[0]][1] == f"{old}/run.json"
    assert calls[removed[-1]][1] == f"{old}/SHA256SUMS"
    assert min(removed) > renamed[1] + 1


def test_a_full_disk_at_the_last_write_leaves_the_old_run(tmp_path, monkeypatch):
    run, real = save(tmp_path / "a"), os.fsync
    before = (run / "run.json").read_bytes()

    def full(opened):
        if Path(f"/proc/self/fd/{opened}").readlink().name == "samples.parquet":
            raise OSError(28, "No space left on device")
        real(opened)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        RunError,
        match="No space left",
    ):
        save(run)
    monkeypatch.undo()
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert (run / "run.json").read_bytes() == before


def edited(path, change):
    """Change run.json, and write the sums again: the damage is one that the sums do not show."""
    record = json.loads((path / "run.json").read_text())
    change(record)
    (path / "run.json").write_text(json.dumps(record))
    write_sums(path)


def retyped(path, table, change):
    frame = change(pd.read_parquet(path / f"{table}.parquet"))
    frame.to_parquet(path / f"{table}.parquet", index=False)
    write_sums(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "run.json").unlink(), "is not a run: it has no run.json"),
        (
            lambda p: (p / "run.json").write_text("{"),
            r"run\.json has other bytes than SHA256SUMS lists",
        ),
        (
            lambda p: (p / "samples.parquet").write_bytes(b"PAR1"),
            r"samples\.parquet has other bytes",
        ),
        (lambda p: (p / "SHA256SUMS").unlink(), "cannot be checked: SHA256SUMS is missing"),
        (
            lambda p: (p / "SHA256SUMS").write_text("nonsense"),
            "cannot be checked: SHA256SUMS is damaged",
        ),
        (lambda p: (p / "run.json").write_text("{") and write_sums(p), "is damaged"),
        (lambda p: (p / "run.json").write_text("[" * 9999) and write_sums(p), "is damaged"),
        (lambda p: (p / "run.json").write_text("[]") and write_sums(p), "is damaged"),
        (lambda p: edited(p, lambda r: r.pop("sweeps")), "is damaged: sweeps: Field required"),
        (
            lambda p: edited(p, lambda r: r["sweeps"][0]["data"].pop("name")),
            r"sweeps\[0\]\.data\.name: Field required",
        ),
        (
            lambda p: edited(p, lambda r: r["sweeps"][0].update(run_id="../../b")),
            r"sweeps\[0\]\.run_id: String should match",
        ),
        (lambda p: edited(p, lambda r: r["sweeps"][0].update(counts=3)), r"sweeps\[0\]\.counts"),
        (
            lambda p: edited(p, lambda r: r.update(schema_version=SCHEMA_VERSION - 1)),
            r"version 11, but only 12 can be read",
        ),
        (lambda p: edited(p, lambda r: r.update(schema_version=99)), "schema version 99"),
        (lambda p: (p / "curves.parquet").unlink(), "lacks curves.parquet"),
        (
            lambda p: (p / "samples.parquet").write_bytes(b"PAR1") and write_sums(p),
            "samples.parquet is damaged",
        ),
        (
            lambda p: retyped(p, "samples", lambda f: f.drop(columns="effect")),
            "lacks the columns effect",
        ),
        (
            lambda p: retyped(p, "samples", lambda f: f.assign(effect="much")),
            "column effect has the type",
        ),
        (
            lambda p: retyped(p, "examples", lambda f: f.assign(tokens="a b")),
            "column tokens has the type",
        ),
        (
            lambda p: retyped(p, "curves", lambda f: pd.concat([f, f])),
            "has 2 rows, run.json counts 1",
        ),
    ],
)
def test_damaged_runs_and_those_of_another_version_are_refused(tmp_path, damage, message):
    path = save(tmp_path / "a")
    assert read_table(path, "samples")["run_id"].tolist() == [RUN_ID]
    damage(path)
    with pytest.raises(RunError, match=message):
        al.load_run(path)


def test_a_file_of_a_run_is_no_run(tmp_path):
    file = tmp_path / "run.json"
    file.write_text("{}")
    with pytest.raises(RunError, match="is a file. Give the run directory"):
        read_record(file)
