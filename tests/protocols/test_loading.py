"""Run directories become results again, those of older versions too."""

import json
import warnings

import pandas as pd
import pytest
import torch

import anchorlens as al
from anchorlens.errors import InputError
from anchorlens.protocols.registry import PROTOCOLS, protocol_of, specification_of
from anchorlens.results.pathways import PathwayResult
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import SETTINGS, SLOT_TYPES
from tests.older_runs import aged
from tests.protocols.small_sweeps import sweep as swept


@pytest.fixture(scope="module")
def both(tiny_model):
    """A swap and a knockout of one model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        knockout = al.knockout_sweep(tiny_model("llama"), al.load_qa("popqa-sample", limit=60), n_resamples=50, progress=False)
    return swept(tiny_model("llama")), knockout


def test_what_a_result_is_its_protocols_name_says(both, tmp_path):
    read = al.load_run(al.save_run(both, tmp_path / "run"))
    assert [type(result) for result in read] == [SweepResult, PathwayResult]
    for result, wanted in zip(read, both, strict=True):
        assert result.protocol is wanted.protocol
        assert repr(result) == repr(wanted)
        pd.testing.assert_frame_equal(result.effects(), wanted.effects())


SLOTS = list(SLOT_TYPES)
UNKNOWN = ["null_short", "pair_text", "pair_text_low"]


def without_text(effects):
    """What text tells beside the probe was not measured before version 5."""
    return effects[effects["quantity"] != "auc_beyond_text"].reset_index(drop=True)


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("which", [0, 1])
def test_a_run_of_an_older_version_is_still_read_and_drawn(both, tmp_path, version, which):
    sweep = both[which]
    path = aged(sweep.save(tmp_path / "a"), version)
    assert ("quantity" in pd.read_parquet(path / "samples.parquet")) is (version == 4)
    assert "sim_low" not in pd.read_parquet(path / "curves.parquet")
    (again,) = al.load_run(path)
    assert torch.equal(again.delta_p, sweep.delta_p)
    pd.testing.assert_frame_equal(again.samples().drop(columns=SLOTS), sweep.samples().drop(columns=SLOTS))
    assert again.samples()[SLOTS].isna().all(axis=None)
    pd.testing.assert_frame_equal(again.effects(), without_text(sweep.effects()))
    assert "noise floor" in al.plot_curves(sweep.curves()).to_json()
    if version == 2:
        assert pd.isna(again.noise_floor)
    else:
        mine, theirs = (one.curves(controls=True).drop(columns=UNKNOWN) for one in (again, sweep))
        pd.testing.assert_frame_equal(mine, theirs)
        later = [*SETTINGS, "sim_low", "sim_high", "text_only"]
        stored = al.load_curves(path)
        pd.testing.assert_frame_equal(stored[theirs.columns].drop(columns=later), theirs.drop(columns=later))
        assert stored[["sim_low", "sim_high"]].isna().all(axis=None)
    for curves in (again.curves(controls=True), al.load_curves(path)):
        figure = al.plot_curves(curves)
        assert figure.data
        assert ("noise floor" in figure.to_json()) is (version > 2)
    # As it lies on the disk, too.
    assert al.plot_curves(pd.read_parquet(path / "curves.parquet")).data


def test_a_run_of_version_5_lacks_the_tokens_texts_alone(both, tmp_path):
    (again,) = al.load_run(aged(both[1].save(tmp_path / "a"), 5))
    pd.testing.assert_frame_equal(again.examples(), both[1].examples().drop(columns="tokens"), check_dtype=False)
    pd.testing.assert_frame_equal(again.curves(controls=True), both[1].curves(controls=True))


def test_an_older_run_saved_again_is_one_of_today(both, tmp_path):
    (again,) = al.load_run(aged(both[1].save(tmp_path / "a"), 3))
    path = again.save(tmp_path / "b")
    assert json.loads((path / "run.json").read_text())["schema_version"] == 6
    wanted = both[1].save(tmp_path / "c")
    for name in ("samples", "curves", "effects", "examples"):
        mine, theirs = (pd.read_parquet(folder / f"{name}.parquet") for folder in (path, wanted))
        theirs = without_text(theirs) if name == "effects" else theirs
        pd.testing.assert_frame_equal(*(one.drop(columns=[*UNKNOWN, "tokens"], errors="ignore") for one in (mine, theirs)))


def test_a_protocol_that_nobody_knows_is_named(both, tmp_path):
    path = both[0].save(tmp_path / "a")
    text = (path / "run.json").read_text()
    (path / "run.json").write_text(text.replace('"protocol": "swap"', '"protocol": "swop"'))
    with pytest.raises(InputError, match="Unknown protocol 'swop'. Did you mean 'swap'"):
        al.load_run(path)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_of_the_registry_is_whole(name):
    spec, protocol = specification_of(name), protocol_of(name)
    assert (spec.NAME, protocol.name, protocol.spec) == (name, name, spec)
    assert issubclass(protocol.result, SweepResult)
    assert protocol.title[0].islower()
    assert getattr(al, f"{name}_sweep").__name__ == f"{name}_sweep"
    assert getattr(al, spec.__name__) is spec
