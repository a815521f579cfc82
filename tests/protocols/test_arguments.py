"""Kinds of arguments: what each takes, and the one sentence that it says to everything else."""

import math

import numpy as np
import pytest
import torch

from anchorlens.errors import DonorError, InputError
from anchorlens.protocols.arguments import (
    Maybe,
    Memory,
    Numbers,
    Own,
    Shares,
    Switch,
    Whole,
    Word,
    Words,
    memory_size,
)
from tests.protocols.small_sweeps import sweep

WORDS = ("noising", "denoising")


def refusal(kind, value, name="it"):
    with pytest.raises(InputError) as told:
        kind.check(name, value)
    return str(told.value)


# --- words ---------------------------------------------------------------------------------------------------------------------


def test_a_word():
    kind = Word(words=WORDS)
    assert kind.check("direction", "noising") == "noising"
    assert refusal(kind, "noise", "direction") == "Unknown direction='noise'. Did you mean 'noising'?"
    assert refusal(kind, 3) == "it takes one of noising, denoising; got 3."
    assert refusal(kind, len) == "it takes one of noising, denoising; got a builtin_function_or_method."
    assert refusal(kind, None) == "it takes one of noising, denoising; got None."
    assert refusal(kind, ["noising"]) == "it takes one of noising, denoising; got ['noising']."


def test_a_word_or_something_of_ones_own():
    kind = Word(words=WORDS, own="a function of a row", error=DonorError, takes=1)
    assert kind.check("donors", len) is len
    # A class, and a function of something else.
    for wrong, shown in ((int, "the class int"), (lambda: 0, "a function"), (isinstance, "a builtin_function_or_method")):
        with pytest.raises(DonorError) as told:
            kind.check("donors", wrong)
        assert str(told.value) == f"donors takes one of noising, denoising, or a function of a row; got {shown}."
    with pytest.raises(DonorError, match="Unknown donors='same'"):
        kind.check("donors", "same")


def test_several_words():
    kind = Words(words=("question", "answer_site", "answer"), what="anchor")
    for given in ("question, answer", ["question", "answer"], ("question", "answer"), iter(["question", "answer"])):
        assert kind.check("anchors", given) == ("question", "answer")
    assert kind.check("anchors", "question") == ("question",)
    assert refusal(kind, ["questoin"], "anchors") == "Unknown anchor 'questoin'. Did you mean 'question'?"
    for nothing, shown in (([], "[]"), (["answer", "answer"], "['answer', 'answer']"), ("", "[]")):
        assert refusal(kind, nothing, "anchors") == f"anchors must name at least one anchor, each once; got {shown}."
    for wrong, shown in ((3, "3"), (None, "None"), (["answer", 3], "['answer', 3]"), ({"a": 1}.values(), "a dict_values")):
        said = f"anchors takes names of anchors (question, answer_site, answer); got {shown}."
        assert refusal(kind, wrong, "anchors") == said


# --- numbers -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [5, np.int64(5), torch.tensor(5), np.uint8(5)])
def test_a_whole_number_of_any_type(value):
    found = Whole(least=1).check("window", value)
    assert found == 5
    assert type(found) is int


def test_what_is_no_whole_number():
    for value, shown in (
        (2.0, "2.0"),
        ("2", "'2'"),
        (True, "True"),
        (None, "None"),
        ([2], "[2]"),
        (len, "a builtin_function_or_method"),
    ):
        assert refusal(Whole(least=1), value, "window") == f"window takes a whole number; got {shown}."
    assert refusal(Whole(least=1), 0, "window") == "window must be at least 1, got 0."
    maybe = Whole(least=1, none="what fits")
    assert maybe.check("batch_size", None) is None
    assert refusal(maybe, "x", "batch_size") == "batch_size takes a whole number, or None for what fits; got 'x'."
    assert refusal(maybe, 0, "batch_size") == "batch_size must be at least 1, or None for what fits, got 0."
    assert [maybe.parse(text) for text in ("12", " -3 ", "+4", "1.5", "many")] == [12, -3, 4, "1.5", "many"]


def test_truth_values():
    assert [Switch().check("known_only", value) for value in (True, False)] == [True, False]
    for value in (1, 0, "yes", None):
        assert refusal(Switch(), value, "known_only") == f"known_only takes True or False; got {value!r}."
    assert [Maybe().check("add_bos", value) for value in (True, False, None)] == [True, False, None]
    assert refusal(Maybe(), "no", "add_bos") == "add_bos takes True, False or None; got 'no'."
    assert [Maybe().parse(text) for text in ("yes", " No", "TRUE", "false", "maybe")] == [True, False, True, False, "maybe"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, None), ("all", None), (" ALL ", None), ("", None), (3, (3,)), (np.int32(3), (3,)), ([2, 0], (0, 2)),
        ((5,), (5,)), (range(3), (0, 1, 2)), (np.array([4, 1]), (1, 4)), (torch.tensor([4, 1]), (1, 4)), ({7, 1}, (1, 7)),
        (iter([2, 1]), (1, 2)), ("0-3", (0, 1, 2, 3)), ("4,0,8", (0, 4, 8)), ("0-8:4", (0, 4, 8)),
        ("9, 0-2", (0, 1, 2, 9)), ("7", (7,)),
    ],
)  # fmt: skip
def test_numbers_come_out_sorted(given, wanted):
    assert Numbers().check("layers", given) == wanted


@pytest.mark.parametrize(
    ("given", "shown"),
    [(1.5, "1.5"), (True, "True"), ([0, 1.5], "[0, 1.5]"), ([], "[]"), ([None], "[None]"), ([[0]], "[[0]]"), (["0"], "['0']"),
     (len, "a builtin_function_or_method")],
)  # fmt: skip
def test_what_are_no_numbers(given, shown):
    wanted = f"layers takes 'all', a number, a list of numbers or a text such as '0-11'; got {shown}."
    assert refusal(Numbers(), given, "layers") == wanted


@pytest.mark.parametrize("text", ["a", "0-", "-1", "1..3", "0-4:0", "1;2", "0-4:x", "0-999999999", "0,,1", "1.5"])
def test_texts_that_name_no_numbers(text):
    assert refusal(Numbers(), text, "layers") == f"layers={text!r} is not understood. Write 0-11, or 0,4,8, or 0-28:4."


def test_numbers_must_differ_and_start_at_0():
    for given, shown in (([0, 0], "[0, 0]"), (-1, "-1"), ("3,3", "'3,3'"), ("0-3,2", "'0-3,2'")):
        assert refusal(Numbers(), given, "heads") == f"heads must be different numbers from 0 on, got {shown}."
    said = "layers='11-0' runs backwards. Write the lower number first, for example 0-11."
    assert refusal(Numbers(), "11-0", "layers") == said


def test_first_and_last():
    kind = Numbers(pair=True)
    for given in ((2, 5), [2, 5], "2-5", np.array([2, 5])):
        assert kind.check("cut_layers", given) == (2, 5)
    assert kind.check("cut_layers", (3, 3)) == kind.check("cut_layers", "3") == (3, 3)
    assert kind.check("cut_layers", None) is None
    for wrong, shown in (
        ((5, 2), "(5, 2)"),
        ((0, 1, 2), "(0, 1, 2)"),
        ((-1, 2), "(-1, 2)"),
        (3, "3"),
        ("0,4,8", "'0,4,8'"),
        ("0-8:2", "'0-8:2'"),
    ):
        assert refusal(kind, wrong, "cut_layers") == f"cut_layers must be first and last, such as (0, 11); got {shown}."


@pytest.mark.parametrize(
    "kind", [Numbers(), Numbers(pair=True), Words(words=("a",), what="anchor"), Shares(), Whole(), Switch(), Word()]
)
def test_long_values_are_never_printed(kind):
    many = [*range(-1, 100_000)]
    for given in (many, tuple(many), np.array(many), {"key": many}):
        assert len(refusal(kind, given)) < 200
    assert "100001 values (-1, 0, 1, ...)" in refusal(kind, many)


def test_shares():
    for given in ((0.5, 0.25, 0.25), [0.5, 0.25, 0.25], "0.5, 0.25,0.25", np.array([0.5, 0.25, 0.25])):
        assert Shares().check("fractions", given) == (0.5, 0.25, 0.25)
    for wrong, shown in (
        ((1.0, 0.0, 0.0), "(1.0, 0.0, 0.0)"), ((0.5, 0.5), "(0.5, 0.5)"), ((0.5, 0.5, 0.5), "(0.5, 0.5, 0.5)"), (3, "3"),
        ("abc", "'abc'"), ((math.nan, 0.5, 0.5), "(nan, 0.5, 0.5)"), ((-0.5, 0.75, 0.75), "(-0.5, 0.75, 0.75)"), (None, "None"),
    ):  # fmt: skip
        wanted = f"fractions must be three positive numbers that sum to 1 (train, validation, test); got {shown}."
        assert refusal(Shares(), wrong, "fractions") == wanted


def test_an_object_of_ones_own():
    kind = Own("", "a function that takes the plan")
    assert kind.check("on_plan", None) is None
    assert kind.check("on_plan", print) is print
    assert refusal(kind, "x", "on_plan") == "on_plan takes a function that takes the plan; got 'x'."


# --- memory --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (None, None), (1, 1), (4096, 4096), (1e9, 10**9), ("2GB", 2 * 10**9), ("2gb", 2 * 10**9), ("512MiB", 2**29),
        (" 1.5 GiB ", 3 * 2**29), (".5K", 500), ("7", 7), ("3B", 3),
    ],
)  # fmt: skip
def test_memory_that_is_understood(given, size):
    assert Memory().check("max_memory", given) == size
    assert given is None or memory_size(given) == size


@pytest.mark.parametrize("given", ["", "GB", "-1", -1, 0, "0.4", "2 G i B", "1,5GB", "two", "nan", math.inf, "1e9GB", True])
def test_memory_that_is_not(given):
    wanted = f"max_memory={given!r} is not understood. Write bytes, or for example '2GB' or '512MiB'."
    assert refusal(Memory(), given, "max_memory") == wanted


# --- through a sweep -----------------------------------------------------------------------------------------------------------


def test_fewer_than_no_checks_are_an_error(tiny_model):
    with pytest.raises(InputError, match="check_cells must be at least 0, got -1"):
        sweep(tiny_model("llama"), check_cells=-1)


def test_an_unknown_engine_is_an_error(tiny_model):
    with pytest.raises(InputError, match="Unknown engine='cones'.*Did you mean 'cone'"):
        sweep(tiny_model("llama"), engine="cones")
