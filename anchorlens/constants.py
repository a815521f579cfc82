"""Allowed values of arguments; signatures, ``--help``, checks and tables are generated from them.

Imports nothing.
"""

QUESTION_ANCHORS = (
    "exact_question",
    "subject",
    "property",
    "subject_last",
    "question_rest",
    "prompt_last",
)
ANSWER_ANCHORS = ("answer", "pre_answer", "pre_answer_all")
ANCHORS = QUESTION_ANCHORS + ANSWER_ANCHORS
"""Roles of token positions in a row."""

SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
"""Activations of a block."""

SITE_ORDER = ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
"""The same in the order in which a block computes them."""

HEAD_SITES = ("z", "q", "k", "v", "pattern")
"""Activations of the heads of a block: output, queries, keys, values and attention pattern."""

PROBE_SITES = ("resid_post", "mlp_out", "attn_out")
"""Activations that a truth probe may read."""

ANSWER_READOUTS = ("first_token", "answer_mean", "answer_joint")
TRUTH_READOUTS = ("probe", "p_true")

ANSWERS = ("gold", "generated")
"""Answers in the input of a truth readout: gold answers, or the model's own."""

DISTRACTORS = ("matched", "random")
DELTA_KINDS = ("confidence", "signed", "true_label")
SPLIT_RULES = ("fixed", "per_layer")

DIRECTIONS = ("noising", "denoising")
BOTH_DIRECTIONS = "both"
"""Value of ``direction`` with which a swap is measured in each direction."""
ALIGNMENTS = ("equal", "last")
ROW_RULES = ("same_relation", "random")
STATISTIC_RULES = ("mean", "zero", "noise")
DONOR_RULES = ROW_RULES + STATISTIC_RULES
DONOR_FUNCTION = "a function (row, pool) that returns rows of the pool"
NULL_CONTROLS = {
    "same_role": "same_role",
    "norm_matched": "norm_matched",
    "displaced": "null",
    "same_answer": "same_answer",
}
"""Null of a swap -> value of the column ``control``; the null of the first claim first."""
DIRECTION_RULES = ("data", "gaussian")
"""Directions of ``norm_matched``: the difference of two other rows, or Gaussian."""
NULL_REGIONS = ("question", "prompt")
"""Region of the positions of ``displaced``: the row's own part of the prompt, or the whole
prompt.
"""

SETTINGS = ("prompt", "answers", "distractor", "split", "known_only")
"""Arguments that distinguish curves of one model and data set; "" if a protocol lacks one."""

P = "p"
"""Metric of most sweeps: a probability."""
FLIP = "flip"
"""1 where the prediction changed, else 0; its mean change is a flip rate."""
LOGIT_DIFF = "logit_diff"
"""Logit of the answer minus that of another answer; its change is in logits."""
SHARE = "share"
"""Metric of curves of a swap only: ΔP as a percentage of mean P before."""
POINTS = "percentage points"
"""Unit of the change of a probability; the values themselves are in [0, 1]."""
AUC = "auc"
SIZE = "size"
"""Metrics of figures only: the AUC of a probe, and the number of questions of a pathway."""

DIFFERENCE = "difference"
"""Quantity of :func:`anchorlens.compare`: ΔP of one run minus ΔP of another."""

MIN_QUESTIONS_FOR_CLAIM = 10
"""Number of questions of a group below which nothing is claimed."""
MIN_QUESTIONS_FOR_LAYERS = 20
"""Number of questions or clusters below which a claim names no layers."""
MIN_QUESTIONS_FOR_SWAP_CLAIM = 20
"""Number of questions below which nothing is claimed of a swap."""
MIN_CLUSTERS = 10
"""Number of relations or templates from which on whole ones are drawn instead of questions."""
LARGEST_CLUSTER = 0.5
"""Largest share of the questions in one relation or template at which whole ones are drawn."""

BACKENDS = ("hooked", "bridge")
KNOCKOUT_MODES = ("mask", "zero")
LATER = "later"

PATCH_BY = ("position", "segment", "layer", "head", "head_position")
"""Places of a patch sweep, each patched separately."""
PATCH_METHODS = ("exact", "attribution")
"""Effects of patches: measured, or estimated by change times gradient."""

PATCH_METRICS = ("logit_diff", "prob", "logprob", "kl")
UNITS = {"logit_diff": "logit", "prob": POINTS, "logprob": "nat", "kl": "nat"}
"""Metric of a patch sweep -> unit of its effect; values of ``prob`` are in [0, 1]."""
METRIC_UNITS = "units of the metric"
"""Unit of the effect on a user's function."""
PATCH_CONTROLS = ("other_pair", "norm_matched")

EDGE_BY = ("all", "segment", "position")
"""Positions at which the contributions of a sender are exchanged together."""
ALL_PLACES = "all"
"""Place of all paired positions together."""
EDGE_METHODS = ("exact", "attribution", "attribution_ig", "attribution_ig_activations")
BETWEEN = ("direct", "mlps")
DOWNSTREAM = ("flow", "freeze")
EDGE_CONTROLS = ("other_pair",)

ENGINES = ("cone", "reference")

SPLITS = ("train", "validation", "test")
SHARES = {"train": 0.45, "validation": 0.15, "test": 0.4}
"""Shares of the questions with one split."""

_DRAW_LABELS = {
    "exact_question": "question",
    "pre_answer": "answer_site",
    "pre_answer_all": "answer_site_all",
}


def draw_label(anchor: str) -> str:
    """Return the label of an anchor in the seeds of random draws; it is fixed, since another label
    draws other nulls.
    """
    return _DRAW_LABELS.get(anchor, anchor)


ALL_CELLS = "all"
"""Value of ``cells`` with which ``verify`` measures every cell again."""
