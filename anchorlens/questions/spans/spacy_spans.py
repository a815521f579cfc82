"""Find subject and property with a spaCy pipeline (METHOD: where spans come from, rule 4)."""

from collections.abc import Sequence
from typing import Any

from anchorlens.errors import InputError
from anchorlens.questions.example import Span

_WH_TAGS = frozenset({"WDT", "WP", "WP$", "WRB"})
# Entities of time, amount and origin, which are rarely the subject of a question.
_WEAK_ENTITIES = frozenset(
    {"DATE", "TIME", "CARDINAL", "ORDINAL", "PERCENT", "QUANTITY", "MONEY", "NORP", "LANGUAGE"}
)
_WEAK_POS = frozenset({"DET", "PRON", "PUNCT", "ADP", "AUX", "SPACE", "CCONJ", "SCONJ", "PART"})


def _load(name: str) -> Any:
    try:
        import spacy  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            f"spans='spacy:{name}': spaCy is not installed."
            f" Run: pip install 'anchorlens[spacy]', then: python -m spacy download {name}",
            argument="spans",
        ) from error
    try:
        pipeline = spacy.load(name)
    except OSError as error:
        raise InputError(
            f"spans='spacy:{name}': the pipeline is not installed."
            f" Run: python -m spacy download {name}",
            argument="spans",
        ) from error
    if "parser" not in pipeline.pipe_names:
        raise InputError(
            f"spans='spacy:{name}': the pipeline has no parser."
            " Use one with a parser, such as en_core_web_sm.",
            argument="spans",
        )
    return pipeline


class SpacyExtractor:
    """Finds segments by entities, noun chunks and the dependency tree.

    The property is the noun chunk of the wh-word, else that of a root "be", else the root verb. The
    subject is the longest entity outside the property, else the longest noun chunk.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._pipeline = _load(name)

    def __call__(self, question: str) -> tuple[Span, Span] | None:
        """Return subject and property, or None if the pipeline finds no two segments."""
        doc = self._pipeline(question)
        asking = next((token for token in doc if token.tag_ in _WH_TAGS), None)
        chunks = [chunk for chunk in doc.noun_chunks if not _is_weak(chunk)]
        names = [entity for entity in doc.ents if entity.label_ not in _WEAK_ENTITIES]
        excluded = set() if asking is None else {asking.i}
        property_ = _property(doc, asking, chunks, names)
        if not property_:
            return None
        excluded |= {token.i for token in property_}
        subject = _longest(names, excluded) or _longest(chunks, excluded)
        if not subject:
            return None
        return _characters(subject), _characters(property_)


def _is_weak(tokens: Sequence[Any]) -> bool:
    return all(token.pos_ in _WEAK_POS for token in tokens)


def _characters(tokens: Sequence[Any]) -> Span:
    return Span(tokens[0].idx, tokens[-1].idx + len(tokens[-1].text))


def _trim(tokens: Sequence[Any], without: set[int]) -> list[Any]:
    """Return the last contiguous run of tokens outside ``without``, without small words at its
    edges.
    """
    run: list[Any] = []
    for token in tokens:
        if token.i not in without:
            run = [*run, token] if run and run[-1].i == token.i - 1 else [token]
    while run and run[0].pos_ in _WEAK_POS:
        run = run[1:]
    while run and run[-1].pos_ in _WEAK_POS:
        run = run[:-1]
    return run


def _property(doc: Any, asking: Any, chunks: Sequence[Any], names: Sequence[Any]) -> list[Any]:
    inside: set[int] = set()
    for name in names:
        inside.update(token.i for token in name)
    if asking is not None:
        inside.add(asking.i)
        for chunk in chunks:
            if any(token.i == asking.i for token in chunk):
                if chunk.root.i != asking.i:
                    return _trim(list(chunk), inside)
                break
    root = next((token for token in doc if token.dep_ == "ROOT"), None)
    if root is None:
        return []
    if root.lemma_ == "be":
        # The last noun chunk beside "be": "what is the *capital*".
        for chunk in reversed(chunks):
            if chunk.root.head.i == root.i and chunk.root.dep_ in {"attr", "nsubj"}:
                run = _trim(list(chunk), inside)
                if run:
                    return run
    return [root] if root.pos_ == "VERB" else []


def _longest(groups: Sequence[Any], excluded: set[int]) -> list[Any]:
    """Return the longest run of tokens of a group outside the property and the wh-word."""
    best: list[Any] = []
    for group in groups:
        run = _trim(list(group), excluded)
        # Of equally long runs the first one in the question.
        if len(run) > len(best) or (run and len(run) == len(best) and run[0].i < best[0].i):
            best = run
    return best
