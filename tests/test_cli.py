"""The command line as a user meets it: in a process of its own, and in this one where that is enough."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from anchorlens import cli
from anchorlens.cli_input import data_files, parse_layers
from anchorlens.errors import InputError
from tests.questions.make import CAPITALS

ROOT = Path(__file__).resolve().parents[1]


def shell(*args, code=0, **options):
    """Run ``anchorlens`` in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "anchorlens", *args], capture_output=True, text=True, cwd=ROOT, **options)
    assert done.returncode == code, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    return done


def here(capsys, *args, code=0):
    """The same in this process, which has the heavy imports already."""
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(a) for a in args])
    out = capsys.readouterr()
    assert stopped.value.code == code, out.err
    return out


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    path = tmp_path_factory.mktemp("questions") / "mine.jsonl"
    rows = [
        {
            "question": f"What is the capital of {c}?",
            "answers": [a],
            "subject": c,
            "property": "capital",
            "relation": "capital",
        }
        for c, a in CAPITALS.items()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def args(tiny, questions):
    """A whole run on a small random model."""
    return ["run", "--model", str(tiny("llama")), "--dataset", "mine", "--data-file", str(questions), "--align", "last",
            "--n-donors", "1", "--limit", "5", "--device", "cpu"]  # fmt: skip


def test_run_and_figure_end_to_end(capsys, args, tiny, tmp_path):
    out = here(capsys, *args, "--model", tiny("gpt2"), "--out", tmp_path / "a")
    assert "Strongest effect of each curve" in out.out
    assert "mine (llama): 5 questions; dropped: none" in out.out
    assert f"figure  {tmp_path / 'a' / 'figure.html'}" in out.out
    curves = pd.read_parquet(tmp_path / "a" / "curves.parquet")
    assert set(curves["model"]) == {"llama", "gpt2"}
    assert set(curves["anchor"]) == {"question", "answer_site"}
    here(capsys, "figure", tmp_path / "a", "--anchors", "question", "--out", tmp_path / "f.html")
    assert "plotly" in (tmp_path / "f.html").read_text()


def test_json_is_one_object_on_standard_output(capsys, args, tmp_path):
    out = here(capsys, *args, "--quiet", "--json", "--layers", "0,2", "--out", tmp_path / "a")
    record = json.loads(out.out)
    assert record["run"] == str(tmp_path / "a")
    assert {row["anchor"] for row in record["summary"]} == {"question", "answer_site"}
    assert record["counts"][0]["evaluated"] == 5
    samples = pd.read_parquet(tmp_path / "a" / "samples.parquet")
    assert sorted(samples["layer"].unique()) == [0, 2]


def test_config_file_lies_under_the_flags(capsys, args, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('layers = "1"\nseed = 5\nn-donors = 2\nanchors = ["subject"]\nquiet = true\n')
    here(capsys, *args, "--config", config, "--seed", "7", "--out", tmp_path / "a")
    sweep = json.loads((tmp_path / "a" / "run.json").read_text())["sweeps"][0]["config"]
    assert (sweep["layers"], sweep["seed"], sweep["n_donors"], sweep["anchors"]) == ([1], 7, 1, ["subject"])


def test_config_alone_is_enough(capsys, tiny, questions, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(
        f'model = ["{tiny("llama")}"]\ndataset = ["mine"]\ndata_file = ["mine={questions}"]\nalign = "last"\n'
        f'limit = 3\nlayers = [0]\nquiet = true\nout = "{tmp_path / "a"}"\n'
    )
    here(capsys, "run", "--config", config)
    assert (tmp_path / "a" / "run.json").is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limitt = 3\n", "unknown key 'limitt'. Did you mean 'limit'"),
        ("limit = \n", "is not TOML"),
        ("[limit]\nx = 1\n", "'limit' must be a value or a list, not a table"),
    ],
)
def test_bad_config(capsys, args, tmp_path, text, message):
    (tmp_path / "run.toml").write_text(text)
    assert message in here(capsys, *args, "--config", tmp_path / "run.toml", "--out", tmp_path / "a", code=2).err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--anchors", "questoin"], "Unknown anchor 'questoin'. Did you mean 'question'"),
        (["--readout", "first_tokens"], "Did you mean 'first_token'"),
        (["--layers", "0-9"], "layers must be different numbers from 0 to 2"),
        (["--layers", "a"], "--layers 'a' is not understood. Write 0-11"),
        (["--limit", "0"], "limit must be at least 1"),
        (["--limit", "x"], "'x' is not a valid integer"),
        (["--protocol", "knock"], "'knock' is not one of 'swap', 'knockout'"),
        (["--dataset", "popqq"], "popqq"),
        (["--data-file", "nothing.jsonl"], "2 --data-file for 1 --dataset"),
        (["--modle", "x"], "No such option"),
        (["--prompt", "few"], "Unknown prompt 'few'"),
        (["--device", "tpu"], "tpu"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, args, tmp_path, change, message):
    out = here(capsys, *args, *change, "--quiet", "--out", tmp_path / "a", code=2)
    assert message in out.err
    assert out.out == ""
    assert not (tmp_path / "a").exists()


def test_unknown_model_names_the_nearest(capsys, questions, tmp_path):
    base = ["run", "--dataset", "mine", "--data-file", questions, "--out", tmp_path / "a"]
    assert "smollm2-135m-instruct" in here(capsys, *base, "--model", "smollm2-135m-instrukt", code=2).err


def test_missing_options_point_to_help(capsys):
    assert "--model is missing. See `anchorlens run --help`" in here(capsys, "run", code=2).err


def test_an_existing_run_is_safe_and_said_before_the_work(capsys, args, tmp_path):
    here(capsys, *args, "--quiet", "--layers", "0", "--out", tmp_path / "a")
    before = (tmp_path / "a" / "samples.parquet").read_bytes()
    started = time.monotonic()
    assert "holds a run already" in here(capsys, *args, "--out", tmp_path / "a", code=2).err
    assert time.monotonic() - started < 2
    assert (tmp_path / "a" / "samples.parquet").read_bytes() == before
    here(capsys, *args, "--quiet", "--layers", "1", "--out", tmp_path / "a", "--overwrite")
    assert (tmp_path / "a" / "samples.parquet").read_bytes() != before


def test_a_set_without_rows_does_not_take_the_others_with_it(capsys, args, tmp_path):
    lonely = tmp_path / "lonely.jsonl"
    lonely.write_text(
        json.dumps({"question": "Who wrote Emma?", "answers": ["Austen"], "subject": "Emma", "property": "wrote"})
    )
    out = here(
        capsys, *args, "--quiet", "--dataset", "lonely", "--data-file", f"lonely={lonely}", "--out", tmp_path / "a", code=1
    )
    assert "No row is left to measure in lonely. Dropped: no_donor 1" in out.err
    assert "1 of 2 sweeps had no row; the others are saved." in out.err
    assert set(pd.read_parquet(tmp_path / "a" / "samples.parquet")["dataset"]) == {"mine"}


def test_figure_of_something_that_is_no_run(capsys, tmp_path):
    assert "is not a run: it has no run.json" in here(capsys, "figure", tmp_path, "--out", tmp_path / "f.html", code=2).err
    assert not (tmp_path / "f.html").exists()


@pytest.mark.parametrize("command", ["models", "datasets"])
def test_listings_for_people_and_scripts(capsys, command):
    table = here(capsys, command).out
    records = json.loads(here(capsys, command, "--json").out)
    for record in records:
        assert record["name"] in table
    names = {record["name"] for record in records}
    wanted = {"models": "smollm2-135m-instruct", "datasets": "popqa-sample"}
    assert wanted[command] in names


def test_help_teaches():
    for command in ("run", "figure", "models", "datasets"):
        text = CliRunner().invoke(cli.cli, [command, "--help"]).output
        assert "anchorlens" in text
        assert "Examples:" in text


def test_ctrl_c_leaves_no_half_file(args, tmp_path):
    """Stopped in the middle of the forward passes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "anchorlens", *args, "--limit", "12", "--n-donors", "9", "--batch-size", "1",
         "--out", str(tmp_path / "a")],
        cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stderr is not None
    seen = ""
    while "cell/s" not in seen:
        piece = process.stderr.read(1)
        assert piece, seen
        seen += piece
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)
    assert process.returncode == 1, rest
    assert "Stopped. Nothing was written." in rest[1]
    assert "Traceback" not in rest[1]
    assert [*tmp_path.iterdir()] == []


def test_starts_quickly_and_without_torch():
    """Best of five, because the machine may be busy: import under 0.3 s, help under 0.5 s."""
    code = (
        "import time; t = time.perf_counter(); import anchorlens; d = time.perf_counter() - t; "
        "import sys; print(d, 'torch' in sys.modules)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT).stdout.split() for _ in range(5)
    ]
    assert {run[1] for run in runs} == {"False"}
    assert min(float(run[0]) for run in runs) < 0.3
    times = []
    for _ in range(5):
        started = time.perf_counter()
        assert "anchorlens changes activations" in shell("--help").stdout
        times.append(time.perf_counter() - started)
    assert min(times) < 0.5


def test_layer_specs():
    assert parse_layers(None) is None
    assert parse_layers("all") is None
    assert parse_layers("0-3") == [0, 1, 2, 3]
    assert parse_layers("0,4, 8") == [0, 4, 8]
    assert parse_layers("0-28:7") == [0, 7, 14, 21, 28]
    for bad in ("x", "1-", "-1", "0-4:0", "1..3"):
        with pytest.raises(InputError):
            parse_layers(bad)


def test_files_go_to_data_sets_by_name_or_order(tmp_path):
    assert data_files(["a", "b"], ["x", "y"]) == {"a": "x", "b": "y"}
    assert data_files(["a", "b"], ["b=x", "y"]) == {"b": "x", "a": "y"}
    with pytest.raises(InputError, match="no --dataset is called 'pop'. Did you mean 'popqa'"):
        data_files(["popqa"], ["pop=x.jsonl"])
    with pytest.raises(InputError, match="2 --data-file for 1 --dataset"):
        data_files(["a"], ["x", "y"])


def test_knockout_from_a_shell(capsys, tiny, tmp_path):
    model, out = str(tiny("llama")), tmp_path / "ko"
    run = ["run", "--model", model, "--dataset", "popqa-sample", "--limit", "90", "--protocol", "knockout", "--device", "cpu",
           "--resamples", "100", "--layers", "0-1", "--edges", "subject -> later", "--mode", "zero", "--out", out]  # fmt: skip
    said = here(capsys, *run)
    assert "Knockout at k*" in said.out
    assert "popqa-sample (llama): The probe" in said.out
    curves = pd.read_parquet(out / "curves.parquet")
    assert set(curves["pathway"]) == {"Q-Anchored", "A-Anchored", "All"}
    assert set(curves["mode"]) == {"zero"}
    assert set(curves["anchor"]) == {"subject"}
    assert set(pd.read_parquet(out / "effects.parquet")["quantity"]) == {
        "auc",
        "auc_knocked_out",
        "gap",
        "placebo_gap",
        "effect",
    }
    assert len(list((out / "probes").glob("*/probes.safetensors"))) == 1
    answer = json.loads(here(capsys, *run, "--overwrite", "--json", "--quiet").out)
    assert answer["verdicts"][0]["verdict"] in said.out
    assert "effect_random_tokens" in answer["summary"][0]
    here(capsys, "figure", out, "--out", tmp_path / "f.html")
    assert "Placebo gap" in (tmp_path / "f.html").read_text(encoding="utf8")


@pytest.mark.parametrize(
    ("protocol", "option", "said"),
    [
        ("knockout", ("--donors", "random"), "--donors belongs to --protocol swap; this run has --protocol knockout"),
        ("swap", ("--mode", "zero"), "--mode belongs to --protocol knockout; this run has --protocol swap"),
        ("knockout", ("--edges", "question"), "Write 'source -> target'"),
        ("knockout", ("--readout", "first_token"), "Unknown readout='first_token'"),
        ("swap", ("--readout", "prob"), "Did you mean 'probe'"),
    ],
)
def test_options_of_the_other_protocol_and_bad_values(capsys, args, tmp_path, protocol, option, said):
    keep = args if protocol == "swap" else [a for a in args if a not in ("--align", "last", "--n-donors", "1")]
    out = here(capsys, *keep, "--protocol", protocol, *option, "--out", tmp_path / "a", code=2)
    assert said in out.err
    assert not (tmp_path / "a").exists()


def test_a_dry_run_says_what_it_would_cost_and_writes_nothing(capsys, args, tiny, tmp_path):
    out = here(capsys, *args, "--dry-run", "--out", tmp_path / "a").out
    assert re.fullmatch(
        r"\S*llama on mine: 5 rows, \d+ cells in \d+ batches; engine cone \(fused\); about \d+ GFLOP, [\d.]+ s, "
        r"at most \d+ MB beside the model\n",
        out,
    )
    assert not (tmp_path / "a").exists()
    plans = json.loads(here(capsys, *args, "--model", tiny("gpt2"), "--dry-run", "--json", "--engine", "reference").out)
    assert [(p["dataset"], p["engine"], p["rows"]) for p in plans] == [("mine", "reference", 5)] * 2
    assert all(p["cells"] > 0 and p["peak_bytes"] > 0 and p["seconds"] >= 0 for p in plans)


def test_a_dry_run_of_a_knockout(capsys, tiny):
    out = here(capsys, "run", "--model", tiny("llama"), "--dataset", "popqa-sample", "--limit", "60", "--protocol", "knockout",
               "--device", "cpu", "--dry-run").out  # fmt: skip
    assert re.search(r"llama on popqa-sample: \d+ rows, [\d,]+ cells in \d+ batches; engine cone", out)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--max-memory", "1MB"), "max_memory is 1 MB, and with the smallest batches this sweep needs about"),
        (("--max-memory", "lots"), "max_memory='lots' is not understood"),
        (("--engine", "cones"), "Unknown engine='cones'. Did you mean 'cone'"),
        (("--check-cells", "-1"), "check_cells must be at least 0, got -1"),
    ],
)
def test_bad_engine_options(capsys, args, tmp_path, option, said):
    err = here(capsys, *args, *option, "--out", tmp_path / "a", code=2).err
    assert said in err
    assert not (tmp_path / "a").exists()
