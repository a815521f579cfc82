"""Parts of an unfinished run: who may hold which at the same time, what is refused, and that
nothing is lost. No model is needed.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
from datetime import datetime, timezone

import pandas as pd
import pytest
from filelock import FileLock

from anchorlens.errors import InputError, RunError
from anchorlens.runs import files, merging
from anchorlens.runs.jobs import Job, parse_job
from anchorlens.runs.journal import open_journal, parts_of, shard_files, shards_in
from anchorlens.runs.locks import is_held, running_jobs
from anchorlens.runs.merging import EMPTY, copy_parts, missing_in, read_command, refuse_missing
from anchorlens.runs.status import ago, status_of

SWEEPS = [{"protocol": "swap", "model": "m", "data": {"name": "d"}, "config": {"seed": 0}}]
OTHER = [{**SWEEPS[0], "config": {"seed": 1}}]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr("anchorlens.runs.locks._PATIENCE", 0.05)
    monkeypatch.setattr("anchorlens.runs.locks._PATIENCE_OF_JOBS", 0.05)


def whole(target, sweeps=SWEEPS, *, resume=True, restart=False):
    return open_journal(target, sweeps, resume=resume, restart=restart)


def job(target, given, sweeps=SWEEPS):
    return open_journal(target, sweeps, resume=False, restart=False, job=parse_job(given))


def refused(message, *journals):
    """None of these can be opened."""
    for one in journals:
        with pytest.raises(RunError, match=message), one:
            pass


def measure(journal, shards=6, batches=(2, 2)):
    """Write the shards of a process, as a sweep does."""
    one = journal.sweep(0)
    one.note_and_check("plan", {"batches": list(batches), "shards": shards})
    one.find_shards(shards)
    for number in range(shards):
        if one.is_mine(number) and one.read(number) is None:
            one.write(number, pd.DataFrame({"value": [number]}), {"work": 1.0})
    return one


def names(folder):
    return sorted(
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*")
        if not file.name.startswith("lock")
    )


# --- shares and locks
# ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3, 7])
def test_each_shard_of_each_sweep_is_one_jobs(n):
    for sweep in range(4):
        for number in range(20):
            assert [i for i in range(1, n + 1) if Job(i, n).holds(sweep, number)] == [
                (sweep + number) % n + 1
            ]


@pytest.mark.parametrize(
    ("given", "job"),
    [("2/8", Job(2, 8)), (" 1 / 1 ", Job(1, 1)), ((3, 3), Job(3, 3)), (None, None)],
)
def test_a_share_is_read(given, job):
    assert parse_job(given) == job


@pytest.mark.parametrize(
    "given",
    ["4/3", "0/3", "x/3", "-1/3", "1/3/5", "", "1", (4, 3), (1, 2, 3), (1.0, 3), (True, 3), 1],
)
def test_what_is_no_job_is_refused(given):
    with pytest.raises(InputError, match=r"^job=.* is no job"):
        parse_job(given)


def test_jobs_measure_side_by_side_and_each_share_once(tmp_path):
    out = tmp_path / "out"
    with job(out, "1/3"), job(out, "3/3"):
        assert running_jobs(parts_of(out)) == [Job(1, 3), Job(3, 3)]
        assert status_of(out).jobs == ("1/3", "3/3")
        refused(r"Another process is writing job 3/3 of .*lock-3-of-3.*job=", job(out, "3/3"))
        refused(r"Jobs 1/3, 3/3 of .* are running", whole(out))
        with job(out, "2/3"):
            pass
    assert not parts_of(out).exists()  # nothing was measured


def test_nobody_joins_a_process_that_measures_all(tmp_path):
    out = tmp_path / "out"
    with whole(out):
        refused(
            "Another process is writing",
            job(out, "1/2"),
            whole(out),
            whole(out, resume=False, restart=True),
        )
    with job(out, "1/2") as journal:
        measure(journal)
    with whole(out):  # goes on with what the job has
        assert shards_in(parts_of(out)) == 3


# --- what is refused, and what is never removed
# --------------------------------------------------------------------------------


def test_an_unfinished_run_is_neither_taken_nor_thrown_away_by_accident(tmp_path):
    out = tmp_path / "out"
    with whole(out) as journal:
        measure(journal, 2)
    refused(
        r"unfinished run \(2 shards done\).*resume=True.*restart=True", whole(out, resume=False)
    )
    another = r"holds another run\. sweeps\[0\]\.config\.seed: 0 before, 1 now"
    refused(another, whole(out, OTHER), job(out, "1/2", OTHER))
    with (
        pytest.raises(
            RunError, match=r"plan\.batches\[0\]|plan\.batches: \[2, 2\] before, \[3\] now"
        ),
        whole(out) as journal,
    ):
        measure(journal, 2, batches=(3,))
    assert shards_in(parts_of(out)) == 2
    with whole(out, OTHER, resume=False, restart=True):
        assert shards_in(parts_of(out)) == 0
    assert not parts_of(out).exists()


def test_parts_without_a_shard_are_of_no_use(tmp_path):
    out = tmp_path / "out"
    parts_of(out).mkdir()
    (parts_of(out) / "run.json").write_text(
        '{"version": 1, "target": "out", "sweeps": []}'
    )  # of a process that was killed at once
    with whole(out, resume=False) as journal:
        measure(journal)
        files.remove_parts(journal.folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "mine",
    [
        "out.parts",
        "out.parts/notes/my.parquet",
        "out.parts/000/my.parquet",
        "out.parts/samples.parquet",
    ],
)
def test_what_is_not_ours_is_never_removed(mine, tmp_path):
    """A file, a folder, a folder that looks like parts but for one name, and a finished run that
    ends in .parts.
    """
    file = tmp_path / mine
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    if file.name != "out.parts":
        (tmp_path / "out.parts" / "run.json").write_text("{}")
        (tmp_path / "out.parts" / "thesis.tex").write_text("mine")
    out = tmp_path / "out"
    opened = whole(out), whole(out, resume=False, restart=True), job(out, "1/2")
    refused(r"out\.parts exists and holds (no|other files than the) parts of a run", *opened)
    with pytest.raises(RunError, match="parts of a run"):
        copy_parts(out, [])
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    "record",
    [{}, {"schema_version": 7, "sweeps": []}, [], {"version": 1}, "not JSON"],
    ids=["empty", "run", "list", "part", "text"],
)
def test_a_folder_whose_record_is_not_that_of_parts_is_never_removed(record, tmp_path):
    """Names alone do not make a folder ours: run.json decides."""
    out, folder = tmp_path / "out", tmp_path / "out.parts"
    folder.mkdir()
    (folder / "run.json").write_text(record if isinstance(record, str) else json.dumps(record))
    (folder / "log.jsonl").write_text("mine")
    refused(
        r"run\.json is not the record of an unfinished run",
        whole(out),
        whole(out, resume=False, restart=True),
        job(out, "1/2"),
    )
    assert sorted(file.name for file in folder.iterdir()) == ["log.jsonl", "run.json"]


def test_a_file_that_is_added_meanwhile_stays(tmp_path):
    out = tmp_path / "out"
    with whole(out) as journal:
        measure(journal)
        (parts_of(out) / "notes.txt").write_text("mine")
        files.remove_parts(journal.folder)
    assert names(tmp_path) == ["out.parts", "out.parts/notes.txt"]


@pytest.mark.parametrize(
    ("given", "said", "argument"),
    [
        ({"resume": True, "restart": True}, "contradict", "restart"),
        ({"resume": True, "out": None}, "need a run directory", "out"),
        ({"job": Job(1, 2), "out": None}, "job= needs a run directory", "out"),
        ({"job": Job(1, 2), "restart": True}, "restart=True and job= contradict", "restart"),
        ({"job": Job(1, 2), "overwrite": True}, "overwrite=True and job= contradict", "overwrite"),
    ],
)
def test_arguments_that_contradict_each_other(given, said, argument):
    from anchorlens.running.run_storage import (
        check_run_options,
    )  # imports torch, which a process of a test below does without
    from tests.questions.make import refused as named

    with named(InputError, said, argument):
        check_run_options(
            **{"out": "a", "overwrite": False, "resume": False, "restart": False, "job": None}
            | given
        )


# --- shards
# --------------------------------------------------------------------------------------------------------------------


def test_a_shard_is_on_the_disk_before_it_has_its_name_and_a_damaged_one_is_put_aside(
    tmp_path, monkeypatch
):
    out, right, synced = tmp_path / "out", os.fsync, []

    def fsync(opened):
        if stat.S_ISREG(os.fstat(opened).st_mode):  # a file, not its folder
            synced.append(shards_in(parts_of(out)))
        right(opened)

    monkeypatch.setattr(files.os, "fsync", fsync)
    with whole(out) as journal:
        one = measure(journal, 2)
        assert synced == [0, 0, 0, 1]  # record, plan and two shards
        frame, notes = one.read(1)
        assert (frame["value"].tolist(), notes["work"]) == ([1], 1.0)
        file = shard_files(one.folder)[1]
        file.write_bytes(file.read_bytes()[:-1] + b"x")
        with pytest.warns(UserWarning, match="00001-"):
            measure(journal, 2)
        assert len(list(one.folder.glob("*.damaged"))) == 1
        assert (
            one.folder / file.name == shard_files(one.folder)[1]
        )  # the same bytes have the same name
        assert [json.loads(line)["event"] for line in one.log.read_text().splitlines()].count(
            "shard"
        ) == 3
    assert (
        status_of(out).state,
        status_of(out).sweeps[0].done,
        status_of(out).sweeps[0].shards,
    ) == ("stopped", 2, 2)


def test_the_status_of_a_live_model_has_its_name(tmp_path):
    """The request names the class of a live model, the card of a begun sweep its name."""
    out = tmp_path / "out"
    live = [{**SWEEPS[0], "model": "HookedTransformer"}] * 2
    with whole(out, live) as journal:
        measure(journal, 2).note_once("model", {"name": "llama"})
    assert [one.name for one in status_of(out).sweeps] == [
        "swap: llama on d",
        "swap: HookedTransformer on d",
    ]


@pytest.mark.parametrize("damaged", ["run.json", "000/plan.json"])
def test_the_status_of_damaged_parts_is_refused(tmp_path, damaged):
    out = tmp_path / "out"
    with whole(out) as journal:
        measure(journal, 2)
    (parts_of(out) / damaged).write_text("{")
    with pytest.raises(RunError, match=rf"{damaged} is damaged"):
        status_of(out)


def test_parts_that_are_removed_during_a_run_are_named(tmp_path):
    said = (
        r"Shard 1 of .*000 cannot be written.*Nothing is stored there\. .*if another program"
        r" removed files there, start again"
    )
    with whole(tmp_path / "out") as journal, pytest.raises(RunError, match=said):
        measure(journal, 1)
        shutil.rmtree(parts_of(tmp_path / "out") / "000")
        journal.sweep(0).write(1, pd.DataFrame({"value": [1]}), {"work": 1.0})


def test_a_clock_that_was_moved_back_gives_no_negative_time():
    assert ago("2030-01-01T00:00:00+00:00", datetime(2029, 1, 1, tzinfo=timezone.utc)) == "0 s ago"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        '{"event": "shard"}',
        "\xff",
        '{"time": "2030-01-01", "sweep": 0, "event": "shard", "seconds": 1, "rss_mb": 1}',
    ],
)
def test_damaged_lines_of_a_log_are_skipped(line, tmp_path):
    out = tmp_path / "out"
    with whole(out) as journal:
        measure(journal, 2)
    log = parts_of(out) / "log.jsonl"
    log.write_bytes(log.read_bytes() + line.encode("latin-1") + b"\n")
    assert status_of(out).sweeps[0].done == 2


def test_the_test_of_a_lock_makes_no_file_and_an_unreadable_lock_is_not_held(tmp_path, monkeypatch):
    lock = tmp_path / "lock"
    assert (is_held(lock), lock.exists()) == (False, False)
    lock.touch()

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    assert not is_held(lock)


FULL = """
import resource, sys
from pathlib import Path
import pandas as pd
from tests.runs.test_journal import whole
with whole(Path(sys.argv[1])) as journal:
    one = journal.sweep(0)
    one.note_and_check("plan", {"shards": 2})
    one.find_shards(2)
    one.write(0, pd.DataFrame({"value": [0]}), {})
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, resource.RLIM_INFINITY))
    one.write(1, pd.DataFrame({"value": [1]}), {})
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits of resources")
def test_a_full_disk_keeps_what_was_measured(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "out")], capture_output=True, text=True
    )
    folder = tmp_path / "out.parts"
    assert (
        f"RunError: Shard 1 of {folder / '000'} cannot be written (File too large)" in done.stderr
    )
    assert f"Kept: 1 shard in {folder}. Make room, and continue with resume=True." in done.stderr
    assert shards_in(parts_of(tmp_path / "out")) == 1
    assert not list(tmp_path.rglob("*.tmp"))


# --- merging
# -------------------------------------------------------------------------------------------------------------------


def jobs(target, *given, **how):
    for one in given:
        with job(target, one) as journal:
            measure(journal, **how)
    return parts_of(target)


def test_what_is_missing_is_named(tmp_path):
    out = tmp_path / "out"
    folder = jobs(out, "1/3", "3/3")
    assert missing_in(out) == {0: (6, [1, 4])}
    with pytest.raises(RunError, match=r"\(1, 4\).* 2/3"):
        refuse_missing(out)
    shard = shard_files(folder / "000")[3]
    shard.write_bytes(shard.read_bytes()[:-1])  # damaged is missing too
    with pytest.raises(RunError, match=r"\(1, 3, 4\).* 1/3, 2/3"):
        refuse_missing(out)
    with pytest.warns(UserWarning, match="is damaged"):
        jobs(out, "1/3", "2/3")
    refuse_missing(out)
    with pytest.raises(RunError, match="Python"):
        read_command(out)


def test_sweeps_that_nobody_planned_or_that_have_no_row(tmp_path):
    out = tmp_path / "out"
    with open_journal(
        out, [*SWEEPS, *OTHER, *OTHER], resume=True, restart=False, command={"name": "run"}
    ) as journal:
        measure(journal)
        journal.sweep(1).note_once(EMPTY, {"why": "no row"})
    with pytest.raises(RunError, match="sweep 2"):
        refuse_missing(out)
    assert read_command(out) == {"name": "run"}


def test_shards_of_machines_that_share_no_files_are_copied_once(tmp_path):
    out, others = (
        tmp_path / "out",
        [jobs(tmp_path / f"machine{i}" / "out", f"{i}/2") for i in (1, 2)],
    )
    assert [copy_parts(out, others), copy_parts(out, others)] == [6, 0]
    assert names(parts_of(out)) == names(jobs(tmp_path / "one" / "out", "1/2", "2/2"))
    refuse_missing(out)


@pytest.mark.parametrize("number", range(10))
def test_a_copy_that_is_killed_while_it_writes_a_file_goes_on(tmp_path, monkeypatch, number):
    """The half of a file is left under its temporary name: of the record, a note, a shard
    or a log.
    """
    out, other = tmp_path / "out", jobs(tmp_path / "machine" / "out", "1/2", "2/2")
    right, written = merging.write_whole, []

    def stop(file, data):
        if len(written) == number:
            file.with_name(f".{file.name}.{files.process_tag()}-0123abcd.tmp").write_bytes(data[:3])
            raise KeyboardInterrupt
        written.append(file)
        right(file, data)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(merging, "write_whole", stop)
        copy_parts(out, [other])
    assert shards_in(parts_of(out)) + copy_parts(out, [other]) == 6
    refuse_missing(out)
    files.remove_parts(parts_of(out))
    assert not parts_of(out).exists()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("another run", "seed: 0 before, 1 now"),
        ("another plan", r"plan\.batches"),
        ("a damaged shard", "is damaged"),
        ("no parts", "holds no parts"),
    ],
)
def test_parts_that_do_not_fit_are_refused_and_nothing_is_copied(what, said, tmp_path):
    out, other = tmp_path / "out", parts_of(tmp_path / "other")
    if what.startswith("another"):
        jobs(out, "1/2")
    if what != "no parts":
        with job(tmp_path / "other", "2/2", OTHER if what == "another run" else SWEEPS) as journal:
            measure(journal, batches=(3,) if what == "another plan" else (2, 2))
    if what == "a damaged shard":
        shard = min(other.glob("000/*.parquet"))
        shard.write_bytes(shard.read_bytes() + b"x")
    there = names(tmp_path)
    with pytest.raises(RunError, match=said):
        copy_parts(out, [other])
    assert names(tmp_path) == there


@pytest.mark.slow
def test_neither_status_nor_anything_in_this_room_needs_torch(tmp_path):
    jobs(tmp_path / "out", "1/2")
    code = (
        "import importlib, pkgutil, sys, anchorlens.runs as room\nfor one in"
        " pkgutil.iter_modules(room.__path__):"
        " importlib.import_module(f'anchorlens.runs.{one.name}')\nfrom anchorlens.cli.entry"
        f" import main\ntry: main(['status', {str(tmp_path / 'out')!r}])\nexcept SystemExit as"
        " done: print(done.code, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "3 of 6 shards" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "0 False"
