"""The verdict in words: every turn that it can take, from made facts."""

import pandas as pd
import pytest

from anchorlens.results.facts import FEW, Fact, aligned, listed_and, ranges
from anchorlens.results.verdict import knockout_verdict, layers_standing

NAN = float("nan")
FOUND = {
    ("auc", "none"): (0.91, 0.85, 0.97), ("auc_knocked_out", "matched"): (0.54, 0.44, 0.64),
    ("auc_knocked_out", "random_tokens"): (0.9, 0.84, 0.96), ("delta_all", "random_tokens"): (-25.7, -31.4, -20.2),
    ("flip_rate", "random_tokens"): (31.0, 22.0, 40.0), ("auc_drop", "random_tokens"): (-0.365, -0.448, -0.28),
    ("own_change", "matched"): (-16.5, -21.5, -11.8), ("own_change", "random_tokens"): (-1.1, -2.9, 0.8),
}  # fmt: skip
OPEN = {
    ("delta_all", "random_tokens"): (-1.0, -5.0, 3.0), ("flip_rate", "random_tokens"): (1.0, -6.0, 8.0),
    ("auc_drop", "random_tokens"): (-0.01, -0.09, 0.07),
}  # fmt: skip


def frame(facts, *, layers=(7,), n=60, wider=1.0):
    """Effects that are the same at every layer; the simultaneous band reaches ``wider`` times as far as the pointwise one."""
    rows = [
        (q, c, layer, v, low, high, v - wider * (v - low), v + wider * (high - v), n)
        for layer in layers
        for (q, c), (v, low, high) in facts.items()
    ]
    columns = ["quantity", "control", "layer", "value", "ci_low", "ci_high", "sim_low", "sim_high", "n"]
    return pd.DataFrame(rows, columns=columns)


def said(
    changed=None, *, readout="probe", placebos=True, kind="confidence", text=None, pair=None, n=60, wider=1.0, layers=(7,), k=7,
    anchor="question", floor=1e-4,
):  # fmt: skip
    facts = {key: value for key, value in (FOUND | (changed or {})).items() if value is not None}
    as_text = {"auc": 0.5, "ci_low": 0.44, "ci_high": 0.56}
    record = {
        "config": {"readout": readout, "placebos": placebos, "delta_kind": kind, "anchors": [anchor]},
        "noise": {"floor": floor},
        "probe": {"k_star": k if readout == "probe" else None, "text_only": text or as_text, "pair_text": pair or as_text},
    }
    return knockout_verdict(record, 7, frame(facts, n=n, wider=wider, layers=layers))


def test_the_finding_stands_first_then_a_table_then_the_layers():
    first, *rest = said().splitlines()
    assert first == (
        "At k* = 7 the effect of cutting E_Q stands beyond that of other question tokens and is specific to the row (AUC 0.91; "
        "E_Q cut 0.54, others cut 0.90)."
    )
    assert [line.split()[0] for line in rest[:4]] == ["delta_all", "flip_rate", "auc_drop", "own_change"]
    assert "-25.7  [-31.4, -20.2]" in rest[0]
    assert rest[4] == "Layers where it stands (simultaneous bands): 7."
    assert len(rest) == 5


@pytest.mark.parametrize(
    "changed",
    [None, OPEN, OPEN | {("own_change", "matched"): (-1, -3, 1)}, {("auc_drop", "random_tokens"): (-0.01, -0.1, 0.1)}],
)
def test_at_most_ninety_words_with_every_warning(changed):
    leak = {"auc": 0.66, "ci_low": 0.6, "ci_high": 0.71}
    text = said({**(changed or {}), ("auc_beyond_text", "none"): (0.2, 0.1, 0.3)}, pair=leak)
    assert text.startswith(
        "Beware: question and answer as text reach AUC 0.66 [0.60, 0.71]; the probe's AUC +0.20 [+0.10, +0.30] beyond it."
    )
    assert len(text.split()) <= 90, text


def test_what_is_open_is_said_with_what_the_data_allow_and_never_as_none():
    text = said(OPEN | {("own_change", "matched"): (-1.0, -3.0, 1.0)})
    assert text.startswith("At k* = 7 no effect of cutting E_Q beyond other question tokens is shown")
    assert "Layers where it stands (simultaneous bands): none shown." in text
    assert text.splitlines()[-1] == "open: not shown, the data allow the interval."
    assert text.count("  open") == 4
    assert "there is no" not in text.lower()


def test_contrasts_that_do_not_agree_are_named():
    text = said({("auc_drop", "random_tokens"): (-0.01, -0.1, 0.1)})
    assert "delta_all and flip_rate stand beyond other question tokens, auc_drop not" in text
    alone = said({key: OPEN[key] for key in (("delta_all", "random_tokens"), ("auc_drop", "random_tokens"))})
    assert "flip_rate stands beyond other question tokens, delta_all and auc_drop not" in alone


def test_disturbance_is_not_called_the_rows_own():
    assert "; that it is more than disturbance is not shown (" in said({("own_change", "matched"): (-0.5, -2.0, 1.0)})


def test_an_effect_of_the_other_side_is_not_one():
    text = said({("delta_all", "random_tokens"): (9.0, 5.0, 13.0)})
    assert "flip_rate and auc_drop stand beyond other question tokens, by delta_all cutting these does more" in text
    assert "open: not shown" not in text
    alone = said(OPEN | {("flip_rate", "random_tokens"): (-10.7, -19.0, -2.4)})
    assert "no effect of cutting E_Q beyond other question tokens is shown; by flip_rate cutting these does more (" in alone
    assert "[+5.0, +13.0]" in text
    assert text.count("reversed") == 1


def test_layers_are_named_by_the_band_over_all_layers_alone():
    assert "bands): none shown" in said(wider=9.0)
    facts = frame(FOUND, layers=(1, 2, 5))
    facts.loc[(facts["layer"] == 5) & (facts["quantity"] == "flip_rate"), "sim_low"] = -1.0
    assert layers_standing(facts) == {1, 2}
    assert layers_standing(frame(FOUND, n=FEW - 1)) == set()


@pytest.mark.parametrize(
    ("changed", "how", "end"),
    [
        ({("auc", "none"): (0.55, 0.45, 0.65)}, {}, "at k* = 7 no signal of the probe is shown, AUC 0.55 [0.45, 0.65]."),
        ({("auc", "none"): (NAN, NAN, NAN)}, {}, "lack true or false answers, so the probe has no AUC."),
        ({}, {"kind": "signed"}, "true and false answers move against each other."),
        ({}, {"placebos": False}, "no placebo was measured, so it is not known what any other cut does."),
        ({}, {"n": 9}, "cut and placebo can be compared in 9 questions, and 10 are needed."),
        ({("delta_all", "random_tokens"): None}, {}, "cut and placebo can be compared in 0 questions, and 10 are needed."),
    ],
)
def test_where_nothing_can_be_claimed_nothing_is(changed, how, end):
    text = said(changed, **how)
    assert text.startswith("Nothing is claimed")
    assert text.endswith(end)
    assert "nan" not in text


def test_the_models_own_word_has_no_own_change_and_no_k_star():
    text = said({("own_change", "matched"): None, ("own_change", "random_tokens"): None}, readout="p_true")
    assert text.startswith("At layer 7 the effect of cutting E_Q stands beyond that of other question tokens (AUC")
    assert "own_change" not in text
    assert "k*" not in text


def test_text_that_tells_is_said_before_anything_else():
    text = said(text={"auc": 0.7, "ci_low": 0.6, "ci_high": 0.8})
    assert text.startswith("Beware: the answer's text alone reaches AUC 0.70 [0.60, 0.80].")
    both = said(text={"auc": 0.7, "ci_low": 0.6, "ci_high": 0.8}, pair={"auc": 0.8, "ci_low": 0.7, "ci_high": 0.9})
    assert "answer's text alone" not in both


def test_small_words():
    assert ranges([0, 1, 2, 7]) == "0-2, 7"
    assert ranges([]) == ""
    assert listed_and(["a"]) == "a"
    assert listed_and(["a", "b", "c"]) == "a, b and c"
    assert aligned([("a", "bb"), ("ccc", "d")]) == "  a    bb\n  ccc  d"
    assert Fact(-0.001, -0.1, 0.2, -1, 1, 5).said() == "0.0 [-0.1, +0.2]"
    assert not Fact(NAN, NAN, NAN, NAN, NAN, 0).off_zero


def test_layers_in_many_pieces_are_counted_so_that_the_words_stay_few():
    leak = {"auc": 0.66, "ci_low": 0.6, "ci_high": 0.71}
    changed = {("own_change", "matched"): (-1, -3, 1), ("auc_beyond_text", "none"): (0.2, 0.1, 0.3)}
    text = said(changed, pair=leak, layers=range(1, 65, 2))
    assert "bands): 32 of 1-63." in text
    assert len(text.split()) <= 90


def test_another_layer_is_not_called_k_star():
    assert said(k=0).startswith("At layer 7 (k* = 0 was not reached) the effect")


def test_another_source_than_the_exact_question_tokens_is_named():
    text = said(anchor="subject")
    assert text.startswith("At k* = 7 the effect of cutting subject stands beyond that of other question tokens")
    assert "E_Q" not in text


def test_what_lies_within_rounding_does_not_stand():
    text = said({("delta_all", "random_tokens"): (-5e-5, -6e-5, -4e-5)})
    assert "flip_rate and auc_drop stand beyond other question tokens, delta_all not" in text


def test_an_end_that_would_be_rounded_to_zero_gets_one_more_decimal():
    text = said({("auc_drop", "random_tokens"): (-0.06, -0.12, -0.003), ("delta_all", "random_tokens"): (-1.0, -2.0, -0.04)})
    assert "[-0.120, -0.003]" in text
    assert "[-2.00, -0.04]" in text


def test_the_models_own_word_has_its_name_beside_the_text():
    leak = {"auc": 0.66, "ci_low": 0.6, "ci_high": 0.71}
    text = said({("auc_beyond_text", "none"): (0.2, 0.1, 0.3)}, pair=leak, readout="p_true")
    assert "; P(True)'s AUC +0.20" in text
