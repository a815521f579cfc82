"""A name, a path or a live model becomes a HookedTransformer whose states and logits are Hugging Face's own.

Nothing is folded, centred or otherwise processed. Every family goes through our own mapping (mapping.py), never through
TransformerLens's loader, which takes sizes by name, reads the hub again and adds a BOS. The result is compared with Hugging Face's
log-probabilities before it is returned.
"""

import copy
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

import torch
from accelerate import init_empty_weights
from torch import nn
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from anchorlens.errors import InputError
from anchorlens.models.card import CARD, adds_bos, make_card
from anchorlens.models.devices import pick_device, pick_dtype
from anchorlens.models.hf import check_directory, load_gguf, load_tokenizer, load_weights
from anchorlens.models.mapping import check_supported, hooked_config
from anchorlens.models.parity import (
    check_log_probs,
    check_rotary,
    hooked_log_probs,
    parity_tokens,
    reference_log_probs,
    rotary_tables,
)
from anchorlens.models.skeleton import Skeleton
from anchorlens.models.source import (
    Source,
    check_live,
    check_options,
    check_stream,
    find,
    live_name,
    no_model,
    tokenizer_directory,
)
from anchorlens.models.streaming import Stream, attach
from anchorlens.models.weights import count_parameters, hooked_state, install
from anchorlens.notices import warn

ModelLike: TypeAlias = "str | os.PathLike[str] | HookedTransformer | PreTrainedModel"

_WANTED = (
    "swap_sweep and the others take a model from al.load_model(...), its name or directory, a HookedTransformer, or a live Hugging "
    "Face model with its tokenizer"
)


@dataclass(frozen=True)
class Checks:
    """Whether and how strictly parity is checked."""

    on: bool
    tolerance: float | None


@dataclass(frozen=True)
class Place:
    """Where a model goes: its first device, and how many it is spread over."""

    device: str
    n_devices: int = 1

    def __str__(self) -> str:
        return self.device if self.n_devices == 1 else f"{self.n_devices} devices from {self.device} on"


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
    check_options(device, dtype, revision, token, n_devices)
    check_stream(name_or_path, stream, n_devices)
    checks = _checks(check_parity, parity_tolerance)
    own = _given_tokenizer(tokenizer)
    if isinstance(name_or_path, HookedTransformer):
        check_live(name_or_path, device, dtype, revision, own is None, n_devices)
        return _live_hooked(name_or_path, own)
    if isinstance(name_or_path, PreTrainedModel):
        check_live(name_or_path, device, dtype, revision, own is None, n_devices)
        return _live_huggingface(name_or_path, device, n_devices, cast(PreTrainedTokenizerBase, own), checks)
    source = find(name_or_path, revision, token, own is None).fetch(progress)
    return _load_files(source, Place(pick_device(device), n_devices), dtype, own, checks, progress, stream)


def as_hooked(
    model: ModelLike,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    n_devices: int = 1,
    tokenizer: PreTrainedTokenizerBase | str | os.PathLike[str] | None = None,
    token: str | None = None,
    stream: bool = False,
    progress: bool = True,
) -> HookedTransformer:
    """The model that was meant where one is asked for: a HookedTransformer itself, untouched, and all else through load_model.

    Args:
        model: A HookedTransformer, or what :func:`load_model` takes.
        device: This and the others are load_model's. A HookedTransformer takes none but the tokenizer.
        dtype: See there.
        revision: See there.
        n_devices: See there.
        tokenizer: See there.
        token: See there.
        stream: See there.
        progress: See there.

    Raises:
        InputError: It is no model.
        AnchorlensError: See :func:`load_model`.
    """
    options = (device, dtype, revision, tokenizer, stream or None, None if n_devices == 1 else n_devices)
    if isinstance(model, HookedTransformer) and all(option is None for option in options):
        return model
    if not isinstance(model, (str, os.PathLike, HookedTransformer, PreTrainedModel)):
        raise no_model(model, _WANTED)
    return load_model(
        model, device, dtype, revision, n_devices=n_devices, tokenizer=tokenizer, token=token, stream=stream, progress=progress
    )


def _checks(check_parity: bool, tolerance: object) -> Checks:
    """How parity is checked, its bound a number that can be one."""
    if tolerance is None:
        return Checks(check_parity, None)
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not tolerance > 0:
        raise InputError(f"parity_tolerance={tolerance!r} is no bound: give a number above 0, in nats, or leave it out.")
    return Checks(check_parity, float(tolerance))


def _given_tokenizer(tokenizer: object) -> PreTrainedTokenizerBase | None:
    """The user's tokenizer: a copy of a live one, or the one in a directory."""
    if tokenizer is None:
        return None
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return copy.deepcopy(tokenizer)
    return load_tokenizer(tokenizer_directory(tokenizer))


def _load_files(
    source: Source,
    place: Place,
    dtype: str | torch.dtype | None,
    tokenizer: PreTrainedTokenizerBase | None,
    checks: Checks,
    progress: bool,
    stream: bool,
) -> HookedTransformer:
    """From files on disk to the finished model."""
    if source.kind == "gguf":
        kind = (
            torch.float32
            if dtype in (None, "auto")
            else pick_dtype(dtype, place.device, PretrainedConfig(), source.path.parent)
        )
        model = load_gguf(source.path, kind, progress)
        own = tokenizer or load_tokenizer(source.path.parent, source.path.name)
        check_supported(model.config, source.name)
        return _build(model, place, kind, own, source, checks, adopt=True)
    config = check_directory(source.path, source.name, tokenizer is None)
    kind = pick_dtype(dtype, place.device, config, source.path)
    own = tokenizer or load_tokenizer(source.path)
    if stream:
        return _build_streamed(Skeleton(source.path, config, kind), place.device, own, source, checks)
    model = load_weights(source.path, config, kind, progress)
    return _build(model, place, kind, own, source, checks, adopt=True)


def _build(
    hf_model: PreTrainedModel,
    place: Place,
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
    n_params = count_parameters(hf_model)
    tokens = parity_tokens(hf_model)
    reference = reference_log_probs(hf_model, tokens) if checks.on else None
    try:
        cfg = hooked_config(hf_model.config, place.device, dtype, source.name, place.n_devices)
        model = _quiet_hooked(cfg)
        tables = rotary_tables(hf_model, 2048) if checks.on else {}
        install(model, hooked_state(hf_model, cfg), adopt)
        check_rotary(model, tables, source.name)
        model.eval()
        parity = None
        if reference is not None:
            parity = check_log_probs(hooked_log_probs(model, tokens), reference, dtype, source.name, checks.tolerance)
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"{source.name} does not fit on {place} in {str(dtype).removeprefix('torch.')}. Pass dtype='bfloat16', stream=True, "
            "device='cpu', or spread it over more cards with n_devices=."
        ) from error
    _attach_tokenizer(model, tokenizer)
    architecture = type(hf_model).__name__
    card = make_card(model, source.name, source.kind, source.revision, architecture, parity, n_params)
    object.__setattr__(model, CARD, card)
    return model


def _build_streamed(
    skeleton: Skeleton, device: str, tokenizer: PreTrainedTokenizerBase, source: Source, checks: Checks
) -> HookedTransformer:
    """The same without ever holding more than two layers: both models go through the few tokens layer by layer."""
    dtype, where = skeleton.dtype, torch.device(device)
    tokens, reference = skeleton.reference() if checks.on else (None, None)
    tables = rotary_tables(skeleton.model, 2048) if checks.on else {}
    skeleton.shorten()
    with init_empty_weights(include_buffers=False):
        model = _quiet_hooked(hooked_config(skeleton.model.config, device, dtype, source.name))
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(where)
        for name, parameter in module._parameters.items():  # TransformerLens makes experts in float32
            if parameter is not None and parameter.dtype != dtype:
                module._parameters[name] = nn.Parameter(parameter.to(dtype))
    stream = Stream(skeleton, model, where)
    stream.fill_ends()
    attach(stream)
    check_rotary(model, tables, source.name)
    model.eval()
    parity = None
    if tokens is not None and reference is not None:
        parity = check_log_probs(hooked_log_probs(model, tokens), reference, dtype, source.name, checks.tolerance)
    _attach_tokenizer(model, tokenizer)
    architecture = type(skeleton.model).__name__
    card = make_card(model, source.name, source.kind, source.revision, architecture, parity, skeleton.n_params)
    object.__setattr__(model, CARD, card)
    return model


def _quiet_hooked(cfg: HookedTransformerConfig) -> HookedTransformer:
    """A HookedTransformer without its notice that the class will go in TransformerLens 4 (this package asks for 3).

    Experts are made with random weights, which are replaced: torch's global generator stays where it was.
    """
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.filterwarnings("ignore", "HookedTransformer", DeprecationWarning)
        return HookedTransformer(cfg, move_to_device=False)


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
    elif model.tokenizer is not None and model.tokenizer.padding_side != "right":
        warn("The model's tokenizer padded on the left; anchorlens pads on the right and has set it so.")
        model.tokenizer.padding_side = "right"
    name = str(model.cfg.model_name or "custom")
    object.__setattr__(model, CARD, make_card(model, name, "hooked", architecture=model.cfg.original_architecture))
    return model


def _live_huggingface(
    hf_model: PreTrainedModel,
    device: str | torch.device | None,
    n_devices: int,
    tokenizer: PreTrainedTokenizerBase,
    checks: Checks,
) -> HookedTransformer:
    """A Hugging Face model that the user holds: its weights are copied, it is left as it is."""
    place = Place(pick_device(device if device is not None else hf_model.device), n_devices)
    source = Source(live_name(hf_model), "huggingface", Path())
    return _build(hf_model, place, hf_model.dtype, tokenizer, source, checks, adopt=False)
