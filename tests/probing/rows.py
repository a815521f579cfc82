"""Labelled rows of a small data set."""

from anchorlens.models.adapter import Adapter
from anchorlens.probing.labelled import truth_rows
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowTokenizer
from anchorlens.vocabulary import FRACTIONS


def rows_of(model, data, **changes):
    tokenizer = RowTokenizer(model.tokenizer, QAPrompt())
    options = {"answers": "given", "distractor": "matched", "fractions": FRACTIONS, "max_new_tokens": 4, "batch_size": 8}
    return truth_rows(Adapter(model), data.examples, tokenizer, **options | changes, seed=0, progress=False)
