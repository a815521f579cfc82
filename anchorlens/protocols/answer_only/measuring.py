"""Units of an answer-only sweep: how they are planned, and what is measured of one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anchorlens.engine.cost import PassSize
from anchorlens.engine.engine import Engine
from anchorlens.protocols.answer_only.inputs import OTHER, PreparedAnswerOnly, read_of
from anchorlens.protocols.answer_only.spec import AnswerOnly
from anchorlens.protocols.costing import halves
from anchorlens.protocols.knockout.pathway_split import clean_and_split
from anchorlens.protocols.plug import OnWork
from anchorlens.protocols.truth_probing import TruthPlan, by_length, clean_batch, room_of
from anchorlens.questions.tokens import TokenRow
from anchorlens.statistics.pathways import Measured

Array = npt.NDArray[np.float64]
# Passes of a row: clean, with E_Q cut for the pathway, without a question, after another one.
_PASSES = 4


@dataclass(frozen=True)
class RowUnit:
    """Test rows that are measured together, at all layers: a pass gives them all.

    Attributes:
        tests: Indices into :attr:`PreparedTruth.test`.
    """

    tests: tuple[int, ...]

    @property
    def work(self) -> float:
        """See :class:`~anchorlens.protocols.plug.Unit`."""
        return _PASSES * len(self.tests)

    def split(self) -> "Sequence[RowUnit]":
        """Halves."""
        return [RowUnit(tuple(part)) for part in halves(self.tests)] if len(self.tests) > 1 else ()


def measured_rows(
    engine: Engine, ready: PreparedAnswerOnly, spec: AnswerOnly, unit: RowUnit, on_work: OnWork
) -> list[Measured]:
    """P before, after an empty question and after another one; arrays are [layer test]."""
    tests = unit.tests
    before, q = clean_and_split(engine, ready, tests, probe_site=spec.probe_site, mode=spec.mode, on_work=on_work)
    split = np.broadcast_to(q, before.shape)
    empty = _read(engine, ready, spec, [ready.empty[j] for j in tests], on_work)
    other = _read(engine, ready, spec, [ready.other[j] for j in tests], on_work)
    return [
        Measured("none", before, empty, split),
        Measured(OTHER, before, other, split, tuple(ready.donors[j] for j in tests)),
    ]


def _read(engine: Engine, ready: PreparedAnswerOnly, spec: AnswerOnly, rows: Sequence[TokenRow], on_work: OnWork) -> Array:
    """P of whole inputs at every layer, [layer row]. Inputs that stand there twice are measured once: one input has one P."""
    keys = [read_of(row) for row in rows]
    distinct = dict(zip(keys, rows, strict=True))
    place = {key: i for i, key in enumerate(distinct)}
    states = engine.cut_states_everywhere(
        clean_batch(list(distinct.values())), site=spec.probe_site, layers=range(engine.adapter.n_layers),
        on_share=lambda share: on_work(share * len(rows)),
    )[0, list(ready.layers)]  # fmt: skip
    p = ready.probes["none"].predict(states, [row.example.question_id for row in distinct.values()])
    return p[:, [place[key] for key in keys]]


def plan_answer_only(engine: Engine, ready: PreparedAnswerOnly, spec: AnswerOnly) -> TruthPlan:
    """Batches that fit, and their cost.

    Raises:
        InputError: Not even one row at a time fits into ``max_memory``.
    """
    rows = ready.truth.rows
    width = max(len(row.ids) for row in (*rows, *ready.other))
    n_test = len(ready.test)
    cells = 2 * n_test * len(ready.layers)
    room = room_of(engine, ready, spec, 2 * cells)  # a cell has a row for P and one for the flip
    size = room.rows(width, 1)
    training = by_length(ready.truth.of("train", "validation"), lambda i: len(rows[i].ids), size)
    units = tuple(RowUnit(batch) for batch in _batches(ready, size))
    flops = sum(_flops(engine, [rows[i] for i in batch]) for batch in training)
    flops += sum(_unit_flops(engine, ready, unit) for unit in units)
    sizes = [len(batch) for batch in (*training, *(unit.tests for unit in units))]
    cost = room.plan(
        sizes, rows=n_test, cells=cells, flops=flops, most=room.bytes_of(size, width, 1), width=width, checks=spec.check_cells
    )
    return TruthPlan(units, cost, "row", engine.adapter.device, float(sum(map(len, training))), training)


def _batches(ready: PreparedAnswerOnly, size: int) -> list[tuple[int, ...]]:
    """Batches of similar length in which rows of one answer-only input stay together, so that it has one P to the last digit."""
    groups: dict[object, list[int]] = {}
    for j in range(len(ready.test)):
        groups.setdefault(read_of(ready.empty[j]), []).append(j)
    batches: list[tuple[int, ...]] = []
    for group in sorted(groups.values(), key=lambda tests: max(len(ready.row(j).ids) for j in tests)):
        for start in range(0, len(group), size):
            part = tuple(group[start : start + size])
            if batches and len(batches[-1]) + len(part) <= size:
                batches[-1] += part
            else:
                batches.append(part)
    return batches


def _unit_flops(engine: Engine, ready: PreparedAnswerOnly, unit: RowUnit) -> float:
    rows = [ready.row(j) for j in unit.tests]
    empty = {read_of(row): row for row in (ready.empty[j] for j in unit.tests)}
    first = [min(row.positions["question"]) for row in rows]
    return (
        _flops(engine, rows, first)
        + _flops(engine, list(empty.values()))
        + _flops(engine, [ready.other[j] for j in unit.tests])
    )


def _flops(engine: Engine, rows: Sequence[TokenRow], first_cut: Sequence[int] = ()) -> float:
    """Of a pass over whole rows, and over what comes after the first cut where edges are cut."""
    lengths = [len(row.ids) for row in rows]
    cones = [length - first for length, first in zip(lengths, first_cut, strict=False)]
    packs = ((sum(cones), len(cones), max(cones), max(lengths)),) if cones else ()
    # A probe reads streams: nothing is unembedded.
    return engine.pass_flops(PassSize(sum(lengths), len(rows), max(lengths), packs, 0, 0), (0,))


__all__ = ["RowUnit", "measured_rows", "plan_answer_only"]
