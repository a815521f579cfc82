"""Words of a question with their characters, and the word lists of the span rules."""

import re
import unicodedata
from dataclasses import dataclass

# Slashes, dashes and ellipses separate words like white space; hyphens and apostrophes inside a
# word do not.
_CHUNK = re.compile(r"[^\s—…/]+")
_POSSESSIVE = re.compile(r"(?<=\w)['’´`][sS]?$")
_NO_BREAK = re.compile(r"(?:['’´`][sS]?)?\s*&?\s*")
_KEPT = "$£€%#°"
_INITIAL_DOT = re.compile(r"\.\s*&?\s*")


def word_set(words: str) -> frozenset[str]:
    """Return the words of a string as a set."""
    return frozenset(words.split())


_ABBREVIATIONS = word_set(
    "dr mr mrs ms st jr sr vs v no mt ft lt col gen prof rev capt sgt dept u.s u.k"
)

WH = word_set("who whom whose what which when where why how whats whos whens wheres whichever")
AUX = word_set(
    """
    is are was were am be been being do does did has have had can could will would shall should may
    might must isn't aren't wasn't weren't don't doesn't didn't won't isnt arent wasnt doesnt didnt
    """
)
BE = word_set("is are was were be been")
DO_OR_MODAL = word_set(
    "do does did can could will would shall should may might must didn't doesn't don't"
)
DETERMINERS = word_set("the a an this that these those my your his her its our their")
PREPOSITIONS = word_set(
    """
    of in on at to from by with for about against between into through during before after above
    below under over near since until till alongside including besides within without among amongst
    across along around behind beneath beside beyond despite except inside outside onto off out up
    down per than via upon towards toward according following regarding throughout
    """
)
STOP = (
    WH
    | AUX
    | DETERMINERS
    | PREPOSITIONS
    | word_set(
        """
        and or but nor so if as not no nor i you he she it we they me him them who's what's itself
        himself herself themselves there here then also too very just only both either neither each
        every all any some such same other another more most less least own ever never always often
        usually currently now today ago again once still yet while although though because whether
        however even much many few several like well best-known last next whom one ones please
        exactly approximately respectively else first-ever get gets got let's lets s t d ll re ve q
        ok vs last previously originally formerly actually generally later earlier nowadays
        considered
        """
    )
)

# Words too weak to be a subject on their own.
WEAK = word_set(
    """
    year years day days date month week time times name names term word words type types kind kinds
    sort sorts part parts thing things people person man woman way place called known named
    following original real main first second third new old different character role number amount
    list example group title mean one two three four five six seven eight nine ten hundred thousand
    million
    """
)
MONTHS = word_set(
    "january february march april may june july august september october november december"
)
DAYS = word_set("monday tuesday wednesday thursday friday saturday sunday")
TIME_WORDS = MONTHS | DAYS

# Adjectives of origin ("which British composer") belong to the property; they are a subject only if
# nothing else is left.
_DEMONYM = re.compile(
    r"(?:\w+(?:ish|ese|ian|ean|ican|wegian))s?$"
    r"|^(?:greek|latin|german|dutch|french|welsh|swiss|czech|thai|turk)s?$"
)

# Imperatives that open a question without a wh-word.
IMPERATIVES = word_set(
    "name list give describe identify define state complete spell tell explain find"
)

# Past forms and third persons of verbs that are common in questions; lower-case words in "-ed" also
# count as verbs.
VERBS = word_set(
    """
    written sung seen eaten frozen woven forgotten undergone playing coming leaving releasing going
    getting making taking hosting singing starring doing having using winning directing explains
    stops starts changes acts indicates hires rescues opens closes splits wants loves needs asks
    turns brings brought helps tries moves lasts competes involves wrote writes won wins sang sings
    sung played plays starred stars directed directs made makes became becomes began begins begun
    came comes went goes gone took takes taken gave gives given got found finds founded founds led
    leads said says told tells knew knows known thought thinks saw sees seen left leaves held holds
    kept keeps stood stands ran runs lost loses met meets set sets wore wears worn drew draws drawn
    built builds bought buys sold sells sent sends spent spends shot shoots hit hits beat beats
    fought fights caught catches taught teaches rode rides rose rises fell falls fallen flew flies
    flown grew grows grown drove drives driven broke breaks broken spoke speaks spoken chose chooses
    chosen stole steals stolen swam swims dug digs hung hangs hid hides paid pays put puts read
    reads lay lies laid lays sat sits slept sleeps struck strikes swore sworn tore tears torn threw
    throws thrown woke wakes bit bites born died dies lived lives created creates invented invents
    discovered discovers includes contains features means refers represents produces produced
    happens happened performs performed composes composed translates consists consist belongs forms
    follows serves originates located situated feeds affects causes controls connects borders flows
    hosts hosted presents voiced voices narrated appears appeared married marries succeeded succeeds
    replaced replaces governs rules ruled owns portrays portrayed derives describes concerns decides
    shows shown has said meets remains stays gets pumps carries covers crashes shares co-wrote
    co-founded co-starred forbade forbids bore borne bred breeds bound bet cut shut shone sank sunk
    shrank sprang stuck stung swung swept swore swung withdrew understood underwent undertook
    oversaw overcame outlawed
    """
)
# Bare verb forms, which count as verbs only after "do" and modals.
BASE_VERBS = word_set(
    """
    come go begin start end die live play sing write win take get make become give find see say tell
    know think mean leave hold keep stand run lose meet wear draw build buy sell send spend shoot
    hit beat fight catch teach ride rise fall fly grow drive break speak choose steal swim dig hang
    hide pay put read lie lay sit sleep strike throw wake bite use happen appear occur originate
    move join open close release air premiere invent discover found create form refer represent
    produce perform compose derive describe call compete star attend marry serve work belong act
    host lead follow finish stop turn show have do be sink land graduate retire debut score share
    collaborate return receive control cause change help eat drink enter launch invade declare gain
    sign establish adopt publish ban introduce arrive reach pass elect separate surrender conquer
    settle arrest develop apply resign kill burn crash pop bring differ function exist rank sponsor
    border flow film spell sail tend vote earn want need love hate contain include ask answer save
    travel visit cook cost weigh measure study fill treat prevent support attack defend approve
    celebrate protect arise mate hatch breed hunt store digest absorb breathe bloom ripen smell
    taste believe hope plan try capture defeat remain stay abolish refuse grant allow legalize
    legalise migrate
    """
)
# Adjectives of nations and regions; is_demonym recognises others by their endings, including a
# surname such as "Terzian".
NATIONS = word_set(
    """
    british english scottish welsh irish american canadian mexican brazilian argentine argentinian
    chilean peruvian colombian cuban jamaican french german austrian swiss italian spanish
    portuguese greek turkish dutch belgian danish swedish norwegian finnish icelandic polish czech
    slovak hungarian romanian bulgarian serbian croatian ukrainian russian soviet estonian latvian
    lithuanian georgian armenian israeli iranian persian iraqi egyptian moroccan algerian tunisian
    nigerian ghanaian kenyan ethiopian african indian pakistani bangladeshi chinese japanese korean
    taiwanese thai vietnamese indonesian malaysian filipino australian european asian arab latin
    roman tibetan afghan kurdish mongolian jewish christian muslim sumerian
    """
)
_DIRECTIONS = word_set("north south east west northern southern eastern western central")
# Words in "-ed" that are not verbs.
_ED_NOUNS = word_set(
    "united speed seed breed weed need deed shed sled hundred sacred limited feed naked kindred"
    " bleed greed reed"
)

# Words in "-ly" that are not adverbs.
_LY_NOUNS = word_set(
    "family assembly butterfly dragonfly monopoly anomaly supply reply lily jelly belly italy july"
    " emily sicily firefly"
)
_CONTRACTION = re.compile(
    r"(?:i|you|he|she|it|we|they|that|there|who|what|let)'(?:s|m|ll|ve|re|d)|\w+n't"
)


@dataclass(frozen=True, kw_only=True)
class Word:
    """Word ``question[start:end]`` of a question, without its possessive ending."""

    start: int
    end: int
    text: str
    breaks: bool  # follows punctuation that ends a phrase
    owned: bool  # follows a word with a possessive ending
    opens: bool  # first word of a sentence
    low: str  # lower case, with straight apostrophes
    capital: bool  # has an upper-case letter
    number: bool  # begins with a digit


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Move ``start`` and ``end`` inwards over punctuation and symbols, except symbols such as those
    of currencies.
    """

    def is_part(char: str) -> bool:
        return char in _KEPT or unicodedata.category(char)[0] not in "PSZC"

    while start < end and not is_part(text[start]):
        start += 1
    while start < end and not is_part(text[end - 1]):
        end -= 1
    return start, end


def _breaks(gap: str, before: str) -> bool:
    """Return True if the text between two words ends a phrase: punctuation except possessives,
    ampersands and dots of initials.
    """
    if _NO_BREAK.fullmatch(gap):
        return False
    short = (
        len(before) == 1
        or before.lower() in _ABBREVIATIONS
        or re.fullmatch(r"(?:\w\.)+\w", before) is not None
    )
    return not (short and _INITIAL_DOT.fullmatch(gap))


def split_words(text: str) -> tuple[Word, ...]:
    """Return the words of a question in order.

    >>> [word.text for word in split_words("Who is Dr Jekyll's lawyer, 'Mr. Utterson'?")]
    ['Who', 'is', 'Dr', 'Jekyll', 'lawyer', 'Mr', 'Utterson']
    """
    words: list[Word] = []
    last_end = 0
    for match in _CHUNK.finditer(text):
        start, end = _trim(text, *match.span())
        if not any(char.isalnum() for char in text[start:end]):
            continue
        owner = _POSSESSIVE.search(text[start:end])
        if owner is not None and owner.start() > 0:
            end = start + owner.start()
        gap = text[last_end:start]
        breaks = bool(words) and _breaks(gap, words[-1].text)
        opens = not words or (breaks and any(char in gap for char in ".?!"))
        owned = bool(words) and gap[:1] in {"'", "’", "´", "`"}
        word = text[start:end]
        capital = any(char.isupper() for char in word)
        words.append(
            Word(
                start=start,
                end=end,
                text=word,
                breaks=breaks,
                owned=owned,
                opens=opens,
                low=word.lower().replace("’", "'"),
                capital=capital,
                number=word[0].isdigit(),
            )
        )
        last_end = end
    return tuple(words)


def verb_flags(
    words: tuple[Word, ...], cased: bool, after_do: tuple[bool, ...]
) -> tuple[bool, ...]:
    """Return for each word whether it counts as a verb."""
    flags: list[bool] = []
    for i, (word, bare) in enumerate(zip(words, after_do, strict=True)):
        low = word.low
        before = "" if i == 0 else words[i - 1].low
        ending = low.endswith("ed") and len(low) > 3 and low not in _ED_NOUNS and "-" not in low
        # "which animated film", "a 2009 animated film"
        qualifies = (
            ending
            and ((before == "which" and i < 3) or (i > 0 and words[i - 1].number))
            and _noun_follows(words, i)
        )
        going = low.endswith("ing") and len(low) > 4 and before in BE
        # "when does star trek end": the word after "does" is the subject
        infinitive = low in BASE_VERBS and (
            (bare and before not in {"do", "does", "did"}) or before == "to"
        )
        # "lord of the flies", "the written word", a capital inside a sentence
        noun = (before in {"the", "a", "an"} and not word.breaks) or (
            cased and word.capital and not word.opens
        )
        flags.append(not noun and not qualifies and (ending or going or infinitive or low in VERBS))
    return tuple(flags)


def _noun_follows(words: tuple[Word, ...], index: int) -> bool:
    """Return True if the next word is a lower-case word of the same phrase, neither number nor
    stop-word.
    """
    if index + 1 >= len(words):
        return False
    after = words[index + 1]
    return not (after.breaks or after.capital or after.number) and after.low not in STOP


def small_flags(words: tuple[Word, ...], cased: bool) -> tuple[bool, ...]:
    """Return for each word whether it is a stop-word, contraction or adverb in "-ly", and no
    acronym ("US", "IT").
    """
    flags = []
    for word in words:
        low = word.low
        acronym = cased and len(word.text) > 1 and word.text.isupper()
        adverb = low.endswith("ly") and len(low) > 4 and low not in _LY_NOUNS
        flags.append(
            not acronym and (low in STOP or adverb or _CONTRACTION.fullmatch(low) is not None)
        )
    return tuple(flags)


def is_demonym(word: Word) -> bool:
    """Return True for an adjective of origin ("British", "Italian-American") or a direction
    ("South" in "South Korean").
    """
    if word.low in _DIRECTIONS:
        return word.capital
    if not word.capital:
        return False
    parts = re.split(r"[-–]", word.low)
    return all(part in NATIONS or _DEMONYM.search(part) for part in parts)


def is_year(word: Word) -> bool:
    """Return True for a number from 1000 to 2999."""
    return re.fullmatch(r"[12]\d\d\d", word.text) is not None
