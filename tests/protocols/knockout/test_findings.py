"""Findings of a knockout from made facts: status, text and warnings in every case."""

import numpy as np
import pandas as pd
import pytest

from anchorlens.constants import MIN_QUESTIONS_FOR_LAYERS
from anchorlens.display import align_columns
from anchorlens.errors import RunError
from anchorlens.protocols.knockout.findings import (
    PARTIAL_LEVEL,
    STANDS,
    knockout_findings,
    layers_standing,
)
from anchorlens.results.claims import Looks, concentration_of_claims
from anchorlens.results.estimates import (
    LayerEstimate,
    estimates_at,
    format_ranges,
    join_with_and,
)
from anchorlens.results.findings import TOO_FEW, claim_status
from anchorlens.statistics.contrasts import Arm, delta_p_vs_placebo, flip_rate
from anchorlens.statistics.exchanged_arms import effects_of_cut
from anchorlens.statistics.pathways import quantity_frame
from anchorlens.statistics.resamples import Resamples

NAN = float("nan")
FOUND = {
    ("auc", "none"): (0.91, 0.85, 0.97),
    ("auc_after", "size_matched"): (0.54, 0.44, 0.64),
    ("auc_after", "random_tokens"): (0.9, 0.84, 0.96),
    ("delta_p_vs_placebo", "random_tokens"): (-25.7, -31.4, -20.2),
    ("flip_rate", "random_tokens"): (31.0, 22.0, 40.0),
    ("auc_drop", "random_tokens"): (-0.365, -0.448, -0.28),
    ("row_specific_vs_placebo", "random_tokens"): (-15.4, -20.1, -10.9),
    ("row_specific_effect", "random_tokens"): (-1.1, -2.9, 0.8),
}
NOT_SHOWN = {
    ("delta_p_vs_placebo", "random_tokens"): (-1.0, -5.0, 3.0),
    ("flip_rate", "random_tokens"): (1.0, -6.0, 8.0),
    ("auc_drop", "random_tokens"): (-0.01, -0.09, 0.07),
}


LEAK = {"auc": 0.66, "ci_low": 0.6, "ci_high": 0.71}


DELTA, FLIPS, DROP, CHANGE = (
    ("delta_p_vs_placebo", "random_tokens"),
    ("flip_rate", "random_tokens"),
    ("auc_drop", "random_tokens"),
    ("row_specific_vs_placebo", "random_tokens"),
)


def frame(facts, *, layers=(7,), n=60, wider=1.0, n_clusters=None):
    """Effects that are the same at every layer; the simultaneous band reaches ``wider`` times as
    far as the pointwise one.
    """
    rows = [(*which, layer, *interval) for layer in layers for which, interval in facts.items()]
    made = pd.DataFrame(
        rows, columns=["quantity", "control", "layer", "value", "ci_low", "ci_high"]
    )
    v, low, high = made["value"], made["ci_low"], made["ci_high"]
    return made.assign(
        sim_low=v - wider * (v - low),
        sim_high=v + wider * (high - v),
        n=n,
        n_clusters=n_clusters or n,
        n_effective=float(n),
    )


def found(
    changed=None,
    *,
    readout="probe",
    placebos=True,
    kind="confidence",
    text=None,
    pair=None,
    n=60,
    wider=1.0,
    layers=(7,),
    k=7,
    anchor="exact_question",
    floor=1e-4,
    partial=None,
    p=None,
    effects=None,
    n_clusters=None,
    unit="",
):
    """Findings of a knockout; ``effects``: effect of the cut alone, if it is not the contrast."""
    facts = {key: value for key, value in (FOUND | (changed or {})).items() if value is not None}
    as_text = {"auc": 0.5, "ci_low": 0.44, "ci_high": 0.56}
    record = {
        "config": {
            "readout": readout,
            "placebos": placebos,
            "delta_kind": kind,
            "anchors": [anchor],
        },
        "noise": {"floor": floor},
        "probe": {
            "probe_layer": k if readout == "probe" else None,
            "answer_text_auc": text or as_text,
            "qa_text_auc": pair or as_text,
        },
    }
    contrasts = frame(facts, n=n, wider=wider, layers=layers, n_clusters=n_clusters)
    stricter = frame(
        {key: facts[key] for key in (DELTA, FLIPS, DROP) if key in facts} | (partial or {}),
        n=n,
        n_clusters=n_clusters,
    )
    p = p or {"delta_p_vs_placebo": 0.001, "row_specific_vs_placebo": 0.01}
    looks = Looks(PARTIAL_LEVEL, estimates_at(stricter, 7), p)
    own = {key[0]: facts[key][0] for key in (DELTA, FLIPS, DROP, CHANGE) if key in facts}
    own["flip_rate"] = max(own.get("flip_rate", 0.0), 0.0)
    along = {name: dict.fromkeys(layers, one) for name, one in (own | (effects or {})).items()}
    return knockout_findings(record, 7, contrasts, looks, effects=along, unit=unit)


UNSPECIFIC = {CHANGE: (-0.5, -2.0, 1.0)}
REVERSAL = {DELTA: (9.0, 5.0, 13.0)}


@pytest.mark.parametrize(
    ("changed", "status", "phrase"),
    [
        (
            {},
            "stands stands stands specific stands",
            "larger effect than cutting other question tokens, specific to the row.",
        ),
        (
            UNSPECIFIC,
            "stands stands stands open stands",
            "; a row-specific effect was not shown.",
        ),
        (
            NOT_SHOWN | UNSPECIFIC,
            "open open open - open",
            "no larger effect of cutting exact_question than of cutting other",
        ),
        (
            {DROP: (-0.01, -0.1, 0.1)},
            "stands stands open - open",
            "by delta_p_vs_placebo and flip_rate, not shown by auc_drop.",
        ),
        (
            {key: NOT_SHOWN[key] for key in (DELTA, DROP)},
            "open stands open - open",
            "by flip_rate, not shown by delta_p_vs_",
        ),
        (
            REVERSAL,
            "reversed stands stands - open",
            "by flip_rate and auc_drop; by delta_p_vs_placebo cutting exact_question acts in the opp",
        ),
        (
            NOT_SHOWN | {FLIPS: (-10.7, -19.0, -2.4)},
            "open reversed open - open",
            "; by flip_rate cutting other question tokens has",
        ),
        (
            {DELTA: (-5e-5, -6e-5, -4e-5)},
            "open stands stands - stands",
            "not shown by delta_p_vs_placebo.",
        ),
    ],
)
def test_statements_have_the_status_that_their_intervals_have(changed, status, phrase):
    """The last: a difference within the noise floor is open, whatever its interval."""
    findings = found(changed)
    names = [
        "delta_p_vs_placebo",
        "flip_rate",
        "auc_drop",
        "row_specific_vs_placebo",
        "all_contrasts",
    ]
    assert [one.quantity for one in findings.statements] == names
    status = [{"-": "description", "open": "not detected"}.get(one, one) for one in status.split()]
    assert [one.status for one in findings.statements] == status
    for one in findings.statements[:4]:
        assert (one.layers, one.n) == ((7,), 60)
        assert (one.value, one.low, one.high) == (FOUND | changed)[one.quantity, one.control]
    assert phrase in findings.headline
    shown = {
        name: state
        for name, state in zip(names[:4], status, strict=False)
        if state != "description"
    }
    assert {row[0]: row[3] for row in findings.rows} == shown
    assert [row[4] for row in findings.rows] == ["", "", "0.90", "-1.1"][: len(shown)]
    assert ("Not detected: " in str(findings)) == ("not detected" in status[:4])
    assert "there is no" not in str(findings).lower()


def test_one_or_two_contrasts_are_claimed_by_their_wider_intervals():
    """All three by 95 % intervals are one claim; two of them, or one, are several looks."""
    wider = {FLIPS: (31.0, -2.0, 60.0)}
    assert [one.status for one in found(partial=wider).statements[:3]] == ["stands"] * 3
    findings = found({DROP: (-0.01, -0.1, 0.1)}, partial=wider)
    assert [one.status for one in findings.statements[:3]] == [
        "stands",
        "not detected",
        "not detected",
    ]
    assert (findings.statements[1].low, findings.statements[1].high) == wider[FLIPS][1:]
    assert findings.columns[2] == "98.3 % interval"
    assert [one.level for one in findings.statements] == [PARTIAL_LEVEL] * 3 + [0.95, 0.95]
    assert "98.3" not in str(found())
    turned = found({FLIPS: (-10.7, -19.0, -2.4)}, partial={FLIPS: (-10.7, -21.0, 0.4)})
    assert turned.statements[1].status == "not detected"


@pytest.mark.parametrize(
    ("p", "borderline"),
    [
        (0.001, ""),
        (
            0.03,
            "auc_drop (p = 0.09)",
        ),  # three times its own value, because not all three have small values
        (0.06, ""),
    ],
)
def test_a_status_near_its_limit_is_borderline(p, borderline):
    text = str(
        found(
            {DROP: (-0.01, -0.1, 0.1)},
            p={"delta_p_vs_placebo": 0.3, "flip_rate": 0.001, "auc_drop": p},
        )
    )
    assert ("Borderline, another seed may decide otherwise: " in text) == bool(borderline)
    assert borderline in text


def test_the_text_is_the_headline_then_the_table_then_the_layers():
    first, *rest = str(found()).splitlines()
    assert first.startswith("At k* = 7 ")
    assert first.endswith(
        " AUC: clean 0.91 [0.85, 0.97], cut 0.54 [0.44, 0.64], others cut 0.90 [0.84, 0.96]."
    )
    assert rest[0].split("  ")[1] == "contrast"
    assert "-25.7  [-31.4, -20.2]" in rest[1]
    assert rest[5:] == ["All three contrasts stand at layer 7 (simultaneous bands)."]


@pytest.mark.parametrize("layers", [(7,), range(1, 65, 2)])
@pytest.mark.parametrize(
    "changed", [{}, NOT_SHOWN, NOT_SHOWN | UNSPECIFIC, {DROP: (-0.01, -0.1, 0.1)}]
)
def test_at_most_a_hundred_words_with_every_warning(changed, layers):
    text = str(
        found({**changed, ("auc_beyond_text", "none"): (0.2, 0.1, 0.3)}, pair=LEAK, layers=layers)
    )
    assert text.startswith(
        "Beware: a classifier of question and answer text reaches AUC 0.66 [0.60, 0.71]; the"
        " probe's AUC"
    )
    assert len(text.split()) <= 100, text


def test_layers_are_named_by_the_band_over_all_layers_alone():
    assert found(wider=9.0).statements[-1].layers == ()
    assert found(layers=range(1, 65, 2)).statements[-1].layers == tuple(range(1, 65, 2))
    assert "at 32 layers of 1-63 (" in str(found(layers=range(1, 65, 2)))
    facts = frame(FOUND, layers=(1, 2, 5))
    facts.loc[(facts["layer"] == 5) & (facts["quantity"] == "flip_rate"), "sim_low"] = -1.0
    effects = {key[0]: dict.fromkeys((1, 2, 5), FOUND[key][0]) for key in (DELTA, FLIPS, DROP)}
    assert layers_standing(facts, effects) == {1, 2}
    # At layer 2 most of the difference is that of the placebo.
    assert layers_standing(facts, effects | {"auc_drop": {1: -0.3, 2: -0.1, 5: -0.3}}) == {1}


def test_below_twenty_questions_no_layer_is_named_and_below_ten_nothing_is_claimed():
    assert layers_standing(frame(FOUND, n=MIN_QUESTIONS_FOR_LAYERS - 1), {}) == set()
    assert layers_standing(frame(FOUND, n_clusters=MIN_QUESTIONS_FOR_LAYERS - 1), {}) == set()
    some = found(n=19)
    assert [one.status for one in some.statements] == ["stands"] * 3 + ["specific", TOO_FEW]
    assert some.notes == ("No layers are named: 20 questions are needed.",)
    few = found(n=9)
    assert {(one.status, one.low, one.high, one.n) for one in few.statements[:3]} == {
        (TOO_FEW, None, None, 9)
    }
    assert (
        few.headline
        == "Nothing is claimed: cut and placebo can be compared in 9 questions, but 10 are needed."
    )
    assert few.rows == few.notes == ()


@pytest.mark.parametrize(
    ("changed", "how", "phrase"),
    [
        (
            {("auc", "none"): (0.55, 0.45, 0.65)},
            {},
            "at k* = 7 no signal of the probe was detected, AUC 0.55 [0.45, 0.65]",
        ),
        ({("auc", "none"): (NAN, NAN, NAN)}, {}, "lack true or false answers"),
        ({}, {"kind": "signed"}, "delta_kind='signed'"),
        ({}, {"placebos": False}, "no placebo was measured"),
        (dict.fromkeys((DELTA, FLIPS, DROP, CHANGE)), {}, "in 0 questions, but 10 are needed"),
    ],
)
def test_where_nothing_can_be_claimed_nothing_is(changed, how, phrase):
    findings = found(changed, **how)
    assert findings.statements == findings.rows == ()
    assert findings.headline.startswith("Nothing is claimed")
    assert phrase in findings.headline
    assert "nan" not in str(findings)


def test_the_models_own_word_has_no_row_specific_effect_and_no_k_star():
    beyond = {
        CHANGE: None,
        ("row_specific_effect", "random_tokens"): None,
        ("auc_beyond_text", "none"): (0.2, 0.1, 0.3),
    }
    findings = found(beyond, readout="p_true", pair=LEAK)
    assert findings.headline.startswith(
        "At layer 7 cutting exact_question has a larger effect than cutting other question tokens."
    )
    assert "row_specific_effect" not in str(findings)
    assert "k*" not in str(findings)
    assert "; P(True)'s AUC +0.20" in findings.warnings[0]


def test_text_that_tells_another_layer_and_another_source_are_named():
    """Of two classifiers of the text the stronger one alone."""
    assert found(text=LEAK).warnings == (
        "Beware: a classifier of the answer's text reaches AUC 0.66 [0.60, 0.71].",
    )
    (both,) = found(text=LEAK, pair={"auc": 0.8, "ci_low": 0.7, "ci_high": 0.9}).warnings
    assert "question and answer" in both
    assert found(k=0).headline.startswith(
        "At layer 7 (k* = 0 was not reached) cutting exact_question"
    )
    subject = found(anchor="subject").headline
    assert "cutting subject has a larger effect" in subject
    assert "exact_question" not in subject


def test_an_end_that_would_be_rounded_to_zero_gets_one_more_decimal():
    text = str(found({DROP: (-0.06, -0.12, -0.003), DELTA: (-1.0, -2.0, -0.04)}))
    assert "[-0.120, -0.003]" in text
    assert "[-2.00, -0.04]" in text


def test_small_words():
    assert format_ranges([0, 1, 2, 7]) == "0-2, 7"
    assert format_ranges([]) == ""
    assert join_with_and(["a"]) == "a"
    assert join_with_and(["a", "b", "c"]) == "a, b and c"
    assert align_columns([("a", "bb"), ("ccc", "d")]) == "  a    bb\n  ccc  d"
    assert LayerEstimate(-0.001, -0.1, 0.2, -1, 1, 5, 5).to_text() == "0.0 [-0.1, +0.2]"
    assert LayerEstimate(NAN, NAN, NAN, NAN, NAN, 0, 0).side() == 0


def test_an_estimate_that_a_file_lacks_is_named():
    facts = estimates_at(frame(FOUND), 7)
    assert facts.get(("other", "none")) is None
    with pytest.raises(RunError, match="damaged"):
        facts["other", "none"]


def sides(own, other, questions=60, seed=0):
    """Findings of arms with these changes of the log-odds, as a sweep makes them."""
    rng = np.random.default_rng(seed)
    label = np.tile([0.0, 1.0], questions)
    ids = np.repeat(np.arange(questions), 2)
    clean = (1.2 * (2 * label - 1) + rng.normal(size=2 * questions))[None]
    draws = Resamples.of(ids, n_resamples=400)
    before, after, control = (
        1 / (1 + np.exp(-one))
        for one in (clean, own(clean) + 0.02 * rng.normal(size=clean.shape), other(clean))
    )
    cut, placebo = Arm(before, after), Arm(before, control)
    estimates = {
        "delta_p_vs_placebo": delta_p_vs_placebo(cut, placebo, label, "confidence", draws),
        "flip_rate": flip_rate(cut, placebo, draws),
        "auc_drop": draws.aucs(after, label, minus=control),
    }
    frames = [
        quantity_frame([7], name, "random_tokens", one, rate=name == "flip_rate")
        for name, one in estimates.items()
    ]
    for arm, name, control_name in (
        (before, "auc", "none"),
        (after, "auc_after", "size_matched"),
        (control, "auc_after", "random_tokens"),
    ):
        frames.append(quantity_frame([7], name, control_name, draws.aucs(arm, label), auc=True))
    alone = effects_of_cut(cut, placebo, label, "confidence")
    record = {
        "config": {
            "readout": "probe",
            "placebos": True,
            "delta_kind": "confidence",
            "anchors": ["exact_question"],
        },
        "noise": {"floor": 1e-4},
        "probe": {
            "probe_layer": 7,
            "answer_text_auc": {"auc": 0.5, "ci_low": 0.44, "ci_high": 0.56},
        },
    }
    contrasts = pd.concat(frames, ignore_index=True)
    looks = Looks.of(estimates, STANDS, 7)
    effects = {name: {7: float(one[0])} for name, one in alone.items()}
    return knockout_findings(record, 7, contrasts, looks, effects=effects), contrasts


def test_a_cut_that_changes_nothing_has_no_effect_where_the_placebo_makes_the_probe_surer():
    """By the interval alone the contrast stands: the cut had "a larger effect" than the placebo."""
    findings, contrasts = sides(lambda z: z, lambda z: 1.5 * z)
    delta = findings.statements[0]
    fact = estimates_at(contrasts, 7)[DELTA]
    assert claim_status(fact, sign=-1) == "stands"  # the rule before
    assert delta.status == "null moves"
    assert delta not in findings.claims
    assert "has a larger effect" not in findings.headline
    assert (
        "by delta_p_vs_placebo the placebo moves: it accounts for most of the difference"
        in findings.headline
    )


def test_a_cut_that_makes_the_probe_surer_is_not_the_larger_effect_of_the_placebo():
    """The sentence before: "cutting other question tokens has the larger effect"."""
    findings, _ = sides(lambda z: 1.5 * z, lambda z: z)
    assert findings.statements[0].status == "reversed"
    assert "cutting other question tokens has the larger effect" not in findings.headline
    assert (
        "by delta_p_vs_placebo cutting exact_question acts in the opposite direction, and more"
        " strongly" in findings.headline
    )
    # Both lower the confidence, the placebo more.
    findings, _ = sides(lambda z: 0.9 * z, lambda z: 0.4 * z)
    assert findings.statements[0].status == "reversed"
    assert (
        "by delta_p_vs_placebo cutting other question tokens has the larger effect"
        in findings.headline
    )


def test_few_questions_are_told_under_claims_alone():
    """The sentence before stood under a contrast that was not detected, with one flip."""
    flipped = frame(FOUND | {FLIPS: (0.8, -1.0, 3.0)})
    flipped.loc[flipped["quantity"] == "flip_rate", "n_effective"] = 1.0
    statements = found({FLIPS: (0.8, -1.0, 3.0)}).statements
    assert statements[1].status == "not detected"
    assert concentration_of_claims(flipped, statements) == ""
    carried = concentration_of_claims(flipped, found().statements)
    assert carried.startswith("Few questions carry flip_rate (effective number 1.0 of 60)")


def test_the_unit_is_named_and_ten_to_nineteen_relations_name_no_layer():
    unit = "60 questions of 11 relations: whole relations are drawn."
    findings = found(n_clusters=11, unit=unit)
    assert findings.notes[0] == unit
    assert findings.notes[1] == "No layers are named: 20 relations are needed."
    assert [one.status for one in findings.statements[:3]] == ["stands"] * 3
    assert {one.n_clusters for one in findings.statements} == {11}
