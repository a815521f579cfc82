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
# # Quickstart
#
# This notebook measures, layer by layer, whether the probability of an answer depends on the *question's words* or on
# the *position that predicts the answer*. It uses SmolLM2-135M and takes one to three minutes on two processor cores. You
# need `pip install .` in a clone of anchorlens. The model is downloaded once; the questions are included.
#
# For clean and corrupted prompts open `6_patching`. If you use `transformer_lens.patching`, read
# [docs/from_transformerlens.md](../../docs/from_transformerlens.md).

# %%
import anchorlens as al

model = al.load_model("smollm2-135m-instruct")  # a TransformerLens HookedTransformer
data = al.load_qa("popqa-sample", limit=60)  # 60 questions; donors come from the whole set
data

# %% [markdown]
# Each question has two segments: its *subject* and its *property*. The interventions use them, so check them first.

# %%
data.to_frame()[["question", "subject", "property", "answers"]].head()

# %% [markdown]
# ## The sweep
#
# At each layer, the activations at some tokens are replaced by those of *another* question of the same kind, the
# *donor*. The forward pass continues, and the probability P of the answer is read again:
#
#     ΔP = 100 · (P after − P before)        in percentage points
#
# Two *anchors* (sets of tokens) are patched: `exact_question`, the subject and property, and `pre_answer`, the position
# that predicts the answer. Each has two controls, its *nulls*:
#
# | null | question | what is patched |
# | --- | --- | --- |
# | `same_role` | is it *these positions*? | the donor's activations at as many *other* positions, each at its own position |
# | `norm_matched` | is it *more than a change of this size*? | the same norm and angle at the same positions, in another direction |
#
# `fewshot(2)` puts two answered questions in front of each question. `known_only` keeps the questions that the model
# answers correctly: if P is near zero, it cannot fall.

# %%
sweep = al.swap_sweep(
    model, data, known_only=True, prompt="fewshot(2)", n_donors=1, layers="0-28:2"
)
sweep

# %% [markdown]
# The first lines are the *verdict*. *Beyond other positions* means that P falls more than under `same_role`, *beyond a
# matched change* that it falls more than under `norm_matched` too. *Donor's answer* means that the donor's answer becomes
# more likely than under `norm_matched`: only this says which content came in. The table names the layer of the largest difference and all claimed layers.
# The next lines name the nulls that move P themselves, what was not tested, and the effects that the data do not exclude
# elsewhere. The settings and a table of the largest effects follow.
#
# Here a swap of other positions costs almost nothing (last table), but most of these positions are format or
# punctuation. A change of the same norm and angle costs most of P, so the donor's answer is the evidence to look at.
#
# ## The figure

# %%
figure = al.plot_curves(sweep)
figure

# %% [markdown]
# **How to read it**
#
# - *Solid, Q-Anchored swap*: the curve of `exact_question`. If ΔP is far below zero, the answer still depends on these
#   tokens at that layer. If ΔP is near zero, it no longer does.
# - *Dashed, A-Anchored swap*: the curve of `pre_answer`. Both names are the paper's.
# - *Band*: a 95 % band for a layer that was chosen beforehand. Each curve has one.
# - *Filled marks*: layers at which the verdict claims an effect beyond every null.
# - *Asterisk*: a value that holds by construction. *+*: a measured layer.
#
# ΔP cannot fall below −100 · P before. P before is 0.59, so −58 is nearly all of P. The settings and the meaning of every
# mark are in the figure's caption:

# %%
print(figure.layout.meta["anchorlens"]["caption"])

# %% [markdown]
# The claims are differences. `controls=True` adds both nulls as dotted lines, and `contrasts=True` a panel with each curve
# minus a null, paired by question. The stronger null is shown first, here `norm_matched`; outside this stored picture a
# switch shows the other. The bands of this panel hold for all layers together, as the claims do.

# %%
al.plot_curves(sweep, controls=True, contrasts=True)

# %% [markdown]
# **What not to conclude**: that the fact is *stored* at a layer, or that the model "knows" it there. A swap shows that
# the probability depends on the activations at these tokens and this layer, for this model and prompt.

# %% [markdown]
# ## The numbers
#
# `curves()` is a pandas frame with one row per point: the mean over questions, two 95 % bands (`ci`: for one layer named
# in advance; `sim`: for all layers together), P before, and the number of questions.

# %%
columns = [
    "anchor",
    "layer",
    "effect",
    "ci_low",
    "ci_high",
    "sim_low",
    "sim_high",
    "value_before",
    "n",
]
sweep.curves()[columns].round(1).iloc[8:15]

# %% [markdown]
# `delta_p` is a tensor:

# %%
print(sweep.delta_p.shape, "= anchor, layer, example")

# %% [markdown]
# ## One question
#
# `plot_example` draws one question: its tokens with their roles, and its own curve. Select it by number, id, or words
# of the question.

# %%
sweep.plot_example(0)

# %% [markdown]
# ## Save
#
# A run directory has every measurement, the settings and the figure. `anchorlens verify` recomputes random cells of it.

# %%
sweep.save("runs/quickstart", overwrite=True)
(again,) = al.load_run("runs/quickstart")
print(again.run_id == sweep.run_id)
sweep.dropped_counts  # dropped rows by reason

# %% [markdown]
# **Next**: [2_swap](2_swap.ipynb): the swap, step by step.
# [3_knockout_and_its_pitfalls](3_knockout_and_its_pitfalls.ipynb): the other main protocol.
# [4_your_own](4_your_own.ipynb): your questions, model, prompt and readout.
# [5_reading_a_report](5_reading_a_report.ipynb): a finished run.
