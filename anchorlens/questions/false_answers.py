"""Split questions and assign a false answer to each (METHOD 3).

Within each split the false answers are a permutation of the gold answers, so that an answer's text alone does not predict its truth.
The share of the answer's words that occur in the question is matched within each question.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from anchorlens.constants import DISTRACTORS, SHARES
from anchorlens.errors import InputError, did_you_mean
from anchorlens.prompts.dataset import Dropped
from anchorlens.questions.answer_options import YES_NO, find_options, option_key
from anchorlens.questions.build_rows import drop
from anchorlens.questions.example import Example, normalise, pool_answers
from anchorlens.questions.lexicon import STOP

# Weight of rows without a false answer, and of ranks, against uneven blocks; larger weights keep few more rows.
_PARTNER_WEIGHT = 2.0


def split_questions(examples: Sequence[Example], shares: Mapping[str, float] = SHARES, *, seed: int = 0) -> dict[str, str]:
    """Assign questions to blocks, relation by relation; returns ``question_id`` -> block.

    Questions that share a gold alias, or whose answers are options of one question, form a component and share a block. Components
    are assigned from the largest down, to the block with most missing questions and false answers, ties broken by hashes.

    Args:
        examples: Questions.
        shares: Block -> share of the questions; shares sum to 1.
        seed: Random seed of the hashes.
    """
    names, n = tuple(shares), len(shares)
    strata: dict[str, list[tuple[int, tuple[float, ...], list[str]]]] = defaultdict(list)
    for stratum, questions in _components(examples):
        strata[stratum].append((-len(questions), _ranks(questions[0], seed, n), questions))
    out: dict[str, str] = {}
    fractions = np.array(list(shares.values()))
    wanted_so_far, filled = np.zeros(n), np.zeros(n)
    # Strata of large components come first, so that single questions of other strata even out the blocks.
    for _, components in sorted(strata.items(), key=lambda item: (min(c[0] for c in item[1]), item[0])):
        wanted, here, largest = fractions * -sum(size for size, _, _ in components), np.zeros(n), np.zeros(n)
        wanted_so_far += wanted
        for _, ranks, questions in sorted(components):
            size = len(questions)
            lacking = wanted - here + wanted_so_far - filled
            # Questions of one component share an answer: each needs a question of another component for its false answer.
            alone = (2 * largest - here).clip(0)
            more = (2 * np.maximum(largest, size) - here - size).clip(0)
            chance = size * np.array(ranks)
            into = int((lacking + _PARTNER_WEIGHT * (alone - more + chance)).argmax())
            here[into] += size
            filled[into] += size
            largest[into] = max(largest[into], size)
            out |= dict.fromkeys(questions, names[into])
    return out


def _ranks(question: str, seed: int, n: int) -> tuple[float, ...]:
    """Return ``n`` numbers in [0, 1), hashed from the seed and a question's id."""
    digest = hashlib.shake_256(f"{seed}:split:{question}".encode()).digest(6 * n)
    return tuple(int.from_bytes(digest[at : at + 6], "big") / 2**48 for at in range(0, 6 * n, 6))


def group_by_links(keys: Iterable[Iterable[Hashable]]) -> list[list[int]]:
    """Group items that share a key, directly or through others; returns lists of indices."""
    first: dict[Hashable, int] = {}
    links = [(first.setdefault(key, i), i) for i, own in enumerate(keys) for key in (("item", i), *own)]
    left, right = zip(*links, strict=True) if links else ((), ())
    n = max(right, default=-1) + 1
    _, labels = connected_components(coo_matrix((np.ones(len(links)), (left, right)), shape=(n, n)), directed=False)
    groups: dict[int, list[int]] = defaultdict(list)
    for i, label in enumerate(labels.tolist()):
        groups[label].append(i)
    return list(groups.values())


def _components(examples: Sequence[Example]) -> list[tuple[str, list[str]]]:
    """Return the components: most frequent relation or answer type of the rows, and sorted question ids."""
    keys = ((f"question:{row.question_id}", *(f"answer:{key}" for key in _link_keys(row))) for row in examples)
    out: list[tuple[str, list[str]]] = []
    for group in group_by_links(keys):
        kinds = Counter(" ".join(map(str, _kind(examples[i]))) for i in group)
        stratum = min(kinds, key=lambda kind: (-kinds[kind], kind))
        out.append((stratum, sorted({examples[i].question_id for i in group})))
    return out


def _kind(example: Example) -> tuple[str | int, ...]:
    """Return the relation of an example or, without a relation, answer type and word count of the answer."""
    if example.relation is not None:
        return ("relation", example.relation)
    return ("type", example.answer_type, len(normalise(example.answers[0]).split()))


def _link_keys(example: Example) -> set[str]:
    """Return the answers that link a row to others: its aliases, and the options of its question if its answer is one."""
    keys = {option_key(answer) for answer in example.answers}
    if keys & set(YES_NO):
        keys |= set(YES_NO)
    options = find_options(example.question)
    return keys | set(options) if options is not None and option_key(example.answers[0]) in options else keys


@dataclass(frozen=True)
class FalseAnswers:
    """False answers of one set of questions, by ``example_id``."""

    false: dict[str, str]
    source: dict[str, str]  # example_id of the row whose gold answer it is
    dropped: tuple[Dropped, ...]


def assign_false_answers(
    examples: Sequence[Example], split: Mapping[str, str], *, distractor: str = "matched", seed: int = 0
) -> FalseAnswers:
    """Assign to each row the gold answer of another row as its false answer, permuted within each split.

    * The same share of content words of the true and of the false answer occurs in the question.
    * If the question has two options, the false answer is the other option. Other rows whose true answer occurs in their question
      are dropped.
    * A false answer is never right: gold aliases are pooled by ``question_id``, and rows that share an alias exchange no answers.
    * A row without a false answer is dropped with its true answer, so that true and false strings stay the same multiset.

    ``distractor="matched"`` permutes within relation, or answer type and word count; ``"random"`` within the split.
    """
    if distractor not in DISTRACTORS:
        raise InputError(f"distractor={distractor!r}: unknown. {did_you_mean(distractor, DISTRACTORS)}", argument="distractor")
    pooled = pool_answers(examples)
    rows = [
        _Row.of(example, pooled[example.question_id], split[example.question_id], matched=distractor == "matched")
        for example in sorted(examples, key=lambda example: example.example_id)
    ]
    false: dict[str, str] = {}
    source: dict[str, str] = {}
    dropped: list[Dropped] = []
    for number, group in enumerate(_groups(rows)):
        for row, other in zip(group, _permute(group, [seed, number]), strict=True):
            if other is not row:
                false[row.example.example_id] = other.example.answers[0]
                source[row.example.example_id] = other.example.example_id
            else:
                dropped.append(row.drop())
    return FalseAnswers(false, source, tuple(dropped))


@dataclass(frozen=True)
class _Row:
    example: Example
    kind: tuple[object, ...]  # rows of one kind may exchange answers
    gold: str  # the true answer, normalised
    key: str  # the true answer as an option
    words: frozenset[str]  # content words of the true answer
    right: frozenset[str]  # every answer that is right for the question, normalised
    question: str  # normalised
    other: str | None  # the other option; None if the true answer is no option of the question
    share: float  # of the content words that occur in the question

    @classmethod
    def of(cls, example: Example, answers: Iterable[str], split: str, *, matched: bool) -> "_Row":
        gold, question = normalise(example.answers[0]), normalise(example.question)
        kind = _kind(example) if matched else ()
        key = option_key(gold)
        words = content_words(gold)
        share = len(words.intersection(question.split())) / max(len(words), 1)
        options = find_options(example.question) if share == 1 else None
        other = options[key == options[0]] if options is not None and key in options else None
        right = frozenset(normalise(answer) for answer in answers)
        return cls(example, (split, *kind), gold, key, words, right, question, other, share)

    def drop(self) -> Dropped:
        """Return the record of this row if no false answer is left for it."""
        if self.other is not None:
            detail = f"the other option, {self.other!r}, is the true answer of too few other rows of the {self.kind[0]} split"
            return drop(self.example, "answer_in_question", detail)
        if self.share == 1:
            return drop(self.example, "answer_in_question", "the true answer occurs in the question, a false one would not")
        kind = " ".join(map(str, self.kind))
        if self.share:
            detail = f"the question has {self.share:.0%} of the words of the true answer, and of too few others in: {kind}"
            return drop(self.example, "answer_word_in_question", detail)
        return drop(self.example, "no_distractor", f"no other answer in: {kind}")


def content_words(answer: str) -> frozenset[str]:
    """Return the words of an answer that a question may share: no stop words unless there are no others, and none of yes or no."""
    key = option_key(answer)
    return frozenset(() if key in YES_NO else set(key.split()) - STOP or key.split())


def _occurs(answer: str, text: str) -> bool:
    return f" {answer} " in f" {text} "


def _groups(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Group rows that can exchange answers, directly or through others: one kind, or kinds linked by options."""
    wanted = {(row.kind[0], row.other) for row in rows if row.other is not None}
    available = {(row.kind[0], row.key) for row in rows}
    keys = (
        (("kind", row.kind), *({(row.kind[0], row.key)} & wanted), *({(row.kind[0], row.other)} & wanted & available))
        for row in rows
    )
    return [[rows[i] for i in group] for group in group_by_links(keys)]


def _permute(group: Sequence[_Row], seed: Sequence[int]) -> list[_Row]:
    """Return a random permutation of allowed answers in which as few rows as possible keep their own answer."""
    # Assignment of least cost: 0 for an allowed false answer, 1 for the row's own answer, n + 1 for any other.
    n = len(group)
    order = np.random.default_rng([*seed, *b"given"]).permutation(n)
    shuffled = [group[i] for i in order]
    allowed = _allow_pairs(shuffled)
    free = np.setdiff1d(np.arange(n), _surplus(allowed))
    cost = np.where(allowed[np.ix_(free, free)], 0.0, n + 1.0)
    np.fill_diagonal(cost, 1.0)
    # The solver prefers the first columns of equal cost: shuffle them.
    columns = np.random.default_rng([*seed, *b"lent"]).permutation(len(free))
    _, chosen = linear_sum_assignment(cost[:, columns])
    sources = np.arange(n)
    sources[free] = free[columns[chosen]]
    out = dict(zip(order.tolist(), (shuffled[j] for j in sources), strict=True))
    return [out[i] for i in range(n)]


def _surplus(allowed: npt.NDArray[np.bool_]) -> list[int]:
    """Return rows that keep their own answer in every permutation, up to a choice between equivalent rows."""
    # Of c rows with the same k allowed answers at least c - k keep their own; including them is slow (8,000 rows, 60% "yes": 26 s).
    takes, gives = np.packbits(allowed, axis=1), np.packbits(np.ascontiguousarray(allowed.T), axis=1)
    alike: dict[bytes, list[int]] = defaultdict(list)
    for i in range(len(allowed)):
        alike[takes[i].tobytes() + gives[i].tobytes()].append(i)
    return [i for rows in alike.values() for i in rows[allowed[rows[0]].sum() :]]


def _allow_pairs(group: Sequence[_Row]) -> npt.NDArray[np.bool_]:
    """Return whether the true answer of row j may be the false answer of row i, [row row]."""
    by_kind = _places(enumerate(row.kind for row in group))
    by_gold = _places(enumerate(row.gold for row in group))
    by_word = _places((j, word) for j, row in enumerate(group) for word in row.words)
    n_words = np.array([max(len(row.words), 1) for row in group])
    by_right = _places((j, answer) for j, row in enumerate(group) for answer in row.right)
    golds_of, holding = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    golds, rights = _Phrases(by_gold), _Phrases(by_right)
    for row in group:
        golds_of[row.key].add(row.gold)
    for gold in by_gold:
        for answer in rights.inside(gold):
            holding[answer].add(gold)
    out = np.zeros((len(group), len(group)), dtype=np.bool_)
    for i, row in enumerate(group):
        if row.other is not None:
            # Both options with the article of the question, or both without.
            with_article = _occurs(row.gold, row.question)
            for gold in golds_of.get(row.other, ()):
                out[i, by_gold[gold]] = _occurs(gold, row.question) == with_article
        elif row.share < 1:
            out[i, by_kind[row.kind]] = True
            for gold in set().union(*map(golds.inside, row.right), *(holding.get(answer, ()) for answer in row.right)):
                out[i, by_gold[gold]] = False
        # Rows with a common alias may share other answers ("14" and "fourteen").
        for answer in row.right:
            out[i, by_right[answer]] = False
        n_shared = np.zeros(len(group))
        for word in by_word.keys() & row.question.split():
            n_shared[by_word[word]] += 1
        out[i] &= n_shared / n_words == row.share
    return out


_Key = TypeVar("_Key")


def _places(pairs: Iterable[tuple[int, _Key]]) -> dict[_Key, npt.NDArray[np.int64]]:
    places: dict[_Key, list[int]] = defaultdict(list)
    for i, key in pairs:
        places[key].append(i)
    return {key: np.array(indices) for key, indices in places.items()}


class _Phrases:
    """Index of phrases that finds those that occur in a text as whole words."""

    def __init__(self, phrases: Iterable[str]) -> None:
        self._lengths: dict[str, set[int]] = defaultdict(set)
        self._phrases = set(phrases)
        for phrase in self._phrases:
            words = phrase.split()
            self._lengths[words[0] if words else ""].add(len(words))

    def inside(self, text: str) -> set[str]:
        """Return the phrases that occur in a text."""
        words = text.split()
        candidates = (
            " ".join(words[i : i + n]) for i, word in enumerate(words) for n in self._lengths.get(word, ()) if i + n <= len(words)
        )
        return self._phrases.intersection(candidates)
