"""Checks of interventions with known results: identity patch, full patch, and a knockout of all
edges from a token.
"""

from typing import Any

import torch
from torch import Tensor

from anchorlens.diagnosis.case import SHORT, Case, not_applicable
from anchorlens.diagnosis.hook_checks import attention_reason
from anchorlens.diagnosis.model_check import FAILED, OK, ModelCheck
from anchorlens.engine.hooked_passes import capture, last_stream
from anchorlens.engine.knockout import AttentionKnockout, cut_edges, knockout_hooks
from anchorlens.engine.patches import Slots, pad_rows
from anchorlens.engine.reference import swap_hooks
from anchorlens.models.adapter import Hook

# Sites whose values at all positions determine the rest of the pass.
_WHOLE = ("resid_pre", "resid_mid", "resid_post")
_SOURCE = 3


def check_identity(case: Case) -> ModelCheck:
    """Patch each site in all layers with its own activations: nothing may change, not even by
    rounding.
    """
    adapter = case.adapter
    clean = last_stream(case.adapter, case.batch)
    positions = torch.arange(case.batch.ids.shape[1]).expand(len(case.rows), -1)
    every = Slots(positions, case.batch.mask)
    layers = range(adapter.n_layers)
    gap = 0.0
    for site in adapter.sites:
        (own,) = capture(adapter, case.batch, site, [every])
        patched = last_stream(adapter, case.batch, swap_hooks(adapter, every, own, site, layers))
        difference = (patched - clean)[case.batch.mask.to(clean.device)]
        gap = max(gap, float(difference.abs().nan_to_num(torch.inf).max()))
    detail = f"final residual stream; all positions of {', '.join(adapter.sites)}"
    return ModelCheck(
        name="", status=FAILED if gap else OK, value=gap, limit=0.0, unit="", detail=detail
    )


def check_full_patch(case: Case) -> ModelCheck:
    """Patch all positions of a layer's residual stream with another row's: the outputs are that
    row's, for every layer.
    """
    adapter = case.adapter
    found: list[ModelCheck] = []
    sites = [site for site in _WHOLE if site in adapter.sites]
    row = case.draw_rows("rows", (SHORT,))[0]
    donor = case.draw_rows("donors", (SHORT,))[0]
    tokens = pad_rows([donor, *[row] * adapter.n_layers])
    unpatched = last_stream(adapter, pad_rows([donor, row]))
    moved = case.compare(unpatched[1], unpatched[0]).value

    def patch(site: str, layer: int) -> Hook:
        def put(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
            out = value.clone()
            out[layer + 1] = value[0]
            return out

        return adapter.hook_name(site, layer), put

    for site in sites:
        stream = last_stream(
            adapter, tokens, [patch(site, layer) for layer in range(adapter.n_layers)]
        )
        wanted = case.log_probs(stream[0])
        for layer in range(adapter.n_layers):
            detail = f"{', '.join(sites)} of each layer; without a patch {moved:.2g}"
            found.append(case.compare_log_probs(case.log_probs(stream[layer + 1]), wanted, detail))
    return max(found, key=lambda one: (one.status == FAILED, one.value))


def check_knockout(case: Case) -> ModelCheck:
    """Cut all edges from a token in all layers: the outputs at later positions do not depend on the
    token.
    """
    adapter = case.adapter
    reason = attention_reason(adapter)
    if reason:
        return not_applicable(reason)
    row = case.rows[1]
    other = [*row[:_SOURCE], case.donors[1][_SOURCE], *row[_SOURCE + 1 :]]
    tokens = pad_rows([row, other])
    edges = cut_edges([(_SOURCE,)] * 2, [None] * 2, len(row))
    plain = last_stream(adapter, tokens)[:, _SOURCE + 1 :]
    moved = case.compare(plain[1], plain[0]).value
    hooks = knockout_hooks(adapter, AttentionKnockout(edges, tuple(range(adapter.n_layers))))
    cut = last_stream(adapter, tokens, hooks)[:, _SOURCE + 1 :]
    return case.compare(
        cut[1], cut[0], f"another token at position {_SOURCE}; without the cut {moved:.2g}"
    )
