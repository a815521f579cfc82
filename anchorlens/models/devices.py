"""Devices and dtypes of models, and the free memory of devices."""

import platform
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path

import psutil
import torch
from transformers import PretrainedConfig

from anchorlens.display import as_int, short_repr
from anchorlens.errors import InputError, did_you_mean

# P of a prompt varies with the batch size by 1e-2 in bfloat16, by 3e-6 in float32. The default is
# float32 up to 40 GB.
FLOAT32_LIMIT = 10e9
DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")}
DTYPES |= {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def half_on_cpu(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether a dtype is half precision on a CPU."""
    return device.type == "cpu" and dtype in (torch.bfloat16, torch.float16)


def has_half_products(dtype: torch.dtype) -> bool:
    """Return whether this CPU has instructions for products of a half-precision dtype."""
    supported = (
        "_is_mkldnn_bf16_supported" if dtype is torch.bfloat16 else "_is_mkldnn_fp16_supported"
    )
    query = getattr(torch.ops.mkldnn, supported, None)  # torch may be built without oneDNN
    return query is not None and bool(query())


def half_in_float32(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether half-precision products are computed in float32, because native ones would
    take 6 to 300 times as long.
    """
    return half_on_cpu(device, dtype) and not has_half_products(dtype)


@cache
def is_onednn_faster() -> bool:
    """Return whether oneDNN multiplies float32 matrices faster than torch's default, MKL: on AMD
    processors with AVX-512.
    """
    info = Path("/proc/cpuinfo")
    vendor = info.read_text() if info.exists() else platform.processor()
    known = hasattr(torch.ops.mkldnn, "_linear_pointwise")  # torch may be built without oneDNN
    return (
        known and "AuthenticAMD" in vendor and torch.backends.cpu.get_cpu_capability() == "AVX512"
    )


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Switch the caller's ``torch.autocast`` off during a ``with`` statement."""
    on = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


def on(device: torch.device, table: torch.Tensor) -> torch.Tensor:
    """Move a tensor to a device; copies to a GPU are pinned and asynchronous."""
    if device.type == "cuda" and not table.is_cuda:
        return table.pin_memory().to(device, non_blocking=True)
    return table.to(device)


@lru_cache(maxsize=1024)
def index_on(device: torch.device, numbers: tuple[int, ...]) -> torch.Tensor:
    """Return an index tensor on a device; one that was made before is not copied again."""
    with torch.inference_mode(False):  # it may be used again where gradients are recorded
        return on(device, torch.tensor(numbers, dtype=torch.long, device="cpu"))


def check_device_dtype(device: object, dtype: object) -> None:
    """Raise InputError if models cannot run on ``device`` in ``dtype`` here; either may be None."""
    where = pick_device(device)
    if (
        dtype not in (None, "auto")
        and parse_dtype(dtype) == torch.float64
        and where.startswith("mps")
    ):
        raise InputError(
            f"dtype={dtype!r}: Apple's GPUs have no float64. Use dtype='float32'.", argument="dtype"
        )


def pick_device(device: object) -> str:
    """Return the name of a device; if None, the first available of CUDA, MPS and CPU.

    Raise InputError if it does not exist.
    """
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = torch.backends.mps.is_available()
    if device is None:
        return "cuda" if cards else "mps" if mps else "cpu"
    try:
        wanted = torch.device(device)  # pyright: ignore[reportArgumentType, reportCallIssue]
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"device={short_repr(device)}: no such device. Give 'cuda', 'mps' or 'cpu'.",
            argument="device",
        ) from error
    if (wanted.index or 0) >= {"cuda": cards, "mps": int(mps), "cpu": 1}.get(wanted.type, 0):
        raise InputError(
            f"device={str(wanted)!r}: this machine has a CPU, {cards} CUDA devices and {int(mps)}"
            " Apple GPUs. Use device='cpu'.",
            argument="device",
        )
    return str(wanted)


def check_n_devices(n_devices: object, device: object) -> None:
    """Raise InputError if this machine does not have ``n_devices`` CUDA devices from
    ``device`` on.
    """
    wanted = as_int(n_devices)
    if wanted is None or wanted < 1:
        raise InputError(
            f"n_devices={short_repr(n_devices)}: give a whole number of at least 1.",
            argument="n_devices",
        )
    if wanted == 1:
        return
    first = torch.device("cuda" if device is None else pick_device(device))
    if first.type != "cuda":
        raise InputError(
            f"n_devices={wanted}: needs CUDA devices, and device={str(first)!r} is none."
            " Leave one of the two out.",
            argument="n_devices",
        )
    available = (torch.cuda.device_count() if torch.cuda.is_available() else 0) - (first.index or 0)
    if wanted > available:
        raise InputError(
            f"n_devices={wanted}: this machine has {max(available, 0)} CUDA devices from {first}"
            " on. Use fewer, or stream=True.",
            argument="n_devices",
        )


def parse_dtype(dtype: object) -> torch.dtype:
    """Return a floating-point dtype by its name, or the dtype itself; raise InputError for
    others.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(
            f"dtype={name!r}: unknown. {did_you_mean(name, [*DTYPES, 'auto'])}", argument="dtype"
        )
    return DTYPES[name]


def config_dtype(config: PretrainedConfig) -> torch.dtype:
    """Return the dtype that a checkpoint's configuration names; float32 if it names none."""
    stored = getattr(config, "dtype", None)
    return parse_dtype(stored) if stored is not None else torch.float32


def pick_dtype(dtype: object, device: str, stored: torch.dtype, n_params: int) -> torch.dtype:
    """Return the dtype of the parameters.

    If None, float32; on an accelerator ``stored`` for 10 billion parameters or more.
    """
    if dtype == "auto":
        return stored
    if dtype is not None:
        return parse_dtype(dtype)
    return torch.float32 if device == "cpu" or n_params < FLOAT32_LIMIT else stored


_fixed: ContextVar[int | None] = ContextVar("free memory", default=None)


@contextmanager
def fix_free_memory(free: int) -> Iterator[None]:
    """Fix the result of :func:`free_memory` during a ``with`` statement, because rounding depends
    on batch sizes.
    """
    token = _fixed.set(free)
    try:
        yield
    finally:
        _fixed.reset(token)


def free_memory(devices: Sequence[torch.device]) -> int:
    """Return the free bytes of the fullest of these devices, or the value of
    :func:`fix_free_memory`.
    """
    fixed = _fixed.get()
    return min(map(_free, devices)) if fixed is None else fixed


def _free(device: torch.device) -> int:
    if device.type != "cuda":
        return int(psutil.virtual_memory().available)
    free, total = torch.cuda.mem_get_info(device)
    used = torch.cuda.memory_allocated(device)
    # PyTorch keeps blocks that were freed, and may be limited to a share of the card.
    kept = torch.cuda.memory_reserved(device) - used
    allowed = torch.cuda.get_per_process_memory_fraction(device) * total
    return int(min(free + kept, allowed - used))
