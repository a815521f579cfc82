"""Check that the tables and the record of a stored sweep belong together, without a model.

The rules are those that the measuring code guarantees. Curves, contrasts and findings are not
recomputed here, because that takes a bootstrap: :mod:`anchorlens.running.recompute` does it for
``verify``.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit

from anchorlens.constants import FLIP, METRIC_UNITS, POINTS, TRUTH_READOUTS, P
from anchorlens.display import short_repr
from anchorlens.errors import InputError, RunError
from anchorlens.protocols.registry import analysis_of, specification_of
from anchorlens.protocols.specification import Specification
from anchorlens.results.curve_tables import recompute_effects
from anchorlens.runs.provenance import run_id_of
from anchorlens.runs.schema import CELL, LOGITS, format_cell, settings_of
from anchorlens.runs.validation import TableRows, check_inputs
from anchorlens.statistics.delta import is_flipped
from anchorlens.statistics.pathways import ALL, SHUFFLED, A, Q

# Arguments that have another value in the record than those that were given.
_RESOLVED = {"delta_kind", "n_donors", "null", "probes", "prompt", "add_bos", "layers"}
_AGAIN = "Make the run again."
# Rounding of an effect that is computed again, in its unit.
_ROUNDING = 1e-9
# Readouts whose log-probability is the logarithm of P, and the rounding of P from it in float32.
_JOINT_READOUTS = ("first_token", "answer_joint")
_P_ROUNDING = 1e-5
# Highest probability: the exponential of a logarithm in float32 may lie above 1.
_MOST_P = 1 + 1e-5


def check_sweep(folder: Path, sweep: Mapping[str, Any], tables: Mapping[str, TableRows]) -> None:
    """Raise RunError, naming file, row and column, if tables and record of a sweep do not belong
    together.

    Args:
        folder: Run directory.
        sweep: Entry of the sweep in run.json.
        tables: Rows of the sweep by name of the table, with nulls for missing values.
    """
    record = folder / "run.json"
    config = sweep["config"]
    spec = _specification(record, config)
    of_run = run_id_of(config, sweep["model"], sweep["data"])
    if sweep["run_id"] != of_run:
        raise _refusal(
            record, f"run_id={sweep['run_id']}: its config, model and data have {of_run}"
        )
    samples = tables["samples"]
    examples = tables["examples"]
    check_inputs(examples)
    _check_examples(sweep, examples)
    _check_constants(sweep, samples, spec)
    _check_keys(config, samples, examples.frame)
    _check_values(config, samples, examples.frame)
    _check_counts(record, sweep, examples.frame, samples.frame)
    _check_curves(config, samples.frame, tables["curves"])


def check_study(folder: Path, record: Mapping[str, Any]) -> None:
    """Raise RunError if a run counts more sweeps, with the unfinished ones, than its study has."""
    n = len(record["sweeps"])
    pending = record["pending"]
    if pending and n + len(pending) > len(record["study"]):
        raise _refusal(
            folder / "run.json",
            f"pending={pending}: {n} of {len(record['study'])} sweeps are finished",
        )


def _refusal(file: Path, problem: str) -> RunError:
    return RunError(f"{file} is damaged: {problem}. {_AGAIN}")


def _specification(record: Path, config: Mapping[str, Any]) -> Specification:
    """Return the specification of a sweep, without functions of the user, which are not stored."""
    own = {"own_code", *config.get("own_code", {})}
    kept: dict[str, Any] = {}
    for name, one in config.items():
        is_function = str(one).startswith("callable:")
        if name not in own and not is_function:
            kept[name] = one
    spec = specification_of(config["protocol"])
    lacking: list[str] = []
    for name, one in spec.arguments().items():
        is_stored = not one.execution_only
        if is_stored and name not in config:
            lacking.append(name)
    if lacking:
        raise _refusal(record, f"config lacks {', '.join(lacking)}")
    try:
        found = spec.from_config(kept)
    except InputError as why:
        raise RunError(f"{record} is damaged: config: {why} {_AGAIN}") from why
    if config.get("probes") is not None and "probes" not in config.get("own_code", {}):
        raise _refusal(
            record, f"config.probes={short_repr(config['probes'])}: own_code has no probes"
        )
    again = found.identity()
    for name in kept.keys() & again.keys() - _RESOLVED:
        # A protocol without an argument has an empty text.
        if kept[name] not in (again[name], ""):
            given, follows = short_repr(kept[name]), short_repr(again[name])
            raise _refusal(
                record, f"config.{name}={given}: {follows} follows from the other arguments"
            )
    return found


def _check_examples(sweep: Mapping[str, Any], examples: TableRows) -> None:
    """Check the columns that the record has too, and the texts and labels of the inputs."""
    frame = examples.frame
    config = sweep["config"]
    for column, value in (
        ("run_id", sweep["run_id"]),
        ("dataset", sweep["data"]["name"]),
        ("prompt", config["prompt"]),
    ):
        examples.check_same(column, value or ("" if column == "prompt" else None))
    role = frame["role"].to_numpy(dtype=object)
    gone = role == "dropped"
    has_reason = frame["drop_reason"].fillna("") != ""
    examples.check(
        "drop_reason",
        gone != has_reason.to_numpy(dtype=bool),
        "a row has a reason if it was dropped, and only then",
    )
    # The text of a changed input is put together from tokens.
    questions = specification_of(config["protocol"]).DATA == "questions"
    for column in ("question", "answer") if questions else ():
        pairs = zip(frame[column].tolist(), frame["text"].tolist(), strict=True)
        outside = np.array([str(part) not in str(text) for part, text in pairs], dtype=bool)
        examples.check(
            column, ~gone & (role != "corrupt") & outside, "not part of the text of its row"
        )
    if config.get("readout") in TRUTH_READOUTS:
        no_label = frame["label"].isna().to_numpy(dtype=bool)
        examples.check(
            "label", (role == "base") & no_label, "a measured row has the label of its answer"
        )
        one_label = (
            config["protocol"] == "patch_tokens"
            and frame.loc[role == "base", "label"].nunique() == 1
        )
        if one_label != ("test_auc" in sweep["probe"]):
            raise _refusal(
                examples.file,
                "run.json has probe.test_auc if all measured rows have one label, and only then",
            )


def _check_constants(sweep: Mapping[str, Any], samples: TableRows, spec: Specification) -> None:
    """Check the columns that have one value in all samples, which the record has too."""
    config = sweep["config"]
    same: dict[str, object] = {
        "run_id": sweep["run_id"],
        "model": sweep["model"]["name"],
        "dataset": sweep["data"]["name"],
        "protocol": config["protocol"],
        "seed": config["seed"],
        "unit": analysis_of(config["protocol"]).unit(config),
        **settings_of(config),
    }
    if not config.get("own_code"):  # the name of a function is not in the specification
        same |= spec.constant_columns()
    for column, value in same.items():
        is_missing = value == "" or (column == "window" and value == 0)
        samples.check_same(column, None if is_missing else value)


class _Codes(NamedTuple):
    """Column of a table as codes.

    Attributes:
        of_row: Code of each row.
        values: Value of each code; null is one of them.
    """

    of_row: npt.NDArray[np.int64]
    values: pd.Series

    @classmethod
    def of(cls, column: pd.Series) -> "_Codes":
        """Return the codes of a column."""
        codes, values = pd.factorize(column, use_na_sentinel=False)
        return cls(codes, pd.Series(values))

    def rows(self, of_values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return something of each value for each row."""
        return np.asarray(of_values)[self.of_row]


def _check_keys(config: Mapping[str, Any], samples: TableRows, examples: pd.DataFrame) -> None:
    """Check that each sample has a key of its own, of a measured row and a donor of
    ``examples.parquet``.
    """
    base = examples[examples["role"] == "base"]
    keys: dict[str, _Codes] = {}
    for column in (*CELL, "question_id", "cluster"):
        keys[column] = _Codes.of(samples.frame[column])
    _check_known_values(config, samples, keys)
    _check_rows(samples, keys, base)
    _check_donors(samples, keys["donor_id"], base)
    samples.check(
        "example_id",
        _join_codes([keys[column] for column in CELL]).duplicated(),
        f"is there twice with the same {', '.join(CELL[1:])}",
    )


def _check_known_values(
    config: Mapping[str, Any], samples: TableRows, keys: Mapping[str, _Codes]
) -> None:
    """Check anchors and layers against the arguments, and that names are texts."""
    for column in ("anchor", "layer"):
        is_known = np.isin(keys[column].values, config[f"{column}s"])
        problem = "not measured, by config of run.json"
        samples.check(column, ~keys[column].rows(is_known), problem)
    for column in ("control", "metric", "question_id"):
        is_text = keys[column].values.notna()
        samples.check(column, ~keys[column].rows(is_text), "must be a text")


def _check_rows(samples: TableRows, keys: Mapping[str, _Codes], base: pd.DataFrame) -> None:
    """Check that samples are those of the measured rows, with their questions and clusters."""
    ids = keys["example_id"]
    measured = base.set_index("example_id")
    is_known = ids.values.astype(object).isin(measured.index)
    samples.check("example_id", ~ids.rows(is_known), "not a measured row of examples.parquet")
    if lacking := sorted(set(measured.index) - set(ids.values)):
        raise _refusal(
            samples.file,
            f"it has no sample of example_id={lacking[0]!r}, which examples.parquet has as"
            " measured",
        )
    for column in ("question_id", "cluster"):
        found = keys[column].values.astype(object).fillna("")
        code_of = {value: code for code, value in enumerate(found)}
        expected = measured[column].fillna("").to_dict()
        expected_codes = [code_of.get(expected[row], -1) for row in ids.values]
        is_other = ids.rows(expected_codes) != keys[column].of_row
        samples.check(column, is_other, "examples.parquet has another one for this row")


def _check_donors(samples: TableRows, donor_ids: _Codes, base: pd.DataFrame) -> None:
    """Check that donors are those of measured rows; a draw of a placebo probe is in the column of
    donors too.
    """
    donors: set[str] = set()
    for names in base["donor_ids"]:
        donors |= set(map(str, names))
    is_known = donor_ids.values.astype(object).isin(donors) | donor_ids.values.isna()
    is_draw = (samples.frame["control"] == SHUFFLED).to_numpy(dtype=bool)
    samples.check(
        "donor_id",
        ~donor_ids.rows(is_known) & ~is_draw,
        "not a donor of a measured row of examples.parquet",
    )


def _join_codes(columns: Sequence[_Codes]) -> pd.Series:
    """Return one number of each row for its combination of codes."""
    joined = np.zeros(len(columns[0].of_row), dtype=np.int64)
    for column in columns:
        joined = joined * len(column.values) + column.of_row
    return pd.Series(joined)


def _check_values(config: Mapping[str, Any], samples: TableRows, examples: pd.DataFrame) -> None:
    """Check the numbers: finite, probabilities between 0 and 1, and effects that follow
    from them.
    """
    frame = samples.frame
    for column in ("value_before", "value_after", "effect"):
        samples.check(
            column,
            ~np.isfinite(frame[column].to_numpy(dtype=np.float64, na_value=np.nan)),
            "no finite number",
        )
    if frame["unit"].iloc[0] == POINTS:
        for column in ("value_before", "value_after"):
            samples.check(
                column, ~frame[column].between(0, _MOST_P), "no probability between 0 and 1"
            )
    wanted = recompute_effects(frame, examples, config)
    gap = np.abs(frame["effect"].to_numpy(dtype=np.float64) - wanted)
    samples.check(
        "effect",
        gap > _ROUNDING * np.maximum(1, np.abs(wanted)),
        "does not follow from value_before and value_after",
    )
    _check_logits(config, samples)
    if FLIP in set(frame["metric"].unique()):
        _check_flips(samples)
    if frame["pathway"].notna().any():
        samples.check("pathway", ~frame["pathway"].isin((Q, A)), f"must be {Q} or {A}")


def _check_logits(config: Mapping[str, Any], samples: TableRows) -> None:
    """Check that log-probabilities and, of truth readouts, log-odds are those of P."""
    frame = samples.frame
    readout = config.get("readout")
    of_p = (frame["metric"] == P).to_numpy(dtype=bool)
    for column in LOGITS:
        samples.check(
            column,
            ~(of_p & (readout is not None)) & frame[column].notna(),
            f"of the metric {P} alone",
        )
    if readout not in (*_JOINT_READOUTS, *TRUTH_READOUTS):
        return
    for when in ("before", "after"):
        p = frame[f"value_{when}"].to_numpy(dtype=np.float64)
        found = {f"logp_{when}": np.exp(frame[f"logp_{when}"].to_numpy(dtype=np.float64))}
        if readout in TRUTH_READOUTS:
            found[f"logit_diff_{when}"] = expit(
                frame[f"logit_diff_{when}"].to_numpy(dtype=np.float64)
            )
        for column, again in found.items():
            samples.check(
                column, of_p & ~(np.abs(again - p) <= _P_ROUNDING), f"not that of value_{when}"
            )


def _check_flips(samples: TableRows) -> None:
    """Check that each sample of a flip tells whether P of the same cell crosses 0.5."""
    frame = samples.frame
    columns = [_Codes.of(frame[name]) for name in CELL if name != "metric"]
    key = _join_codes(columns).to_numpy()
    rows = {name: np.flatnonzero(frame["metric"] == name) for name in (P, FLIP)}
    order = {name: own[np.argsort(key[own], kind="stable")] for name, own in rows.items()}
    if len(order[P]) != len(order[FLIP]) or (key[order[P]] != key[order[FLIP]]).any():
        raise _refusal(samples.file, f"the metrics {P} and {FLIP} have different cells")
    before = frame["value_before"].to_numpy(dtype=np.float64)
    after = frame["value_after"].to_numpy(dtype=np.float64)
    wrong = np.zeros(len(frame), dtype=bool)
    flipped = is_flipped(before[order[P]], after[order[P]])
    wrong[order[FLIP]] = (before[order[FLIP]] != 0) | (after[order[FLIP]] != flipped)
    samples.check("value_after", wrong, f"{FLIP} does not follow from {P}")


def _check_counts(
    record: Path, sweep: Mapping[str, Any], examples: pd.DataFrame, samples: pd.DataFrame
) -> None:
    """Check the counts of rows against the examples, and the noise floor against the spot
    checks.
    """
    counts = sweep["counts"]
    roles = examples["role"]
    dropped = dict(Counter(examples.loc[roles == "dropped", "drop_reason"].tolist()))
    if counts["dropped"] != dropped:
        raise _refusal(
            record, f"counts.dropped={counts['dropped']}: examples.parquet has {dropped}"
        )
    n = int((roles == "base").sum())
    if counts["evaluated"] != n:
        raise _refusal(
            record,
            f"counts.evaluated={counts['evaluated']}: examples.parquet has {n} measured rows",
        )
    noise = sweep["noise"]
    checks = sweep["checks"]
    if (noise["floor"] is None) != (noise["cells"] == 0):
        raise _refusal(record, f"noise.floor={noise['floor']}: of {noise['cells']} cells")
    largest = noise["floor"] if checks["cells"] else None
    if checks["largest_difference"] != largest:
        raise _refusal(
            record,
            f"checks.largest_difference={checks['largest_difference']}: the noise floor is"
            f" {noise['floor']}",
        )
    one_each = not sweep.get("probe")  # a cell of a probe sweep is measured with others
    if (
        checks["cells"] > noise["cells"]
        or (one_each and 0 < checks["cells"] < noise["cells"])
        or (checks["failed"] and not checks["cells"])
    ):
        raise _refusal(
            record, f"checks.cells={checks['cells']}: the noise floor has {noise['cells']} cells"
        )
    _check_failures(record, checks["failed"], samples)
    _check_known_cells(record, sweep, samples)


def _check_failures(record: Path, failed: Sequence[str], samples: pd.DataFrame) -> None:
    """Check that each difference of the engines names a cell of the samples."""
    if failed:
        cells = {format_cell(cell) for cell in samples[CELL].fillna("").to_dict("records")}
        for one in failed:
            if one.partition(" at ")[2] not in cells:
                raise _refusal(
                    record, f"checks.failed has {short_repr(one)}: the samples have no such cell"
                )


def _check_known_cells(record: Path, sweep: Mapping[str, Any], samples: pd.DataFrame) -> None:
    """Check the number of cells that were compared with a value that follows by construction."""
    known = sweep["checks"]["known"]
    is_patch = sweep["config"]["protocol"] in ("patch", "edges")
    most = int(samples["by_construction"].sum()) if is_patch and sweep["checks"]["cells"] else 0
    # Of a user's metric, the values of pairs of different length do not follow.
    least = 0 if (samples["unit"] == METRIC_UNITS).any() else most
    if not least <= known <= most:
        raise _refusal(
            record,
            f"checks.known={short_repr(known)}: {most} cells of the samples follow by construction",
        )


def _check_curves(config: Mapping[str, Any], samples: pd.DataFrame, curves: TableRows) -> None:
    """Check that the curves are those of the metrics, controls and anchors that were measured, at
    all layers, once each.
    """
    names = ["metric", "control", "anchor"]
    curves.check(
        "layer",
        curves.frame.duplicated([*names, "pathway", "layer"]),
        "is there twice in this curve",
    )
    if samples["pathway"].notna().any():  # every pathway has a curve over all layers
        samples = samples[names].drop_duplicates()
        samples = samples.merge(pd.DataFrame({"pathway": [Q, A, ALL]}), how="cross")
        samples = samples.merge(pd.DataFrame({"layer": config["layers"]}), how="cross")
        names.append("pathway")
    for column in names[:3]:
        curves.check(column, ~curves.frame[column].isin(samples[column].unique()), "not measured")
    if (
        curves.frame.empty and specification_of(config["protocol"]).DATA == "pairs"
    ):  # pairs of different length have no mean
        return
    measured = set(samples[[*names, "layer"]].drop_duplicates().itertuples(index=False, name=None))
    if lacking := sorted(
        measured - set(curves.frame[[*names, "layer"]].itertuples(index=False, name=None))
    ):
        pairs = zip((*names, "layer"), lacking[0], strict=True)
        point = ", ".join(f"{name}={value!r}" for name, value in pairs)
        raise _refusal(curves.file, f"it lacks {point}, which was measured")
