"""Eligible donors, pairing of positions, and positions of the null."""

from dataclasses import replace
from itertools import product

import numpy
import pytest

from anchorlens.errors import DonorError
from anchorlens.questions.donors import (
    DonorPicker,
    null_positions,
    pair_positions,
    rule_name,
    same_role_positions,
)
from anchorlens.questions.prompts import FewShotPrompt, QAPrompt
from anchorlens.questions.tokens import RowTokenizer
from tests.questions.make import CAPITALS, capital, capitals, equal_lengths, example, refused
from tests.raised import raises
from tests.tokenizers_small import small_tokenizer


@pytest.fixture(scope="module")
def rows():
    return RowTokenizer(small_tokenizer("byte", bos=True), QAPrompt())


@pytest.fixture(scope="module")
def pool(rows):
    others = [
        example("Who is the author of Emma?", "Emma", "author", "Jane Austen", relation="author"),
        example(
            "What is the capital of Gaul?",
            "Gaul",
            "capital",
            "Paris",
            "Lutetia",
            relation="capital",
        ),
        example("what is the CAPITAL of france", "france", "CAPITAL", "Paris", relation="capital"),
        example(
            "What is the capital of the old land Japan?",
            "the old land Japan",
            "capital",
            "Kyoto",
            relation="capital",
        ),
    ]
    return tuple(rows.row(e) for e in (*capitals().pool, *others, *equal_lengths().pool))


def picker(pool, **changes):
    given = {
        "rule": "same_relation",
        "anchors": ("exact_question", "pre_answer"),
        "align": "equal",
        "n_donors": 99,
        "seed": 0,
    }
    return DonorPicker(pool=pool, **given | changes)


def test_donors_obey_every_rule(rows, pool):
    for base in pool[: len(CAPITALS)]:
        for donor in picker(pool).pick(base):
            assert donor.example.relation == "capital"
            assert donor.example.question_id != base.example.question_id
            assert donor.answer_ids[0] != base.answer_ids[0]
            assert not set(donor.example.answers) & set(base.example.answers)
            for role in ("subject", "property"):
                assert len(donor.positions[role]) == len(base.positions[role])


def test_exactly_the_eligible_rows_are_donors(rows, pool):
    """Compare with an independent implementation, row by row."""
    base = pool[-1]

    def lengths(row):
        return [len(row.positions[role]) for role in ("subject", "property")]

    wanted = {
        row.id
        for row in pool
        if row.example.relation == "capital"
        and row.id != base.id
        and row.answer_ids[0] != base.answer_ids[0]
        and lengths(row) == lengths(base)
    }
    assert {row.id for row in picker(pool).pick(base)} == wanted
    assert len(wanted) >= 5


def test_random_crosses_relations_and_last_relaxes_length(rows, pool):
    base = pool[0]
    anywhere = {
        row.example.relation for row in picker(pool, rule="random", align="last").pick(base)
    }
    assert anywhere == {"capital", "author"}
    relaxed = picker(pool, align="last").pick(base)
    longer = [row for row in relaxed if "the old land" in row.example.question]
    assert len(longer) == 1
    at_base, at_donor = pair_positions(base, longer[0], "subject", "last")
    assert at_donor == longer[0].positions["subject"][-len(at_base) :]
    assert pair_positions(base, longer[0], "subject", "equal") is None


def test_a_custom_rule_selects_only_eligible_rows(rows, pool):
    def only_cuba_and_gaul(base, candidates):
        return [e for e in candidates if e.subject.of(e.question) in ("Cuba", "Gaul")]

    chosen = picker(pool, rule=only_cuba_and_gaul, align="last").pick(pool[0])
    assert [row.example.subject.of(row.example.question) for row in chosen] == ["Cuba"]
    assert rule_name(only_cuba_and_gaul) == "callable:only_cuba_and_gaul"


def test_choice_depends_on_seed_and_row_alone(rows, pool):
    first = [row.id for row in picker(pool, n_donors=2).pick(pool[-1])]
    assert first == [row.id for row in picker(pool, n_donors=2).pick(pool[-1])]
    picks = {
        tuple(row.id for row in picker(pool, n_donors=2, seed=s).pick(pool[-1])) for s in range(6)
    }
    assert len(picks) > 1


def test_answer_type_replaces_a_missing_relation(rows):
    made = [
        replace(capital(c, a), relation=None, answer_type=t)
        for c, a, t in (
            ("France", "Paris", "place"),
            ("Japan", "Tokyo", "place"),
            ("Peru", "Lima", "other"),
        )
    ]
    chosen = picker(tuple(rows.row(e) for e in made), align="last").pick(rows.row(made[0]))
    assert [row.example.answers[0] for row in chosen] == ["Tokyo"]


@pytest.mark.parametrize("anchor", ["exact_question", "subject", "pre_answer", "prompt_last"])
def test_null_avoids_sink_anchor_and_readout(rows, anchor):
    row = rows.row(capital("Germany", "Berlin is big"))
    for seed in range(20):
        where = null_positions(row, anchor, 3, seed, "donor")
        assert len(where) == len(set(where)) == 3
        assert not {
            0,
            *row.positions["exact_question"],
            *row.positions["pre_answer_all"],
            *row.positions[anchor],
        } & set(where)
        assert all(p < row.prompt_length for p in where)
        if anchor in ("pre_answer", "prompt_last"):
            assert min(where) > max(row.positions["exact_question"])


def test_null_that_finds_too_few_positions_falls_short(rows):
    row = rows.row(capital("Germany", "Berlin"))
    taken = {0, *row.positions["exact_question"], *row.positions["pre_answer"]}
    free = set(range(row.prompt_length)) - taken
    assert set(null_positions(row, "exact_question", 999, 0, "d", "prompt")) == free
    # BOS, "Q", ":" stand before the question.
    assert set(null_positions(row, "exact_question", 999, 0, "d")) == free - {1, 2}


@pytest.mark.parametrize(
    "anchor", ["exact_question", "subject", "question_rest", "pre_answer", "answer", "prompt_last"]
)
def test_null_lies_in_the_rows_own_part_of_the_prompt(anchor):
    """The region "question" starts at the question, "prompt" includes the shots."""
    shots = FewShotPrompt(
        "fewshot(2)",
        (("What is the capital of Chad?", "N'Djamena"), ("What is 2 + 2?", "4")),
        frozenset(),
    )
    row = RowTokenizer(small_tokenizer("byte", bos=True), shots).row(capital("Germany", "Berlin"))
    own = {p for seed in range(60) for p in null_positions(row, anchor, 2, seed, "d")}
    begins = row.text.rindex("What is the capital of Germany")
    before = len(
        RowTokenizer(small_tokenizer("byte", bos=True), shots).encode(row.text[:begins].rstrip())[0]
    )
    assert min(own) >= before
    far = {p for seed in range(60) for p in null_positions(row, anchor, 2, seed, "d", "prompt")}
    at_the_answer = anchor in ("pre_answer", "answer", "prompt_last")
    assert (min(far) < before) is not at_the_answer
    if at_the_answer:
        assert min(own | far) > max(row.positions["exact_question"])


def test_unknown_names_are_refused():
    with raises(DonorError, "donors", word="'same_relation'"):
        rule_name("same_relations")
    with raises(DonorError, "align"):
        picker((), align="lst")


@pytest.mark.parametrize("n", [0, 2.5, "2", True, None])
def test_invalid_n_donors_are_refused(unchecked, n):
    with refused(DonorError, f"n_donors={n!r}: must be an integer >= 1.", "n_donors"):
        picker((), n_donors=n)


@pytest.mark.parametrize(
    ("rule", "shown"),
    [
        (None, "None"),
        (("random",), "('random',)"),
        (dict, "the class dict"),
        (lambda base: [], "a function"),
    ],
)
def test_a_rule_of_another_kind_is_refused(unchecked, rule, shown):
    for use in (rule_name, lambda rule: picker((), rule=rule)):
        with refused(DonorError, f"donors={shown}: must be 'same_relation', ", "donors"):
            use(rule)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda pool: None, "the function returned None for 'What is the capital of France?'."),
        (lambda pool: "Japan", "donors=callable:rule: the function returned 'Japan' for"),
        (lambda pool: pool[1], "donors=callable:rule: the function returned an Example for"),
        (lambda pool: {"Japan": pool[1]}, "donors=callable:rule: the function returned a dict for"),
        (
            lambda pool: ["Japan"],
            "donors=callable:rule: the function returned 'Japan' as a row for",
        ),
        (
            lambda pool: [pool[1], None],
            "donors=callable:rule: the function returned None as a row for",
        ),
        (
            lambda pool: [capital("Mali", "Bamako")],
            "the function returned 'What is the capital of Mali?', a row outside the pool, for",
        ),
        (
            lambda pool: iter([*pool, capital("Mali", "Bamako")]),
            "the capital of Mali?', a row outside the pool, for",
        ),
    ],
)
def test_invalid_results_of_a_rule_are_refused(unchecked, pool, given, message):
    def rule(base, candidates):
        return given(candidates)

    with refused(DonorError, message, "donors"):
        picker(pool, rule=rule).pick(pool[0])


def test_a_rule_can_return_no_rows_or_all_rows(pool):
    assert picker(pool, rule=lambda base, candidates: ()).pick(pool[0]) == ()
    whole = picker(pool, align="last", rule=lambda base, rows: iter(rows)).pick(pool[0])
    assert {row.id for row in whole} == {
        row.id for row in picker(pool, align="last", rule="random").pick(pool[0])
    }


def test_n_donors_can_be_a_numpy_integer(unchecked, pool):
    assert picker(pool, n_donors=numpy.int64(2)).pick(pool[-1]) == picker(pool, n_donors=2).pick(
        pool[-1]
    )


def test_a_row_that_shares_an_answer_with_the_base_question_asked_again_is_no_donor(rows):
    """Two people of one name: the answer of each is right for the question."""

    def asked(name, job, example_id):
        return example(
            f"What is {name}'s occupation?",
            name,
            "occupation",
            job,
            relation="occupation",
            example_id=example_id,
        )

    pool = tuple(
        rows.row(e)
        for e in (
            asked("31q", "94", "a"),
            asked("31q", "83", "b"),
            asked("52w", "83", "c"),
            asked("73x", "72", "d"),
        )
    )
    assert [row.id for row in picker(pool).pick(pool[0])] == ["d"]
    # Left out of the pool, the second asks nothing, and its answer may be another's.
    assert {row.id for row in picker((pool[0], *pool[2:])).pick(pool[0])} == {"c", "d"}


@pytest.mark.parametrize(
    "anchor", ["exact_question", "subject", "question_rest", "pre_answer", "prompt_last"]
)
def test_same_role_pairs_positions_that_can_differ(rows, pool, anchor):
    """One to one, behind the first differing token, outside sink, anchor, E_Q and readout in both
    inputs.
    """
    found = 0
    for row, donor in product(pool, repeat=2):
        if row.ids == donor.ids:
            continue
        differ = next(i for i, (a, b) in enumerate(zip(row.ids, donor.ids, strict=False)) if a != b)
        for where, one in zip(
            same_role_positions(row, donor, anchor, 4, f"{row.id} {donor.id}"),
            (row, donor),
            strict=True,
        ):
            assert len(where) == len(set(where)) <= 4
            taken = (
                *one.positions["exact_question"],
                *one.positions["pre_answer_all"],
                *one.positions[anchor],
            )
            assert not {0, *taken} & set(where)
            assert all(differ <= p < one.prompt_length for p in where)
            found += len(where)
    assert found > 50


def test_same_role_positions_have_the_same_token_in_one_template(rows):
    short, long = rows.row(capital("Peru", "Lima")), rows.row(capital("Kazakhstan", "Astana"))
    here, there = same_role_positions(short, long, "exact_question", 99, "label")
    assert [short.ids[p] for p in here] == [long.ids[p] for p in there]
    assert set(here) == set(range(short.prompt_length)) & {
        p
        for p in range(short.positions["subject"][-1] + 1, short.prompt_length)
        if p not in short.positions["pre_answer_all"]
    }
    drawn = {same_role_positions(short, long, "exact_question", 2, f"{n}")[0] for n in range(9)}
    assert len(drawn) > 1


def test_same_role_follows_the_nearest_edge(rows):
    """Words behind the property lie as far behind it in both questions, those at the end as far
    before the end.
    """
    row = rows.row(example("In what city was Ann born?", "Ann", "city"))
    donor = rows.row(example("In what old town did Bob the Great live?", "Bob", "town"))
    no_content = replace(row, positions={**row.positions, "rest_content": ()})
    here, there = same_role_positions(no_content, donor, "exact_question", 99, "label")
    pairs = dict(zip(here, there, strict=True))
    behind, last = row.positions["property"][-1] + 1, row.prompt_length - 2
    assert pairs[behind] == donor.positions["property"][-1] + 1
    assert pairs[last] == donor.prompt_length - 2


def test_same_role_takes_content_words_where_the_row_has_any(rows):
    row = rows.row(example("In what city was Ann born?", "Ann", "city"))
    donor = rows.row(example("In what old town did Bob the Great live?", "Bob", "town"))
    assert [row.ids[p] for p in row.positions["rest_content"]]
    here, _ = same_role_positions(row, donor, "exact_question", 99, "label")
    assert set(here) <= set(row.positions["rest_content"])
    assert set(row.positions["rest_content"]) < set(row.positions["rest_words"])
    assert set(row.positions["rest_words"]) < set(row.positions["question_rest"])
