"""Make the reader of ``p_true``: P(yes) against P(no) after the question whether the answer is
correct (METHOD 3).
"""

from collections.abc import Sequence

import torch

from anchorlens.engine.readouts import ChoiceReader
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter
from anchorlens.questions.tokens import TokenRow


def truth_reader(adapter: Adapter, rows: Sequence[TokenRow]) -> ChoiceReader:
    """Return the reader that compares "yes" with "no" at the last token of each row.

    The inputs end with the question whether their answer is correct.
    """
    yes_tokens = _first_tokens(adapter, ("yes", "Yes", "YES"))
    no_tokens = _first_tokens(adapter, ("no", "No", "NO"))
    yes = yes_tokens - no_tokens
    no = no_tokens - yes_tokens
    if not yes or not no:
        raise InputError(
            "readout='p_true': the tokenizer starts yes and no with the same tokens."
            " Use readout='probe'.",
            argument="readout",
        )
    last = torch.tensor([len(row.ids) - 1 for row in rows])
    return ChoiceReader(last, tuple(sorted(yes)), tuple(sorted(no)))


def _first_tokens(adapter: Adapter, words: Sequence[str]) -> set[int]:
    hf = adapter.tokenizer
    assert hf is not None  # checked by the sweep
    found: set[int] = set()
    for word in words:
        for form in (word, f" {word}"):
            ids = hf(form, add_special_tokens=False)["input_ids"]
            found.add(int(ids[0]))  # pyright: ignore[reportArgumentType, reportIndexIssue]
    return found
