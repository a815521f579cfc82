"""Readouts do not depend on torch's defaults."""

import pytest
import torch

from anchorlens.engine.readouts import (
    AnswerReader,
    ChoiceReader,
    StateReader,
    answer_mean,
    first_token,
)
from anchorlens.models.load import adapt
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowTokenizer, answer_reads, make_rows
from tests.questions.make import capitals
from tests.torch_defaults import OTHER_DEFAULTS


@pytest.mark.parametrize("other", OTHER_DEFAULTS.values(), ids=OTHER_DEFAULTS)
def test_what_is_read_does_not_depend_on_torchs_defaults(tiny_model, other):
    """Two cells of states drawn by a seed, by every kind of reader."""
    adapter = adapt(tiny_model("gpt2"))
    rows = make_rows(capitals(4).examples, RowTokenizer(adapter.model.tokenizer, QAPrompt())).rows

    def found():
        plans = [
            answer_reads(rows, [*rows[1:], None], first_only=first_only)
            for first_only in (True, False)
        ]
        at = torch.tensor([4, 5, 6], device="cpu")
        readers = (
            AnswerReader(plans[0], first_token),
            AnswerReader(plans[1], answer_mean),
            ChoiceReader(at, (1, 2), (3,)),
            StateReader(0, "resid_pre", at, lambda some: some.sum(-1)),
        )
        for reader in readers:
            draw = torch.Generator("cpu").manual_seed(0)
            shape = (2, len(reader.row), adapter.d_model)
            states = torch.randn(shape, generator=draw, dtype=torch.float32, device="cpu")
            yield reader.metrics(adapter, states), reader.row.tolist()

    wanted = list(found())
    with other():
        again = list(found())
    for (one, row), (other_one, other_row) in zip(again, wanted, strict=True):
        assert row == other_row
        for name in ("p", "log_p", "logit_diff"):
            mine, theirs = getattr(one, name), getattr(other_one, name)
            assert mine.dtype == torch.float32
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    assert wanted[-1][1] == [0, 1, 2]
