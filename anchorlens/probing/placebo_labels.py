"""Make the labels and splits of the placebo probes (METHOD 5).

:func:`shuffle_labels` flips all labels of a question together. :func:`half_splits` keeps questions
that share a gold alias together.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from anchorlens.probing.truth_rows import TruthRows
from anchorlens.questions.example import normalise
from anchorlens.questions.false_answers import group_by_links


def shuffle_labels(
    rows: TruthRows, seed: int, draw: int = 0
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Flip the labels of a random half of the training and validation questions, all rows of a
    question together.

    A shuffle over rows would give both rows of some questions one label, which a probe can learn
    from the question. Flipping exactly half removes the correlation with truth. Questions with one
    row (``generated`` answers) are halved separately by label.
    """
    labels = rows.labels
    for name in ("train", "validation"):
        for kind, questions in sorted(_by_labels(rows, rows.of(name)).items()):
            rng = random.Random(f"{seed}:shuffled labels:{name}:{kind}:{draw}")
            rng.shuffle(questions)
            # Round an odd number randomly, except if that would make one label more frequent.
            odd = rng.random() < 0.5 if len(kind) == 2 else kind == (1.0,)
            for members in questions[: (len(questions) + odd) // 2]:
                labels[members] = 1 - labels[members]
    return labels


def _by_labels(rows: TruthRows, indices: Sequence[int]) -> dict[tuple[float, ...], list[list[int]]]:
    """Return labels of a question -> questions with these labels, each as a list of rows."""
    members: dict[str, list[int]] = defaultdict(list)
    for i in indices:
        members[rows.question_ids[i]].append(i)
    questions: dict[tuple[float, ...], list[list[int]]] = defaultdict(list)
    labels = rows.labels
    for question in sorted(members):
        rows_of_question = members[question]
        kinds = set(labels[rows_of_question].tolist())
        questions[tuple(sorted(kinds))].append(rows_of_question)
    return questions


def half_splits(rows: TruthRows, seed: int) -> tuple[list[str], list[str]]:
    """Return one split per probe, for two probes without a common training or validation question;
    other rows are ``unused``.
    """
    halves: tuple[list[str], list[str]] = (list(rows.split), list(rows.split))
    for name in ("train", "validation"):
        sizes = [0, 0]
        # Large components first, so that small ones even out the halves.
        drawn = _components(rows, rows.of(name), random.Random(f"{seed}:fold:{name}"))
        for members in sorted(drawn, key=len, reverse=True):
            half = int(sizes[1] < sizes[0])
            sizes[half] += len(members)
            for i in members:
                halves[1 - half][i] = "unused"
    return halves


def _components(rows: TruthRows, indices: Iterable[int], rng: random.Random) -> list[list[int]]:
    """Return rows grouped by questions that share gold aliases, in random order."""
    ordered = sorted(indices)
    examples = [rows.rows[i].example for i in ordered]
    keys: list[list[tuple[str, str]]] = []
    for row in examples:
        aliases = [("alias", normalise(answer)) for answer in row.answers]
        keys.append([("question", row.question_id), *aliases])
    drawn: list[tuple[str, list[int]]] = []
    for group in group_by_links(keys):
        first_question = min(examples[j].question_id for j in group)
        drawn.append((first_question, [ordered[j] for j in group]))
    drawn.sort()  # so that the order does not depend on that of the rows
    rng.shuffle(drawn)
    return [members for _, members in drawn]
