"""Labels and splits of probes that must not know anything: the placebos that a truth probe is compared with (METHOD 5)."""

import random

import numpy as np

from anchorlens.truth.labelled import TruthRows


def shuffled_labels(rows: TruthRows, seed: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Labels of the train and validation rows, shuffled; those of test rows stay.

    Inside each split, half of the true rows and half of the false rows get each label: what is left to learn then has nothing to do
    with truth. A free shuffle keeps some of it by accident (measured on a made set: AUC 0.29), with either sign.
    """
    labels = rows.labels
    for name in ("train", "validation"):
        for label in (0, 1):
            where = [i for i in rows.of(name) if rows.rows[i].answer.label == label]
            random.Random(f"{seed}:shuffled labels:{name}:{label}").shuffle(where)
            # The odd one out goes to the other side in the second group, so that both labels are equally frequent.
            labels[where] = [float(i < (len(where) + label) // 2) for i in range(len(where))]
    return labels


def half_splits(rows: TruthRows, seed: int) -> tuple[list[str], list[str]]:
    """Splits for two probes of disjoint training and validation questions: what is not a probe's own half is ``unused``."""
    halves: tuple[list[str], list[str]] = ([], [])
    for question, split in zip(rows.question_ids, rows.split, strict=True):
        mine = random.Random(f"{seed}:fold:{question}").random() < 0.5
        halves[0].append(split if split == "test" or mine else "unused")
        halves[1].append(split if split == "test" or not mine else "unused")
    return halves


__all__ = ["half_splits", "shuffled_labels"]
