"""Load a name, a path or a live model as a HookedTransformer with Hugging Face's own states and logits.

Weights are not folded or centred. TransformerLens's loader is not used: it takes sizes by name, reads the hub again and adds a BOS.
"""

import copy
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from accelerate import init_empty_weights
from torch import nn
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from anchorlens.errors import InputError
from anchorlens.models.card import CARD, adds_bos, make_card
from anchorlens.models.devices import parse_dtype, pick_device
from anchorlens.models.hf import load_gguf, load_tokenizer, load_weights
from anchorlens.models.layer_loader import LayerLoader
from anchorlens.models.mapping import check_config, make_hooked_config
from anchorlens.models.parity import Reference
from anchorlens.models.size import checkpoint_dtype
from anchorlens.models.source import Source, check_live, check_options, check_tokenizer_directory, find_model, live_name
from anchorlens.models.streaming import Stream, attach
from anchorlens.models.weights import convert_weights, count_parameters, install
from anchorlens.warn import warn

ModelLike: TypeAlias = "str | os.PathLike[str] | HookedTransformer | PreTrainedModel"


@dataclass(frozen=True)
class Target:
    """Device of a model, how its parity is checked, its origin and tokenizer."""

    device: str
    n_devices: int
    check_parity: bool
    tolerance: float | None
    source: Source
    tokenizer: PreTrainedTokenizerBase


def load_model(
    name_or_path: ModelLike,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    *,
    n_devices: int = 1,
    tokenizer: PreTrainedTokenizerBase | str | os.PathLike[str] | None = None,
    token: str | None = None,
    stream: bool = False,
    check_parity: bool = True,
    parity_tolerance: float | None = None,
    progress: bool = True,
) -> HookedTransformer:
    """Load a model with Hugging Face's own states and logits, checked against it.

    Args:
        name_or_path: One of

            - ``"smollm2-135m-instruct"``, the packaged demo model;
            - a name on the Hugging Face hub, or a name that TransformerLens registers;
            - a Hugging Face directory of one of the families in docs/families.md;
            - a ``.gguf`` file, or ``owner/repository/file.gguf`` on the hub;
            - a live Hugging Face model (with ``tokenizer=``), whose weights are copied;
            - a live HookedTransformer, which is returned itself, with a card.
        device: ``"cuda"``, ``"cuda:1"``, ``"mps"`` or ``"cpu"``; by default the first of cuda, mps and cpu that is there.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"``, ``"float64"``, a torch dtype, or ``"auto"`` for the checkpoint's
            own. By default float32, but on an accelerator the checkpoint's own from 10 billion parameters on. A live model
            keeps its own.
        revision: Branch, tag or commit on the hub.
        n_devices: Spread the layers over so many CUDA devices, ``device`` and those after it, as TransformerLens counts them
            (docs/scaling.md).
        tokenizer: To use instead of the checkpoint's own: a tokenizer (copied) or a directory that holds one.
        token: Access token for the hub; by default ``HF_TOKEN`` or the stored login.
        stream: Leave the layers' weights in their safetensors files, and read each when it runs: for models larger than memory
            (docs/streaming.md).
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
    check_options(name_or_path, device, dtype, revision, token, n_devices, stream)
    if parity_tolerance is not None and not (isinstance(parity_tolerance, (int, float)) and parity_tolerance > 0):
        raise InputError(
            f"parity_tolerance={parity_tolerance!r} is no bound: give a number above 0, in nats, or leave it out."
        )
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        own = copy.deepcopy(tokenizer)
    else:
        own = None if tokenizer is None else load_tokenizer(check_tokenizer_directory(tokenizer))
    if not isinstance(name_or_path, (str, os.PathLike)):
        check_live(name_or_path, device, dtype, revision, own is None, n_devices)
        if isinstance(name_or_path, HookedTransformer):
            return _use_hooked(name_or_path, own)
        where, source = pick_device(device or name_or_path.device), Source(live_name(name_or_path), "huggingface", Path())
        assert own is not None  # check_live
        target = Target(where, n_devices, check_parity, parity_tolerance, source, own)
        return _convert(name_or_path, target, name_or_path.dtype, adopt=False)
    where = pick_device(device)
    source = find_model(name_or_path, revision, token, own is None).fetch(progress)
    if source.config is None:
        number_type = torch.float32 if dtype in (None, "auto") else parse_dtype(dtype)
        hf_model = load_gguf(source.path, number_type, progress)
        check_config(hf_model.config, source.name)
        own = own or load_tokenizer(source.path.parent, source.path.name)
    else:
        own = own or load_tokenizer(source.path)
        number_type = checkpoint_dtype(source.config, dtype, where)
        hf_model = None if stream else load_weights(source.path, source.config, number_type, progress)
    target = Target(where, n_devices, check_parity, parity_tolerance, source, own)
    if hf_model is not None:
        return _convert(hf_model, target, number_type, adopt=True)
    assert source.config is not None  # no .gguf file is streamed
    return _stream(LayerLoader(source.path, source.config, number_type), target)


def as_hooked_transformer(model: ModelLike) -> HookedTransformer:
    """Return a HookedTransformer itself, untouched, and anything else as :func:`load_model` loads it."""
    return model if isinstance(model, HookedTransformer) else load_model(model)


def _convert(hf_model: PreTrainedModel, target: Target, dtype: torch.dtype, adopt: bool) -> HookedTransformer:
    """Convert a Hugging Face model and compare both; the reference is computed first, so no device holds three copies."""
    n_params = count_parameters(hf_model)
    reference = Reference.of(hf_model) if target.check_parity else None
    try:
        model = _make_hooked(make_hooked_config(hf_model.config, target.device, dtype, target.source.name, target.n_devices))
        install(model, convert_weights(hf_model, model.cfg), adopt)
        return _finish(model, reference, target, type(hf_model).__name__, n_params)
    except torch.OutOfMemoryError as error:
        place = target.device if target.n_devices == 1 else f"{target.n_devices} devices from {target.device} on"
        raise InputError(
            f"{target.source.name} does not fit on {place} in {str(dtype).removeprefix('torch.')}. Pass dtype='bfloat16', "
            "stream=True, device='cpu', or spread it over more cards with n_devices=."
        ) from error


def _stream(loader: LayerLoader, target: Target) -> HookedTransformer:
    """Make a streamed model and compare, holding two layers at most."""
    dtype, device = loader.dtype, torch.device(target.device)
    reference = Reference.of(loader.model, loader.all_weights()) if target.check_parity else None
    loader.shorten()
    with init_empty_weights(include_buffers=False):
        model = _make_hooked(make_hooked_config(loader.model.config, target.device, dtype, target.source.name))
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)
        for name, parameter in module._parameters.items():  # TransformerLens makes experts in float32
            if parameter is not None and parameter.dtype != dtype:
                module._parameters[name] = nn.Parameter(parameter.to(dtype))
    stream = Stream(loader, model, device)
    stream.fill_ends()
    attach(stream)
    return _finish(model, reference, target, type(loader.model).__name__, loader.n_params)


def _finish(
    model: HookedTransformer, reference: Reference | None, target: Target, architecture: str, n_params: int
) -> HookedTransformer:
    """Check parity, attach tokenizer and card."""
    model.eval()
    source = target.source
    parity = None if reference is None else reference.compare(model, source.name, target.tolerance)
    _attach_tokenizer(model, target.tokenizer)
    card = make_card(model, source.name, source.kind, source.revision, architecture, parity, n_params)
    object.__setattr__(model, CARD, card)
    return model


def _make_hooked(cfg: HookedTransformerConfig) -> HookedTransformer:
    """Make a HookedTransformer without deprecation warning; torch's global generator keeps its state."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.filterwarnings("ignore", "HookedTransformer", DeprecationWarning)
        return HookedTransformer(cfg, move_to_device=False)


def _attach_tokenizer(model: HookedTransformer, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give the model the tokenizer as it is, padding on the right; ``set_tokenizer`` would load it again with BOS switched on."""
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    model.tokenizer = tokenizer
    # With both the same, to_tokens neither adds a BOS nor takes one away.
    model.cfg.tokenizer_prepends_bos = model.cfg.default_prepend_bos = adds_bos(tokenizer)


def _use_hooked(model: HookedTransformer, tokenizer: PreTrainedTokenizerBase | None) -> HookedTransformer:
    """Take a user's HookedTransformer; its card has no parity."""
    if tokenizer is not None:
        _attach_tokenizer(model, tokenizer)
    elif model.tokenizer is not None and model.tokenizer.padding_side != "right":
        warn("The model's tokenizer padded on the left; anchorlens pads on the right and has set it so.")
        model.tokenizer.padding_side = "right"
    name = str(model.cfg.model_name or "custom")
    object.__setattr__(model, CARD, make_card(model, name, "hooked", architecture=model.cfg.original_architecture))
    return model
