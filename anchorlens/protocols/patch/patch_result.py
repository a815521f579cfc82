"""Result of a patch sweep: effects as a tensor and as labelled arrays, and the grid of one pair or
of the mean over pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from typing_extensions import override

from anchorlens.errors import InputError, did_you_mean
from anchorlens.protocols.patch.grid_statistics import EFFECT, SHARE, GridStatistics, statistics_of
from anchorlens.protocols.patch.spec import BY_POSITION, without_mean
from anchorlens.protocols.patch.standing_cells import Cell, find_standing_cells
from anchorlens.results.sweep import SweepResult
from anchorlens.results.vocabulary import metric_name, unit_words
from anchorlens.runs.schema import parse_positions

if TYPE_CHECKING:
    import torch
    import xarray
    from jaxtyping import Float

Array = npt.NDArray[np.float64]
MEAN = "mean"
ESTIMATE = "attribution (estimate)"
"""Name of the method in titles and settings, where effects are estimates."""
QUANTITIES = (EFFECT, "value_after", SHARE)
_AXES = {
    "position": ("position",),
    "segment": ("segment",),
    "layer": (),
    "head": ("head",),
    "head_position": ("position", "head"),
}


@dataclass(frozen=True, kw_only=True)
class PatchGrid:
    """Grid of layers and places of one pair, or of the mean over pairs, as a heatmap shows it.

    Attributes:
        pair: Id of the pair, or ``mean``.
        quantity: ``effect``, ``value_after`` or ``recovered_share``.
        unit: Unit of the values; empty for a share.
        values: Values, [layer place]; NaN where a cell was not measured.
        layers: Measured layers.
        places: Names of the places: ``pos:5``, ``head:3``, a segment, ``all``.
        clean_tokens: Tokens of the clean prompt at each place, joined; empty for heads.
            For the mean, the tokens that all pairs share, ``*`` elsewhere.
        corrupted_tokens: The same of the corrupted prompt.
        stands: Whether the mean effect of a cell stands, [layer place]; see
            :attr:`PatchResult.findings`.
        by_construction: Whether the value of a cell follows by construction, [layer place].
        n: Number of groups.
        note: Remark on the values; empty if there is none.
    """

    pair: str
    quantity: str
    unit: str
    values: Array
    layers: tuple[int, ...]
    places: tuple[str, ...]
    clean_tokens: tuple[str, ...]
    corrupted_tokens: tuple[str, ...]
    stands: npt.NDArray[np.bool_]
    by_construction: npt.NDArray[np.bool_]
    n: int
    note: str = ""


@dataclass(frozen=True, repr=False, eq=False)
class PatchResult(SweepResult):
    """Result of a patch sweep; frozen.

    Example:
        >>> grid = al.patch_sweep(model, pairs, by="position")  # doctest: +SKIP
        >>> grid.effects.shape  # [pair layer position]  # doctest: +SKIP
        >>> grid.to_xarray().mean("pair").sel(position=5)  # doctest: +SKIP
    """

    cell_word: ClassVar[str] = "cell"
    """Word for what is measured, in texts."""
    change_word: ClassVar[str] = "patching"
    changed_word: ClassVar[str] = "activations"
    place_word: ClassVar[str] = "place"
    has_layers: ClassVar[bool] = True
    """Whether a place is measured at several layers, which texts name."""

    def name_cell(self, place: str, layer: int) -> str:
        """Return the name of a cell in texts."""
        return f"{place}, layer {layer}"

    def name_place(self, place: str, layers: str) -> str:
        """Return the name of a place with its layers in texts."""
        return f"{place} ({layers})"

    @property
    def by(self) -> str:
        """Kind of the places: ``position``, ``segment``, ``layer``, ``head`` or
        ``head_position``.
        """
        return str(self.record["config"]["by"])

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return str(self.record["config"]["metric"])

    @property
    def method(self) -> str:
        """Method of the effects: ``exact`` or one of estimates."""
        return str(self.record["config"].get("method", "exact"))

    @property
    def is_estimate(self) -> bool:
        """Whether effects are estimates of patches that were not run."""
        return self.method != "exact"

    @property
    def controls(self) -> tuple[str, ...]:
        """Measured controls."""
        given = self.record["config"]["controls"]
        return () if isinstance(given, str) else tuple(given)

    def _standing(self) -> set[Cell]:
        """Return the cells that stand and are named."""
        contrasts = self.contrasts(all_columns=True)
        return find_standing_cells(contrasts, self.noise_floor, self.controls)

    @property
    def is_denoising(self) -> bool:
        """Whether clean activations are patched into the corrupted prompt."""
        return self.record["config"]["direction"] == "denoising"

    @property
    def effects(self) -> "Float[torch.Tensor, 'pair layer *place']":
        """Effect on the metric, [pair layer *place]; NaN where a pair lacks the place.

        The axes are those of :meth:`to_xarray`.
        """
        import torch

        return torch.from_numpy(self._array(EFFECT, "none"))

    @override
    def to_xarray(self, quantity: str = EFFECT, control: str = "none") -> "xarray.DataArray":
        """Return a quantity of every pair as a labelled array; its mean over pairs is
        ``.mean("pair")``.

        Args:
            quantity: ``effect``, ``value_after`` (the metric after the patch) or
                ``recovered_share``. A mean of shares is no recovered share: :meth:`grid` divides
                the means.
            control: ``none``, ``other_pair`` or ``norm_matched``.

        Returns:
            [pair layer position], or ``segment`` or ``head`` in place of ``position``, both
            position and head, or none. NaN where a pair lacks the place. Coordinates: ``pair``
            (ids), ``group`` along ``pair``, ``layer``, places. Attributes: ``run_id``, ``model``,
            ``dataset``, ``protocol``, ``metric``, ``units``.

        Raises:
            InputError: If xarray is not installed, or the quantity or the control was not measured.
        """
        values = self._array(self._check_quantity(quantity), self._check_control(control))
        axes = {"layer": list(self.layers), **self._axes}
        return self._label(values, quantity, axes)

    def _label(
        self, values: Array, quantity: str, axes: Mapping[str, Sequence[Any]]
    ) -> "xarray.DataArray":
        """Return values of every pair, [pair *axes], as a labelled array.

        Raises:
            InputError: If xarray is not installed.
        """
        if find_spec("xarray") is None:
            raise InputError(
                "to_xarray needs xarray, which is not installed. Install it with pip install"
                " 'anchorlens[labelled]'."
            )
        import xarray

        groups = self._examples[self._examples["role"] == "base"].set_index("example_id")[
            "question_id"
        ]
        return xarray.DataArray(
            values,
            dims=("pair", *axes),
            coords={
                "pair": list(self.example_ids),
                **axes,
                "group": ("pair", groups.reindex(list(self.example_ids)).to_numpy(dtype=str)),
            },
            name=quantity,
            attrs={
                "run_id": self.run_id,
                "model": self.model,
                "dataset": self.dataset,
                "protocol": self.protocol.name,
                "metric": self.metric,
                "units": "" if quantity == SHARE else self.unit,
            },
        )

    def grid(
        self, pair: "str | int" = MEAN, quantity: str = EFFECT, control: str = "none"
    ) -> PatchGrid:
        """Return the grid of layers and places of one pair, or of the mean over pairs.

        Args:
            pair: Id, index or words of a pair, or ``mean``.
            quantity: ``effect``, ``value_after`` or ``recovered_share`` (0: corrupted run, 1: clean
                run; of the mean: ratio of the means over pairs).
            control: ``none``, ``other_pair`` or ``norm_matched``.

        Raises:
            InputError: If there is no such pair, quantity or control, or no mean because pairs
                differ in their number of positions.
        """
        quantity = self._check_quantity(quantity)
        control = self._check_control(control)
        name = MEAN if pair == MEAN else self.id_of(pair)
        if name == MEAN and (why := self.no_mean):
            raise InputError(f"pair='mean': {why}", argument="pair")
        cells = pd.MultiIndex.from_product([self.anchors, self.layers])
        shape = len(self.anchors), len(self.layers)
        own = self._samples[self._samples["control"] == control]
        if name != MEAN:
            own = own[own["example_id"] == name]
        if quantity == SHARE:
            moved, total = self._share_parts(own)
            cell = [own["anchor"], own["layer"]]
            values = moved.groupby(cell, sort=False).mean() / total.groupby(cell, sort=False).mean()
        else:
            values = own.groupby(["anchor", "layer"], sort=False)[quantity].mean()
        fixed = own.groupby(["anchor", "layer"], sort=False)["by_construction"].mean() > 0.5
        fixed = fixed.reindex(cells, fill_value=False).to_numpy(dtype=bool)
        stand: set[tuple[str, int]] = set()
        if name == MEAN and control == "none":
            stand = self._standing()
        return PatchGrid(
            pair=name,
            quantity=quantity,
            unit="" if quantity == SHARE else self.unit,
            layers=self.layers,
            places=self.anchors,
            values=values.reindex(cells).to_numpy(dtype=np.float64).reshape(shape).T,
            clean_tokens=self._tokens("clean", name),
            corrupted_tokens=self._tokens("corrupted", name),
            stands=np.array([cell in stand for cell in cells], dtype=bool).reshape(shape).T,
            by_construction=fixed.reshape(shape).T,
            n=own["question_id"].nunique(),
            note=self.share_note(name) if quantity == SHARE else self.no_change,
        )

    @property
    def statistics(self) -> GridStatistics:
        """Statistics of the samples."""
        return statistics_of(self._samples, self.record["config"])

    @property
    def no_mean(self) -> str:
        """Reason why there is no mean over pairs; empty if there is one."""
        if self.by not in BY_POSITION:
            return ""
        return without_mean(where["last"][0] + 1 for where in self._positions.values())

    @property
    def source_values(self) -> dict[str, "float | None"]:
        """Pair id -> metric of the source's own run: the clean run for denoising, the corrupted run
        for noising.
        """
        return {name: one.get("source_value") for name, one in self.record.get("pairs", {}).items()}

    @property
    def no_change(self) -> str:
        """Reason why no effect can be seen: the metric has one value in all runs; empty if it has
        several.
        """
        values = self._samples[["value_before", "value_after"]].to_numpy(dtype=np.float64)
        of_sources = [value for value in self.source_values.values() if value is not None]
        found = np.unique([*values[~np.isnan(values)], *of_sources])
        if len(found) != 1:
            return ""
        return (
            f"{metric_name(self.metric)} is {found[0]:.6g} in every run, also patched. Use a metric"
            " that differs between clean and corrupted run."
        )

    def share_note(self, pair: str = MEAN) -> str:
        """Return a warning where clean and corrupted run hardly differ, so that recovered shares
        are unreliable; else "".
        """
        totals = self.statistics.totals(self.source_values, denoising=self.is_denoising)
        own = totals
        typical = float(totals.abs().mean())
        if pair != MEAN:
            own = totals[totals.index.get_level_values("example_id") == pair]
            typical = float(totals.abs().median())
        total = float(own.mean())
        if abs(total) > max(0.1 * typical, 10 * np.nan_to_num(self.noise_floor)):
            return ""
        difference = f"{total:+.3g} {metric_name(self.metric)}"
        return (
            f"Clean and corrupted run differ by {difference} only: recovered shares are unreliable."
        )

    def _share_parts(self, own: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
        """Return (patched - corrupted) and (clean - corrupted) of samples."""
        source = own["example_id"].map(self.source_values).astype("float64")
        before = own["value_before"].astype("float64")
        after = own["value_after"].astype("float64")
        corrupted = before if self.is_denoising else source
        clean = source if self.is_denoising else before
        return after - corrupted, clean - corrupted

    @override
    def _describe_array(self) -> str:
        shape = f"pair {len(self.example_ids)}, layer {len(self.layers)}"
        for axis, labels in self._axes.items():
            shape += f", {axis} {len(labels)}"
        return f"effects on {metric_name(self.metric)} in {unit_words(self.unit)} [{shape}]"

    @cached_property
    def _axes(self) -> dict[str, list[Any]]:
        """Labels of the axes of places."""
        own = self._samples.drop_duplicates("anchor")
        labels: dict[str, list[Any]] = {}
        for axis in _AXES[self.by]:
            if axis == "segment":
                labels[axis] = list(self.anchors)
            else:
                labels[axis] = sorted(map(int, own[axis].dropna().unique()))
        return labels

    def _array(self, quantity: str, control: str) -> Array:
        """Return a quantity of every pair, [pair layer *place]."""
        own = self._samples[self._samples["control"] == control]
        if quantity == SHARE:
            moved, total = self._share_parts(own)
            own = own.assign(**{SHARE: moved / total})
        axes = [list(self.example_ids), list(self.layers), *self._axes.values()]
        places = ["anchor" if axis == "segment" else axis for axis in self._axes]
        by_cell = own.set_index(["example_id", "layer", *places])[quantity]
        values = by_cell.reindex(pd.MultiIndex.from_product(axes)).to_numpy(dtype=np.float64)
        return values.reshape(list(map(len, axes))).copy()

    @cached_property
    def _positions(self) -> dict[str, dict[str, list[int]]]:
        """Pair id -> named positions of the patched row."""
        base = self._examples[self._examples["role"] == "base"]
        columns = base[["example_id", "positions", "tokens"]]
        positions: dict[str, dict[str, list[int]]] = {}
        for name, where, tokens in columns.itertuples(index=False, name=None):
            positions[str(name)] = parse_positions(name, where, len(tokens))
        return positions

    def _tokens(self, side: str, pair: str) -> tuple[str, ...]:
        """Return the tokens of the clean or corrupted prompt at every place; ``*`` where the pairs
        of a mean differ.
        """
        if self.by in ("head", "layer"):
            return ("",) * len(self.anchors)
        rows = self._examples.set_index(["role", "example_id"])
        role = "donor" if (side == "clean") == self.is_denoising else "base"
        texts: list[set[str]] = [set() for _ in self.anchors]
        for name in self.example_ids if pair == MEAN else (pair,):
            base = rows.loc[("base", name)]
            row = base if role == "base" else rows.loc[("donor", base["donor_ids"][0])]
            tokens = row["tokens"]
            own = self._positions[name]
            there = parse_positions(row.name, row["positions"], len(tokens))["paired"]
            at = dict(zip(own["paired"], there, strict=True))
            for text, anchor in zip(texts, self.anchors, strict=True):
                where = own.get(anchor.split(" ")[0], [])
                found = [str(tokens[at[t]]) for t in where if t in at]
                if found:
                    text.add("".join(found))
        return tuple(map(_shared_text, texts))

    def _check_quantity(self, quantity: str) -> str:
        if quantity not in QUANTITIES:
            raise InputError(
                f"quantity={quantity!r}: unknown. {did_you_mean(str(quantity), QUANTITIES)}",
                argument="quantity",
            )
        return quantity

    def _check_control(self, control: str) -> str:
        there = list(self._samples["control"].unique())
        if control not in there:
            raise InputError(
                f"control={control!r}: not in this sweep. {did_you_mean(str(control), there)}",
                argument="control",
            )
        return control


def _shared_text(texts: set[str]) -> str:
    """Return the text of a place that all pairs share; ``*`` if they differ, empty if there is
    none.
    """
    if len(texts) > 1:
        return "*"
    return "".join(texts)
