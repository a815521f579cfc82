"""Mutated study files and command lines are accepted or end in one clear message; every case that
failed once is a line here.
"""

import pytest
import tomli_w

from tests.fuzz_arguments import LONG, Case, Place, fuzz, study_of

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with Place.make(tmp_path_factory.mktemp("fuzz")) as made:
        yield made


@pytest.mark.slow
def test_mutated_studies_and_arguments_end_in_one_message(place):
    found = list(fuzz(place, 80, seed=0))
    assert [
        f"{outcome}: {case}"
        for _, case, outcome in found
        if outcome.kind not in ("accepted", "clear")
    ] == []
    kinds = {(target, outcome.kind) for target, _, outcome in found}
    assert kinds == {
        (target, kind) for target in ("study file", "arguments") for kind in ("accepted", "clear")
    }


SWAP = (
    "swap",
    "--model={model}",
    "--dataset=mine",
    "--data-file=mine.jsonl",
    "--device=cpu",
    "--quiet",
    "--dry-run",
)


def changed(table="", **values):
    """A change of a study: of its first ``data`` or ``protocol``, or of its own keys."""

    def change(study):
        (study[table][0] if table else study).update(values)
        return tomli_w.dumps(study)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda study: f"models = {'[' * 3_000}{']' * 3_000}",
            "study.toml is not TOML: maximum recursion depth",
        ),
        (
            lambda study: f"n_devices = {'9' * 5_000}",
            "study.toml is not TOML: Exceeds the limit (4300 digits)",
        ),
        (changed(device=10**30), "device=1000000000000000000000000000000: no such device"),
        (changed(device=-(10**30)), "no such device"),
        (changed(stream="no"), "stream='no': not a bool"),
        (changed(models=[LONG]), "No model has the name 'xxx"),
        (changed("data", name=LONG, path=LONG), "File name too long"),
        (changed("data", path=3), "[[data]] path=3 must be text"),
        (changed("data", path=["mine.jsonl"]), "[[data]] path=['mine.jsonl'] must be text"),
        (changed("data", path="~nobody/x.jsonl"), "No such file"),
        (changed("protocol", n_resamples=10**30), "must be at most 1000000"),
        (
            changed("protocol", seed=2**64),
            "seed=18446744073709551616 must be at most 9223372036854775807",
        ),
        (changed("protocol", anchors=[LONG]), "Unknown anchor 'xxx"),
        (changed(**{LONG: 1}), "study.toml: unknown key 'xxx"),
        (changed(**{"a\nb": 1}), "study.toml: unknown key 'a b'"),
    ],
)
def test_a_study_that_failed_once(place, change, said):
    outcome = place.run(
        Case(("run", "study.toml", "--quiet", "--dry-run"), change(study_of(place.model)))
    )
    assert outcome.kind == "clear"
    assert said in outcome.message


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("report", "done", "--out=r.html", "--title=a\udcff"), "'--title=a\\udcff' is not UTF-8"),
        (("figure", "done", "--title=\udcff"), "is not UTF-8"),
        (("figure", "done", "--label=\udcff"), "is not UTF-8"),
        (("swap", "--config=\udcff.toml", "--dry-run"), "is not UTF-8"),
        (("swap", f"--config={LONG}", "--dry-run"), "File name too long"),
        (("run", LONG, "--dry-run"), "File name too long"),
        ((*SWAP, f"--out={LONG}"), "File name too long"),
        ((*SWAP, f"--data-file={LONG}"), "--data-file: 2 files for 1 data set"),
        (("status", LONG), "File name too long"),
        (("status", "."), "is not a run"),
        (("status", ""), "must be the path of a run directory"),
        (("status", "/"), "/ is not a run"),
        (("merge", LONG), "File name too long"),
        (("figure", "done", "--label=a", "--label=a"), "--label: 1 different labels, 1 given runs"),
        (("figure", LONG), "File name too long"),
        (("figure", "done", f"--out={LONG}.html"), "File name too long"),
        (("report", "done", f"--out={LONG}.html"), "File name too long"),
        (("report", "done", f"--out={' '.join(['y'] * 9_000)}.html"), "File name too long"),
        (("models", LONG), "Got unexpected extra argument (xxx"),
        (("models", "a\nb"), "Got unexpected extra argument (a b)"),
        ((LONG,), "No command 'xxx"),
        ((*SWAP, "--seed=" + "9" * 5_000), "is not a valid integer"),
        ((*SWAP, "--layers=" + "9" * 5_000), "Exceeds the limit (4300 digits)"),
        ((*SWAP, "--window=" + "9" * 5_000), "is not a valid integer"),
        (("knockout", *SWAP[1:], "--window=" + "9" * 5_000), "Exceeds the limit (4300 digits)"),
    ],
)
def test_a_command_that_failed_once(place, args, said):
    outcome = place.run(Case(tuple(one.replace("{model}", place.model) for one in args)))
    assert outcome.kind == "clear", outcome
    assert said in outcome.message


@pytest.mark.parametrize(
    "line",
    ["limit = 2.5", "limit = true", "seed = 2026-01-02", "limit = [1, 2]", "n-devices = 1.0"],
)
def test_an_option_file_is_read_as_the_command_line_is(place, line):
    (place.folder / "options.toml").write_text(line)
    outcome = place.run(
        Case(
            (
                "swap",
                f"--model={place.model}",
                "--dataset=popqa-sample",
                "--config=options.toml",
                "--dry-run",
            )
        )
    )
    assert outcome.kind == "clear"
    assert "is not a valid integer" in outcome.message
