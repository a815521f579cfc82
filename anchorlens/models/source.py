"""A model's name, path or live object: looked up and checked as far as that goes without its weights, and then fetched.

``load_model`` goes through here, so what :func:`check_model` lets pass is refused later only for what stands in the weights.
Nothing heavy is imported before it is needed: the packaged model is looked up without torch.
"""

import itertools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorlens.errors import InputError, ModelNotFoundError, UnsupportedModelError
from anchorlens.models.checkpoint import PACKAGED, check_obtainable, packaged_directory
from anchorlens.models.gguf_audit import check_gguf
from anchorlens.models.names import nearest_names, registered_name, without_huggingface

WANTED = (
    "A model is given as a name (`anchorlens models` lists some), a Hugging Face directory, a .gguf file, a HookedTransformer or "
    "a live Hugging Face model"
)

_MERGE = "Merge it first: give what model.merge_and_unload() returns, with tokenizer=."
_BOTH_WAYS = "It reads text in both directions; what is measured here is a causal language model's next token."
# Models of other kinds, by the name of a class that they inherit from: their packages need not be here.
_OTHER_MODELS = {
    "TransformerBridge": "Give al.load_model the name or directory that the bridge was made from.",
    "PeftModel": f"An adapter stands beside the weights. {_MERGE}",
    "Pipeline": "Give its model with its tokenizer: al.load_model(pipe.model, tokenizer=pipe.tokenizer).",
    "HookedEncoder": _BOTH_WAYS,
    "HookedEncoderDecoder": _BOTH_WAYS,
    "HookedAudioEncoder": _BOTH_WAYS,
}


@dataclass(frozen=True)
class Source:
    """Where a model's files lie.

    Attributes:
        name: For messages and the card.
        kind: ``packaged``, ``hub``, ``directory`` or ``gguf``; ``huggingface`` for a live model.
        path: A Hugging Face directory, or a GGUF file.
        revision: Commit or release, if known.
    """

    name: str
    kind: str
    path: Path
    revision: str | None = None


@dataclass(frozen=True)
class Found:
    """A model that is there and can be loaded, as far as can be told before anything large is fetched.

    Attributes:
        kind: See :class:`Source`.
        fetch: Fetches what is not here yet; its argument says whether to show progress.
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
) -> str:
    """Whether ``load_model`` could load a model, as far as can be told without loading, downloading or converting its weights.

    Of a hub name the configuration alone is fetched, of a GGUF file on the hub nothing; so a misspelt, gated or unsupported
    model is refused here at once. What stands in the weights is not looked at: parity and memory are ``load_model``'s.

    Args:
        name_or_path: As for ``load_model``, and so are the others.
        device: Where it will run.
        dtype: In which type.
        revision: Branch, tag or commit on the hub.
        n_devices: Over how many devices it will be spread.
        tokenizer: To use instead of the checkpoint's own.
        token: Access token for the hub.
        stream: Whether its weights will be read layer by layer.

    Returns:
        ``packaged``, ``directory``, ``gguf``, ``hub``, or ``live`` for a model that is in memory.

    Raises:
        AnchorlensError: The one that ``load_model`` would raise.
    """
    check_options(device, dtype, revision, token, n_devices)
    check_stream(name_or_path, stream, n_devices)
    own_tokenizer = tokenizer is None
    if not own_tokenizer:
        _check_tokenizer(tokenizer)
    if isinstance(name_or_path, (str, os.PathLike)):
        return find(name_or_path, _text(revision), _text(token), own_tokenizer).kind
    check_live(name_or_path, device, dtype, revision, own_tokenizer, n_devices)
    return "live"


def check_options(device: object, dtype: object, revision: object, token: object, n_devices: object = 1) -> None:
    """Refuse options that no model could have, before any file is read.

    Raises:
        InputError: There are no such devices or type here, or the revision or token is no text.
    """
    if type(n_devices) is not int or n_devices != 1:
        from anchorlens.models.devices import check_n_devices

        check_n_devices(n_devices, device)
    if device is not None or dtype is not None:
        from anchorlens.models.devices import check_device_dtype

        check_device_dtype(device, dtype)
    if revision is not None and not _text(revision):
        raise InputError(f"revision={revision!r} is no branch, tag or commit of a repository. Leave it out for the newest.")
    if token is not None and not _text(token):
        # What was given is not quoted: it may be a part of a secret.
        raise InputError("token= takes the text of an access token. Leave it out to use HF_TOKEN or the stored login.")


def check_stream(name_or_path: object, stream: object, n_devices: object = 1) -> None:
    """Refuse to stream what cannot be, as far as its name tells.

    Raises:
        InputError: It is in memory already, or a GGUF file, or it is to be spread too.
    """
    if not isinstance(stream, bool):
        raise InputError(f"stream={stream!r}: give True to read the weights layer by layer, or leave it out.")
    if not stream:
        return
    if n_devices != 1:
        raise InputError(
            "stream=True holds two layers at a time, on one device: there is nothing to spread. Leave n_devices out where the model "
            "is larger than all devices together, else leave stream out."
        )
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise InputError(
            "stream=True reads weights from files, and a live model has them in memory. Give the name or directory that it was "
            "loaded from, or leave stream out."
        )
    if os.fspath(name_or_path).lower().endswith(".gguf"):
        raise InputError(
            "A .gguf file is unpacked as a whole and cannot be streamed. Give the model's Hugging Face directory or name, or leave "
            "stream out."
        )


def _text(value: object) -> str | None:
    """A text that is more than white space, else None."""
    return value if isinstance(value, str) and value.strip() else None


def _check_tokenizer(tokenizer: object) -> None:
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        tokenizer_directory(tokenizer)


def tokenizer_directory(tokenizer: object) -> Path:
    """The directory of a tokenizer that is no live one.

    Raises:
        InputError: It is no directory either.
        CheckpointError: The directory has no files of a tokenizer.
    """
    from anchorlens.models.hf import check_tokenizer_files

    shown = os.fspath(tokenizer) if isinstance(tokenizer, os.PathLike) else tokenizer
    path = existing(shown) if isinstance(shown, str) and shown.strip() else None
    if path is None or not path.is_dir():
        what = repr(shown) if isinstance(shown, str) else _described(shown)
        raise InputError(f"tokenizer={what} is neither a tokenizer nor a directory that holds one.")
    check_tokenizer_files(path)
    return path


def check_live(
    model: object, device: object, dtype: object, revision: object, own_tokenizer: bool, n_devices: object = 1
) -> None:
    """Whether a model that is in memory can be taken over with these options.

    Args:
        model: A HookedTransformer or a Hugging Face model; all else is refused.
        device: As for ``load_model``.
        dtype: As for ``load_model``.
        revision: As for ``load_model``.
        own_tokenizer: Whether no other tokenizer is given.
        n_devices: As for ``load_model``.

    Raises:
        InputError: It is no model, or the options do not fit it.
        UnsupportedModelError: A Hugging Face model that is not mapped.
    """
    from transformer_lens import HookedTransformer
    from transformers import PreTrainedModel

    if isinstance(model, HookedTransformer):
        if device is not None or dtype is not None or revision is not None or n_devices != 1:
            raise InputError(
                "A live HookedTransformer keeps its device and dtype: move it yourself, and give no revision and no n_devices."
            )
        if own_tokenizer and model.tokenizer is None:
            raise InputError(
                "This HookedTransformer has no tokenizer. Pass tokenizer=, as in al.load_model(model, tokenizer=...)."
            )
        return
    if not isinstance(model, PreTrainedModel):
        raise no_model(model)
    if revision is not None:
        raise InputError("A live model has no revision. Load it by name to choose one.")
    if own_tokenizer:
        raise InputError(
            "A live Hugging Face model comes without its tokenizer. Pass tokenizer=, as in al.load_model(model, tokenizer=...)."
        )
    from anchorlens.models.devices import check_n_devices, parse_dtype, pick_device
    from anchorlens.models.mapping import check_supported

    wanted = model.dtype if dtype is None or dtype == "auto" else parse_dtype(dtype)
    if wanted != model.dtype:
        raise InputError(
            f"A live model keeps its dtype, here {model.dtype}. Load it in the other: from_pretrained(..., dtype={wanted})."
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise InputError("Some weights of this live model are not in memory (device 'meta'). Load it without device_map.")
    pick_device(device if device is not None else model.device)
    check_n_devices(n_devices, device if device is not None else model.device)
    check_supported(model.config, live_name(model))
    if model.get_output_embeddings() is None:
        raise InputError(
            f"This {type(model).__name__} predicts no tokens. Load the checkpoint with AutoModelForCausalLM, or give load_model its "
            "name or directory."
        )
    rounded = [buffer.dtype for name, buffer in model.named_buffers() if name.endswith("inv_freq") and buffer.itemsize < 4]
    if rounded:
        raise InputError(
            f"This live model's rotary frequencies were rounded to {rounded[0]} together with its weights, which moves its "
            f"positions. Load it in that type, from_pretrained(..., dtype={rounded[0]}), which keeps them in float32."
        )
    if getattr(model, "_hf_peft_config_loaded", False):
        raise InputError(f"This live model holds an adapter beside its weights. {_MERGE}")


def live_name(model: Any) -> str:
    """What a live Hugging Face model is called: the last part of where it came from, else its class."""
    return Path(str(model.config._name_or_path) or type(model).__name__).name


def no_model(thing: object, wanted: str = WANTED) -> InputError:
    """The error for something that is no model, after the sentence that says what is."""
    cure = "."
    if isinstance(thing, type):
        cure = ": make a model of it first, for example with from_pretrained."
    elif isinstance(thing, dict):
        cure = ": save the whole model with save_pretrained and give that directory."
    else:
        named = [name for kind in type(thing).__mro__ if (name := kind.__name__) in _OTHER_MODELS]
        cure = f". {_OTHER_MODELS[named[0]]}" if named else cure
    return InputError(f"{wanted}, not {_described(thing)}{cure}")


def _described(thing: object) -> str:
    """What something is, for a message."""
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    if isinstance(thing, dict):
        return "a dict of weights" if thing and all(hasattr(value, "shape") for value in thing.values()) else "a dict"
    if thing is None or isinstance(thing, (int, float, bytes)):
        return repr(thing)
    return f"an object of type {type(thing).__name__}"


def find(name_or_path: object, revision: str | None, token: str | None, own_tokenizer: bool) -> Found:
    """Look a model up by its name or path, and refuse what cannot be loaded before anything large is fetched.

    Args:
        name_or_path: A text or path; all else is refused.
        revision: Branch, tag or commit on the hub.
        token: Access token for the hub.
        own_tokenizer: Whether the checkpoint's own tokenizer will be wanted.
    """
    name = os.fspath(name_or_path) if isinstance(name_or_path, (str, os.PathLike)) else name_or_path
    if not isinstance(name, str):
        raise no_model(name_or_path)
    if not name.strip():
        raise InputError(
            "The model's name is empty: give a name (`anchorlens models` lists some), a directory or a .gguf file; "
            "'.' is the current directory."
        )
    if name in PACKAGED:
        if revision is not None:
            raise InputError(f"The packaged model {name!r} has one release only; leave revision out.")
        packaged = PACKAGED[name]
        check_obtainable(packaged)
        return Found("packaged", lambda _shown: Source(name, "packaged", packaged_directory(packaged), packaged.requirement))
    path = existing(name)
    if path is None:
        return _remote(name, revision, token)
    if revision is not None:
        raise InputError(f"{name!r} is a local path, which has no revision.")
    source = _local(path, own_tokenizer)
    return Found(source.kind, lambda _shown: source)


def existing(name: str) -> Path | None:
    """The file or directory of a name, None where there is none.

    Raises:
        InputError: The system will not say.
    """
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (RuntimeError, ValueError):  # a home directory of nobody, or a null character
        return None
    except OSError as error:
        raise InputError(f"{name!r} cannot be looked up as a path ({error.strerror}). Give another name or path.") from error


def _local(path: Path, own_tokenizer: bool) -> Source:
    """A directory or a GGUF file."""
    resolved = path.resolve()
    if resolved.is_dir():
        from anchorlens.models.hf import check_directory

        check_directory(resolved, resolved.name, own_tokenizer)
        return Source(resolved.name, "directory", resolved)
    if resolved.suffix.lower() == ".gguf":
        check_gguf(resolved)
        return Source(resolved.name, "gguf", resolved)
    raise InputError(f"{str(path)!r} is a file, but not a .gguf file. Give the directory that holds config.json.")


def _remote(name: str, revision: str | None, token: str | None) -> Found:
    """A GGUF file or a checkpoint on the hub."""
    official = registered_name(name)
    repo = official or name
    parts = repo.split("/")
    like_a_path = name.startswith((".", "~", os.sep)) or Path(name).is_absolute() or "\\" in name
    gguf = repo.lower().endswith(".gguf")
    if like_a_path or (gguf and len(parts) < 3) or (not gguf and len(parts) > 2) or not re.fullmatch(r"[\w./-]+", repo):
        raise ModelNotFoundError(
            f"There is no file or directory {name!r}, and it cannot be a name on the hub. {nearest_names(name)}".rstrip()
        )
    if official is None and len(parts) == 1:
        # The hub is not asked: its names are owner/name, and the few old ones without an owner are all registered.
        raise ModelNotFoundError(
            f"No model goes by {name!r}: it is no path here, no packaged model, and no name that TransformerLens registers. "
            f"{nearest_names(name)} Names on the hub have the form owner/name."
        )
    if gguf:
        return _remote_gguf(name, "/".join(parts[:2]), "/".join(parts[2:]), revision, token)
    if official is not None and without_huggingface(official):
        raise UnsupportedModelError(
            f"{official!r} has no Hugging Face model to be checked against. Load it with HookedTransformer.from_pretrained and "
            "hand the live model to load_model."
        )
    from anchorlens.models.hf import load_config
    from anchorlens.models.hub import fetch_config, fetch_model
    from anchorlens.models.mapping import check_supported

    config_file = fetch_config(repo, revision, token)
    check_supported(load_config(config_file.parent), repo)

    def fetch(shown: bool) -> Source:
        directory = fetch_model(repo, revision, token, shown)
        return Source(name, "hub", directory, _commit(directory / "config.json") or revision)

    return Found("hub", fetch)


def _remote_gguf(name: str, repo: str, filename: str, revision: str | None, token: str | None) -> Found:
    """A GGUF file on the hub."""
    from anchorlens.models.hub import cached_gguf, fetch_gguf

    here = cached_gguf(repo, filename, revision, token)
    if here is not None:
        check_gguf(here)

    def fetch(_shown: bool) -> Source:
        path = fetch_gguf(repo, filename, revision, token)
        return Source(name, "gguf", path, _commit(path) or revision)

    return Found("gguf", fetch)


def _commit(path: Path) -> str | None:
    """The commit in a path of the hub's cache: ``.../snapshots/COMMIT/file``."""
    parts = path.parts
    for before, part in itertools.pairwise(parts):
        if before == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", part):
            return part
    return None
