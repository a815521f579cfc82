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
# # Swap: a story of one hand-over
#
# What exactly is replaced, with what, and what may be said afterwards. About two minutes on two cores.

# %%
import json

import pandas as pd

import anchorlens as al

# %% [markdown]
# ## A model and some questions
#
# Before `load_model` returns, it compares log-probabilities with Hugging Face's own model; `parity` is the largest
# difference, in nats.

# %%
model = al.load_model("smollm2-135m-instruct")
card = al.model_card(model)
pd.Series(
    {"layers": card.n_layers, "width": card.d_model, "parameters": card.n_params, "parity below 1e-3": card.parity < 1e-3}
)

# %% [markdown]
# `limit` draws 40 questions to be measured. The rest of the file stays in the pool, where *donors*, the other
# questions, come from.

# %%
data = al.load_qa("popqa-sample", limit=40, seed=0)
data

# %% [markdown]
# ## The sweep
#
# At each layer, and for each *anchor* on its own: replace the stream at the anchor's tokens by that of a donor at its
# own anchor (same relation, equally long segments, another answer), go on, read P of the *original* answer. All of it
# is drawn from `seed`.

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
# An anchor is a role; in each row it is a set of token positions. `question` is the question's subject and property
# together (E_Q, the *exact question tokens*). `pre_answer` is the one position from which the first token of the
# answer is predicted. (The stream *at* an answer token comes too late: that token has been predicted already.) Here is
# the end of one input, after the two answered questions:

# %%
row = sweep.examples().query("role == 'base'").iloc[0]
positions = json.loads(row["positions"])
roles = ["subject", "property", "question_rest", "pre_answer", "answer"]
table = pd.DataFrame(
    {
        "token": [repr(token) for token in row["tokens"]],
        "anchors": [", ".join(role for role in roles if place in positions[role]) for place in range(len(row["tokens"]))],
    }
)
table.tail(16)

# %% [markdown]
# Look at these tables for a few rows of your own data. A subject that was found wrongly makes the "question" curve a
# curve of other words, and no statistic notices.
#
# ## What was left out
#
# Rows without a donor, and (with `known_only`) questions that the model answers wrongly. What is measured is a
# *selection*.

# %%
sweep.dropped_counts

# %% [markdown]
# ## Curves

# %%
al.plot_curves(sweep)

# %% [markdown]
# Read the solid curve from the left. In the low layers, another subject and property in the stream take the answer's
# probability away: what the answer hangs on stands *there*, and is still going to be read from there. In the last
# layers the same swap does next to nothing: what was needed has been read already. The dashed curve does the opposite.
# Where they cross, the answer has been handed over.
#
# The curve at layer *l* says that what is needed still stands at the anchor *when block l begins*. It does not say that
# block *l* computes it.
#
# ## The null: would any disturbance do that?
#
# The null puts the *same donor's streams* at as many other positions of the row's own question.

# %%
both = sweep.curves(controls=True).pivot(index="layer", columns=["anchor", "control"], values="effect")
both.round(1)

# %% [markdown]
# It is not small for `question` in the low layers. These streams carry the donor's *content*: put at other words of the
# question, the donor's subject is read from there, and the original answer loses. So the claim is the difference,
# question by question:

# %%
delta_p_minus_null = sweep.contrasts().query("quantity == 'delta_p_minus_null'")
delta_p_minus_null[["anchor", "layer", "value", "sim_low", "sim_high", "n"]].round(1)

# %% [markdown]
# (`pre_answer` at layer 0 has no band: nothing is changed there, as all prompts end in the same token, while the null
# does hurt. Such values hold by construction.)
#
# `sim_low` and `sim_high` hold for all layers and anchors of the sweep at once. Use them before you say *which* layers;
# the narrower `ci_low`, `ci_high` are for a layer that you had named before you looked. The verdict does this for you:

# %%
print(sweep.verdict)

# %% [markdown]
# ## A mean may hide two groups
#
# `effect` holds every question. Before you explain a mean, look at what it is a mean of. ΔP cannot fall below what was
# there before (last column, in points): a small fall may be all that there was to lose.

# %%
at = sweep.layers.index(22)
own = pd.DataFrame(sweep.delta_p[:, at].T.numpy(), index=list(sweep.example_ids), columns=[f"ΔP, {a}" for a in sweep.anchors])
questions = sweep.examples().query("role == 'base'").set_index("example_id")[["question", "answer"]]
measured = sweep.samples().query("layer == 22 and anchor == 'exact_question' and control == 'none'").set_index("example_id")
questions.join(own.round(1)).assign(before=(100 * measured["value_before"]).round(1)).sort_values("ΔP, question")

# %% [markdown]
# ## Is it sufficient, too?
#
# So far the swap took away (*noising*: is the anchor necessary?). `direction="denoising"` starts from a corrupt
# question, with another subject and property in its *text*, and puts the clean stream back at the anchor: positive
# where that is enough to bring the answer back. The two are not mirror images: with two copies of a fact, either is
# sufficient and neither is necessary.

# %%
back = al.swap_sweep(
    model, data, layers=(0, 16, 22, 24, 29), n_donors=1, known_only=True, prompt="fewshot(2)", direction="denoising", seed=0
)
al.plot_curves({"noising": sweep, "denoising": back})

# %% [markdown]
# **What not to conclude**
#
# - Not where the fact is *stored*: a swap shows a route.
# - Nothing about the questions that were dropped, and nothing about positions that were not changed.
# - No height from so few questions: the order of the curves is clear, their level is not.
# - No difference between two models, unless prompt, questions, selection and P before are alike.
#
# More: [docs/swap.md](../../docs/swap.md). **Next**: [3_knockout_and_its_pitfalls](3_knockout_and_its_pitfalls.ipynb).
