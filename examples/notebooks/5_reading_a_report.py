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
# This notebook reads finished runs: the findings, the checks, and single questions. About four minutes of one core.
#
# First, two small sweeps are measured and saved:

# %%
from IPython.display import IFrame

import anchorlens as al

model = al.load_model("smollm2-135m-instruct")
swap = al.swap_sweep(
    model,
    al.load_qa("nq-sample", limit=60),
    known_only=True,
    prompt="fewshot(2)",
    n_donors=1,
    layers="0-28:4",
    seed=0,
)
knockout = al.knockout_sweep(
    model, al.load_qa("nq-sample", limit=110), split_placebo_by_side=False, seed=0
)
al.save_run([swap, knockout], "runs/both", overwrite=True)

# %% [markdown]
# ## The report
#
# The report is one HTML page that needs no network and no Python. From a shell:
# `anchorlens report runs/both --out runs/report.html`.

# %%
al.save_report("runs/both", "runs/report.html", title="SmolLM2-135M on NQ-style questions")
IFrame("runs/report.html", width="100%", height=700)

# %% [markdown]
# Read it in this order.
#
# ### 1. The verdict
#
# The verdict names the effects that are *detected*, their layers, and the effects that the data do not exclude elsewhere.
# "Not detected" does not mean "absent". Of a swap:

# %%
results = {result.protocol.name: result for result in al.load_run("runs/both")}
print(results["swap"].verdict)

# %% [markdown]
# *Beyond other positions*: P falls more than after a swap of other positions. *Beyond a matched change*: it falls more
# than after a change of the same norm and angle, too. *Donor's answer*: the donor's answer becomes more likely. Of a
# knockout:

# %%
print(results["knockout"].verdict)

# %% [markdown]
# Three contrasts show that the effect *stands*, the fourth that it is *specific* to the row. *Single splits* is the range
# over the five splits: a claim should not depend on one of them.

# %% [markdown]
# ### 2. The checks
#
# | check | reason |
# | --- | --- |
# | n and P before | few questions or a low P before give little information |
# | dropped rows | the verdict applies to the remaining rows only |
# | contrasts and controls | evidence is the contrasts of a knockout (not its gap), or the curve of a swap minus each of its nulls |
# | text baselines | if the text separates true from false answers, the probe may read the text |
# | spot checks | some values were recomputed with the reference engine (hooks and full forward passes) |

# %%
results["swap"].dropped_counts

# %%
checks, noise = swap.record["checks"], swap.record["noise"]
print(f"cells recomputed by the reference engine: {checks['cells']}")
print(f"noise floor below 0.001 points: {noise['floor'] < 1e-3}")

# %% [markdown]
# ### 3. Single questions
#
# The report's table of examples can be searched and sorted. A row opens to its tokens and its own curve. Below, the
# questions with the strongest and the weakest effect. Compare ΔP with P before, its lower limit. A single example is an
# illustration, not evidence.

# %%
at = swap.layers.index(20)
own = swap.delta_p[swap.anchors.index("exact_question"), at]
strongest, weakest = (swap.example_ids[int(k)] for k in (own.argmin(), own.argmax()))
swap.plot_example(strongest)

# %%
swap.plot_example(weakest)

# %%
swap.samples().query("example_id == @weakest and layer == 20")[
    ["anchor", "control", "effect", "value_before"]
].round(2)

# %% [markdown]
# Here the rules took *country* and *currency* as the segments, and missed *yen*. A swap of the marked tokens changes nothing;
# a swap of other words (`same_role`) costs 85 points. A mean does not show such an error, a single question does. Tables of
# segments: [2_swap](2_swap.ipynb).
#
# `al.explore(swap)` shows the examples with a layer slider and colours the tokens by |ΔP|. It needs the extra `explorer`.
#
# ### 4. The figure
#
# The figure is in the report, with controls and differences from them, and in the run directory without them as
# `figure.html`. Filled marks and shaded layers are the claims of the verdicts above. A page has the caption below the
# figure. In a notebook:

# %%
al.plot_curves(list(results.values()), colour="dataset", controls=True, contrasts=True)

# %% [markdown]
# A saved page (`al.save_figure(figure, "figure.html")`) also fits its legend to the width of the window.
# `IFrame("figure.html", "100%", 800)` shows such a page in a notebook.
#
# ### 5. Verify the run
#
# `verify_run` compares all files with their stored hashes, and the model and questions with those of the run. It then
# recomputes random cells from the files.

# %%
found = al.verify_run("runs/both", cells=12)
found.table()[["what", "status"]]

# %%
print("all checks passed:", found.ok)

# %% [markdown]
# `verify` detects changed files, models and code. It does not test whether the questions and spans are suitable.
#
# ### 6. Repeat the measurement
#
# The report's last section has a study file for `anchorlens run study.toml`. In Python, use the specification of a sweep:

# %%
print(al.Swap.from_config(swap.record["config"]).to_toml())

# %% [markdown]
# More: [docs/report.md](../../docs/report.md), [docs/verify.md](../../docs/verify.md).
