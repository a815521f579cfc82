"""What token patching measures of some pairs of row and donor: P of the clean and of every patched input, at every layer.

The clean row goes through the model in the batch of its patched inputs, so that both are rounded alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.engine.engine import Engine
from anchorlens.protocols.costing import halves
from anchorlens.protocols.knockout.pathway_split import clean_and_split
from anchorlens.protocols.memory import Memory
from anchorlens.protocols.patch_tokens.patching import VARIANTS, Patch
from anchorlens.protocols.patch_tokens.spec import PatchTokens
from anchorlens.protocols.truth_probing import PreparedTruth, clean_batch
from anchorlens.questions.tokens import TokenRow
from anchorlens.results.pathways import pathway_samples
from anchorlens.statistics.pathways import Measured

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
OnWork = Callable[[float], object]


@dataclass(frozen=True)
class PreparedPatches(PreparedTruth):
    """A sweep that is ready to run.

    Attributes:
        patches: Every row that may be measured, with every donor.
        failed: Pairs of row and donor that could not be built, by reason.
        clean: P(hallucination) of every test row, [layer test]; known once the probes are fitted.
        q: True where a test row is Q-Anchored, [test]; known then too.
        kept: True where a test row is measured, [test]; known then too.
    """

    patches: tuple[Patch, ...] = ()
    failed: "dict[str, int] | None" = None
    clean: "Array | None" = None
    q: "Flags | None" = None
    kept: "Flags | None" = None

    @property
    def measured(self) -> list[int]:
        """Indices into :attr:`patches` of the pairs that are measured."""
        kept = self.kept
        return [i for i, patch in enumerate(self.patches) if kept is None or kept[patch.test]]


@dataclass(frozen=True)
class PatchUnit:
    """Pairs of row and donor that are measured together.

    Attributes:
        pairs: Indices into :attr:`PreparedPatches.patches`.
        variants: Which of their inputs.
        inputs: Rows that go through the model: the clean ones, each once, and the patched ones.
    """

    pairs: tuple[int, ...]
    variants: tuple[str, ...]
    inputs: int

    @classmethod
    def of(cls, patches: Sequence[Patch], pairs: Sequence[int], variants: Sequence[str] = VARIANTS) -> "PatchUnit":
        """With its inputs counted."""
        inputs = len({patches[i].test for i in pairs}) + sum(len(patches[i].own(variants)) for i in pairs)
        return cls(tuple(pairs), tuple(variants), inputs)

    @property
    def work(self) -> float:
        """See :class:`~anchorlens.protocols.plug.Unit`."""
        return self.inputs

    def split(self) -> "Sequence[PatchUnit]":
        """Halves; a pair alone by its inputs."""
        if len(self.pairs) > 1:
            parts = halves(self.pairs)
            return [PatchUnit(tuple(p), self.variants, max(1, self.inputs * len(p) // len(self.pairs))) for p in parts]
        return [PatchUnit(self.pairs, (variant,), 1) for variant in self.variants] if len(self.variants) > 1 else ()


@dataclass(frozen=True)
class _Reading:
    """Test rows of which P and pathway are read."""

    tests: tuple[int, ...]

    @property
    def work(self) -> float:
        return 2 * len(self.tests)

    def split(self) -> "Sequence[_Reading]":
        return [_Reading(tuple(part)) for part in halves(self.tests)] if len(self.tests) > 1 else ()


def read_tests(
    engine: Engine,
    ready: PreparedPatches,
    spec: PatchTokens,
    batches: Sequence[Sequence[int]],
    memory: Memory,
    on_work: OnWork,
) -> tuple[Array, Flags]:
    """P of every clean test row, [layer test], and which are Q-Anchored, [test]."""
    clean, q = np.full((len(ready.layers), len(ready.test)), np.nan), np.zeros(len(ready.test), dtype=np.bool_)

    def read(unit: _Reading) -> None:
        where = list(unit.tests)
        clean[:, where], q[where] = clean_and_split(engine, ready, unit.tests, probe_site=spec.probe_site, on_work=on_work)

    for batch in batches:
        memory.measured(read, _Reading(tuple(batch)))
    return clean, q


def measured_pairs(
    engine: Engine, ready: PreparedPatches, spec: PatchTokens, unit: PatchUnit, on_work: OnWork
) -> pd.DataFrame:
    """The rows of ``samples.parquet`` of a unit, without the columns that are the same for the whole sweep."""
    assert ready.kept is not None  # fit() came first
    assert ready.q is not None
    patches = [ready.patches[i] for i in unit.pairs]
    bases = [ready.row(patch.test) for patch in patches]
    rows: list[TokenRow] = []
    place: dict[str, int] = {}  # of each input among the rows
    for patch, base in zip(patches, bases, strict=True):
        if ready.kept[patch.test]:
            for row in (base, *(patch.inputs[variant] for variant in patch.own(unit.variants))):
                if row.row_id not in place:
                    place[row.row_id] = len(rows)
                    rows.append(row)
    p = np.zeros((len(ready.layers), 0))
    if rows:
        states = engine.cut_states_everywhere(
            clean_batch(rows), site=spec.probe_site, layers=range(engine.adapter.n_layers),
            on_share=lambda share: on_work(share * unit.work),
        )[0, list(ready.layers)]  # fmt: skip
        p = ready.probes["none"].predict(states, [row.example.question_id for row in rows])
    else:
        on_work(unit.work)

    def of(names: "Sequence[str | None]") -> Array:
        """P of some inputs, [layer pair]; NaN where there is none."""
        out = np.full((len(ready.layers), len(names)), np.nan)
        there = [(i, place[name]) for i, name in enumerate(names) if name in place]
        out[:, [i for i, _ in there]] = p[:, [j for _, j in there]]
        return out

    before = of([base.row_id for base in bases])
    q = np.broadcast_to(ready.q[[patch.test for patch in patches]], before.shape)
    donors = tuple(patch.donor.example.example_id for patch in patches)
    measured = [
        Measured(v, before, of([patch.inputs[v].row_id if v in patch.inputs else None for patch in patches]), q, donors)
        for v in unit.variants
    ]
    return pathway_samples("question", spec.delta_kind, ready.layers, bases, measured, event_is_true=False, flips=True)


__all__ = ["PatchUnit", "PreparedPatches", "measured_pairs", "read_tests"]
