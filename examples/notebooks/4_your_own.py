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
# Each section replaces one part of a sweep. About seven minutes of one core.

# %%
from pathlib import Path

import pandas as pd
import torch

import anchorlens as al

# %% [markdown]
# ## Your own questions
#
# A csv, tsv, json, jsonl or parquet file with a question and an answer in each row. Columns may have any name. An
# example file:

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
    rows.append(
        {"q": f"What language is spoken in {country}?", "gold": language, "entity": country}
    )
table = pd.DataFrame(rows)
Path("runs").mkdir(exist_ok=True)
table.to_csv("runs/mine.csv", index=False)
table.head(3)

# %% [markdown]
# `columns` maps our fields to your columns. `question` and `answers` are required. Here the subject is given too, so
# rules find only the property.

# %%
data = al.load_qa(
    "runs/mine.csv", columns={"question": "q", "answers": "gold", "subject": "entity"}
)
data

# %% [markdown]
# **Check the segments.** `subject` and `property` define the anchor `exact_question`. If they are wrong, give the columns
# `subject` and `property` (or `subject_span` and `property_span`), or a function as `spans=`.

# %%
data.to_frame()[["question", "subject", "property", "answers", "answer_type", "span_source"]].iloc[
    [0, 1, -2, -1]
]

# %% [markdown]
# ## The first measurement
#
# `known_only` keeps the questions that the model answers correctly. A row also needs a *donor*: another question of the
# same kind whose segments have equally many tokens. `dropped_counts` counts the dropped rows by reason.

# %%
model = al.load_model("smollm2-135m-instruct")
options = {"known_only": True, "n_donors": 1, "layers": (0, 8, 16, 22, 24, 29), "seed": 0}
first = al.swap_sweep(model, data, prompt="fewshot(2)", **options)
first

# %%
first.dropped_counts

# %% [markdown]
# Below 20 questions a swap claims nothing; with more, the verdict separates layers. *Beyond other positions* and *beyond
# a matched change* are differences from the two nulls, *donor's answer* says that the donor's content came in.
#
# For more rows, `align="last"` accepts segments of any length, paired from their last token, and `donors="random"`
# accepts any other question. More questions of each kind are better than either.
#
# ## Your own prompt
#
# Any text that contains `{question}`. If no space should precede the answer, end the text in white space.

# %%
own_prompt = (
    "Question: What is the capital of Canada?\nAnswer: Ottawa\n\nQuestion: {question}\nAnswer:"
)
second = al.swap_sweep(model, data, prompt=own_prompt, **options)
al.plot_curves({"fewshot(2)": first, "own prompt": second})

# %% [markdown]
# The two runs do not contain the same rows, because the model answers other questions correctly with each prompt.
# `compare` uses the 40 common questions, paired:

# %%
comparison = al.compare(first, second, labels=("fewshot(2)", "own prompt"))
comparison.table()[
    [
        "anchor",
        "layer",
        "first",
        "second",
        "difference",
        "sim_low",
        "sim_high",
        "n",
        "only_first",
        "only_second",
    ]
].round(1)

# %%
for name, run in (("fewshot(2)", first), ("own prompt", second)):
    print(
        f"{name}: P before {run.summary()['value_before'].iloc[0]:.2f}, {len(run.example_ids)}"
        " questions"
    )

# %% [markdown]
# P before is nearly equal, so ΔP has the same range in both runs. The band (`sim_low`, `sim_high`) excludes zero at one
# layer only, 24 of `exact_question`. A prompt with a low P before gives a small ΔP. Report every ΔP with its P before.

# %% [markdown]
# ## Your own readout
#
# A readout defines P. It receives the log-probabilities of the answer's tokens, `[example answer_token]`, and a mask of
# the real tokens. It returns the logarithm of a probability for each example. This one uses the *least* probable token:


# %%
def weakest_token(log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return log_probs.masked_fill(~mask, 0.0).min(dim=1).values


third = al.swap_sweep(model, data, prompt="fewshot(2)", readout=weakest_token, **options)
third.summary()[
    ["anchor", "max_layer", "effect", "sim_low", "sim_high", "value_before", "n"]
].round(1)

# %% [markdown]
# Most answers here are a single token, so little changes. The code of your function is part of the run's identity:
# another function with the same name gives another `run_id`.

# %%
print(first.record["config"]["readout"], "|", third.record["config"]["readout"])
print("the same run:", first.run_id == third.run_id)

# %% [markdown]
# ## Your own model
#
# `load_model` accepts a hub name, a directory, a `.gguf` file, a Hugging Face model in memory (with `tokenizer=`), or a
# HookedTransformer. A HookedTransformer is used as it is, so you can measure a changed model. Here the MLP of layer 14
# is set to zero:

# %%
changed = al.load_model("smollm2-135m-instruct")
with torch.no_grad():
    changed.blocks[14].mlp.W_out.zero_()
    changed.blocks[14].mlp.b_out.zero_()
fourth = al.swap_sweep(changed, data, prompt="fewshot(2)", **{**options, "known_only": False})
fourth.summary()[
    ["anchor", "max_layer", "effect", "sim_low", "sim_high", "value_before", "n"]
].round(1)

# %% [markdown]
# Check P before first: if it is near zero, a flat curve has no meaning.
#
# A directory in the Hugging Face format also works. Its log-probabilities are compared with Hugging Face's, and a model
# that cannot be converted exactly is refused. This example model is tiny and random:

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
pd.Series(
    {
        "name": card.name,
        "source": card.source,
        "layers": card.n_layers,
        "parity below 1e-3": card.parity < 1e-3,
    }
)

# %% [markdown]
# With a random model P before is 0, so every curve is flat. This is not evidence for "no effect".

# %%
flat = al.swap_sweep(mine, data, n_donors=1, align="last")
flat.summary()[["anchor", "max_layer", "effect", "sim_low", "sim_high", "value_before", "n"]].round(
    3
)

# %% [markdown]
# ## Errors
#
# An error message states the problem and the fix. For example, without `columns`:

# %%
try:
    al.load_qa("runs/mine.csv")
except al.InputError as why:
    print(why)

# %% [markdown]
# All errors and fixes: [docs/errors.md](../../docs/errors.md). Your own donor rules, sites and span functions:
# [docs/extending.md](../../docs/extending.md). **Next**: [5_reading_a_report](5_reading_a_report.ipynb).
