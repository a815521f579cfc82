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
# # Reading a report
#
# You have finished runs, or somebody has sent you some. What was found, may it be believed, and what do single
# questions say? About two minutes on two cores.
#
# First two small runs, as a script or `anchorlens run` would leave them on disk.

# %%
from IPython.display import IFrame

import anchorlens as al

model = al.load_model("smollm2-135m-instruct")
swap = al.swap_sweep(
    model, al.load_qa("nq-sample", limit=60), known_only=True, prompt="fewshot(2)", n_donors=1, layers="0-28:4", seed=0
)
knockout = al.knockout_sweep(model, al.load_qa("nq-sample", limit=110), seed=0)
al.save_run([swap, knockout], "runs/both", overwrite=True)

# %% [markdown]
# ## One page with everything
#
# The page needs no network and no Python: send it as it is. (The same from a shell: `anchorlens report runs/both --out
# runs/report.html`.)

# %%
al.save_report("runs/both", "runs/report.html", title="SmolLM2-135M on NQ-style questions")
IFrame("runs/report.html", width="100%", height=700)

# %% [markdown]
# Read it in this order.
#
# ### 1. The verdict
#
# It says what is *shown*, then at which layers, then what the data allow elsewhere. "Not shown" is not "absent".

# %%
results = {result.protocol.name: result for result in al.load_run("runs/both")}
print(results["knockout"].verdict)

# %% [markdown]
# ### 2. Whether it can be believed
#
# - *n*, and P before: a curve of few questions, or of answers that the model does not give, says little.
# - *What was left out*, and why: the verdict speaks of the rest alone.
# - *Contrasts and controls*: a knockout's gap is no evidence, its contrasts are; of a swap it is the curve less its
#   null.
# - *Checks*: some cells were measured twice, in another way.

# %%
results["swap"].dropped_counts

# %%
checks, noise = swap.record["checks"], swap.record["noise"]
print(f"cells measured again by plain hooks and full passes: {checks['cells']}")
print(f"noise floor below 0.001 points: {noise['floor'] < 1e-3}")

# %% [markdown]
# ### 3. Single questions
#
# The report's table of examples can be searched and sorted; a row opens into its tokens and its own curve. The same
# here: the question with the strongest effect, and the one with the weakest. A weak fall may be all that there was to
# lose, so read it beside P before. An example is an illustration, whichever you choose.

# %%
at = swap.layers.index(20)
own = swap.delta_p[swap.anchors.index("exact_question"), at]
strongest, weakest = (swap.example_ids[int(k)] for k in (own.argmin(), own.argmax()))
swap.plot_example(strongest)

# %%
swap.plot_example(weakest)

# %% [markdown]
# With `pip install 'anchorlens[explorer]'`, `al.explore(swap)` shows these with the layer under a slider: the tokens
# light up as far as the answer hangs on them at that layer.
#
# ### 4. The figure
#
# It is in the report, and in the run directory as `figure.html`. To look at it in a notebook:

# %%
al.plot_curves(list(results.values()), colour="dataset")

# %% [markdown]
# A saved page (`al.save_figure(figure, "figure.html")`, or the report) does more than the figure in a notebook: it
# arranges its legend by the width of the window, and after two double-clicks shows again exactly what you had before.
# `IFrame("figure.html", "100%", 800)` puts such a page into a notebook.
#
# ### 5. Is the run what was written?
#
# `verify_run` compares every byte with the hashes that were written with the run, the model and the questions with
# those that were measured, and measures random cells again from the files alone.

# %%
found = al.verify_run("runs/both", cells=12)
found.table()[["what", "found"]]

# %%
print("all well:", found.ok)

# %% [markdown]
# `verify` is a check of copies, disks and code. It cannot say whether the questions are good, or the spans right.
#
# ### 6. Measuring it again
#
# The report's last section has a study's file: `anchorlens run study.toml` measures the same. In Python, a sweep's own
# specification does.

# %%
print(al.Swap.from_config(swap.record["config"]).to_toml())

# %% [markdown]
# More: [docs/report.md](../../docs/report.md), [docs/verify.md](../../docs/verify.md).
