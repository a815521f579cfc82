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
# # Patching
#
# Activation patching of a clean and a corrupted prompt: facts, indirect objects and induction. The pairs of prompts are
# included. About two minutes on two cores.

# %%
import torch

import anchorlens as al

model = al.load_model("smollm2-135m-instruct")

# %% [markdown]
# ## Facts
#
# The two prompts of a pair differ in the country. `answer` continues the clean prompt, `wrong` the corrupted one. The
# two pairs of a *group* are the two directions of one couple of countries.

# %%
facts = al.load_pairs("facts-pairs", limit=20)
facts.to_frame()[["group", "clean", "corrupted", "answer", "wrong"]].head(4)

# %% [markdown]
# Check the tokens first. A patch by position needs prompts in which equal positions have equal roles.

# %%
al.tokenize_pairs(model, facts)[["clean", "corrupted"]].head(2)

# %% [markdown]
# The sweep runs the *corrupted* prompt. At one layer and one position it replaces the residual stream by that of the
# *clean* run (*denoising*). The metric is the logit of the answer minus that of the wrong answer. A recovered share of 0
# is the corrupted run, 1 is the clean run.

# %%
grid = al.patch_sweep(model, facts, by="position", layers="0-28:2,29", seed=0)
grid

# %%
al.plot_heatmap(grid, quantity="recovered_share")

# %% [markdown]
# Each column is a position. Up to layer 22, only a patch at the country restores the answer. From layer 24 on, only a
# patch at the last token does: the information has moved from the country to the last position. Before the country,
# both prompts are equal, so a patch changes nothing. At layer 0 a patch at the country exchanges the word itself. Such
# cells hold by construction and are not tested.
#
# A cell *stands* if the band over groups excludes 0, for all cells together, also after each of the two controls is
# subtracted. `other_pair` patches the activations of another pair, `norm_matched` turns the activation in the direction
# of two further pairs, with the norm and angle of the patch. Both are measured from 10 groups on. Cells that stand are
# named and outlined from 20 groups on; with the 10 groups here, the verdict says only that there are some.
#
# The same numbers as a labelled array:

# %%
grid.to_xarray("effect").mean("pair").to_pandas().round(1)

# %% [markdown]
# A patched residual stream holds everything computed so far. The outputs of attention and MLP show which layers *write*
# the information. Four pairs are enough for a figure, not for a claim: with fewer than 10 groups there are no bands and
# no outlines.

# %%
few = al.load_pairs("facts-pairs", limit=4)
layers = (0, 4, 8, 12, 16, *range(18, 30))
by_site = [
    al.patch_sweep(model, few, by="position", site=site, layers=layers)
    for site in ("resid_pre", "attn_out", "mlp_out")
]
al.plot_heatmap(by_site)

# %%
print(by_site[1].verdict)

# %% [markdown]
# Two outputs have large effects: the MLP of layer 0 at the country, and the attention of layer 23 at the last token.
# Attention in layer 23 moves the information. The effects of other layers are small, because a patch of one output
# leaves the rest of the stream unchanged.
#
# ## Indirect objects
#
# *When John and Mary went to the store, Mary gave a drink to* continues with John. In the corrupted prompt John is the
# repeated name. The metric is logit(John) minus logit(Mary).

# %%
names = al.load_pairs("ioi-pairs", limit=4)
names.to_frame()[["clean", "corrupted", "answer", "wrong"]].head(2)

# %% [markdown]
# `by="head"` patches the output `z` of one head at all positions.

# %%
heads = al.patch_sweep(model, names, by="head", site="z", layers="14-29")
al.plot_heatmap(heads)

# %% [markdown]
# Blue heads raise the logit difference, red heads lower it. Head 3 of layer 23 has the largest effect, and most heads have
# almost none. Two groups of names are a description: the heads of other names and sentences can differ.
#
# The slider below the figure shows each pair (in your notebook, not in the stored picture). In a script, `grid` selects one:

# %%
first = names.pairs[0].id
grid_of_first = heads.grid(first)
best = abs(grid_of_first.values).argmax()
row, column = divmod(int(best), grid_of_first.values.shape[1])
print(
    f"{first}: layer {grid_of_first.layers[row]}, {grid_of_first.places[column]},"
    f" {grid_of_first.values[row, column]:+.2f} logits"
)

# %% [markdown]
# ## The same with TransformerLens' functions
#
# `from anchorlens import patching` has the functions of `transformer_lens.patching`. They take a prompt, the clean run's
# cache and a metric, and return the metric after each patch, `[layer pos]`.

# %%
from anchorlens import patching

pair = names.pairs[0]
clean, corrupted = (
    model.to_tokens(text, prepend_bos=False) for text in (pair.clean, pair.corrupted)
)
answer, wrong = (model.to_single_token(text) for text in (pair.answer, pair.wrong))


def logit_diff(logits: torch.Tensor) -> torch.Tensor:
    return logits[0, -1, answer] - logits[0, -1, wrong]


_, cache = model.run_with_cache(clean)
with torch.no_grad():
    stream = patching.get_act_patch_resid_pre(model, corrupted, cache, logit_diff)
stream.shape

# %% [markdown]
# `patch_sweep` gives the same values for this pair. It adds controls, bands, resumable runs and reports.

# %%
by_position = al.patch_sweep(
    model, al.load_pairs("ioi-pairs", limit=1), by="position", controls="none"
)
difference = torch.from_numpy(by_position.to_xarray("value_after").to_numpy()[0]) - stream.double()
print("equal within 0.001 logits:", bool(difference.abs().max() < 1e-3))
al.plot_heatmap(by_position)

# %% [markdown]
# One pair: the information which name is repeated is at that name up to layer 20, and at the last position from layer 25
# on. Between them, both have a part of the effect.
#
# ## Induction
#
# A list of words is repeated, and the model continues it: *castle stone market castle stone* → *market*. In the corrupted
# prompt the word to be copied is exchanged with a later one. *Induction heads* attend to the token after the previous
# occurrence of the current one.

# %%
lists = al.load_pairs("induction-pairs", limit=2)
copying = al.patch_sweep(model, lists, by="head", site="z", layers="14-29")
al.plot_heatmap(copying)

# %% [markdown]
# The attention pattern gives an independent score: mean attention from each token of a repeated random sequence to the
# token after its previous occurrence. It uses neither the pairs nor a patch.

# %%
length = 50
half = torch.randint(
    100, model.cfg.d_vocab, (4, length), generator=torch.Generator().manual_seed(0)
)
_, cache = model.run_with_cache(
    torch.cat([half, half], dim=1), names_filter=lambda name: name.endswith("hook_pattern")
)
query = torch.arange(length, 2 * length)
scores = torch.stack(
    [
        cache["pattern", layer][:, :, query, query - length + 1].mean((0, 2))
        for layer in range(14, 30)
    ]
)

table = copying.to_xarray().mean("pair").to_dataframe("effect").reset_index()
table["induction score"] = scores.flatten().numpy()
table.sort_values("effect", ascending=False).head(8)[
    ["layer", "head", "effect", "induction score"]
].round(2)

# %% [markdown]
# Most heads with a large effect have a high score. The agreement is far from complete: some heads with a high score have
# a small effect, and some heads with an effect have no score. `benchmarks/induction_heads.py` measures it on all heads
# with 10 groups of pairs ([results](../../docs/results.md#patching)).
#
# **What not to conclude**
#
# - That a head with an effect does the whole computation: later heads use its output.
# - That a head without an effect is unused: another head can do the same.
# - Anything from four pairs or from one. Run 10 groups or more, and read the verdict.
# - That denoising and noising agree: one tests what is sufficient, the other what is necessary.
#
# More: [docs/patch.md](../../docs/patch.md), [docs/pairs.md](../../docs/pairs.md),
# [docs/from_transformerlens.md](../../docs/from_transformerlens.md).
