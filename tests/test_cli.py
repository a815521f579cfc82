"""The command line as a user meets it: arguments, messages, listings, studies, dry runs."""

import json
import os
import re
import time

import pandas as pd
import pytest
from click.testing import CliRunner

import anchorlens as al
from anchorlens import cli
from anchorlens.cli.output import show_table
from anchorlens.cli.protocol_command import flags_of
from anchorlens.cli.shared_options import data_files
from anchorlens.errors import CheckError, InputError
from anchorlens.protocols.registry import PROTOCOLS, specification_of
from anchorlens.running import executors, run_study, study
from tests.questions.make import CAPITALS
from tests.shell import here, shell, swap_of, write_questions


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    return write_questions(tmp_path_factory.mktemp("questions") / "mine.jsonl")


@pytest.fixture(scope="module")
def args(tiny, questions):
    return swap_of(tiny("llama"), questions)


@pytest.mark.slow
def test_swap_and_figure_end_to_end(capsys, args, tiny, tmp_path):
    out = here(capsys, *args, "--model", tiny("gpt2"), "--out", tmp_path / "a")
    assert "Largest |ΔP| of each curve" in out.out
    assert "swap: mine (llama)" in out.out
    assert "5 measured rows; dropped: none" in out.out
    assert f"figure  {tmp_path / 'a' / 'figure.html'}" in out.out
    curves = pd.read_parquet(tmp_path / "a" / "curves.parquet")
    assert set(curves["model"]) == {"llama", "gpt2"}
    assert set(curves["anchor"]) == {"exact_question", "pre_answer"}
    here(
        capsys,
        "figure",
        tmp_path / "a",
        "--anchors",
        "exact_question",
        "--out",
        tmp_path / "f.html",
    )
    assert "plotly" in (tmp_path / "f.html").read_text()


@pytest.mark.slow
def test_a_finished_run_is_said_again_without_its_model(
    capsys, plain_figure, args, tmp_path, monkeypatch
):
    args = [*args, "--layers", "-1", "--out", tmp_path / "run", "--resume"]
    first = here(capsys, *args).out
    assert "Nothing is claimed" in first
    assert set(pd.read_parquet(tmp_path / "run" / "samples.parquet")["layer"]) == {2}
    monkeypatch.setattr(study, "check_model", None)
    monkeypatch.setattr(executors, "load_model", None)
    assert here(capsys, *args).out == first


@pytest.mark.slow
def test_json_is_one_object_of_a_file_in_place_of_a_name_with_columns_of_ones_own(
    capsys, plain_figure, tiny, tmp_path
):
    file = tmp_path / "quiz.csv"
    rows = "".join(
        f'"What is the capital of {c}?",{a},{c},capital,capital\n' for c, a in CAPITALS.items()
    )
    file.write_text("q,gold,subject,property,relation\n" + rows)
    out = here(
        capsys,
        "swap",
        "--model",
        tiny("llama"),
        "--dataset",
        file,
        "--columns",
        "question=q,answers=gold",
        "--align",
        "last",
        "--layers",
        "0,2",
        "--n-donors",
        "1",
        "--device",
        "cpu",
        "--quiet",
        "--json",
        "--limit",
        "5",
        "--out",
        tmp_path / "a",
    )
    record = json.loads(out.out)
    assert record["run"] == str(tmp_path / "a")
    assert {row["anchor"] for row in record["summary"]} == {"exact_question", "pre_answer"}
    assert record["counts"][0]["evaluated"] == 5
    samples = pd.read_parquet(tmp_path / "a" / "samples.parquet")
    assert sorted(samples["layer"].unique()) == [0, 2]
    assert set(samples["dataset"]) == {"quiz"}


@pytest.mark.slow
def test_config_alone_is_enough_and_flags_win(capsys, plain_figure, tiny, questions, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(
        f'model = ["{tiny("llama")}"]\ndataset = ["mine"]\ndata_file = ["mine={questions}"]\nalign'
        ' = "last"\nlimit = 3\nlayers = "1"\nseed = 5\nn-donors = 2\nresamples = 50\nanchors ='
        f' ["subject"]\nquiet = true\nout = "{tmp_path / "a"}"\n'
    )
    for flags, seed, n_donors in (
        ((), 5, 2),
        (
            ("--seed", "7", "--n-donors", "1", "--overwrite"),
            7,
            1,
        ),
    ):
        here(capsys, "swap", "--config", config, *flags)
        sweep = json.loads((tmp_path / "a" / "run.json").read_text())["sweeps"][0]["config"]
        found = (
            sweep["layers"],
            sweep["seed"],
            sweep["n_donors"],
            sweep["anchors"],
            sweep["n_resamples"],
        )
        assert found == ([1], seed, n_donors, ["subject"], 50)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["knockout", "--donors", "random"], "No such option '--donors'"),
        (["knockout", "--edges", "exact_question"], "--edges exact_question: must be"),
        (["knockout", "--readout", "first_token"], "Unknown --readout first_token. Known"),
        (["knockout", "--layers", "0,0"], "--layers 0,0 must be different whole numbers"),
        (
            ["--anchors", "exact_questoin"],
            "Unknown anchor 'exact_questoin'. Did you mean 'exact_question'",
        ),
        (
            ["--readout", "first_tokens"],
            "Unknown --readout first_tokens. Did you mean 'first_token'?",
        ),
        (["--engine", "cones"], "Unknown --engine cones. Did you mean 'cone'?"),
        (
            ["--layers", "0-9"],
            "--layers 0,1,2,3,4,5,6,7,8,9: the model has 3 layers; 3 is the first that it lacks."
            " Give numbers from -3 to 2.",
        ),
        (["--layers", "a"], "--layers a is invalid"),
        (["--n-donors", "2.5"], "'--n-donors': '2.5' is not a valid integer"),
        (["--n-spot-checks", "-1"], "--n-spot-checks -1 must be at least 0"),
        (["--max-memory", "lots"], "--max-memory lots is invalid"),
        (["--max-memory", "1MB"], "with the smallest batches this sweep needs about"),
        (
            ["--donors", "zero", "--direction", "denoising"],
            "--direction denoising needs donor rows. Use --donors same_relation or",
        ),
        (["--limit", "0"], "must be an integer >= 1"),
        (["--limit", "x"], "'x' is not a valid integer"),
        (["--dataset", "popqq"], "popqq"),
        (["--data-file", "nothing.jsonl"], "--data-file: 2 files for 1 data set"),
        (["--columns", "question"], "question=q,answers=gold"),
        (["--modle", "x"], "No such option"),
        (["--prompt", "few"], "--prompt few: unknown"),
        (["--add-bos", "maybe"], "'maybe' is not a valid boolean"),
        (["--device", "tpu"], "tpu"),
        (["--n-devices", "2"], "--n-devices 2: needs CUDA devices, and --device cpu is none"),
        (["--dtype", "float13"], "float13"),
        (["--readout", "prob"], "Did you mean 'probe'"),
        (["--edges", "exact_question -> later"], "No such option '--edges'."),
        (["--workers", "2"], "--workers needs --executor ray"),
        (["--executor", "dask"], "--executor dask must be 'ray'"),
        (["--job", "4/3"], "--job 4/3 is no job"),
        (["--model", "llama-3.2-1b"], "Did you mean 'meta-llama/Llama-3.2-1B'?"),
        (["--model", "smolm2-135m-instruct"], "Did you mean 'smollm2-135m-instruct'?"),
        (["--config", "limitt = 3\n"], "'limitt'. Did you mean 'limit'"),
        (["--config", "limit = \n"], "is not TOML"),
        (["--config", "[limit]\nx = 1\n"], "not a table"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    capsys, args, tmp_path, monkeypatch, change, message
):
    """Every name is looked at before the first model is loaded: a typo in the second costs
    seconds.
    """
    if change[0] == "--model":
        monkeypatch.setattr(
            executors, "load_model", lambda *a, **k: pytest.fail("a model was loaded")
        )
    if change[0] == "--config":
        config = tmp_path / "run.toml"
        config.write_text(change[1])
        change = ["--config", config]
    given = args
    if change[0] == "knockout":
        given = [
            "knockout",
            *(one for one in args[1:] if one not in ("--align", "last", "--n-donors", "1")),
        ]
    out = here(
        capsys, *given, *change[given is not args :], "--quiet", "--out", tmp_path / "a", code=2
    )
    assert message in out.err
    assert out.out == ""
    assert [one for one in tmp_path.iterdir() if one.suffix != ".toml"] == []
    assert max(map(len, out.err.splitlines())) < 500


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--job", "nonsense"], "--job nonsense is no job"),
        (["--job", "1/2", "--overwrite"], "--overwrite and --job contradict each other"),
        (["--resume", "--restart"], "--resume and --restart contradict each other"),
        (["--executor", "dask"], "--executor dask must be 'ray'"),
        (
            ["--executor", "ray", "--address", "::::"],
            "--address :::: must be 'auto' or 'host:port'",
        ),
        (
            ["--executor", "ray", "--workers", "0"],
            "--workers 0 must be a whole number of at least 1",
        ),
        (
            ["--executor", "ray", "--gpus-per-worker", "1.5"],
            "--gpus-per-worker 1.5 must be a whole number of GPUs",
        ),
        (["--address", "a:1"], "--address needs --executor ray"),
    ],
)
def test_a_dry_run_refuses_what_a_run_refuses(
    capsys, args, tmp_path, monkeypatch, change, message, more
):
    monkeypatch.setattr(executors, "find_spec", lambda name: name)
    monkeypatch.setattr(executors, "load_model", lambda *a, **k: pytest.fail("a model was loaded"))
    for file in tmp_path / "study.toml", *([tmp_path / "a"] if more else []):
        out = ["--out", tmp_path / "a"] if file.suffix else []
        (tmp_path / "study.toml").write_text(STUDY.format(model=args[2], file=args[6]))
        for command in (args, ["run", tmp_path / "study.toml"]):
            assert (
                f"Error: {message}"
                in here(capsys, *command, "--quiet", *out, *change, *more, code=2).err
            )


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["swap"], "--model is missing. See `anchorlens swap --help`"),
        (["patch", "--model", "{tmp}"], "--pairs is missing"),
        (
            [
                "patch",
                "--model",
                "smollm2-135m-instruct",
                "--pairs",
                "fact-pairs",
                "--out",
                "{tmp}/r",
            ],
            "Did you mean 'facts-pairs'",
        ),
        (
            [
                "patch",
                "--model",
                "smollm2-135m-instruct",
                "--pairs",
                "{tmp}/a.csv",
                "--out",
                "{tmp}/r",
            ],
            "a.csv. Check the path.",
        ),
        (["run"], "Missing argument 'STUDY.toml'"),
        (["figure", "{tmp}", "--out", "{tmp}/f.html"], "is not a run: it has no run.json"),
        (["status", "{tmp}/nothing"], "is not a run"),
        (["merge", "{tmp}/nothing"], "holds no parts of a run to merge"),
    ],
)
def test_what_is_missing_is_named(capsys, tmp_path, command, message):
    assert (
        message
        in here(capsys, *(part.replace("{tmp}", str(tmp_path)) for part in command), code=2).err
    )
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_an_existing_run_is_safe_and_said_before_the_work(capsys, plain_figure, args, tmp_path):
    here(capsys, *args, "--quiet", "--layers", "0", "--out", tmp_path / "a")
    before = (tmp_path / "a" / "samples.parquet").read_bytes()
    started = time.monotonic()
    said = here(capsys, *args, "--out", tmp_path / "a", code=2).err
    assert said.endswith("already holds a run. Choose another path, or give --overwrite.\n")
    assert time.monotonic() - started < 2
    assert (tmp_path / "a" / "samples.parquet").read_bytes() == before
    # The old run stays until there is something in its place.
    for layers, code in ("7", 2), ("1", 0):
        here(
            capsys,
            *args,
            "--quiet",
            "--layers",
            layers,
            "--out",
            tmp_path / "a",
            "--overwrite",
            code=code,
        )
        assert ((tmp_path / "a" / "samples.parquet").read_bytes() == before) is (code == 2)


@pytest.mark.slow
def test_a_set_without_rows_does_not_take_the_others_with_it(capsys, plain_figure, args, tmp_path):
    lonely, out = tmp_path / "lonely.jsonl", tmp_path / "a"
    row = {
        "question": "Who wrote Emma?",
        "answers": ["Austen"],
        "subject": "Emma",
        "property": "wrote",
    }
    lonely.write_text(json.dumps(row))
    err = here(
        capsys,
        *args,
        "--quiet",
        "--dataset",
        "lonely",
        "--data-file",
        f"lonely={lonely}",
        "--out",
        out,
        code=1,
    ).err
    assert "No row is left to measure in lonely. Dropped: no_donor 1" in err
    assert "or --donors random." in err
    assert err.count("No row is left") == 1
    assert "1 of 2 sweeps had no row; the others are saved." in err
    assert set(pd.read_parquet(out / "samples.parquet")["dataset"]) == {"mine"}


@pytest.mark.slow
def test_what_is_finished_stays_when_a_later_sweep_fails(
    capsys, plain_figure, args, tiny, tmp_path, monkeypatch
):
    real, seen = run_study.run_sweep, []

    def fails_second(*given):
        seen.append(given)
        if len(seen) == 2:
            raise CheckError("The cone engine and the oracle differ by 3 points.")
        return real(*given)

    monkeypatch.setattr(run_study, "run_sweep", fails_second)
    out = here(capsys, *args, "--quiet", "--model", tiny("gpt2"), "--out", tmp_path / "a", code=1)
    assert f"differ by 3 points. 1 of 2 sweeps is finished and kept in {tmp_path / 'a'}." in out.err
    assert set(pd.read_parquet(tmp_path / "a" / "samples.parquet")["model"]) == {"llama"}
    assert (tmp_path / "a" / "figure.html").is_file()
    record = json.loads((tmp_path / "a" / "run.json").read_text())
    assert record["pending"] == ["swap: gpt2 on mine"]
    assert str(tiny("gpt2").parent) not in json.dumps(record)


@pytest.mark.parametrize("command", ["models", "datasets"])
def test_listings_for_people_and_scripts(capsys, command):
    table = here(capsys, command).out
    records = json.loads(here(capsys, command, "--json").out)
    for record in records:
        assert record["name"] in table
    names = {record["name"] for record in records}
    wanted = {"models": {"smollm2-135m-instruct"}, "datasets": {"popqa-sample", "ioi-pairs"}}
    assert wanted[command] <= names


def test_brackets_and_colons_in_names_are_no_markup(capsys):
    names = ["quiz [/v2]", "[red]quiz", ":smile:", "[link=x]a[/link]", "a\\"]
    show_table(names[0], [names[1]], [[name] for name in names])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip(" ─")]
    assert lines == [names[0], names[1], *names]


@pytest.mark.parametrize("name", list(PROTOCOLS))
def test_a_command_has_its_protocols_options_and_no_others(name):
    """Each with the help and the default that the specification declares."""
    spec = specification_of(name)
    text = " ".join(
        CliRunner()
        .invoke(cli.cli, [name, "--help-all"], terminal_width=400, max_content_width=400)
        .output.split()
    )
    assert "Examples:" in text
    for argument, flag in flags_of(spec).items():
        one, default = spec.arguments()[argument], spec.model_fields[argument].get_default()
        assert flag in text
        help_text = one.help.replace("If None,", "If left out,")
        assert help_text in text
        if isinstance(default, str | int) and not isinstance(default, bool):
            assert f"{help_text} [default: {default}]" in text
    others = {flag for other in PROTOCOLS for flag in flags_of(specification_of(other)).values()}
    for foreign in others - set(flags_of(spec).values()):
        assert f"{foreign} " not in text


@pytest.mark.slow
def test_starts_quickly_and_without_heavy_imports():
    """CPU seconds, best of three, because the machine may be busy.

    Specifications load nothing heavy, because `--help` is made from them.
    """
    heavy = ("torch", "transformers", "transformer_lens", "pandas", "numpy", "sklearn", "plotly")
    of_all = (
        "from anchorlens.protocols.registry import PROTOCOLS, specification_of as of;"
        " [of(p)().to_toml() for p in PROTOCOLS]"
    )
    for code, seconds in (
        ("import anchorlens", 0.3),
        ("from anchorlens.cli import cli; cli.main(['--help'], standalone_mode=False)", 0.5),
        (
            "from anchorlens.cli import cli; cli.main(['swap', '--help'], standalone_mode=False)",
            1.0,
        ),
        (of_all, 1.0),
    ):
        for _ in range(3):
            before = os.times()
            done = shell(script=f"import sys; {code}; print(*({{*{heavy}}} & set(sys.modules)))")
            spent = os.times()
            user = spent.children_user - before.children_user
            in_time = user + spent.children_system - before.children_system < seconds
            assert (done.stdout.splitlines()[-1], done.stderr) == ("", "")
            if in_time:
                break
        else:
            pytest.fail(f"{code}: three times more than {seconds} CPU s")


def test_files_go_to_data_sets_by_name_or_order():
    assert data_files(["a", "b"], ["x", "y"]) == {"a": "x", "b": "y"}
    assert data_files(["a", "b"], ["b=x", "y"]) == {"b": "x", "a": "y"}
    with pytest.raises(InputError, match="'popqa'"):
        data_files(["popqa"], ["pop=x.jsonl"])


@pytest.mark.slow
def test_knockout_from_a_shell(capsys, plain_figure, tiny, tmp_path):
    model, out = str(tiny("llama")), tmp_path / "ko"
    run = [
        "knockout",
        "--model",
        model,
        "--dataset",
        "popqa-sample",
        "--limit",
        "45",
        "--device",
        "cpu",
        "--resamples",
        "50",
        "--n-splits",
        "1",
        "--layers",
        "0-1",
        "--edges",
        "subject -> later",
        "--knockout-mode",
        "zero",
        "--out",
        out,
    ]
    said = here(capsys, *run)
    assert "Knockout at k*" in said.out
    assert "knockout: popqa-sample (llama)" in said.out
    curves = pd.read_parquet(out / "curves.parquet")
    assert set(curves["pathway"]) == {"Q-Anchored", "A-Anchored", "All"}
    assert set(curves["knockout_mode"]) == {"zero"}
    assert set(curves["anchor"]) == {"subject"}
    assert set(pd.read_parquet(out / "contrasts.parquet")["quantity"]) == {
        "delta_p_vs_placebo",
        "flip_rate",
        "auc_drop",
        "row_specific_vs_placebo",
        "row_specific_effect",
        "auc",
        "auc_after",
        "auc_beyond_text",
        "gap",
        "placebo_gap",
        "gap_difference",
        "cross_fold_gap",
        "selection",
    }
    assert len(list((out / "probes").glob("*/probes.safetensors"))) == 1
    answer = json.loads(here(capsys, *run, "--overwrite", "--json", "--quiet").out)
    assert answer["verdicts"][0]["verdict"] in said.out
    assert answer["findings"][0]["headline"] in answer["verdicts"][0]["verdict"]
    assert "row_specific_vs_placebo_low" in answer["summary"][0]
    here(capsys, "figure", out, "--contrasts", "all", "--out", tmp_path / "f.html")
    assert "Difference from control" in (tmp_path / "f.html").read_text(encoding="utf8")


STUDY = """
models = ["{model}"]
device = "cpu"

[[data]]
name = "mine"
path = "{file}"
limit = 5

[[data]]
name = "popqa-sample"
limit = 45

[[protocol]]
name = "swap"
align = "last"
n-donors = 1
layers = "0,2"

[[protocol]]
name = "knockout"
layers = [0, 1]
n_splits = 1
n_resamples = 50
"""


@pytest.mark.slow
def test_patch_takes_prompt_pairs_and_no_question_options(capsys, plain_figure, tiny, tmp_path):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("clean,corrupted,answer,wrong\nA B,A C,B,C\nB A,C A,B,C\n")
    out = tmp_path / "run"
    given = ("patch", "--model", tiny("llama"), "--pairs", pairs, "--out", out)
    here(capsys, *given, "--device", "cpu", "--layers", "0,2", "--limit", 1)
    samples = pd.read_parquet(out / "samples.parquet")
    assert set(samples["dataset"]) == {"pairs"}
    assert samples["example_id"].nunique() == 1
    assert json.loads((out / "run.json").read_text())["sweeps"][0]["data"]["limit"] == 1
    assert sorted(samples["layer"].unique()) == [0, 2]
    said = here(capsys, *given, "--spans", "rules", code=2).err
    assert "--spans" in said


@pytest.mark.slow
def test_a_study_measures_every_protocol_on_every_set(
    capsys, plain_figure, tiny, questions, tmp_path
):
    file = tmp_path / "study.toml"
    file.write_text(STUDY.format(model=tiny("llama"), file=questions))
    out = here(capsys, "run", file, "--quiet", "--out", tmp_path / "a", code=1)
    # Five capitals are too few for a probe: said, and the others go on.
    assert "1 of 4 sweeps had no row; the others are saved." in out.err
    assert "1 of 4 sweeps done; figure" in out.err
    curves = pd.read_parquet(tmp_path / "a" / "curves.parquet")
    assert set(map(tuple, curves[["protocol", "dataset"]].drop_duplicates().to_numpy())) == {
        ("swap", "mine"),
        ("swap", "popqa-sample"),
        ("knockout", "popqa-sample"),
    }
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
        (
            ("n-donors = 1", "n-donor = 1"),
            "swap has no argument 'n_donor'. Did you mean 'n_donors'",
        ),
        (("limit = 45", "limt = 45"), "[[data]] has an unknown key 'limt'. Did you mean 'limit'"),
        (
            ('name = "popqa-sample"', 'name = "popqa-smaple"'),
            "name='popqa-smaple': unknown data set",
        ),
        (("layers = [0, 1]", "layers = [0, 0]"), "must be different whole numbers"),
    ],
)
def test_a_studys_mistakes_are_found_before_anything_is_loaded(
    capsys, tiny, questions, tmp_path, change, said
):
    file = tmp_path / "study.toml"
    file.write_text(STUDY.format(model=tiny("llama"), file=questions).replace(*change))
    assert said in here(capsys, "run", file, "--quiet", "--out", tmp_path / "a", code=2).err
    assert not (tmp_path / "a").exists()


def test_a_dry_run_says_what_it_would_cost_and_writes_nothing(capsys, args, tiny, tmp_path):
    out = here(capsys, *args, "--dry-run", "--out", tmp_path / "a").out
    assert re.fullmatch(
        r"\S*llama on mine: 5 rows, \d+ cells in \d+ batches; engine cone; about \d+ GFLOP,"
        r" [\d.]+ s, "
        r"at most \d+ MB beside the model\n  memory: (\S[^,\n]* [\d.]+ MB(, |$))+\n",
        out,
    )
    assert not (tmp_path / "a").exists()
    plans = json.loads(
        here(
            capsys, *args, "--model", tiny("gpt2"), "--dry-run", "--json", "--engine", "reference"
        ).out
    )
    assert [(p["dataset"], p["engine"], p["rows"]) for p in plans] == [("mine", "reference", 5)] * 2
    assert all(p["cells"] > 0 and p["peak_bytes"] > 0 and p["seconds"] >= 0 for p in plans)
    assert all(sum(p["memory"].values()) == p["peak_bytes"] for p in plans)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_short_help_fits_a_screen_and_the_long_one_has_every_option(name):
    runner = CliRunner()
    short, full = (
        runner.invoke(cli.cli, [name, option], terminal_width=100).output
        for option in ("--help", "--help-all")
    )
    assert len(short.splitlines()) <= 45
    for flag in ("--model", "--out", "--limit", "--help-all"):
        assert flag in short
    flags = flags_of(specification_of(name)).values()
    assert [flag for flag in flags if flag not in full] == []
    assert len(full) > 2 * len(short)


@pytest.mark.slow
def test_compare_prints_the_table_and_draws_the_difference(capsys, args, tmp_path):
    here(capsys, *args, "--out", tmp_path / "a")
    here(capsys, *args, "--n-donors", "1", "--out", tmp_path / "b")
    runs = [tmp_path / "a", tmp_path / "b"]
    wanted = al.compare(*map(str, runs), labels=("four", "one"))
    named = ["--label", "four", "--label", "one"]
    out = here(capsys, "compare", *runs, *named, "--out", tmp_path / "d.html").out
    assert out == f"{wanted}\nfigure  {tmp_path / 'd.html'}\n"
    assert "plotly" in (tmp_path / "d.html").read_text("utf8")
    found = json.loads(here(capsys, "compare", *runs, "--json").out)
    table = wanted.table()
    assert [row["difference"] for row in found["rows"]] == pytest.approx(table["difference"])
    assert [row["layer"] for row in found["rows"]] == table["layer"].tolist()
    result = CliRunner().invoke(cli.cli, ["compare", *map(str, runs), "--label", "one"])
    assert result.exit_code == 2
    assert "give one for each of the two runs" in result.output


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (
            "Use prompt='fewshot(2)' or known_only=True.",
            ["prompt"],
            "Use --prompt 'fewshot(2)' or --known-only.",
        ),
        ("Use prompt='qa'.", ["donors"], "Use --prompt qa. (--donors)"),
        (
            "Pass columns={'question': 'q', 'answers': 'a'}.",
            [],
            "Pass --columns question=q,answers=a.",
        ),
        ("layers=(9,): use a larger limit=.", [], "--layers 9: use a larger --limit."),
        ("anchors=['subject', 'all']: twice", [], "--anchors subject,all: twice"),
        ("max_memory=1.5 is invalid", [], "--max-memory 1.5 is invalid"),
        # No option: a text of the user, a call of Python, None, other names.
        ("'a limit=3 b' is no answer, limit=3", [], "'a limit=3 b' is no answer, --limit 3"),
        ("Call al.load_qa(data, limit=5)", [], "Call al.load_qa(data, limit=5) (--limit)"),
        ("Give limit=None", [], "Give limit=None (--limit)"),
        ("noise.floor=3 of p=4", [], "noise.floor=3 of p=4"),
        ("the rows' limit=3", [], "the rows' --limit 3"),
    ],
)
def test_arguments_of_a_message_are_written_as_a_shell_takes_them(text, arguments, said):
    from anchorlens.cli.output import with_options
    from anchorlens.cli.protocol_command import protocol_command

    assert with_options(text, protocol_command("swap"), arguments) == said


@pytest.mark.parametrize("command", ["merge", "status", "verify"])
def test_commands_that_read_a_run_name_the_options_of_the_command_that_measured_it(command):
    from anchorlens.cli.entry import cli as group
    from anchorlens.cli.output import with_options

    shown = group.commands.get(command) or group.get_command(None, command)
    assert (
        with_options("Start over with restart=True.", shown)
        == "Start over with --restart of the command that measured the run."
    )
    python = "Finish it in Python with out= and resume=True."
    assert with_options(python, shown) == python
