"""The command line as a user meets it: in a process of its own, and in this one where that is enough."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import psutil
import pytest
from click.testing import CliRunner

from anchorlens import cli
from anchorlens.cli.given import data_files
from anchorlens.cli.protocol_command import flags_of
from anchorlens.errors import CheckError, InputError
from anchorlens.protocols.registry import PROTOCOLS, specification_of
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
    return ["swap", "--model", str(tiny("llama")), "--dataset", "mine", "--data-file", str(questions), "--align", "last",
            "--n-donors", "1", "--limit", "5", "--device", "cpu"]  # fmt: skip


def test_swap_and_figure_end_to_end(capsys, args, tiny, tmp_path):
    out = here(capsys, *args, "--model", tiny("gpt2"), "--out", tmp_path / "a")
    assert "Largest |ΔP| of each curve" in out.out
    assert "swap: mine (llama)" in out.out
    assert "5 measured rows; dropped: none" in out.out
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
    config.write_text('layers = "1"\nseed = 5\nn-donors = 2\nresamples = 50\nanchors = ["subject"]\nquiet = true\n')
    here(capsys, *args, "--config", config, "--seed", "7", "--out", tmp_path / "a")
    sweep = json.loads((tmp_path / "a" / "run.json").read_text())["sweeps"][0]["config"]
    found = (sweep["layers"], sweep["seed"], sweep["n_donors"], sweep["anchors"], sweep["n_resamples"])
    assert found == ([1], 7, 1, ["subject"], 50)


def test_config_alone_is_enough(capsys, tiny, questions, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(
        f'model = ["{tiny("llama")}"]\ndataset = ["mine"]\ndata_file = ["mine={questions}"]\nalign = "last"\n'
        f'limit = 3\nlayers = [0]\nquiet = true\nout = "{tmp_path / "a"}"\n'
    )
    here(capsys, "swap", "--config", config)
    assert (tmp_path / "a" / "run.json").is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [("limitt = 3\n", "'limitt'. Did you mean 'limit'"), ("limit = \n", "is not TOML"), ("[limit]\nx = 1\n", "not a table")],
)
def test_bad_config(capsys, args, tmp_path, text, message):
    (tmp_path / "run.toml").write_text(text)
    assert message in here(capsys, *args, "--config", tmp_path / "run.toml", "--out", tmp_path / "a", code=2).err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--anchors", "questoin"], "Unknown anchor 'questoin'. Did you mean 'question'"),
        (["--readout", "first_tokens"], "Did you mean 'first_token'? (--readout)"),
        (["--engine", "cones"], "Did you mean 'cone'? (--engine)"),
        (["--layers", "0-9"], "from 0 to 2, got (0, 1, 2, 3, 4, 5, 6, 7, 8, 9). (--layers)"),
        (["--layers", "a"], "(--layers)"),
        (["--n-donors", "2.5"], "'--n-donors': '2.5' is not a valid integer"),
        (["--check-cells", "-1"], "(--check-cells)"),
        (["--max-memory", "lots"], "(--max-memory)"),
        (["--max-memory", "1MB"], "with the smallest batches this sweep needs about"),
        (["--donors", "zero", "--direction", "denoising"], "(--donors, --direction)"),
        (["--limit", "0"], "limit must be at least 1"),
        (["--limit", "x"], "'x' is not a valid integer"),
        (["--dataset", "popqq"], "popqq"),
        (["--data-file", "nothing.jsonl"], "2 --data-file for 1 data set"),
        (["--columns", "question"], "question=q,answers=gold"),
        (["--modle", "x"], "No such option"),
        (["--prompt", "few"], "Unknown prompt 'few'"),
        (["--add-bos", "maybe"], "'maybe' is not a valid boolean"),
        (["--device", "tpu"], "tpu"),
        (["--n-devices", "2"], "(--n-devices, --device)"),
        (["--dtype", "float13"], "float13"),
        (["--readout", "prob"], "Did you mean 'probe'"),
        (["--edges", "question -> later"], "No such option '--edges'."),
        (["--workers", "2"], "(--workers, --executor)"),
        (["--executor", "dask"], "executor takes 'ray'"),
        (["--shard", "4/3"], "shard takes i/n"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, args, tmp_path, change, message):
    out = here(capsys, *args, *change, "--quiet", "--out", tmp_path / "a", code=2)
    assert message in out.err
    assert out.out == ""
    assert [*tmp_path.iterdir()] == []
    assert max(map(len, out.err.splitlines())) < 500


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--donors", "random"), "No such option '--donors'"),
        (("--edges", "question"), "(--edges)"),
        (("--readout", "first_token"), "(--readout)"),
        (("--layers", "0,0"), "(--layers)"),
    ],
)
def test_bad_input_to_another_protocol(capsys, args, tmp_path, option, message):
    given = [one for one in args[1:] if one not in ("--align", "last", "--n-donors", "1")]
    assert message in here(capsys, "knockout", *given, *option, "--out", tmp_path / "a", code=2).err
    assert not (tmp_path / "a").exists()


def test_unknown_model_names_the_nearest(capsys, questions, tmp_path):
    base = ["swap", "--dataset", "mine", "--data-file", questions, "--out", tmp_path / "a"]
    assert "Did you mean 'meta-llama/Llama-3.2-1B'?" in here(capsys, *base, "--model", "llama-3.2-1b", code=2).err


def test_a_typo_in_the_second_model_costs_seconds_not_the_first_one(capsys, args, tmp_path, monkeypatch):
    """Every name is looked at before the first model is loaded."""
    from anchorlens.running import executors as hands

    monkeypatch.setattr(hands, "load_model", lambda *a, **k: pytest.fail("a model was loaded"))
    err = here(capsys, *args, "--model", "smolm2-135m-instruct", "--out", tmp_path / "a", code=2).err
    assert "Did you mean 'smollm2-135m-instruct'?" in err
    assert not (tmp_path / "a").exists()


def test_missing_options_point_to_help(capsys):
    assert "--model is missing. See `anchorlens swap --help`" in here(capsys, "swap", code=2).err
    assert "Missing argument 'STUDY.toml'" in here(capsys, "run", code=2).err


def test_an_existing_run_is_safe_and_said_before_the_work(capsys, args, tmp_path):
    here(capsys, *args, "--quiet", "--layers", "0", "--out", tmp_path / "a")
    before = (tmp_path / "a" / "samples.parquet").read_bytes()
    started = time.monotonic()
    said = here(capsys, *args, "--out", tmp_path / "a", code=2).err
    assert said.endswith("holds a run already. Choose another path, or give overwrite=True. (--overwrite)\n")
    assert time.monotonic() - started < 2
    assert (tmp_path / "a" / "samples.parquet").read_bytes() == before
    here(capsys, *args, "--quiet", "--layers", "1", "--out", tmp_path / "a", "--overwrite")
    assert (tmp_path / "a" / "samples.parquet").read_bytes() != before


def test_an_overwritten_run_stays_until_there_is_something_in_its_place(capsys, args, tmp_path):
    here(capsys, *args, "--quiet", "--layers", "0", "--out", tmp_path / "a")
    before = (tmp_path / "a" / "samples.parquet").read_bytes()
    here(capsys, *args, "--quiet", "--layers", "7", "--out", tmp_path / "a", "--overwrite", code=2)
    assert (tmp_path / "a" / "samples.parquet").read_bytes() == before


def lonely(tmp_path):
    """A set of which no row can be measured."""
    path = tmp_path / "lonely.jsonl"
    path.write_text(json.dumps({"question": "Who wrote Emma?", "answers": ["Austen"], "subject": "Emma", "property": "wrote"}))
    return path


def test_a_set_without_rows_does_not_take_the_others_with_it(capsys, args, tmp_path):
    out = here(
        capsys, *args, "--quiet", "--dataset", "lonely", "--data-file", f"lonely={lonely(tmp_path)}", "--out", tmp_path / "a", code=1
    )  # fmt: skip
    assert "No row is left to measure in lonely. Dropped: no_donor 1" in out.err
    assert "(--donors)" in out.err
    assert out.err.count("No row is left") == 1
    assert "1 of 2 sweeps had no row; the others are saved." in out.err
    assert set(pd.read_parquet(tmp_path / "a" / "samples.parquet")["dataset"]) == {"mine"}


def test_what_is_finished_stays_when_a_later_sweep_fails(capsys, args, tiny, tmp_path, monkeypatch):
    from anchorlens.running import study

    real, seen = study.carried_out, []

    def fails_second(*given):
        seen.append(given)
        if len(seen) == 2:
            raise CheckError("The cone engine and the oracle differ by 3 points.")
        return real(*given)

    monkeypatch.setattr(study, "carried_out", fails_second)
    out = here(capsys, *args, "--quiet", "--model", tiny("gpt2"), "--out", tmp_path / "a", code=1)
    assert f"differ by 3 points. 1 of 2 sweeps is finished and kept in {tmp_path / 'a'}." in out.err
    assert set(pd.read_parquet(tmp_path / "a" / "samples.parquet")["model"]) == {"llama"}
    assert (tmp_path / "a" / "figure.html").is_file()
    record = json.loads((tmp_path / "a" / "run.json").read_text())
    assert record["pending"] == [f"swap: {tiny('gpt2')} on mine"]


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


@pytest.mark.parametrize("name", list(PROTOCOLS))
def test_a_command_has_its_protocols_options_and_no_others(name):
    """Each with the help and the default that the specification declares."""
    spec = specification_of(name)
    text = " ".join(CliRunner().invoke(cli.cli, [name, "--help"], terminal_width=400, max_content_width=400).output.split())
    assert "Examples:" in text
    for argument, flag in flags_of(spec).items():
        one, default = spec.arguments()[argument], spec.model_fields[argument].get_default()
        assert flag in text
        assert " ".join(one.help.split()) in text
        if isinstance(default, str | int) and not isinstance(default, bool):
            assert f"{one.help} [default: {default}]" in text
    others = {flag for other in PROTOCOLS for flag in flags_of(specification_of(other)).values()}
    for foreign in others - set(flags_of(spec).values()):
        assert f"{foreign} " not in text


def accept_ctrl_c():
    """In a child: under nohup, or after `&` in a script, SIGINT would be ignored there too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGTERM"])
def test_a_signal_leaves_no_half_file(args, tmp_path, signal_name):
    """Stopped in the middle of the forward passes."""
    given = [*args, "--limit", "12", "--n-donors", "9", "--batch-size", "1", "--out", str(tmp_path / "a")]
    code = _STOPS_ITSELF.replace("SIGINT", signal_name)
    done = subprocess.run(
        [sys.executable, "-c", code, *given], cwd=ROOT, capture_output=True, text=True, timeout=120, preexec_fn=accept_ctrl_c
    )
    assert done.returncode == 1, done.stderr
    assert "Stopped. Nothing was written." in done.stderr
    assert "Traceback" not in done.stderr
    assert [*tmp_path.iterdir()] == []


# Sends itself the signal of Ctrl-C when some cells are done.
_STOPS_ITSELF = """
import os, signal, sys
from anchorlens import progress
from anchorlens.cli import main
real = progress.Progress.advance
def advance(self, work):
    real(self, work)
    if self.unit == "cell" and self.done > 20:
        os.kill(os.getpid(), signal.SIGINT)
progress.Progress.advance = advance
main(sys.argv[1:])
"""


def test_ctrl_c_keeps_the_sweeps_that_are_finished(args, tiny, tmp_path):
    code = _STOPS_ITSELF.replace('self.unit == "cell"', '"gpt2" in self.label')
    done = subprocess.run(
        [sys.executable, "-c", code, *args, "--model", str(tiny("gpt2")), "--out", str(tmp_path / "a")],
        cwd=ROOT, capture_output=True, text=True, timeout=120, preexec_fn=accept_ctrl_c,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert f"Stopped. 1 of 2 sweeps is finished and kept in {tmp_path / 'a'}." in done.stderr
    assert set(pd.read_parquet(tmp_path / "a" / "curves.parquet")["model"]) == {"llama"}


def test_starts_quickly_and_without_heavy_imports():
    """Best of three, because the machine may be busy."""
    heavy = "print(*({'torch', 'pandas', 'transformer_lens'} & set(sys.modules)))"
    for code, seconds in (
        ("import anchorlens", 0.3),
        ("from anchorlens.cli import cli; cli.main(['--help'], standalone_mode=False)", 0.5),
        ("from anchorlens.cli import cli; cli.main(['swap', '--help'], standalone_mode=False)", 1.0),
    ):
        times = []
        for _ in range(3):
            started = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", f"import sys; {code}; {heavy}"], capture_output=True, text=True, cwd=ROOT
            )
            times.append(time.perf_counter() - started)
            assert done.stdout.splitlines()[-1] == "", done.stderr
        assert min(times) < seconds


def test_files_go_to_data_sets_by_name_or_order():
    assert data_files(["a", "b"], ["x", "y"]) == {"a": "x", "b": "y"}
    assert data_files(["a", "b"], ["b=x", "y"]) == {"b": "x", "a": "y"}
    with pytest.raises(InputError, match="no data set is called 'pop'. Did you mean 'popqa'"):
        data_files(["popqa"], ["pop=x.jsonl"])


def test_own_columns_and_a_file_in_place_of_a_name(capsys, args, tmp_path):
    file = tmp_path / "quiz.csv"
    rows = "".join(f'"What is the capital of {c}?",{a},{c},capital,capital\n' for c, a in CAPITALS.items())
    file.write_text("q,gold,subject,property,relation\n" + rows)
    model = args[args.index("--model") + 1]
    here(capsys, "swap", "--model", model, "--dataset", file, "--columns", "question=q,answers=gold", "--align", "last",
         "--layers", "0", "--n-donors", "1", "--device", "cpu", "--quiet", "--out", tmp_path / "a")  # fmt: skip
    assert set(pd.read_parquet(tmp_path / "a" / "curves.parquet")["dataset"]) == {"quiz"}


def test_knockout_from_a_shell(capsys, tiny, tmp_path):
    model, out = str(tiny("llama")), tmp_path / "ko"
    run = ["knockout", "--model", model, "--dataset", "popqa-sample", "--limit", "90", "--device", "cpu",
           "--resamples", "100", "--layers", "0-1", "--edges", "subject -> later", "--mode", "zero", "--out", out]  # fmt: skip
    said = here(capsys, *run)
    assert "Knockout at k*" in said.out
    assert "knockout: popqa-sample (llama)" in said.out
    curves = pd.read_parquet(out / "curves.parquet")
    assert set(curves["pathway"]) == {"Q-Anchored", "A-Anchored", "All"}
    assert set(curves["mode"]) == {"zero"}
    assert set(curves["anchor"]) == {"subject"}
    assert set(pd.read_parquet(out / "effects.parquet")["quantity"]) == {
        "delta_all", "flip_rate", "auc_drop", "own_change", "auc", "auc_knocked_out", "auc_beyond_text", "gap", "placebo_gap",
        "gap_difference", "cross_fold_gap", "selection",
    }  # fmt: skip
    assert len(list((out / "probes").glob("*/probes.safetensors"))) == 1
    answer = json.loads(here(capsys, *run, "--overwrite", "--json", "--quiet").out)
    assert answer["verdicts"][0]["verdict"] in said.out
    assert answer["findings"][0]["headline"] in answer["verdicts"][0]["verdict"]
    assert "own_change_low" in answer["summary"][0]
    here(capsys, "figure", out, "--out", tmp_path / "f.html")
    assert "Placebo gap" in (tmp_path / "f.html").read_text(encoding="utf8")


STUDY = """
models = ["{model}"]
device = "cpu"

[[data]]
name = "mine"
path = "{file}"
limit = 5

[[data]]
name = "popqa-sample"
limit = 60

[[protocol]]
name = "swap"
align = "last"
n-donors = 1
layers = "0,2"

[[protocol]]
name = "knockout"
layers = [0, 1]
n_resamples = 50
"""


def test_patch_takes_prompt_pairs_and_no_question_options(capsys, tiny, tmp_path):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("clean,corrupted,answer,wrong\nA B,A C,B,C\nB A,C A,B,C\n")
    out = tmp_path / "run"
    here(capsys, "patch", "--model", tiny("llama"), "--data", pairs, "--device", "cpu", "--layers", "0,2", "--out", out)
    samples = pd.read_parquet(out / "samples.parquet")
    assert set(samples["dataset"]) == {"pairs"}
    assert sorted(samples["layer"].unique()) == [0, 2]
    said = here(capsys, "patch", "--model", tiny("llama"), "--data", pairs, "--spans", "rules", "--out", out, code=2).err
    assert "--spans" in said
    assert "--data is missing" in here(capsys, "patch", "--model", tiny("llama"), "--out", out, code=2).err


def test_a_study_measures_every_protocol_on_every_set(capsys, tiny, questions, tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(STUDY.format(model=tiny("llama"), file=questions))
    out = here(capsys, "run", file, "--quiet", "--out", tmp_path / "a", code=1)
    assert "Warning: Few rows" in out.err
    # Five capitals are too few for a probe: said, and the others go on.
    assert "1 of 4 sweeps had no row; the others are saved." in out.err
    assert "1 of 4 sweeps done; figure" in out.err
    curves = pd.read_parquet(tmp_path / "a" / "curves.parquet")
    assert set(map(tuple, curves[["protocol", "dataset"]].drop_duplicates().to_numpy())) == {
        ("swap", "mine"), ("swap", "popqa-sample"), ("knockout", "popqa-sample"),
    }  # fmt: skip
    assert json.loads((tmp_path / "a" / "run.json").read_text())["pending"] == []
    plans = json.loads(here(capsys, "run", file, "--dry-run", "--json", code=1).out)
    assert [(p["dataset"], p["protocol"]) for p in plans] == [
        ("mine", "swap"),
        ("popqa-sample", "swap"),
        ("popqa-sample", "knockout"),
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("models =", "modles ="), "Did you mean 'models'"),
        (('name = "knockout"', 'name = "knockuot"'), "Did you mean 'knockout'"),
        (("n-donors = 1", "n-donor = 1"), "swap has no argument 'n_donor'. Did you mean 'n_donors'"),
        (("limit = 60", "limt = 60"), "[[data]] has an unknown key 'limt'. Did you mean 'limit'"),
        (('name = "popqa-sample"', 'name = "popqa-smaple"'), "No data set goes by the name 'popqa-smaple'"),
        (("layers = [0, 1]", "layers = [0, 0]"), "layers must be different numbers"),
    ],
)
def test_a_studys_mistakes_are_found_before_anything_is_loaded(capsys, tiny, questions, tmp_path, change, said):
    file = tmp_path / "study.toml"
    file.write_text(STUDY.format(model=tiny("llama"), file=questions).replace(*change))
    assert said in here(capsys, "run", file, "--quiet", "--out", tmp_path / "a", code=2).err
    assert not (tmp_path / "a").exists()


def test_a_dry_run_says_what_it_would_cost_and_writes_nothing(capsys, args, tiny, tmp_path):
    out = here(capsys, *args, "--dry-run", "--out", tmp_path / "a").out
    assert re.fullmatch(
        r"\S*llama on mine: 5 rows, \d+ cells in \d+ batches; engine cone; about \d+ GFLOP, [\d.]+ s, "
        r"at most \d+ MB beside the model\n",
        out,
    )
    assert not (tmp_path / "a").exists()
    plans = json.loads(here(capsys, *args, "--model", tiny("gpt2"), "--dry-run", "--json", "--engine", "reference").out)
    assert [(p["dataset"], p["engine"], p["rows"]) for p in plans] == [("mine", "reference", 5)] * 2
    assert all(p["cells"] > 0 and p["peak_bytes"] > 0 and p["seconds"] >= 0 for p in plans)


def test_a_run_that_was_stopped_is_looked_at_and_goes_on(capsys, args, tmp_path, monkeypatch):
    from anchorlens.protocols import base as plug
    from anchorlens.runs.journal import SweepJournal

    monkeypatch.setattr(plug, "_SHARD_FLOP", 1.0)
    right, kept = SweepJournal.write, []

    def write(self, number, *rest):
        if len(kept) == 2:
            raise KeyboardInterrupt
        kept.append(number)
        return right(self, number, *rest)

    monkeypatch.setattr(SweepJournal, "write", write)
    out = tmp_path / "run"
    given = [*args, "--batch-size", "1", "--out", out]
    err = here(capsys, *given, code=1).err
    assert "Stopped. What was measured is kept in" in err
    assert "(2 shards): continue with resume=True. (--resume)" in err
    told = here(capsys, "status", out).out
    for said in ("stopped", "2 of 5 shards", "swap: llama on mine", "--resume"):
        assert said in told
    err = here(capsys, *given, code=2).err
    assert "unfinished run (2 shards done)" in err
    assert "(--resume, --force-new)" in err
    assert "config.seed: 0 before, 3 now" in here(capsys, *given, "--resume", "--seed", "3", code=2).err
    monkeypatch.setattr(SweepJournal, "write", right)
    here(capsys, *given, "--resume")
    assert json.loads(here(capsys, "status", out, "--json").out)["state"] == "finished"
    here(capsys, *given, "--resume")  # nothing is left to do
    assert "holds a run already" in here(capsys, *given, code=2).err
    assert "is not a run" in here(capsys, "status", tmp_path / "nothing", code=2).err


def test_jobs_and_merge(capsys, args, tmp_path, monkeypatch):
    from anchorlens.protocols import base as plug

    monkeypatch.setattr(plug, "_SHARD_FLOP", 1.0)
    monkeypatch.chdir(tmp_path)
    given = [*args, "--batch-size", "1", "--quiet"]
    here(capsys, *given, "--out", "whole")
    said = here(capsys, *given, "--out", "run", "--shard", "2/2").out
    assert (
        "Job 2/2 has measured its share: 2 of 5 shards are in run.parts. When all are there, finish with: anchorlens merge run"
        in said
    )
    told = here(capsys, "status", "run").out
    assert "2 of 5 shards" in told
    assert "`anchorlens merge`" in told
    err = here(capsys, "merge", "run", code=2).err
    assert (
        "run.parts lacks 3 of 5 shards (0, 2, 4). Run job 1/2 again, or measure here what is missing with --measure-missing."
        in err
    )
    err = here(capsys, *given, "--out", "run", "--shard", "1/2", "--seed", "3", code=2).err
    assert "config.seed: 0 before, 3 now" in err
    record = json.loads(here(capsys, *given, "--out", "run", "--shard", "1/2", "--json").out)
    assert (record["job"], record["sweeps"][0]["done"]) == ("1/2", 5)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # what was given with relative names is found
    out = here(capsys, "merge", tmp_path / "run").out
    assert f"run     {tmp_path / 'run'}" in out
    for table in ("samples", "examples", "curves", "effects"):
        assert (tmp_path / "run" / f"{table}.parquet").read_bytes() == (tmp_path / "whole" / f"{table}.parquet").read_bytes()
    assert "run is finished" in here(capsys, "merge", tmp_path / "run").out


def test_merge_measures_what_is_missing_and_takes_parts_from_elsewhere(capsys, args, tmp_path, monkeypatch):
    from anchorlens.protocols import base as plug

    monkeypatch.setattr(plug, "_SHARD_FLOP", 1.0)
    given = [*args, "--batch-size", "1", "--quiet"]
    for i in (1, 2):
        here(capsys, *given, "--out", tmp_path / f"machine{i}" / "a", "--shard", f"{i}/3")
    parts = [tmp_path / f"machine{i}" / "a.parts" for i in (1, 2)]
    out = here(capsys, "merge", tmp_path / "a", *parts, code=2)
    assert "4 shards copied to a.parts." in out.err
    assert "lacks 1 of 5 shards (2). Run job 3/3 again" in out.err
    out = here(capsys, "merge", tmp_path / "a", *parts, "--measure-missing", "--json")
    assert "0 shards copied" in out.err
    assert json.loads(out.out)["run"] == str(tmp_path / "a")
    assert not (tmp_path / "a.parts").exists()


def test_nothing_to_merge(capsys, tmp_path):
    assert "there is nothing to merge" in here(capsys, "merge", tmp_path / "nothing", code=2).err


def _left(mark):
    """Processes that were started with a mark in their environment."""
    found = []
    for one in psutil.process_iter():
        try:
            if one.environ().get("MARK") == mark and one.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(one.cmdline()))
        except psutil.Error:
            continue
    return found


needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'anchorlens[ray]'")


@needs_ray
@pytest.mark.slow
def test_workers_from_a_shell(args, tmp_path):
    given, mark = [*args, "--quiet", "--json"], str(tmp_path)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MARK": mark}
    shell(*given, "--out", str(tmp_path / "whole"), env=env)
    done = shell(*given, "--out", str(tmp_path / "out"), "--executor", "ray", "--workers", "2", env=env)
    assert json.loads(done.stdout)["run"] == str(tmp_path / "out")
    for table in ("samples", "examples", "curves", "effects"):
        assert (tmp_path / "out" / f"{table}.parquet").read_bytes() == (tmp_path / "whole" / f"{table}.parquet").read_bytes()
    assert "--executor ray" in json.loads((tmp_path / "out" / "run.json").read_text())["sweeps"][0]["environment"]["command"]
    assert _left(mark) == []
    done = shell(
        *given, "--out", str(tmp_path / "bad"), "--executor", "ray", "--workers", "2", "--layers", "9", env=env, code=2
    )
    assert done.stderr.splitlines()[-1] == "Error: layers must be different numbers from -3 to 2, got (9,). (--layers)"
    assert not [*tmp_path.glob("bad*")]


@needs_ray
@pytest.mark.slow
def test_a_signal_ends_a_run_with_workers_and_leaves_none(args, tmp_path):
    mark = str(tmp_path)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MARK": mark}
    given = [*args, "--quiet", "--out", str(tmp_path / "out"), "--executor", "ray", "--workers", "2"]
    run = subprocess.Popen(
        [sys.executable, "-m", "anchorlens", *given],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 120
    while not any("ray::RayWorker" in line for line in _left(mark)) and time.monotonic() < until:
        time.sleep(0.2)
    run.send_signal(signal.SIGTERM)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 1, err
    assert "Stopped. Nothing was written." in err
    until = time.monotonic() + 20
    while _left(mark) and time.monotonic() < until:
        time.sleep(0.2)
    assert _left(mark) == []
    assert [*tmp_path.iterdir()] == []
