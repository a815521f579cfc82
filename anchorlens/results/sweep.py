"""Result of a sweep: tidy frames, the tensor of ΔP, curves with bands, contrasts and findings.

The protocol's :class:`Analysis` computes curves, contrasts and findings.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from anchorlens.constants import SHARE, P
from anchorlens.display import escape_hidden, minus
from anchorlens.prompts.dataset import Dropped
from anchorlens.results.analysis import Analysis
from anchorlens.results.curve_tables import curves_frame, samples_from_p, select_metric, text_aucs
from anchorlens.results.find_example import find_example
from anchorlens.results.findings import Findings
from anchorlens.results.joins import join_inputs
from anchorlens.results.labelled_arrays import make_dataarray, mean_effect
from anchorlens.results.quick_look import quick_findings
from anchorlens.results.stored_probes import load_probes
from anchorlens.results.verdict_html import verdict_html
from anchorlens.results.vocabulary import leading_labels, row_words, unit_words
from anchorlens.runs.schema import (
    CONTRAST_COLUMNS,
    SAMPLE_COLUMNS,
    answer_first,
    collect_drops,
    columns_with_values,
    for_display,
    leading_metric,
    settings_of,
    summary_order,
    without_nulls,
)

if TYPE_CHECKING:
    import plotly.graph_objects
    import torch
    import xarray

    import anchorlens.probing.cross_fitting

# Of a repr: characters of a line, and rows of its table.
_WIDTH = 100
_ROWS = 10
_HALF = ("bfloat16", "float16")


@dataclass(frozen=True, repr=False, eq=False)
class SweepResult:
    """Result of a sweep; frozen. Two results are equal if they are the same object:
    :func:`anchorlens.compare` compares numbers.

    Attributes:
        protocol: Analysis of the protocol.
        run_id: Hash of specification, model and data.
        record: Specification, model, data, environment, batch plan and counts, as in run.json.
        anchors: Anchors in the order of :attr:`delta_p`.
        layers: Layers in the order of :attr:`delta_p`.
        example_ids: Ids of the measured examples in the order of :attr:`delta_p`.

    Examples:
        >>> import anchorlens as al
        >>> data = al.load_qa("popqa-sample", limit=20)
        >>> sweep = al.swap_sweep("smollm2-135m-instruct", data, layers=(0, 24))  # doctest: +SKIP
        >>> sweep.delta_p.shape  # [anchor layer example]  # doctest: +SKIP
        >>> print(sweep.verdict)  # doctest: +SKIP
    """

    protocol: Analysis
    run_id: str
    record: dict[str, Any]
    anchors: tuple[str, ...]
    layers: tuple[int, ...]
    example_ids: tuple[str, ...]
    _samples: pd.DataFrame
    _examples: pd.DataFrame
    _probes: "Mapping[str, anchorlens.probing.cross_fitting.CrossFittedProbes] | Path" = field(
        default_factory=dict
    )
    _memo: dict[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def make(
        cls,
        protocol: Analysis,
        samples: pd.DataFrame,
        examples: pd.DataFrame,
        record: dict[str, Any],
        run_id: str,
    ) -> "SweepResult":
        """Make a result from the frames of a sweep or of a run directory; rows are sorted into
        canonical order.
        """
        anchors = tuple(record["config"]["anchors"])
        layers = tuple(record["config"]["layers"])
        order = tuple(examples.loc[examples["role"] == "base", "example_id"])
        controls = sorted(samples["control"].unique(), key=lambda c: (c != "none", c))
        metrics = sorted(samples["metric"].unique(), key=lambda q: (q != P, q))
        samples = without_nulls(samples)
        keyed = samples.assign(
            _e=pd.Categorical(samples["example_id"], order).codes,
            _a=pd.Categorical(samples["anchor"], anchors).codes,
            _c=pd.Categorical(samples["control"], controls).codes,
            _q=pd.Categorical(samples["metric"], metrics).codes,
        )
        keyed = keyed.sort_values(["_q", "_c", "_a", "_e", "donor_id", "layer"], kind="stable")
        return cls(
            protocol=protocol,
            run_id=run_id,
            record=record,
            anchors=anchors,
            layers=layers,
            example_ids=order,
            _samples=keyed[list(SAMPLE_COLUMNS)].reset_index(drop=True),
            _examples=examples.reset_index(drop=True),
        )

    def with_probes(
        self, probes: "Mapping[str, anchorlens.probing.cross_fitting.CrossFittedProbes] | Path"
    ) -> "SweepResult":
        """Return the same result with its probes.

        Args:
            probes: Probes by control (``none`` for those of the readout, else the name of a
                placebo), or a folder from which they are loaded on first use.
        """
        return replace(self, _probes=probes, _memo={})

    def with_tables(self, tables: Mapping[str, pd.DataFrame]) -> "SweepResult":
        """Return the same result with stored ``curves`` and ``contrasts``, which are not
        recomputed.
        """
        return replace(self, _memo=dict(tables))

    @property
    def probes(self) -> "anchorlens.probing.cross_fitting.CrossFittedProbes | None":
        """Truth probes of the readout; None for other readouts."""
        return self._all_probes().get("none")

    @property
    def placebo_probes(self) -> "dict[str, anchorlens.probing.cross_fitting.CrossFittedProbes]":
        """Probes of each placebo by its name."""
        return {name: probes for name, probes in self._all_probes().items() if name != "none"}

    def _all_probes(self) -> "Mapping[str, anchorlens.probing.cross_fitting.CrossFittedProbes]":
        if not isinstance(self._probes, Path):
            return self._probes
        if "probes" not in self._memo:
            self._memo["probes"] = load_probes(self._probes)
        return self._memo["probes"]

    @property
    def noise_floor(self) -> float:
        """Largest change of an effect, in its unit, between batches of different composition; NaN
        if unknown.
        """
        floor = self.record.get("noise", {}).get("floor")  # None without spot checks
        return float("nan") if floor is None else float(floor)

    @property
    def rounding_note(self) -> str:
        """Sentence on the effect of rounding in bfloat16 or float16; empty for other dtypes."""
        dtype = self.record["model"].get("dtype", "")
        if dtype not in _HALF or not self.noise_floor > 0:
            return ""
        unit = unit_words(self.unit)
        return (
            f"{dtype}: rounding changes an effect by up to {self.noise_floor:.2g} {unit}, measured"
            " between batches of different composition"
        )

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.record["model"]["name"])

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        return str(self.record["data"]["name"])

    @property
    def is_quick(self) -> bool:
        """Whether the sweep is a quick look (``quick=True``), which claims nothing."""
        return bool(self.record["config"].get("quick", False))

    @property
    def unit(self) -> str:
        """Unit of the effect of the leading metric."""
        own = self._samples[self._samples["metric"] == leading_metric(self._samples)]
        return str(own["unit"].iloc[0])

    has_edges: ClassVar[bool] = False
    """Whether the anchors are edges between parts of the model."""

    @property
    def leading_anchors(self) -> tuple[str, ...]:
        """Anchors whose values a report shows for each row: all, or the largest edges."""
        return self.anchors

    @property
    def delta_p(self) -> "torch.Tensor":
        """Effect of the leading metric in its ``unit``, [anchor layer example], averaged over
        donors, without controls.
        """
        import torch

        return torch.from_numpy(
            mean_effect(self._samples, ["none"], self.anchors, self.layers, self.example_ids)[0]
        )

    def to_xarray(self) -> "xarray.DataArray":
        """Return the effect of the leading metric as a labelled array, averaged over donors.

        Returns:
            ``effect``, [control anchor layer example]; ``control="none"`` equals :attr:`delta_p`.
            NaN if a control has no sample of a cell. Coordinates: ``control``, ``anchor``,
            ``layer``, ``example`` (ids) and ``question_id`` along ``example``. Attributes:
            ``run_id``, ``model``, ``dataset``, ``protocol``, ``metric``, ``units`` (of the effect).

        Raises:
            InputError: If xarray is not installed.
        """
        return make_dataarray(self, self._samples, self._examples)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Dropped rows with their reasons."""
        return collect_drops(self._examples)

    @property
    def dropped_counts(self) -> dict[str, int]:
        """Number of dropped rows by reason, the most frequent first."""
        return dict(Counter(row.reason for row in self.dropped).most_common())

    def samples(self, *, metric: str | None = None, all_columns: bool = False) -> pd.DataFrame:
        """Return one row per example, donor, anchor, layer, control and metric; ``unit`` is the
        unit of ``effect``.

        Args:
            metric: Metric to select, as in :meth:`curves`. If None, all metrics.
            all_columns: Keep columns without any value, as in ``samples.parquet``.
        """
        return self._in_order(f"samples {metric}", self._samples_of(metric), all_columns)

    def examples(self, *, all_columns: bool = False) -> pd.DataFrame:
        """Return one row per input: base, donor, corrupt, and dropped with its reason.

        The key is ``run_id example_id role``: a question that is measured and also a donor has two
        rows. :meth:`samples_with_inputs` joins samples with their questions and answers.

        Args:
            all_columns: Keep columns without any value, as in ``examples.parquet``.
        """
        return self._in_order("examples", self._examples, all_columns)

    def samples_with_inputs(
        self, *, controls: bool = False, metric: str | None = None, all_columns: bool = False
    ) -> pd.DataFrame:
        """Return the samples with question, answer, segments and tokens of the measured row, and
        the donor's question and answer.

        Args:
            controls: Include the samples of controls.
            metric: Metric to select, as in :meth:`curves`. If None, all metrics.
            all_columns: Keep columns without any value.

        Returns:
            One row per sample. Added columns: ``question answer label``, ``subject`` and
            ``property`` (text of their tokens), ``donor_question donor_answer`` (empty without a
            donor row), ``relation answer_type popularity span_source qa_text_score text tokens
            positions`` of the measured row.

        Raises:
            InputError: If the sweep has no such metric.
        """
        samples = self._samples_of(metric)
        samples = samples if controls else samples[samples["control"] == "none"]
        frame = join_inputs(samples, self._examples, self.record["config"])
        return for_display(frame[answer_first(frame)], all_columns)

    def curves(
        self, *, controls: bool = False, metric: str | None = None, all_columns: bool = False
    ) -> pd.DataFrame:
        """Return mean ΔP by anchor or pathway and layer, with pointwise and simultaneous 95 % bands
        (bootstrap over questions).

        Args:
            controls: Include the curves of controls.
            metric: Metric to select: ``p``, or another one of the protocol, such as ``flip``. If
                None, all metrics. ``logit_diff`` of a swap that reads an answer is the logit of the
                answer minus that of the donor's answer, ``share`` is ΔP in % of mean P before
                (pointwise intervals only).
            all_columns: Keep columns without any value, as in ``curves.parquet``.

        Returns:
            One row per curve and layer. ``unit`` is the unit of ``effect`` (mean) and of the bands:
            ``ci_low ci_high`` for a layer chosen beforehand, ``sim_low sim_high`` for statements
            about *which* layers. ``value_before``: mean metric of the clean run. ``n``: questions.
            Values within ±``noise_floor`` are rounding. ``probe_above_chance``: the AUC's interval
            is above 0.5.

        Raises:
            InputError: If the sweep has no such metric.
        """
        key = f"curves of {metric}, {controls}, {all_columns}"
        return self._made(
            key, lambda: self._curves_of(metric, controls=controls, all_columns=all_columns)
        ).copy()

    def _curves_of(self, metric: str | None, *, controls: bool, all_columns: bool) -> pd.DataFrame:
        frame = self._made(
            "curves", lambda: self.protocol.curves(self).assign(**text_aucs(self.record))
        )
        if len(derived := self._samples_from_p(metric)):
            options = {name: self.record["config"][name] for name in ("n_resamples", "seed")}
            frame = self._made(
                f"{metric} curves", partial(curves_frame, derived, share=metric == SHARE, **options)
            )
        frame = select_metric(frame, metric)
        frame = (frame if controls else frame[frame["control"] == "none"]).reset_index(drop=True)
        return for_display(frame[answer_first(frame)], all_columns)

    def _samples_of(self, metric: str | None) -> pd.DataFrame:
        derived = self._samples_from_p(metric)
        return select_metric(derived if len(derived) else self._samples, metric)

    def _samples_from_p(self, metric: str | None) -> pd.DataFrame:
        return samples_from_p(self._samples, metric, self.record["config"].get("readout"))

    def contrasts(self, *, all_columns: bool = False) -> pd.DataFrame:
        """Return the protocol's contrasts between anchors, pathways and controls at each layer,
        with 95 % intervals.

        Args:
            all_columns: Keep columns without any value, as in ``contrasts.parquet``.

        Returns:
            One row per quantity, control, anchor and layer. ``control`` is the side that is
            subtracted, ``ci`` the pointwise interval, ``sim`` the simultaneous band over all
            layers.
        """
        return self._made(
            f"contrasts of {all_columns}", lambda: self._contrasts_of(all_columns=all_columns)
        ).copy()

    def _contrasts_of(self, *, all_columns: bool) -> pd.DataFrame:
        frame = self._made("contrasts", lambda: self.protocol.contrasts(self))
        own = {
            "run_id": self.run_id,
            "protocol": self.protocol.name,
            "model": self.model,
            "dataset": self.dataset,
        }
        named = frame.assign(**own, **settings_of(self.record["config"]))[list(CONTRAST_COLUMNS)]
        return for_display(named[answer_first(named)], all_columns)

    def summary(self, *, all_columns: bool = False) -> pd.DataFrame:
        """Return the main numbers: the largest |ΔP| of each anchor, or the values at the probe
        layer k*.

        Args:
            all_columns: Keep columns without any value.
        """
        frame = self.protocol.summary(self)
        return for_display(frame[summary_order(frame)], all_columns)

    @property
    def findings(self) -> Findings:
        """Findings as data: statements with quantity, layers, value, interval and status."""
        if "findings" not in self._memo:
            found = self.protocol.findings(self)
            # Without a mean over prompts of several lengths there is no curve to look at.
            if self.is_quick and not self.curves(all_columns=True).empty:
                found = quick_findings(
                    self.record,
                    self.layers,
                    self.curves(all_columns=True),
                    found.warnings,
                    words=row_words(self.protocol.name),
                    dropped=self.dropped_counts,
                )
            self._memo["findings"] = found
        return self._memo["findings"]

    @property
    def verdict(self) -> str:
        """:attr:`findings` as text."""
        return str(self.findings)

    def plot_example(self, example: str | int) -> "plotly.graph_objects.Figure":
        """Draw one example: its tokens with their roles, and its effect by layer beside its
        controls.

        Args:
            example: Id from :attr:`example_ids`, index into it, or words of the question, such as
                ``"france"``, in any case and order.

        Returns:
            A Plotly figure; the effect (leading metric, in its unit) against the layer.

        Raises:
            InputError: If no measured example matches, or several; the message lists their ids.
        """
        from anchorlens.figures.example_figure import plot_example

        return plot_example(self, example)

    def id_of(self, example: str | int) -> str:
        """Return the id of an example that is given by id, index or words of its question, as in
        :meth:`plot_example`.

        Raises:
            InputError: If no measured example matches, or several; the message lists their ids.
        """
        base = self._examples[self._examples["role"] == "base"]
        rows = zip(base["example_id"], base["question"], base["answer"], strict=True)
        return find_example(
            example,
            {name: (str(question), str(answer)) for name, question, answer in rows},
            self.dropped,
            text=row_words(self.protocol.name).text,
        )

    def save(self, path: "str | os.PathLike[str]", *, overwrite: bool = False) -> Path:
        """Save the sweep as a run directory, as :func:`anchorlens.save_run` does."""
        from anchorlens.running.saving import save_run

        return save_run([self], path, overwrite=overwrite)

    def _in_order(self, name: str, frame: pd.DataFrame, all_columns: bool) -> pd.DataFrame:
        """Return a copy with columns in reading order; the order is cached."""
        if (key := f"order of {name}") not in self._memo:
            self._memo[key] = answer_first(frame)
        ordered = frame[self._memo[key]]
        return (
            for_display(ordered, all_columns)
            if name != "examples"
            else ordered[columns_with_values(ordered, all_columns)].copy()
        )

    def _made(self, name: str, make: Any) -> pd.DataFrame:
        if name not in self._memo:
            self._memo[name] = make()
        return self._memo[name]

    def __repr__(self) -> str:
        gone = ", ".join(f"{reason} {n}" for reason, n in self.dropped_counts.items()) or "none"
        head = (
            f"{type(self).__name__}: {self.protocol.name}, {self.model} on {self.dataset};"
            f" {self._describe_array()}"
        )
        lines = [*self.protocol.settings(self).splitlines(), f"dropped: {gone}"]
        lines += [note for note in [self.rounding_note] if note]
        said = [fill(line, _WIDTH, initial_indent="  ", subsequent_indent="    ") for line in lines]
        title, table = self._own_table()
        # No line width: pandas would move the last columns below the others.
        shown = table.to_string(index=False, float_format="{:.2f}".format, max_rows=_ROWS)
        verdict = [self.verdict] if self.verdict else []
        return escape_hidden("\n".join([*verdict, head, *said, title, shown]))

    def _describe_array(self) -> str:
        """Return the array of effects with its axes, for the repr."""
        axes = f"anchor {len(self.anchors)}, layer {len(self.layers)}"
        return f"delta_p [{axes}, example {len(self.example_ids)}]"

    def _repr_html_(self) -> str:
        title = self.protocol.title
        what = leading_labels(self._samples).name_in_unit
        about = escape(f"{self.model} on {self.dataset}, n = {len(self.example_ids)}, {what}")
        caption, table = self._own_table()
        rounding = f"<br>{escape(self.rounding_note)}" if self.rounding_note else ""
        head = (
            f"<p><b>{title[0].upper()}{title[1:]}</b>: {about}{rounding}<br>{escape(caption)}</p>"
        )
        rows = table.to_html(index=False, float_format="{:.2f}".format, max_rows=_ROWS)
        return verdict_html(self.findings) + head + minus(rows)

    def _own_table(self) -> tuple[str, pd.DataFrame]:
        """Return title and rows of the command line's table, without model, data set and empty
        columns.
        """
        title, table = self.protocol.table([self])
        return title, table.drop(columns=["model", "dataset", "data set"], errors="ignore").dropna(
            axis="columns", how="all"
        )


__all__ = ["Analysis", "SweepResult"]
