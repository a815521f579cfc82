"""Gold aliases are pooled by question at loading, for grading, donors and false answers."""

from anchorlens.questions.answer_text import is_right
from anchorlens.questions.datasets import load_qa
from anchorlens.questions.false_answers import assign_false_answers, split_questions

ROWS = [
    {
        "question": "What is John Smith's occupation?",
        "answers": ["actor", "film actor"],
        "relation": "occupation",
    },
    {"question": "What is john smith's occupation", "answers": ["judge"], "relation": "occupation"},
    {"question": "What is Ann Lee's occupation?", "answers": ["nurse"], "relation": "occupation"},
    {"question": "What is Bo Ray's occupation?", "answers": ["pilot"], "relation": "occupation"},
]


def test_rows_of_one_question_have_each_others_aliases_after_their_own():
    data = load_qa(ROWS)
    assert [row.answers for row in data.pool] == [
        ("actor", "film actor", "judge"),
        ("judge", "actor", "film actor"),
        ("nurse",),
        ("pilot",),
    ]
    assert is_right("a judge", data.examples[0].answers)


def test_aliases_of_rows_outside_the_draw_are_pooled():
    drawn = [load_qa(ROWS, limit=1, seed=seed).examples[0] for seed in range(20)]
    assert {row.answers for row in drawn if "smith" in row.question.lower()} == {
        ("actor", "film actor", "judge"),
        ("judge", "actor", "film actor"),
    }


def test_both_rows_stay_with_their_own_true_answers():
    rows = load_qa(ROWS).examples
    assigned = assign_false_answers(rows, dict.fromkeys(split_questions(rows), "train"))
    assert sorted(assigned.false.values()) == ["actor", "judge", "nurse", "pilot"]
    assert {assigned.false[row.example_id] for row in rows[:2]} == {"nurse", "pilot"}
