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
# # Edges and circuits
#
# Which heads talk to which, and which edges are enough for a task. An *edge* connects a sender (embedding, head, MLP) to
# a receiver (the queries, keys or values of a head, an MLP, the logits). About four minutes on two cores.

# %%
import random

import anchorlens as al

model = al.load_model("smollm2-135m-instruct")

# %% [markdown]
# ## Pairs with a known mechanism
#
# A list of words is repeated up to its fifth word: *cat dog tree house river stone … cat dog tree house river* → *stone*.
# In the corrupted prompt another word stands before *stone*. An *induction head* finds *stone* by its key, which must
# hold the word before it. So another head has to write that word into the key.

# %%
WORDS = [
    "cat",
    "dog",
    "tree",
    "house",
    "river",
    "stone",
    "bread",
    "light",
    "water",
    "chair",
    "green",
    "table",
    "apple",
    "night",
    "cloud",
    "horse",
    "glass",
    "paper",
    "music",
    "plant",
]
rng = random.Random(0)
rows = []
for _ in range(12):
    *words, other = rng.sample(WORDS, 9)
    changed = [*words[:4], other, *words[5:]]
    repeated = " ".join(words[:5])
    row = {
        "clean": f" {' '.join(words)} {repeated}",
        "corrupted": f" {' '.join(changed)} {repeated}",
        "answer": f" {words[5]}",
        "wrong": f" {words[3]}",
        "template": "list",
    }
    rows.append(row)
lists = al.load_pairs(rows)
lists.to_frame()[["clean", "corrupted", "answer", "wrong"]].head(2)

# %% [markdown]
# ## Which heads talk to which, in ten lines
#
# Edge attribution scores every edge from a head to a key with one backward pass for each pair. It is an estimate. The
# edges with the largest scores are then measured exactly, with error bars and a control.

# %%
scores = al.edge_sweep(
    model, lists, senders="heads", receivers="k", method="attribution", controls="none"
)
best = tuple(scores.table(24)["edge"])
edges = al.edge_sweep(model, lists, edges=best)
print(edges.verdict)

# %%
table = edges.table(8).set_index("edge")
table["attribution"] = scores.table().set_index("edge")["effect"]
table[["effect", "sim_low", "sim_high", "other_pair", "stands", "attribution"]].round(3)

# %% [markdown]
# An edge *stands* if the band of its effect excludes 0, for all 24 edges together, also after the control is subtracted.
# `other_pair` is the same edge with the contribution of another pair. One head of layer 16 writes into the keys of
# later layers. Attribution ranks these edges first and is far off in their size: do not read sizes from it.
#
# Does that head attend to the previous token?

# %%
tokens = model.to_tokens(lists.pairs[0].clean, prepend_bos=False)
_, cache = model.run_with_cache(tokens)
layer, head = (int(part[1:]) for part in table["effect"].idxmax().split(" -> ")[0].split("."))
to_previous = cache["pattern", layer][0, head].diagonal(-1).mean()
print(f"a{layer}.h{head}: attention to the previous token {to_previous:.2f}")

# %%
al.plot_heatmap(edges)

# %% [markdown]
# ## What did the screen miss?
#
# `screen_edges` does both steps and adds an audit: a random sample of the edges that were not candidates is measured too.
# From it follows how many others reach the cut at most. Here with the keys of one layer and four pairs.

# %%
screen = al.screen_edges(
    model, al.load_pairs(rows[:4]), senders="heads", receivers="a18.*.k", top=10, audit=60, cut=0.1
)
print(screen)

# %% [markdown]
# ## A circuit in ten lines
#
# *When John and Mary went to the store, Mary gave a drink to* continues with John. All 70,651 edges are scored with
# integrated gradients on six pairs. A *circuit* is a set of edges: in its run, all other edges carry the contributions
# of the corrupted prompt.

# %%
names = al.load_pairs("ioi-pairs")
to_find = al.load_pairs("ioi-pairs", limit=6)
found = al.edge_sweep(model, to_find, method="attribution_ig", controls="none")
circuit = found.circuit(top=700)
print(circuit)

# %% [markdown]
# *Faithfulness* is the share of the metric that a circuit keeps. Score it on pairs that did not select the circuit.

# %%
others = al.load_pairs(names.to_frame().iloc[40:52])
faithful = circuit.faithfulness(model, others)
faithful.table().round(3)

# %% [markdown]
# One percent of the edges keeps most of the metric, and the other 99 % without them keep almost nothing (`rest`). The
# strongest edges of the circuit that are on a path to the logits:

# %%
al.plot_circuit(circuit.of_size(60).prune())

# %% [markdown]
# ## Heads that back each other up
#
# A single edge shows nothing where another head does the same. `repaired` is the part of a head's direct effect that
# later layers replace, and `interaction` is the loss by two heads together minus the sum of their single losses.

# %%
heads = al.head_effects(model, al.load_pairs("ioi-pairs", limit=4), joint=3)
heads.singles.round(2).head(6)

# %%
heads.joint.round(2).head(6)

# %% [markdown]
# Files for other programs: `al.save_circuit(circuit, "circuit.json")` writes the JSON of EAP-IG and of the MIB benchmark.
#
# **What not to conclude**
#
# - That the edges of a circuit are all that matter: edges with the same task may be missing, if either is enough.
# - That a high faithfulness on the pairs that selected the circuit holds on others.
# - That attribution gives sizes. It ranks, and it misses saturated attention ([edges](../../docs/edges.md)).
# - Anything about other names or sentences from one template.
#
# More: [docs/edges.md](../../docs/edges.md), [docs/circuits.md](../../docs/circuits.md),
# [docs/from_eap_ig.md](../../docs/from_eap_ig.md).
