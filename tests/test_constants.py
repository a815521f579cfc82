"""The constants that arguments may take are those that the package knows."""

from anchorlens import constants
from anchorlens.engine.readouts import READOUTS
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowTokenizer
from tests.questions.make import capital
from tests.tokenizers_small import small_tokenizer


def test_the_words_are_those_that_the_package_knows():
    row = RowTokenizer(small_tokenizer("byte", bos=False), QAPrompt()).row(
        capital("France", "Paris")
    )
    assert set(row.positions) == {*constants.ANCHORS, "rest_words", "rest_content"}
    assert set(constants.PROBE_SITES) <= set(constants.SITES) == set(constants.SITE_ORDER)
    assert set(constants.ANSWER_READOUTS) == set(READOUTS)
    assert not set(constants.ANSWER_READOUTS) & set(constants.TRUTH_READOUTS)
    assert tuple(constants.SHARES) == constants.SPLITS
    assert abs(sum(constants.SHARES.values()) - 1) < 1e-9
