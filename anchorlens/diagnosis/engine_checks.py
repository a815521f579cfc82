"""Checks of the engines: the cone engine against the reference engine on sample cells, and their
speed.
"""

import time
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from anchorlens.constants import KNOCKOUT_MODES
from anchorlens.diagnosis.case import NATS, Case, not_applicable
from anchorlens.diagnosis.hook_checks import attention_reason
from anchorlens.diagnosis.model_check import FAILED, OK, WARNING, ModelCheck
from anchorlens.engine.choose_engine import choose_engine
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.engine import Engine
from anchorlens.engine.knockout import cut_edges
from anchorlens.engine.patches import AnchorSwap, KnockoutBatch, Slots, SwapBatch, pad_rows
from anchorlens.engine.readouts import Metrics
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.models.parity import TOLERANCE

# Patched positions of each row and their sources; both are before the last position.
_TARGETS = ((3, 4), (5, 6), (2, 9), (4, 7))
_SOURCES = ((2, 5), (6, 4), (3, 8), (7, 5))
_TIMED_LAYERS = 4


def _slots(positions: Sequence[Sequence[int]]) -> Slots:
    table = torch.tensor(positions)
    return Slots(table, torch.ones_like(table, dtype=torch.bool))


def _swaps(case: Case) -> SwapBatch:
    swap = AnchorSwap(
        anchor="tokens", control="none", slots=_slots(_TARGETS), source=_slots(_SOURCES)
    )
    return SwapBatch(case.batch, case.reader, (swap,), pad_rows(case.donors))


def check_cone(case: Case) -> ModelCheck:
    """Compare the cone engine with the reference engine on swaps at each site and knockouts in both
    modes.
    """
    adapter = case.adapter
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine = choose_engine(adapter, "cone", case.rows[0])
    if not isinstance(engine, ConeEngine):
        user = adapter.find_user_hook()
        unsupported = adapter.find_unsupported_feature()
        if user is None and unsupported is not None:
            return not_applicable(f"the reference engine is used: {unsupported}")
        return ModelCheck(
            name="",
            status=FAILED if user is None else WARNING,
            detail=f"the reference engine is used: {engine.reason}",
        )
    gap = effect = 0.0
    reference = ReferenceEngine(adapter)
    batch = _swaps(case)
    rows = range(len(case.rows))
    layers = [row * (adapter.n_layers - 1) // (len(rows) - 1) for row in rows]
    for site in adapter.sites:
        before, wanted = reference.run_cells(batch, site=site, layers=layers, window=1)
        _, (after,) = engine.run_swaps(batch, site=site, layers=layers, window=1)
        gap = max(gap, _largest(_values(after)[:, rows, rows] - _values(wanted)))
        effect = max(effect, _largest(_values(wanted) - _values(before)))
    modes = () if attention_reason(adapter) else KNOCKOUT_MODES
    for mode in modes:
        cone, full = (_knockout(one, case, mode) for one in (engine, reference))
        gap = max(gap, _largest(cone - full))
        effect = max(effect, _largest(full[0] - full[1]))
    n = len(rows) * (len(adapter.sites) + 2 * len(modes))
    limit = TOLERANCE[case.dtype]
    return ModelCheck(
        name="",
        status=OK if gap <= limit else FAILED,
        value=gap,
        limit=limit,
        unit=NATS,
        detail=f"{n} cells; largest effect {effect:.2g}",
    )


def _values(metrics: Metrics) -> Tensor:
    return torch.stack([metrics.log_p, metrics.logit_diff])


def _knockout(engine: Engine, case: Case, mode: str) -> Tensor:
    """Return log P of the likeliest token with edges cut in all layers and in the upper half:
    [window example].
    """
    adapter = case.adapter
    ends = case.reader.position
    edges = cut_edges(_TARGETS, [None] * len(_TARGETS), case.batch.ids.shape[1])
    batch = KnockoutBatch(
        tokens=case.batch,
        row=torch.arange(len(ends)),
        position=ends,
        edges=(edges,),
        mode=mode,
    )
    windows = [range(adapter.n_layers), range(adapter.n_layers // 2, adapter.n_layers)]
    states = engine.knockout_states(batch, where=None, windows=windows)[0]
    return torch.stack([_values(case.reader.metrics(adapter, window)) for window in states])


def _largest(difference: Tensor) -> float:
    return float(difference.abs().nan_to_num(torch.inf).max())


def check_speed(case: Case) -> ModelCheck:
    """Measure the cells per second of each engine; a cell is one change at one layer of one row."""
    adapter = case.adapter
    batch = _swaps(case)
    every = range(adapter.n_layers)
    some = every[:: -(-len(every) // _TIMED_LAYERS)]
    rates: dict[str, float] = {}
    engines: list[tuple[Engine, Sequence[int]]] = [(ReferenceEngine(adapter), some)]
    if adapter.find_user_hook() is None and adapter.find_unsupported_feature() is None:
        engines.append((ConeEngine(adapter), every))
    for engine, layers in engines:
        start = time.perf_counter()
        engine.run_swaps(batch, site="resid_pre", layers=layers, window=1)
        rates[engine.name] = len(layers) * len(case.rows) / (time.perf_counter() - start)
    detail = ", ".join(f"{name} {rate:.3g}" for name, rate in rates.items())
    if len(rates) == 1:
        return ModelCheck(
            name="",
            status=OK,
            value=rates["reference"],
            limit=None,
            unit="cells/s",
            detail=f"cells/s: {detail}",
        )
    return ModelCheck(
        name="",
        status=OK,
        value=rates["cone"] / rates["reference"],
        limit=None,
        unit="×",
        detail=f"cells/s: {detail}",
    )
