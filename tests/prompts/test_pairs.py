"""Prompt pairs: what is read, what is dropped and why, and how they are tokenized."""

import csv

import pytest

from anchorlens.errors import InputError
from anchorlens.models.adapt import adapt
from anchorlens.prompts.dataset import PromptDataset
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.prompts.tokenize_pairs import set_up_pairs
from anchorlens.protocols.patch.spec import Patch
from anchorlens.protocols.swap.spec import Swap
from anchorlens.questions.qa_context import set_up_questions
from tests.questions.make import capitals, refused
from tests.tokenizers_small import without_bos

ROW = {"clean": "The ab is", "corrupted": "The ae is", "answer": "a", "wrong": "b"}


def test_a_csv_file_and_a_list_give_the_same_pairs(tmp_path):
    rows = [ROW, {**ROW, "clean": "One ab is"}]
    path = tmp_path / "sums.csv"
    with path.open("w", newline="", encoding="utf8") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows(rows)
    of_file, of_list = load_pairs(path), load_pairs(rows)
    assert of_file.pairs == of_list.pairs
    assert of_file.record()["sha256"] == of_list.record()["sha256"]
    assert (of_file.name, of_list.name) == ("sums", "pairs")


def test_pairs_and_questions_are_data_sets():
    assert isinstance(load_pairs([ROW]), PromptDataset)
    assert isinstance(capitals(2), PromptDataset)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{**ROW, "anwser": " a"}], "anwser"),
        ([{"clean": "a", "answer": "c"}], "'corrupted' is missing"),
        ([{**ROW, "id": "x"}, {**ROW, "id": "x"}], "2 rows have the id 'x'"),
        ("missing.csv", "No such file"),
        ("fact-pairs", "no such file or sample"),
        ("clean,corrupted,answer,wrong\nA \xe9,A C,B,C\n".encode("latin1"), "UTF-8"),
        (b'clean,corrupted,answer,wrong\n"A B"x,A C,B,C\n', "cannot be read"),
        (b"clean,corrupted,answer,wrong\nA, B,A C,B,C\n", "line 2 has 5 cells, but the header has 4 columns"),
    ],
)
def test_unreadable_input_is_refused_by_name(tmp_path, rows, said):
    if isinstance(rows, bytes):
        (tmp_path / "pairs.csv").write_bytes(rows)
        rows = tmp_path / "pairs.csv"
    with refused(InputError, said, "source"):
        load_pairs(rows)


def test_the_record_is_the_same_in_another_folder_and_holds_the_limit(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sums.csv").write_text("clean,corrupted,answer,wrong\n" + "A B,A C,B,C\n" * 3)
    record = load_pairs(tmp_path / "a" / "sums.csv", limit=2).record()
    assert record == load_pairs(tmp_path / "b" / "sums.csv", limit=2).record()
    assert (record["source"], record["limit"], record["examples"]) == ("file:sums.csv", 2, 2)
    assert load_pairs([ROW]).record()["limit"] is None


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_a_number_of_rows(limit):
    with pytest.raises(InputError, match="limit="):
        load_pairs([ROW], limit=limit)


@pytest.mark.parametrize("cell", ["", "  ", None])
def test_a_row_with_an_empty_prompt_is_dropped(cell):
    data = load_pairs([ROW, {**ROW, "corrupted": cell}])
    assert len(data) == 1
    assert [row.reason for row in data.dropped] == ["empty_cell"]


def test_pairs_that_cannot_be_patched_are_dropped_with_their_reason(tiny_model):
    adapter = adapt(tiny_model("gpt2"))
    data = load_pairs(
        [
            ROW,
            {"clean": "word " * 2000, "corrupted": "more " * 2000, "answer": "a", "wrong": "b"},
        ]
    )  # fmt: skip
    context = set_up_pairs(adapter, data, Patch())
    assert [row.reason for row in context.dropped] == ["too_long"]
    (pair,) = context.pairs
    assert pair.clean.group == pair.corrupted.group
    assert pair.clean.positions["pos:0"] == (0,)
    assert pair.clean.positions["last"] == (len(pair.clean.ids) - 1,)


@pytest.mark.parametrize("add_bos", [None, True, False])
def test_bos_stands_exactly_once(tiny_model, add_bos):
    model = tiny_model("llama", bos=True)
    bos = model.tokenizer.bos_token_id
    data = load_pairs(
        [ROW, {**ROW, "clean": model.tokenizer.bos_token + ROW["clean"], "corrupted": model.tokenizer.bos_token + ROW["corrupted"]}]
    )
    plain, own = set_up_pairs(adapt(model), data, Patch(add_bos=add_bos)).pairs
    assert list(plain.clean.ids).count(bos) == (add_bos is not False)
    assert list(own.clean.ids).count(bos) == 1


@pytest.mark.parametrize(
    ("set_up", "data", "spec"), [(set_up_pairs, load_pairs([ROW]), Patch()), (set_up_questions, capitals(2), Swap())]
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
