"""Checks of the forward pass: parity, rotary positions, evaluation mode, batches, noise and
processed weights.
"""

import re
from dataclasses import replace

import torch
from torch import Tensor

from anchorlens.diagnosis.case import NATS, Case, count_faults, not_applicable
from anchorlens.diagnosis.model_check import FAILED, OK, WARNING, ModelCheck
from anchorlens.engine.hooked_passes import last_stream
from anchorlens.engine.patches import pad_rows
from anchorlens.models.parity import TOLERANCE

# Difference of cosines and sines; those of one configuration are computed alike.
_ROTARY = 1e-3
_BATCHES = (1, 2, 4, 8)
# Norms of the blocks, without those of single heads.
_NORM = re.compile(r"\.\d+\.(.*\.)?(?!(q|k|query|key)_)\w*(ln|norm)\w*\.(w|weight)$", re.IGNORECASE)
# Types of norms whose weights are folded into the next layer.
_FOLDED = re.compile(r"(LayerNorm|RMSNorm)Pre(Bridge)?")


def check_log_probs(case: Case) -> ModelCheck:
    """Compare log-probabilities with those of Hugging Face transformers."""
    limit = TOLERANCE[case.dtype]
    if case.load_error:
        return ModelCheck(
            name="", status=FAILED, value=None, limit=limit, unit=NATS, detail=case.load_error
        )
    stored = None
    if case.card.parity is not None:
        stored = ModelCheck(
            name="",
            status=OK,
            value=case.card.parity,
            limit=limit,
            unit=NATS,
            detail="measured while loading",
        )
    if case.is_loaded and stored is not None:
        return stored
    reference = case.adapter.reference()
    if isinstance(reference, str):
        return stored or not_applicable(reference)
    logits = case.adapter.whole(reference.tokens[0].to(case.adapter.device))[1]
    found = logits.to(device="cpu", dtype=torch.float32).log_softmax(-1)
    return case.compare_log_probs(
        found, reference.log_probs[0], "a new Hugging Face model with the same weights"
    )


def check_rotary(case: Case) -> ModelCheck:
    """Compare the rotary tables with those of the configuration, also at long positions."""
    gap = case.adapter.rotary_gap()
    if gap is None:
        return not_applicable("no rotary tables")
    return ModelCheck(
        name="",
        status=OK if gap <= _ROTARY else FAILED,
        value=gap,
        limit=_ROTARY,
        unit="",
        detail="largest difference of a cosine or sine",
    )


def check_eval_mode(case: Case) -> ModelCheck:
    """Check that two passes are identical, and that no module is in training mode."""
    first, second = (last_stream(case.adapter, case.batch) for _ in range(2))
    gap = float((first - second).abs().nan_to_num(torch.inf).max())
    modules = case.adapter.model.named_modules()
    training = [name or "the model" for name, module in modules if module.training]
    detail = f"training mode: {training[0]}" if training else "two passes"
    if len(training) > 1:
        detail += f" and {len(training) - 1} more"
    return ModelCheck(
        name="",
        status=FAILED if gap else WARNING if training else OK,
        value=gap,
        limit=0.0,
        unit="",
        detail=detail,
    )


def check_batch(case: Case) -> ModelCheck:
    """Compare a padded batch with its single rows, at every token."""
    together = last_stream(case.adapter, case.batch)
    alone = torch.cat([last_stream(case.adapter, pad_rows([row]))[0] for row in case.rows])
    lengths = ", ".join(str(len(row)) for row in case.rows)
    tokens = together[case.batch.mask.to(together.device)]
    return case.compare(tokens, alone, f"rows of {lengths} tokens")


def check_noise(case: Case) -> ModelCheck:
    """Measure how log P of the likeliest token varies with batch size and padding."""
    adapter = case.adapter
    row = case.rows[1]
    token = -1
    found: list[float] = []
    for size in _BATCHES:
        others = [case.rows[0], *case.rows[2:], *case.donors][: size - 1]
        state = last_stream(adapter, pad_rows([row, *others]))[0, len(row) - 1]
        if token < 0:
            token = int(adapter.read.logits(state[None]).argmax())
        picked, total, _ = adapter.read.scores(state[None], torch.tensor([[token]]))
        found.append(float(picked[0, 0] - total[0]))
    noise = max(found) - min(found)
    limit = TOLERANCE[case.dtype] if case.dtype in (torch.float32, torch.float64) else None
    passed = limit is None or noise <= limit
    name = str(case.dtype).removeprefix("torch.")
    return ModelCheck(
        name="",
        status=OK if passed else FAILED,
        value=noise,
        limit=limit,
        unit=NATS,
        detail=f"log P in {name}, batches of 1 to {_BATCHES[-1]} rows",
    )


def check_weights(case: Case) -> ModelCheck:
    """Check that norms folded into the weights are stated in the model card."""
    model = case.adapter.model
    announced = case.card.weights_processed
    kinds = {type(module).__name__ for module in model.modules()}
    folded = sorted(kind for kind in kinds if _FOLDED.fullmatch(kind))
    weights: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        name = name.replace("._original_component", "")
        if parameter.ndim == 1 and _NORM.search(name):
            weights[name] = parameter
    # A norm of Gemma adds 1 to its weight.
    plain = [p for p in weights.values() if bool((p == 1).all()) or bool((p == 0).all())]
    faults = []
    if folded and not announced:
        faults.append(
            f"{', '.join(folded)} in a model whose card says that its weights are not processed"
        )
    more = ": norms are folded, so inner states differ from Hugging Face's" if announced else ""
    found = count_faults(faults, f"card: weights_processed={announced}{more}")
    # After a parity check the weights are the checkpoint's: OLMo's norms have none, which are ones
    # here. An untrained model has norms of 1 as well as a folded one, so this is no failure.
    is_plain = bool(weights) and len(plain) == len(weights)
    if is_plain and case.card.parity is None and not announced and not faults:
        found = replace(
            found,
            status=WARNING,
            detail=f"all {len(weights)} norms have weights of 1: folded without a word in the card,"
            " or untrained",
        )
    return found
