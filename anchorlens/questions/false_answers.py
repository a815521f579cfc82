"""Split questions and assign a false answer to each (METHOD 3).

Within each split the false answers are a permutation of the gold answers, so that an answer's text
alone does not predict its truth. The share of the answer's words that occur in the question is
matched within each question.
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
from anchorlens.questions.example import Example, normalise, pool_answers
from anchorlens.questions.spans.lexicon import STOP

# Weight of rows without a false answer, and of ranks, against uneven blocks; larger weights keep
# few more rows.
_PARTNER_WEIGHT = 2.0


def split_questions(
    examples: Sequence[Example], shares: Mapping[str, float] = SHARES, *, seed: int = 0
) -> dict[str, str]:
    """Assign questions to blocks, relation by relation, and return ``question_id`` -> block.

    Questions that share a gold alias, or whose answers are options of one question, form a
    component and share a block. Components are assigned from the largest down, to the block with
    most missing questions and false answers, ties broken by hashes.

    Args:
        examples: Questions.
        shares: Block -> share of the questions; shares sum to 1.
        seed: Random seed of the hashes.
    """
    names = tuple(shares)
    n = len(shares)
    strata: dict[str, list[tuple[int, tuple[float, ...], list[str]]]] = defaultdict(list)
    for stratum, questions in _components(examples):
        strata[stratum].append((-len(questions), _ranks(questions[0], seed, n), questions))
    out: dict[str, str] = {}
    fractions = np.array(list(shares.values()))
    wanted_so_far = np.zeros(n)
    filled = np.zeros(n)

    def order(stratum: str) -> tuple[int, str]:
        negative_size, _, _ = min(strata[stratum])
        return negative_size, stratum

    # Strata of large components come first, so that single questions of other strata even out the
    # blocks.
    for stratum in sorted(strata, key=order):
        components = sorted(strata[stratum])
        n_questions = sum(len(questions) for _, _, questions in components)
        wanted = fractions * n_questions
        here = np.zeros(n)
        largest = np.zeros(n)
        wanted_so_far += wanted
        for _, ranks, questions in components:
            size = len(questions)
            lacking = wanted - here + wanted_so_far - filled
            # Questions of one component share an answer: each needs a question of another component
            # for its false answer.
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
    ranks: list[float] = []
    for i in range(n):
        six_bytes = digest[6 * i : 6 * i + 6]
        ranks.append(int.from_bytes(six_bytes, "big") / 2**48)
    return tuple(ranks)


def group_by_links(keys: Iterable[Iterable[Hashable]]) -> list[list[int]]:
    """Group items that share a key, directly or through others, and return lists of indices."""
    first: dict[Hashable, int] = {}
    left: list[int] = []
    right: list[int] = []
    n = 0
    for i, own in enumerate(keys):
        n = i + 1
        # An item without keys is a group of its own.
        for key in (("item", i), *own):
            left.append(first.setdefault(key, i))
            right.append(i)
    _, labels = connected_components(
        coo_matrix((np.ones(len(left)), (left, right)), shape=(n, n)), directed=False
    )
    groups: dict[int, list[int]] = defaultdict(list)
    for i, label in enumerate(labels.tolist()):
        groups[label].append(i)
    return list(groups.values())


def _components(examples: Sequence[Example]) -> list[tuple[str, list[str]]]:
    """Return the components: most frequent relation or answer type of the rows, and sorted question
    ids.
    """
    keys: list[list[tuple[str, str]]] = []
    for row in examples:
        links = [("answer", key) for key in _link_keys(row)]
        keys.append([("question", row.question_id), *links])
    out: list[tuple[str, list[str]]] = []
    for group in group_by_links(keys):
        rows = [examples[i] for i in group]
        kinds = Counter(" ".join(map(str, _kind(row))) for row in rows)
        stratum = min(kinds, key=lambda kind: (-kinds[kind], kind))
        out.append((stratum, sorted({row.question_id for row in rows})))
    return out


def _kind(example: Example) -> tuple[str | int, ...]:
    """Return the relation of an example or, without a relation, answer type and word count of the
    answer.
    """
    if example.relation is not None:
        return ("relation", example.relation)
    return ("type", example.answer_type, len(normalise(example.answers[0]).split()))


def _link_keys(example: Example) -> set[str]:
    """Return the answers that link a row to others: its aliases, and the options of its question if
    its answer is one.
    """
    keys = {option_key(answer) for answer in example.answers}
    if keys & set(YES_NO):
        keys |= set(YES_NO)
    options = find_options(example.question)
    if options is not None and option_key(example.answers[0]) in options:
        keys |= set(options)
    return keys


@dataclass(frozen=True)
class FalseAnswers:
    """False answers of one set of questions, by ``example_id``."""

    false: dict[str, str]
    source: dict[str, str]  # example_id of the row whose gold answer it is
    dropped: tuple[Dropped, ...]


def assign_false_answers(
    examples: Sequence[Example],
    split: Mapping[str, str],
    *,
    distractor: str = "matched",
    seed: int = 0,
) -> FalseAnswers:
    """Assign to each row the gold answer of another row as its false answer, permuted within each
    split.

    * The same share of content words of the true and of the false answer occurs in the question.
    * If the question has two options, the false answer is the other option. Other rows whose true
      answer occurs in their question are dropped.
    * A false answer is never right: gold aliases are pooled by ``question_id``, and rows that share
      an alias exchange no answers.
    * A row without a false answer is dropped with its true answer, so that true and false strings
      stay the same multiset.

    ``distractor="matched"`` permutes within relation, or answer type and word count; ``"random"``
    within the split.
    """
    if distractor not in DISTRACTORS:
        raise InputError(
            f"distractor={distractor!r}: unknown. {did_you_mean(distractor, DISTRACTORS)}",
            argument="distractor",
        )
    pooled = pool_answers(examples)
    rows: list[_Row] = []
    for example in sorted(examples, key=lambda example: example.example_id):
        block = split[example.question_id]
        answers = pooled[example.question_id]
        rows.append(_Row.of(example, answers, block, matched=distractor == "matched"))
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


@dataclass(frozen=True, kw_only=True)
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
        """Describe a question of a split; ``answers`` are all that are right for it."""
        gold = normalise(example.answers[0])
        question = normalise(example.question)
        key = option_key(gold)
        words = content_words(gold)
        share = len(words.intersection(question.split())) / max(len(words), 1)
        options = find_options(example.question) if share == 1 else None
        other = None
        if options is not None and key in options:
            first, second = options
            other = second if key == first else first
        return cls(
            example=example,
            kind=(split, *_kind(example)) if matched else (split,),
            gold=gold,
            key=key,
            words=words,
            right=frozenset(map(normalise, answers)),
            question=question,
            other=other,
            share=share,
        )

    def drop(self) -> Dropped:
        """Return the record of this row if no false answer is left for it."""
        if self.other is not None:
            detail = (
                f"the other option, {self.other!r}, is the true answer of too few other rows of the"
                f" {self.kind[0]} split"
            )
            return self.example.drop("answer_in_question", detail)
        if self.share == 1:
            return self.example.drop(
                "answer_in_question",
                "the true answer occurs in the question, a false one would not",
            )
        kind = " ".join(map(str, self.kind))
        if self.share:
            detail = (
                f"the question has {self.share:.0%} of the words of the true answer, and of too few"
                f" others in: {kind}"
            )
            return self.example.drop("answer_word_in_question", detail)
        return self.example.drop("no_distractor", f"no other answer in: {kind}")


def content_words(answer: str) -> frozenset[str]:
    """Return the words of an answer that a question may share: no stop words unless there are no
    others, and none of yes or no.
    """
    key = option_key(answer)
    if key in YES_NO:
        return frozenset()
    words = frozenset(key.split())
    return words - STOP or words


def _occurs(answer: str, text: str) -> bool:
    return f" {answer} " in f" {text} "


def _groups(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Group rows that can exchange answers, directly or through others: one kind, or kinds linked
    by options.
    """
    # (block, option): answers that a row needs, because they are the other option of its question.
    wanted = {(row.kind[0], row.other) for row in rows if row.other is not None}
    available = {(row.kind[0], row.key) for row in rows}
    keys: list[list[Hashable]] = []
    for row in rows:
        links: list[Hashable] = [("kind", row.kind)]
        own = (row.kind[0], row.key)
        needed = (row.kind[0], row.other)
        if own in wanted:
            links.append(own)
        if needed in wanted & available:
            links.append(needed)
        keys.append(links)
    groups: list[list[_Row]] = []
    for indices in group_by_links(keys):
        group = [rows[i] for i in indices]
        groups.append(group)
    return groups


def _permute(group: Sequence[_Row], seed: Sequence[int]) -> list[_Row]:
    """Return a random permutation of allowed answers in which as few rows as possible keep their
    own answer.
    """
    # Assignment of least cost: 0 for an allowed false answer, 1 for the row's own answer, n + 1 for
    # any other.
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
    """Return rows that keep their own answer in every permutation, up to a choice between
    equivalent rows.
    """
    # Of c rows with the same k allowed answers at least c - k keep their own; including them is
    # slow (8,000 rows, 60% "yes": 26 s).
    takes = np.packbits(allowed, axis=1)
    gives = np.packbits(np.ascontiguousarray(allowed.T), axis=1)
    alike: dict[bytes, list[int]] = defaultdict(list)
    for i in range(len(allowed)):
        alike[takes[i].tobytes() + gives[i].tobytes()].append(i)
    surplus: list[int] = []
    for rows in alike.values():
        n_allowed = int(allowed[rows[0]].sum())
        surplus += rows[n_allowed:]
    return surplus


def _allow_pairs(group: Sequence[_Row]) -> npt.NDArray[np.bool_]:
    """Return whether the true answer of row j may be the false answer of row i, [row row]."""
    by_kind = _places_of_items((row.kind,) for row in group)
    by_gold = _places_of_items((row.gold,) for row in group)
    by_word = _places_of_items(row.words for row in group)
    n_words = np.array([max(len(row.words), 1) for row in group])
    by_right = _places_of_items(row.right for row in group)
    golds_of: dict[str, set[str]] = defaultdict(set)  # option -> true answers with this key
    for row in group:
        golds_of[row.key].add(row.gold)
    golds = _Phrases(by_gold)
    rights = _Phrases(by_right)
    holding: dict[str, set[str]] = defaultdict(set)  # right answer -> true answers that contain it
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
            for answer in row.right:
                # A part of a right answer is no false answer, nor is a longer form of it.
                for gold in golds.inside(answer) | holding.get(answer, set()):
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


def _places_of_items(groups: Iterable[Iterable[_Key]]) -> dict[_Key, npt.NDArray[np.int64]]:
    """Return item -> indices of the groups that contain it."""
    places: dict[_Key, list[int]] = defaultdict(list)
    for i, items in enumerate(groups):
        for item in items:
            places[item].append(i)
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
        found: set[str] = set()
        for i, word in enumerate(words):
            for n in self._lengths.get(word, ()):
                candidate = " ".join(words[i : i + n])
                if candidate in self._phrases:
                    found.add(candidate)
        return found
