"""Tables of older versions become those of today."""

import pandas as pd
import pytest

from anchorlens.runs.schema import (
    CURVE_COLUMNS,
    READABLE,
    SAMPLE_COLUMNS,
    SCHEMA_VERSION,
    SETTINGS,
    SLOT_TYPES,
    TEXT_AUCS,
    of_today,
    settings_of,
)


def test_this_version_is_readable():
    assert READABLE[-1] == SCHEMA_VERSION == 6


def old_samples(protocol, site):
    later = ("quantity", "probe_site", "value_before", "value_after", *SETTINGS, *SLOT_TYPES)
    left = [c for c in SAMPLE_COLUMNS if c not in later]
    row = dict.fromkeys(left, 0) | {"protocol": protocol, "site": site, "p_before": 0.5, "p_after": 0.25}
    return pd.DataFrame([row])


@pytest.mark.parametrize(
    ("protocol", "site", "wanted"),
    [("swap", "mlp_out", ("mlp_out", "")), ("knockout", "attn_out", ("", "attn_out")), ("knockout", "", ("", ""))],
)
def test_samples(protocol, site, wanted):
    old = old_samples(protocol, site)
    frame = of_today(old)
    assert tuple(frame.columns) == SAMPLE_COLUMNS
    (row,) = frame.to_dict("records")
    assert (row["site"], row["probe_site"]) == wanted
    assert (row["quantity"], row["value_before"], row["value_after"]) == ("p", 0.5, 0.25)
    pd.testing.assert_frame_equal(old, old_samples(protocol, site))  # what was read is left alone
    pd.testing.assert_frame_equal(of_today(frame), frame)


@pytest.mark.parametrize("lacks", [(), ("noise_floor", "sim_low", "sim_high", "null_short", *TEXT_AUCS, *SETTINGS)])
def test_curves(lacks):
    left = [c for c in CURVE_COLUMNS if c not in ("quantity", "probe_site", *lacks)]
    row = (
        dict.fromkeys(left, 0) | dict.fromkeys(SETTINGS, "") | {"protocol": "knockout", "site": "resid_post", "p_before": 0.5}
    )
    frame = of_today(pd.DataFrame([{name: row[name] for name in left}]))
    assert tuple(frame.columns) == CURVE_COLUMNS
    assert frame[["noise_floor", "sim_low"]].isna().all(axis=None) == bool(lacks)
    assert frame["prompt"].tolist() == [""]
    (row,) = frame.to_dict("records")
    assert (row["site"], row["probe_site"], row["quantity"], row["p_before"]) == ("", "resid_post", "p", 0.5)


def test_settings_that_a_protocol_does_not_have_are_empty():
    assert settings_of({"delta_kind": "probability", "prompt": "qa", "known_only": False, "answers": "given"}) == {
        "prompt": "qa", "answers": "", "distractor": "", "split": "", "known_only": "False",
    }  # fmt: skip
