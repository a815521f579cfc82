"""One small sweep of each protocol; equal calls are measured once in a process."""

import json
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd

import anchorlens as al
from anchorlens.protocols.registry import measurement_of, specification_of
from anchorlens.results.findings import Finding, Findings
from anchorlens.running.runner import LocalRunner, run_sweep
from anchorlens.runs.schema import CELL
from tests.questions.make import capitals

OPTIONS = {"progress": False, "n_resamples": 200}
OWN = {
    "swap": {"align": "last", "n_donors": 2, "seed": 1},
    "knockout": {"n_splits": 1},
    "patch_tokens": {"base": "all", "n_splits": 1},
    "answer_only": {"n_splits": 1},
}


@cache
def questions(name="knockout"):
    """The rows of a protocol's small sweep."""
    return capitals(6) if name == "swap" else al.load_qa("popqa-sample", limit=60)


def spec_of(name, **changes):
    return specification_of(name)(**OPTIONS | OWN.get(name, {}) | changes)


def run(protocol, model, data, spec):
    """Measure a sweep of a protocol in this process."""
    return run_sweep(LocalRunner(protocol, model, data, spec), spec)


def measured(model, name, **changes):
    """Measure the small sweep of a protocol, few rows without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(measurement_of(name), model, questions(name), spec_of(name, **changes))


swept = cache(measured)


def own(result, control="none", metric="p"):
    """The samples of one control and metric."""
    return result.samples().query(f"control == {control!r} and metric == {metric!r}")


def inputs(result, role):
    """The stored inputs of a role by id."""
    return result.examples().query(f"role == {role!r}").set_index("example_id")


def assert_close(one, other, atol=1e-5):
    """Raise if two sweeps differ in a cell, or in one's pathway."""
    ours, theirs = (
        sweep.samples(all_columns=True).set_index(CELL).sort_index() for sweep in (one, other)
    )
    assert ours.index.equals(theirs.index)
    for column in ("value_before", "value_after"):
        np.testing.assert_allclose(ours[column], theirs[column], atol=atol)
    assert (ours["pathway"].fillna("") == theirs["pathway"].fillna("")).all()


def check_statements(result):
    """Raise if the statements of a result are not the facts of its contrasts, or its views disagree
    with them.
    """
    findings = result.findings
    assert isinstance(findings, Findings) and findings.statements
    frame, found = findings.to_frame(), json.loads(json.dumps(findings.to_dict()))
    said = [vars(one) for one in findings.statements]
    assert list(frame.columns) == list(Finding.__dataclass_fields__)
    assert frame.astype(object).where(frame.notna(), None).to_dict("records") == said
    sequences = ("layers", "split_values")
    assert [
        {**one, **{name: tuple(one[name]) for name in sequences}} for one in found.pop("statements")
    ] == said
    assert found == {
        "headline": findings.headline,
        "warnings": list(findings.warnings),
        "notes": list(findings.notes),
        "table": {"columns": list(findings.columns), "rows": [list(row) for row in findings.rows]},
    }
    text = result.verdict
    assert all(part in text for part in (findings.headline, *findings.warnings, *findings.notes))
    assert all(cell in text for row in findings.table for cell in row)
    # The words are a view: without them the statements are the same.
    silent = replace(findings, headline="", warnings=(), rows=(), columns=(), notes=())
    assert not silent and not str(silent)
    pd.testing.assert_frame_equal(silent.to_frame(), frame)
    contrasts = result.contrasts()
    for one in findings.statements:
        assert set(one.layers) <= set(result.layers)
        if one.value is not None and one.level == 0.95:
            same = (contrasts["quantity"] == one.quantity) & (contrasts["control"] == one.control)
            same &= (contrasts["value"] == one.value) & (contrasts["layer"] == one.layer)
            assert one.layer in one.layers
            (row,) = contrasts[
                same & (contrasts["anchor"].eq(one.anchor) | (one.anchor == ""))
            ].to_dict("records")
            band = "sim" if one.anchor else "ci"
            assert (one.low, one.high, one.n) == (row[f"{band}_low"], row[f"{band}_high"], row["n"])
    return findings
