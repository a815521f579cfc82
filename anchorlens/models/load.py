"""Load a name, a path or a live model with the states and logits of Hugging Face transformers, and
make its adapter.
"""

import copy
import os
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from anchorlens.display import warn
from anchorlens.errors import InputError
from anchorlens.models.adapter import (
    Adapter,
    LensModel,
    is_bridge,
    is_hooked,
    is_lens_model,
    pick_backend,
    unwrap_model,
)
from anchorlens.models.card import CARD, architecture_of, backend_of, make_card
from anchorlens.models.check_config import check_config
from anchorlens.models.devices import parse_dtype, pick_device
from anchorlens.models.hf import load_gguf, load_tokenizer, load_weights
from anchorlens.models.live_names import name_of_hf_model, name_of_lens_model
from anchorlens.models.size import checkpoint_dtype
from anchorlens.models.source import (
    check_live,
    check_options,
    check_tokenizer_directory,
    find_model,
)
from anchorlens.models.target import Source, Target, attach_tokenizer
from anchorlens.progress import waiting

ModelLike: TypeAlias = "str | os.PathLike[str] | LensModel | PreTrainedModel"


# Tensors of inference mode could not take part in a backward pass later.
@torch.inference_mode(False)
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
    backend: str | None = None,
) -> LensModel:
    """Load a TransformerLens model and check its log-probabilities against Hugging Face
    transformers.

    Args:
        name_or_path: Name, path or live model, one of

            - ``"smollm2-135m-instruct"``, the packaged demo model;
            - a name on the Hugging Face hub, or a name that TransformerLens registers;
            - a Hugging Face directory of one of the families in docs/families.md;
            - a ``.gguf`` file, or ``owner/repository/file.gguf`` on the hub;
            - a live Hugging Face model (with ``tokenizer=``), whose weights are copied;
            - a live HookedTransformer or TransformerBridge, which is returned itself with a card;
              its name in results is ``model.cfg.model_name``.
        device: ``"cuda"``, ``"cuda:1"``, ``"mps"`` or ``"cpu"``; if None, the first available of
            cuda, mps and cpu.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"``, ``"float64"``, a torch dtype, or
            ``"auto"`` for the checkpoint's dtype. If None, float32; the checkpoint's dtype on an
            accelerator for 10 billion parameters or more. A live model keeps its dtype.
        revision: Branch, tag or commit on the hub. If None, the newest commit.
        n_devices: Number of CUDA devices over which the layers are spread, from ``device`` on
            (docs/scaling.md).
        tokenizer: Tokenizer (copied) or directory of one. If None, the checkpoint's tokenizer.
        token: Access token for the hub. If None, ``HF_TOKEN`` or the stored login.
        stream: Read each layer's weights from its safetensors files when it runs, for models larger
            than memory (docs/scaling.md).
        check_parity: Compare with Hugging Face's log-probabilities; False only for a checkpoint
            that has passed before.
        parity_tolerance: Maximum |Δ log-probability|, in nats. If None, 1e-3 in float32, 0.25 in
            float16 and 2.0 in bfloat16, with a bound on the mean as well.
        progress: Show progress bars for downloads and for weights above 1 GiB, and a line if
            finding, fetching or loading takes longer than two seconds.
        backend: ``"hooked"`` for a HookedTransformer, ``"bridge"`` for a TransformerBridge. If
            None, ``"hooked"`` with transformer-lens 3.9 and ``"bridge"`` with 4.x, which has no
            HookedTransformer. ``stream`` and ``n_devices`` need ``"hooked"``.

    Returns:
        A model with unprocessed weights, ``model.tokenizer`` as loaded by ``AutoTokenizer``,
        padding on the right, and ``model.anchorlens_card``. ``model.to_tokens`` adds BOS only if
        that tokenizer does.

    Raises:
        ModelNotFoundError: If the name or path does not exist, or a directory has no config.json.
        UnsupportedModelError: If the backend cannot reproduce the model exactly.
        CheckpointError: If files are damaged or incomplete.
        DownloadError: If the repository is gated, or the download fails.
        ParityError: If log-probabilities differ from Hugging Face's.
        InputError: If an argument is invalid, or the model does not fit into memory.

    Examples:
        >>> import anchorlens as al
        >>> model = al.load_model("smollm2-135m-instruct", device="cpu")  # doctest: +SKIP
    """
    name_or_path = unwrap_model(name_or_path)
    check_options(
        name_or_path=name_or_path,
        device=device,
        dtype=dtype,
        revision=revision,
        token=token,
        n_devices=n_devices,
        stream=stream,
        backend=backend,
    )
    if parity_tolerance is not None and not (
        isinstance(parity_tolerance, (int, float)) and parity_tolerance > 0
    ):
        raise InputError(
            f"parity_tolerance={parity_tolerance!r}:"
            " give a number above 0, in nats, or leave it out.",
            argument="parity_tolerance",
        )
    make_target = partial(
        Target, n_devices=n_devices, check_parity=check_parity, tolerance=parity_tolerance
    )
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        given = copy.deepcopy(tokenizer)
    else:
        given = None if tokenizer is None else load_tokenizer(check_tokenizer_directory(tokenizer))
    if not isinstance(name_or_path, (str, os.PathLike)):
        check_live(
            model=name_or_path,
            device=device,
            dtype=dtype,
            revision=revision,
            needs_tokenizer=given is None,
            n_devices=n_devices,
            backend=backend,
        )
        if is_lens_model(name_or_path):
            return _use_live_model(name_or_path, given)
        where = pick_device(device or name_or_path.device)
        assert given is not None and isinstance(name_or_path, PreTrainedModel)  # check_live
        source = Source(name=name_of_hf_model(name_or_path), kind="huggingface", path=Path())
        target = make_target(device=where, source=source, tokenizer=given)
        with waiting(f"loading {source.name}", show=progress):
            return _convert(name_or_path, target, name_or_path.dtype, backend, adopt=False)
    where = pick_device(device)
    name = os.fspath(name_or_path)
    with waiting(f"finding {name}", show=progress):
        found = find_model(name, revision, token, given is None, backend)
    with waiting(f"fetching {name}", show=progress):
        source = found.fetch(progress)
    with waiting(f"loading {source.name}", show=progress):
        if source.config is None:
            number_type = torch.float32 if dtype in (None, "auto") else parse_dtype(dtype)
            hf_model = load_gguf(source.path, number_type, progress)
            check_config(hf_model.config, source.name, pick_backend(backend))
            given = given or load_tokenizer(source.path.parent, source.path.name)
        else:
            given = given or load_tokenizer(source.path)
            number_type = checkpoint_dtype(source.config, dtype, where)
            hf_model = (
                None if stream else load_weights(source.path, source.config, number_type, progress)
            )
        target = make_target(device=where, source=source, tokenizer=given)
        if hf_model is not None:
            return _convert(hf_model, target, number_type, backend, adopt=True)
        assert source.config is not None  # no .gguf file is streamed
        from anchorlens.models.hooked.convert import stream_checkpoint

        return stream_checkpoint(source.path, source.config, number_type, target)


def as_lens_model(model: ModelLike, *, progress: bool = True) -> LensModel:
    """Return a TransformerLens model unchanged; load anything else with :func:`load_model`."""
    original = unwrap_model(model)
    return original if is_lens_model(original) else load_model(original, progress=progress)


def _convert(
    hf_model: PreTrainedModel,
    target: Target,
    dtype: torch.dtype,
    backend: str | None,
    *,
    adopt: bool,
) -> LensModel:
    """Convert a Hugging Face model.

    ``adopt`` is True if its memory may be used, because it is discarded afterwards.
    """
    if pick_backend(backend) == "bridge":
        from anchorlens.models.bridge.load import wrap

        return wrap(hf_model if adopt else copy.deepcopy(hf_model), target)
    from anchorlens.models.hooked.convert import convert

    return convert(hf_model, target, dtype, adopt=adopt)


def _use_live_model(model: LensModel, tokenizer: PreTrainedTokenizerBase | None) -> LensModel:
    """Attach tokenizer and card, without parity, to a user's model."""
    if tokenizer is not None:
        attach_tokenizer(model, tokenizer)
    elif model.tokenizer is not None and model.tokenizer.padding_side != "right":
        warn(
            "The model's tokenizer padded on the left; its padding side is now 'right', as"
            " anchorlens needs."
        )
        model.tokenizer.padding_side = "right"
    name = name_of_lens_model(model)
    object.__setattr__(
        model, CARD, make_card(model, name, backend_of(model), architecture=architecture_of(model))
    )
    return model


def adapt(model: object) -> Adapter:
    """Return the adapter of a HookedTransformer or TransformerBridge; raise InputError for other
    objects.
    """
    model = unwrap_model(model)
    if is_hooked(model):
        from anchorlens.models.hooked.adapter import HookedAdapter

        return HookedAdapter(model)
    if is_bridge(model):
        from anchorlens.models.bridge.adapter import BridgeAdapter

        return BridgeAdapter(model)
    raise InputError(
        f"model: an object of type {type(model).__name__}, neither a HookedTransformer nor a"
        " TransformerBridge. Load it with al.load_model(...).",
        argument="model",
    )


def check_has_numbers(model: LensModel) -> None:
    """Raise InputError if the weights of a model are on the meta device."""
    if adapt(model).device.type == "meta":
        raise InputError(
            "model: its weights are on the meta device, which has shapes but no numbers."
            " Load the weights onto a CPU or GPU first.",
            argument="model",
        )
