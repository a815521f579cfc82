"""Positions of anchors, BOS, prompts that are prefixes, and padding."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlens.engine.patches import common_prefix, pad_rows
from anchorlens.errors import InputError, SpanError
from anchorlens.prompts.dataset import RowDropped
from anchorlens.questions.example import Example, Span, question_id
from anchorlens.questions.prompts import (
    ChatPrompt,
    FewShotPrompt,
    PromptText,
    QAPrompt,
    make_prompt,
)
from anchorlens.questions.tokens import Answer, RowTokenizer, anchor_positions
from tests.questions.make import capital, example, refused
from tests.raised import raises
from tests.tokenizers_small import small_tokenizer, without_bos
from tests.torch_defaults import OTHER_DEFAULTS

KINDS = [("byte", False), ("byte", True), ("metaspace", False), ("metaspace", True)]
HARD = [
    example("In what city was Zoë Łukaszewicz born?", "Zoë Łukaszewicz", "city", "Kraków"),
    example("東京 is the capital of which country?", "東京", "country", "日本"),
    example(
        "Who wrote 'Who wrote it?' and who wrote it first?",
        "Who wrote it?",
        "first",
        "who wrote it",
    ),
    example("Paris, Texas lies in what state?", "Paris, Texas", "state", "Texas"),
    example("France's capital is what", "France", "capital", "Paris"),
    example("France has what capital", "France", "capital", "Paris"),
    example("Is Paris the capital of France?", "France", "capital", "Paris"),
    example(
        "What is an emoji such as 👩‍🚀 worth to New York New York",
        "New York New York",
        "emoji",
        "👩‍🚀 nothing",
    ),
]


@pytest.fixture(params=KINDS, ids=lambda k: f"{k[0]}-{'bos' if k[1] else 'nobos'}")
def tokenizer(request):
    return small_tokenizer(request.param[0], bos=request.param[1])


@pytest.mark.parametrize("row_example", HARD, ids=lambda e: e.question[:20])
def test_anchors_decode_to_their_spans_text(tokenizer, row_example):
    row = RowTokenizer(tokenizer, QAPrompt()).row(row_example)
    for role, text in (
        ("subject", row_example.subject.of(row_example.question)),
        ("property", row_example.property.of(row_example.question)),
        ("answer", row_example.answers[0]),
    ):
        decoded = tokenizer.decode(
            [row.ids[p] for p in row.positions[role]], clean_up_tokenization_spaces=False
        )
        assert text in decoded
    assert (
        list(row.ids)
        == tokenizer(f"Q: {row_example.question}\nA: {row_example.answers[0]}")["input_ids"]
    )
    # An answer that stands in the question too is not taken for the answer.
    assert min(row.positions["answer"]) >= row.prompt_length
    assert 0 not in row.positions["exact_question"]
    assert row.positions["exact_question"] == row.positions["subject"] + row.positions["property"]
    assert row.positions["subject_last"] == (max(row.positions["subject"]),)
    assert not set(row.positions["question_rest"]) & set(row.positions["exact_question"])
    assert row.positions["pre_answer_all"] == tuple(p - 1 for p in row.positions["answer"])
    # Where the space before the answer is a token of its own, the answer is predicted from that
    # space.
    assert row.positions["pre_answer"][0] - row.positions["prompt_last"][0] in (0, 1)
    assert row.positions["prompt_last"] == (row.prompt_length - 1,)


def test_question_text_is_all_anchored_or_rest(tokenizer):
    row_example = capital("France", "Paris")
    row = RowTokenizer(tokenizer, QAPrompt()).row(row_example)
    both = sorted(set(row.positions["exact_question"]) | set(row.positions["question_rest"]))
    decoded = tokenizer.decode([row.ids[p] for p in both], clean_up_tokenization_spaces=False)
    # A sentencepiece tokenizer may take "?" and what follows it into one token.
    assert decoded.strip().removesuffix("\nA:") == row_example.question


@pytest.mark.parametrize("kind", ["byte", "metaspace"])
def test_add_bos_overrides_the_tokenizer(kind):
    with_bos, without = small_tokenizer(kind, bos=True), small_tokenizer(kind, bos=False)
    row = capital("France", "Paris")
    ids = {
        (name, add): RowTokenizer(tok, QAPrompt(), add_bos=add).row(row).ids
        for name, tok in (("bos", with_bos), ("plain", without))
        for add in (True, False, None)
    }
    assert ids["bos", None] == ids["bos", True] == ids["plain", True]
    assert ids["plain", None] == ids["plain", False] == ids["bos", False]
    assert ids["bos", True] == (with_bos.bos_token_id, *ids["bos", False])


@pytest.mark.parametrize("kind", ["byte", "metaspace"])
def test_chat_template_that_holds_bos_does_not_get_it_twice(kind):
    tok = small_tokenizer(kind, bos=True, chat=True)
    row = RowTokenizer(tok, ChatPrompt()).row(capital("France", "Paris"))
    assert row.ids.count(tok.bos_token_id) == 1
    assert row.ids[0] == tok.bos_token_id
    assert row.text.endswith("<|assistant|>\nParis")


def test_a_tokenizer_without_a_chat_template_or_without_bos_is_refused():
    with raises(InputError, "prompt"):
        RowTokenizer(small_tokenizer("byte", bos=True), ChatPrompt()).row(
            capital("France", "Paris")
        )
    with raises(InputError, "add_bos"):
        RowTokenizer(without_bos(), QAPrompt(), add_bos=True)


def test_long_and_too_long_questions():
    tok = small_tokenizer("byte", bos=True)
    row_example = example(
        "What is the capital of " + "very " * 390 + "far France?", "France", "capital", "Paris"
    )
    assert len(row_example.question) > 1950
    row = RowTokenizer(tok, QAPrompt()).row(row_example)
    assert tok.decode([row.ids[p] for p in row.positions["subject"]]).strip() == "France"
    with pytest.raises(RowDropped, match="too_long"):
        RowTokenizer(tok, QAPrompt(), max_length=100).row(row_example)


class Made:
    """Prompt that renders by a function."""

    name = "made"

    def __init__(self, made):
        self.made = made

    def render(self, question, tokenizer):
        return self.made(question)


def test_position_0_is_never_an_anchor():
    bare, row_example = (
        Made(lambda q: PromptText(q, 0, " ")),
        example("France has what capital", "France", "capital", "Paris"),
    )
    with pytest.raises(RowDropped, match="anchor_at_position_0"):
        RowTokenizer(small_tokenizer("byte", bos=False), bare).row(row_example)
    assert (
        0
        not in RowTokenizer(small_tokenizer("byte", bos=True), bare)
        .row(row_example)
        .positions["exact_question"]
    )


def test_prompt_that_is_no_prefix_drops_the_row():
    tok = small_tokenizer("byte", bos=False)
    assert "Ġcapital" in tok.get_vocab(), "the test needs ' capital' to be one token"
    with pytest.raises(RowDropped, match="prompt_not_prefix"):
        RowTokenizer(tok, Made(lambda q: PromptText(f"Q: {q}\nA capi", 3, ""))).row(
            capital("France", "tal")
        )


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda q: PromptText(f"Question: {q}", 0, " "),
            "returned question_start=0, but the question is at 10.",
        ),
        (lambda q: PromptText(f"{q} {q} A:", 5, " "), "=5, but the question is at 0, 31."),
        (lambda q: PromptText(f"{q} A:", -36, " "), "=-36, but the question is at 0."),
        (
            lambda q: PromptText(q.upper(), 3, " "),
            "prompt='made': render returned question_start=3, but its text does not contain",
        ),
        (
            lambda q: f"Q: {q}",
            "render returned 'Q: What is the capital of France?'. Return al.PromptText",
        ),
        (lambda q: None, "render returned None."),
        (lambda q: PromptText(q, 3.0, " "), "returned a PromptText. Return al.PromptText"),
        (lambda q: PromptText(f"Q: {q}", 3, None), "Return al.PromptText"),
    ],
)
def test_a_prompt_that_is_wrong_about_the_question_is_refused(unchecked, made, message):
    rows = RowTokenizer(small_tokenizer("byte", bos=True), Made(made))
    for measure, asked in (
        (rows.row, capital("France", "Paris")),
        (rows.prompt_ids, capital("France", "Paris").question),
    ):
        with refused(InputError, message, "prompt"):
            measure(asked)


def test_a_template_gives_the_rows_of_the_prompt_that_it_writes_out(tokenizer):
    for row_example in HARD:
        template = RowTokenizer(tokenizer, make_prompt(r"Q: {question}\nA: ", (), (), 0))
        assert template.row(row_example) == RowTokenizer(tokenizer, QAPrompt()).row(row_example)


@pytest.mark.parametrize(
    "template",
    [
        "Question: {question}\nAnswer:",
        "Q: {question}\nA:\n",
        "Reply: {question} ",
        "Q: {question}\nA:  ",
    ],
)
def test_the_prompt_of_a_template_is_a_prefix_and_the_anchors_are_its_words(tokenizer, template):
    rows = RowTokenizer(tokenizer, make_prompt(template, (), (), 0))
    made = capital("France", "Paris")
    row = rows.row(made)
    assert row.ids[: row.prompt_length] == rows.prompt_ids(made.question)
    assert (
        row.text
        == template.replace("{question}", made.question).rstrip(" ")
        + rows.prompt.separator
        + "Paris"
    )
    for role, text in (("subject", "France"), ("property", "capital"), ("answer", "Paris")):
        # A sentencepiece tokenizer may take "France?" and what follows it into one token.
        assert text in tokenizer.decode([row.ids[p] for p in row.positions[role]])
    assert row.positions["answer"][0] >= row.prompt_length > max(row.positions["exact_question"])


def test_a_lead_in_moves_pre_answer():
    tok = small_tokenizer("byte", bos=False)
    text = "The capital is Paris"
    row = RowTokenizer(tok, QAPrompt()).row(
        capital("France", "Paris"), Answer(text, Span(15, 20), "generated")
    )
    assert tok.decode([row.ids[p] for p in row.positions["answer"]]).strip() == "Paris"
    assert row.positions["pre_answer"][0] > row.positions["prompt_last"][0]


def test_an_anchor_whose_tokens_decode_to_another_text_is_dropped():
    """Positions and ids disagree, as with a tokenizer that rewrites text."""
    tok = small_tokenizer("byte", bos=False)
    rows = RowTokenizer(tok, QAPrompt())
    good = rows.row(capital("France", "Paris"))
    wrong, right = good.ids[0], good.ids[good.positions["subject"][-1]]
    encode = rows.encode
    rows.encode = lambda text: (
        [wrong if i == right else i for i in encode(text)[0]],
        encode(text)[1],
    )
    with pytest.raises(RowDropped, match="anchor_text_mismatch"):
        rows.row(capital("France", "Paris"))


def test_a_span_outside_the_question_is_an_error_and_a_shared_token_belongs_to_the_subject():
    offsets = [(0, 1), (1, 3), (3, 6), (6, 9), (9, 12)]
    with pytest.raises(SpanError, match="subject span"):
        anchor_positions(
            offsets,
            {"subject": Span(0, 2), "property": Span(6, 9), "answer": Span(9, 12)},
            Span(3, 9),
            4,
        )
    offsets = [(0, 3), (3, 8), (8, 12), (12, 15)]
    spans = {"subject": Span(3, 6), "property": Span(6, 12), "answer": Span(12, 15)}
    positions = anchor_positions(offsets, spans, Span(3, 12), 3)
    assert (positions["subject"], positions["property"]) == ((1,), (2,))


def test_corrupt_row_has_the_donors_words_and_the_bases_answer(tokenizer):
    rows = RowTokenizer(tokenizer, QAPrompt())
    base = rows.row(capital("France", "Paris"))
    corrupt = rows.corrupt_row(
        base, example("Which river runs in Peru?", "Peru", "river", "Amazon")
    )
    assert corrupt.text == "Q: What is the river of Peru?\nA: Paris"
    assert corrupt.answer_ids == base.answer_ids
    assert (
        tokenizer.decode([corrupt.ids[p] for p in corrupt.positions["subject"]]).strip() == "Peru"
    )
    assert (
        tokenizer.decode([corrupt.ids[p] for p in corrupt.positions["property"]]).strip() == "river"
    )


def test_few_shot_question_is_the_last_one(tokenizer):
    prompt = FewShotPrompt("fewshot", (("What is the capital of France?", "Paris"),), frozenset())
    row = RowTokenizer(tokenizer, prompt).row(capital("France", "Paris"))
    head = len(tokenizer(row.text[: row.text.rindex("Q:")])["input_ids"])
    assert min(row.positions["exact_question"]) >= head


@pytest.mark.parametrize("other", OTHER_DEFAULTS.values(), ids=OTHER_DEFAULTS)
def test_padding_is_on_the_right_and_masked_whatever_torchs_defaults(other):
    with other():
        batch = pad_rows([[5, 6, 7], [8]], pad_id=9)
    assert batch.ids.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert batch.mask.tolist() == [[True, True, True], [True, False, False]]
    with pytest.raises(InputError, match="at least one row"):
        pad_rows([])


@pytest.mark.parametrize(
    ("rows", "longest", "wanted"),
    [
        ([(1, 2, 3, 4), [1, 2, 3, 5], (1, 2, 3)], 10, 3),
        ([(1, 2, 3, 4), (1, 2, 3, 5)], 2, 2),
        ([(1, 2), (2, 2)], 9, 0),
        ([(1, 2, 3)], 9, 3),
        ([(1, 2), ()], 9, 0),
        ([(1, 2), (1, 2)], -1, 0),
        ([], 9, 0),
    ],
)
def test_a_common_prefix_ends_where_rows_part_or_one_ends(rows, longest, wanted):
    assert common_prefix(rows, longest) == wanted


WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp")),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(before=WORDS, subject=WORDS, between=WORDS, prop=WORDS, answer=WORDS)
def test_any_text_gives_covering_disjoint_segments_or_a_named_reason(
    before, subject, between, prop, answer
):
    question = f"{before} {subject} {between} {prop}"
    at = len(before) + 1
    end = at + len(subject) + 1 + len(between) + 1
    row_example = Example(
        example_id="x",
        question_id=question_id(question),
        dataset="made",
        question=question,
        answers=(answer,),
        subject=Span(at, at + len(subject)),
        property=Span(end, end + len(prop)),
    )
    tok = small_tokenizer("byte", bos=True)
    try:
        row = RowTokenizer(tok, QAPrompt()).row(row_example)
    except RowDropped as why:
        assert why.reason in {"prompt_not_prefix", "no_property_token"}
        return
    subject_at, property_at = row.positions["subject"], row.positions["property"]
    assert not set(subject_at) & set(property_at)
    assert list(subject_at) == list(range(subject_at[0], subject_at[-1] + 1))
    assert subject in tok.decode(
        [row.ids[p] for p in subject_at], clean_up_tokenization_spaces=False
    )


def test_the_texts_of_a_rows_tokens_are_its_text(tokenizer):
    rows = RowTokenizer(tokenizer, QAPrompt())
    row = rows.row(capital("France", "Paris"))
    texts = [rows.token_text(i) for i in row.ids]
    assert "".join(texts).endswith(row.text)
    assert texts[row.positions["subject"][0]].startswith(" ")
