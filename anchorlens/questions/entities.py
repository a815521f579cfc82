"""Which characters of a question name something: what no placebo may take away (METHOD 5)."""

from anchorlens.questions.example import Span
from anchorlens.questions.lexicon import IMPERATIVES, STOP, WH, word_set
from anchorlens.questions.parse import Parsed, parse

# Small words that belong to a name when they stand between two of its words.
_INSIDE = word_set("of the de la le les du des von van der den di da del dos al bin ibn y &")


def find_names(question: str) -> tuple[Span, ...]:
    """Find capitalised runs, words with a digit and quotations of a question, in order; they may touch.

    Where capitals tell nothing apart (as in NQ), only digits and quotations are found.

    >>> text = 'In 1999, which Bank of England governor praised "the old lady"?'
    >>> [span.of(text) for span in find_names(text)]
    ['1999', 'Bank of England', 'the old lady']
    """
    view = parse(question)
    return tuple(sorted({*_runs(view), *view.quotes}))


def _runs(view: Parsed) -> list[Span]:
    words, found, i = view.words, list[Span](), 0
    named = [_names(view, k) for k in range(len(words))]
    while i < len(words):
        if not named[i]:
            i += 1
            continue
        end = i + 1
        while end < len(words) and not words[end].breaks:
            after = end
            while after < min(end + 2, len(words)) and words[after].low in _INSIDE and not named[after]:
                after += 1
            if after >= len(words) or not named[after] or words[after].breaks:
                break
            end = after + 1
        found.append(view.span(i, end))
        i = end
    return found


def _names(view: Parsed, index: int) -> bool:
    word = view.words[index]
    if any(char.isdigit() for char in word.text):
        return True
    opener = word.opens and word.low in STOP | WH | IMPERATIVES
    return view.cased and word.capital and not opener and index != view.wh and word.low != "i"
