"""The result of a sweep: tidy frames, the tensor of ΔP, curves with bands, and a small table for notebooks.

Curves, contrasts and findings are made by the protocol's :class:`Analysis`; the result holds it.
"""

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd
import plotly.graph_objects as go

from anchorlens.constants import LOGIT_DIFF, TRUTH_READOUTS
from anchorlens.errors import InputError, did_you_mean
from anchorlens.figures.example_figure import example_figure
from anchorlens.missing_values import with_nulls, without_nulls
from anchorlens.prompts.dataset import Dropped
from anchorlens.results.curve_tables import curves_frame, logit_diff_samples
from anchorlens.results.example_view import ROLES, rows_of
from anchorlens.results.find_example import chosen_example
from anchorlens.results.findings import Findings
from anchorlens.results.joins import dropped_rows, joined_rows
from anchorlens.results.labelled_arrays import labelled_array, mean_effect
from anchorlens.results.saving import load_probes, save_run
from anchorlens.runs.schema import ALWAYS_SHOWN, CONTRAST_COLUMNS, SAMPLE_COLUMNS, P, answer_first, settings_of, summary_order

if TYPE_CHECKING:
    import torch
    import xarray

    import anchorlens.probing.probes

# Of a repr: characters of a line, and rows of its table.
_WIDTH, _ROWS = 100, 10


class Analysis(ABC):
    """Turns the samples of one protocol into curves, contrasts and findings. Needs no model.

    Attributes:
        name: Name of the protocol: ``swap``, ``knockout``, ...
        title: The same for people: ``activation swap``.
        result: Class of its results.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    result: "ClassVar[type[SweepResult]]"

    @abstractmethod
    def curves(self, result: Any) -> pd.DataFrame:
        """Return every curve with its bands, controls included; columns of ``curves.parquet``."""

    @abstractmethod
    def contrasts(self, result: Any) -> pd.DataFrame:
        """Return the comparisons with their intervals; columns of ``contrasts.parquet``."""

    @abstractmethod
    def findings(self, result: Any) -> Findings:
        """Return what was found."""

    @abstractmethod
    def summary(self, result: Any) -> pd.DataFrame:
        """Return the leading numbers, in one row or a few."""

    @abstractmethod
    def settings(self, result: Any) -> str:
        """Return the settings in words, for the first lines of a repr."""

    def table(self, results: Sequence[Any]) -> tuple[str, pd.DataFrame]:
        """Return title and rows of the table that a terminal shows of several sweeps."""
        return self.title, pd.concat([self.summary(result) for result in results], ignore_index=True)


@dataclass(frozen=True, repr=False)
class SweepResult:
    """What a sweep measured; frozen.

    Attributes:
        protocol: What was done, and what is made of it.
        run_id: Name of specification, model and data.
        record: Specification, model, data, environment, batch plan and counts, as run.json keeps them.
        anchors: Anchors, in the order of :attr:`effect`.
        layers: Layers, in the order of :attr:`effect`.
        example_ids: Examples, in the order of :attr:`effect`.
    """

    protocol: Analysis
    run_id: str
    record: dict[str, Any]
    anchors: tuple[str, ...]
    layers: tuple[int, ...]
    example_ids: tuple[str, ...]
    _samples: pd.DataFrame
    _examples: pd.DataFrame
    _probes: "Mapping[str, anchorlens.probing.probes.LayerProbes] | Path" = field(default_factory=dict)
    _memo: dict[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def make(
        cls, protocol: Analysis, samples: pd.DataFrame, examples: pd.DataFrame, record: dict[str, Any], run_id: str
    ) -> "SweepResult":
        """From the frames of a sweep (or of a run directory); rows are put in canonical order."""
        anchors, layers = tuple(record["config"]["anchors"]), tuple(record["config"]["layers"])
        order = tuple(examples.loc[examples["role"] == "base", "example_id"])
        controls = sorted(samples["control"].unique(), key=lambda c: (c != "none", c))
        metrics = sorted(samples["metric"].unique(), key=lambda q: (q != P, q))
        samples = without_nulls(samples)
        keyed = samples.assign(
            _e=pd.Categorical(samples["example_id"], order).codes, _a=pd.Categorical(samples["anchor"], anchors).codes,
            _c=pd.Categorical(samples["control"], controls).codes, _q=pd.Categorical(samples["metric"], metrics).codes,
        )  # fmt: skip
        keyed = keyed.sort_values(["_q", "_c", "_a", "_e", "donor_id", "layer"], kind="stable")
        return cls(
            protocol, run_id, record, anchors, layers, order, keyed[list(SAMPLE_COLUMNS)].reset_index(drop=True),
            examples.reset_index(drop=True),
        )  # fmt: skip

    def with_probes(self, probes: "Mapping[str, anchorlens.probing.probes.LayerProbes] | Path") -> "SweepResult":
        """Return the same result with its probes.

        Args:
            probes: Name -> probes, ``none`` those that were read, the others of placebos; or a folder to read them from when they
                are first used.
        """
        return replace(self, _probes=probes, _memo={})

    def with_tables(self, tables: Mapping[str, pd.DataFrame]) -> "SweepResult":
        """Return the same result with stored ``curves`` and ``effects``, which are then not computed again."""
        return replace(self, _memo=dict(tables))

    @property
    def probes(self) -> "anchorlens.probing.probes.LayerProbes | None":
        """Probes that were read; None for other readouts."""
        return self._all_probes().get("none")

    @property
    def placebo_probes(self) -> "dict[str, anchorlens.probing.probes.LayerProbes]":
        """Name of a placebo -> its probes."""
        return {name: probes for name, probes in self._all_probes().items() if name != "none"}

    def _all_probes(self) -> "Mapping[str, anchorlens.probing.probes.LayerProbes]":
        if not isinstance(self._probes, Path):
            return self._probes
        if "probes" not in self._memo:
            self._memo["probes"] = load_probes(self._probes)
        return self._memo["probes"]

    @property
    def noise_floor(self) -> float:
        """How far ΔP of one cell moves, in points, when the same inputs are measured in other batches; NaN where unknown."""
        floor = self.record.get("noise", {}).get("floor")  # None where no cell was measured again
        return float("nan") if floor is None else float(floor)

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.record["model"]["name"])

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        return str(self.record["data"]["name"])

    @property
    def delta_p(self) -> "torch.Tensor":
        """ΔP in percentage points, [anchor layer example], averaged over each example's donors; controls are not in it."""
        import torch

        return torch.from_numpy(mean_effect(self._samples, ["none"], self.anchors, self.layers, self.example_ids)[0])

    def to_xarray(self) -> "xarray.DataArray":
        """Return ΔP as a labelled array, averaged over each example's donors.

        Returns:
            ``effect`` in percentage points, [control anchor layer example]; ``control="none"`` is :attr:`effect`. NaN where a
            control did not measure a cell. Coordinates: ``control``, ``anchor``, ``layer``, ``example`` (its id) and
            ``question_id`` along ``example``. Attributes: ``run_id``, ``model``, ``dataset``, ``protocol``, ``units``.

        Raises:
            InputError: The package xarray is not installed.
        """
        return labelled_array(self, self._samples, self._examples)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Rows that were left out, with their reasons."""
        return dropped_rows(self._examples)

    @property
    def dropped_counts(self) -> dict[str, int]:
        """Reasons of :attr:`dropped`, counted; the most frequent first."""
        return dict(Counter(row.reason for row in self.dropped).most_common())

    def samples(self, *, all_columns: bool = False) -> pd.DataFrame:
        """One row for each example, donor, anchor, layer, control and metric.

        Args:
            all_columns: Keep columns without any value, as in ``samples.parquet``.
        """
        return self._in_order("samples", self._samples, all_columns)

    def examples(self, *, all_columns: bool = False) -> pd.DataFrame:
        """One row for each input: base, donor, corrupt, and dropped with its reason.

        A question that is measured and also somebody's donor stands twice: the key is ``run_id example_id role``. To have samples
        with their questions and answers, take :meth:`samples_with_inputs`.

        Args:
            all_columns: Keep columns without any value, as in ``examples.parquet``.
        """
        return self._in_order("examples", self._examples, all_columns)

    def samples_with_inputs(
        self, *, controls: bool = False, metric: str | None = None, all_columns: bool = False
    ) -> pd.DataFrame:
        """The samples, each with the row that was measured: question, answer, its segments, tokens, and the donor's question.

        Args:
            controls: Take in the controls' samples too.
            metric: Which metric: ``p``, or another one that the protocol measures (``flip``). All where it is left out.
            all_columns: Keep columns without any value.

        Returns:
            As many rows as the samples have. Beside their columns: ``question answer label``, ``subject`` and ``property`` (what
            their tokens say), ``donor_question donor_answer`` (empty where no other row takes part), ``relation answer_type
            popularity span_source qa_text_auc text tokens positions`` of the row that was measured.

        Raises:
            InputError: The sweep has no such metric.
        """
        derived = metric == LOGIT_DIFF and metric not in set(self._samples["metric"])
        samples = self._of_metric(self._logit_diffs() if derived else self._samples, metric)
        samples = samples if controls else samples[samples["control"] == "none"]
        frame = joined_rows(samples, self._examples, self.record["config"])
        return _shown(frame[answer_first(frame)], all_columns)

    def curves(self, *, controls: bool = False, metric: str | None = None, all_columns: bool = False) -> pd.DataFrame:
        """Mean ΔP by anchor or pathway and layer with both 95 % bands (bootstrap over questions), n questions and mean P before.

        ``ci_low ci_high``: of a layer that was named beforehand. ``sim_low sim_high``: of all layers at once; read these before
        saying *which* layers.

        ``noise_floor``: what lies between minus and plus this many points is rounding, not an effect. Of a truth readout ``probe_above_chance``
        is False where the lower end of the AUC's interval does not exceed 0.5.

        Args:
            controls: Take in the controls' curves too.
            metric: Which metric: ``p``, or another one that the protocol measures (``flip``). All where it is left out.
                ``logit_diff`` of a swap that reads an answer: the change of the answer's logit minus that of the donor's, in logits.
            all_columns: Keep columns without any value, as in ``curves.parquet``.

        Raises:
            InputError: The sweep has no such metric.
        """
        frame = self._made("curves", lambda: self.protocol.curves(self).assign(**self._text_aucs()))
        if metric == LOGIT_DIFF and metric not in set(frame["metric"]) and len(self._logit_diffs()):
            config = self.record["config"]
            made = partial(curves_frame, self._logit_diffs(), n_resamples=config["n_resamples"], seed=config["seed"])
            frame = self._made("logit_diff curves", made)
        frame = self._of_metric(frame, metric)
        frame = (frame if controls else frame[frame["control"] == "none"]).reset_index(drop=True)
        return _shown(frame[answer_first(frame)], all_columns)

    def _of_metric(self, frame: pd.DataFrame, metric: str | None) -> pd.DataFrame:
        if metric is None:
            return frame
        there = list(frame["metric"].unique())
        if metric not in there:
            raise InputError(f"This sweep has no metric={metric!r}. {did_you_mean(str(metric), there)}")
        return frame[frame["metric"] == metric]

    def _logit_diffs(self) -> pd.DataFrame:
        """Samples of the logit difference that a swap stores beside P; empty for readouts without one."""
        has = self.record["config"].get("readout") not in (*TRUTH_READOUTS, None)
        return logit_diff_samples(self._samples if has else self._samples.iloc[:0])

    def _text_aucs(self) -> dict[str, float]:
        """What classifiers that see no model tell true from false with; NaN where there are no true and false answers."""
        told = self.record.get("probe") or {}
        alone, pair = (told.get(name) or {} for name in ("answer_text_auc", "qa_text_auc"))
        aucs = {"answer_text_auc": alone.get("auc"), "qa_text_auc": pair.get("auc"), "qa_text_auc_low": pair.get("ci_low")}
        return {name: float("nan") if value is None else float(value) for name, value in aucs.items()}

    def contrasts(self, *, all_columns: bool = False) -> pd.DataFrame:
        """What the protocol compares with what, at each layer, with 95 % intervals.

        Args:
            all_columns: Keep columns without any value, as in ``contrasts.parquet``.

        Returns:
            ``quantity layer value control anchor ci_low ci_high n sim_low sim_high``, whose it is (``run_id model dataset``),
            and its settings: ``control`` says with what it was compared, ``ci`` is the pointwise interval, ``sim`` the band that
            holds for all layers at once.
        """
        frame = self._made("contrasts", lambda: self.protocol.contrasts(self))
        own = {"run_id": self.run_id, "protocol": self.protocol.name, "model": self.model, "dataset": self.dataset}
        named = frame.assign(**own, **settings_of(self.record["config"]))[list(CONTRAST_COLUMNS)]
        return _shown(named[answer_first(named)], all_columns)

    def summary(self, *, all_columns: bool = False) -> pd.DataFrame:
        """A few numbers: the strongest point of each anchor, or what stands at k*.

        Args:
            all_columns: Keep columns without any value.
        """
        frame = self.protocol.summary(self)
        return _shown(frame[summary_order(frame)], all_columns)

    @property
    def findings(self) -> Findings:
        """Findings as data: statements with quantity, layers, value, interval and status."""
        if "findings" not in self._memo:
            self._memo["findings"] = self.protocol.findings(self)
        return self._memo["findings"]

    @property
    def verdict(self) -> str:
        """:attr:`findings` as text."""
        return str(self.findings)

    def plot_example(self, example: str | int) -> go.Figure:
        """One example: its tokens with their roles, and its own ΔP by layer beside its control, as a Plotly figure.

        Args:
            example: Its id (of :attr:`example_ids`), its number (from 0, in their order), or words of its question, such as
                ``"france"``: in any case and order, as long as one measured question has them all.

        Raises:
            InputError: No measured example is meant, or several, which the message lists with their ids.
        """
        name = self.id_of(example)
        (row,) = rows_of(self._samples, self._examples, self.anchors, self.layers, [name])
        return example_figure(row, self.layers, ROLES, f"{self.model} on {self.dataset}")

    def id_of(self, example: str | int) -> str:
        """The id of an example that is given as :meth:`plot_example` takes it.

        Raises:
            InputError: No measured example is meant, or several, which the message lists with their ids.
        """
        base = self._examples[self._examples["role"] == "base"]
        told = zip(base["example_id"], base["question"], base["answer"], strict=True)
        return chosen_example(example, {name: (str(question), str(answer)) for name, question, answer in told}, self.dropped)

    def save(self, path: "str | os.PathLike[str]", *, overwrite: bool = False) -> Path:
        """Write a run directory. See :func:`anchorlens.save_run`."""
        return save_run([self], path, overwrite=overwrite)

    def _in_order(self, name: str, frame: pd.DataFrame, all_columns: bool) -> pd.DataFrame:
        """A copy with its columns in the order for reading, which is found once."""
        if (key := f"order of {name}") not in self._memo:
            self._memo[key] = answer_first(frame)
        ordered = frame[self._memo[key]]
        return _shown(ordered, all_columns) if name == "samples" else ordered[_filled(ordered, all_columns)].copy()

    def _made(self, name: str, make: Any) -> pd.DataFrame:
        if name not in self._memo:
            self._memo[name] = make()
        return self._memo[name]

    def __repr__(self) -> str:
        shape = f"[anchor {len(self.anchors)}, layer {len(self.layers)}, example {len(self.example_ids)}]"
        gone = ", ".join(f"{reason} {n}" for reason, n in self.dropped_counts.items()) or "none"
        head = f"{type(self).__name__}: {self.protocol.name}, {self.model} on {self.dataset}; delta_p {shape}"
        lines = [*self.protocol.settings(self).splitlines(), f"dropped: {gone}"]
        said = [fill(line, _WIDTH, initial_indent="  ", subsequent_indent="    ") for line in lines]
        title, table = self._own_table()
        shown = table.to_string(index=False, float_format=_two, line_width=_WIDTH, max_rows=_ROWS)
        return "\n".join([*([self.verdict] if self.verdict else []), head, *said, title, shown])

    def _repr_html_(self) -> str:
        title = self.protocol.title
        head = (
            f"<b>{title[0].upper()}{title[1:]}</b>: {self.model} on {self.dataset}, n = {len(self.example_ids)}, ΔP in points"
        )
        # JupyterLab breaks lines of a <pre> inside words.
        said = f"<pre style='white-space: pre-wrap; word-break: normal'>{escape(self.verdict)}</pre>" if self.verdict else ""
        caption, table = self._own_table()
        return f"{said}<p>{head}<br>{escape(caption)}</p>{table.to_html(index=False, float_format=_two, max_rows=_ROWS)}"

    def _own_table(self) -> tuple[str, pd.DataFrame]:
        """The table of a terminal without model, data set and empty columns."""
        title, table = self.protocol.table([self])
        return title, table.drop(columns=["model", "dataset", "data set"], errors="ignore").dropna(axis="columns", how="all")


def _shown(frame: pd.DataFrame, all_columns: bool) -> pd.DataFrame:
    """Return a frame as users get it: null where a value is missing; without empty columns unless ``all_columns``."""
    frame = with_nulls(frame)
    return frame[_filled(frame, all_columns)]


def _filled(frame: pd.DataFrame, all_columns: bool) -> list[str]:
    keep = all_columns or frame.empty
    return [name for name in map(str, frame) if keep or name in ALWAYS_SHOWN or frame[name].notna().any()]


def _two(value: float) -> str:
    return f"{value:.2f}"


__all__ = ["Analysis", "SweepResult"]
