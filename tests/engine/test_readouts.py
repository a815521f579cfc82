"""Readouts do not depend on torch's defaults."""

import pytest
import torch

from anchorlens.engine.readouts import AnswerReader, ChoiceReader, Metrics, StateReader, answer_mean, first_token
from anchorlens.models.adapter import Adapter
from anchorlens.questions.answer_reads import answer_reads
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokenised import make_rows
from anchorlens.questions.tokens import RowTokenizer
from tests.questions.make import capitals
from tests.torch_defaults import OTHER_DEFAULTS


@pytest.fixture(scope="module")
def rows(tiny_model):
    return make_rows(capitals(4).examples, RowTokenizer(tiny_model("gpt2").tokenizer, QAPrompt())).rows


def answers(adapter, rows, readout, *, first_only):
    """What the readout tells of states drawn by a seed, in two cells."""
    plan = answer_reads(rows, [*rows[1:], None], first_only=first_only)
    states = torch.randn(2, len(plan.row), adapter.d_model, generator=torch.Generator("cpu").manual_seed(0), dtype=torch.float32,
                         device="cpu")  # fmt: skip
    return AnswerReader(plan, readout).metrics(adapter, states)


def same(found: Metrics, wanted: Metrics):
    for name in ("p", "log_p", "logit_diff"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("other", OTHER_DEFAULTS.values(), ids=OTHER_DEFAULTS)
@pytest.mark.parametrize(("readout", "first_only"), [(first_token, True), (answer_mean, False)])
def test_answers_are_read_the_same_whatever_torchs_defaults_are(tiny_model, rows, readout, first_only, other):
    adapter = Adapter(tiny_model("gpt2"))
    wanted = answers(adapter, rows, readout, first_only=first_only)
    with other():
        found = answers(adapter, rows, readout, first_only=first_only)
    assert found.p.dtype == found.log_p.dtype == found.logit_diff.dtype == torch.float32
    same(found, wanted)


@pytest.mark.parametrize("other", OTHER_DEFAULTS.values(), ids=OTHER_DEFAULTS)
def test_choices_and_states_are_read_the_same_whatever_torchs_defaults_are(tiny_model, other):
    adapter = Adapter(tiny_model("gpt2"))
    states = torch.randn(2, 3, adapter.d_model, generator=torch.Generator().manual_seed(0))
    readers = (
        ChoiceReader(torch.tensor([4, 5, 6]), (1, 2), (3,)),
        StateReader(0, "resid_pre", torch.tensor([4, 5, 6]), lambda some: some.sum(-1)),
    )
    wanted = [reader.metrics(adapter, states) for reader in readers]
    with other():
        found = [reader.metrics(adapter, states) for reader in readers]
        where = [reader.row for reader in readers]
    for one, other_one, row in zip(found, wanted, where, strict=True):
        same(one, other_one)
        assert row.tolist() == [0, 1, 2]
