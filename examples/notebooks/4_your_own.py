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
# # Your own questions, model, prompt and readout
#
# Replace each part by yours, one at a time, and look at what was understood before you measure. About two minutes on
# two cores.

# %%
from pathlib import Path

import pandas as pd
import torch

import anchorlens as al

# %% [markdown]
# ## Your own questions
#
# A csv, tsv, json, jsonl or parquet file with a question and an answer in each row; columns may have any name. Let this
# be yours:

# %%
countries = """
France Paris French, Japan Tokyo Japanese, Italy Rome Italian, Spain Madrid Spanish, Russia Moscow Russian, China Beijing Chinese,
Germany Berlin German, Egypt Cairo Arabic, Iran Tehran Persian, Poland Warsaw Polish, Greece Athens Greek, Austria Vienna German,
Portugal Lisbon Portuguese, Sweden Stockholm Swedish, Norway Oslo Norwegian, Cuba Havana Spanish, Peru Lima Spanish,
Turkey Ankara Turkish, Hungary Budapest Hungarian, Denmark Copenhagen Danish, Thailand Bangkok Thai, Ireland Dublin English
"""
rows = []
for country, capital, language in (part.split() for part in countries.split(",")):
    rows.append({"q": f"What is the capital of {country}?", "gold": capital, "entity": country})
    rows.append({"q": f"What language is spoken in {country}?", "gold": language, "entity": country})
table = pd.DataFrame(rows)
Path("runs").mkdir(exist_ok=True)
table.to_csv("runs/mine.csv", index=False)
table.head(3)

# %% [markdown]
# `columns` says which of your columns is what: our field first. `question` and `answers` are needed. Here the subject
# is given, too, so only the property has to be found.

# %%
data = al.load_qa("runs/mine.csv", columns={"question": "q", "answers": "gold", "subject": "entity"})
data

# %% [markdown]
# **Look at what was found.** `subject` and `property` are what the "question" curve is about. If they are wrong, give
# them: columns `subject` and `property`, or `subject_span` and `property_span`, or a function with `spans=`.

# %%
data.to_frame()[["exact_question", "subject", "property", "answers", "answer_type", "span_source"]].iloc[[0, 1, -2, -1]]

# %% [markdown]
# ## The first measurement
#
# `known_only` keeps the questions that the model answers right. A row also needs a *donor*: another question of the
# same kind whose two segments have as many tokens as its own. `dropped_counts` says what that cost.

# %%
model = al.load_model("smollm2-135m-instruct")
options = {"known_only": True, "n_donors": 1, "layers": (0, 8, 16, 20, 22, 24, 26, 29), "seed": 0}
first = al.swap_sweep(model, data, prompt="fewshot(2)", **options)
first

# %%
first.dropped_counts

# %% [markdown]
# Too few rows? `align="last"` takes donors of any length (pairs are counted from the last token of each segment),
# `donors="random"` any other question. Both ask for less, and the outputs name them. More questions of each kind are
# better than either.
#
# ## Your own prompt
#
# Any text with `{question}` in it. Where the answer follows without a space, end the text in white space.

# %%
own_prompt = "Answer in one word.\nQuestion: {question}\nAnswer:"
second = al.swap_sweep(model, data, prompt=own_prompt, **options)
al.plot_curves({"fewshot(2)": first, "own prompt": second})

# %% [markdown]
# The two runs have measured different rows: with each prompt the model knows others. Compare only what both have,
# question by question:

# %%
comparison = al.compare(first, second, labels=("fewshot(2)", "own prompt"))
comparison.table()[
    ["anchor", "layer", "first", "second", "difference", "sim_low", "sim_high", "n", "only_first", "only_second"]
].round(1)

# %%
for name, run in (("fewshot(2)", first), ("own prompt", second)):
    print(f"{name}: P before {run.summary()['p_before'].iloc[0]:.2f}, {len(run.example_ids)} questions")

# %% [markdown]
# Nearly all of the difference is that of P before: with the second prompt the model is less sure, so there is less to
# lose. The layer of the hand-over is the same. Read every ΔP beside its P before.

# %% [markdown]
# ## Your own readout
#
# What P is. You get the log-probabilities of the answer's tokens `[example answer_token]` and a mask of the real ones,
# and return the logarithm of a probability for each example. This one reads the answer's *least* probable token:


# %%
def weakest_token(log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return log_probs.masked_fill(~mask, 0.0).min(dim=1).values


third = al.swap_sweep(model, data, prompt="fewshot(2)", readout=weakest_token, **options)
third.summary()[["anchor", "max_layer", "effect", "sim_low", "sim_high", "p_before", "n"]].round(1)

# %% [markdown]
# (Most answers here are a single token, so little changes.) Code of your own is part of a run's name: another function
# under the same name gives another `run_id`.

# %%
print(first.record["config"]["readout"], "|", third.record["config"]["readout"])
print("the same run:", first.run_id == third.run_id)

# %% [markdown]
# ## Your own model
#
# `load_model` takes a hub name, a directory, a `.gguf` file, a live Hugging Face model (with `tokenizer=`), or a live
# HookedTransformer. A live HookedTransformer is used as it is, so you can measure a model that you have changed. Here
# the MLPs of six layers are switched off:

# %%
changed = al.load_model("smollm2-135m-instruct")
with torch.no_grad():
    changed.blocks[14].mlp.W_out.zero_()
    changed.blocks[14].mlp.b_out.zero_()
fourth = al.swap_sweep(changed, data, prompt="fewshot(2)", **{**options, "known_only": False})
fourth.summary()[["anchor", "max_layer", "effect", "sim_low", "sim_high", "p_before", "n"]].round(1)

# %% [markdown]
# Look at P before first: where it is near zero, a flat curve says nothing.
#
# A directory as Hugging Face writes it. What is loaded is compared with Hugging Face's own log-probabilities before you
# get it, and a model that cannot be rebuilt exactly is refused. This one is tiny and random; only the path matters:

# %%
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=len(model.tokenizer),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
)
torch.manual_seed(0)
LlamaForCausalLM(config).save_pretrained("runs/my-model")
model.tokenizer.save_pretrained("runs/my-model")
mine = al.load_model("runs/my-model")
card = al.model_card(mine)
pd.Series({"name": card.name, "source": card.source, "layers": card.n_layers, "parity below 1e-3": card.parity < 1e-3})

# %% [markdown]
# A random model knows nothing: P before is 0, and every curve is flat. Both look like "no effect", and neither is.

# %%
flat = al.swap_sweep(mine, data, n_donors=1, align="last")
flat.summary()[["anchor", "max_layer", "effect", "sim_low", "sim_high", "p_before", "n"]].round(3)

# %% [markdown]
# ## When something is wrong
#
# Every mistake that was foreseen says what to do. For example, without `columns`:

# %%
try:
    al.load_qa("runs/mine.csv")
except al.InputError as why:
    print(why)

# %% [markdown]
# All errors and their cures: [docs/errors.md](../../docs/errors.md). Donor rules, sites and span extractors of your
# own: [docs/architecture.md](../../docs/architecture.md). **Next**: [5_reading_a_report](5_reading_a_report.ipynb).
