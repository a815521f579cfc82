"""Labelled rows of a small data set."""

from anchorlens.models.load import adapt
from anchorlens.probing.truth_rows import truth_rows
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowTokenizer


def rows_of(model, data, **changes):
    tokenizer = RowTokenizer(model.tokenizer, QAPrompt())
    options = {
        "answers": "gold",
        "distractor": "matched",
        "n_splits": 1,
        "max_new_tokens": 4,
        "batch_size": 8,
    }
    return truth_rows(
        adapt(model), data.examples, tokenizer, **options | changes, seed=0, progress=False
    )
