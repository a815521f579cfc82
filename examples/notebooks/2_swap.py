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
# # Swap
#
# The swap in detail: the patched activations, the donors, the two controls, and the claims. About one minute on two cores.

# %%
import json

import pandas as pd

import anchorlens as al

# %% [markdown]
# ## A model and some questions
#
# `load_model` compares log-probabilities with Hugging Face's model. `parity` is the largest difference, in nats.

# %%
model = al.load_model("smollm2-135m-instruct")
card = al.model_card(model)
pd.Series(
    {
        "layers": card.n_layers,
        "width": card.d_model,
        "parameters": card.n_params,
        "parity below 1e-3": card.parity < 1e-3,
    }
)

# %% [markdown]
# `limit` draws 40 questions. *Donors*, the questions whose activations are used, come from the whole file (the pool).

# %%
data = al.load_qa("popqa-sample", limit=40, seed=0)
data

# %% [markdown]
# ## The sweep
#
# An *anchor* is a named set of token positions in each row. For each layer and anchor, the residual stream at the anchor's
# tokens is replaced by that of a donor at its own anchor. The forward pass continues, and P of the *original* answer is
# read. A donor has the same relation (kind of fact), segments with equally many tokens, and another answer. The two
# controls, the *nulls*, are explained [below](#The-nulls). All random draws use `seed`.

# %%
sweep = al.swap_sweep(
    model,
    data,
    anchors=("exact_question", "pre_answer"),
    layers=(0, 8, 16, 20, 22, 23, 24, 26, 29),
    n_donors=1,
    known_only=True,
    prompt="fewshot(2)",
    seed=0,
)
sweep

# %% [markdown]
# ## Anchors are tokens
#
# `exact_question` is the question's subject and property (E_Q, the *exact question tokens*). `pre_answer` is the
# position that predicts the first answer token. The stream *at* an answer token cannot change that token's own
# probability, because the model is causal. The end of one input, after the two answered questions:

# %%
row = sweep.examples().query("role == 'base'").iloc[0]
positions = json.loads(row["positions"])
roles = ["subject", "property", "question_rest", "pre_answer", "answer"]
table = pd.DataFrame(
    {
        "token": [repr(token) for token in row["tokens"]],
        "anchors": [
            ", ".join(role for role in roles if place in positions[role])
            for place in range(len(row["tokens"]))
        ],
    }
)
table.tail(16)

# %% [markdown]
# Check such tables for a few rows of your own data. If the subject is wrong, the curve is that of other words, and no
# statistic can detect it.
#
# ## Dropped rows
#
# Rows without a donor are dropped, and with `known_only` questions that the model answers incorrectly. The result
# applies to the remaining rows only.

# %%
sweep.dropped_counts

# %% [markdown]
# ## Curves

# %%
al.plot_curves(sweep, controls=True)

# %% [markdown]
# Solid (Q-Anchored swap) is the curve of `exact_question`, dashed (A-Anchored swap) that of `pre_answer`; the names are
# the paper's. Dotted are the two nulls, of which more below. Read the solid curve from the left. In the low layers the swap lowers the answer's probability: later layers still use
# the activations at these tokens. In the last layers the swap has almost no effect. The dashed curve is the opposite.
# Where the curves cross, between layers 23 and 24, the dependence moves from the question tokens to the answer position.
#
# The curve at layer *l* shows that the answer depends on the anchor's activations *at the input of block l*. It does not
# show that block *l* computes them.
#
# ## The nulls
#
# A fall has two other explanations. Perhaps a swap of *any* positions would have this effect: `same_role` patches the
# donor's activations at as many other positions, each at its own position. Perhaps *any* change of this size would have
# it: `norm_matched` turns the activation at the anchor in another direction, with the donor's norm and angle.

# %%
both = sweep.curves(controls=True).pivot(
    index=["anchor", "layer"], columns="control", values="effect"
)
both.round(1)

# %% [markdown]
# `none` is the swap itself. `same_role` costs almost nothing. `norm_matched` costs most of P at layer 0 and less at layer
# 22: any turn by this angle destroys much of what a low layer holds. The claims are the differences, paired by question:

# %%
delta_p_minus_null = sweep.contrasts().query("quantity == 'delta_p_minus_null'")
delta_p_minus_null[["anchor", "control", "layer", "value", "sim_low", "sim_high", "n"]].round(1)

# %% [markdown]
# `pre_answer` at layer 0 has no band. All prompts end in the same token, so the swap changes nothing there. Such values
# hold by construction. `exact_question` minus `same_role` at layer 0 has none either: in most rows the other words of base
# and donor are equal, so this null cannot act there.
#
# `sim_low` and `sim_high` hold for all layers, anchors and nulls together. Use them for statements about *which*
# layers. The narrower `ci_low` and `ci_high` are for one layer that was named in advance. The verdict uses `sim_low` and
# `sim_high`. A layer is claimed if this band excludes 0 and the curve is at least half of the difference. P of the
# *donor's* answer has a band of its own:

# %%
print(sweep.verdict)

# %% [markdown]
# ## Single questions
#
# A mean can hide two groups, so check the distribution. ΔP cannot fall below −100 · P before (last column, in points).

# %%
at = sweep.layers.index(22)
own = pd.DataFrame(
    sweep.delta_p[:, at].T.numpy(),
    index=list(sweep.example_ids),
    columns=[f"ΔP, {a}" for a in sweep.anchors],
)
questions = sweep.examples().query("role == 'base'").set_index("example_id")[["question", "answer"]]
measured = (
    sweep.samples()
    .query("layer == 22 and anchor == 'exact_question' and control == 'none'")
    .set_index("example_id")
)
questions.join(own.round(1)).assign(before=(100 * measured["value_before"]).round(1)).sort_values(
    "ΔP, exact_question"
)

# %% [markdown]
# ## Denoising
#
# The swap above is *noising*: it tests whether the anchor is necessary. `direction="denoising"` tests whether it is
# sufficient. It starts from a corrupted question, with another subject and property in its *text*. Then it patches the
# clean stream at the anchor. ΔP is positive if this restores the answer. The two can differ: with two copies of a fact,
# each is sufficient and neither is necessary. Both runs have the same questions, but P before differs: 0.74 for the clean
# question and 0.01 for the corrupted one.

# %%
back = al.swap_sweep(
    model,
    data,
    layers=(0, 16, 22, 24, 29),
    n_donors=1,
    known_only=True,
    prompt="fewshot(2)",
    direction="denoising",
    seed=0,
)
al.plot_curves({"noising": sweep, "denoising": back})

# %% [markdown]
# **What not to conclude**
#
# - Where the fact is *stored*: a swap shows a dependence only.
# - Anything about dropped questions, or about positions that were not patched.
# - An exact effect size: with so few questions the bands are wide.
# - A difference between two models, unless prompt, questions, selection and P before are equal.
#
# More: [docs/swap.md](../../docs/swap.md). **Next**: [3_knockout_and_its_pitfalls](3_knockout_and_its_pitfalls.ipynb).
