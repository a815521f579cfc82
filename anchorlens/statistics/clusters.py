"""Clusters: the units that a bootstrap draws and a sign-flip test flips (METHOD 6).

Questions of one relation or template have similar levels, and questions that share a donor have
similar effects. Intervals that draw questions one by one are then too short. So whole clusters are
drawn, where the data name at least ten and none of them has more than half of the questions: its
level would decide the mean, and resamples would not show how far it may lie.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from anchorlens.constants import LARGEST_CLUSTER, MIN_CLUSTERS

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Cluster of every question of a sweep.

    Attributes:
        of_question: Question id -> number of the cluster that is drawn.
        n_named: Number of clusters that the data name (relations, templates); 0 without any.
        is_by_question: Whether each question is a cluster of its own: the data name none, or fewer
            than ten, or one with more than half of the questions.
        is_by_donor: Whether questions that share a donor are drawn together.
        per_donor: Number of questions for each donor, where questions share donors but are not
            drawn together; 0 otherwise.
        n_largest: Number of questions of the largest named cluster, where it has more than half of
            all; 0 otherwise.
    """

    of_question: Mapping[str, int]
    n_named: int
    is_by_question: bool
    is_by_donor: bool = False
    per_donor: float = 0.0
    n_largest: int = 0

    @property
    def n_drawn(self) -> int:
        """Number of clusters that are drawn."""
        return len(set(self.of_question.values()))

    def of(self, question_ids: npt.ArrayLike) -> npt.NDArray[np.intp]:
        """Return the number of the cluster of each row, [row]."""
        ids = np.asarray(question_ids, dtype=object)
        return np.array([self.of_question[str(one)] for one in ids], dtype=np.intp)


def find_clusters(samples: pd.DataFrame) -> Clusters:
    """Find the clusters of a sweep.

    Rows of one question are always in one cluster. Rows with the same value of ``cluster`` are too,
    if the data have at least ten values, none of them in more than half of the questions. Rows that
    share a donor are joined, unless fewer than ten clusters would be left.

    Args:
        samples: Columns ``question_id cluster donor_id control``; an empty ``cluster`` is unknown.
    """
    rows = samples[["question_id", "cluster", "donor_id"]].drop_duplicates()
    question = rows["question_id"].astype(str).to_numpy()
    named = rows["cluster"].fillna("").astype(str).to_numpy()
    donor = rows["donor_id"].fillna("").astype(str).to_numpy()
    n_named = len(set(named) - {""})
    n_largest = _count_largest(question, named)
    is_by_question = n_named < MIN_CLUSTERS or n_largest > 0
    by = [] if is_by_question else [named]
    shared = _find_shared_donors(question, donor)
    joined = _join(question, *by, shared)
    alone = _join(question, *by)
    n_alone = len(set(alone.values()))
    n_joined = len(set(joined.values()))
    is_shared = n_joined < n_alone
    is_by_donor = is_shared and n_joined >= MIN_CLUSTERS
    return Clusters(
        of_question=joined if is_by_donor else alone,
        n_named=n_named,
        is_by_question=is_by_question,
        is_by_donor=is_by_donor,
        per_donor=_questions_per_donor(question, shared) if is_shared and not is_by_donor else 0.0,
        n_largest=n_largest,
    )


def _count_largest(question: npt.NDArray[np.object_], cluster: npt.NDArray[np.object_]) -> int:
    """Return the number of questions of the largest named cluster, if it has more than
    ``LARGEST_CLUSTER`` of all; else 0.

    Measured without an effect, with the levels of 10 to 40 relations: swaps claim something in 2 to
    4 % if one relation has half of the questions, in 4 to 8 % with three quarters and in 10 to 16 %
    with nine tenths.
    """
    known = pd.DataFrame({"question": question, "cluster": cluster}).drop_duplicates()
    sizes = known.loc[known["cluster"] != "", "cluster"].value_counts()
    n_largest = int(sizes.max()) if len(sizes) else 0
    return n_largest if n_largest > LARGEST_CLUSTER * len(set(question)) else 0


def clusters_of_rows(keys: Sequence[tuple[str, str]]) -> Clusters:
    """Find the clusters of rows that share no donors.

    ``keys``: question and relation of each.
    """
    rows = [(*key, "") for key in keys]
    return find_clusters(pd.DataFrame(rows, columns=["question_id", "cluster", "donor_id"]))


def _find_shared_donors(
    question: npt.NDArray[np.object_], donor: npt.NDArray[np.object_]
) -> npt.NDArray[np.object_]:
    """Return the donors of rows, without statistics (``mean``, ``zero``, ``noise``) and draws of a
    probe, which serve all questions.
    """
    table = pd.DataFrame({"question": question, "donor": donor}).drop_duplicates()
    n_questions = table.groupby("donor")["question"].nunique()
    serves_all = n_questions[n_questions == len(set(question))].index
    return np.where(np.isin(donor, serves_all), "", donor)


def _questions_per_donor(
    question: npt.NDArray[np.object_], donor: npt.NDArray[np.object_]
) -> float:
    """Return the number of questions per distinct donor; a large value means that few donors serve
    many questions. With three donors each that are drawn from all questions, it is about 1.
    """
    named = donor != ""
    return len(set(question[named])) / len(set(donor[named]))


def _join(question: npt.NDArray[np.object_], *labels: npt.NDArray[np.object_]) -> dict[str, int]:
    """Return question -> number of its component, where questions with an equal label are
    connected; an empty label connects nothing.
    """
    names, number = np.unique(question.astype(str), return_inverse=True)
    start = len(names)
    firsts = [np.arange(len(names))]
    seconds = [np.arange(len(names))]
    for label in labels:
        known = label != ""
        values, code = np.unique(label[known].astype(str), return_inverse=True)
        firsts.append(number[known])
        seconds.append(start + code)
        start += len(values)
    first = np.concatenate(firsts)
    second = np.concatenate(seconds)
    graph = coo_array((np.ones(len(first)), (first, second)), shape=(start, start))
    _, component = connected_components(graph, directed=False)
    return {str(name): int(component[i]) for i, name in enumerate(names)}


def intraclass_correlation(values: Array, clusters: npt.ArrayLike) -> float:
    """Compute the intraclass correlation of values: the share of their variance that lies between
    clusters.

    Args:
        values: One value per question, [question]; NaN is left out.
        clusters: Cluster of each question, [question].

    Returns:
        Correlation of two questions of one cluster, at most 1; negative if questions of a cluster
        differ more than others. NaN with one cluster, or if no cluster has two questions.

    Source:
        Donner 1986 (analysis of variance estimator, unequal sizes).
    """
    values = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(values)
    values = values[known]
    _, code = np.unique(np.asarray(clusters)[known], return_inverse=True)
    sizes = np.bincount(code).astype(np.float64)
    k = len(sizes)
    n = len(values)
    if k < 2 or n <= k:
        return float("nan")
    means = np.bincount(code, values) / sizes
    within = ((values - means[code]) ** 2).sum() / (n - k)
    between = (sizes * (means - values.mean()) ** 2).sum() / (k - 1)
    typical = (n - (sizes**2).sum() / n) / (k - 1)
    total = between + (typical - 1) * within
    return float((between - within) / total) if total > 0 else float("nan")
