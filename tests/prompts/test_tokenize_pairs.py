"""Tokenized pairs: BOS, answers of several tokens, segments, unpaired positions, and the reasons to
drop a pair.
"""

import warnings

import pytest

from anchorlens.errors import InputError
from anchorlens.models.load import adapt
from anchorlens.prompts.dataset import RowDropped
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.prompts.tokenize_pairs import PairTokenizer, set_up_pairs, tokenize_pairs
from anchorlens.protocols.patch.spec import Patch
from anchorlens.protocols.swap.spec import Swap
from anchorlens.questions.tokens import set_up_questions
from tests.questions.make import capitals, refused
from tests.tokenizers_small import small_tokenizer, without_bos

ROW = {"clean": "The ab is", "corrupted": "The ae is", "answer": "a", "wrong": "b"}
KINDS = [("byte", False), ("byte", True), ("metaspace", False), ("metaspace", True)]


def tokenizer_of(kind="byte", bos=False, n_ctx=64, d_vocab=420):
    return PairTokenizer(small_tokenizer(kind, bos=bos), bos, n_ctx, d_vocab)


def tokenize(row, **own):
    (pair,) = load_pairs([row]).pairs
    return tokenizer_of(**own).tokenize(pair)


def pieces(tokenizer, ids):
    return [tokenizer.hf.decode([i]) for i in ids]


@pytest.mark.parametrize(("kind", "bos"), KINDS)
def test_prompts_have_the_tokens_of_their_text_and_named_positions(kind, bos):
    tokenizer, one = tokenizer_of(kind, bos), tokenize(ROW, kind=kind, bos=bos)
    for prompt, text, name in (
        (one.clean, ROW["clean"], "000000|clean"),
        (one.corrupted, ROW["corrupted"], "000000"),
    ):
        assert prompt.ids == tuple(tokenizer.hf(text)["input_ids"])
        assert (prompt.id, prompt.group, prompt.text) == (name, "000000", text)
        named = {f"pos:{p}": (p,) for p in range(len(prompt.ids))} | {
            "last": (len(prompt.ids) - 1,)
        }
        assert prompt.positions == named
    assert one.alignment == tuple((p, p) for p in range(len(one.clean.ids)))
    assert one.unpaired == ((), ())
    assert one.clean.columns() == {
        "question": "The ab is",
        "answer": "a",
        "wrong_answer": "b",
        "text": "The ab is",
    }


@pytest.mark.parametrize(
    ("clean", "answer", "is_said"),
    [
        ("The capital of France is", "Paris", True),
        ("The capital of France is", " Paris", False),
        ("The capital of France is ", "Paris", False),
        ("It began in 1732 and ended in 17", "45", False),
        ("\u6cd5\u56fd\u7684\u9996\u90fd\u662f", "\u5df4\u9ece", False),
        ("He said: ", "yes", False),
    ],
)
def test_an_answer_that_continues_the_last_word_gives_one_warning(
    tiny_model, clean, answer, is_said
):
    rows = [
        {"id": str(i), "clean": clean, "corrupted": f"{i} {clean}", "answer": answer, "wrong": "."}
        for i in range(3)
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokenize_pairs(tiny_model("gpt2"), rows)
    said = [str(one.message) for one in caught if "without a space" in str(one.message)]
    words = (
        "3 answers begin without a space after a word: 'capital of France is' + 'Paris'. Its first"
        " token is that of a "
    )
    words += (
        "continued word. Write ' Paris', or pass load_pairs(..., answer_space='add'), if the answer"
        " is a word of its own."
    )
    assert said == ([words] if is_said else [])


@pytest.mark.parametrize(("kind", "bos"), KINDS)
def test_an_answer_has_the_tokens_that_continue_the_clean_prompt(kind, bos):
    """A sentencepiece tokenizer gives ' Paris' alone another first token than after a prompt."""
    hf = small_tokenizer(kind, bos=bos)
    row = {
        "clean": "What is the capital of France?",
        "corrupted": "What is the capital of Peru?",
        "answer": " Paris of",
        "wrong": None,
    }
    one = tokenize(row, kind=kind, bos=bos)
    assert one.clean.ids + one.answer == tuple(hf(row["clean"] + row["answer"])["input_ids"])
    assert one.wrong == ()


def test_an_answer_that_merges_with_the_prompt_has_its_own_tokens():
    hf = small_tokenizer("byte", bos=False)
    row = {
        "clean": "The capital of Franc",
        "corrupted": "The capital of Fran",
        "answer": "e",
        "wrong": "x",
    }
    own = hf("Franc")["input_ids"]
    assert hf("France")["input_ids"][: len(own)] != own
    one = tokenize(row)
    assert one.answer == tuple(hf("e")["input_ids"])


@pytest.mark.parametrize("bos", [False, True])
def test_token_ids_are_used_as_they_are(bos):
    one = tokenize(
        {
            "clean": [20, 21, 22],
            "corrupted": [20, 23, 24, 22],
            "answer": [30, 31],
            "wrong": [30, 32],
        },
        bos=bos,
    )
    assert (one.clean.ids, one.corrupted.ids, one.answer, one.wrong) == (
        (20, 21, 22),
        (20, 23, 24, 22),
        (30, 31),
        (30, 32),
    )
    assert one.alignment == ((0, 0), (2, 3))
    assert one.unpaired == ((1,), (1, 2))
    hf = small_tokenizer("byte", bos=bos)
    assert one.clean.columns()["answer"] == hf.decode([30, 31]) and one.clean.text == hf.decode(
        [20, 21, 22]
    )


@pytest.mark.parametrize(("kind", "bos"), KINDS)
def test_segments_are_named_positions_and_pair_the_text_around_them(kind, bos):
    tokenizer = tokenizer_of(kind, bos)
    row = {
        "clean": "What is the capital of France?",
        "corrupted": "What is the author of War and Peace?",
        "segments": {
            "relation": ["capital", "author"],
            "subject": ["France", "War and Peace"],
            "start": "What is the",
        },
    }
    one = tokenize(row, kind=kind, bos=bos)
    for prompt, side in ((one.clean, 0), (one.corrupted, 1)):
        for name, texts in row["segments"].items():
            text = texts if isinstance(texts, str) else texts[side]
            assert (
                tokenizer.hf.decode([prompt.ids[p] for p in prompt.positions[name]]).strip() == text
            )
    of = dict(one.alignment)
    assert [of[p] for p in one.clean.positions["start"]] == list(one.corrupted.positions["start"])
    assert of[one.clean.positions["last"][0]] == one.corrupted.positions["last"][0]
    assert one.unpaired[0] + one.unpaired[1] != ()
    assert set(one.unpaired[0]) <= {
        *one.clean.positions["relation"],
        *one.clean.positions["subject"],
    }


def test_segments_of_token_ids_are_found_in_any_prompt():
    one = tokenize(
        {
            "clean": [20, 21, 22],
            "corrupted": [20, 23, 24, 22],
            "segments": {"x": [[21], [23, 24]], "y": [22]},
        }
    )
    assert (one.clean.positions["x"], one.corrupted.positions["x"]) == ((1,), (1, 2))
    assert (one.clean.positions["y"], one.corrupted.positions["y"]) == ((2,), (3,))


IDS = {"clean": [20, 21, 22], "corrupted": [20, 23, 22]}
REASONS = [
    ({**ROW, "corrupted": ROW["clean"]}, "same_prompts", "same tokens"),
    ({**ROW, "clean": "<s><s>The ab"}, "bos_twice", "clean begins with BOS twice"),
    ({"clean": [0, 0, 5], "corrupted": [0, 5, 5]}, "bos_twice", "clean"),
    ({"clean": [0, 5], "corrupted": [6, 5]}, "bos_differs", "one prompt begins with BOS"),
    ({**ROW, "wrong": "a"}, "answer_equals_wrong", "no token tells them apart"),
    (
        {**IDS, "answer": [30, 31], "wrong": [30]},
        "answer_equals_wrong",
        "no token tells them apart",
    ),
    ({**ROW, "clean": "ab " * 70}, "too_long", "the model takes 64"),
    (
        {**IDS, "clean": [20, 420]},
        "token_outside_vocabulary",
        "clean: token 420, the vocabulary has 420",
    ),
    ({**IDS, "corrupted": [-1, 20]}, "token_outside_vocabulary", "corrupted: token -1"),
    ({**IDS, "answer": [999]}, "token_outside_vocabulary", "answer: token 999"),
    (
        {**ROW, "segments": {"x": "ab"}},
        "segment_not_found",
        "x: 'ab' occurs nowhere in the corrupted prompt",
    ),
    (
        {**ROW, "clean": "ab is ab", "segments": {"x": ["ab", "ae"]}},
        "segment_not_unique",
        "x: 'ab' occurs 2 times in the clean",
    ),
    ({**IDS, "segments": {"x": "a"}}, "segment_not_found", "the clean prompt has token ids"),
    ({**IDS, "segments": {"x": [9]}}, "segment_not_found", "nowhere"),
    (
        {**ROW, "segments": {"x": ["The ab", "The ae"], "y": ["ab is", "ae is"]}},
        "segments_overlap",
        "of the clean prompt",
    ),
    (
        {**IDS, "alignment": [[0, 3]]},
        "bad_alignment",
        "corrupted position 3, the prompt has 3 tokens",
    ),
    (
        {"clean": [20, 21], "corrupted": [22, 23, 24]},
        "no_paired_position",
        "neither a common beginning nor a common end",
    ),
]


@pytest.mark.parametrize(("row", "reason", "said"), REASONS)
def test_a_pair_that_cannot_be_measured_is_dropped_with_its_reason(row, reason, said):
    with pytest.raises(RowDropped) as caught:
        tokenize(row, bos=True)
    assert caught.value.reason == reason and said in caught.value.detail


def test_dropped_pairs_are_counted_with_those_of_the_file(tiny_model):
    rows = [
        ROW,
        {**ROW, "clean": ""},
        {**ROW, "corrupted": ROW["clean"]},
        {**ROW, "id": "long", "clean": "more " * 2000},
    ]
    context = set_up_pairs(adapt(tiny_model("gpt2")), load_pairs(rows), Patch())
    assert [(one.example_id, one.reason) for one in context.dropped] == [
        ("000001", "empty_cell"),
        ("000002", "same_prompts"),
        ("long", "too_long"),
    ]
    assert [one.clean.pair.id for one in context.pairs] == ["000000"]


@pytest.mark.parametrize("add_bos", [None, True, False])
def test_bos_stands_exactly_once(tiny_model, add_bos):
    model = tiny_model("llama", bos=True)
    bos = model.tokenizer.bos_token_id
    with_bos = {name: model.tokenizer.bos_token + ROW[name] for name in ("clean", "corrupted")}
    plain, own = set_up_pairs(
        adapt(model), load_pairs([ROW, {**ROW, **with_bos}]), Patch(add_bos=add_bos)
    ).pairs
    assert list(plain.clean.ids).count(bos) == (add_bos is not False)
    assert list(own.clean.ids).count(bos) == 1
    assert plain.answer == own.answer


@pytest.mark.parametrize(
    ("set_up", "data", "spec"),
    [(set_up_pairs, load_pairs([ROW]), Patch()), (set_up_questions, capitals(2), Swap())],
)
def test_a_model_without_a_tokenizer_is_refused(tiny_model, monkeypatch, set_up, data, spec):
    model = tiny_model("gpt2")
    monkeypatch.setattr(model, "tokenizer", None)
    with refused(InputError, "model: has no tokenizer", "model"):
        set_up(adapt(model), data, spec)


def test_bos_of_a_tokenizer_without_one_is_refused(tiny_model, monkeypatch):
    model = tiny_model("gpt2")
    monkeypatch.setattr(model, "tokenizer", without_bos())
    with refused(InputError, "add_bos=True: the tokenizer has no BOS token", "add_bos"):
        set_up_pairs(adapt(model), load_pairs([ROW]), Patch(add_bos=True))


def test_tokens_are_listed_with_positions_without_a_partner(tiny_model):
    rows = [
        {**ROW, "corrupted": "The ab a b is", "id": "x"},
        {**ROW, "corrupted": ROW["clean"], "id": "y"},
        {**ROW, "clean": ""},
    ]
    model = tiny_model("gpt2")
    frame = tokenize_pairs(model, rows)
    one, dropped, unread = frame.set_index("id").loc[["x", "y", "000002"]].to_dict("records")
    assert (
        "".join(one["clean"]) == ROW["clean"]
        and "".join(one["corrupted"]) == "The ab a b is"
        and one["answer"] == ["a"]
    )
    assert all(one["clean"][a] == one["corrupted"][b] for a, b in one["alignment"])
    for name, side in (("clean", 0), ("corrupted", 1)):
        paired = {pair[side] for pair in one["alignment"]}
        assert set(one[f"unpaired_{name}"]) == set(range(len(one[name]))) - paired
    assert len(one["unpaired_corrupted"]) == len(one["corrupted"]) - len(one["alignment"]) > 0
    assert (dropped["drop_reason"], unread["drop_reason"]) == ("same_prompts", "empty_cell")


def test_only_prompt_pairs_are_tokenized(tiny_model, unchecked):
    with refused(InputError, "must be prompt pairs", "data"):
        tokenize_pairs(tiny_model("gpt2"), capitals(2))
    with refused(InputError, "neither a HookedTransformer nor", "model"):
        tokenize_pairs("gpt2", [ROW])
