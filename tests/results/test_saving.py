"""Sweeps become a run directory: complete, reproducible to the byte, and read back as they were."""

import json
from importlib.metadata import version

import pandas as pd
import pytest
import torch

import anchorlens as al
from anchorlens.errors import RunError
from anchorlens.runs.locks import lock_run
from anchorlens.runs.schema import CONTRAST_COLUMNS, CURVE_COLUMNS, EXAMPLE_COLUMNS, SAMPLE_COLUMNS
from tests.questions.make import capitals, equal_lengths

OPTIONS = {"n_donors": 2, "align": "last", "layers": (0, 2), "seed": 3, "progress": False}


@pytest.fixture(scope="module")
def sweep(tiny_model):
    return al.swap_sweep(tiny_model("llama"), capitals(5), **OPTIONS)


@pytest.fixture(scope="module")
def saved(sweep, tmp_path_factory):
    return sweep.save(tmp_path_factory.mktemp("runs") / "deep" / "a")


@pytest.mark.slow
def test_every_file_of_the_design_is_there(saved):
    assert sorted(p.name for p in saved.iterdir()) == [
        "SHA256SUMS",
        "contrasts.parquet",
        "curves.parquet",
        "examples.parquet",
        "figure.html",
        "run.json",
        "samples.parquet",
    ]
    assert [*saved.parent.iterdir()] == [saved], "nothing temporary is left beside it"
    wanted = {
        "examples": EXAMPLE_COLUMNS,
        "samples": SAMPLE_COLUMNS,
        "curves": CURVE_COLUMNS,
        "contrasts": CONTRAST_COLUMNS,
    }
    for name, columns in wanted.items():
        assert tuple(pd.read_parquet(saved / f"{name}.parquet").columns) == columns


@pytest.mark.slow
def test_record_says_where_the_numbers_come_from(saved):
    record = json.loads((saved / "run.json").read_text())
    (sweep,) = record["sweeps"]
    assert len(sweep["model"]["weights_sha256"]) == 64
    assert len(sweep["model"]["tokenizer_sha256"]) == 64
    assert sweep["data"]["sha256"] == "0" * 64
    assert sweep["environment"]["threads"] == torch.get_num_threads()
    assert sweep["environment"]["versions"]["torch"] == version("torch")
    assert sweep["config"]["seed"] == 3
    assert sweep["config"]["layers"] == [0, 2]
    assert sum(sweep["plan"]["batches"]) == len(
        pd.read_parquet(saved / "samples.parquet").drop_duplicates(["example_id", "donor_id"])
    )


@pytest.mark.slow
def test_a_run_that_another_process_writes_is_not_replaced(sweep, tmp_path):
    """The lock is that of a sweep with `out`; the message names it."""
    for overwrite in (False, True):
        with (
            lock_run(tmp_path / "a"),
            pytest.raises(RunError, match="Another process"),
        ):
            sweep.save(tmp_path / "a", overwrite=overwrite)
        assert [file for file in tmp_path.iterdir() if file.name != "a"] == []
        sweep.save(tmp_path / "a", overwrite=overwrite)
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


@pytest.mark.slow
def test_a_home_folder_is_expanded_once(sweep, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert sweep.save("~/runs/a") == tmp_path / "home" / "runs" / "a"
    assert al.load_run("~/runs/a")[0].run_id == sweep.run_id
    assert al.verify_run("~/runs/a", cells=0).ok
    assert len(al.load_curves("~/runs/a")) > 0
    assert al.save_report("~/runs/a", "~/report.html") == tmp_path / "home" / "report.html"
    assert (
        al.save_html(al.plot_curves("~/runs/a"), "~/figure.html")
        == tmp_path / "home" / "figure.html"
    )
    assert [file.name for file in tmp_path.iterdir()] == ["home"]


@pytest.mark.slow
def test_several_sweeps_share_a_run(tiny_model, sweep, tmp_path):
    other = al.swap_sweep(tiny_model("gpt2"), equal_lengths(), **OPTIONS)
    path = al.save_run([sweep, other], tmp_path / "both")
    back = al.load_run(path)
    assert [(r.model, r.dataset) for r in back] == [
        (sweep.model, "capitals"),
        (other.model, "equal"),
    ]
    assert torch.equal(back[0].delta_p, sweep.delta_p)
    assert torch.equal(back[1].delta_p, other.delta_p)


@pytest.mark.slow
def test_curves_that_cannot_share_a_figure_are_still_saved(tiny_model, sweep, tmp_path):
    other = al.swap_sweep(
        tiny_model("llama"), capitals(5), **{**OPTIONS, "readout": "answer_joint"}
    )
    with pytest.warns(UserWarning, match="No figure.html .*readout"):
        path = al.save_run([sweep, other], tmp_path / "mixed")
    assert len(al.load_run(path)) == 2


def test_no_two_of_the_same_sweep(sweep, tmp_path):
    with pytest.raises(
        RunError,
        match=sweep.run_id,
    ):
        al.save_run([sweep, sweep], tmp_path / "a")
    with pytest.raises(RunError, match="at least one sweep"):
        al.save_run([], tmp_path / "a")


def test_an_attribute_of_a_sweep_is_refused_by_the_list_with_the_way_to_it(saved):
    sweeps = al.load_run(saved)
    assert isinstance(sweeps, list)
    for name in ("verdict", "plot", "delta_p"):
        with pytest.raises(AttributeError, match=rf"\(sweep,\) = .*sweep.{name}"):
            getattr(sweeps, name)
    assert not hasattr(sweeps, "verdit")
    assert not hasattr(sweeps, "__array__")
    assert sweeps == [*sweeps] and len(sweeps) == 1
