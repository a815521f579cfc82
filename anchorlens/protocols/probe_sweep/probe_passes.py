"""Forward passes of probe sweeps, and the units of work that they form."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from anchorlens.engine.cost import PassSize
from anchorlens.engine.geometry import PassGeometry, RowGeometry
from anchorlens.engine.knockout import cut_edges
from anchorlens.engine.patches import KnockoutBatch, pad_rows
from anchorlens.measure.budget import halves
from anchorlens.protocols.base import Plan
from anchorlens.questions.tokens import TokenRow

Cells = tuple[tuple[int, int], ...]
"""(test, variant) indices."""


def distinct_tests(cells: Cells) -> tuple[int, ...]:
    """Return the distinct test rows of cells, in order."""
    return tuple(dict.fromkeys(j for j, _ in cells))


@dataclass(frozen=True, kw_only=True)
class ProbePass:
    """Rows of one forward pass.

    Attributes:
        rows: Inputs of the pass.
        cuts: Cut positions of each row, for each knockout; () without a cut.
        targets: Positions of each row that no longer attend to the cut ones; None for all later
            positions.
        mode: Cut of edges, ``mask`` or ``zero``.
        heads: Query heads in which edges are cut; None for all.
        names: Control of each knockout.
    """

    rows: tuple[TokenRow, ...]
    cuts: tuple[tuple[tuple[int, ...], ...], ...] = ()
    targets: tuple[tuple[int, ...] | None, ...] = ()
    mode: str = "mask"
    heads: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()

    @property
    def groups(self) -> list[str]:
        """Group of each row."""
        return [row.group for row in self.rows]

    @property
    def work(self) -> float:
        """Number of rows of the reference engine's passes."""
        return len(self.rows) * (1 + len(self.cuts))

    @property
    def size(self) -> PassSize:
        """Size of the pass for the cost model, without unembedding."""
        geometry = PassGeometry(merge=False)
        for number, row in enumerate(self.rows):
            starts: list[int | None] = []
            for cut in self.cuts:
                where = cut[number]
                starts.append(min(where) if where else None)
            geometry.add(RowGeometry.of_cuts(row.ids, (), starts))
        return geometry.size()

    def batch(self, *, at_end: bool = False) -> KnockoutBatch:
        """Return the padded batch, read at the last exact answer token or at the last token."""
        rows = [row.ids for row in self.rows]
        ids = pad_rows(rows)
        width = max(map(len, rows))
        targets = self.targets or (None,) * len(self.rows)
        edges = tuple(cut_edges(cut, targets, width) for cut in self.cuts)
        last: list[int] = []
        for row in self.rows:
            end = len(row.ids) - 1
            last.append(end if at_end else row.positions["answer"][-1])
        return KnockoutBatch(
            tokens=ids,
            row=torch.arange(len(self.rows)),
            position=torch.tensor(last),
            edges=edges,
            mode=self.mode,
            heads=self.heads,
        )


@dataclass(frozen=True)
class ProbeUnit:
    """Variants measured together with their clean rows, as (test, variant) indices; work in rows of
    the reference engine.
    """

    cells: Cells
    layers: tuple[int, ...]
    work: float = 1.0

    @property
    def tests(self) -> tuple[int, ...]:
        """Distinct indices of the test rows."""
        return distinct_tests(self.cells)

    def split(self) -> "Sequence[ProbeUnit]":
        """Split the variants in halves; () for one variant."""
        if len(self.cells) == 1:
            return ()
        share = self.work / len(self.cells)
        units: list[ProbeUnit] = []
        for part in halves(self.cells):
            work = share * len(part)
            units.append(replace(self, cells=tuple(part), work=work))
        return units


@dataclass(frozen=True)
class RowBatch:
    """Rows that are read without variants: for fitting, or for pathways of test rows."""

    rows: tuple[int, ...]
    passes: int = 1

    @property
    def work(self) -> float:
        """Number of rows through the model."""
        return self.passes * len(self.rows)

    def split(self) -> "Sequence[RowBatch]":
        """Split the rows in halves; () for one row."""
        if len(self.rows) < 2:
            return ()
        return [replace(self, rows=tuple(part)) for part in halves(self.rows)]


@dataclass(frozen=True)
class ProbePlan(Plan):
    """Plan with batches for fitting probes.

    Attributes:
        training: Batches of training and validation rows, as indices into all rows.
        reading: Batches of test rows whose pathway is read before variants, as indices into the
            test rows.
    """

    training: tuple[tuple[int, ...], ...] = field(default=(), kw_only=True)
    reading: tuple[tuple[int, ...], ...] = field(default=(), kw_only=True)
