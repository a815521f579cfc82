"""Questions in other languages are recognised before the English rules invent segments."""

import pytest

from anchorlens.questions.datasets import load_qa
from anchorlens.questions.spans.languages import is_foreign
from anchorlens.questions.spans.lexicon import split_words

FOREIGN = """
Was ist die Hauptstadt von Peru?
Was schrieb Thomas Mann in Venedig?
Was malte Picasso 1937?
Was kaufte Anna in Rom?
Was wurde 1989 in Berlin geöffnet?
In welcher Stadt wurde Goethe geboren?
Ist Lima die Hauptstadt von Peru?
Nenne die Hauptstadt von Peru.
was ist die hauptstadt von peru
Wat is de hoofdstad van Peru?
Wie schreef Max Havelaar?
Hoe heet de koning van Nederland?
In welk land ligt Parijs?
Qual è la capitale del Perù?
Chi ha scritto Il nome della rosa?
Dans quelle ville est né Mozart ?
Qu'est-ce que la photosynthèse ?
Cual es la capital de Peru?
En qué año nació Cervantes?
O que é fotossíntese?
Vilken stad är huvudstad i Peru?
Hvilken by er hovedstad i Peru?
Hva er hovedstaden i Peru?
Jaka jest stolica Peru?
Peru'nun başkenti neresidir?
Thủ đô của Peru là gì?
Care este capitala Peru?
Столица Перу это какой город?
Was war die Hauptstadt von Preussen?
Is Lima de hoofdstad van Peru?
Had Mozart een vrouw in Wenen?
Es Lima la capital de Peru?
In ce oras s-a nascut Mozart?
Do ktorego miasta plynie Wisla?
""".strip().splitlines()
ENGLISH = """
Was Emma Stone born in 1988?
Was athlete Carl Lewis born in Alabama?
Was Die Hard released in 1988?
was die hard released in 1988
Was Michelle Wie born in Hawaii?
Was taste invented?
Is Das Boot a German film?
Is crème brûlée French?
Is Déjà Vu older than Café Society?
Is La Paz higher than Bogotá?
Who wrote Das Leben der Anderen?
who wrote ist das der und nicht
Name the capital of Peru.
MIT was founded in 1861?
Una Stubbs was born in London?
Élodie Yung was born in Paris?
largest planet solar system
Was de Gaulle tall?
Was Ludwig van Beethoven deaf?
Was war declared by Britain in 1939?
Does the Rio de la Plata flow into the Atlantic?
Is pie a la mode from France?
Had Pride and Prejudice been published by 1815?
""".strip().splitlines()


@pytest.mark.parametrize("question", FOREIGN)
def test_a_question_in_another_language_has_no_segments(question):
    assert is_foreign(split_words(question))
    (dropped,) = load_qa([(question, "x"), ("Who wrote Emma?", "Jane Austen")]).dropped
    assert (dropped.question, dropped.reason) == (question, "not_english")


@pytest.mark.parametrize("question", ENGLISH)
def test_an_english_question_is_not_taken_for_another_language(question):
    assert not is_foreign(split_words(question))


@pytest.mark.parametrize("name", ["popqa", "triviaqa", "hotpotqa", "nq"])
def test_no_question_of_a_sample_is_foreign(name):
    for example in load_qa(f"{name}-sample").pool:
        assert not is_foreign(split_words(example.question)), example.question
