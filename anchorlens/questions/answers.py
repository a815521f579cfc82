"""Type of the answer of a question, by which donors and false answers are matched if there is no
relation.
"""

import re

from anchorlens.questions.example import normalise

ANSWER_TYPES = ("year", "number", "person", "place", "yes/no", "other")

_YEAR = re.compile(r"\b(?:1\d{3}|20\d{2})\b|\b\d{2,4}0s\b|\b\d{1,4}\s?(?:bc|ad|bce|ce)\b")
_MONTH = re.compile(
    r"\b(?:january|february|march|april|may|june|july|august|september|october|november|december"
    r"|monday|tuesday|wednesday|thursday|friday|saturday|sunday|century)\b"
)
_NUMBER_WORD = re.compile(
    r"\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty"
    r"|thirty|fou?rty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|million|billion|dozen"
    r"|once|twice|none|half)\b"
)
_SHAPE_OF_YEAR = re.compile(r"(?:in )?(?:1\d{3}|20\d{2})")
_SHAPE_OF_NUMBER = re.compile(r"[\d\s]*\d[\d\s]*(?:st|nd|rd|th)?")
_ASKS_YEAR = re.compile(
    r"\bwhen(?:'?s)?\b|\b(?:what|which) (?:year|date|decade|century|month)\b"
    r"|\byear\b.{0,20}\bwhat\b"
)
_ASKS_NUMBER = re.compile(
    r"\bhow (?:many|much|old|long|tall|far|high|often|deep|big|large)\b"
    r"|\bwhat (?:number|percentage)\b"
)
_PLACES = (
    "city|country|state|town|capital|county|continent|village|region|province|island|nation|place"
    "|district|borough|street|river|mountain|ocean|sea|lake|planet|suburb|county town"
)
_ASKS_PLACE = re.compile(
    rf"^(?:\w+ )?where(?:'?s)?\b|\bwhere (?:is|was|are|were|do|does|did|will|would|can)\b"
    rf"|\bwhere\W*$|\b(?:what|which)(?: [\w'-]+){{0,3}} (?:{_PLACES})\b"
    rf"|\b(?:what|which)(?:'s| is| was)? the (?:[\w'-]+ ){{0,2}}(?:{_PLACES}) of\b"
)
_ASKS_PERSON = re.compile(
    r"^(?:(?:in|on|at|by|during|after|before|of|for|from|with|according)\b.*?, |\w+,? )?"
    r"who(?:m|'?s)?\b|\bwhom\b"
    r"|\bwho (?:is|was|are|were|did|has|wrote|played|won)\b|\b(?:by|for) who\b"
)
_ASKED_PERSON = re.compile(
    r"\b(?:what|which)(?: [\w'-]+){0,3} (?:actor|actress|singer|author|writer|composer|poet"
    r"|president|king|queen|artist|painter|scientist|director|footballer|player|politician"
    r"|musician|philosopher|comedian|explorer|architect|emperor|inventor|golfer|chemist"
    r"|physicist|prime minister|pope|saint|man|woman)\b"
)
# Characters in which the interrogative is searched; a very long question continues with context.
_HEAD = 400


def _shape(answer: str) -> str:
    """Return the type that an answer shows by itself: ``yes/no``, ``year``, ``number``, else
    ``other``.
    """
    plain = normalise(answer)
    words = plain.split()
    if plain in {"yes", "no"}:
        return "yes/no"
    if _SHAPE_OF_YEAR.fullmatch(plain):
        return "year"
    if _SHAPE_OF_NUMBER.fullmatch(plain) or (
        0 < len(words) <= 3 and all(map(_NUMBER_WORD.fullmatch, words))
    ):
        return "number"
    return "other"


def answer_type(answer: str, question: str) -> str:
    """Return the type of an answer, one of ``ANSWER_TYPES``.

    Order of precedence: "yes" and "no", the question's words (year or number only if the answer
    confirms it), the answer's shape.

    >>> answer_type("Rome", "in which Italian city is the Trevi Fountain")
    'place'
    >>> answer_type("1912", "when did the Titanic sink?")
    'year'
    """
    shape = _shape(answer)
    if shape == "yes/no":
        return shape
    asked = question[:_HEAD].lower().replace("’", "'").strip(" \"'")
    plain = answer.lower()
    if _ASKS_NUMBER.search(asked):
        is_numeric = any(map(str.isdigit, plain)) or _NUMBER_WORD.search(plain) is not None
        return "number" if is_numeric else "other"
    if _ASKS_YEAR.search(asked) and (_ASKS_YEAR.match(asked) or not _ASKS_PERSON.match(asked)):
        return "year" if _YEAR.search(plain) or _MONTH.search(plain) else "other"
    if shape != "other":
        return shape
    if _ASKS_PERSON.match(asked):
        return "person"
    if _ASKS_PLACE.search(asked):
        return "place"
    if _ASKED_PERSON.search(asked) or _ASKS_PERSON.search(asked):
        return "person"
    return "other"
