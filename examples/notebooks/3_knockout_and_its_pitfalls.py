# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Knockout and five errors of interpretation
#
# A *truth probe* is a logistic regression on the activation at the answer's last token. It predicts whether the answer
# is false. All attention from the exact question tokens is cut, and the probe is read again. Rows whose prediction
# flips are called **Q-Anchored**, the others **A-Anchored**. This is the protocol of Luo et al. 2026
# (arXiv 2601.07422). The control, the *placebo*, cuts as many other question tokens. k\* is the layer of the probe that
# decides about flips. The notebook draws the paper's figure and then five errors of interpretation. About two minutes on
# two cores.
#
# The questions form five blocks (`n_splits=5`). In each of five *splits* one block is tested, by probes that were fitted on
# the others. So every question is tested once. `split_placebo_by_side=False` leaves out two extra controls, to save time.

# %%
import pandas as pd

import anchorlens as al

model = al.load_model("smollm2-135m-instruct")
data = al.load_qa("triviaqa-sample")
ko = al.knockout_sweep(model, data, split_placebo_by_side=False, seed=0)
ko

# %% [markdown]
# ## The published figure
#
# ΔP is the change of the probe's confidence in its clean prediction. This is the figure as it is usually shown:

# %%
al.plot_curves(ko)

# %% [markdown]
# The gap suggests that the truth signal of one group comes from the question, and that of the other group from the
# answer. The gap alone does not show this.
#
# ## Pitfall 1: a probe at chance gives the same figure
#
# Rows are called Q-Anchored *because* their P crossed 0.5, and P is the plotted quantity. The same protocol with probes
# whose training labels were shuffled, so that they are at chance:

# %%
every = ko.curves(controls=True)
chance = every[every["control"] == "shuffled_labels"].assign(control="none")
al.plot_curves(chance, title="The same protocol, probes with shuffled labels")

# %%
shown = ["pathway", "effect", "ci_low", "ci_high", "n"]
parts = {}
for name, curves in (("true labels", ko.curves()), ("shuffled labels", chance)):
    at = curves[curves["layer"] == ko.probe_layer]
    parts[f"{name}, AUC {at['auc'].iloc[0]:.2f}"] = at[shown].set_index("pathway")
pd.concat(parts).round(1)

# %% [markdown]
# With a probe at chance, Q-Anchored is still far below A-Anchored at k\* = 9, where the rows were split: −51.8 against +1.3.
# **A figure of Q and A alone cannot separate a finding from this selection effect.** Do not use the gap between the curves,
# or a test between the groups, as evidence.
#
# ## Pitfall 2: other question words also give a gap
#
# The placebo cuts the same number of *other* question words and splits the rows by its own effect:

# %%
contrasts = ko.contrasts()
here = contrasts[contrasts["layer"] == ko.probe_layer]
here[here["quantity"].isin(["gap", "placebo_gap", "cross_fold_gap"])][
    ["quantity", "control", "value", "ci_low", "ci_high"]
].round(1)

# %% [markdown]
# `gap` is the gap of the figure (`none`); `size_matched` cuts only as many tokens of the subject and property as the placebo
# does. `placebo_gap` is that of other words (`random_tokens`, two fifths of the figure's gap) and of shuffled probes. For
# `cross_fold_gap`, another probe splits the rows, so this probe's noise does not select them. All are descriptions.
#
# ## What can be claimed
#
# Four contrasts over *all* tested rows. Each row is compared with itself under the placebo:
#
# | contrast | cut minus placebo, difference in |
# | --- | --- |
# | `delta_p_vs_placebo` | ΔP, in points |
# | `flip_rate` | the share of rows that flip, in points |
# | `auc_drop` | the probe's AUC |
# | `row_specific_vs_placebo` | `row_specific_effect`, in points |
#
# `row_specific_effect` is ΔP of a row minus its ΔP under the changes that the cut makes in *other* rows. Below 0, the cut
# removes what the probe reads in this row. Any cut that weakens the probe's signal has a value below 0, the placebo too. So
# the value itself is description, and the claim is the difference.
#
# The first three show that an effect *stands* (its interval excludes zero). The fourth shows that it is *specific* to the
# row. It is claimed only if all three stand.

# %%
quantities = ["delta_p_vs_placebo", "flip_rate", "auc_drop", "row_specific_vs_placebo"]
claims = here[here["quantity"].isin(quantities)]
claims[["quantity", "control", "value", "ci_low", "ci_high", "n"]].round(2)

# %% [markdown]
# The two values behind the fourth contrast: `size_matched` cuts as many tokens of the subject and property as the placebo,
# `random_tokens` is the placebo.

# %%
here[here["quantity"] == "row_specific_effect"][
    ["quantity", "control", "value", "ci_low", "ci_high"]
].round(2)

# %% [markdown]
# The placebo's own value is not zero: −1.1, and its interval excludes zero. The difference is −13.0.

# %%
print(ko.verdict)

# %% [markdown]
# *Single splits* is the range of the five splits, each with a fifth of the questions. All of them agree in sign here. If a
# claim is not detected at k\* of some splits, the verdict says that it depends on the split. k\* itself varies: 9, 14, 9, 10
# and 9. Curves and claims use the median.

# %%
al.plot_curves(ko, controls=True, contrasts=True)

# %% [markdown]
# The upper panel is the published figure. The dotted lines are the placebo, split by its own flips. The lower panel shows a
# claim, over all rows: its filled mark is the layer of the claim, k\*. At the shaded layers all three contrasts stand. Marks
# and shade are those of the verdict.
#
# On these questions the effect is a finding. They were written so that the model answers many correctly. On 300 real
# questions from each of four data sets the gap is 0 to 22 points. There all three contrasts stand on one data set only
# ([docs/knockout.md](../../docs/knockout.md)).
#
# ## Pitfall 3: the probe may use text cues
#
# A false answer of the wrong type ("When ...?" "Berlin") can be recognised without a model. So two text classifiers are
# fitted on the probe's splits. Compare false answers of the same type (`distractor="matched"`, the default) with random
# ones. The second sweep uses one split, to save time: it tests only 40 % of the questions.

# %%
careless = al.knockout_sweep(
    model, data, distractor="random", n_splits=1, split_placebo_by_side=False, seed=0
)
aucs = {
    name: {
        "answer alone": one.answer_text_auc["auc"],
        "question and answer as text": one.qa_text_auc["auc"],
        "the probe": one.summary()["auc"].iloc[0],
        "tested questions": one.contrasts().query("quantity == 'auc_drop'")["n"].max(),
    }
    for name, one in (("matched", ko), ("random", careless))
}
pd.DataFrame(aucs).round(2)

# %%
print(careless.verdict)

# %% [markdown]
# Check this table before you make a claim about truth. If the interval of the text's AUC lies above 0.5, the verdict
# reports it first, with the probe's AUC beyond text. This verdict has no column of single splits: `n_splits=1` depends on
# one split and cannot show it. Use the default for results.
#
# ## Pitfall 4: choosing layers after seeing the result
#
# Thirty layers are thirty tests. The number of layers that exclude zero by the pointwise interval, and by the
# simultaneous band. The last row is the placebo's own `row_specific_effect`, a weak effect:

# %%
listed = contrasts["quantity"].isin([*quantities, "row_specific_effect"]) & (
    contrasts["control"] == "random_tokens"
)
bands = contrasts[listed].assign(
    pointwise=lambda frame: (frame["ci_low"] > 0) | (frame["ci_high"] < 0),
    all_at_once=lambda frame: (frame["sim_low"] > 0) | (frame["sim_high"] < 0),
)
bands.groupby("quantity")[["pointwise", "all_at_once"]].sum().loc[
    [*quantities, "row_specific_effect"]
]

# %% [markdown]
# Use the second column for claims about layers. A strong effect remains; the weak one loses nearly half of its layers. The
# verdict and the figure's shade use the second column. At k\* the split and the curve share the same noise, which lowers Q
# there. Compare with the neighbouring layers.
#
# ## Pitfall 5: the meaning of "A-Anchored"
#
# A-Anchored means *did not flip*. Every answer string is equally often true and false here, so the answer alone has no
# information about the label. A-Anchored does not mean "read from the answer". It also does not exclude an effect of the
# question: a row with a confident prediction flips less often. The number of questions in each group, which the split at
# k\* fixes for all layers (a question is in both if only one of its two answers flips):

# %%
al.plot_pathway_sizes(ko)

# %% [markdown]
# **Check before you publish a knockout figure**:
#
# - the AUC and its interval at the layer of the claim (× marks no signal), and the text baselines;
# - the contrasts, their values in single splits, their simultaneous bands, and n in each group;
# - the placebo in the same figure;
# - the number of sweeps that were tried: `al.adjust_claims` corrects for several
#   ([docs/several_looks.md](../../docs/several_looks.md)).
#
# More: [docs/knockout.md](../../docs/knockout.md); false positive rates:
# [docs/statistics.md](../../docs/statistics.md). **Next**: [4_your_own](4_your_own.ipynb).
