"""Spans by rules, templates, annotations and extractors."""

import json
import re
import sys
import time
from collections import Counter

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlens.errors import InputError, SpanError
from anchorlens.questions.example import Span
from anchorlens.questions.schemas import Record
from anchorlens.questions.spans.parse import find_quotes, parse
from anchorlens.questions.spans.rules import rule_spans
from anchorlens.questions.spans.span_finder import check_spans, place_subject, span_finder
from anchorlens.questions.spans.templates import TEMPLATES, match_template
from tests.questions.make import refused

# question, subject, property; None where a segment must not be found.
# 1,950 characters before what is asked.
STORY = ("She travelled far and saw many a thing. " * 50)[:1_950]
CASES = [
    (f"{STORY}. Who wrote the Codex Seraphinianus?", "Codex Seraphinianus", "wrote"),
    # a quotation comes first, of every kind of quotes
    ("Who wrote 'Emma'?", "Emma", "wrote"),
    ('Who recorded the album "Blue Train" in Hackensack?', "Blue Train", "recorded"),
    ("Who sang “Yellow Bird” in 1957?", "Yellow Bird", "sang"),
    ("Who sang ‘Don’t Look’ first?", "Don’t Look", "sang"),
    ("Which composer wrote «Tosca»?", "Tosca", "composer"),
    ("Who lives in 'Hobson's Choice'?", "Hobson's Choice", "lives"),
    ('"Which British composer wrote ""The Lark March""?"', "The Lark March", "composer"),
    ('"What type of creature is a ""Gila Woodpecker""?"', "Gila Woodpecker", "type of creature"),
    ('"Who wrote Hamlet?"', "Hamlet", "wrote"),
    ("Who wrote 'x' for the New York Times?", "x", "wrote"),
    # then the longest capitalised run that does not open the sentence
    ("Who has the largest collection of rare blue stamps in Rome?", "Rome", "largest collection"),
    ("Who founded the Bank of England?", "Bank of England", "founded"),
    ("In which city is the Trevi Fountain?", "Trevi Fountain", "city"),
    ("Which planet did William Herschel discover?", "William Herschel", "planet"),
    ("What was the pre-war name of Lviv?", "Lviv", "pre-war name"),
    ("Who was Louis XV's second cousin?", "Louis XV", "second cousin"),
    ("How old was J. R. R. Tolkien when he died?", "J. R. R. Tolkien", "old"),
    ("How many strings has a Russian balalaika?", "Russian balalaika", "strings"),
    ("El Alto is the second city of which South American country?", "El Alto", "country"),
    ("Fort Wayne is in which US State?", "Fort Wayne", "US State"),
    (
        "The Kilby Awards were named after the man who discovered what effect?",
        "Kilby Awards",
        "effect",
    ),
    ("Who was the Vice-President for George Bush?", "George Bush", "Vice-President"),
    ("Which early Bob Dylan album has a gunfighter on it?", "Bob Dylan", "album"),
    ("Who directed 127 Hours?", "127 Hours", "directed"),
    ("Who won the 1976 Olympics?", "1976 Olympics", "won"),
    ("Where was Ludwig van Beethoven born?", "Ludwig van Beethoven", "born"),
    ("It sold well. Who wrote Škvorecký's Zbabělci?", "Škvorecký's Zbabělci", "wrote"),
    # then the longest noun-like run
    ("what is the average weight of a dutch cow", "dutch cow", "average weight"),
    ("who played the younger brother on half moon", "half moon", "played"),
    ("when did the titanic sink", "titanic", "sink"),
    ("who was joan miller's uncle on nights of our town", "joan miller", "uncle"),
    ("what's the name of the muslim dress", "muslim dress", "name"),
    ("who is the chicago bears quarterback", "chicago bears", "quarterback"),
    ("who is the first judge to be arrested", "first judge", "arrested"),
    ("genre of diary of a small thief", "diary of a small thief", "genre"),
    ("Nyctophobia is the lasting fear of what?", "Nyctophobia", "lasting fear"),
    # comparisons: one contiguous segment
    ("Which is larger, Russia or Belgium?", "Russia or Belgium", "larger"),
    ("which is bigger, mars or the earth", "mars or the earth", "bigger"),
    ("Which genus has more species, Acer and Betula?", "Acer and Betula", "genus"),
    ("Which came first, 'Jaws' or 'Alien'?", "Jaws' or 'Alien", "came"),
    ("Who was born first, Ann Lee or Jo Ray?", "Ann Lee or Jo Ray", "born"),
    # commands and yes/no questions
    (
        "Name the capital city of the Canadian Province of Alberta?",
        "Canadian Province of Alberta",
        "capital city",
    ),
    ("Are Ann Ray and Ivy Dunn both chess players?", "Ann Ray and Ivy Dunn", "chess players"),
    ("Are both Jonas Marlow and Wendy Black British?", "Jonas Marlow and Wendy Black", "British"),
    # a definition has a subject and nothing that is asked of it
    ("What is a ganglion?", "ganglion", None),
    # questions without names: the segments that grammar marks
    ("when did salt of the earth come out", "salt of the earth", "come"),
    ("how many seasons of under the dome are there", "under the dome", "seasons"),
    ("who plays the butler in how to rob a bank", "how to rob a bank", "plays"),
    ("who starred in the movie salt and pepper", "salt and pepper", "starred"),
    ("who sings i will wait for you originally", "i will wait for you", "sings"),
    ("what is the name of the cook in pride and glory", "pride and glory", "name"),
    ("who was the mother on how we met", "how we met", "mother"),
    ("when was the last time norwich won the cup", "norwich", "won"),
    ("which bone is also called the kneecap", "kneecap", "bone"),
    ("where do the oslo vikings have spring training", "oslo vikings", "spring training"),
    ("marmots are native to which continent", "marmots", "continent"),
    ("what does the spleen do in the body", "spleen", "do"),
    # a name of one capital opens a statement; a list, a place with its region and a nickname are
    # one segment
    ("Mainz is the capital of which region of Germany?", "Mainz", "region"),
    ("Lee Ray, the sister of Ann Ray, wrote which opera?", "Lee Ray", "opera"),
    ("Ashes in the Rain is a drama by which writer?", "Ashes in the Rain", "writer"),
    ("Who directed the films Jaws, Munich and Lincoln?", "Jaws, Munich and Lincoln", "directed"),
    ("Which poet was born in Salem, Oregon?", "Salem, Oregon", "poet"),
    ('Who married Ann "Dot" Lee in Bath?', 'Ann "Dot" Lee', "married"),
    ("Who wrote Murder in the Rectory?", "Murder in the Rectory", "wrote"),
    ("Which director, Ann Lee or Jo Ray, is also a writer?", "Ann Lee or Jo Ray", "director"),
    ("Are Pete Mango and Kirk Terzian older?", "Pete Mango and Kirk Terzian", "older"),
    # what qualifies a name or a noun is no subject
    ("Where was Leeds United striker Bob Ray born?", "Bob Ray", "born"),
    ("What is the motto of the US state of Ohio?", "Ohio", "motto"),
    ("Which South Korean film stars Kim Lee?", "Kim Lee", "film"),
    ("When was the poet who wrote Kim born?", "Kim", "born"),
    # capitals that say nothing
    ("WHO WROTE EMMA?", "EMMA", "WROTE"),
    ("WHICH BAND SANG 'HELP'?", "HELP", "BAND"),
    ("Who Wrote Emma?", "Emma", "Wrote"),
    ("Que Sera Sera was sung by which actress?", "Que Sera Sera", "actress"),
    ("", None, None),
    ("???", None, None),
    ("who is he", None, None),
]


@pytest.mark.parametrize(
    ("question", "subject", "asked"), CASES, ids=[case[0][:40] for case in CASES]
)
def test_rules_find_these_words(question, subject, asked):
    found = [None if span is None else span.of(question) for span in rule_spans(question)]
    assert found == [subject, asked]


def assert_lawful(question, subject, asked):
    for span in (subject, asked):
        assert 0 <= span.start < span.end <= len(question)
        assert span.of(question) == span.of(question).strip()
        assert any(char.isalnum() for char in span.of(question))
    assert not subject.overlaps(asked)
    wh = parse(question).wh
    if wh is not None:
        word = parse(question).words[wh]
        assert not Span(word.start, word.end).overlaps(subject)
        assert not Span(word.start, word.end).overlaps(asked)


VOCABULARY = """Who what which Which when how is was did the of in and or for Emma Bob Dylan's 'Blue "" " ’ “ ” 's , ? . : ( )
British capital
    city wrote born played old many name Name USA 1976 first McFarland é
ñandú 東京 नमस्ते — & / vs. both 🙂"""
WORDS = st.sampled_from(re.split(r"\s+", VOCABULARY))


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(
    st.one_of(
        st.text(max_size=80),
        st.lists(WORDS, max_size=18).map(" ".join),
        st.lists(WORDS, max_size=18).map("".join),
    )
)
def test_any_text_gives_nothing_or_two_disjoint_segments(question):
    subject, asked = rule_spans(question)
    if subject is not None and asked is not None:
        assert_lawful(question, subject, asked)
    assert subject is not None or asked is None


UNITS = [
    "A ",
    "'",
    '"',
    "' '",
    "x's ",
    "Who of ",
    "time of ",
    "go to ",
    "Bob, ",
    "Al and ",
    "have ",
    "the movie go ",
    'B "A" C ',
]


@pytest.mark.parametrize("unit", UNITS)
def test_long_questions_take_no_quadratic_time(unit):
    def seconds(n):
        text = ("Who wrote Emma? " + unit * n)[:n]
        start = time.process_time()
        rule_spans(text)
        match_template(text)
        return time.process_time() - start

    seconds(400)
    # Ten times the length: linear is 10x, quadratic 100x; the floor keeps the clock's noise out.
    assert seconds(4_000) < 50 * max(seconds(400), 0.001)


@pytest.mark.parametrize(
    "question",
    [
        "¿Quién escribió Don Quijote?",
        "Кто написал «Анну Каренину»?",
        "किसने गोदान लिखा?",
        "Wer hat Faust geschrieben?",
        "Quelle est la capitale de la France ?",
        "何が好きですか",
    ],
)
def test_questions_in_other_languages_are_dropped_with_a_reason(question):
    assert rule_spans(question) == (None, None)
    assert span_finder("rules").find(record(question), "row 1").reason == "not_english"
    half = span_finder("auto").find(
        record(question, subject_span=(len(question) - 3, len(question) - 1)), "row 1"
    )
    assert (half.property, half.reason) == (None, "not_english")


@pytest.mark.parametrize(
    ("text", "quotes"),
    [
        ('"Who wrote ""Dune"" and ""Emma""?"', ['Dune"" and ""Emma']),
        ("the dogs' bone and 'Rover's ball'", ["Rover's ball"]),
        ("the '80s hit 'Fame'", ["Fame"]),
        ("In Yiddish, what is 'chutzpah? (Pronounced so)", []),
        ('"Is all of it quoted?"', []),
        ("``Town'' and nothing", ["Town"]),
    ],
)
def test_quotations(text, quotes):
    assert [span.of(text) for span in find_quotes(text)] == quotes


def test_each_template_gives_its_own_relation_and_segments():
    for relation, template in TEMPLATES.items():
        question = template.replace("*", "").format("Šen of the capital of?")
        match = match_template(question)
        assert match is not None
        assert match.relation == relation
        assert match.subject.of(question) == "Šen of the capital of?"
        assert match.property.of(question) == template.split("*")[1]
    assert len(TEMPLATES) == 16
    assert match_template("Who wrote Emma?") is None
    assert match_template("What color is  ?") is None


@pytest.mark.shared_data
def test_templates_match_all_real_popqa_rows_and_name_their_relation(shared_data):
    rows = [
        json.loads(line)
        for line in (shared_data / "popqa.jsonl").read_text(encoding="utf8").splitlines()
    ]
    matches = [match_template(row["question"]) for row in rows]
    assert len(rows) == 1_500
    assert [m and m.relation for m in matches] == [row["prop"] for row in rows]
    assert len(Counter(row["prop"] for row in rows)) == 16


def record(question, **fields):
    return Record(question=question, answers=("x",), **fields)


def words(question, found):
    return (
        found.subject and found.subject.of(question),
        found.property and found.property.of(question),
        found.source,
    )


EMMA, CITY = "Who wrote Emma in Bath?", "Who is the father of Cosimo, Duke of Tuscany?"
COSIMO = {"templated": True, "popqa_subject": "Cosimo"}


@pytest.mark.parametrize(
    ("mode", "question", "fields", "wanted", "reason"),
    [
        (
            "auto",
            EMMA,
            {"subject_span": (18, 22), "property_text": "wrote"},
            ("Bath", "wrote", "annotation"),
            "",
        ),
        ("auto", EMMA, {"subject_text": "Bath"}, ("Bath", "wrote", "annotation+rules"), ""),
        ("auto", EMMA, {"property_text": "Emma"}, (None, "Emma", "annotation+rules"), "no_subject"),
        (
            "rules",
            EMMA,
            {"subject_text": "Bath", "property_text": "wrote"},
            ("Emma", "wrote", "rules"),
            "",
        ),
        (
            "rules",
            EMMA,
            {"subject_span": (0, 400), "fault": "row 1: broken"},
            ("Emma", "wrote", "rules"),
            "",
        ),
        ("annotation", EMMA, {"subject_text": "Emma"}, (None, None, "annotation"), "no_annotation"),
        # PopQA's `subj` decides where the subject is, if it stands in the question.
        ("auto", CITY, COSIMO, ("Cosimo", "father", "annotation"), ""),
        (
            "auto",
            CITY,
            COSIMO | {"popqa_subject": "Cosimo I"},
            ("Cosimo, Duke of Tuscany", "father", "template"),
            "",
        ),
        ("rules", CITY, COSIMO, ("Cosimo, Duke of Tuscany", "father", "template"), ""),
    ],
)
def test_source_of_segments(mode, question, fields, wanted, reason):
    found = span_finder(mode).find(record(question, **fields), "row 1")
    assert (words(question, found), found.reason) == (wanted, reason)


def test_popqa_subj_that_repeats_the_property_stays_in_its_slot():
    question = "In what city was city of angels born?"
    match = match_template(question)
    assert place_subject(question, "city", match) == Span(17, 21)
    assert match.property == Span(8, 12)


@pytest.mark.parametrize("mode", ["auto", "annotation"])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"subject_span": (0, 400)},
            "row 7: subject span [0, 400] lies outside its question of 18 characters",
        ),
        (
            {"property_span": (0, 400)},
            "row 7: property span [0, 400] lies outside its question of 18 characters",
        ),
        (
            {"subject_text": "Bob", "property_text": "wrote"},
            "row 7: subject 'Bob' occurs 2 times in the question",
        ),
        ({"subject_text": "Al", "property_text": "wrote"}, "row 7: subject 'Al' occurs 0 times"),
        (
            {"subject_span": (5, 5), "property_text": "wrote"},
            "row 7: subject span [5, 5] lies outside",
        ),
        (
            {"subject_span": (3, 4), "property_text": "wrote"},
            "row 7: subject span [3, 4] lies outside its question",
        ),
        (
            {"subject_span": (0, 6), "property_text": "wrote"},
            "row 7: subject 'Who wr' and property 'wrote' overlap",
        ),
    ],
)
def test_wrong_annotations_are_a_reason_to_drop_the_row(mode, fields, message):
    found = span_finder(mode).find(record("Who wrote Bob Bob?", **fields), "row 7")
    assert (found.subject, found.property, found.reason) == (None, None, "bad_annotation")
    assert found.detail.startswith(message)


@pytest.mark.parametrize(
    "given",
    [
        ((10, 14), (4, 9)),
        [[10, 14], [4, 9]],
        ("Emma", "wrote"),
        (Span(10, 14), "wrote"),
        (numpy.array([10, 14]).tolist(), (4, 9)),
    ],
)
def test_an_extractor_can_return_pairs_and_texts(given):
    question = "Who wrote Emma?"
    assert words(question, span_finder(lambda _: given).find(record(question), "r")) == (
        "Emma",
        "wrote",
        "callable:<lambda>",
    )
    assert span_finder(lambda _: None).find(record(question), "r").reason == "no_spans"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ("Bob", "wrote"),
            "r: subject 'Bob' occurs 2 times in the question 'Who wrote Bob Bob?', must occur once",
        ),
        (("wrote", "Al"), "r: property 'Al' occurs 0 times in the question 'Who wrote Bob Bob?'"),
        (
            "Bob",
            (
                "r: callable:extract returned 'Bob'. Return (subject, property), each a Span, a"
                " pair (first"
            ),
        ),
        (7, "r: callable:extract returned 7. Return (subject, property)"),
        (((1, 2),), "r: callable:extract returned ((1, 2),)"),
        (((4, 9), (1.0, 2.0)), "r: callable:extract returned (1.0, 2.0) as property"),
        (((4, 9, 10), (1, 2)), "r: callable:extract returned (4, 9, 10) as subject"),
        (((True, 3), (4, 9)), "r: callable:extract returned (True, 3) as subject"),
        ((None, (4, 9)), "r: callable:extract returned None as subject"),
        (((4, 99), (0, 3)), "r: subject span [4, 99] lies outside its question of 18 characters"),
        (("Who wr", "wrote"), "r: subject 'Who wr' and property 'wrote' overlap."),
    ],
)
def test_invalid_results_of_an_extractor_are_refused(unchecked, given, message):
    def extract(question):
        return given

    with refused(SpanError, message):
        span_finder(extract).find(record("Who wrote Bob Bob?"), "r")


OF_ANOTHER_KIND = [
    3,
    None,
    ("subject", "property"),
    Span,
    lambda: None,
    lambda question, answer: None,
]


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        *(
            (value, ": must be 'auto', 'rules', 'annotation', 'spacy:NAME' or a function")
            for value in OF_ANOTHER_KIND
        ),
        ("rule", "spans='rule': unknown. Did you mean 'rules'?"),
        (
            "spacy:en_core_web_sm",
            "pip install 'anchorlens[spacy]', then: python -m spacy download en_core_web_sm",
        ),
    ],
)
def test_invalid_spans_arguments_are_refused(unchecked, monkeypatch, spans, message):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with refused(InputError, message, "spans"):
        span_finder(spans)


def test_check_spans_accepts_the_very_edges():
    check_spans("ab", Span(0, 1), Span(1, 2), "r")
