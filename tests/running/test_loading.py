"""Run directories become results again."""

import warnings

import pandas as pd
import pytest

import anchorlens as al
from anchorlens.errors import InputError, RunError
from anchorlens.protocols.probe_sweep.pathway_result import PathwayResult
from anchorlens.protocols.registry import PROTOCOLS, function_of, measurement_of, specification_of
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.checksums import write_sums


@pytest.mark.slow
def test_results_are_read_as_they_were_written(tiny_model, plain, tmp_path):
    """A swap and a knockout of one model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        knockout = al.knockout_sweep(
            tiny_model("llama"),
            al.load_qa("popqa-sample", limit=45),
            layers=[0, 2],
            n_splits=1,
            n_resamples=20,
            progress=False,
        )
    path = al.save_run([plain, knockout], tmp_path / "run")
    read = al.load_run(path)
    assert [type(result) for result in read] == [SweepResult, PathwayResult]
    for result, wanted in zip(read, (plain, knockout), strict=True):
        assert result.protocol is wanted.protocol
        assert repr(result) == repr(wanted)
        pd.testing.assert_frame_equal(result.samples(), wanted.samples())
        pd.testing.assert_frame_equal(result.contrasts(), wanted.contrasts())
        pd.testing.assert_frame_equal(result.curves(controls=True), wanted.curves(controls=True))
    assert len(al.load_curves(path)) == sum(
        len(one.curves(controls=True)) for one in (plain, knockout)
    )
    (weights,) = (path / "probes" / read[1].run_id).glob("*.safetensors")
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RunError, match=r"probes\.safetensors has other bytes"):
        _ = al.load_run(path)[1].probes
    weights.write_bytes(whole)
    text = (path / "run.json").read_text()
    (path / "run.json").write_text(text.replace('"protocol": "swap"', '"protocol": "swop"'))
    write_sums(path)
    with pytest.raises(InputError, match="'swap'"):
        al.load_run(path)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_of_the_registry_is_whole(name):
    spec, protocol = specification_of(name), measurement_of(name)
    assert (spec.NAME, protocol.name, protocol.spec) == (name, name, spec)
    assert issubclass(protocol.analysis.result, SweepResult)
    assert protocol.analysis.title[0].islower()
    function = function_of(name)
    assert getattr(al, function).__name__ == function
    assert getattr(al, spec.__name__) is spec


@pytest.mark.slow
def test_figures_take_run_directories_in_place_of_results(plain, tmp_path):
    path = plain.save(tmp_path / "run")
    wanted = al.plot_curves(plain)
    assert (
        al.plot_curves(path) == al.plot_curves(str(path)) == al.plot_curves([path, plain]) == wanted
    )
    assert al.plot_curves({"mine": path}) == al.plot_curves({"mine": plain})
    assert al.plot_heatmap(path) == al.plot_heatmap(plain)
    assert al.plot_curves(path, metric="logit_diff") == al.plot_curves(plain, metric="logit_diff")
    assert (al.compare([path], plain, n_resamples=20).table()["difference"] == 0).all()
    assert al.explore(path).data == al.explore(plain).data


@pytest.mark.parametrize(
    "function",
    [
        al.plot_curves,
        al.plot_heatmap,
        al.plot_probe_auc,
        al.plot_pathway_sizes,
        al.explore,
        lambda path: al.compare(path, path),
        lambda path: al.save_report(path, path / "report.html"),
    ],
)
def test_a_directory_that_is_no_run_is_named(function, tmp_path):
    with pytest.raises(InputError, match="run.json"):
        function(tmp_path)
