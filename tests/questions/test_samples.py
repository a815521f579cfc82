"""Embedded question sets: schemas, and balance of forms and answers."""

import json
import re
from collections import Counter, defaultdict
from functools import cache
from importlib import resources
from typing import Any

import pytest

from anchorlens.questions.example import normalise
from anchorlens.questions.false_answers import assign_false_answers, split_questions
from anchorlens.questions.spans.templates import TEMPLATES
from tests.questions.make import sample

SETS = ("popqa", "triviaqa", "hotpotqa", "nq")
FIELDS = {
    "popqa": {
        "id": int,
        "subj": str,
        "prop": str,
        "obj": str,
        "question": str,
        "possible_answers": str,
    },
    "triviaqa": {"question": str, "question_id": str, "answer": dict},
    "hotpotqa": {"id": str, "question": str, "answer": str, "type": str},
    "nq": {"question": str, "answer": list},
}


@cache
def rows_of(name: str) -> list[dict[str, Any]]:
    """Return the raw rows of a sample."""
    text = (
        resources.files("anchorlens.questions")
        .joinpath("samples")
        .joinpath(f"{name}.jsonl")
        .read_text(encoding="utf8")
    )
    return [json.loads(line) for line in text.splitlines()]


def answers_of(name: str, row: dict[str, Any]) -> list[str]:
    """Return the gold aliases of a row, canonical one first, without the package's reader."""
    if name == "popqa":
        return json.loads(row["possible_answers"])
    if name == "triviaqa":
        return row["answer"]["aliases"]
    return [row["answer"]] if name == "hotpotqa" else row["answer"]


def holds(text: str, part: str) -> bool:
    """Return True if a part occurs in a text as whole words."""
    return f" {normalise(part)} " in f" {normalise(text)} "


def options(question: str) -> tuple[str, str]:
    """Return the two sides of a comparison."""
    first, second = question.removesuffix("?").rsplit(", ", 1)[1].split(" or ")
    return first, second


def comparisons() -> list[dict[str, Any]]:
    return [row for row in rows_of("hotpotqa") if row["type"] == "comparison"]


@pytest.mark.parametrize("name", SETS)
def test_every_row_has_the_fields_of_its_schema_and_aliases_that_are_texts_without_repeats(name):
    assert len(rows_of(name)) >= 160
    for row in rows_of(name):
        assert {field: type(value) for field, value in row.items()} == FIELDS[name]
        assert row["question"] == row["question"].strip() != ""
        answers = answers_of(name, row)
        assert answers and all(
            isinstance(a, str) and normalise(a) and a == a.strip() for a in answers
        ), row
        assert len(set(answers)) == len(answers), row


@pytest.mark.parametrize(
    ("name", "field"), [("popqa", "id"), ("triviaqa", "question_id"), ("hotpotqa", "id")]
)
def test_ids_are_unique(name, field):
    ids = [row[field] for row in rows_of(name)]
    assert len(set(ids)) == len(ids)


def test_no_question_stands_twice_in_or_across_the_sets():
    counts = Counter(normalise(row["question"]) for name in SETS for row in rows_of(name))
    assert [question for question, n in counts.items() if n > 1] == []


def test_popqa_questions_are_their_template_filled_with_their_subject():
    rows = rows_of("popqa")
    for row in rows:
        assert row["question"] == TEMPLATES[row["prop"]].replace("*", "").format(row["subj"])
        assert row["obj"] == answers_of("popqa", row)[0]
    assert {row["prop"] for row in rows} == set(TEMPLATES)


def test_rows_of_free_text_have_the_form_of_their_set():
    for row in rows_of("triviaqa"):
        assert set(row["answer"]) == {"value", "aliases"}
        assert row["answer"]["value"] == row["answer"]["aliases"][0]
        assert row["question"].endswith("?") and row["question"][0].isupper()
    for row in rows_of("nq"):
        assert row["question"] == row["question"].lower() and "?" not in row["question"]
    types = Counter(row["type"] for row in rows_of("hotpotqa"))
    assert set(types) == {"bridge", "comparison"} and min(types.values()) >= 60


@pytest.mark.parametrize("name", SETS)
def test_no_gold_alias_stands_in_its_own_question(name):
    """Otherwise a repetition of the question would be correct; comparisons contain their answer and
    are balanced instead.
    """
    leaks = [
        row["question"]
        for row in rows_of(name)
        if row.get("type") != "comparison"
        and any(holds(row["question"], answer) for answer in answers_of(name, row))
    ]
    assert leaks == []


# The word that asks for one side of a comparison, and the one that asks for the other.
MIRRORED = [
    {"larger", "smaller"},
    {"bigger", "smaller"},
    {"heavier", "lighter"},
    {"older", "newer"},
    {"taller", "shorter"},
    {"longer", "shorter"},
    {"hotter", "colder"},
    {"first", "later"},
]


def test_every_comparison_has_a_mirror_with_the_same_options_and_the_other_answer():
    """Each option is right once, so that always answering the first side is right in half."""
    pairs = defaultdict(list)
    for row in comparisons():
        asked, told = row["question"].rsplit(", ", 1)
        form, word = asked.rsplit(" ", 1)
        pairs[form, told].append(
            (word, [holds(side, row["answer"]) for side in options(row["question"])])
        )
    assert len(pairs) == 45
    for key, members in pairs.items():
        assert {word for word, _ in members} in MIRRORED and len(members) == 2, key
        assert sorted(sides for _, sides in members) == [[False, True], [True, False]], key


def test_the_first_side_is_right_about_as_often_whichever_way_a_comparison_asks():
    """Otherwise "larger" and "smaller" would predict the side."""
    asks = {"larger", "bigger", "heavier", "older", "taller", "longer", "hotter", "first"}
    rows = [
        row for row in comparisons() if row["question"].rsplit(", ", 1)[0].rsplit(" ", 1)[1] in asks
    ]
    firsts = sum(holds(options(row["question"])[0], row["answer"]) for row in rows)
    assert len(rows) == 45 and abs(2 * firsts - len(rows)) == 1


@pytest.mark.parametrize("name", SETS)
def test_nearly_every_row_of_a_sample_finds_a_false_answer(name):
    """Comparisons are kept, because the other option is true in the mirrored question."""
    rows = sample(name).examples
    for seed in range(2):
        assigned = assign_false_answers(rows, split_questions(rows, seed=seed), seed=seed)
        assert len(assigned.false) >= (0.85 if name == "popqa" else 0.93) * len(rows)
        assert {gone.reason for gone in assigned.dropped} <= {
            "no_distractor",
            "answer_word_in_question",
        }


def test_every_popqa_row_has_others_of_its_relation_with_another_answer():
    by_relation = defaultdict(list)
    for row in rows_of("popqa"):
        by_relation[row["prop"]].append({normalise(a) for a in answers_of("popqa", row)})
    for relation, members in by_relation.items():
        for aliases in members:
            assert sum(not aliases & other for other in members) >= 2, (relation, aliases)


@pytest.mark.parametrize("name", SETS)
def test_no_single_answer_carries_a_set(name):
    """The most frequent answer is right in fewer than one row in eight."""
    rows = rows_of(name)
    most = Counter(
        alias for row in rows for alias in {normalise(a) for a in answers_of(name, row)}
    ).most_common(1)[0]
    assert most[1] / len(rows) < 1 / 8, most


def test_the_sets_agree_on_the_country_of_a_city():
    forms = {
        "popqa": r"in what country is (.+)",
        "triviaqa": r"the city of (.+) is in which country",
        "nq": r"(?:the city of (.+) is in which country|what country is (.+) in)",
    }
    countries = defaultdict(set)
    for name, form in forms.items():
        for row in rows_of(name):
            match = re.fullmatch(form, normalise(row["question"]))
            if match:
                countries[next(group for group in match.groups() if group)].add(
                    answers_of(name, row)[0]
                )
    assert {city: sorted(names) for city, names in countries.items() if len(names) > 1} == {}
    assert len(countries) >= 80


def test_capital_and_capital_of_are_inverse():
    """Questions of both directions agree."""
    rows = rows_of("popqa")
    there = {row["subj"]: row for row in rows if row["prop"] == "capital"}
    back = {row["subj"]: answers_of("popqa", row) for row in rows if row["prop"] == "capital of"}
    both = [(country, row["obj"]) for country, row in there.items() if row["obj"] in back]
    assert both
    for country, city in both:
        assert country in back[city]


@pytest.mark.parametrize("name", SETS)
def test_no_row_of_a_sample_is_dropped_and_free_text_asks_for_several_answer_types(name):
    data = sample(name)
    assert (
        len(data.pool) == len(data.examples) == len(rows_of(name))
        and data.dropped == ()
        and data.pool_dropped == {}
    )
    assert (data.name, data.source) == (f"{name}-sample", f"sample:{name}")
    assert {example.dataset for example in data.pool} == {f"{name}-sample"}
    types = Counter(example.answer_type for example in data.pool)
    assert name == "popqa" or sum(n >= 10 for n in types.values()) >= 3, types


def test_popqa_subject_spans_are_the_subjects_of_the_rows():
    subjects = [(row["question"], row["subj"]) for row in rows_of("popqa")]
    assert [(e.question, e.subject.of(e.question)) for e in sample("popqa").pool] == subjects


@pytest.mark.shared_data
@pytest.mark.parametrize("name", SETS)
def test_no_question_is_one_of_the_real_sets(shared_data, name):
    ours = {normalise(row["question"]) for one in SETS for row in rows_of(one)}
    real = (
        json.loads(line)
        for line in (shared_data / f"{name}.jsonl").read_text(encoding="utf8").splitlines()
    )
    assert sorted(ours & {normalise(row["question"]) for row in real}) == []
