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
# # Knockout, and how it can fool you
#
# A *truth probe* reads, at the answer's last token, whether the model takes the answer to be false. All attention from
# the question's exact words is cut, and the probe is read again. Answers for which it changes its mind are called
# **Q-Anchored**, the others **A-Anchored**. That is the protocol of Luo et al. 2026 (arXiv 2601.07422), and its figure
# is drawn below. Then come five ways to read too much into it. About two minutes on two cores.

# %%
import pandas as pd

import anchorlens as al

model = al.load_model("smollm2-135m-instruct")
data = al.load_qa("triviaqa-sample")
ko = al.knockout_sweep(model, data, seed=0)
ko

# %% [markdown]
# ## The picture
#
# ΔP here is the change of the probe's confidence in its own first judgement. `contrasts=False` leaves out what belongs
# below it, so that you see what is usually shown:

# %%
al.plot_curves(ko, contrasts=False, controls=False)

# %% [markdown]
# A wide gap: it looks as if one half of the answers drew its truth from the question, and the other half from itself.
# Does it?
#
# ## Pitfall 1: a probe that knows nothing draws the same picture
#
# Rows were called Q-Anchored *because* their P fell through one half, and P is what is drawn. So the same protocol is
# run with probes whose training labels were shuffled. They cannot tell a true answer from a false one:

# %%
every = ko.curves(controls=True)
chance = every[every["control"] == "shuffled_labels"].assign(control="none")
al.plot_curves(chance, title="The same protocol, by probes of shuffled labels", controls=False)

# %%
shown = ["pathway", "effect", "ci_low", "ci_high", "n"]
parts = {}
for name, curves in (("true labels", ko.curves()), ("shuffled labels", chance)):
    at = curves[curves["layer"] == ko.probe_layer]
    parts[f"{name}, AUC {at['auc'].iloc[0]:.2f}"] = at[shown].set_index("pathway")
pd.concat(parts).round(1)

# %% [markdown]
# A probe at chance draws Q far below A. **Nothing in a picture of Q and A alone tells a finding from selection.** Never
# argue from the gap between the two curves, nor from a test between the two groups.
#
# ## Pitfall 2: does it have to be the question's *exact* words?
#
# The placebo cuts as many *other* words of the question, and splits by what that does. Its gap is a gap, too:

# %%
effects = ko.contrasts()
here = effects[effects["layer"] == ko.probe_layer]
here[here["quantity"].isin(["gap", "placebo_gap", "cross_fold_gap"])][
    ["quantity", "control", "value", "ci_low", "ci_high"]
].round(1)

# %% [markdown]
# `gap` is the picture's, `placebo_gap` that of other words cut (`random_tokens`) and of shuffled probes, and
# `cross_fold_gap` that of rows which another probe has split: it is free of the probe's own selection. All of them
# describe. None is a claim.
#
# ## What can be claimed
#
# Four contrasts over *all* test rows, nobody chosen by the outcome, each row compared with itself under the placebo:
#
# - `delta_p_vs_placebo`: how much more confidence is lost; `flip_rate`: how many more rows flip, in a hundred; `auc_drop`: how
#   much more of the probe's AUC goes. These three say that an effect *stands*.
# - `row_specific_effect`: is it this row's own signal that goes, or would any disturbance of that size do? Below zero, it is
#   *specific*.

# %%
claims = here[here["quantity"].isin(["delta_p_vs_placebo", "flip_rate", "auc_drop", "row_specific_effect"])]
claims[["quantity", "control", "value", "ci_low", "ci_high", "n"]].round(2)

# %%
print(ko.verdict)

# %%
al.plot_curves(ko)

# %% [markdown]
# Now the published picture stands above, and what can be claimed below. Here it *is* a finding, and a strong one: on
# these questions, which were written so that the model knows many of them. On 300 real questions of each of four data
# sets, which it does not know, Q lies below A as well, by 7 to 22 points; what can be claimed stands on one of the four
# alone ([docs/knockout.md](../../docs/knockout.md)).
#
# ## Pitfall 3: is it truth that the probe reads?
#
# A false answer that is of the wrong type ("When ...?" "Berlin") gives itself away without any model. So two
# classifiers that see only text are fitted on the probe's own splits. Compare the careful choice of false answers
# (`distractor="matched"`, the default) with a careless one:

# %%
careless = al.knockout_sweep(model, data, distractor="random", split_placebo_by_side=False, seed=0)
aucs = {
    name: {
        "answer alone": one.answer_text_auc["auc"],
        "question and answer as text": one.qa_text_auc["auc"],
        "the probe": one.summary()["auc"].iloc[0],
    }
    for name, one in (("matched", ko), ("random", careless))
}
pd.DataFrame(aucs).round(2)

# %%
print(careless.verdict)

# %% [markdown]
# Look at this table before you speak of truth. Where text alone lies above 0.5, the verdict says so first, and gives
# what the probe knows beyond it.
#
# ## Pitfall 4: naming layers after looking at them
#
# Thirty layers are thirty chances. How many of them leave zero out by the pointwise interval, and by the band of all
# layers at once?

# %%
bands = effects[effects["quantity"].isin(claims["quantity"])].assign(
    pointwise=lambda frame: (frame["ci_low"] > 0) | (frame["ci_high"] < 0),
    all_at_once=lambda frame: (frame["sim_low"] > 0) | (frame["sim_high"] < 0),
)
bands.groupby(["quantity", "control"])[["pointwise", "all_at_once"]].sum()

# %% [markdown]
# Claim layers by the second column. An effect as strong as this one survives it; of what is weak fewer layers are left
# (the last row is the *placebo's* own change). And beware of k* itself: there the split was made, so split and curve
# share the same noise, and Q dips by itself. Compare the layers beside it.
#
# ## Pitfall 5: what "A-Anchored" means
#
# It means *did not flip*. Here every string stands as often as a true answer as it does as a false one, so the answer
# alone carries no label: an A-Anchored row is not "read off the answer". Nor is it shown that nothing came from the
# question: a confident probe flips less.

# %%
al.plot_pathway_sizes(ko)

# %% [markdown]
# **Before you show a knockout figure**, check: AUC and its interval at the layer you speak of (× marks no signal); the
# text baselines; the contrasts and their simultaneous bands; n in each group; the placebo in the same figure.
#
# More: [docs/knockout.md](../../docs/knockout.md), and how often a claim is made of nothing:
# [docs/statistics.md](../../docs/statistics.md). **Next**: [4_your_own](4_your_own.ipynb).
