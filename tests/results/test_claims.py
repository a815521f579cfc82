"""Status of a claim by its interval, and claims of several sweeps together."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from anchorlens.errors import InputError
from anchorlens.results.adjusted_claims import (
    adjust_claims,
    adjust_findings,
    adjustment_text,
    claim_rows,
)
from anchorlens.results.claims import Claim, Looks, claim_statements, note_on_sign_flips
from anchorlens.results.estimates import LayerEstimate, LayerEstimates
from anchorlens.results.findings import (
    BEYOND_POSITIONS,
    DESCRIPTION,
    NOT_DETECTED,
    REVERSED,
    SPECIFIC,
    STANDS,
    TOO_FEW,
    Finding,
    Findings,
    claim_status,
)
from anchorlens.statistics.bands import band, p_values
from anchorlens.statistics.resamples import Resamples


def fact(value, low, high, n=40):
    return LayerEstimate(value, low, high, low, high, n, n)


@pytest.mark.parametrize(
    ("one", "sign", "floor", "status"),
    [
        (fact(-5, -9, -1), -1, 0.0, STANDS),
        (fact(-5, -9, -1), 1, 0.0, REVERSED),
        (fact(-5, -9, -1), 0, 0.0, STANDS),
        (fact(-5, -9, 1), -1, 0.0, NOT_DETECTED),
        (fact(-5, -9, -1), -1, 5.0, NOT_DETECTED),  # within the noise floor
        (fact(-5, -9, -1, n=9), -1, 0.0, TOO_FEW),
        (fact(-5, -9, -1, n=10), -1, 0.0, STANDS),
        (fact(np.nan, np.nan, np.nan, n=0), -1, 0.0, TOO_FEW),
    ],
)
def test_status_of_a_claim(one, sign, floor, status):
    assert claim_status(one, sign=sign, floor=floor) == status


@pytest.mark.parametrize("n", [2, 3])
def test_looks_have_intervals_of_the_bonferroni_level_and_p_values_that_agree_with_them(n):
    rng = np.random.default_rng(n)
    draws = Resamples.of(np.arange(30), n_resamples=400, seed=0)
    names = [f"contrast {i}" for i in range(n)]
    claims = {name: Claim("placebo", -1) for name in names}
    estimates = {
        name: draws.means(rng.normal(-0.4, 1, (30, 1)), np.full((30, 1), True)) for name in names
    }
    looks = Looks.of(estimates, claims, 5)
    assert looks.level == 1 - 0.05 / n
    for name, one in estimates.items():
        made = band(one, level=looks.level)
        assert (looks.facts[name, "placebo"].low, looks.facts[name, "placebo"].high) == (
            made.low[0],
            made.high[0],
        )
        of_t = 2 * stats.t.sf(abs(one.value[0]) / (one.draws.std() * np.sqrt(30 / 29)), 29)
        assert looks.p[name] == pytest.approx(max(of_t, p_values(one)[0]))
        assert looks.p[name] >= 0.05 / n or made.high[0] < 0 or made.low[0] > 0


def test_all_contrasts_are_one_claim_and_some_of_them_several_looks():
    """A value within the noise floor makes the others several looks; an area under the curve has no
    such floor.
    """
    claims = {"delta_p": Claim("placebo", -1), "auc_drop": Claim("placebo", -1, alone="auc_after")}
    facts = LayerEstimates(
        {
            ("delta_p", "placebo"): fact(-5, -9, -1),
            ("auc_drop", "placebo"): fact(-0.2, -0.3, -0.1),
            ("auc_after", "placebo"): fact(0.9, 0.8, 1.0),
        }
    )
    close = LayerEstimates({key: one._replace(high=0.05) for key, one in facts.items()})
    looks = Looks(0.975, close, {"delta_p": 0.03, "auc_drop": 0.01})
    both = claim_statements(claims, facts, looks, 4, floor=1.0)
    assert [(one.status, one.level, one.p, one.control_value) for one in both] == [
        (STANDS, 0.95, 0.03, None),
        (STANDS, 0.95, 0.02, 0.9),
    ]
    facts["delta_p", "placebo"] = fact(5, 1, 9)
    assert [one.p for one in claim_statements(claims, facts, looks, 4)] == [0.06, 0.02]
    facts["delta_p", "placebo"] = fact(-5, -9, -1)
    some = claim_statements(claims, facts, looks, 4, floor=5.0)
    assert [(one.status, one.level, one.high) for one in some] == [(NOT_DETECTED, 0.975, 0.05)] * 2


def test_a_claim_on_some_contrasts_needs_sign_flips_and_one_on_all_does_not():
    claims = {"delta_p": Claim("placebo", -1), "flip_rate": Claim("placebo", 1)}
    facts = LayerEstimates(
        {("delta_p", "placebo"): fact(-5, -9, -1), ("flip_rate", "placebo"): fact(2, -1, 5)}
    )
    p = {"delta_p": 0.01, "flip_rate": 0.2}
    for flipped, status in ((0.02, STANDS), (0.03, NOT_DETECTED)):
        looks = Looks(0.975, facts, p, flips={"delta_p": flipped, "flip_rate": 0.3})
        some = claim_statements(claims, facts, looks, 4)
        assert [one.status for one in some] == [status, NOT_DETECTED]
        note = note_on_sign_flips(some, looks)
        assert ("delta_p (p = 0.06)" in note) == (status == NOT_DETECTED)
        assert "flip_rate" not in note  # its interval contains 0
    facts["delta_p", "placebo"] = fact(5, 1, 9)
    assert claim_statements(claims, facts, looks, 4)[0].status == NOT_DETECTED  # else reversed
    facts["delta_p", "placebo"] = fact(-5, -9, -1)
    facts["flip_rate", "placebo"] = fact(2, 1, 5)
    assert [one.status for one in claim_statements(claims, facts, looks, 4)] == [STANDS] * 2


def sweep(at, *claims, protocol="knockout"):
    """Names and findings of a sweep with claims of these status and p-value."""
    names = {"run_id": str(at), "protocol": protocol, "model": "m", "dataset": f"set {at}"}
    seven = {"layers": (7,), "layer": 7, "control": "random_tokens"}
    statements = [
        Finding(f"c{i}", status, value=-1.0, low=-2.0, high=0.5, n=40, p=p, **seven)
        for i, (status, p) in enumerate(claims)
    ]
    return names, Findings((*statements, Finding("all_contrasts", STANDS, (3,))))


def test_claims_of_several_sweeps_are_adjusted_together():
    frame = adjust_findings(
        [
            sweep(0, (STANDS, 0.02), (NOT_DETECTED, 0.3), (DESCRIPTION, 0.3)),
            sweep(1, (REVERSED, 0.012), (STANDS, 0.03), (SPECIFIC, 0.001)),
            sweep(2, (TOO_FEW, 0.0001)),  # is no claim
        ]
    )
    assert list(frame["p_holm"]) == pytest.approx([0.04, 0.3, 0.3, 0.024, 0.06, 0.002])
    assert list(frame["status"]) == [
        STANDS,
        NOT_DETECTED,
        DESCRIPTION,
        REVERSED,
        NOT_DETECTED,
        SPECIFIC,
    ]
    assert list(frame["status_alone"]) == [
        STANDS,
        NOT_DETECTED,
        DESCRIPTION,
        REVERSED,
        STANDS,
        SPECIFIC,
    ]
    said = (
        "Adjusted by Holm over 2 sweeps with 6 claims: 4 stand in their sweep alone, 3 of them"
        " after the adjustment."
    )
    assert adjustment_text(frame) == said
    heads, rows = claim_rows(frame)
    assert [row[-1] for row in rows] == [
        STANDS,
        REVERSED,
        "not detected after Holm over 2 sweeps",
        SPECIFIC,
    ]
    assert rows[0] == ["knockout: m on set 0", "c0", "7", "-1.0", "7", "0.020", "0.040", STANDS]
    assert len(heads) == len(rows[0])


def test_a_sweep_in_which_every_claim_stands_passes_its_level_on():
    """Levels of three sweeps: 0.05 / 3, then 0.05 / 2 for those that are left, then 0.05."""
    whole, half = (
        sweep(0, (STANDS, 0.01), (STANDS, 0.016)),
        sweep(1, (STANDS, 0.024), (NOT_DETECTED, 0.2)),
    )
    frame = adjust_findings([whole, half, sweep(2, (STANDS, 0.024))])
    assert list(frame["p_holm"]) == pytest.approx([0.03, 0.048, 0.048, 0.2, 0.048])
    open_, *_ = adjust_findings([sweep(0, (STANDS, 0.01), (NOT_DETECTED, 0.2)), half])["p_holm"]
    assert open_ == pytest.approx(0.02)
    assert list(
        adjust_findings([sweep(at, (STANDS, 0.024)) for at in range(3)])["p_holm"]
    ) == pytest.approx([0.072] * 3)


def test_claims_of_a_single_sweep_are_not_adjusted():
    frame = adjust_findings([sweep(0, (STANDS, 0.02), (STANDS, 0.04), (STANDS, 0.03))])
    assert list(frame["p_holm"]) == list(frame["p"]) == [0.02, 0.04, 0.03]
    assert set(frame["status"]) == {STANDS}
    assert adjustment_text(frame) == ""
    assert claim_rows(frame)[1] == []
    pd.testing.assert_index_equal(adjust_findings([]).columns, frame.columns)
    assert adjustment_text(adjust_findings([])) == ""


def test_swaps_and_grids_are_adjusted_and_a_small_p_value_claims_nothing():
    def of(at, protocol, *statements):
        names = {"run_id": str(at), "protocol": protocol, "model": "m", "dataset": "d"}
        return names, Findings(statements)

    less = {"quantity": "delta_p_minus_null", "control": "same_role", "anchor": "subject"}
    swap = of(
        0,
        "swap",
        Finding(
            **less,
            status=BEYOND_POSITIONS,
            layers=(3, 4),
            layer=4,
            value=-9.0,
            low=-12.0,
            high=-6.0,
            n=30,
            p=0.002,
        ),
        Finding(
            **less | {"anchor": "property"},
            status=NOT_DETECTED,
            layers=(5,),
            layer=5,
            value=-0.004,
            low=-0.01,
            high=0.002,
            n=30,
            p=0.001,
        ),
    )
    # A claim of 12 groups names no place and no layer.
    grid = of(1, "patch", Finding(quantity="effect", status=STANDS, n=12, p=0.04))
    frame = adjust_findings([swap, grid])
    assert list(frame["anchor"]) == ["subject", "property", ""]
    # The layer of the value, not the first of those that are claimed.
    assert frame["layer"].fillna(-1).tolist() == [4, 5, -1]
    assert frame["layers"].tolist() == ["3-4", "5", "none"]
    assert list(frame["p_holm"]) == pytest.approx([0.004, 0.002, 0.04])
    assert list(frame["status"]) == [BEYOND_POSITIONS, NOT_DETECTED, STANDS]
    lost = adjust_findings([swap, grid, of(2, "patch", replace(grid[1].statements[0], p=0.5))])
    assert list(lost["status"])[2:] == [NOT_DETECTED, NOT_DETECTED]
    said = "Adjusted by Holm over 2 sweeps with 3 claims: 2 stand in their sweep alone, 2 of them"
    assert adjustment_text(frame).startswith(said)
    _, rows = claim_rows(frame)
    assert rows[0][1:5] == ["delta_p_minus_null (subject, same_role)", "4", "-9.0", "3-4"]
    assert rows[1][1:5] == ["effect", "", "", ""]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("results", ["runs/study", ["runs/study"], [None]])
def test_claims_are_those_of_sweeps(results):
    with pytest.raises(InputError, match="load_run"):
        adjust_claims(results)
