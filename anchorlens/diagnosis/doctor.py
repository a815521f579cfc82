"""Check that a model, its tokenizer and its hooks do what interventions need (docs/doctor.md)."""

import os
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from transformers import PreTrainedTokenizerBase

from anchorlens.diagnosis.case import Case
from anchorlens.diagnosis.engine_checks import check_cone, check_speed
from anchorlens.diagnosis.forward_checks import (
    check_batch,
    check_eval_mode,
    check_log_probs,
    check_noise,
    check_rotary,
    check_weights,
)
from anchorlens.diagnosis.hook_checks import check_heads, check_hook_writes, check_hooks
from anchorlens.diagnosis.model_check import FAILED, WARNING, Diagnosis, ModelCheck
from anchorlens.diagnosis.patch_checks import check_full_patch, check_identity, check_knockout
from anchorlens.diagnosis.token_checks import check_bos, check_padding
from anchorlens.display import as_int, one_line, short_repr
from anchorlens.errors import AnchorlensError, InputError, ParityError
from anchorlens.models.adapter import TRANSFORMER_LENS, LensModel, is_lens_model, unwrap_model
from anchorlens.models.card import model_card
from anchorlens.models.load import ModelLike, adapt, load_model
from anchorlens.models.source import check_model
from anchorlens.progress import progress, waiting

_REPORT = (
    "Report the model's configuration to anchorlens or TransformerLens; do not trust its numbers."
)
_HOOKS = "Remove your own hooks and replaced modules, or load the model again with al.load_model."
# Name, check, and cure.
CHECKS: tuple[tuple[str, Callable[[Case], ModelCheck], str], ...] = (
    (
        "log-probabilities",
        check_log_probs,
        "Load the model again with al.load_model; if it still fails, report its config.json.",
    ),
    (
        "rotary positions",
        check_rotary,
        "Set rope base and scaling as in the checkpoint's config.json, and load the model again.",
    ),
    (
        "BOS",
        check_bos,
        (
            "Load the tokenizer with AutoTokenizer and set"
            " model.cfg.default_prepend_bos to what it does itself."
        ),
    ),
    ("padding", check_padding, "Set model.tokenizer.padding_side = 'right'."),
    ("evaluation mode", check_eval_mode, "Call model.eval(), which switches dropout off."),
    (
        "batch equals rows",
        check_batch,
        "Remove modules that mix rows or count padding as positions; load the model again.",
    ),
    ("noise floor", check_noise, "Use dtype='float32'."),
    (
        "processed weights",
        check_weights,
        "Load unprocessed weights with al.load_model, unless the model is untrained.",
    ),
    ("hooks fire once", check_hooks, _HOOKS),
    ("writes", check_hook_writes, _HOOKS),
    ("identity patch", check_identity, _HOOKS),
    ("full patch", check_full_patch, _HOOKS),
    ("knockout", check_knockout, _REPORT),
    ("head mapping", check_heads, _REPORT),
    (
        "cone equals reference",
        check_cone,
        "Pass engine='reference' to sweeps, and report the model's configuration.",
    ),
    ("speed", check_speed, _REPORT),
)
# Errors of a forward pass through broken modules; memory errors of the host and signals are not
# caught.
_ERRORS = (
    AnchorlensError,
    RuntimeError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    AssertionError,
)


def doctor(
    model: ModelLike,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    backend: str | None = None,
    tokenizer: PreTrainedTokenizerBase | str | os.PathLike[str] | None = None,
    seed: int = 0,
    show_progress: bool = True,
) -> Diagnosis:
    """Check that a model, its tokenizer and its hooks do what interventions need.

    Each check compares the model with an independent computation or a known result, on a few random
    rows; docs/doctor.md describes them. A live TransformerLens model is checked as it is; nothing
    in it is changed.

    Args:
        model: Name, path, Hugging Face model, HookedTransformer or TransformerBridge, as for
            :func:`anchorlens.load_model`.
        device: Device of the model. If None, the first available of cuda, mps and cpu; a live model
            stays on its device.
        dtype: Data type of the model, as for :func:`anchorlens.load_model`; a live model keeps its
            own.
        backend: ``hooked`` or ``bridge``. If None, ``hooked`` where this version of TransformerLens
            has it.
        tokenizer: Tokenizer of a Hugging Face model, or directory of one; not for a live
            TransformerLens model.
        seed: Random seed of the rows.
        show_progress: Whether to show progress bars.

    Returns:
        One check per row, with status, value, limit and cure. A failed check raises no error.

    Raises:
        InputError: If an argument is invalid, or the model cannot be loaded.

    Examples:
        >>> import anchorlens as al
        >>> al.doctor("smollm2-135m-instruct").ok  # doctest: +SKIP
        True
    """
    if (drawn := as_int(seed)) is None or drawn < 0:
        raise InputError(
            f"seed={short_repr(seed)}: give a whole number of at least 0.", argument="seed"
        )
    start = time.perf_counter()
    model = unwrap_model(model)
    if is_lens_model(model):
        check_model(model, device=device, dtype=dtype, backend=backend, tokenizer=tokenizer)
        if tokenizer is not None:
            raise InputError(
                "tokenizer: a live TransformerLens model has its own. Leave tokenizer out.",
                argument="tokenizer",
            )
        checked = model
        error = ""
    else:
        checked, error = _load(model, device, dtype, backend, tokenizer, show_progress)
    with waiting("doctor: hashing the weights", show=show_progress):
        case = Case(
            adapter=adapt(checked),
            card=model_card(checked),
            is_loaded=not is_lens_model(model),
            load_error=error,
            seed=drawn,
        )
    checks: list[ModelCheck] = []
    label = f"doctor {case.card.name}"
    with progress(label, len(CHECKS), "check", show=show_progress) as bar:
        for name, check, cure in CHECKS:
            bar.enter(name)
            checks.append(_run(name, check, cure, case))
            bar.advance(1)
    card = case.card
    seconds = time.perf_counter() - start
    return Diagnosis(
        model=card.name,
        backend=card.backend,
        transformer_lens=TRANSFORMER_LENS,
        device=card.device,
        dtype=card.dtype,
        seconds=seconds,
        checks=tuple(checks),
    )


def _load(
    model: ModelLike,
    device: str | torch.device | None,
    dtype: str | torch.dtype | None,
    backend: str | None,
    tokenizer: PreTrainedTokenizerBase | str | os.PathLike[str] | None,
    show_progress: bool,
) -> tuple[LensModel, str]:
    """Load a model; if its parity check fails, load it without and return the error's message."""
    try:
        return (
            load_model(
                model, device, dtype, tokenizer=tokenizer, progress=show_progress, backend=backend
            ),
            "",
        )
    except ParityError as error:
        message = one_line(error)
    options = {"progress": show_progress, "backend": backend, "check_parity": False}
    return load_model(model, device, dtype, tokenizer=tokenizer, **options), message


def _run(name: str, check: Callable[[Case], ModelCheck], cure: str, case: Case) -> ModelCheck:
    """Run one check, where an error of the model counts as a failed check."""
    try:
        with torch.no_grad():
            found = check(case)
    except _ERRORS as error:
        found = ModelCheck(
            name=name, status=FAILED, detail=f"{type(error).__name__}: {one_line(error)}"
        )
    return replace(found, name=name, cure=cure if found.status in (FAILED, WARNING) else "")
