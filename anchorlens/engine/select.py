"""Which engine measures: the cone engine where it gives this model's numbers, the oracle where it does not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import HookedTransformer

from anchorlens.engine.cone import Cone
from anchorlens.engine.interventions import CutBatch, SwapBatch
from anchorlens.engine.knockout import cut_states, cut_states_everywhere
from anchorlens.engine.readouts import Metrics
from anchorlens.engine.reference import last_stream, run_swaps
from anchorlens.models.adapter import SITES, Adapter, SiteLike
from anchorlens.models.blocks import FusedBlocks, PlainBlocks, fused_reason, hooked_reason, unsupported_reason
from anchorlens.notices import warn
from anchorlens.questions.tokens import TokenBatch

# Largest difference of a probability on the trial row, by the model's type: what another order of sums does, with room.
_SAME = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
_TRIAL_TOKENS = 16
# What came of the trials of each model, by kind of blocks.
_TRIED: "WeakKeyDictionary[HookedTransformer, dict[str, str | None]]" = WeakKeyDictionary()


@dataclass(frozen=True)
class Engine:
    """An engine that was chosen for a model.

    Attributes:
        name: ``cone`` or ``reference``.
        blocks: ``fused`` or ``plain``; empty for the oracle.
        reason: Why it is not the cone engine with fused blocks, where that was asked for.
        cone: The cone engine; None for the oracle.
        adapter: The model.
    """

    name: str
    blocks: str
    reason: str
    cone: Cone | None
    adapter: Adapter

    def run_swaps(
        self,
        batch: SwapBatch,
        *,
        site: SiteLike,
        layers: Sequence[int],
        window: int,
        on_share: Callable[[float], object] = lambda share: None,  # noqa: ARG005
    ) -> tuple[Metrics, list[Metrics]]:
        """See :func:`anchorlens.engine.reference.run_swaps`."""
        if self.cone is None:
            return run_swaps(self.adapter, batch, site=site, layers=layers, window=window, on_share=on_share)
        return self.cone.run_swaps(batch, site=site, layers=layers, window=window, on_share=on_share)

    def cut_states(
        self,
        batch: CutBatch,
        *,
        where: tuple[SiteLike, int] | None,
        windows: Sequence[Sequence[int]],
        on_share: Callable[[float], object] = lambda share: None,  # noqa: ARG005
    ) -> Float[Tensor, "variant window read d_model"]:
        """See :func:`anchorlens.engine.knockout.cut_states`."""
        if self.cone is None:
            return cut_states(self.adapter, batch, where=where, windows=windows, on_share=on_share)
        return self.cone.cut_states(batch, where=where, windows=windows, on_share=on_share)

    def cut_states_everywhere(
        self,
        batch: CutBatch,
        *,
        site: SiteLike,
        layers: Sequence[int],
        on_share: Callable[[float], object] = lambda share: None,  # noqa: ARG005
    ) -> Float[Tensor, "run layer read d_model"]:
        """See :func:`anchorlens.engine.knockout.cut_states_everywhere`."""
        if self.cone is None:
            return cut_states_everywhere(self.adapter, batch, site=site, layers=layers, on_share=on_share)
        return self.cone.cut_states_everywhere(batch, site=site, layers=layers, on_share=on_share)


def choose_engine(adapter: Adapter, engine: str, trial: Sequence[int], sites: Sequence[SiteLike] = ()) -> Engine:
    """The engine that was asked for, or the oracle with a warning that says why.

    Args:
        adapter: The model.
        engine: ``cone`` or ``reference``.
        trial: Token ids of a row; the cone engine has to give the model's own probabilities on its first tokens.
        sites: Where streams are put and read.
    """
    if engine == "reference":
        return Engine("reference", "", "", None, adapter)
    model = adapter.model
    own = [site for site in sites if not isinstance(site, str) or site not in SITES]
    reason = hooked_reason(model) or unsupported_reason(model)
    if reason is None and own:
        reason = "a site of your own is read or changed"
    if reason is None:
        why_not = fused_reason(model) or _difference(Cone(adapter, FusedBlocks(model)), trial)
        if why_not is None:
            return Engine("cone", "fused", "", Cone(adapter, FusedBlocks(model)), adapter)
        plain = Cone(adapter, PlainBlocks(model))
        reason = _difference(plain, trial)
        if reason is None:
            return Engine("cone", "plain", why_not, plain, adapter)
    warn(f"The cone engine cannot be used: {reason}. The reference engine measures instead, slower.")
    return Engine("reference", "", reason, None, adapter)


def _difference(cone: Cone, trial: Sequence[int]) -> str | None:
    """How far the engine is from the model's own forward pass on a row; None where they agree. Asked once for each model."""
    known = _TRIED.setdefault(cone.adapter.model, {})
    if cone.blocks.name not in known:
        known[cone.blocks.name] = _tried(cone, trial)
    return known[cone.blocks.name]


def _tried(cone: Cone, trial: Sequence[int]) -> str | None:
    ids = torch.tensor([list(trial)[:_TRIAL_TOKENS]])
    tokens = TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool))
    adapter = cone.adapter
    with torch.inference_mode():
        mine, theirs = (
            adapter.logits(stream[0]).softmax(-1) for stream in (cone.last_stream(tokens), last_stream(adapter, tokens))
        )
        gap = float((mine - theirs).abs().max())
    # A NaN agrees with nothing.
    if gap <= _SAME.get(adapter.model.cfg.dtype, 1e-4):
        return None
    return f"on a trial row its probabilities differ from the model's by {gap:.1e}"


__all__ = ["Engine", "choose_engine"]
