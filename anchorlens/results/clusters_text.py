"""Sentence on the clusters of a sweep: what is drawn, and how alike the rows of a cluster are."""

from collections.abc import Mapping
from math import isnan

from anchorlens.constants import MIN_CLUSTERS
from anchorlens.results.vocabulary import RowWords, row_words
from anchorlens.statistics.clusters import Clusters

_MANY_PER_DONOR = 3.0
"""Rows for each donor from which on a sentence warns of it."""


def cluster_note(
    clusters: Clusters,
    n: int,
    correlations: Mapping[tuple[str, str], float] | None = None,
    rows: RowWords | None = None,
    *,
    leading: tuple[str, float] | None = None,
) -> str:
    """Return the sentence; it names the limit of the findings where questions are drawn although
    the data name clusters, or many share a donor. Empty without named clusters and shared
    donors.

    Args:
        clusters: Clusters of the sweep.
        n: Number of questions.
        correlations: Anchor and null -> intraclass correlation of curve minus null.
        rows: Words for the rows of the protocol. If None, those of questions.
        leading: Leading contrast and its intraclass correlation, NaN if unknown; for protocols with
            one control.
    """
    words = row_words("") if rows is None else rows
    if not clusters.n_named:
        if not clusters.is_by_donor:
            return _donor_note(clusters, words)
        return (
            f"{words.count(n)} in {clusters.n_drawn} clusters: {words.groups} that share a donor"
            " are drawn together."
        )
    named = f"{clusters.n_named} {words.cluster if clusters.n_named == 1 else words.clusters}"
    text = f"{words.count(n)} of {named}"
    if clusters.is_by_question:
        why = f"fewer than {MIN_CLUSTERS} {words.clusters} are there"
        if clusters.n_named >= MIN_CLUSTERS:
            why = f"{clusters.n_largest} are of one {words.cluster}"
        text += f": {words.groups} are drawn, because {why}"
        if clusters.is_by_donor:
            text += (
                f", and those that share a donor are drawn together ({clusters.n_drawn} clusters)"
            )
        text += f". Nothing is said beyond these {words.clusters}"
    else:
        text += f": whole {words.clusters} are drawn"
        if clusters.is_by_donor:
            text += f", and {words.groups} that share a donor together"
    known = {key: value for key, value in (correlations or {}).items() if not isnan(value)}
    if known:
        (anchor, null), most = max(known.items(), key=lambda one: one[1])
        text += (
            f". Intraclass correlation of curve minus null at most {most:.2f} ({anchor}, {null})"
        )
    if leading is not None and not isnan(leading[1]):
        text += f". Intraclass correlation of {leading[0]} {leading[1]:.2f}"
    return " ".join(filter(None, (f"{text}.", _donor_note(clusters, words))))


def _donor_note(clusters: Clusters, words: RowWords) -> str:
    """Return a sentence on donors that serve many rows, which are then not independent."""
    if clusters.per_donor < _MANY_PER_DONOR:
        return ""
    return (
        f"There are {clusters.per_donor:.1f} {words.groups} for each donor, and fewer than"
        f" {MIN_CLUSTERS} clusters would be left if those that share one were drawn together: bands"
        " may be too narrow. Use more donors."
    )
