"""Subject and property by a spaCy pipeline of the user's choice (METHOD: where spans come from, rule 4)."""

from collections.abc import Sequence
from typing import Any

from anchorlens.errors import InputError
from anchorlens.questions.example import Span

_WH_TAGS = frozenset({"WDT", "WP", "WP$", "WRB"})
# Entities that say when or how many, not what the question is about.
_WEAK_ENTITIES = frozenset({"DATE", "TIME", "CARDINAL", "ORDINAL", "PERCENT", "QUANTITY", "MONEY", "NORP", "LANGUAGE"})
_WEAK_POS = frozenset({"DET", "PRON", "PUNCT", "ADP", "AUX", "SPACE", "CCONJ", "SCONJ", "PART"})


def _load(name: str) -> Any:
    try:
        import spacy  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            f"spans='spacy:{name}' needs spaCy. Install it with: pip install 'anchorlens[spacy]', "
            f"then: python -m spacy download {name}"
        ) from error
    try:
        pipeline = spacy.load(name)
    except OSError as error:
        raise InputError(f"spaCy has no pipeline {name!r} here. Install it with: python -m spacy download {name}") from error
    if "parser" not in pipeline.pipe_names:
        raise InputError(
            f"The spaCy pipeline {name!r} has no parser, which the spans need; take one that has, as en_core_web_sm."
        )
    return pipeline


class SpacyExtractor:
    """Segments by entities, noun chunks and the dependency tree.

    Property: the noun chunk of the wh-word, else the one beside a root "be", else the root verb. Subject: the longest entity
    clear of it, else the longest noun chunk.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._pipeline = _load(name)

    def __call__(self, question: str) -> tuple[Span, Span] | None:
        """Subject and property, or None where the pipeline finds no two segments."""
        doc = self._pipeline(question)
        asking = next((token for token in doc if token.tag_ in _WH_TAGS), None)
        chunks = [chunk for chunk in doc.noun_chunks if any(token.pos_ not in _WEAK_POS for token in chunk)]
        names = [entity for entity in doc.ents if entity.label_ not in _WEAK_ENTITIES]
        spared = set() if asking is None else {asking.i}
        property_ = _property(doc, asking, chunks, names)
        if not property_:
            return None
        spared |= {token.i for token in property_}
        subject = _longest(names, spared) or _longest(chunks, spared)
        if not subject:
            return None
        return _characters(subject), _characters(property_)


def _characters(tokens: Sequence[Any]) -> Span:
    return Span(tokens[0].idx, tokens[-1].idx + len(tokens[-1].text))


def _trim(tokens: Sequence[Any], without: set[int]) -> list[Any]:
    """The last unbroken run of tokens outside ``without``, small words at its edges cut off."""
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
    inside = {token.i for name in names for token in name}
    roots = [token for token in doc if token.dep_ == "ROOT"]
    if asking is not None:
        inside.add(asking.i)
        asked = next((chunk for chunk in chunks if any(token.i == asking.i for token in chunk)), None)
        if asked is not None and asked.root.i != asking.i:
            return _trim(list(asked), inside)
    if roots and roots[0].lemma_ == "be":
        beside = [chunk for chunk in chunks if chunk.root.head.i == roots[0].i and chunk.root.dep_ in {"attr", "nsubj"}]
        options = [run for run in (_trim(list(chunk), inside) for chunk in beside) if run]
        if options:
            return options[-1]
    return [roots[0]] if roots and roots[0].pos_ == "VERB" else []


def _longest(groups: Sequence[Any], spared: set[int]) -> list[Any]:
    """The longest run of tokens that a group leaves beside the property and the wh-word."""
    options = [_trim(list(group), spared) for group in groups]
    return max((run for run in options if run), key=lambda run: (len(run), -run[0].i), default=[])
