"""Names, numbers and quotations of a question, which placebos must not remove (METHOD 5)."""

from anchorlens.questions.example import Span
from anchorlens.questions.spans.lexicon import IMPERATIVES, STOP, WH, word_set
from anchorlens.questions.spans.parse import Parsed, parse

# Small words that belong to a name if they lie between two of its words.
_INSIDE = word_set("of the de la le les du des von van der den di da del dos al bin ibn y &")


def find_names(question: str) -> tuple[Span, ...]:
    """Find capitalised runs, words with a digit and quotations of a question, in order.

    If capitals do not mark names (as in NQ), only digits and quotations are found.

    >>> text = 'In 1999, which Bank of England governor praised "the old lady"?'
    >>> [span.of(text) for span in find_names(text)]
    ['1999', 'Bank of England', 'the old lady']
    """
    view = parse(question)
    return tuple(sorted({*_runs(view), *view.quotes}))


def _runs(view: Parsed) -> list[Span]:
    words = view.words
    runs: list[Span] = []
    i = 0
    is_name = [_is_name(view, k) for k in range(len(words))]
    while i < len(words):
        if not is_name[i]:
            i += 1
            continue
        end = i + 1
        while end < len(words) and not words[end].breaks:
            after = end
            while (
                after < min(end + 2, len(words))
                and words[after].low in _INSIDE
                and not is_name[after]
            ):
                after += 1
            if after >= len(words) or not is_name[after] or words[after].breaks:
                break
            end = after + 1
        runs.append(view.span(i, end))
        i = end
    return runs


def _is_name(view: Parsed, index: int) -> bool:
    word = view.words[index]
    if any(char.isdigit() for char in word.text):
        return True
    opener = word.opens and word.low in STOP | WH | IMPERATIVES
    return view.cased and word.capital and not opener and index != view.wh and word.low != "i"
