"""Recognise questions that are not English, which the span rules cannot read."""

import re

from anchorlens.questions.spans.lexicon import AUX, STOP, WH, Word, word_set

# Interrogatives of other languages, without those that are English words or names ("was", "come",
# "Kim").
_INTERROGATIVES = word_set(
    """
    quién quien quiénes quienes qué que cuál cual cuáles cuales cuándo cuando dónde donde cómo
    cuánto cuánta cuántos cuántas qui quoi quel quelle quels quelles quand où comment pourquoi
    combien lequel laquelle wer wen wem wessen welche welcher welches welchen welchem wann wo wie
    woher wohin warum wieso weshalb wieviel chi quale quali qual dove perché quanto quanti quante
    quem quais onde wat waar welk welke wanneer hoeveel waarom hoe кто кого что чей какой какая
    какое какие каком какую какого где когда почему сколько как хто що який яка де kto kogo jaki
    jaka jakie kiedy gdzie który która które ktory ktora ktorego dlaczego czyj vem vad vilken
    vilket vilka när varför hvem hva hvad hvor hvornår hvilken hvilket hvilke hvordan hvorfor kuka
    missä milloin mikä mitä minkä kuinka kdo kde kdy jaký jaké který proč kolik mikor miért melyik
    hány cine unde când cât ce
    nerede hangi nasıl siapa berapa kapan bagaimana apa quis quid ubi quando mengapa dimana tko
    što gdje ποιος ποια ποιο πού πότε τι γιατί πόσο
    """
)
# Other small words and common verbs of these languages that are neither English words nor parts of
# names ("de", "von", "die").
_SMALL_WORDS = word_set(
    """
    ist sind hat haben wurde wurden wird werden heißt heisst liegt gibt und oder nicht mit bei nach
    einem einer eines dem zum zur aus schrieb schrieben erfand entdeckte gründete gewann
    spielte malte komponierte starb lebte bedeutet entstand kam ging nannte hieß waren kann
    kostet macht isst nenne nennt
    het een zijn niet voor naar uit heet ligt schreef werd worden heeft hebben
    est sont fut avec dans sur cette ces une aux écrit fait appelle
    fue está una unos para cuyo escribió llama
    è sono della dello degli nella nel alla dal dalla chi scritto chiama cosa
    é são foi uma os não escreveu
    är och att på av inte ligger heter skrev ett vilka og det til ikke skrevet
    este sunt
    jest są był była czy nie się napisał
    adalah yang dari oleh ibukota
    """
)
_ENGLISH = word_set(
    """
    the are were did does do by with and from of to that this these those had has have been being
    his her its their it he she they they're we you your for not can could should would may might
    must shall if than there into about after before during name list born
    """
)
# Of these, words that other languages write in the same way: a village is "by" in Danish, "or" is
# "of" in Dutch.
_SHARED = word_set("by of do had has if for her can")
# Interrogatives that are English words, too; they count at the beginning only.
_ENGLISH_NOUNS = word_set("hoe dove chi que wat como apa")
# German past tenses after "Was" end so ("Was kaufte ..."), but for these English words.
_PAST = re.compile(r"\w+[b-df-hj-np-tv-zß]te")
_NO_PAST = word_set(
    "haste paste taste waste chaste caste baste forte artiste debutante dilettante confidante"
)
# Small words that are names, too, where they open a question.
_NAMES = word_set("una mit bei aux est este jest")
# Articles and small words of names: foreign before a word without a capital ("de hoofdstad", but
# "Vincent van Gogh"), and after German "war".
_ARTICLES = word_set("de het der die das den dem ein eine la le les el los las il lo gli o os")
_ELISIONS = re.compile(r"(?:qu|c|n|s|j|dell|nell|all|dall|un|cos|dov|com)'\w")
# Words that English has taken over with their accents.
_ENGLISH_ACCENTS = word_set(
    "café cafés cliché clichés fiancé fiancée née né résumé naïve façade décor déjà vu à protégé"
    " exposé entrée première matinée sauté purée touché passé pâté soirée café-bar crème brûlée"
    " jalapeño piñata señor señora über doppelgänger séance coup d'état crêpe voilà appliqué"
)


def is_foreign(words: tuple[Word, ...]) -> bool:
    """Return True if a question is not English.

    Its script has no capitals, or it has no English interrogative and more interrogatives, small
    words and accents of other languages than small words of English. Capitals inside a question are
    names, in any language.
    """
    if not words:
        return False
    text = "".join(word.text for word in words)
    letters = [char for char in text if char.isalpha()]
    if 2 * sum(char.lower() == char.upper() for char in letters) > len(letters):
        return True
    if any(word.low in WH for word in words):
        return False
    foreign: set[str] = set()
    english: set[str] = set()
    for i, word in enumerate(words):
        if word.capital and i > 0 and not word.opens:
            continue
        if word.low in _ENGLISH_NOUNS and i > 1:
            continue
        if _is_article(words, i):
            foreign.add(word.low)
            continue
        is_past = i == 1 and words[0].low == "was" and _PAST.fullmatch(word.low)
        if (is_past and word.low not in _NO_PAST) or _is_foreign_word(word, opens=i == 0):
            foreign.add(word.low)
        elif word.low in _ENGLISH:
            english.add(word.low)
    # "Is" and "Does" open English questions, "Was" also German ones, "Is" and "Had" Dutch ones.
    if words[0].low in AUX - {"was", "is", "had"}:
        english.add(words[0].low)
    return len(foreign) > len(english - _SHARED if foreign else english)


def _is_article(words: tuple[Word, ...], i: int) -> bool:
    """Return whether a word is an article of another language that is no part of a name.

    In a question without capitals it may always be one ("was die hard released").
    """
    if words[i].low not in _ARTICLES or not any(word.capital for word in words[1:]):
        return False
    if i > 0 and words[i - 1].low == "war":
        return True
    if i > 0 and words[i - 1].low in {"a", "à"}:  # "à la carte"
        return False
    following = words[i + 1 :]
    return bool(following) and not following[0].capital and following[0].low not in STOP


def _is_foreign_word(word: Word, *, opens: bool) -> bool:
    """Return whether a word is a small word of another language, or has an accent.

    A capital word that opens a question may be a name with an accent.
    """
    if word.low in _INTERROGATIVES or _ELISIONS.match(word.low):
        return True
    if opens and word.capital:
        return word.low in _SMALL_WORDS - _NAMES and word.text == word.low.capitalize()
    has_accent = not word.text.isascii() and _has_letter_beyond_ascii(word.low)
    return word.low in _SMALL_WORDS or (has_accent and word.low not in _ENGLISH_ACCENTS)


def _has_letter_beyond_ascii(text: str) -> bool:
    """Return whether a letter of a text is not in ASCII."""
    return any(char.isalpha() and not char.isascii() for char in text)
