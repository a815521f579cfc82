"""The result of a sweep: tidy frames, the tensor of ΔP, curves with bands, and a small table for notebooks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.analysis.pathways import delta_p
from anchorlens.analysis.stats import Resamples, bootstrap_mean, interval
from anchorlens.engine.readouts import Metrics
from anchorlens.errors import InputError
from anchorlens.questions.example import Dropped
from anchorlens.questions.tokens import TokenRow

if TYPE_CHECKING:
    from typing_extensions import Self

    from anchorlens.analysis.probes import LayerProbes

SAMPLE_COLUMNS = (
    "run_id", "model", "dataset", "example_id", "question_id", "protocol", "anchor", "pathway", "layer", "site", "window",
    "direction", "mode", "readout", "delta_kind", "donor_id", "control", "seed", "p_before", "p_after", "delta_p",
    "logp_before", "logp_after", "logit_diff_before", "logit_diff_after", "trivial",
)  # fmt: skip
CURVE_KEYS = (
    "model", "dataset", "protocol", "anchor", "pathway", "layer", "site", "window", "direction", "mode", "readout", "delta_kind",
    "control", "seed",
)  # fmt: skip
CURVE_COLUMNS = (
    *CURVE_KEYS, "delta_p", "ci_low", "ci_high", "p_before", "n", "trivial", "auc", "auc_low", "auc_high", "signal", "noise_floor",
)  # fmt: skip
CURVE_TYPES = {"auc": "float64", "auc_low": "float64", "auc_high": "float64", "signal": "boolean", "noise_floor": "float64"}
EXAMPLE_COLUMNS = (
    "run_id", "example_id", "question_id", "role", "dataset", "question", "answer", "label", "prompt", "text", "token_ids",
    "positions", "donor_ids", "drop_reason", "drop_detail", "relation", "answer_type", "popularity", "span_source",
)  # fmt: skip


def samples_frame(
    keys: Mapping[str, object],
    layers: Sequence[int],
    rows: pd.DataFrame,
    cells: Sequence[tuple[dict[str, object], Metrics]],
    before: Metrics,
) -> pd.DataFrame:
    """The rows of ``samples.parquet`` of one batch.

    Args:
        keys: Columns that are the same for the whole sweep.
        layers: Layers of the cells.
        rows: ``example_id``, ``question_id``, ``donor_id`` and ``event`` of each row of the batch; ``event`` is 1 where what P
            speaks of is the case (see :func:`~anchorlens.analysis.pathways.support`).
        cells: For each anchor and control its own columns (``trivial`` and ``reached`` by layer; cells that are not reached get no
            row) and the metrics after, [layer example].
        before: Metrics of the clean pass, [example].
    """
    n_layers, n_rows = len(layers), len(rows)
    frames: list[pd.DataFrame] = []
    clean = {name: np.tile(_double(getattr(before, name)), n_layers) for name in ("p", "log_p", "logit_diff")}
    for own, after in cells:
        columns: dict[str, object] = {
            name: np.tile(rows[name].to_numpy(), n_layers) for name in rows.columns if name != "event"
        }
        columns |= {"layer": np.repeat(np.asarray(layers), n_rows), "trivial": np.repeat(np.asarray(own["trivial"]), n_rows)}
        columns |= {"p_before": clean["p"], "p_after": _double(after.p).ravel()}
        columns |= {"logp_before": clean["log_p"], "logp_after": _double(after.log_p).ravel()}
        columns |= {"logit_diff_before": clean["logit_diff"], "logit_diff_after": _double(after.logit_diff).ravel()}
        frame = pd.DataFrame({**columns, "anchor": own["anchor"], "control": own["control"], **keys})
        kind = str(keys["delta_kind"])
        pair = (frame["p_before"].to_numpy(), frame["p_after"].to_numpy())
        event = np.tile(rows["event"].to_numpy(dtype=np.float64), n_layers)
        frame["delta_p"] = 100.0 * (pair[1] - pair[0]) if kind == "probability" else delta_p(*pair, event, kind)
        frames.append(frame.loc[np.repeat(np.asarray(own["reached"]), n_rows), list(SAMPLE_COLUMNS)])
    return pd.concat(frames, ignore_index=True)


def _double(values: Tensor) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return values.double().numpy()


def examples_frame(
    run_id: str,
    dataset: str,
    prompt: str,
    *,
    inputs: Mapping[str, Sequence[TokenRow]],
    dropped: Sequence[Dropped],
    donor_ids: Mapping[str, list[str]],
    positions: Mapping[str, dict[str, list[int]]],
) -> pd.DataFrame:
    """The rows of ``examples.parquet``: from them alone every input and every changed position can be built again.

    Args:
        run_id: Of the sweep.
        dataset: Its name.
        prompt: Its name.
        inputs: Role -> rows: ``base``, ``donor``, ``corrupt``, ``train``, ``validation``.
        dropped: Rows that were left out.
        donor_ids: Row id of a base row -> ids of its donors.
        positions: Row id of any row but a donor -> positions beside those of the anchors.
    """
    records: list[dict[str, object]] = []
    for role, rows in inputs.items():
        for row in rows:
            own = {name: list(where) for name, where in row.positions.items()}
            if role != "donor":
                own |= positions.get(row.row_id, {})
            records.append(
                {
                    "example_id": row.row_id, "question_id": row.example.question_id, "role": role, "question": row.question,
                    "answer": row.answer.exact.of(row.answer.text), "label": row.answer.label, "text": row.text,
                    "token_ids": list(row.ids), "positions": json.dumps(own),
                    "donor_ids": donor_ids.get(row.row_id, []) if role == "base" else [],
                    "relation": row.example.relation, "answer_type": row.example.answer_type,
                    "popularity": row.example.popularity, "span_source": row.example.span_source,
                }
            )  # fmt: skip
    for row in dropped:
        records.append(  # noqa: PERF401 - a comprehension would hide the record's shape
            {
                "example_id": row.example_id, "question_id": "", "role": "dropped", "question": row.question,
                "answer": row.answer, "token_ids": [], "positions": "{}", "donor_ids": [], "drop_reason": row.reason,
                "drop_detail": row.detail,
            }
        )  # fmt: skip
    frame = pd.DataFrame(records).reindex(columns=list(EXAMPLE_COLUMNS))
    frame = frame.assign(run_id=run_id, dataset=dataset, prompt=prompt)
    for name in ("drop_reason", "drop_detail", "text", "relation", "answer_type", "span_source"):
        frame[name] = frame[name].astype("object").where(frame[name].notna(), "")
    frame["label"] = frame["label"].astype("Int64")
    frame["popularity"] = frame["popularity"].astype("float64")
    return frame


@dataclass(frozen=True, repr=False)
class SweepResult:
    """What a sweep measured; frozen.

    Attributes:
        run_id: Name of configuration, model and data.
        record: Configuration, model, data, environment, batch plan and counts, as run.json keeps them.
        anchors: Anchors, in the order of :attr:`delta_p`.
        layers: Layers, in the order of :attr:`delta_p`.
        example_ids: Examples, in the order of :attr:`delta_p`.
        probes: The probes that were read; None for other readouts.
    """

    run_id: str
    record: dict[str, Any]
    anchors: tuple[str, ...]
    layers: tuple[int, ...]
    example_ids: tuple[str, ...]
    _samples: pd.DataFrame
    _examples: pd.DataFrame
    probes: "LayerProbes | None" = None
    _cache: dict[str, pd.DataFrame] = field(default_factory=dict, compare=False)

    @classmethod
    def make(cls, samples: pd.DataFrame, examples: pd.DataFrame, record: dict[str, Any], run_id: str) -> "Self":
        """From the frames of a sweep (or of a run directory); rows are put in canonical order."""
        anchors, layers = tuple(record["config"]["anchors"]), tuple(record["config"]["layers"])
        order = tuple(examples.loc[examples["role"] == "base", "example_id"])
        controls = sorted(samples["control"].unique(), key=lambda c: (c != "none", c))
        keyed = samples.assign(
            _e=pd.Categorical(samples["example_id"], order).codes, _a=pd.Categorical(samples["anchor"], anchors).codes,
            _c=pd.Categorical(samples["control"], controls).codes,
        )  # fmt: skip
        keyed = keyed.sort_values(["_c", "_a", "_e", "donor_id", "layer"], kind="stable")
        return cls(
            run_id, record, anchors, layers, order, keyed[list(SAMPLE_COLUMNS)].reset_index(drop=True),
            examples.reset_index(drop=True),
        )  # fmt: skip

    def with_probes(self, probes: "LayerProbes | None") -> "Self":
        """The same result with its probes beside it."""
        return replace(self, probes=probes, _cache={})

    @property
    def noise_floor(self) -> float:
        """How far ΔP of one cell moves, in points, when the same inputs are measured in other batches; NaN where unknown."""
        return float(self.record.get("noise", {}).get("floor", np.nan))

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.record["model"]["name"])

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        return str(self.record["data"]["name"])

    @property
    def delta_p(self) -> Float[Tensor, "anchor layer example"]:
        """ΔP in percentage points, averaged over each example's donors; controls are not in it."""
        own = self._samples[self._samples["control"] == "none"]
        table = own.groupby(["anchor", "layer", "example_id"], sort=False)["delta_p"].mean()
        index = pd.MultiIndex.from_product([self.anchors, self.layers, self.example_ids])
        values = table.reindex(index).to_numpy().reshape(len(self.anchors), len(self.layers), len(self.example_ids))
        return torch.from_numpy(values.copy())

    def samples(self) -> pd.DataFrame:
        """One row for each example, donor, anchor, layer and control."""
        return self._samples.copy()

    def examples(self) -> pd.DataFrame:
        """One row for each input: base, donor, corrupt, and dropped with its reason."""
        return self._examples.copy()

    def dropped(self) -> pd.Series:
        """How many rows were left out, by reason."""
        gone = self._examples.loc[self._examples["role"] == "dropped", "drop_reason"]
        return gone.value_counts().rename_axis("drop_reason").rename("rows")

    def curves(self, *, controls: bool = False) -> pd.DataFrame:
        """Mean ΔP by anchor and layer with its 95 % band (bootstrap over questions), n questions and mean P before.

        ``noise_floor``: what lies between minus and plus this many points is rounding, not an effect.

        Args:
            controls: Take in the controls' curves too.
        """
        if "curves" not in self._cache:
            config = self.record["config"]
            curves = curves_frame(self._samples, n_resamples=config["n_resamples"], seed=config["seed"])
            self._cache["curves"] = curves.assign(**self._auc(), noise_floor=self.noise_floor).astype(CURVE_TYPES)
        frame = self._cache["curves"]
        return (frame if controls else frame[frame["control"] == "none"]).reset_index(drop=True)

    def _auc(self) -> dict[str, Any]:
        """Clean AUC of a truth readout over the measured rows, with its interval; nothing for other readouts."""
        config = self.record["config"]
        if config["readout"] not in ("probe", "p_true"):
            return {}
        base = self._examples[self._examples["role"] == "base"].set_index("example_id")
        before = self._samples.groupby("example_id", sort=False)["p_before"].first()
        labels = base.loc[before.index, "label"].to_numpy(dtype=np.float64)
        event = 1 - labels if config["readout"] == "p_true" else labels
        ids = base.loc[before.index, "question_id"].to_numpy()
        draws = Resamples.of(ids, n_resamples=config["n_resamples"], seed=config["seed"])
        auc, many = draws.aucs(before.to_numpy(), event)
        low, high = interval(many[:, None], np.array([True]))
        return {
            "auc": auc,
            "auc_low": low[0],
            "auc_high": high[0],
            "signal": pd.NA if low[0] != low[0] else bool(low[0] > 0.5),
        }

    def summary(self) -> pd.DataFrame:
        """One row an anchor: the layer of the strongest effect, ΔP with interval, the null there, P before, n."""
        return summary_of(self.curves(controls=True))

    def save(self, path: "str | Path", *, overwrite: bool = False) -> Path:
        """Write a run directory. See :func:`anchorlens.results.runs.save_run`."""
        from anchorlens.results.runs import save_run

        return save_run([self], path, overwrite=overwrite)

    @classmethod
    def load(cls, path: "str | Path") -> "SweepResult":
        """Read a run directory that holds one sweep.

        Raises:
            InputError: It holds several; :func:`anchorlens.load_run` reads them all.
        """
        from anchorlens.results.runs import load_run

        results = load_run(path)
        if len(results) != 1:
            names = ", ".join(f"{r.model} on {r.dataset}" for r in results)
            raise InputError(f"{path} holds {len(results)} sweeps ({names}). Read them with anchorlens.load_run(path).")
        return results[0]

    def __repr__(self) -> str:
        config = self.record["config"]
        shape = f"[anchor {len(self.anchors)}, layer {len(self.layers)}, example {len(self.example_ids)}]"
        gone = ", ".join(f"{reason} {n}" for reason, n in self.dropped().items()) or "none"
        head = (
            f"SweepResult: swap, {self.model} on {self.dataset}; delta_p {shape}\n"
            f"  readout {config['readout']}, site {config['site']}, window {config['window']}, {config['direction']}, "
            f"donors {config['donors']} (up to {config['n_donors']}), align {config['align']}, prompt {config['prompt']}, "
            f"known_only {config['known_only']}, seed {config['seed']}\n  dropped: {gone}\n"
        )
        return head + self.summary().to_string(index=False, float_format=lambda v: f"{v:.2f}")

    def _repr_html_(self) -> str:
        title = f"<b>Swap sweep</b>: {self.model} on {self.dataset}, n = {len(self.example_ids)}, ΔP in percentage points"
        return f"<p>{title}</p>" + self.summary().to_html(index=False, float_format=lambda v: f"{v:.2f}")


def curves_frame(samples: pd.DataFrame, *, n_resamples: int, seed: int) -> pd.DataFrame:
    """Curves of every group of a samples frame: donors averaged per example first, then a bootstrap over questions."""
    group_keys = [key for key in CURVE_KEYS if key != "layer"]
    frames: list[pd.DataFrame] = []
    for keys, group in samples.groupby(group_keys, sort=False, dropna=False):
        if group["delta_kind"].iloc[0] == "confidence":  # the confidence in the clean prediction, as ΔP is
            group = group.assign(p_before=np.maximum(group["p_before"], 1 - group["p_before"]))
        per_row = group.groupby(["example_id", "question_id", "layer"], sort=False)[["delta_p", "p_before"]].mean()
        wide = per_row["delta_p"].unstack("layer").sort_index(axis=1)
        before = per_row["p_before"].unstack("layer").reindex(index=wide.index, columns=wide.columns)
        ids = wide.index.get_level_values("question_id")
        band = bootstrap_mean(wide.to_numpy(), ids, n_resamples=n_resamples, seed=seed)
        trivial = group.groupby("layer")["trivial"].any().reindex(wide.columns)
        frame = pd.DataFrame(
            {
                "layer": wide.columns.astype(int), "delta_p": band.mean, "ci_low": band.low, "ci_high": band.high,
                "p_before": np.nanmean(before.to_numpy(), axis=0), "n": band.n, "trivial": trivial.to_numpy(),
            }
        )  # fmt: skip
        shared: dict[str, Any] = dict(zip(group_keys, keys, strict=True))
        frames.append(frame.assign(**shared))
    # Only a probe has an AUC, and only curves of an AUC can lack signal.
    return pd.concat(frames, ignore_index=True).reindex(columns=list(CURVE_COLUMNS)).astype(CURVE_TYPES)


def summary_of(curves: pd.DataFrame) -> pd.DataFrame:
    """The strongest point of every curve that is no control, with the null at the same layer; trivial points do not count."""
    records: list[dict[str, object]] = []
    own = curves[(curves["control"] == "none") & ~curves["trivial"].astype(bool)]
    for (model, dataset, anchor), curve in own.groupby(["model", "dataset", "anchor"], sort=False):
        if curve["delta_p"].isna().all():
            continue
        best = curve.loc[curve["delta_p"].abs().idxmax()]
        same = (curves["model"] == model) & (curves["dataset"] == dataset) & (curves["anchor"] == anchor)
        null = curves[same & (curves["control"] == "null") & (curves["layer"] == best["layer"])]
        records.append(
            {
                "model": model, "dataset": dataset, "anchor": anchor, "layer": int(best["layer"]), "delta_p": best["delta_p"],
                "ci_low": best["ci_low"], "ci_high": best["ci_high"],
                "null": null["delta_p"].iloc[0] if len(null) else np.nan, "p_before": best["p_before"], "n": int(best["n"]),
            }
        )  # fmt: skip
    return pd.DataFrame(records)
