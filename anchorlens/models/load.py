"""Load a name, a path or a live model as a HookedTransformer with the states and logits of Hugging Face transformers.

Weights are not folded or centred. TransformerLens's loader is not used: it takes sizes by name, reads the hub again and adds BOS.
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
    """Options of a conversion: devices, parity check, origin and tokenizer."""

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
    """Load a model as a HookedTransformer and check its log-probabilities against Hugging Face transformers.

    Args:
        name_or_path: Name, path or live model, one of

            - ``"smollm2-135m-instruct"``, the packaged demo model;
            - a name on the Hugging Face hub, or a name that TransformerLens registers;
            - a Hugging Face directory of one of the families in docs/families.md;
            - a ``.gguf`` file, or ``owner/repository/file.gguf`` on the hub;
            - a live Hugging Face model (with ``tokenizer=``), whose weights are copied;
            - a live HookedTransformer, which is returned itself with a card.
        device: ``"cuda"``, ``"cuda:1"``, ``"mps"`` or ``"cpu"``; if None, the first available of cuda, mps and cpu.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"``, ``"float64"``, a torch dtype, or ``"auto"`` for the
            checkpoint's dtype. If None, float32; the checkpoint's dtype on an accelerator for 10 billion parameters or more. A live
            model keeps its dtype.
        revision: Branch, tag or commit on the hub. If None, the newest commit.
        n_devices: Number of CUDA devices over which the layers are spread, from ``device`` on (docs/scaling.md).
        tokenizer: Tokenizer (copied) or directory of one. If None, the checkpoint's tokenizer.
        token: Access token for the hub. If None, ``HF_TOKEN`` or the stored login.
        stream: Read each layer's weights from its safetensors files when it runs, for models larger than memory
            (docs/streaming.md).
        check_parity: Compare with Hugging Face's log-probabilities; False only for a checkpoint that has passed before.
        parity_tolerance: Maximum |Δ log-probability|, in nats. If None, 1e-3 in float32, 0.25 in float16 and 2.0 in bfloat16, with
            a bound on the mean as well.
        progress: Show progress bars for downloads and for weights above 1 GiB.

    Returns:
        A HookedTransformer with ``model.tokenizer`` as loaded by ``AutoTokenizer``, padding on the right, and
        ``model.anchorlens_card``. ``model.to_tokens`` adds BOS only if that tokenizer does.

    Raises:
        ModelNotFoundError: If the name or path does not exist, or a directory has no config.json.
        UnsupportedModelError: If the model has a feature that a HookedTransformer cannot reproduce exactly.
        CheckpointError: If files are damaged or incomplete.
        DownloadError: If the repository is gated, or the download fails.
        ParityError: If log-probabilities differ from Hugging Face's.
        InputError: If an argument is invalid, or the model does not fit into memory.

    Examples:
        >>> model = load_model("smollm2-135m-instruct", device="cpu")  # doctest: +SKIP
    """
    check_options(name_or_path, device, dtype, revision, token, n_devices, stream)
    if parity_tolerance is not None and not (isinstance(parity_tolerance, (int, float)) and parity_tolerance > 0):
        raise InputError(
            f"parity_tolerance={parity_tolerance!r}: give a number above 0, in nats, or leave it out.", argument="parity_tolerance"
        )
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        given = copy.deepcopy(tokenizer)
    else:
        given = None if tokenizer is None else load_tokenizer(check_tokenizer_directory(tokenizer))
    if not isinstance(name_or_path, (str, os.PathLike)):
        check_live(name_or_path, device, dtype, revision, given is None, n_devices)
        if isinstance(name_or_path, HookedTransformer):
            return _use_live_model(name_or_path, given)
        where, source = pick_device(device or name_or_path.device), Source(live_name(name_or_path), "huggingface", Path())
        assert given is not None  # check_live
        target = Target(where, n_devices, check_parity, parity_tolerance, source, given)
        return _convert(name_or_path, target, name_or_path.dtype, adopt=False)
    where = pick_device(device)
    source = find_model(name_or_path, revision, token, given is None).fetch(progress)
    if source.config is None:
        number_type = torch.float32 if dtype in (None, "auto") else parse_dtype(dtype)
        hf_model = load_gguf(source.path, number_type, progress)
        check_config(hf_model.config, source.name)
        given = given or load_tokenizer(source.path.parent, source.path.name)
    else:
        given = given or load_tokenizer(source.path)
        number_type = checkpoint_dtype(source.config, dtype, where)
        hf_model = None if stream else load_weights(source.path, source.config, number_type, progress)
    target = Target(where, n_devices, check_parity, parity_tolerance, source, given)
    if hf_model is not None:
        return _convert(hf_model, target, number_type, adopt=True)
    assert source.config is not None  # no .gguf file is streamed
    return _stream(LayerLoader(source.path, source.config, number_type), target)


def as_hooked_transformer(model: ModelLike) -> HookedTransformer:
    """Return a HookedTransformer unchanged; load anything else with :func:`load_model`."""
    return model if isinstance(model, HookedTransformer) else load_model(model)


def _convert(hf_model: PreTrainedModel, target: Target, dtype: torch.dtype, adopt: bool) -> HookedTransformer:
    """Convert a Hugging Face model and compare both; the reference is computed first to avoid a third copy in memory."""
    n_params = count_parameters(hf_model)
    reference = Reference.of(hf_model) if target.check_parity else None
    try:
        model = _make_model(make_hooked_config(hf_model.config, target.device, dtype, target.source.name, target.n_devices))
        install(model, convert_weights(hf_model, model.cfg), adopt)
        return _finish(model, reference, target, type(hf_model).__name__, n_params)
    except torch.OutOfMemoryError as error:
        place = target.device if target.n_devices == 1 else f"{target.n_devices} devices from {target.device} on"
        raise InputError(
            f"{target.source.name} does not fit on {place} in {str(dtype).removeprefix('torch.')}. Pass dtype='bfloat16', "
            "stream=True or device='cpu', or spread it over more devices with n_devices=."
        ) from error


def _stream(loader: LayerLoader, target: Target) -> HookedTransformer:
    """Make a streamed model and compare it, with at most two layers in memory."""
    dtype, device = loader.dtype, torch.device(target.device)
    reference = Reference.of(loader.model, loader.all_weights()) if target.check_parity else None
    loader.shorten()
    with init_empty_weights(include_buffers=False):
        model = _make_model(make_hooked_config(loader.model.config, target.device, dtype, target.source.name))
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
    """Check parity, and attach tokenizer and card."""
    model.eval()
    source = target.source
    parity = None if reference is None else reference.compare(model, source.name, target.tolerance)
    _attach_tokenizer(model, target.tokenizer)
    card = make_card(model, source.name, source.kind, source.revision, architecture, parity, n_params)
    object.__setattr__(model, CARD, card)
    return model


def _make_model(cfg: HookedTransformerConfig) -> HookedTransformer:
    """Make a HookedTransformer without its deprecation warning and without changing torch's global generator."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.filterwarnings("ignore", "HookedTransformer", DeprecationWarning)
        return HookedTransformer(cfg, move_to_device=False)


def _attach_tokenizer(model: HookedTransformer, tokenizer: PreTrainedTokenizerBase) -> None:
    """Set the model's tokenizer, with padding on the right; TransformerLens's ``set_tokenizer`` would switch BOS on."""
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    model.tokenizer = tokenizer
    # With equal values to_tokens neither adds nor removes BOS.
    model.cfg.tokenizer_prepends_bos = model.cfg.default_prepend_bos = adds_bos(tokenizer)


def _use_live_model(model: HookedTransformer, tokenizer: PreTrainedTokenizerBase | None) -> HookedTransformer:
    """Attach tokenizer and card, without parity, to a user's HookedTransformer."""
    if tokenizer is not None:
        _attach_tokenizer(model, tokenizer)
    elif model.tokenizer is not None and model.tokenizer.padding_side != "right":
        warn("The model's tokenizer padded on the left; its padding side is now 'right', as anchorlens needs.")
        model.tokenizer.padding_side = "right"
    name = str(model.cfg.model_name or "custom")
    object.__setattr__(model, CARD, make_card(model, name, "hooked", architecture=model.cfg.original_architecture))
    return model
