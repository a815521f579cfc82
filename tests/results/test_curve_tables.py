"""Samples become curves: what P before is, both bands, and how far a null falls short."""

import numpy as np
import pandas as pd
import pytest

from anchorlens.results.curve_tables import curves_frame, summary_of
from anchorlens.runs.schema import SAMPLE_COLUMNS, SLOT_TYPES
from anchorlens.statistics.bands import bootstrap_mean

BEFORE = {"a": 0.9, "b": 0.2, "c": 0.6, "d": 0.1}
EVENT = {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.0}


def samples(delta, **columns):
    """Rows a .. d of one curve: ``delta`` [row layer]."""
    delta = np.asarray(delta, dtype=float)
    names = (
        list(BEFORE)[: len(delta)]
        if len(delta) <= len(BEFORE)
        else [f"r{i}" for i in range(len(delta))]
    )
    index = pd.MultiIndex.from_product(
        [names, range(delta.shape[1])], names=["example_id", "layer"]
    )
    own = index.to_frame(index=False).assign(
        effect=delta.ravel(), question_id=lambda frame: frame["example_id"]
    )
    own["value_before"] = own["example_id"].map(BEFORE).fillna(0.5)
    same = {
        "anchor": "exact_question",
        "control": "none",
        "delta_kind": "probability",
        "donor_id": "x",
        "by_construction": False,
        "seed": 0,
        "n_patched": pd.NA,
        "n_null_patched": pd.NA,
        "pre_answer_token_differs": pd.NA,
    } | columns
    own = own.assign(**same)
    empty = {
        name: None if name in SLOT_TYPES else ""
        for name in SAMPLE_COLUMNS
        if name not in own.columns
    }
    return own.assign(**empty | {"window": 1}).astype(SLOT_TYPES)


def curves(frame, **options):
    return curves_frame(frame, n_resamples=200, seed=0, **options)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("probability", (0.9 + 0.2 + 0.6 + 0.1) / 4),
        ("signed", (0.9 + 0.2 + 0.6 + 0.1) / 4),
        ("confidence", (0.9 + 0.8 + 0.6 + 0.9) / 4),
        ("true_label", (0.9 + 0.2 + 0.4 + 0.9) / 4),
    ],
)
def test_p_before_is_the_mean_of_what_delta_p_starts_from(kind, wanted):
    """P of the answer; of a truth readout P itself, P of what was predicted, or P of what is the
    case.
    """
    found = curves(
        samples(np.zeros((4, 2)), delta_kind=kind), event=None if kind == "probability" else EVENT
    )
    assert found["value_before"].tolist() == pytest.approx([wanted] * 2)


def test_a_curve_has_both_bands_and_the_one_over_all_layers_is_wider():
    delta = np.random.default_rng(0).normal(-5, 10, size=(40, 12))
    frame = samples(delta)
    found = curves(frame)
    wanted = bootstrap_mean(delta, [f"r{i}" for i in range(40)], n_resamples=200, seed=0)
    for column, value in (
        ("effect", wanted.value),
        ("ci_low", wanted.low),
        ("sim_low", wanted.sim_low),
        ("sim_high", wanted.sim_high),
    ):
        np.testing.assert_allclose(found[column], value)
    assert (found["sim_low"] < found["ci_low"]).all()
    assert (found["ci_high"] < found["sim_high"]).all()


def test_null_short_is_the_share_of_rows_whose_null_has_fewer_slots():
    frame = samples(np.zeros((4, 3)), n_patched=5, n_null_patched=5)
    frame.loc[frame["example_id"].isin(["a", "b", "c"]), "n_null_patched"] = 2
    assert curves(frame)["frac_null_incomplete"].tolist() == [0.75] * 3
    # A donor that measured no null says nothing about it.
    more = frame.assign(donor_id="y", n_null_patched=pd.NA).astype(SLOT_TYPES)
    assert (
        curves(pd.concat([frame, more], ignore_index=True))["frac_null_incomplete"].tolist()
        == [0.75] * 3
    )
    assert curves(samples(np.zeros((4, 3)), n_patched=5))["frac_null_incomplete"].isna().all()


def test_a_point_is_by_construction_where_most_rows_are():
    frame = samples(np.zeros((4, 3)))
    frame["by_construction"] = ((frame["layer"] == 0) & (frame["example_id"] != "d")) | (
        (frame["layer"] == 1) & (frame["example_id"] == "d")
    )
    assert curves(frame)["by_construction"].tolist() == [True, False, False]


def test_a_summary_names_the_layer_it_picked_and_gives_the_band_over_all_layers():
    rng = np.random.default_rng(1)
    delta = rng.normal(size=(40, 6))
    delta[:, 4] -= 30
    delta[:, 0] -= 50
    own = samples(delta, n_patched=3, n_null_patched=2)
    own["by_construction"] = own["layer"] == 0
    null = samples(
        rng.normal(3, 1, size=(40, 6)), control="same_role", n_patched=3, n_null_patched=2
    )
    found = curves(pd.concat([own, null], ignore_index=True))
    (row,) = summary_of(found).to_dict("records")
    here = found[(found["control"] == "none") & (found["layer"] == 4)].iloc[0]
    assert (row["max_layer"], row["anchor"], row["n"]) == (4, "exact_question", 40)
    assert (row["effect"], row["sim_low"], row["sim_high"]) == tuple(
        here[["effect", "sim_low", "sim_high"]]
    )
    assert row["same_role"] == pytest.approx(
        found[(found["control"] == "same_role") & (found["layer"] == 4)]["effect"].iloc[0]
    )
    assert np.isnan([row["norm_matched"], row["null"]]).all()
    assert not {"ci_low", "ci_high", "layer"} & set(row)
