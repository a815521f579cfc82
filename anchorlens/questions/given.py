"""Splits of questions, and answers that are given to the model: true ones and false ones (METHOD 3).

Leak-free by construction: the questions are split first; then, inside each split, the false answers are a *permutation* of the gold
answers within relation, or within answer type and word count where there is no relation. So inside every split every string stands
equally often as true and as false, and the answer alone says nothing about its truth.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from anchorlens.errors import InputError, did_you_mean
from anchorlens.questions.example import Dropped, Example, normalise
from anchorlens.vocabulary import DISTRACTORS, FRACTIONS, SPLITS

# Far above any sum of random costs: an assignment keeps a row's own answer only where nothing else is allowed.
_LAST_RESORT = 1e6
_FORBIDDEN = 1e9


def split_questions(
    examples: Sequence[Example], *, fractions: tuple[float, float, float] = FRACTIONS, seed: int = 0
) -> dict[str, str]:
    """A split for each question, drawn from its hash.

    Questions that share a gold alias stay together (and those that share one with them): the split of all of them is that of the
    smallest ``question_id`` among them.

    Args:
        examples: Rows; several may have one question.
        fractions: Expected shares of train, validation and test.
        seed: Of the hash.

    Returns:
        ``question_id`` -> ``train``, ``validation`` or ``test``.

    Raises:
        InputError: The fractions are not positive or do not sum to 1.
    """
    if len(fractions) != 3 or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-6:
        raise InputError(f"fractions must be three positive numbers that sum to 1 (train, validation, test); got {fractions}.")
    ids = [example.question_id for example in examples]
    members: dict[str, list[int]] = defaultdict(list)
    for i, example in enumerate(examples):
        for key in {f"question:{ids[i]}", *(f"alias:{normalise(answer)}" for answer in example.answers)}:
            members[key].append(i)
    links = [(group[0], other) for group in members.values() for other in group[1:]]
    rows, columns = zip(*links, strict=True) if links else ((), ())
    graph = coo_matrix((np.ones(len(links)), (rows, columns)), shape=(len(ids), len(ids)))
    _, component = connected_components(graph, directed=False)
    smallest: dict[int, str] = {}
    for i, c in zip(ids, component.tolist(), strict=True):
        smallest[c] = min(i, smallest.get(c, i))
    return {i: _split_of(smallest[c], fractions, seed) for i, c in zip(ids, component.tolist(), strict=True)}


def _split_of(question: str, fractions: tuple[float, float, float], seed: int) -> str:
    digest = hashlib.sha256(f"{seed}:split:{question}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    return SPLITS[int(place >= fractions[0]) + int(place >= fractions[0] + fractions[1])]


@dataclass(frozen=True)
class GivenAnswers:
    """True and false answers for one set of questions.

    Attributes:
        false: ``example_id`` -> the false answer's text; rows without one are not in it.
        source: ``example_id`` -> ``example_id`` of the row whose gold answer it is.
        dropped: Rows for which no false answer was left.
    """

    false: dict[str, str]
    source: dict[str, str]
    dropped: tuple[Dropped, ...]


def given_answers(
    examples: Sequence[Example], split: Mapping[str, str], *, distractor: str = "matched", seed: int = 0
) -> GivenAnswers:
    """A false answer for each row: another row's gold answer, permuted inside each split.

    Rows for which the permutation leaves no wrong answer (one string fills most of a group, or the group has one row) are dropped
    as a whole, with their true answer, so that true and false strings stay the same multiset.

    Args:
        examples: Rows.
        split: ``question_id`` -> split, from :func:`split_questions`.
        distractor: ``matched``: within relation, or answer type and word count; ``random``: any row of the split. A random answer
            is often of the wrong type and betrays itself: a contrast, not a default.
        seed: Draws the permutation.

    Raises:
        InputError: No distractor rule goes by this name.
    """
    if distractor not in DISTRACTORS:
        raise InputError(f"Unknown distractor={distractor!r}. {did_you_mean(distractor, DISTRACTORS)}")
    groups: dict[tuple[object, ...], list[Example]] = defaultdict(list)
    for example in examples:
        kind = _kind(example) if distractor == "matched" else ()
        groups[(split[example.question_id], *kind)].append(example)
    false: dict[str, str] = {}
    source: dict[str, str] = {}
    dropped: list[Dropped] = []
    for key in sorted(groups, key=str):
        group = groups[key]
        for example, other in zip(group, _permuted(group, f"{seed}:{key}"), strict=True):
            if other is example:
                dropped.append(_drop(example, key))
            else:
                false[example.example_id], source[example.example_id] = other.answers[0], other.example_id
    return GivenAnswers(false, source, tuple(dropped))


def _kind(example: Example) -> tuple[object, ...]:
    if example.relation is not None:
        return ("relation", example.relation)
    return ("type", example.answer_type, len(normalise(example.answers[0]).split()))


def _drop(example: Example, key: tuple[object, ...]) -> Dropped:
    group = " ".join(map(str, key))
    return Dropped(
        example.example_id,
        example.dataset,
        example.question,
        example.answers[0],
        "no_distractor",
        f"no other answer in: {group}",
    )


def _permuted(group: Sequence[Example], label: str) -> list[Example]:
    """A random permutation in which as few rows as possible keep their own answer; no row gets an answer that is right for it."""
    rng = np.random.default_rng([*hashlib.sha256(label.encode()).digest()])
    cost = rng.random((len(group), len(group)))
    padded = [[f" {normalise(answer)} " for answer in example.answers] for example in group]
    for i, gold in enumerate(padded):
        for j, other in enumerate(padded):
            if i == j:
                cost[i, j] = _LAST_RESORT
            elif any(other[0] in alias or alias in other[0] for alias in gold):
                cost[i, j] = _FORBIDDEN
    _, chosen = linear_sum_assignment(cost)
    return [group[j] for j in chosen.tolist()]


__all__ = ["GivenAnswers", "given_answers", "split_questions"]
