"""A run on disk: complete, reproducible to the byte, whole or not there at all."""

import json

import pandas as pd
import pytest
import torch

import anchorlens as al
from anchorlens.errors import InputError, RunError
from anchorlens.results import runs
from anchorlens.results.runs import check_target, load_curves, load_run, save_run
from anchorlens.results.sweep import CURVE_COLUMNS, EXAMPLE_COLUMNS, SAMPLE_COLUMNS
from tests.questions.make import capitals, equal_lengths

OPTIONS = {"n_donors": 2, "align": "last", "layers": (0, 2), "seed": 3, "progress": False}


@pytest.fixture(scope="module")
def sweep(tiny_model):
    return al.swap_sweep(tiny_model("llama"), capitals(5), **OPTIONS)


@pytest.fixture(scope="module")
def saved(sweep, tmp_path_factory):
    return sweep.save(tmp_path_factory.mktemp("runs") / "deep" / "a")


def test_every_file_of_the_design_is_there(saved):
    assert sorted(p.name for p in saved.iterdir()) == [
        "curves.parquet", "examples.parquet", "figure.html", "run.json", "samples.parquet",
    ]  # fmt: skip
    assert [*saved.parent.iterdir()] == [saved], "nothing temporary is left beside it"
    for name, columns in (("examples", EXAMPLE_COLUMNS), ("samples", SAMPLE_COLUMNS), ("curves", CURVE_COLUMNS)):
        assert tuple(pd.read_parquet(saved / f"{name}.parquet").columns) == columns


def test_record_says_where_the_numbers_come_from(saved):
    record = json.loads((saved / "run.json").read_text())
    (sweep,) = record["sweeps"]
    assert len(sweep["model"]["weights_sha256"]) == 64
    assert len(sweep["model"]["tokenizer_sha256"]) == 64
    assert sweep["data"]["sha256"] == "0" * 64
    assert sweep["environment"]["threads"] == torch.get_num_threads()
    assert sweep["environment"]["versions"]["torch"] == torch.__version__
    assert sweep["config"]["seed"] == 3
    assert sweep["config"]["layers"] == [0, 2]
    assert sum(sweep["plan"]["batches"]) == len(
        pd.read_parquet(saved / "samples.parquet").drop_duplicates(["example_id", "donor_id"])
    )


def test_load_gives_the_same_result(sweep, saved):
    again = al.SweepResult.load(saved)
    assert torch.equal(again.delta_p, sweep.delta_p)
    pd.testing.assert_frame_equal(again.curves(controls=True), sweep.curves(controls=True))
    pd.testing.assert_frame_equal(load_curves(saved), sweep.curves(controls=True))
    assert (again.anchors, again.layers, again.example_ids) == (sweep.anchors, sweep.layers, sweep.example_ids)
    assert repr(again) == repr(sweep)


def test_same_seed_and_plan_give_the_same_bytes(tiny_model, saved, tmp_path):
    again = al.swap_sweep(tiny_model("llama"), capitals(5), **OPTIONS).save(tmp_path / "b")
    for name in ("samples.parquet", "examples.parquet", "curves.parquet"):
        assert (again / name).read_bytes() == (saved / name).read_bytes()
    other = al.swap_sweep(tiny_model("llama"), capitals(5), **{**OPTIONS, "seed": 4}).save(tmp_path / "c")
    assert (other / "samples.parquet").read_bytes() != (saved / "samples.parquet").read_bytes()


def test_another_batch_plan_gives_the_same_p(tiny_model, sweep):
    one = al.swap_sweep(tiny_model("llama"), capitals(5), batch_size=1, **OPTIONS).samples()
    assert (one["p_after"] - sweep.samples()["p_after"]).abs().max() < 1e-5


def test_several_sweeps_share_a_run(tiny_model, sweep, tmp_path):
    other = al.swap_sweep(tiny_model("gpt2"), equal_lengths(), **OPTIONS)
    path = save_run([sweep, other], tmp_path / "both")
    back = load_run(path)
    assert [(r.model, r.dataset) for r in back] == [(sweep.model, "capitals"), (other.model, "equal")]
    assert torch.equal(back[1].delta_p, other.delta_p)
    with pytest.raises(InputError, match="holds 2 sweeps .* anchorlens.load_run"):
        al.SweepResult.load(path)


def test_a_run_is_not_replaced_unless_asked(sweep, saved, tmp_path):
    with pytest.raises(RunError, match="holds a run already. Choose another --out, or say --overwrite"):
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

    monkeypatch.setattr(runs.json, "dumps", stop)
    with pytest.raises(KeyboardInterrupt):
        sweep.save(tmp_path / "a")
    assert [*tmp_path.iterdir()] == []


def test_curves_that_cannot_share_a_figure_are_still_saved(tiny_model, sweep, tmp_path):
    other = al.swap_sweep(tiny_model("llama"), capitals(5), **{**OPTIONS, "readout": "answer_joint"})
    with pytest.warns(UserWarning, match="No figure.html .*readout"):
        path = save_run([sweep, other], tmp_path / "mixed")
    assert len(load_run(path)) == 2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "run.json").unlink(), "is not a run: it has no run.json"),
        (lambda p: (p / "run.json").write_text("{"), "is damaged"),
        (lambda p: (p / "run.json").write_text('{"schema_version": 99}'), "schema version 99; this anchorlens reads 2"),
        (lambda p: (p / "curves.parquet").unlink(), "lacks curves.parquet"),
    ],
)
def test_damaged_runs_are_named(sweep, tmp_path, damage, message):
    path = sweep.save(tmp_path / "a")
    damage(path)
    with pytest.raises(RunError, match=message):
        load_run(path)


def test_a_run_of_the_version_before_is_still_read_and_drawn(sweep, tmp_path):
    path = sweep.save(tmp_path / "a")
    record = json.loads((path / "run.json").read_text())
    record["schema_version"] = 2
    for own in record["sweeps"]:
        del own["noise"], own["checks"]
    (path / "run.json").write_text(json.dumps(record))
    pd.read_parquet(path / "curves.parquet").drop(columns="noise_floor").to_parquet(path / "curves.parquet", index=False)
    (again,) = load_run(path)
    assert "noise floor" in al.plot_curves(sweep.curves()).to_json()
    assert torch.equal(again.delta_p, sweep.delta_p)
    assert pd.isna(again.noise_floor)
    for curves in (again.curves(controls=True), load_curves(path)):
        figure = al.plot_curves(curves)
        assert figure.data
        assert "noise floor" not in figure.to_json()


def test_target_is_checked_before_the_work(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is there and is not a run"):
        check_target(tmp_path / "file")
    with pytest.raises(RunError, match="cannot be written"):
        check_target(tmp_path / "file" / "run")
    assert check_target(tmp_path / "new" / "deep") == tmp_path / "new" / "deep"


def test_repr_and_notebook_table_name_shape_and_counts(sweep):
    text = repr(sweep)
    assert "delta_p [anchor 2, layer 2, example 5]" in text
    assert "readout first_token" in text
    assert "dropped: none" in text
    assert "<table" in sweep._repr_html_()
    assert "n = 5" in sweep._repr_html_()


def test_no_two_of_the_same_sweep(sweep, tmp_path):
    with pytest.raises(RunError, match="each only once"):
        save_run([sweep, sweep], tmp_path / "a")
    with pytest.raises(RunError, match="at least one sweep"):
        save_run([], tmp_path / "a")
