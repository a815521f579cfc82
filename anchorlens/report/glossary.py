"""One-line definitions of the words that a report uses."""

import re

from anchorlens.figures.controls import CONTROLS
from anchorlens.results.findings import (
    BEYOND_CHANGE,
    BEYOND_POSITIONS,
    DONORS_ANSWER,
    NOT_DETECTED,
    NULL_MOVES,
    REVERSED,
    SPECIFIC,
    STANDS,
)

_TERMS = {
    "P": "the probability that is read; the caption of the figure names it",
    "ΔP": "100 · (P after the change − P before), in percentage points",
    "P before": "mean P without the change; ΔP cannot fall below −100 · P before",
    "anchor": "a named set of positions at which activations are changed",
    "exact_question": (
        "anchor: the tokens of the question's subject and property; the curve of their swap is"
        " called Q-Anchored swap, in a panel of swaps Q-Anchored"
    ),
    "pre_answer": (
        "anchor: the position that predicts the answer; the curve of its swap is called A-Anchored"
        " swap, in a panel of swaps A-Anchored"
    ),
    "Q-Anchored": (
        "of a knockout: rows whose prediction flips when attention from the question is cut; of a"
        " swap: the anchor exact_question"
    ),
    "A-Anchored": (
        "of a knockout: rows whose prediction does not flip; of a swap: the anchor pre_answer"
    ),
    "donor": "the other question whose activations are patched in",
    "null": "control of a swap: a change that should move P less",
    "placebo": "control of a knockout: a cut of other words",
    "joint": "of a band: it holds at 95 % for all layers and places together",
    "logit_diff": "logit of the right answer minus logit of the wrong one",
    "recovered": (
        "share of the difference between the corrupted (0) and the clean run (1) that the patch"
        " restores"
    ),
    "AUC": "chance that the probe ranks a false answer above a true one; 0.5 is no signal",
    "k*": "layer of the probe at which claims are made, chosen before the test rows are read",
    "interchange accuracy": "share of swaps after which the donor's answer is the most likely one",
    "intraclass correlation": (
        "how alike the rows of a relation, template or donor are: 0 not at all, 1 the same"
    ),
    "regression to the mean": (
        "rows that are chosen by a high value have a lower one when they are measured again"
    ),
    "edge": "what one sender adds to the residual stream, as one receiver reads it",
    "circuit": "a set of edges; all others carry what another prompt gives",
    "stability": "share of resamples of whole groups that select the edge",
    "before": "the metric without the change, averaged over the same rows as the effect",
    "n": (
        "number of rows of the mean: questions of a swap or knockout; groups of pairs, which share"
        " a text or a template, of a patch or edge"
    ),
}
_STATUSES = {
    STANDS: "the band excludes 0, also less each control",
    BEYOND_POSITIONS: "the effect exceeds that of a swap of other positions",
    BEYOND_CHANGE: (
        "the effect exceeds that of a change of the same norm and angle in another direction"
    ),
    DONORS_ANSWER: "the donor's answer becomes more likely than after that change",
    SPECIFIC: "the effect of the row's own state exceeds that of other rows' states",
    NOT_DETECTED: "the band includes 0; this is no evidence of no effect",
    REVERSED: "the band excludes 0 on the side that was not expected",
    NULL_MOVES: "the control accounts for most of the difference",
}


def define_words(text: str) -> list[tuple[str, str]]:
    """Return the words of a report that need a definition, with their definitions.

    Args:
        text: Findings, tables and captions of the page.
    """
    controls = {one.short: f"control: {one.explanation}" for one in CONTROLS.values()}
    found: list[tuple[str, str]] = []
    for word, definition in (_TERMS | controls | _STATUSES).items():
        if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE):
            found.append((word, definition))
    return found
