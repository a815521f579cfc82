"""Accuracy of the rules on 200 labelled questions, as documented."""

import importlib.util
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from anchorlens.questions.example import normalise
from anchorlens.questions.spans.accuracy import ACCURACY
from anchorlens.questions.spans.lexicon import STOP

ROOT = Path(__file__).resolve().parents[2]
FORMS = ("popqa", "triviaqa", "hotpotqa", "nq")


@cache
def script() -> ModuleType:
    """Import ``benchmarks/spans.py``."""
    spec = importlib.util.spec_from_file_location(
        "spans_benchmark", ROOT / "benchmarks" / "spans.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("form", "subjects", "properties"),
    [
        ("popqa", 0.98, 0.98),
        ("triviaqa", 0.88, 0.9),
        ("hotpotqa", 0.90, 0.9),
        ("nq", 0.80, 0.9),
    ],
)
def test_rules_find_the_labelled_segments_as_often_as_documented(form, subjects, properties):
    rows, said = script().judged(form, "rules"), ACCURACY[form]
    found = sum(row.subject_right for row in rows), sum(row.property_right for row in rows)
    assert (said.subjects, said.properties, said.labelled) == (*found, 50)
    assert found[0] >= subjects * 50
    assert found[1] >= properties * 50


def test_a_wrong_or_dropped_row_counts_as_wrong(monkeypatch):
    rows = [
        {"form": "nq", "question": "who wrote emma", "subject": ["austen"], "property": ["wrote"]},
        {"form": "nq", "question": "who is he", "subject": ["he"], "property": ["is"]},
        {
            "form": "nq",
            "question": "who sank the titanic",
            "subject": ["The Titanic"],
            "property": ["sank", "wrote"],
        },
    ]
    monkeypatch.setattr(script(), "labels", lambda: rows)
    assert [row[3:] for row in script().judged("nq", "rules")] == [
        (False, True),
        (False, False),
        (True, True),
    ]


def test_each_form_has_fifty_labelled_questions():
    rows = script().labels()
    assert Counter(row["form"] for row in rows) == dict.fromkeys(FORMS, 50)
    assert len({normalise(row["question"]) for row in rows}) == 200
    for row in rows:
        assert row["subject"] and row["property"]
        assert all(
            text and text in row["question"] for text in (*row["subject"], *row["property"])
        ), row
        assert row["form"] != "nq" or row["question"] == row["question"].lower()


@pytest.mark.slow
@pytest.mark.shared_data
def test_no_labelled_question_is_of_a_real_set_or_nearly_one(shared_data):
    """PopQA's questions of one relation share a template, so only their subject must be new."""
    real = [
        json.loads(line)["question"]
        for name in FORMS
        for line in (shared_data / f"{name}.jsonl").read_text(encoding="utf8").splitlines()
    ]
    texts = {normalise(question) for question in real}
    sets = [frozenset(text.split()) - STOP for text in texts]
    for row in script().labels():
        assert normalise(row["question"]) not in texts
        ours = frozenset(normalise(row["question"]).split()) - STOP
        if row["form"] != "popqa":
            assert max(len(ours & other) / max(1, len(ours | other)) for other in sets) < 0.7, row[
                "question"
            ]


def test_the_docs_show_the_counts():
    text = (ROOT / "docs" / "spans.md").read_text(encoding="utf8")
    rows = re.findall(
        r"^\| (\w+) \| (\d+) % \| (\d+) % \| (?:\d+) % \| (?:\d+) % \|$", text, re.MULTILINE
    )
    assert rows == [(a.name, f"{2 * a.subjects}", f"{2 * a.properties}") for a in ACCURACY.values()]
    read = re.findall(
        r"^\| (\w+) \| [\d /]+ \| (\d+) / \d+ / \d+ \| [\d /]+ \| [\d /]+ \|$", text, re.MULTILINE
    )
    assert read == [(a.name, str(a.read_subjects)) for a in ACCURACY.values()]


def test_accuracy_table_with_spacy():
    """The table has a row of spaCy for each set, if spaCy and a pipeline are installed."""
    spacy = pytest.importorskip("spacy")
    if not spacy.util.is_package("en_core_web_sm"):
        pytest.skip("en_core_web_sm is not installed")
    table = script().table(["rules", "spacy:en_core_web_sm"])
    assert table.count("`spacy:en_core_web_sm`") == 4
