"""The verdict in words: every turn that it can take, from made facts."""

import pandas as pd
import pytest

from anchorlens.results.verdict import knockout_verdict

NAN = float("nan")


def said(facts, *, readout="probe", placebos=True, kind="confidence", text=(0.5, 0.45, 0.55), answers="given"):
    base = {
        ("auc", "none"): (0.8, 0.7, 0.9), ("auc_knocked_out", "none"): (0.6, 0.5, 0.7), ("gap", "none"): (-40, -45, -35),
        ("gap", "matched"): (-30, -35, -25), ("placebo_gap", "random_tokens"): (-10, -15, -5),
        ("effect", "random_tokens"): (-20, -25, -15), ("placebo_gap", "shuffled_labels"): (-8, -9, -7),
        ("effect", "shuffled_labels"): (-32, -35, -30), ("placebo_gap", "cross_fold"): (-12, -15, -9),
        ("effect", "cross_fold"): (-28, -30, -25),
    } | facts  # fmt: skip
    effects = pd.DataFrame(
        [(q, c, 7, *v) for (q, c), v in base.items() if v is not None],
        columns=["quantity", "control", "layer", "value", "ci_low", "ci_high"],
    )
    curves = pd.DataFrame(
        [("Q-Anchored", -45.0, 9), ("A-Anchored", -5.0, 11), ("All", -20.0, 20)], columns=["pathway", "delta_p", "n"]
    ).assign(layer=7, control="none")
    record = {
        "config": {"readout": readout, "placebos": placebos, "delta_kind": kind, "edges": "question -> later", "mode": "mask",
                   "answers": answers},
        "probe": {"k_star": 7 if readout == "probe" else None, "text_only": {"auc": text[0], "ci_low": text[1], "ci_high": text[2]}},
    }  # fmt: skip
    return knockout_verdict(record, 7, curves, effects)


def test_an_effect_beyond_every_control():
    text = said({})
    assert "tells true from false answers at k* = 7 with AUC 0.80 [0.70, 0.90]" in text
    assert "The gap between Q and A is -40.0 [-45.0, -35.0] points (-30.0 [-35.0, -25.0] with as many E_Q tokens cut" in text
    assert "The effect stands beyond every control at this layer." in text
    assert "Layers with signal where the gap exceeds that of other question tokens: 7 (1 of 1)." in text
    assert "A-Anchored means 'did not flip'" in text
    assert "'did not flip'" not in said({}, answers="generated")


@pytest.mark.parametrize(
    ("facts", "end"),
    [
        ({("effect", "random_tokens"): (-1, -5, 3)}, "it does not stand beyond random_tokens."),
        ({("placebo_gap", "cross_fold"): (-1, -5, 3)}, "it does not stand beyond cross_fold."),
        (
            {("effect", "random_tokens"): (-1, -5, 3), ("effect", "shuffled_labels"): (-1, -5, 3),
             ("placebo_gap", "cross_fold"): (-1, -5, 3)},
            "There is no effect beyond the controls at this layer.",
        ),
        (
            {("placebo_gap", "shuffled_labels"): (NAN, NAN, NAN), ("effect", "shuffled_labels"): (NAN, NAN, NAN)},
            "stands beyond every control that could be measured (shuffled_labels could not)",
        ),
        (
            {("placebo_gap", "random_tokens"): None, ("effect", "random_tokens"): None, ("gap", "matched"): None},
            "stands beyond every control that could be measured (random_tokens could not)",
        ),
        ({("gap", "none"): (NAN, NAN, NAN)}, "One of the groups is empty"),
    ],
)  # fmt: skip
def test_what_does_not_stand_is_named(facts, end):
    text = said(facts)
    assert end in text
    assert "nan" not in text


def test_without_signal_no_claim():
    text = said({("auc", "none"): (0.55, 0.45, 0.65)})
    assert "shows no signal at k* = 7: AUC 0.55 [0.45, 0.65]" in text
    assert "No claim about pathways is made" in text
    assert "effect" not in text
    missing = said({("auc", "none"): (NAN, NAN, NAN)})
    assert "no AUC can be computed" in missing
    assert "reaches 0.5" not in missing


def test_other_kinds_leaks_and_missing_placebos_are_said():
    assert "made for delta_kind='confidence' alone; this sweep has 'signed'" in said({}, kind="signed")
    assert "Beware: a classifier that sees the answer's text alone reaches AUC 0.70" in said({}, text=(0.7, 0.6, 0.8))
    assert "No placebo was measured" in said({}, placebos=False)
    alone = said({}, readout="p_true")
    assert "P(True) tells true from false" in alone
    assert "shuffled" not in alone
