"""Segments from a spaCy pipeline with a fixed parse."""

import sys
from types import ModuleType, SimpleNamespace

from anchorlens.errors import InputError
from anchorlens.questions.spans.span_finder import span_finder
from tests.questions.make import refused
from tests.questions.test_spans import record, words


def token(i, idx, text, tag, pos, dep, head):
    head = SimpleNamespace(i=head)
    return SimpleNamespace(
        i=i, idx=idx, text=text, tag_=tag, pos_=pos, dep_=dep, lemma_=text.lower(), head=head
    )


class Group(list):
    """Fake span of tokens with a root and an entity label."""

    def __init__(self, tokens, root, label=""):
        super().__init__(tokens)
        self.root, self.label_ = root, label


class Doc(list):
    """Fake document of tokens, noun chunks and entities."""


def fake_spacy(monkeypatch, doc, pipes=("tagger", "parser")):
    class Pipeline:
        pipe_names = pipes

        def __call__(self, question):
            assert question.startswith(doc[0].text)
            return doc

    def load(name):
        if name != "toy":
            raise OSError("[E050] Can't find model")
        return Pipeline()

    module = ModuleType("spacy")
    module.load = load
    monkeypatch.setitem(sys.modules, "spacy", module)


def asked_doc():
    """ "Which old city hosted the 1976 Games of Ada Lee?" as parsed by spaCy."""
    parts = [
        ("Which", "WDT", "DET", "det", 2),
        ("old", "JJ", "ADJ", "amod", 2),
        ("city", "NN", "NOUN", "nsubj", 3),
        ("hosted", "VBD", "VERB", "ROOT", 3),
        ("the", "DT", "DET", "det", 6),
        ("1976", "CD", "NUM", "nummod", 6),
        ("Games", "NNPS", "PROPN", "dobj", 3),
        ("of", "IN", "ADP", "prep", 6),
        ("Ada", "NNP", "PROPN", "compound", 9),
        ("Lee", "NNP", "PROPN", "pobj", 7),
        ("?", ".", "PUNCT", "punct", 3),
    ]
    text = "Which old city hosted the 1976 Games of Ada Lee?"
    doc, at = Doc(), 0
    for i, (word, tag, pos, dep, head) in enumerate(parts):
        at = text.index(word, at)
        doc.append(token(i, at, word, tag, pos, dep, head))
    doc.noun_chunks = [Group(doc[0:3], doc[2]), Group(doc[4:7], doc[6]), Group(doc[8:10], doc[9])]
    doc.ents = [Group(doc[5:6], doc[5], "DATE"), Group(doc[8:10], doc[9], "PERSON")]
    return text, doc


def test_spacy_finds_the_queried_chunk_and_the_longest_name(monkeypatch):
    text, doc = asked_doc()
    fake_spacy(monkeypatch, doc)
    for ents, subject in (doc.ents, "Ada Lee"), ([], "1976 Games"):
        doc.ents = ents
        found = span_finder("spacy:toy").find(record(text), "r")
        assert words(text, found) == (subject, "old city", "spacy:toy")
    doc.noun_chunks = doc.noun_chunks[:1]
    assert span_finder("spacy:toy").find(record(text), "r").reason == "no_spans"


def test_unusable_spacy_pipelines_are_errors(monkeypatch):
    _, doc = asked_doc()
    fake_spacy(monkeypatch, doc, pipes=("tagger",))
    for spans, message in (
        ("spacy:toy", "spans='spacy:toy': the pipeline has no parser"),
        ("spacy:tiny", "Run: python -m spacy download tiny"),
    ):
        with refused(InputError, message, "spans"):
            span_finder(spans)
