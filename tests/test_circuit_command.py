"""`anchorlens circuit`: the table, the score, the file, bad input."""

import json

import pytest
from click.testing import CliRunner

import anchorlens as al
from anchorlens.cli import cli
from tests.protocols.edges.test_circuit import pairs_of


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("circuit") / "run"
    al.edge_sweep(
        str(tiny("llama")),
        pairs_of(4),
        method="attribution",
        controls="none",
        progress=False,
        out=folder,
    )
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [
        {name: getattr(pair, name) for name in ("clean", "corrupted", "answer", "wrong")}
        for pair in pairs_of(6).pairs
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def call(*args):
    return CliRunner().invoke(cli, ["circuit", *map(str, args)], catch_exceptions=True)


@pytest.mark.slow
def test_a_circuit_is_printed_and_written(run, tmp_path):
    out = tmp_path / "deep" / "importances.json"
    found = call(run, "--top", 12, "--out", out)
    assert found.exit_code == 0, found.output
    assert "Circuit of 12 of" in found.output
    (sweep,) = al.load_run(run)
    assert al.load_circuit(out).edges == sweep.circuit(12).edges


@pytest.mark.slow
def test_it_is_scored_on_other_pairs(run, pairs, tiny):
    found = call(run, "--top", 12, "--pairs", pairs, "--model", tiny("llama"), "--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert len(told["edges"]) == 12
    assert told["faithfulness"][-1]["share"] == 1
    assert told["faithfulness"][-1]["faithfulness"] == pytest.approx(1, abs=1e-3)
    assert set(told["cpr"]) == {"value", "low", "high"}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--sizes", "3"], "Give --pairs too"),
        (["--pairs", "x.csv", "--sizes", "a"], "write numbers of edges"),
        (["--rule", "gready"], "greedy"),
        (["--top", "100000"], "--top 100000"),
    ],
)
def test_bad_input_is_one_error(run, args, words):
    found = call(run, *args)
    assert found.exit_code == 2
    assert words in found.output
    assert "Traceback" not in found.output


def test_a_run_without_edges_is_refused(tmp_path):
    assert call(tmp_path / "none").exit_code == 2
