"""What "take more questions" can mean for the set that is measured: a larger ``limit=``, or another set."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from anchorlens.questions.datasets import QAData

_MORE: ContextVar[str] = ContextVar("more_questions", default="more questions")
_SAMPLE = "-sample"


@contextmanager
def questions_of(data: QAData) -> Iterator[None]:
    """Messages inside the block advise what helps with these questions."""
    token = _MORE.set(_more(data))
    try:
        yield
    finally:
        _MORE.reset(token)


def more_questions() -> str:
    """What to take, to stand behind "take": ``more questions (limit= up to 180)``, or a larger set where all of them are taken."""
    return _MORE.get()


def _more(data: QAData) -> str:
    rows = len(data.pool) + sum(data.pool_dropped.values())
    if data.limit is not None and data.limit < rows:
        return f"more questions (limit= up to {rows})"
    of_hub = data.source.startswith("sample:") and data.name.endswith(_SAMPLE)
    larger = f"a larger set, such as {data.name.removesuffix(_SAMPLE)!r}" if of_hub else "a larger set"
    return f"{larger} (all {rows} questions of {data.name} are taken)"


__all__ = ["more_questions", "questions_of"]
