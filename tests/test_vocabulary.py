"""The words that arguments may take are those that the package knows."""

from anchorlens import vocabulary as words
from anchorlens.engine.readouts import READOUTS
from anchorlens.models import adapter
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowTokenizer
from tests.questions.make import capital
from tests.tokenizers_small import small_tokenizer


def test_the_words_are_those_that_the_package_knows():
    row = RowTokenizer(small_tokenizer("byte", bos=False), QAPrompt()).row(capital("France", "Paris"))
    assert set(row.positions) == set(words.ANCHORS)
    assert set(words.PROBE_SITES) <= set(words.SITES) == set(adapter.SITES)
    assert set(words.ANSWER_READOUTS) == set(READOUTS)
    assert not set(words.ANSWER_READOUTS) & set(words.TRUTH_READOUTS)
    assert len(words.FRACTIONS) == len(words.SPLITS)
    assert abs(sum(words.FRACTIONS) - 1) < 1e-9
