"""Splits and false answers: linked questions share a split, and strings are balanced."""

import random
import time
import tracemalloc
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from anchorlens.constants import SHARES, SPLITS
from anchorlens.errors import InputError
from anchorlens.questions.answer_options import find_options, option_key
from anchorlens.questions.example import Example, normalise
from anchorlens.questions.false_answers import FalseAnswers, assign_false_answers, split_questions
from tests.questions.make import capital, example, sample, shared
from tests.raised import raises


def comparison(
    word: str, first: str, second: str, answer: str, example_id: str | None = None
) -> Example:
    """Make a comparison such as "Which is larger, Belgium or Russia?"."""
    return example(
        f"Which is {word}, {first} or {second}?",
        f"{first} or {second}",
        word,
        answer,
        example_id=example_id,
    )


BELGIUM = ("Belgium", "Russia")


def in_one_split(rows: list[Example], **options) -> FalseAnswers:
    """Assign false answers to rows of one split."""
    return assign_false_answers(
        rows, dict.fromkeys([row.question_id for row in rows], "train"), **options
    )


def stands(answer: str, question: str) -> bool:
    return f" {normalise(answer)} " in f" {normalise(question)} "


@pytest.fixture(scope="module")
def trivia():
    return sample("triviaqa").examples


PARIS = [capital("A-land", "Paris"), *(capital(f"{name}-isle", "Paris") for name in "DEFGH")]
ROME, OSLO = capital("B-land", "Rome"), capital("C-land", "Oslo")
TIED = {
    # One row that carries two aliases ties the rows of both together.
    "an alias through another row": (
        [*PARIS, ROME, replace(capital("Bridge", "Paris"), answers=("Paris", "Rome"))],
        [OSLO],
    ),
    "options and the rows that answer with them": (
        [
            comparison("larger", *BELGIUM, "Russia"),
            comparison("smaller", *BELGIUM, "Belgium"),
            capital("Kremlin", "Russia"),
        ],
        [capital(f"Land {i}", f"City {i}") for i in range(20)],
    ),
    "yes and no": (
        [capital(f"Land {i}", "yes" if i % 2 else "no") for i in range(10)],
        [capital("Peru", "Lima")],
    ),
}


@pytest.mark.parametrize(("tied", "others"), TIED.values(), ids=TIED)
def test_linked_questions_share_a_split(tied, others):
    for seed in range(20):
        split = split_questions([tied[0], *others, *tied[1:]], seed=seed)
        assert len({split[row.question_id] for row in tied}) == 1


def test_a_split_does_not_depend_on_the_order_of_rows(trivia):
    assert split_questions(trivia) == split_questions(trivia[::-1])
    assert split_questions(trivia, seed=1) != split_questions(trivia)


def test_shares_of_100_questions_are_filled_to_within_a_question_for_40_seeds():
    """Independent (binomial) draws gave 3 to 26 validation questions."""
    rows = [capital(f"Land {i}", f"City {i}") for i in range(100)]
    seen = {row.question_id: set() for row in rows}
    for seed in range(40):
        split = split_questions(rows, {"train": 0.5, "validation": 0.2, "test": 0.3}, seed=seed)
        sizes = Counter(split.values())
        assert all(
            abs(sizes[part] - n) <= 1 for part, n in zip(SPLITS, (50, 20, 30), strict=True)
        ), (seed, sizes)
        for question, name in split.items():
            seen[question].add(name)
    # The seed draws which questions fill them.
    assert min(len(names) for names in seen.values()) >= 2
    assert sum(len(names) == 3 for names in seen.values()) >= 95


@pytest.mark.parametrize("name", ["popqa", "triviaqa", "nq"])
def test_shares_of_tied_questions_are_filled_to_within_a_component_for_8_seeds(name):
    rows = sample(name).examples
    n = len({row.question_id for row in rows})
    for seed in range(8):
        sizes = Counter(split_questions(rows, seed=seed).values())
        assert max(abs(sizes[part] - share * n) for part, share in SHARES.items()) <= 3, (
            seed,
            sizes,
        )


def test_each_relation_has_its_share_of_every_split():
    rows = [
        replace(capital(f"Land {i} {j}", f"City {i} {j}"), relation=f"relation {i}")
        for i in range(5)
        for j in range(40)
    ]
    for seed in range(10):
        split = split_questions(rows, seed=seed)
        sizes = Counter((row.relation, split[row.question_id]) for row in rows)
        for i in range(5):
            for part, share in SHARES.items():
                assert abs(sizes[f"relation {i}", part] - share * 40) <= 4, (seed, sizes)


@pytest.mark.parametrize("distractor", ["matched", "random"])
def test_inside_every_split_true_and_false_strings_are_the_same_multiset(trivia, distractor):
    split = split_questions(trivia)
    assigned = assign_false_answers(trivia, split, distractor=distractor)
    assert len(assigned.false) + len(assigned.dropped) == len(trivia)
    for name in SPLITS:
        rows = [
            e for e in trivia if split[e.question_id] == name and e.example_id in assigned.false
        ]
        assert rows
        assert Counter(e.answers[0] for e in rows) == Counter(
            assigned.false[e.example_id] for e in rows
        )
    by_id = {e.example_id: e for e in trivia}
    for row, other in assigned.source.items():
        base, source = by_id[row], by_id[other]
        assert split[source.question_id] == split[base.question_id]
        assert normalise(assigned.false[row]) not in {normalise(a) for a in base.answers}
        if distractor == "matched":
            assert source.answer_type == base.answer_type
            assert len(normalise(source.answers[0]).split()) == len(
                normalise(base.answers[0]).split()
            )


def test_a_relation_is_kept_and_one_answer_for_most_of_a_group_drops_the_surplus():
    rows = [capital(f"L{i}", "Paris") for i in range(4)] + [capital("Italy", "Rome")]
    assigned = in_one_split(rows)
    # Rome can be false for one Paris and Paris for Rome; the other three have nothing left.
    assert len(assigned.false) == 2
    assert {d.reason for d in assigned.dropped} == {"no_distractor"}
    assert sorted(assigned.false.values()) == ["Paris", "Rome"]


def test_an_unknown_distractor_is_refused(trivia):
    with raises(InputError, "distractor", word="'random'"):
        assign_false_answers(trivia, split_questions(trivia), distractor="randon")


WALES, KENT = ("the University of Wales", "the Sorbonne"), ("Kent University", "Leeds University")
OPTIONS = {
    "a mirrored comparison gets the other option": (
        [("larger", "Belgium", "Russia", "Russia"), ("smaller", "Russia", "Belgium", "Belgium")],
        ["Belgium", "Russia"],
    ),
    "a cycle is kept and a loose one leaves": (
        [
            ("larger", "Nepal", "India", "India"),
            ("smaller", "Peru", "Nepal", "Nepal"),
            ("longer", "India", "Peru", "Peru"),
            ("older", "Mars", "India", "India"),
        ],
        ["Nepal", "Peru", "India", None],
    ),
    "an option is found behind an article": (
        [
            ("larger", "the giraffe", "the dog", "giraffe"),
            ("smaller", "the dog", "the giraffe", "dog"),
        ],
        ["dog", "giraffe"],
    ),
    "'the dog' would not stand in 'a giraffe or a dog', and the bit would tell": (
        [
            ("larger", "a giraffe", "a dog", "giraffe"),
            ("smaller", "the dog", "a giraffe", "the dog"),
        ],
        [None, None],
    ),
    "another article than in the question, for both": (
        [("larger", *WALES, "University of Wales"), ("older", *WALES, "The Sorbonne")],
        ["The Sorbonne", "University of Wales"],
    ),
    "only the false one would stand there as it is written": (
        [("larger", *KENT, "The Kent University"), ("older", *KENT[::-1], "Leeds University")],
        [None, None],
    ),
}


@pytest.mark.parametrize("distractor", ["matched", "random"])
@pytest.mark.parametrize(("asked", "false"), OPTIONS.values(), ids=OPTIONS)
def test_a_comparison_gets_its_other_option_or_is_dropped(asked, false, distractor):
    rows = [*(comparison(*one) for one in asked), capital("Italy", "Rome"), capital("Peru", "Lima")]
    assigned = in_one_split(rows, distractor=distractor)
    assert [assigned.false.get(row.example_id) for row in rows] == [*false, "Lima", "Rome"]
    assert [gone.reason for gone in assigned.dropped] == ["answer_in_question"] * false.count(None)


def test_a_comparison_without_a_mirror_takes_the_other_option_from_a_row_that_does_not_name_it():
    lender = example("Where does the Everest stand?", "Everest", "stand", "Nepal", example_id="b")
    rows = [
        replace(row, answer_type="place")
        for row in (comparison("larger", "Nepal", "India", "India", "a"), lender)
    ]
    assert in_one_split(rows).false == {"a": "Nepal", "b": "India"}


def test_a_dropped_comparison_names_the_missing_option():
    (gone,) = in_one_split([comparison("older", "Mars", "India", "India", "d")]).dropped
    assert (
        gone.detail
        == "the other option, 'mars', is the true answer of too few other rows of the train split"
    )


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is the capital of Luxembourg?", "Luxembourg"),
        ("What sport do both Ann Tennis and Bo Ray play?", "Tennis"),
        ("Is a C-sharp higher, or is the sharp C?", "sharp"),
    ],
)
def test_a_true_answer_that_stands_in_its_question_and_is_no_option_is_dropped(question, answer):
    row = example(question, question.split()[2], question.split()[1], answer, example_id="a")
    rows = [row, *(replace(capital(f"L{i}", f"Town{i}"), relation=None) for i in range(4))]
    assigned = in_one_split(rows)
    assert [(gone.example_id, gone.reason) for gone in assigned.dropped] == [
        ("a", "answer_in_question")
    ]


def test_no_permuted_answer_stands_in_its_question():
    """ "Rome" occurs in two questions ("the Rome road"), which must not get it as their false
    answer.
    """
    towns = ("Ulm", "Bonn", "Kiel")
    rows = [capital(f"the Rome road {i}", towns[i]) for i in range(3)] + [
        capital("Italy", "Rome"),
        capital("Peru", "Lima"),
    ]
    for seed in range(20):
        assigned = in_one_split(rows, seed=seed)
        assert len(assigned.false) == 5 and not any(
            stands(assigned.false[row.example_id], row.question) for row in rows
        )


def test_yes_and_no_are_no_words_of_the_question():
    texts = (("Is there no snow on Etna?", "no"), ("Is there snow on Etna?", "yes"))
    rows = [
        replace(example(text, "Etna", "snow", answer), answer_type="yes/no")
        for text, answer in texts
    ]
    assert list(in_one_split(rows).false.values()) in (["yes", "no"], ["no", "yes"])


def test_a_question_that_stands_twice_never_gets_its_own_answer_as_false():
    """Data: three people of one name with three occupations, and others."""

    def asked(name: str, job: str, i: int) -> Example:
        question = f"What is {name}'s occupation?"
        return example(
            question, name, "occupation", job, relation="occupation", example_id=f"{name}{i}"
        )

    rows = [asked("John Smith", job, i) for i, job in enumerate(("actor", "judge", "poet"))]
    rows += [
        asked(name, job, 0)
        for name, job in (("Ann Lee", "nurse"), ("Bo Ray", "pilot"), ("Cy Fox", "farmer"))
    ]
    for seed in range(100):
        assigned = in_one_split(rows, seed=seed)
        assert not {assigned.false[row.example_id] for row in rows[:3]} & {"actor", "judge", "poet"}


def test_rows_that_share_an_alias_exchange_no_answers():
    """14 is right for both, so "fourteen" is no false answer where the first alias is "14"."""
    rows = [
        example("How many lines has it?", "it", "lines", "14", "14 lines", example_id="a"),
        example("How many verses has that?", "that", "verses", "fourteen", "14", example_id="b"),
        example("How many acts has this?", "this", "acts", "three", example_id="c"),
        example("How many feet has that?", "that", "feet", "five", example_id="d"),
    ]
    for seed in range(20):
        false = in_one_split(rows, seed=seed).false
        assert len(false) == 4
        assert false["a"] != "fourteen" and false["b"] != "14"


def test_a_true_answer_that_stands_in_its_question_but_for_its_article_is_no_ordinary_pair():
    rows = [
        example("What is the name of our sun?", "our sun", "name", "The Sun", example_id="a"),
        example("What lights the moon at night?", "moon", "lights", "the sun", example_id="b"),
        example("What pulls the sea at night?", "sea", "pulls", "the moon", example_id="c"),
        example("What rules the house at night?", "house", "rules", "the cat", example_id="d"),
        example("What hunts at night?", "night", "hunts", "the owl", example_id="e"),
    ]
    for seed in range(20):
        assigned = in_one_split(rows, seed=seed)
        assert [(gone.example_id, gone.reason) for gone in assigned.dropped] == [
            ("a", "answer_in_question")
        ]
        # Nor does a false one stand there without its article.
        assert assigned.false["b"] != "the moon"


def kept_by_comparing_every_pair(rows: list[Example], matched: bool) -> int:
    """Count the kept rows by comparing every row with every answer."""
    pooled = defaultdict(set)
    for row in rows:
        pooled[row.question_id] |= {normalise(answer) for answer in row.answers}
    cost = np.full((len(rows), len(rows)), 1e6)
    for i, row in enumerate(rows):
        share, options = shared(row.answers[0], row.question), find_options(row.question) or ()
        named = share == 1 and option_key(row.answers[0]) in options
        for j, other in enumerate(rows):
            answer = normalise(other.answers[0])
            alike = any(
                stands(answer, alias) or stands(alias, answer) for alias in pooled[row.question_id]
            )
            kind = row.relation == other.relation and len(answer.split()) == len(
                normalise(row.answers[0]).split()
            )
            fits = (
                option_key(answer) in options
                if named
                else share < 1 and (kind or not matched) and not alike
            )
            fits &= (
                not pooled[row.question_id] & pooled[other.question_id]
                and shared(answer, row.question) == share
            )
            cost[i, j] = 1 if i == j else 0 if fits else 1e6
    a, b = linear_sum_assignment(cost)
    return int((a != b).sum())


@pytest.mark.slow
def test_as_many_rows_are_kept_as_by_comparing_every_pair_and_none_gets_a_right_answer():
    """Small random groups with nested strings, strings in questions, comparisons and repeated
    questions.
    """
    rng = random.Random(0)
    names = ["Ada", "Bo", "Ada Bo", "Cy", "Dan Eli", "Eli", "Fay"]
    dropped = 0
    for trial in range(50):
        rows = []
        for i in range(rng.randint(2, 24)):
            first, second = rng.sample(names, 2)
            if rng.random() < 0.4:
                rows.append(
                    comparison(
                        rng.choice(["older", "taller"]),
                        first,
                        second,
                        rng.choice([first, second]),
                        f"{i:02}",
                    )
                )
            else:
                answers = rng.sample(names[: rng.randint(2, 7)], rng.randint(1, 2))
                question = f"Who is the mayor of {rng.choice(names)} {rng.randint(0, 9)}?"
                rows.append(
                    example(
                        question,
                        question.rsplit(maxsplit=1)[-1],
                        "mayor",
                        *answers,
                        example_id=f"{i:02}",
                    )
                )
        for distractor in ("matched", "random"):
            assigned = in_one_split(rows, distractor=distractor, seed=trial)
            assert len(assigned.false) == kept_by_comparing_every_pair(
                rows, distractor == "matched"
            )
            kept = [row for row in rows if row.example_id in assigned.false]
            dropped += len(rows) - len(kept)
            assert Counter(row.answers[0] for row in kept) == Counter(assigned.false.values())
            for row in kept:
                right = {
                    normalise(a)
                    for other in rows
                    if other.question_id == row.question_id
                    for a in other.answers
                }
                false = assigned.false[row.example_id]
                assert normalise(false) not in right
                assert shared(false, row.question) == shared(row.answers[0], row.question)
            assert (
                in_one_split(rows[::-1], distractor=distractor, seed=trial).false == assigned.false
            )
    assert dropped > 40


@pytest.mark.slow
def test_6000_rows_take_seconds():
    rng = random.Random(0)
    words = [
        f"{a}{b}"
        for a in "bcdfghklmnprstvz"
        for b in ("a", "ero", "in", "ond", "us", "ely", "ick", "orth")
    ]
    rows = []
    for i in range(6000):
        answers = [" ".join(rng.choices(words, k=rng.randint(1, 3))) for _ in range(6)]
        question = f"Who sang the song {i} of {rng.choice(words)}?"
        rows.append(example(question, f"song {i}", "sang", *answers, example_id=str(i)))
    split = {row.question_id: SPLITS[i % 3] for i, row in enumerate(rows)}
    start = time.process_time()
    split_questions(rows)
    for distractor in ("matched", "random"):
        assert len(assign_false_answers(rows, split, distractor=distractor).false) > 5900
    # Two seconds on a free core; comparing every pair took minutes.
    assert time.process_time() - start < 20


def test_2000_questions_with_the_same_two_options_take_seconds():
    rows = [
        comparison(f"right in case {i}", "Alpha", "Beta", ("Alpha", "Beta")[i % 2])
        for i in range(2000)
    ]
    start = time.process_time()
    assigned = in_one_split(rows)
    # 2.5 seconds where every row was compared with every other.
    assert len(assigned.false) == 2000 and time.process_time() - start < 1.5


@pytest.mark.slow
def test_8000_uneven_yes_and_no_take_seconds_and_drop_only_the_surplus():
    asked = {"answer_type": "yes/no", "relation": None}
    rows = [
        replace(capital(f"Land {i}", "no" if i % 5 < 2 else "yes"), **asked) for i in range(8000)
    ]
    start = time.process_time()
    assigned = in_one_split(rows)
    # 26 seconds where the assignment had to find the surplus.
    assert time.process_time() - start < 13
    assert Counter(assigned.false.values()) == {"yes": 3200, "no": 3200}
    assert {gone.answer for gone in assigned.dropped} == {"yes"}
    # Which of them leave is drawn.
    fewer = rows[:500]
    left = [
        {gone.example_id for gone in in_one_split(fewer, seed=seed).dropped} for seed in range(2)
    ]
    assert left[0] != left[1]


def test_answers_of_400_words_take_little_memory():
    rows = [
        example(
            f"Who is number {i}?",
            "number",
            "Who",
            " ".join(f"w{i}x{k}" for k in range(400)),
            example_id=str(i),
        )
        for i in range(40)
    ]
    tracemalloc.start()
    assigned = in_one_split(rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Every run of words of every answer was 2 GB.
    assert len(assigned.false) == 40 and peak < 50e6
