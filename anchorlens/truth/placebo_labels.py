"""Labels and splits of probes that must not know anything, and of those that must not know the same (METHOD 5).

Whatever is drawn, is drawn for whole questions; parts are drawn for whole *components*: questions that share a gold alias, directly
or through others, so that no answer stands on both sides as a true one.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.cluster.hierarchy import DisjointSet

from anchorlens.questions.example import normalise
from anchorlens.truth.labelled import TruthRows


def shuffled_labels(rows: TruthRows, seed: int, draw: int = 0) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Labels of the train and validation rows, flipped for half of the questions; those of test rows stay.

    The rows of a question are flipped together, so that each keeps one of either label: labels shuffled over rows would teach the
    probe which *question* is asked, and a probe that reads the question is no null for one that does not. Exactly half of the
    questions are flipped, because fewer or more would leave some truth to learn, with either sign.

    Questions of one row (``generated`` answers) have nothing to swap: half of the true and half of the false ones get each label.

    Args:
        rows: All rows.
        seed: Of the sweep.
        draw: Which of several draws.
    """
    labels = rows.labels
    for name in ("train", "validation"):
        for kind, questions in sorted(_by_labels(rows, rows.of(name)).items()):
            rng = random.Random(f"{seed}:shuffled labels:{name}:{kind}:{draw}")
            rng.shuffle(questions)
            # Of an odd number either side may have one more, except where that would make one label the more frequent one.
            odd = rng.random() < 0.5 if len(kind) == 2 else kind == (1.0,)
            for members in questions[: (len(questions) + odd) // 2]:
                labels[members] = 1 - labels[members]
    return labels


def _by_labels(rows: TruthRows, where: Sequence[int]) -> dict[tuple[float, ...], list[list[int]]]:
    """The rows of each question, by the labels that the question has."""
    members: dict[str, list[int]] = defaultdict(list)
    for i in where:
        members[rows.question_ids[i]].append(i)
    found: dict[tuple[float, ...], list[list[int]]] = defaultdict(list)
    labels = rows.labels
    for question in sorted(members):
        found[tuple(sorted(set(labels[members[question]].tolist())))].append(members[question])
    return found


def half_splits(rows: TruthRows, seed: int) -> tuple[list[str], list[str]]:
    """Splits for two probes of disjoint training and validation questions: what is not a probe's own half is ``unused``."""
    halves: tuple[list[str], list[str]] = (list(rows.split), list(rows.split))
    for name in ("train", "validation"):
        sizes = [0, 0]
        # Large ones first: what comes last evens out.
        drawn = _components(rows, rows.of(name), random.Random(f"{seed}:fold:{name}"))
        for members in sorted(drawn, key=len, reverse=True):
            mine = int(sizes[1] < sizes[0])
            sizes[mine] += len(members)
            for i in members:
                halves[1 - mine][i] = "unused"
    return halves


def _components(rows: TruthRows, where: Iterable[int], rng: random.Random) -> list[list[int]]:
    """Rows whose questions hang together through gold aliases, in random order."""
    there, known = sorted(where), DisjointSet()
    for i in there:
        example = rows.rows[i].example
        names = [f"question:{example.question_id}", *(f"alias:{normalise(answer)}" for answer in example.answers)]
        for name in names:
            known.add(name)
            known.merge(names[0], name)
    found: dict[str, list[int]] = defaultdict(list)
    for i in there:
        found[known[f"question:{rows.question_ids[i]}"]].append(i)
    drawn = sorted(found.values(), key=lambda members: min(rows.question_ids[i] for i in members))
    rng.shuffle(drawn)
    return drawn


__all__ = ["half_splits", "shuffled_labels"]
