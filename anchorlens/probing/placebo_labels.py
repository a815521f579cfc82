"""Labels and splits of the placebo probes (METHOD 5).

Labels are drawn for whole questions, halves for whole components of questions that share a gold alias.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from anchorlens.probing.truth_rows import TruthRows
from anchorlens.questions.example import normalise
from anchorlens.questions.false_answers import group_by_links


def shuffle_labels(rows: TruthRows, seed: int, draw: int = 0) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return the labels with those of half of the train and validation questions flipped, all rows of a question together.

    Shuffled over rows they would teach the probe which *question* is asked; flipped for another share, some truth. Of questions with
    one row (``generated`` answers) half of the true and half of the false ones are flipped.
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
    there = sorted(where)
    examples = [rows.rows[i].example for i in there]
    keys = ((f"question:{one.question_id}", *(f"alias:{normalise(answer)}" for answer in one.answers)) for one in examples)
    drawn = [[there[j] for j in group] for group in group_by_links(keys)]
    drawn.sort(key=lambda members: min(rows.question_ids[i] for i in members))
    rng.shuffle(drawn)
    return drawn
