"""Cells of a grid of patches: what each one changes, and the passes that cover them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.constants import HEAD_SITES
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.cost import PassSize
from anchorlens.engine.geometry import Change, PassGeometry, RowGeometry
from anchorlens.engine.patches import AnchorSwap, Slots, TokenBatch, by_head, token_rows
from anchorlens.engine.readouts import Reader
from anchorlens.errors import InputError
from anchorlens.measure.budget import halves
from anchorlens.measure.patch_plan import SizedPass, is_wide
from anchorlens.models.adapter import Adapter, LensModel

Index: TypeAlias = tuple[int, ...]
"""Layer, then position, head and key as the columns of the grid say."""

Activations: TypeAlias = Float[Tensor, "layer batch pos head width"]


@runtime_checkable
class Cache(Protocol):
    """Activations by hook name, such as TransformerLens's ActivationCache or a dictionary."""

    def __getitem__(self, name: str, /) -> Tensor:
        """Return the activation at a hook."""
        ...


class NotMeasured(Exception):  # noqa: N818
    """The cone engine cannot measure a grid, for the reason in its message.

    Args:
        reason: The message.
        known: Values of cells that were measured nevertheless, in the order of TransformerLens'
            calls.
    """

    def __init__(self, reason: str, known: "Mapping[Index, Tensor] | None" = None) -> None:
        super().__init__(reason)
        self.known = dict(known or {})


@dataclass(frozen=True, kw_only=True)
class GridCells:
    """Activations of both runs at one site, and the patches of a grid.

    Activations of layers without cells are the corrupted ones in both.

    Attributes:
        adapter: The model.
        site: Patched site.
        columns: Meaning of an index after its layer: ``pos``, ``head`` or ``key``.
        tokens: Corrupted tokens.
        clean: Clean activations.
        corrupted: Corrupted activations.
    """

    adapter: Adapter
    site: str
    columns: tuple[str, ...]
    tokens: TokenBatch
    clean: Activations
    corrupted: Activations

    @cached_property
    def differs(self) -> Bool[Tensor, "layer pos head width"]:
        """True where a clean activation differs from the corrupted one in some row, in any bit; of
        vectors in any entry.

        NaN and infinite values count as different. Positions before the first token that differs
        have equal bits if both runs had one batch shape; else they are computed.
        """
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[self.corrupted.element_size()]
        differs = (self.clean.view(bits) != self.corrupted.view(bits)) | ~self.clean.isfinite()
        differs = differs.any(1)
        return (differs if "key" in self.columns else differs.any(-1, keepdim=True)).cpu()

    def at(self, place: Index) -> dict[str, int]:
        """Return position, head and key of a place."""
        return dict(zip(self.columns, place, strict=True))

    def is_changed(self, cell: Index) -> bool:
        """Return whether the patch of a cell changes an activation."""
        layer, *place = cell
        part = self.differs[layer]
        for axis, name in enumerate(("pos", "head", "key")):
            if name in self.columns:
                part = part.narrow(axis, self.at(tuple(place))[name], 1)
        return bool(part.any())

    def first(self, place: Index) -> int:
        """Return the first changed position: that of the place, or the first at which the runs
        differ.
        """
        if "pos" in self.columns:
            return self.at(place)["pos"]
        heads = self.differs[:, :, self.at(place)["head"]]
        return int(heads.any(-1).any(0).int().argmax())

    def positions(self, place: Index) -> range:
        """Return the patched positions of a place."""
        first = self.first(place)
        return range(first, first + 1 if "pos" in self.columns else self.tokens.ids.shape[1])

    def swap(self, place: Index) -> AnchorSwap:
        """Return the patch of a place in every layer."""
        at = self.at(place)
        n_rows = len(self.tokens.ids)
        positions = self.positions(place)
        slots = Slots(
            torch.tensor(positions).expand(n_rows, -1),
            torch.ones(n_rows, len(positions), dtype=torch.bool),
        )
        # A view: of all heads, only the patched one is copied for a pass.
        some = slice(positions.start, positions.stop)
        streams = self.clean[:, :, some]
        if "key" in at:
            entry = streams[..., at["head"], at["key"]]
            streams = self.corrupted[:, :, some].clone()
            streams[..., at["head"], at["key"]] = entry
        heads = range(at["head"], at["head"] + 1) if "head" in at else None
        return AnchorSwap(
            anchor=str(place),
            control="none",
            slots=slots,
            streams=streams.flatten(-2),
            heads=heads,
        )

    def size(self, places: Sequence[Index], reader: Reader) -> PassSize:
        """Return the size of a pass over some places."""
        changes = [Change(self.positions(place)) for place in places]
        reads: list[list[int]] = [[] for _ in self.tokens.ids]
        for row, position in zip(reader.row.tolist(), reader.position.tolist(), strict=True):
            reads[row].append(position)
        geometry = PassGeometry()
        for ids, own in zip(token_rows(self.tokens), reads, strict=True):
            geometry.add(RowGeometry.of_patches(ids, (), own, changes, self.site))
        return geometry.size()


@dataclass(frozen=True)
class Rectangle:
    """Cells of one pass: all places at all layers."""

    layers: tuple[int, ...]
    places: tuple[Index, ...]

    @property
    def work(self) -> float:
        """Number of cells."""
        return float(len(self.layers) * len(self.places))

    def split(self) -> "tuple[Rectangle, ...]":
        """Split the places in halves, those of one place by layers; () for one cell."""
        if len(self.places) > 1:
            return tuple(Rectangle(self.layers, tuple(part)) for part in halves(self.places))
        if len(self.layers) > 1:
            return tuple(Rectangle(tuple(part), self.places) for part in halves(self.layers))
        return ()


def plan_passes(
    engine: ConeEngine, grid: GridCells, reader: Reader, cells: Sequence[Index], budget: int
) -> Iterator[SizedPass[Rectangle]]:
    """Yield passes that cover cells, by memory and by the number of tokens."""
    for layers, places in _rectangles(cells):
        start = 0
        while start < len(places):
            stop = _longest(engine, grid, reader, Rectangle(layers, places[start:]), budget)
            some = places[start : start + stop]
            size = grid.size(some, reader)
            yield SizedPass.make(engine, Rectangle(layers, some), size, layers)
            start += stop


def _longest(
    engine: ConeEngine, grid: GridCells, reader: Reader, rectangle: Rectangle, budget: int
) -> int:
    """Return the number of places at the beginning of a rectangle that one pass measures; one at
    least.
    """
    n_layers = len(rectangle.layers)
    low = 1
    high = len(rectangle.places)
    while low < high:
        middle = (low + high + 1) // 2
        size = grid.size(rectangle.places[:middle], reader)
        is_small = engine.pass_bytes(size, n_layers) <= budget
        if is_small and not is_wide(engine, size, n_layers):
            low = middle
        else:
            high = middle - 1
    return low


def _rectangles(cells: Sequence[Index]) -> list[tuple[tuple[int, ...], tuple[Index, ...]]]:
    """Cover cells by rectangles (layers, places), largest first; layers with at most half of all
    places get one of their own.
    """
    by_layer: dict[int, list[Index]] = {}
    for layer, *place in cells:
        by_layer.setdefault(layer, []).append(tuple(place))
    places = list(dict.fromkeys(tuple(place) for _, *place in cells))
    groups: dict[tuple[Index, ...], list[int]] = {}
    for layer, own in sorted(by_layer.items()):
        covered = own if 2 * len(own) <= len(places) else places
        groups.setdefault(tuple(covered), []).append(layer)
    rectangles = [(tuple(layers), group) for group, layers in groups.items()]
    return sorted(rectangles, key=lambda one: -len(one[0]) * len(one[1]))


@torch.no_grad()
def run_with_capture(
    adapter: Adapter, model: LensModel, tokens: Int[Tensor, "batch pos"], site: str
) -> tuple[Activations, Float[Tensor, "batch pos d_vocab"]]:
    """Return the activations of the corrupted run at a site, and its logits."""
    seen: list[Tensor] = []

    def keep(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        seen.append(by_head(value, site).to(adapter.device, copy=True))
        return value

    hooks: list[Any] = [(adapter.hook_name(site, layer), keep) for layer in range(adapter.n_layers)]
    logits = model.run_with_hooks(tokens, fwd_hooks=hooks)
    return torch.stack(seen), logits.clone()


def clean_activations(
    adapter: Adapter,
    cache: Cache | Mapping[str, Tensor],
    site: str,
    corrupted: Activations,
    layers: Iterable[int],
) -> Activations:
    """Return the clean activations of some layers, and the corrupted ones of the others.

    Raises:
        InputError: If the cache lacks an activation or its batch axis.
        NotMeasured: If it has another shape.
    """
    clean = corrupted.clone()
    for layer in sorted(layers):
        value = read_activation(adapter, cache, site, layer)
        if value.shape[1:] != corrupted.shape[2:] or len(value) not in (1, corrupted.shape[1]):
            raise NotMeasured(
                f"the clean cache has other shapes: {tuple(value.shape)} instead of"
                f" {tuple(corrupted.shape[1:])}"
            )
        clean[layer] = value.to(clean).expand(corrupted.shape[1:])
    return clean


def read_activation(
    adapter: Adapter,
    cache: Cache | Mapping[str, Tensor],
    site: str,
    layer: int,
    argument: str = "clean_cache",
) -> Float[Tensor, "batch pos head width"]:
    """Return the activation of one layer in a cache.

    ``argument``: name of the cache in messages.

    Raises:
        InputError: If the cache lacks the activation or its batch axis.
        NotMeasured: If the cache holds something else than a tensor.
    """
    name = adapter.hook_name(site, layer)
    try:
        given = cache[name]
    except KeyError:
        raise InputError(
            f"{argument}: has no {name!r}. Cache it as well: the names_filter of run_with_cache"
            " may leave it out.",
            argument=argument,
        ) from None
    if not isinstance(given, Tensor):
        raise NotMeasured(f"the {argument.replace('_', ' ')} holds a {type(given).__name__}")
    if given.ndim != (4 if site in HEAD_SITES else 3):
        raise InputError(
            f"{argument}: {name} has the shape {tuple(given.shape)}, without a batch axis. Give"
            " the cache before remove_batch_dim.",
            argument=argument,
        )
    return by_head(given, site)
