"""A name, a path or a live model becomes a HookedTransformer whose states and logits are Hugging Face's own.

Nothing is folded, centred or otherwise processed. Families with a mapping of our own (mapping.py) always take it, registered by
TransformerLens or not; other models that TransformerLens registers take its loader. Either way the result is compared with
Hugging Face's log-probabilities before it is returned.
"""

import contextlib
import copy
import io
import itertools
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from anchorlens.errors import InputError, ModelNotFoundError, UnsupportedModelError
from anchorlens.models.card import CARD, adds_bos, make_card
from anchorlens.models.checkpoint import PACKAGED, packaged_directory
from anchorlens.models.devices import pick_device, pick_dtype
from anchorlens.models.hf import load_config, load_gguf, load_tokenizer, load_weights
from anchorlens.models.hub import fetch_config, fetch_gguf, fetch_model, hub_errors
from anchorlens.models.mapping import FAMILIES, hooked_config, text_config
from anchorlens.models.names import nearest_names, registered_name
from anchorlens.models.parity import (
    check_log_probs,
    check_rotary,
    hooked_log_probs,
    parity_tokens,
    reference_log_probs,
    rotary_tables,
)
from anchorlens.models.weights import count_parameters, hooked_state, install

ModelLike: TypeAlias = "str | os.PathLike[str] | HookedTransformer | PreTrainedModel"


@dataclass(frozen=True)
class Source:
    """Where a model's files lie.

    Attributes:
        name: For messages and the card.
        kind: ``packaged``, ``hub``, ``directory`` or ``gguf``.
        path: A Hugging Face directory, or a GGUF file.
        revision: Commit or release, if known.
        registered: TransformerLens's official name, if it registers the model.
    """

    name: str
    kind: str
    path: Path
    revision: str | None = None
    registered: str | None = None


@dataclass(frozen=True)
class Checks:
    """Whether and how strictly parity is checked."""

    on: bool
    tolerance: float | None


def load_model(
    name_or_path: ModelLike,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | str | os.PathLike[str] | None = None,
    token: str | None = None,
    check_parity: bool = True,
    parity_tolerance: float | None = None,
    progress: bool = True,
) -> HookedTransformer:
    """Load a model with Hugging Face's own states and logits, checked against it.

    Args:
        name_or_path: One of

            - ``"smollm2-135m-instruct"``, the packaged demo model;
            - a name on the Hugging Face hub, or a name that TransformerLens registers;
            - a Hugging Face directory (Llama, Mistral, Qwen 2, Qwen 3, Gemma 2, Gemma 3, GPT-2, GPT-NeoX);
            - a ``.gguf`` file, or ``owner/repository/file.gguf`` on the hub;
            - a live Hugging Face model (with ``tokenizer=``), whose weights are copied;
            - a live HookedTransformer, which is returned itself, with a card.
        device: ``"cuda"``, ``"cuda:1"``, ``"mps"`` or ``"cpu"``; by default the first of cuda, mps and cpu that is there.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"``, ``"float64"``, a torch dtype, or ``"auto"`` for the checkpoint's
            own. By default float32, but on an accelerator the checkpoint's own from 10 billion parameters on. A live model
            keeps its own.
        revision: Branch, tag or commit on the hub.
        tokenizer: To use instead of the checkpoint's own: a tokenizer (copied) or a directory that holds one.
        token: Access token for the hub; by default ``HF_TOKEN`` or the stored login.
        check_parity: Compare with Hugging Face's log-probabilities. Switch off only for a checkpoint that has passed before.
        parity_tolerance: Another bound on |Δ log-probability| (default 1e-3 in float32, 0.25 in float16, 2.0 in bfloat16,
            where the mean is bounded as well).
        progress: Show bars for downloads, and for weights above 1 GiB.

    Returns:
        A HookedTransformer with ``model.tokenizer`` as ``AutoTokenizer`` gives it (padding on the right) and
        ``model.anchorlens_card``. Text is tokenised by ``model.to_tokens`` as by that tokenizer: BOS only if it adds one.

    Raises:
        ModelNotFoundError: No such name or path, or a directory without config.json.
        UnsupportedModelError: The model has a feature that no HookedTransformer can reproduce exactly.
        CheckpointError: Damaged or incomplete files.
        DownloadError: Gated, offline or failed.
        ParityError: The result is not Hugging Face's model.
        InputError: An argument that cannot be.
    """
    checks = Checks(check_parity, parity_tolerance)
    own = _given_tokenizer(tokenizer)
    if isinstance(name_or_path, HookedTransformer):
        if device is not None or dtype is not None or revision is not None:
            raise InputError("A live HookedTransformer keeps its device and dtype: move it yourself, and give no revision.")
        return _live_hooked(name_or_path, own)
    if isinstance(name_or_path, PreTrainedModel):
        if revision is not None:
            raise InputError("A live model has no revision. Load it by name to choose one.")
        return _live_huggingface(name_or_path, device, dtype, own, checks)
    source = _find(os.fspath(name_or_path), revision, token, progress)
    return _load_files(source, pick_device(device), dtype, own, checks, progress)


def _given_tokenizer(tokenizer: PreTrainedTokenizerBase | str | os.PathLike[str] | None) -> PreTrainedTokenizerBase | None:
    """The user's tokenizer: a copy of a live one, or the one in a directory."""
    if tokenizer is None:
        return None
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return copy.deepcopy(tokenizer)
    path = Path(tokenizer).expanduser()
    if not path.is_dir():
        raise InputError(f"tokenizer={os.fspath(tokenizer)!r} is neither a tokenizer nor a directory that holds one.")
    return load_tokenizer(path)


def _find(name: str, revision: str | None, token: str | None, progress: bool) -> Source:
    """Where the files of a model are, after fetching them if they are not here."""
    if name in PACKAGED:
        if revision is not None:
            raise InputError(f"The packaged model {name!r} has one release only; leave revision out.")
        packaged = PACKAGED[name]
        return Source(name, "packaged", packaged_directory(packaged), packaged.requirement)
    path = Path(name).expanduser()
    if path.exists():
        if revision is not None:
            raise InputError(f"{name!r} is a local path, which has no revision.")
        return _local(path)
    return _remote(name, revision, token, progress)


def _local(path: Path) -> Source:
    """A directory or a GGUF file."""
    resolved = path.resolve()
    if resolved.is_dir():
        return Source(resolved.name, "directory", resolved)
    if resolved.suffix.lower() == ".gguf":
        return Source(resolved.name, "gguf", resolved)
    raise InputError(f"{str(path)!r} is a file, but not a .gguf file. Give the directory that holds config.json.")


def _remote(name: str, revision: str | None, token: str | None, progress: bool) -> Source:
    """A GGUF file or a checkpoint on the hub."""
    official = registered_name(name)
    repo = official or name
    parts = repo.split("/")
    like_a_path = name.startswith((".", "~", os.sep)) or Path(name).is_absolute() or "\\" in name
    gguf = repo.lower().endswith(".gguf")
    if like_a_path or (gguf and len(parts) < 3) or (not gguf and len(parts) > 2) or not re.fullmatch(r"[\w./-]+", repo):
        raise ModelNotFoundError(
            f"There is no file or directory {name!r}, and it cannot be a name on the hub. {nearest_names(name)}"
        )
    if official is None and len(parts) == 1:
        # The hub is not asked: its names are owner/name, and the few old ones without an owner are all registered.
        raise ModelNotFoundError(
            f"No model goes by {name!r}: it is no path here, no packaged model, and no name that TransformerLens registers. "
            f"{nearest_names(name)} Names on the hub have the form owner/name."
        )
    if gguf:
        path = fetch_gguf("/".join(parts[:2]), "/".join(parts[2:]), revision, token)
        return Source(name, "gguf", path, _commit(path) or revision)
    if official is not None and _without_huggingface(official):
        raise UnsupportedModelError(
            f"{official!r} has no Hugging Face model to be checked against. Load it with HookedTransformer.from_pretrained and "
            "hand the live model to load_model."
        )
    config_file = fetch_config(repo, revision, token)
    # Refuse before gigabytes are fetched.
    _check_supported(load_config(config_file.parent), official, repo)
    directory = fetch_model(repo, revision, token, progress)
    return Source(name, "hub", directory, _commit(directory / "config.json") or revision, official)


def _without_huggingface(official: str) -> bool:
    """Models that exist only as TransformerLens's own weights."""
    from transformer_lens.loading_from_pretrained import NON_HF_HOSTED_MODEL_NAMES

    own = ("NeelNanda/", "ArthurConmy/", "Baidicoot/")
    return official.startswith(own) or official in NON_HF_HOSTED_MODEL_NAMES


def _commit(path: Path) -> str | None:
    """The commit in a path of the hub's cache: ``.../snapshots/COMMIT/file``."""
    parts = path.parts
    for before, part in itertools.pairwise(parts):
        if before == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", part):
            return part
    return None


def _check_supported(config: PretrainedConfig, registered: str | None, name: str) -> None:
    """Refuse a configuration that neither the mapping nor TransformerLens covers."""
    text = text_config(config)
    if text.model_type in FAMILIES:
        hooked_config(config, "cpu", torch.float32, name)
    elif registered is None:
        raise UnsupportedModelError(
            f"{name}: models of type {config.model_type!r} are not mapped. Mapped: {', '.join(FAMILIES)}; other models load "
            "only by a name that TransformerLens registers (`anchorlens models --all`)."
        )


def _load_files(
    source: Source,
    device: str,
    dtype: str | torch.dtype | None,
    tokenizer: PreTrainedTokenizerBase | None,
    checks: Checks,
    progress: bool,
) -> HookedTransformer:
    """From files on disk to the finished model."""
    if source.kind == "gguf":
        kind = torch.float32 if dtype in (None, "auto") else pick_dtype(dtype, device, PretrainedConfig(), source.path.parent)
        model = load_gguf(source.path, kind, progress)
        own = tokenizer or load_tokenizer(source.path.parent, source.path.name)
        _check_supported(model.config, None, source.name)
        return _build(model, device, kind, own, source, checks, adopt=True)
    config = load_config(source.path)
    _check_supported(config, source.registered, source.name)
    kind = pick_dtype(dtype, device, config, source.path)
    own = tokenizer or load_tokenizer(source.path)
    model = load_weights(source.path, config, kind, progress)
    return _build(model, device, kind, own, source, checks, adopt=True)


def _build(
    hf_model: PreTrainedModel,
    device: str,
    dtype: torch.dtype,
    tokenizer: PreTrainedTokenizerBase,
    source: Source,
    checks: Checks,
    adopt: bool,
) -> HookedTransformer:
    """Convert, compare, attach tokenizer and card.

    The reference is computed where the Hugging Face model lies (the CPU, for files) before the weights move, so that no device
    ever holds more than two copies of them; on the CPU most weights are taken over and not copied at all.
    """
    mapped = text_config(hf_model.config).model_type in FAMILIES
    n_params = count_parameters(hf_model)
    tokens = parity_tokens(hf_model)
    reference = reference_log_probs(hf_model, tokens) if checks.on else None
    try:
        if mapped:
            cfg = hooked_config(hf_model.config, device, dtype, source.name)
            model = _quiet_hooked(cfg)
            tables = rotary_tables(hf_model, 2048) if checks.on else {}
            install(model, hooked_state(hf_model, cfg), adopt)
            check_rotary(model, tables, source.name)
        else:
            model = _registered(hf_model, device, dtype, tokenizer, source)
        model.eval()
        parity = None
        if reference is not None:
            parity = check_log_probs(hooked_log_probs(model, tokens), reference, dtype, source.name, checks.tolerance)
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"{source.name} does not fit on {device} in {str(dtype).removeprefix('torch.')}. "
            "Pass dtype='bfloat16' or device='cpu'."
        ) from error
    _attach_tokenizer(model, tokenizer)
    architecture = type(hf_model).__name__
    card = make_card(model, source.name, source.kind, source.revision, architecture, parity, n_params)
    object.__setattr__(model, CARD, card)
    return model


def _quiet_hooked(cfg: HookedTransformerConfig) -> HookedTransformer:
    """A HookedTransformer without its notice that the class will go in TransformerLens 4 (this package asks for 3)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer", DeprecationWarning)
        return HookedTransformer(cfg, move_to_device=False)


def _registered(
    hf_model: PreTrainedModel, device: str, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase, source: Source
) -> HookedTransformer:
    """A model of another architecture, by TransformerLens's own loader, unprocessed."""
    if source.registered is None:
        raise UnsupportedModelError(f"{source.name}: TransformerLens does not register this model.")
    # The loader prints what it loaded; this package prints nothing.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), hub_errors(source.registered, None):
        warnings.filterwarnings("ignore", "HookedTransformer", DeprecationWarning)
        return HookedTransformer.from_pretrained_no_processing(
            source.registered, hf_model=hf_model, device=device, dtype=dtype, tokenizer=copy.deepcopy(tokenizer)
        )


def _attach_tokenizer(model: HookedTransformer, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give the model the tokenizer as it is.

    TransformerLens's ``set_tokenizer`` would load it again with BOS switched on. Padding goes to the right, and where there is
    no padding token the end-of-text token serves: it exists already, so no id changes.
    """
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    model.tokenizer = tokenizer
    # With both the same, to_tokens neither adds a BOS nor takes one away.
    model.cfg.tokenizer_prepends_bos = model.cfg.default_prepend_bos = adds_bos(tokenizer)


def _live_hooked(model: HookedTransformer, tokenizer: PreTrainedTokenizerBase | None) -> HookedTransformer:
    """A HookedTransformer that the user made: nothing to compare it with, so its card says no parity."""
    if tokenizer is not None:
        _attach_tokenizer(model, tokenizer)
    elif model.tokenizer is None:
        raise InputError("This HookedTransformer has no tokenizer. Pass tokenizer=.")
    elif model.tokenizer.padding_side != "right":
        warnings.warn(
            "The model's tokenizer padded on the left; anchorlens pads on the right and has set it so.", stacklevel=3
        )
        model.tokenizer.padding_side = "right"
    name = str(model.cfg.model_name or "custom")
    object.__setattr__(model, CARD, make_card(model, name, "hooked", architecture=model.cfg.original_architecture))
    return model


def _live_huggingface(
    hf_model: PreTrainedModel,
    device: str | torch.device | None,
    dtype: str | torch.dtype | None,
    tokenizer: PreTrainedTokenizerBase | None,
    checks: Checks,
) -> HookedTransformer:
    """A Hugging Face model that the user holds: its weights are copied, it is left as it is."""
    if tokenizer is None:
        raise InputError("A live Hugging Face model comes without its tokenizer. Pass tokenizer=.")
    if dtype is not None and dtype != "auto" and pick_dtype(dtype, "cpu", hf_model.config, Path()) != hf_model.dtype:
        raise InputError(f"A live model keeps its dtype, here {hf_model.dtype}. Convert it first: model.to({dtype}).")
    where = pick_device(device if device is not None else hf_model.device)
    name = Path(str(hf_model.config._name_or_path or type(hf_model).__name__)).name
    official = registered_name(str(hf_model.config._name_or_path))
    _check_supported(hf_model.config, official, name)
    source = Source(name, "huggingface", Path(), None, official)
    return _build(hf_model, where, hf_model.dtype, tokenizer, source, checks, adopt=False)
