"""Where a model runs and in which type, when the user does not say."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from transformers import PretrainedConfig

from anchorlens.errors import InputError, did_you_mean
from anchorlens.kinds import as_whole, described
from anchorlens.models.audit import quantisation

# P of one prompt moves by 1e-2 with the batch size in bfloat16 and by 3e-6 in float32, so float32 is the default wherever it is
# affordable. From this size on an accelerator gets the checkpoint's own type: 40 GB of weights are more than most cards hold.
FLOAT32_LIMIT = 10e9
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


def half_on_cpu(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a model is in half precision on a CPU.

    Products are oneDNN's there, where the CPU has instructions for them. It makes a kernel for every size that it meets, which takes
    as long as a product of some hundred tokens and stays in memory (megabytes each).
    """
    return device.type == "cpu" and dtype in (torch.bfloat16, torch.float16)


def has_half_products(dtype: torch.dtype) -> bool:
    """Whether this machine's CPU has instructions for products of a half-precision type, which oneDNN's kernels use."""
    supported = "_is_mkldnn_bf16_supported" if dtype is torch.bfloat16 else "_is_mkldnn_fp16_supported"
    asked = getattr(torch.ops.mkldnn, supported, None)  # torch may be built without oneDNN
    return asked is not None and bool(asked())


def half_in_float32(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products in half precision are better taken in float32: without instructions torch takes 6 to 300 times as long."""
    return half_on_cpu(device, dtype) and not has_half_products(dtype)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """What is read is exact under a caller's ``torch.autocast`` too, which rounds the products of the blocks alone."""
    on = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


def check_device_dtype(device: object, dtype: object) -> None:
    """Whether models can run on ``device`` in ``dtype`` here, either of which may be None; no file is read.

    Raises:
        InputError: There is no such device here, no such type, or the one has not the other.
    """
    where = pick_device(device)
    if dtype is None or (isinstance(dtype, str) and dtype == "auto"):
        return
    if parse_dtype(dtype) == torch.float64 and where.startswith("mps"):
        raise InputError("Apple's GPUs have no float64. Use dtype='float32', or device='cpu'.")


def pick_device(device: object) -> str:
    """The device to use: as asked, else CUDA, else MPS, else the CPU.

    Args:
        device: A name, a torch device or None; all else is refused.

    Raises:
        InputError: There is no such device here.
    """
    if device is None:
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        wanted = torch.device(device)  # pyright: ignore[reportArgumentType, reportCallIssue]
    except (RuntimeError, TypeError) as error:
        raise InputError(f"There is no device {device!r}. Give 'cuda', 'cuda:1', 'mps' or 'cpu'.") from error
    if wanted.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (wanted.index or 0) >= count:
            last = f"device='cuda:{count - 1}' is the last" if count else "use device='cpu'"
            raise InputError(f"Device {str(wanted)!r} was asked for; torch sees {count} CUDA devices here: {last}.")
    if wanted.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("Device 'mps' was asked for, and torch has none here. Use device='cpu'.")
    if wanted.type not in ("cuda", "mps", "cpu"):
        raise InputError(f"Models run on cuda, mps or cpu, not on {wanted.type!r}. Use device='cpu'.")
    return str(wanted)


def check_n_devices(n_devices: object, device: object) -> None:
    """Whether a model can be spread over so many CUDA devices here, the first of which is ``device``.

    Raises:
        InputError: It is no number, the device is of another kind, or there are not so many.
    """
    wanted = as_whole(n_devices)
    if wanted is None or wanted < 1:
        raise InputError(f"n_devices={described(n_devices)} is no number of devices: give a whole number from 1 on.")
    if wanted == 1:
        return
    first = torch.device("cuda" if device is None else pick_device(device))
    if first.type != "cuda":
        raise InputError(
            f"n_devices={wanted} spreads a model over CUDA devices, and device={str(first)!r} is none. Leave one of the two out."
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = count - (first.index or 0)
    if wanted > there:
        cure = f"Give n_devices={there}" if there > 1 else "Leave n_devices out"
        where = f", and {first} is followed by {there - 1}" if first.index else ""
        raise InputError(
            f"n_devices={wanted}, but this machine has {count} CUDA device{'s' * (count != 1)}{where}. {cure}; stream=True runs a "
            "model that does not fit."
        )


def parse_dtype(dtype: object) -> torch.dtype:
    """A floating-point type from its name, or as it is.

    Raises:
        InputError: No type that a model can have.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(f"dtype={name!r} is no type that models run in. {did_you_mean(name, [*DTYPES, 'auto'])}")
    return DTYPES[name]


def own_dtype(config: PretrainedConfig) -> torch.dtype:
    """The type that a checkpoint's weights are stored in, as its configuration says; float32 if it does not."""
    stored = getattr(config, "dtype", None)
    return parse_dtype(stored) if stored is not None else torch.float32


def pick_dtype(dtype: str | torch.dtype | None, device: str, config: PretrainedConfig, directory: Path) -> torch.dtype:
    """The parameters' type: as asked; else float32, but the checkpoint's own on an accelerator from 10 billion parameters on.

    Args:
        dtype: A type or its name; ``"auto"`` is the checkpoint's own.
        device: Where the model will run.
        config: The checkpoint's configuration.
        directory: The checkpoint; the size of its weight files gives the number of parameters.

    Raises:
        InputError: No type that a model can have.
    """
    if dtype == "auto":
        return own_dtype(config)
    if dtype is not None:
        return parse_dtype(dtype)
    if device == "cpu":
        return torch.float32
    stored = own_dtype(config)
    files = [*directory.glob("model*.safetensors")] or [*directory.glob("pytorch_model*.bin")]
    # What is unpacked while it is read has four bits a number, and a scale for each 32.
    n_bytes = stored.itemsize if quantisation(config) is None else (4 + 8 / 32) / 8
    n_params = sum(path.stat().st_size for path in files) / n_bytes
    return torch.float32 if n_params < FLOAT32_LIMIT else stored
