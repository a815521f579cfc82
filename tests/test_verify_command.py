"""``anchorlens verify`` as a user meets it."""

import json
import shutil

import pytest
from plotly.graph_objects import Figure

import anchorlens as al
from anchorlens.cli.entry import main
from tests.questions.make import CAPITALS, capitals

pytestmark = pytest.mark.usefixtures("plain_figure")


@pytest.fixture(scope="module")
def run(tiny_model, tmp_path_factory):
    out = tmp_path_factory.mktemp("verify") / "run"
    options = {"align": "last", "n_donors": 1, "n_resamples": 20, "progress": False}
    with pytest.MonkeyPatch.context() as patch:  # this fixture is older than `plain_figure`
        patch.setattr("anchorlens.running.saving.main_figure", lambda *_: Figure())
        al.swap_sweep(tiny_model("llama"), capitals(), **options).save(out)
    return out


@pytest.fixture
def verify(capsys):
    def call(*args, code):
        with pytest.raises(SystemExit) as stopped:
            main(["verify", *map(str, args)])
        said = capsys.readouterr()
        assert stopped.value.code == code, said.err
        return said

    return call


@pytest.mark.slow
def test_a_right_run_ends_with_0(run, tiny, verify):
    said = verify(run, "--model", tiny("llama"), "--cells", 5, "--device", "cpu", code=0)
    assert "run: match" in said.out
    assert "5 drawn, 5 measured again" in said.out
    told = json.loads(
        verify(
            run, "--model", f"llama={tiny('llama')}", "--cells", 3, "--json", "--seed", 4, code=0
        ).out
    )
    assert told["ok"]
    assert len(told["cells"]) == 3
    assert {"value_after_again", "max_abs_diff"} <= told["cells"][0].keys()
    assert {check["status"] for check in told["checks"]} == {"match", "not checked"}


@pytest.mark.slow
def test_a_model_larger_than_memory(run, tiny, verify, layers_read):
    given = (run, "--model", tiny("llama"), "--cells", 3, "--device", "cpu")
    streamed = verify(*given, "--stream", code=0).out
    assert set(layers_read) == {0, 1, 2}
    assert streamed == verify(*given, code=0).out
    assert "--stream" in verify("--help", code=0).out
    assert (
        "--stream reads safetensors files"
        in verify(run, "--model", "a/b.gguf", "--stream", code=2).err
    )


@pytest.mark.slow
def test_a_damaged_run_and_other_weights_end_with_1(run, tiny, verify, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    text = (copy / "run.json").read_text()
    (copy / "run.json").write_text(text.replace('"seed": 0', '"seed": 1', 1))
    said = verify(copy, "--model", tiny("llama"), "--cells", 1, code=1)
    assert "run.json has other bytes" in said.out
    assert "copy: mismatch" in said.out
    (copy / "run.json").write_text(text[:-20])
    assert "files of the run have changed" in verify(copy, code=1).out
    assert "the model differs" in verify(run, "--model", tiny("qwen3"), code=1).out


@pytest.mark.slow
def test_a_file_of_ones_own(tiny, verify, tmp_path):
    rows = [
        {"q": f"What is the capital of {country}?", "gold": city}
        for country, city in CAPITALS.items()
    ]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = al.load_qa(file, columns={"question": "q", "answers": "gold"})
    options = {
        "align": "last",
        "n_donors": 1,
        "n_resamples": 20,
        "progress": False,
        "donors": "random",
    }
    al.swap_sweep(str(tiny("llama")), data, **options).save(tmp_path / "run")
    given = (
        "--model",
        tiny("llama"),
        "--cells",
        2,
        "--data-file",
        file,
        "--columns",
        "question=q,answers=gold",
    )
    assert "the measured rows" in verify(tmp_path / "run", *given, code=0).out
    file.write_text(file.read_text().replace("Paris", "Lyon"))
    assert "other rows" in verify(tmp_path / "run", *given, code=1).out


@pytest.mark.slow
def test_the_recorded_file_is_found_beside_the_run(tiny, verify, tmp_path):
    file = tmp_path / "mine.jsonl"
    rows = [
        {"question": f"What is the capital of {country}?", "answer": city}
        for country, city in CAPITALS.items()
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {
        "align": "last",
        "n_donors": 1,
        "n_resamples": 20,
        "progress": False,
        "donors": "random",
    }
    al.swap_sweep(str(tiny("llama")), al.load_qa(file), **options).save(tmp_path / "run")
    assert "the measured rows" in verify(tmp_path / "run", "--cells", 0, code=0).out
    file.write_text(file.read_text().replace("Paris", "Lyon"))
    assert "file:mine.jsonl is not here" in verify(tmp_path / "run", "--cells", 0, code=0).out


@pytest.mark.slow
def test_what_has_to_change_ends_with_2(run, tiny, verify, tmp_path):
    assert "is not a run" in verify(tmp_path, code=2).err
    assert "Give it with --model" in verify(run, code=2).err
    assert "--cells" in verify(run, "--cells", "-1", code=2).err
    assert (
        "No such file: nowhere.jsonl"
        in verify(run, "--data-file", "nowhere.jsonl", "--model", tiny("llama"), code=2).err
    )
