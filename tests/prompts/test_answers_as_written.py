"""Answers of prompt pairs as people write them: spaces, numbers, token ids and alternatives."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import BatchEncoding

from anchorlens.errors import DataError, InputError
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.prompts.pairs import AnyOf
from anchorlens.prompts.tokenize_pairs import tokenize_pairs
from anchorlens.running.sweeps import patch_sweep

PROMPTS = {"clean": "The ab is", "corrupted": "The ae is"}


def said_by(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize(
    ("clean", "answer", "words"),
    [
        ("France is", "Paris", "begin without a space after a word"),
        ("The answer:", "Paris", "begin without a space after a word"),
        ("France is", 7042, "token ids? Pass numbers='ids'. As texts, 3 answers begin"),
        ("France is", "Par7", "3 answers begin without a space after a word"),
        ("France is ", "Paris", "prompts end in a space"),
        ("France is ", " Paris", "prompts end in a space"),
        ("France is", "Par\u200bis", "characters of width zero"),
        ("France is", " Paris", ""),
        ("France is\n", "Paris", ""),
        ('France is "', "Paris", ""),
        ("2 + 2 =", "4", ""),
        ("It began in 17", "45", ""),
        ("\u0e1b\u0e23\u0e30", "\u0e40\u0e17", ""),
        ("France is", ["Paris", "Lutetia"], "begin without a space after a word"),
    ],
)
def test_a_missing_space_is_noticed_once_with_the_cure(tiny_model, clean, answer, words):
    rows = [
        {"clean": clean, "corrupted": f"{i} {clean}", "answer": answer, "wrong": " ."}
        for i in range(3)
    ]
    said = said_by(lambda: tokenize_pairs(tiny_model("gpt2"), rows))
    own = [one for one in said if words in one] if words else said
    assert len(own) == bool(words), said
    if "zero" not in words and words:
        assert "answer_space='add'" in own[0]
        cured = load_pairs(rows, answer_space="add")
        assert said_by(lambda: tokenize_pairs(tiny_model("gpt2"), cured)) == []
        assert cured.record()["reading"] == {"answer_space": "add"}


def test_one_space_is_put_between_prompt_and_answer():
    rows = [
        {"clean": "France is ", "corrupted": "Peru is", "answer": "Paris", "wrong": " Lima"},
        {"clean": "A:\n", "corrupted": "B:\n", "answer": "x", "wrong": [7]},
    ]
    first, second = load_pairs(rows, answer_space="add").pairs
    assert (first.clean, first.corrupted) == ("France is", "Peru is")
    assert (first.answer, first.wrong) == (" Paris", " Lima")
    assert (second.clean, second.answer, second.wrong) == ("A:\n", "x", (7,))
    kept = load_pairs(rows)
    assert kept.pairs[0].answer == "Paris"
    assert "reading" not in kept.record()


@pytest.mark.parametrize("form", ["list", "frame", "csv", "tsv", "jsonl", "parquet"])
def test_numbers_are_the_same_text_in_every_form(form, tmp_path):
    rows = [{**PROMPTS, "answer": 4, "wrong": 2.0}, {**PROMPTS, "answer": 7, "wrong": None}]
    frame = pd.DataFrame(rows)
    path = tmp_path / f"a.{form}"
    if form in ("csv", "tsv"):
        frame.to_csv(path, index=False, sep="," if form == "csv" else "\t")
    elif form == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif form == "parquet":
        frame.to_parquet(path)
    source = {"list": rows, "frame": frame}.get(form, path)
    found = []
    said = said_by(lambda: found.append(load_pairs(source)))
    assert [(pair.answer, pair.wrong) for pair in found[0].pairs] == [("4", "2"), ("7", None)]
    # pandas has written the text 2.0 to files of text.
    assert len(said) == (form in ("csv", "tsv"))


def test_numbers_are_token_ids_on_request(tmp_path):
    path = tmp_path / "ioi.csv"
    path.write_text("clean,corrupted,correct_idx,incorrect_idx\nThe ab is,The ae is,7,8\n")
    columns = {"answer": "correct_idx", "wrong": "incorrect_idx"}
    with pytest.warns(UserWarning, match="Pass numbers='ids'"):
        (text,) = load_pairs(path, columns=columns).pairs
    (ids,) = load_pairs(path, columns=columns, numbers="ids").pairs
    assert (text.answer, ids.answer, ids.wrong) == ("7", (7,), (8,))
    (of_frame,) = load_pairs(pd.read_csv(path), columns=columns, numbers="ids").pairs
    assert of_frame == ids


@pytest.mark.parametrize(
    "ids",
    [
        [3, 4],
        (3, 4),
        [[3, 4]],
        torch.tensor([3, 4]),
        torch.tensor([[3, 4]]),
        np.array([3, 4]),
        np.array([[3, 4]]),
        {"input_ids": [3, 4], "attention_mask": [1, 1]},
        BatchEncoding({"input_ids": [3, 4]}),
        BatchEncoding({"input_ids": torch.tensor([[3, 4]])}),
    ],
)
def test_token_ids_are_read_as_tokenizers_give_them(ids):
    (pair,) = load_pairs([{"clean": ids, "corrupted": [3, 5]}]).pairs
    assert pair.clean == (3, 4)


@pytest.mark.parametrize(
    "ids",
    [[[3, 4], [5, 6]], {"input_ids": [0, 3], "attention_mask": [0, 1]}, {"ids": [3]}],
)
def test_token_ids_of_several_prompts_or_with_padding_are_dropped(ids):
    data = load_pairs([{"clean": ids, "corrupted": [3, 5]}, {"clean": [3], "corrupted": [4]}])
    assert data.dropped_counts == {"bad_cell": 1}


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_text_and_ids_of_a_prompt_measure_the_same_answer(tiny_model, family):
    model = tiny_model(family)
    row = {**PROMPTS, "answer": " ab", "wrong": " b"}
    ids = {**row, **{name: model.to_tokens(text) for name, text in PROMPTS.items()}}
    bare = {
        **row,
        **{name: model.to_tokens(text, prepend_bos=False) for name, text in PROMPTS.items()},
    }
    found = [tokenize_pairs(model, [one]) for one in (row, ids, bare)]
    for other in found[1:]:
        assert other["answer"][0] == found[0]["answer"][0]
        assert other["wrong"][0] == found[0]["wrong"][0]


def test_alternatives_are_read_from_lists_cells_and_separated_texts(tmp_path):
    expected = AnyOf((" a", " b"))
    (of_list,) = load_pairs([{**PROMPTS, "answer": [" a", " b", " a"]}]).pairs
    assert of_list.answer == expected
    path = tmp_path / "a.csv"
    path.write_text('clean,corrupted,answer\nThe ab is,The ae is,"["" a"", "" b""]"\n')
    assert load_pairs(path).pairs[0].answer == expected
    (split,) = load_pairs([{**PROMPTS, "answer": " a; b"}], answers_sep=";").pairs
    assert split.answer == expected
    (ids,) = load_pairs([{**PROMPTS, "answer": [[3], [4, 5]]}]).pairs
    assert ids.answer == AnyOf(((3,), (4, 5)))
    (single,) = load_pairs([{**PROMPTS, "answer": [" a"]}]).pairs
    assert single.answer == " a"
    assert load_pairs([{**PROMPTS, "answer": [" a", ""]}, PROMPTS]).dropped_counts == {
        "empty_answer": 1
    }


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["cone", "reference"])
@pytest.mark.parametrize("metric", ["prob", "logprob", "logit_diff"])
def test_any_alternative_counts(tiny_model, metric, engine):
    """P sums the distinct first tokens; the logit difference is that of the logsumexps."""
    model = tiny_model("gpt2")
    rows = [
        {**PROMPTS, "id": "any", "answer": [[5], [7, 9], [5, 6]], "wrong": [[8], [10]]},
        {"clean": "The cd is", "corrupted": "The ce is", "id": "one", "answer": [3], "wrong": [4]},
    ]

    def expected(logits, row):
        answers, wrong = ([5, 7], [8, 10]) if row["id"] == "any" else ([3], [4])
        last = logits[0, -1]
        if metric == "logit_diff":
            return last[answers].logsumexp(0) - last[wrong].logsumexp(0)
        log_p = last.log_softmax(0)[answers].logsumexp(0)
        return log_p if metric == "logprob" else log_p.exp()

    options = {"progress": False, "controls": "none", "engine": engine}
    pairs = load_pairs(rows)
    found = patch_sweep(model, pairs, metric=metric, **options)
    wanted = patch_sweep(model, pairs, metric=expected, **options)
    for name in ("value_before", "value_after"):
        np.testing.assert_allclose(found.samples()[name], wanted.samples()[name], atol=2e-5)
    assert found.record["pairs"]["any"]["answer_ids"] == [5, 7]
    assert found.record["pairs"]["any"]["any_of"] is True


@pytest.mark.slow
def test_a_run_with_alternatives_is_verified(tmp_path, tiny_model):
    import anchorlens as al

    model = tiny_model("gpt2")
    rows = [{**PROMPTS, "answer": [" a", " b"], "wrong": [" c"]}]
    out = tmp_path / "run"
    patch_sweep(model, load_pairs(rows), progress=False, out=out)
    verified = al.verify_run(out, model=model, cells=4, show_progress=False)
    (cells,) = [check for check in verified.checks if check.what.startswith("cells")]
    assert cells.status == "match"


def test_an_alternative_that_is_also_wrong_drops_the_pair(tiny_model):
    rows = [{**PROMPTS, "answer": [" a", " b"], "wrong": [" b", " c"]}]
    (reason,) = tokenize_pairs(tiny_model("gpt2"), rows)["drop_reason"]
    assert reason == "answer_equals_wrong"


def test_columns_are_renamed_and_further_ones_kept_for_metrics(tmp_path):
    rows = [{"prompt": "The ab is", "other": "The ae is", "year": 4, "note": "x"}]
    columns = {"clean": "prompt", "corrupted": "other", "label": "year"}
    data = load_pairs(rows, columns=columns, dataset_name="mine")
    (pair,) = data.pairs
    assert pair.row() == {
        "id": "000000",
        "group": "000000",
        "clean": "The ab is",
        "corrupted": "The ae is",
        "answer": None,
        "wrong": None,
        "label": 4,
    }
    assert data.record()["reading"] == {"columns": columns}
    assert data.name == "mine"
    assert list(data.to_frame().columns)[-1] == "label"
    path = tmp_path / "a.csv"
    path.write_text("Clean;corrupted\u200b;note, free\nThe ab is;The ae is;x\n")
    kept = r"Unknown column 'note, free'.* keep it for a metric function with columns=\{'label': 'n"
    with pytest.raises(DataError, match=kept):
        load_pairs(path)
    # No column is suggested by its place alone.
    with pytest.raises(DataError, match="Rows need clean and corrupted, and it has year, other"):
        load_pairs([{"year": 4, "other": 2}])
    (of_file,) = load_pairs(path=path, columns={"free": "note, free"}, limit=1).pairs
    assert (of_file.clean, of_file.corrupted) == ("The ab is", "The ae is")


@pytest.mark.parametrize(
    ("options", "argument", "words"),
    [
        ({"columns": {"anwser": "x"}}, "columns", "is nearly the field 'answer'"),
        ({"columns": {"x": "answer"}}, "columns", "Write the field first"),
        ({"columns": {"label": "year"}}, "columns", "there is no column 'year'"),
        ({"columns": ["clean"]}, "columns", "must be a dictionary"),
        ({"answer_space": "yes"}, "answer_space", "must be 'keep' or 'add'"),
        ({"numbers": "token"}, "numbers", "must be 'text' or 'ids'"),
        ({"answers_sep": ""}, "answers_sep", "must be a non-empty string"),
        ({"path": "a.csv"}, "path", "Pass one of them"),
    ],
)
def test_a_wrong_argument_of_pairs_is_named_with_its_cure(unchecked, options, argument, words):
    rows = [{**PROMPTS, "answer": " a"}]
    with pytest.raises(InputError, match=words) as refused:
        load_pairs(rows, **options)
    assert refused.value.arguments == (argument,)


def test_a_stream_of_pairs_needs_a_limit():
    import datasets

    stream = datasets.Dataset.from_list([PROMPTS] * 3).to_iterable_dataset()
    with pytest.raises(DataError, match="Pass limit="):
        load_pairs(stream)
    data = load_pairs(stream, limit=2)
    assert len(data) == 2
    assert data.record()["reading"] == {"stream": "first 2 rows"}
