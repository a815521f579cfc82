"""Sweeps whose chat template writes the time: it stands still from the start of a run, and
different prompts are different runs.
"""

import json
import os
import shutil
from dataclasses import dataclass, replace

import pytest

import anchorlens as al
from anchorlens.errors import InputError, RunError
from anchorlens.questions.prompts import PromptText
from anchorlens.report.contents import provenance_by_section, studies_of
from anchorlens.runs.journal import parts_of
from anchorlens.runs.merging import copy_parts
from tests.prompts.clocks import set_time
from tests.questions.make import capitals, refused
from tests.running.kills import hashes, interrupt
from tests.tiers import choose_cases
from tests.tokenizers_small import CHAT

pytestmark = [
    pytest.mark.usefixtures("small_shards", "plain_figure"),
    pytest.mark.filterwarnings("ignore:Few rows"),
]
OPTIONS = {
    "prompt": "chat",
    "align": "last",
    "n_donors": 1,
    "batch_size": 1,
    "n_resamples": 20,
    "layers": [1],
    "n_spot_checks": 0,
    "progress": False,
}
EVENING, NIGHT, MORNING = "2026-11-27T23:59:58", "2026-11-27T23:59:59", "2026-11-28T08:00:00"
SECONDS, DATE = (
    "At {{ strftime_now('%d %b %Y %H:%M:%S') }}\n" + CHAT,
    "On {{ strftime_now('%d %b %Y') }}\n" + CHAT,
)
TEXTS = {EVENING: "At 27 Nov 2026 23:59:58", MORNING: "At 28 Nov 2026 08:00:00"}


@pytest.fixture(scope="module")
def models(tiny, tmp_path_factory):
    """``models(template)``: a small model whose tokenizer has this template, and its directory."""
    made = {}

    def make(template):
        if template not in made:
            path = shutil.copytree(tiny("llama"), tmp_path_factory.mktemp("clock") / "llama")
            (path / "chat_template.jinja").write_text(template)
            made[template] = al.load_model(str(path), device="cpu", progress=False), path
        return made[template]

    return make


@pytest.fixture
def at(monkeypatch):
    """``at(time)`` sets the clock."""
    return lambda time: set_time(monkeypatch, time)


def swap(model, **more):
    return al.swap_sweep(model, capitals(5), **(OPTIONS | more))


def first_lines(result):
    return {
        text.partition("\n")[0] for text in result.examples()["text"] if text
    }  # a dropped row has no text


SWEEPS = {
    "swap": swap,
    "p_true": lambda model, **more: swap(model, readout="p_true", **more),
    "knockout": lambda model, **more: al.knockout_sweep(
        model,
        al.load_qa("popqa-sample", limit=60),
        prompt="chat",
        n_resamples=20,
        batch_size=10,
        layers=[0, 2],
        progress=False,
        **more,
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", choose_cases(["p_true"], SWEEPS))
def test_a_sweep_that_goes_on_the_next_day_has_the_bytes_of_one_that_was_not_stopped(
    name, models, at, tmp_path
):
    sweep, (model, _) = SWEEPS[name], models(SECONDS)
    at(EVENING)
    whole = sweep(model, out=tmp_path / "whole")
    patch = interrupt(2)
    with pytest.raises(KeyboardInterrupt):
        sweep(model, out=tmp_path / "out")
    patch.undo()
    assert json.loads((parts_of(tmp_path / "out") / "run.json").read_text())["started"] == EVENING
    at(MORNING)
    done = sweep(model, out=tmp_path / "out", resume=True)
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")
    assert first_lines(done) == {TEXTS[EVENING]}
    (stored,) = json.loads((tmp_path / "out" / "run.json").read_text())["sweeps"]
    assert (stored["clock"], stored["run_id"], stored["config"]["prompt"]) == (
        EVENING,
        whole.run_id,
        "chat",
    )
    assert sweep(model, out=tmp_path / "other", restart=True).run_id != whole.run_id


@pytest.mark.slow
def test_other_prompts_are_another_run_and_the_same_prompts_are_the_same_run(models, at):
    """A template that writes the day gives the same bytes on the whole day."""
    found = {}
    for template in (SECONDS, DATE):
        for time in (EVENING, NIGHT, MORNING):
            at(time)
            found[template, time] = swap(models(template)[0])
            assert found[template, time].record["clock"] == time
    by_second, by_day = (
        [found[template, time] for time in (EVENING, NIGHT, MORNING)]
        for template in (SECONDS, DATE)
    )
    assert len({result.run_id for result in by_second}) == 3
    assert by_day[0].run_id == by_day[1].run_id != by_day[2].run_id
    assert by_day[0].samples(all_columns=True).equals(by_day[1].samples(all_columns=True))
    assert not by_second[0].samples()["value_before"].equals(by_second[2].samples()["value_before"])


@pytest.mark.slow
def test_a_time_can_be_given(models, at):
    model, _ = models(SECONDS)
    at(EVENING)
    now = swap(model)
    at(MORNING)
    given = swap(model, prompt=f"chat({now.record['clock']})")
    assert given.samples(all_columns=True).equals(now.samples(all_columns=True))
    assert given.examples(all_columns=True).equals(now.examples(all_columns=True))
    assert first_lines(swap(model, prompt="chat(2025-01-02)")) == {"At 02 Jan 2025 00:00:00"}


@pytest.mark.slow
def test_a_template_that_does_not_read_the_clock_has_none(models, at, tmp_path):
    model, _ = models(CHAT)
    found = []
    for time, prompt in ((EVENING, "chat"), (MORNING, "chat"), (MORNING, "chat(2025-01-02)")):
        at(time)
        found.append(swap(model, prompt=prompt, out=tmp_path / str(len(found))))
        assert "clock" not in found[-1].record
        assert "prompts_sha256" not in found[-1].record["config"]
    assert len({result.run_id for result in found}) == 1
    assert hashes(tmp_path / "0") == hashes(tmp_path / "1") == hashes(tmp_path / "2")


@pytest.mark.parametrize("text", ["", "today", "2026-13-01", "2026-11-27T10:00:00+01:00"])
def test_what_is_no_time_is_refused_before_a_model_is_loaded(text):
    with refused(
        InputError, f"prompt='chat({text})': not a time. Write a date or a local time", "prompt"
    ):
        al.Study("missing-model", capitals(), al.Swap(prompt=f"chat({text})")).check(models=False)


@pytest.mark.slow
def test_jobs_that_start_on_two_days_share_the_clock_of_the_first(models, at, tmp_path):
    model, _ = models(SECONDS)
    at(EVENING)
    swap(model, out=tmp_path / "whole")
    swap(model, out=tmp_path / "out", job="2/2")
    at(MORNING)
    swap(model, out=tmp_path / "out", job="1/2")
    swap(model, out=tmp_path / "out", resume=True)
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")


@pytest.mark.slow
def test_jobs_on_machines_that_share_no_files(models, at, tmp_path):
    """On one day a template that writes the date has the same prompts; on two days they need one
    time.
    """
    model, _ = models(DATE)

    def measure(folder, *times, **more):
        for i, time in enumerate(times):
            at(time)
            swap(model, out=tmp_path / folder / str(i), job=(i + 1, len(times)), **more)
        return [parts_of(tmp_path / folder / str(i)) for i in range(len(times))]

    at(EVENING)
    swap(model, out=tmp_path / "whole")
    copy_parts(tmp_path / "day", measure("one-day", EVENING, NIGHT))
    at(MORNING)
    swap(model, out=tmp_path / "day", resume=True)
    assert hashes(tmp_path / "day") == hashes(tmp_path / "whole")
    with pytest.raises(
        RunError,
        match=(
            rf"reads the clock, .* started at {MORNING} and {EVENING}.*prompt='chat\({EVENING}\)'"
        ),
    ):
        copy_parts(tmp_path / "days", measure("two-days", EVENING, MORNING))
    copy_parts(
        tmp_path / "given", measure("given-time", EVENING, MORNING, prompt=f"chat({EVENING})")
    )
    swap(model, out=tmp_path / "given", resume=True, prompt=f"chat({EVENING})")
    assert hashes(tmp_path / "given") == hashes(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("out", ["out", None])
def test_all_sweeps_of_a_study_read_one_clock(out, models, at, tmp_path):
    """Midnight passes between its sweeps; with and without a run directory."""
    study = al.Study(
        [models(SECONDS)[0]], capitals(5), [al.Swap(**OPTIONS), al.Swap(**(OPTIONS | {"seed": 1}))]
    )
    at(EVENING)
    done = al.run_study(
        study, None if out is None else tmp_path / out, on_result=lambda *_: at(MORNING)
    )
    assert [first_lines(result) for result in done.results] == [{TEXTS[EVENING]}] * 2


@pytest.mark.slow
def test_verify_and_report_do_not_read_the_clock(models, at, tmp_path):
    model, _ = models(SECONDS)
    at(EVENING)
    swap(model, out=tmp_path / "out")
    al.save_report(tmp_path / "out", tmp_path / "evening.html")
    at(MORNING)
    al.save_report(tmp_path / "out", tmp_path / "morning.html")
    assert (tmp_path / "evening.html").read_bytes() == (tmp_path / "morning.html").read_bytes()
    found = al.verify_run(
        tmp_path / "out", model=model, data=capitals(5), cells=5, show_progress=False
    )
    assert found.ok, found
    checks = found.table().set_index("what")
    assert checks["status"].filter(like="cells").tolist() == ["match"]
    assert checks["detail"].filter(like="inputs").iloc[0].endswith("drawn again")


@pytest.mark.slow
def test_the_study_in_a_report_repeats_the_prompts(models, at, tmp_path):
    model, _ = models(SECONDS)
    options = {**OPTIONS, "batch_size": 4}
    at(EVENING)
    first = al.swap_sweep(model, al.load_qa("popqa-sample", limit=4), **options)
    at(MORNING)
    (text,) = studies_of([first])
    (tmp_path / "study.toml").write_text(text)
    assert f'prompt = "chat({EVENING})"' in text
    (again,) = al.run_study(
        replace(al.Study.from_toml(tmp_path / "study.toml"), models=[model])
    ).results
    assert (again.run_id, again.record["clock"]) == (first.run_id, EVENING)
    assert provenance_by_section(first)["run"] == {"run_id": first.run_id, "clock": EVENING}


@dataclass(frozen=True)
class Headed:
    """A prompt of a user that reads what its code does not show."""

    name: str = "headed"

    def render(self, question, tokenizer):
        return PromptText(f"{os.environ['HEAD_OF_A_TEST']} Q: {question}\nA:", 5, " ")


@pytest.mark.slow
def test_a_prompt_of_a_user_that_renders_other_texts_is_another_run(models, tmp_path, monkeypatch):
    model, _ = models(CHAT)
    monkeypatch.setenv("HEAD_OF_A_TEST", "1")
    first, again = swap(model, prompt=Headed()), swap(model, prompt=Headed())
    patch = interrupt(2)
    with pytest.raises(KeyboardInterrupt):
        swap(model, prompt=Headed(), out=tmp_path / "out")
    patch.undo()
    monkeypatch.setenv("HEAD_OF_A_TEST", "2")
    assert first.run_id == again.run_id != swap(model, prompt=Headed()).run_id
    with pytest.raises(RunError, match=r"plan\.prompts_sha256: .* before, .* now"):
        swap(model, prompt=Headed(), out=tmp_path / "out", resume=True)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_workers_of_ray_read_the_clock_of_the_run(models, at, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'anchorlens[ray]'")
    model, path = models(SECONDS)
    at(EVENING)
    swap(model, out=tmp_path / "whole")
    swap(str(path), out=tmp_path / "out", executor=al.RayExecutor(workers=2))
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")
