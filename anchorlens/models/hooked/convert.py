"""Convert a Hugging Face model to a HookedTransformer with the same states and logits.

Weights are not folded or centred. TransformerLens's loader is not used: it takes sizes by name,
reads the hub again and adds BOS.
"""

import warnings
from pathlib import Path

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformers import PretrainedConfig, PreTrainedModel

from anchorlens.errors import InputError, ParityError
from anchorlens.models.hf_model import count_parameters
from anchorlens.models.hooked.blocks import device_of, inputs_follow_blocks
from anchorlens.models.hooked.layer_loader import LayerLoader
from anchorlens.models.hooked.mapping import make_hooked_config
from anchorlens.models.hooked.streaming import Stream, attach
from anchorlens.models.hooked.weights import convert_weights, install
from anchorlens.models.parity import Reference
from anchorlens.models.target import Target, finish

ROTARY_TOLERANCE = 0.02


def convert(
    hf_model: PreTrainedModel, target: Target, dtype: torch.dtype, adopt: bool
) -> HookedTransformer:
    """Convert a Hugging Face model and compare both; the reference is computed first to avoid a
    third copy in memory.
    """
    n_params = count_parameters(hf_model)
    reference = Reference.of(hf_model) if target.check_parity else None
    try:
        model = _make_model(
            make_hooked_config(
                hf_model.config, target.device, dtype, target.source.name, target.n_devices
            )
        )
        install(model, convert_weights(hf_model, model.cfg), adopt)
        return _finish(model, reference, target, type(hf_model).__name__, n_params)
    except torch.OutOfMemoryError as error:
        place = target.device
        if target.n_devices > 1:
            place = f"{target.n_devices} devices from {target.device} on"
        raise InputError(
            f"{target.source.name} does not fit on {place} in {str(dtype).removeprefix('torch.')}."
            " Pass dtype='bfloat16', stream=True or device='cpu', or spread it over more devices"
            " with n_devices=."
        ) from error


def stream_checkpoint(
    directory: Path, config: PretrainedConfig, dtype: torch.dtype, target: Target
) -> HookedTransformer:
    """Make a streamed model and compare it, with at most two layers in memory."""
    loader = LayerLoader(directory, config, dtype)
    device = torch.device(target.device)
    reference = Reference.of(loader.model, loader.all_weights()) if target.check_parity else None
    loader.shorten()
    with init_empty_weights(include_buffers=False):
        model = _make_model(
            make_hooked_config(loader.model.config, target.device, dtype, target.source.name)
        )
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)
        # TransformerLens makes experts in float32.
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.dtype != dtype:
                module._parameters[name] = nn.Parameter(parameter.to(dtype))
    weights = Stream(loader, model, device)
    weights.fill_ends()
    attach(weights)
    return _finish(model, reference, target, type(loader.model).__name__, loader.n_params)


def _finish(
    model: HookedTransformer,
    reference: Reference | None,
    target: Target,
    architecture: str,
    n_params: int,
) -> HookedTransformer:
    """Check parity, and attach tokenizer and card."""
    model.eval()
    parity = None
    if reference is not None:
        _check_rotary(model, reference.rotary, target.source.name)
        with torch.no_grad(), inputs_follow_blocks(model):
            logits = model(reference.tokens.to(device_of(model.cfg, "embed")), return_type="logits")
        parity = reference.compare(logits, model.cfg.dtype, target.source.name, target.tolerance)
    return finish(model, target, architecture, parity, n_params)


def _make_model(cfg: HookedTransformerConfig) -> HookedTransformer:
    """Make a HookedTransformer without its deprecation warning and without changing torch's global
    generator.
    """
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.filterwarnings("ignore", "HookedTransformer", DeprecationWarning)
        return HookedTransformer(cfg, move_to_device=False)


def _check_rotary(
    model: HookedTransformer, tables: dict[str, tuple[Tensor, Tensor]], name: str
) -> None:
    """Raise ParityError if rotary tables differ: a wrong scaling has little effect on few tokens,
    but grows with the position.
    """
    for index, block in enumerate(model.blocks):
        kind = str(block.attn.attn_type)
        if kind not in tables:
            continue
        ours = block.attn.rotary_cos.to(device="cpu", dtype=torch.float32)
        # gpt-oss's table is half as wide: each angle occurs once, not twice.
        theirs = tables[kind][0]
        length = min(len(ours), len(theirs))
        width = theirs.shape[1]
        gap = float((ours[:length, :width] - theirs[:length]).abs().max())
        if not gap < ROTARY_TOLERANCE:
            raise ParityError(
                f"{name}: rotary positions of layer {index} ({kind}) differ from Hugging Face's by"
                f" {gap:.2g}. The mapping is wrong for this checkpoint;"
                " please report its config.json."
            )
