"""Evidence of the activations that a pass writes (:mod:`anchorlens.engine.landing`)."""

from bisect import bisect_right
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.cone_layout import Layout
from anchorlens.engine.device_index import DeviceIndex
from anchorlens.engine.landing import code, project, projection


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """Tables with which written activations become evidence.

    Attributes:
        index: Index for which they were made.
        group: Cell group of each patch.
        codes: Number of the place of each patch in every layer, on the device.
        weights: Weights of the entries of an activation, on the device.
    """

    index: DeviceIndex
    group: Int[Tensor, "patch"]
    codes: Float[Tensor, "layer patch"]
    weights: Float[Tensor, "width"]


class WrittenEvidence:
    """Evidence of the patches of a pass.

    Args:
        n_layers: Number of layers of the model.
    """

    def __init__(self, n_layers: int) -> None:
        self._n_layers = n_layers
        self._tables: _Tables | None = None
        # Cell group of each patch, first lane, and the terms on the device, of each write.
        self._terms: list[tuple[Tensor, int, Float[Tensor, "lane patch"]]] = []

    def add(
        self,
        index: DeviceIndex,
        layer: int,
        first_lane: int,
        values: Float[Tensor, "lane patch width"],
    ) -> None:
        """Add activations that were written in a layer, from lane ``first_lane`` on."""
        tables = self._tables
        if tables is None or tables.index is not index:
            tables = self._tables = _make_tables(index, self._n_layers, values.shape[-1])
        terms = project(values, tables.weights) * tables.codes[layer]
        self._terms.append((tables.group, first_lane, terms))

    def table(self, n_groups: int, n_lanes: int) -> Float[Tensor, "cell_group lane"]:
        """Return the evidence of each cell group in each lane on the CPU, copied at once."""
        out = torch.zeros(n_groups, n_lanes, dtype=torch.float64, device="cpu")
        if not self._terms:
            return out
        device = self._terms[-1][2].device
        flat = torch.cat([terms.to(device).flatten() for _, _, terms in self._terms])
        parts = flat.cpu().double().split([terms.numel() for _, _, terms in self._terms])
        for (group, first, terms), part in zip(self._terms, parts, strict=True):
            own = part.view_as(terms)
            out[:, first : first + len(own)].index_add_(0, group, own.T)
        return out


def _make_tables(index: DeviceIndex, n_layers: int, width: int) -> _Tables:
    """Make the tables of an index; ``width``: entries of an activation."""
    patches = index.layout.patches
    assert patches is not None  # the caller has written some
    group, row, position = _places_of_cells(index.layout)
    at = patches.cell
    heads = 0 if patches.heads is None else patches.heads
    layers = torch.arange(n_layers)[:, None]
    return _Tables(
        index=index,
        group=group[at],
        codes=code(layers, row[at], position[at], heads, index.device),
        weights=projection(width, index.device),
    )


def _places_of_cells(
    layout: Layout,
) -> tuple[Int[Tensor, "token"], Int[Tensor, "token"], Int[Tensor, "token"]]:
    """Return cell group, row and position of each token of a lane."""
    groups: list[int] = []
    rows: list[int] = []
    positions: list[int] = []
    for number, cells in enumerate(layout.cell_groups):
        for token, position in zip(cells.queries, cells.positions, strict=True):
            groups.append(number)
            rows.append(cells.rows[bisect_right(cells.offsets, token) - 1])
            positions.append(position)
    return torch.tensor(groups), torch.tensor(rows), torch.tensor(positions)
