"""Choice of the engine: the cone engine if it gives this model's numbers, else the oracle.

At every sweep both ways through the model are compared on a short row. A live model may have changed since the last one, by a module
that was replaced or spliced in, and nothing that is remembered would tell.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.cost import out_of_memory
from anchorlens.engine.engine import Engine
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import InputError
from anchorlens.models.adapter import SITES, Adapter, SiteLike
from anchorlens.models.blocks import find_unsupported_feature, find_user_hook
from anchorlens.prompts.batches import TokenBatch
from anchorlens.warn import warn

# How far log-probabilities may be off on the trial row, by the model's type: root mean square over the likelier half of the
# vocabulary, as a share of how far the model's own are spread there (on a flat distribution nothing differs by much). What another
# order of sums does, with room: SmolLM2 is off by 6e-6, 0.01 and 0.1 in float32, float16 and bfloat16, and by 1.4 and more with the
# sign of one MLP flipped.
_SAME = {torch.float64: 2e-4, torch.float32: 2e-4, torch.float16: 0.03, torch.bfloat16: 0.25}
_TRIAL_TOKENS = 16
# What a forward pass of mismatched or replaced modules raises; MemoryError and signals pass through.
_FORWARD_ERRORS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError)


def choose_engine(adapter: Adapter, engine: str, trial: Sequence[int], sites: Sequence[SiteLike] = ()) -> Engine:
    """Return the chosen engine, or the oracle with a warning if the cone differs from the model on the ``trial`` token ids.

    Raises:
        InputError: P cannot be read from the model's last stream, by either engine.
    """
    ids = torch.tensor(list(trial)[:_TRIAL_TOKENS], device="cpu").to(adapter.device)
    try:
        stream, logits = adapter.whole(ids)
    except _FORWARD_ERRORS as why:
        if out_of_memory(why):
            raise
        raise InputError(
            f"The model's own forward pass fails on a row of {len(ids)} tokens: {type(why).__name__}: {_first_line(why)}. "
            "Its parts have to agree in type and device: move a HookedTransformer with model.to(...), which tells its cfg too."
        ) from why
    read = _gap(adapter, stream, logits)
    if not read <= _same(adapter):
        raise InputError(
            "P cannot be read from this model: what its own forward pass makes of the last block's stream differs from its final "
            f"norm and unembedding by {_told(read)}. Remove hooks and modules of your own behind the last block."
        )
    if engine == "reference":
        return ReferenceEngine(adapter)
    model = adapter.model
    reason = find_user_hook(model) or find_unsupported_feature(model)
    if reason is None and any(not isinstance(site, str) or site not in SITES for site in sites):
        reason = "a site of your own is read or changed"
    if reason is None:
        cone = ConeEngine(adapter)
        reason = _difference(cone, ids, logits)
        if reason is None:
            return cone
    warn(f"The cone engine cannot be used: {reason}. The reference engine measures instead, slower.")
    return ReferenceEngine(adapter, reason)


def _difference(cone: ConeEngine, ids: Tensor, logits: Float[Tensor, "pos d_vocab"]) -> str | None:
    """Return why the engine cannot be used: its difference from the model on a row, or its error; None if they agree."""
    tokens = TokenBatch(ids.cpu()[None], torch.ones(1, len(ids), dtype=torch.bool))
    try:
        gap = _gap(cone.adapter, cone.last_stream(tokens)[0], logits)
    except _FORWARD_ERRORS as why:  # whatever its blocks cannot run, the model may
        if out_of_memory(why):
            raise
        return f"it cannot run a trial row ({type(why).__name__}: {_first_line(why)})"
    return None if gap <= _same(cone.adapter) else f"on a trial row it differs from the model by {_told(gap)}"


@torch.no_grad()
def _gap(adapter: Adapter, stream: Float[Tensor, "pos d_model"], logits: Float[Tensor, "pos d_vocab"]) -> float:
    """Return the largest difference of log-probabilities from the model's own over positions, as a share of their spread.

    Over the likelier half of the vocabulary: tokens that are never predicted (padding, with a bias of minus infinity) say nothing.
    NaN where a position gives NaN. One position at a time in float64, so that a wide vocabulary takes no memory that was not
    promised; but all are unembedded together, because a table in half precision becomes float32 on the way.
    """
    wide = torch.float32 if logits.device.type == "mps" else torch.float64
    gaps: list[Tensor] = []
    for read, own in zip(adapter.read.logits(stream), logits, strict=True):
        mine, theirs = (row.to(logits.device, wide).log_softmax(-1) for row in (read, own))
        likelier = theirs >= theirs.median()
        off, spread = mine[likelier] - theirs[likelier], theirs[likelier] - theirs[likelier].mean()
        off, spread = off.pow(2).mean().sqrt(), spread.pow(2).mean().sqrt()
        gaps.append(torch.where(off == 0, off, off / spread))
    return float(torch.stack(gaps).max())


def _same(adapter: Adapter) -> float:
    return _SAME.get(adapter.shape.dtype, _SAME[torch.float32])


def _first_line(why: Exception) -> str:
    return (str(why).strip().splitlines() or [""])[0][:160]


def _told(gap: float) -> str:
    return f"{gap:.1e} of the spread of its log-probabilities"
