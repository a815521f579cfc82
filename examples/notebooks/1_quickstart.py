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
# # Quickstart: where does an answer come from?
#
# A language model reads a question and writes an answer. Up to some layer that answer hangs on the *question's words*;
# from some layer on it hangs on the *place where the answer begins*. This notebook measures that hand-over in
# SmolLM2-135M and takes about a minute on two processor cores. You need nothing but `pip install .` in a clone of
# anchorlens: the small model is fetched once, the questions come along.

# %%
import anchorlens as al

model = al.load_model("smollm2-135m-instruct")  # a TransformerLens HookedTransformer
data = al.load_qa("popqa-sample", limit=60)  # 60 questions are measured; the other rows of the set serve as donors
data

# %% [markdown]
# In each question two segments were found: its *subject* and its *property*. Look at them before you measure:
# everything below rests on them.

# %%
data.to_frame()[["exact_question", "subject", "property", "answers"]].head()

# %% [markdown]
# ## The sweep
#
# At one layer after another, what the model has computed at some tokens is replaced by what it computes there for
# *another* question of the same kind. The model goes on, and the probability P of its own answer is read again:
#
#     ΔP = 100 · (P after − P before)        in percentage points
#
# Two answered questions stand in front of each (`fewshot(2)`), and only questions that the model then answers right are
# kept (`known_only`): where P is near zero, nothing can fall.

# %%
sweep = al.swap_sweep(model, data, known_only=True, prompt="fewshot(2)", n_donors=1, layers="0-28:2")
sweep

# %% [markdown]
# The lines below the table are the *verdict*: what is shown beyond the control, at which layers, and what the data
# allow elsewhere.
#
# ## The figure

# %%
figure = al.plot_curves(sweep)
figure

# %% [markdown]
# **What to look at**
#
# - *Solid, Q-Anchored*: the question's words were replaced. Far below zero, the answer still hangs on those tokens at
#   that layer. Back at zero, what they had to give has moved on.
# - *Dashed, A-Anchored*: the position that predicts the answer was replaced. It does the opposite.
# - *Grey*: the control. The same donor's states were put at *other* positions of the question.
# - *Ticks at the right edge*: as far as ΔP can fall, −100 · P before.
# - *Lower panel*: each curve less its control, which is what can be claimed. A filled point is a layer at which the
#   interval of all layers at once leaves out zero.
#
# **What not to conclude**: that the fact is *stored* at a layer, that the model "knows" it there, or that it believes
# it. A swap shows a route: in this model and this prompt, the probability depends on what stands at these tokens at
# this layer.

# %% [markdown]
# ## The numbers
#
# `curves()` is a pandas frame with one row a point: the mean over questions, two 95 % bands (`ci`: a layer that was
# named beforehand; `sim`: all layers at once), P before, and how many questions stand behind it.

# %%
columns = ["anchor", "layer", "effect", "ci_low", "ci_high", "sim_low", "sim_high", "p_before", "n"]
sweep.curves()[columns].round(1).iloc[8:15]

# %% [markdown]
# And a tensor, for code of your own:

# %%
print(sweep.delta_p.shape, "= anchor, layer, example")

# %% [markdown]
# ## One question
#
# A mean hides its questions. `show` draws one, found by its number, its id or words of its question: its tokens with their roles,
# and its own curve.

# %%
sweep.plot_example(0)

# %% [markdown]
# ## Keep it
#
# A run directory holds every measurement, the record of how it was made, and the figure; `anchorlens verify` measures
# random cells of it again. Nothing is lost when the notebook is closed.

# %%
sweep.save("runs/quickstart", overwrite=True)
(again,) = al.load_run("runs/quickstart")
print(again.run_id == sweep.run_id)
sweep.dropped_counts  # nothing is left out silently: how many rows, and why

# %% [markdown]
# **Next**: [2_swap](2_swap.ipynb) goes through the swap step by step,
# [3_knockout_and_its_pitfalls](3_knockout_and_its_pitfalls.ipynb) through the other main protocol,
# [4_your_own](4_your_own.ipynb) brings your questions, model, prompt and readout,
# [5_reading_a_report](5_reading_a_report.ipynb) reads a finished run.
