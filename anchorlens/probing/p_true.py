"""Make the reader of ``p_true``: P(yes) against P(no) after the question whether the answer is correct (METHOD 3)."""

from collections.abc import Sequence

import torch

from anchorlens.engine.readouts import ChoiceReader
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter
from anchorlens.questions.tokens import TokenRow


def truth_reader(adapter: Adapter, rows: Sequence[TokenRow]) -> ChoiceReader:
    """Return the reader of ``p_true``: yes against no at the last token of each row."""
    yes, no = (_first_tokens(adapter, words) for words in (("yes", "Yes", "YES"), ("no", "No", "NO")))
    yes, no = yes - no, no - yes
    if not yes or not no:
        raise InputError(
            "readout='p_true': the tokenizer starts yes and no with the same tokens. Use readout='probe'.", argument="readout"
        )
    last = torch.tensor([len(row.ids) - 1 for row in rows])
    return ChoiceReader(last, tuple(sorted(yes)), tuple(sorted(no)))


def _first_tokens(adapter: Adapter, words: Sequence[str]) -> set[int]:
    hf = adapter.tokenizer
    assert hf is not None  # checked by the sweep
    forms = [f"{space}{word}" for word in words for space in ("", " ")]
    return {int(hf(form, add_special_tokens=False)["input_ids"][0]) for form in forms}  # pyright: ignore
