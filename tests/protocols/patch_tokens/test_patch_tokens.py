"""Token patching: every input and every number again by other means, and what it refuses."""

import copy
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import anchorlens as al
from anchorlens.errors import EmptySweepError
from anchorlens.protocols.patch_tokens.findings import token_patch_findings
from anchorlens.protocols.patch_tokens.token_patches import Patcher
from anchorlens.protocols.probe_sweep.probe_passes import ProbeUnit
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import Answer, RowTokenizer, make_rows
from anchorlens.results.claims import Looks, level_of
from anchorlens.results.estimates import estimates_at
from anchorlens.results.findings import NOT_DETECTED, NULL_MOVES, REVERSED, STANDS, TOO_FEW
from tests.protocols.sweeps import OPTIONS, check_statements, inputs, own
from tests.recompute import ProbeRecompute


@pytest.fixture(scope="module")
def data():
    return al.load_qa("popqa-sample", limit=110)


@pytest.fixture(scope="module")
def fitted(tiny_model, data):
    """Every test row, read by probes of the sweep's own."""
    return al.patch_tokens_sweep(tiny_model("llama"), data, base="all", **OPTIONS)


@pytest.fixture(scope="module")
def sharp(fitted):
    """The same probes, a thousand times as sure: a random model's are all but constant."""
    probes = copy.deepcopy(fitted.probes)
    for probe in (probe for one in probes.splits for probe in one.probes.values()):
        probe.coef_, probe.intercept_ = 1000 * probe.coef_, 1000 * probe.intercept_
    return probes


@pytest.fixture(scope="module")
def sweep(tiny_model, data, sharp):
    return al.patch_tokens_sweep(tiny_model("llama"), data, probes=sharp, **OPTIONS)


@pytest.fixture(scope="module")
def everyone(tiny_model, data, sharp):
    return al.patch_tokens_sweep(tiny_model("llama"), data, base="all", probes=sharp, **OPTIONS)


@pytest.fixture(scope="module")
def cut(tiny_model, data, sharp):
    """A knockout of the same rows, read by the same probes."""
    return al.knockout_sweep(tiny_model("llama"), data, probes=sharp, placebos=False, **OPTIONS)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "atol"), [("sweep", 1e-3), ("fitted", 1e-5)]
)  # sharp probes multiply rounding by 1000
def test_delta_p_of_single_cells_from_the_files_alone(request, tiny_model, tmp_path, made, atol):
    result = request.getfixturevalue(made)
    again = ProbeRecompute(result.save(tmp_path / "run"), tiny_model("llama"))
    p = again.samples[again.samples["metric"] == "p"]
    assert set(p["control"]) == {"none", "random_tokens", "size_matched"}
    assert p["effect"].abs().median() > 1 or made == "fitted"  # not all but zero
    again.check(p.groupby("control").sample(3, random_state=1), atol)


@pytest.mark.slow
def test_what_is_replaced_and_by_what(tiny_model, sweep):
    """From the examples alone."""
    tokenizer, frame = tiny_model("llama").tokenizer, sweep.examples()
    frame = frame[frame["role"] != "dropped"].assign(
        positions=lambda f: f["positions"].map(json.loads)
    )
    donors, made = (
        frame[which].set_index("example_id")
        for which in (frame["role"] == "donor", frame["role"] != "donor")
    )
    pool = {row.token_ids[p] for row in donors.itertuples() for p in row.positions["question_rest"]}
    fewer = pairs = same = 0
    for example_id, base in made[made["role"] == "base"].iterrows():
        mine, clean = base["positions"], list(base["token_ids"])
        assert len(set(base["donor_ids"])) == len(base["donor_ids"]) <= 4
        for donor_id in base["donor_ids"]:
            pairs += 1
            whole, donor = made.loc[f"{example_id}~{donor_id}"], donors.loc[donor_id]
            theirs = donor["positions"]
            for role in ("subject", "property"):
                put = tokenizer.decode([whole["token_ids"][p] for p in mine[role]]).strip()
                assert (
                    put == tokenizer.decode([donor["token_ids"][p] for p in theirs[role]]).strip()
                )
            changed = {}
            for name in ("", "~random_tokens", "~size_matched"):
                key = f"{example_id}~{donor_id}{name}"
                if key in made.index:
                    row = made.loc[key]
                    differs = [
                        p
                        for p, (a, b) in enumerate(zip(clean, row["token_ids"], strict=True))
                        if a != b
                    ]
                    assert differs == row["positions"].pop("replaced")
                    assert row["positions"] == mine  # everything stays where it was
                    assert (row["answer"], row["label"]) == (base["answer"], base["label"])
                    changed[name] = set(differs)
            assert changed[""] <= set(mine["exact_question"])
            assert changed["~random_tokens"] <= set(mine["question_rest"]) - {0}
            if "~size_matched" in changed:
                fewer += 1
                assert changed["~size_matched"] < changed[""]
                assert len(changed["~size_matched"]) == len(changed["~random_tokens"])
                kept = made.loc[f"{example_id}~{donor_id}~size_matched", "token_ids"]
                assert all(kept[p] == whole["token_ids"][p] for p in changed["~size_matched"])
            else:
                assert len(changed[""]) == len(changed["~random_tokens"])
            rest = Counter(donor["token_ids"][p] for p in theirs["question_rest"])
            drawn = made.loc[f"{example_id}~{donor_id}~random_tokens", "token_ids"]
            put = Counter(drawn[p] for p in changed["~random_tokens"])
            same += not put - rest  # from the donor's own question where that has enough
            assert set(put) <= pool | set(rest) or put - rest
    assert pairs == sweep.record["counts"]["pairs"]
    assert fewer
    assert same > pairs / 2


def test_random_tokens_come_from_the_pool_where_the_donor_has_too_few(tiny_model, data):
    tokenizer = RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())
    rows = make_rows(data.examples, tokenizer).rows
    made = (
        Patcher(tokenizer, rows, rule="random", n_donors=4, seed=0)
        .patches(dict(enumerate(rows[:40])))
        .variants
    )
    outside = {row.ids[p] for row in rows for p in row.positions["question_rest"]}
    from_pool = 0
    for row, one in (
        (rows[test], one)
        for test, found in made.items()
        for one in found
        if "random_tokens" in one.controls
    ):
        put = [one.row.ids[p] for p in one.positions]
        assert set(put) <= outside
        assert all(new != row.ids[p] for new, p in zip(put, one.positions, strict=True))
        from_pool += bool(
            Counter(put) - Counter(one.donor.ids[p] for p in one.donor.positions["question_rest"])
        )
    assert from_pool


@pytest.mark.slow
def test_base_rows_are_true_and_predicted_true(sweep, everyone):
    base = sweep.examples().query("role == 'base'")
    assert set(base["label"]) == {0}
    at = sweep.samples().query(f"metric == 'p' and layer == {sweep.probe_layer}")
    assert at["value_before"].max() < 0.5
    # Every other true row with a donor was predicted false, and is listed.
    all_rows = own(everyone).query(
        f"layer == {sweep.probe_layer} and example_id.str.endswith('|true')"
    )
    true = all_rows.groupby("example_id")["value_before"].first()
    assert set(base["example_id"]) == set(true.index[true < 0.5])
    gone = sweep.examples().query("drop_reason == 'predicted_false'")
    assert set(gone["example_id"]) == set(true.index[true >= 0.5])
    assert sweep.dropped_counts["predicted_false"] == len(gone) > 0
    assert set(everyone.examples().query("role == 'base'")["label"]) == {0, 1}


@pytest.mark.slow
def test_rates_of_flips_and_the_gap_of_pathways_stand_among_the_contrasts(everyone):
    by = everyone.contrasts().set_index(["quantity", "control", "layer"])["value"]
    for layer in everyone.layers:
        rates = (
            by["flip_rate_patched", "size_matched", layer],
            by["flip_rate_random", "random_tokens", layer],
        )
        assert by["flip_rate", "random_tokens", layer] == pytest.approx(rates[0] - rates[1])
        curves = (
            everyone.curves(metric="p").query(f"layer == {layer}").set_index("pathway")["effect"]
        )
        assert by["gap", "none", layer] == pytest.approx(
            curves["Q-Anchored"] - curves["A-Anchored"]
        )
    assert set(by.index.get_level_values("quantity")) == {
        "delta_p_vs_placebo",
        "flip_rate",
        "flip_rate_patched",
        "flip_rate_random",
        "gap",
        "placebo_gap",
        "auc",
        "auc_after",
        "auc_beyond_text",
    }


@pytest.mark.slow
def test_auc_is_that_of_all_test_rows_where_the_measured_ones_are_all_true(cut, sweep):
    labels = cut.examples().query("role == 'base'").set_index("example_id")["label"].astype(float)
    auc = sweep.contrasts().query("quantity == 'auc'").set_index("layer")
    for layer in sweep.layers:
        p = (
            cut.samples()
            .query(f"control == 'none' and layer == {layer}")
            .set_index("example_id")["value_before"]
        )
        assert auc.loc[layer, "value"] == pytest.approx(roc_auc_score(labels[p.index], p), abs=5e-3)
        assert (auc.loc[layer, "control"], auc.loc[layer, "n"]) == (
            "none",
            cut.samples()["question_id"].nunique(),
        )
    curves = sweep.curves(controls=True)
    np.testing.assert_allclose(curves["auc"], auc.loc[curves["layer"], "value"])
    assert set(sweep.contrasts()["quantity"]) & {"auc_after"} == set()


@pytest.mark.slow
def test_summary_and_words_speak_of_k_star(everyone):
    summary, contrasts = everyone.summary().iloc[0], everyone.contrasts()
    assert summary["layer"] == everyone.probe_layer
    fact = contrasts.query(
        f"quantity == 'delta_p_vs_placebo' and layer == {everyone.probe_layer}"
    ).iloc[0]
    assert (
        summary[
            ["delta_p_vs_placebo", "delta_p_vs_placebo_low", "delta_p_vs_placebo_high"]
        ].tolist()
        == fact[["value", "ci_low", "ci_high"]].tolist()
    )
    flips = everyone.curves(metric="flip", controls=True).query(f"layer == {everyone.probe_layer}")
    flips = flips.set_index(["control", "pathway"])
    assert summary["flips_q_random_tokens"] == flips.loc[("random_tokens", "Q-Anchored"), "effect"]
    assert summary["flips_all"] == flips.loc[("none", "All"), "effect"]
    assert "Few" not in everyone.verdict
    title, table = everyone.protocol.table([everyone, everyone])
    assert "patch / control" in title
    assert len(table) == 2
    assert table["ΔP"].iloc[0] == f"{summary['all']:+.1f} / {summary['all_random_tokens']:+.1f}"


@pytest.mark.slow
def test_p_values_use_one_donor_of_each_row_and_the_contrast_all(everyone):
    """Values of the first donor that has patch and control; its arms have one shape."""
    layer = everyone.layers[0]
    samples = everyone.samples(metric="p", all_columns=True)
    here = samples[samples["layer"] == layer]
    effect = here.set_index(["control", "example_id", "donor_id"])["effect"].to_dict()
    expected = {}
    for control, example_id, donor_id in effect:
        other = effect.get(("random_tokens", example_id, donor_id))
        if control == "size_matched" and other is not None and example_id not in expected:
            expected[example_id] = effect[control, example_id, donor_id] - other
    found = everyone.differences_of_one_donor("size_matched", "random_tokens")[:, 0]
    own = dict(zip(everyone.example_ids, found, strict=True))
    assert expected
    for example_id, value in expected.items():
        assert own[example_id] == pytest.approx(value)
    contrasts = everyone.contrasts(all_columns=True).query("quantity == 'delta_p_vs_placebo'")
    assert contrasts["p"].notna().all()


@pytest.mark.slow
def test_fewer_donors_are_the_first_ones(tiny_model, data, everyone):
    options = {
        "n_donors": 2,
        "base": "all",
        "layers": [0],
        "n_spot_checks": 0,
        "probes": everyone.probes.at([0]),
        **OPTIONS,
    }
    other = al.patch_tokens_sweep(tiny_model("llama"), data, **options)
    ours, theirs = (inputs(one, "base")["donor_ids"] for one in (everyone, other))
    assert set(ours.index) & set(theirs.index)
    for example_id in set(ours.index) & set(theirs.index):
        assert list(theirs[example_id]) == list(ours[example_id])[:2]


def test_cells_split_in_halves_down_to_one_variant():
    unit = ProbeUnit(((0, 0), (0, 1), (2, 0)), (0, 1), work=6.0)
    assert unit.tests == (0, 2)
    first, second = unit.split()
    assert first.cells + second.cells == unit.cells
    assert (first.work + second.work, first.layers) == (6.0, (0, 1))
    assert min(first, second, key=lambda part: len(part.cells)).split() == ()


@pytest.mark.slow
def test_without_a_donor_or_a_true_row_it_stops(tiny_model, data, sharp):
    with pytest.raises(EmptySweepError, match="No row of popqa-sample has a donor"):
        al.patch_tokens_sweep(tiny_model("llama"), data, donors=lambda base, pool: (), **OPTIONS)
    never = copy.deepcopy(sharp)
    for probe in (probe for one in never.splits for probe in one.probes.values()):
        probe.coef_, probe.intercept_ = 0 * probe.coef_, probe.intercept_ * 0 + 5
    with pytest.raises(EmptySweepError, match=r"predicts none of \d+ true test rows true"):
        al.patch_tokens_sweep(tiny_model("llama"), data, probes=never, **OPTIONS)


def test_a_donor_for_whose_question_the_answer_is_right_is_left_out(tiny_model, data):
    tokenizer = RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())
    rows = make_rows(data.examples, tokenizer).rows
    patcher = Patcher(tokenizer, rows, rule="random", n_donors=50, seed=0)
    refused = 0
    for base in rows[:60]:
        donor, *_ = [one.donor for one in patcher.patches({0: base}).variants.get(0, ())] or [None]
        if donor is not None and len(donor.example.answers) > 1:
            # The false answer is another alias of the donor's: after its question it would be a
            # true one.
            false = tokenizer.row(
                base.example, Answer.gold(donor.example.answers[1]), f"{base.id}|false"
            )
            found = patcher.patches({0: false})
            assert donor.id not in {one.donor.id for one in found.variants.get(0, ())}
            refused += found.failed.get("same_answer", 0)
    assert refused


def found(
    auc=0.8,
    low=0.7,
    delta=(-12.0, -16.0, -8.0),
    flips=(5.0, -2.0, 12.0),
    n=40,
    n_a=10,
    base="all",
    leak=0.45,
    wider=0.0,
    effects=None,
):
    """The findings of a sweep with these numbers at its layer."""
    summary = {"layer": 3, "q": -20.0, "n_q": 30, "a": -4.0, "n_a": n_a}
    facts = [
        ("auc", "none", auc, low, 0.9, n),
        ("delta_p_vs_placebo", "random_tokens", *delta, n),
        ("flip_rate", "random_tokens", *flips, n),
        ("flip_rate_patched", "size_matched", 30.0, 20.0, 40.0, n),
        ("flip_rate_random", "random_tokens", 25.0, 20.0, 30.0, n),
    ]
    columns = ["quantity", "control", "value", "ci_low", "ci_high", "n"]
    contrasts = pd.DataFrame(facts, columns=columns).assign(
        layer=3, sim_low=np.nan, sim_high=np.nan, n_clusters=n, n_effective=float(n)
    )
    record = {
        "config": {"base": base, "placebos": True},
        "probe": {
            "probe_layer": 3,
            "answer_text_auc": {"auc": 0.6, "ci_low": leak, "ci_high": 0.7},
        },
    }
    strict = contrasts.assign(
        ci_low=contrasts["ci_low"] - wider, ci_high=contrasts["ci_high"] + wider
    )
    own = {"delta_p_vs_placebo": delta[0], "flip_rate": flips[0]} | (effects or {})
    looks = Looks(level_of(2), estimates_at(strict, 3), {})
    return token_patch_findings(record, summary, contrasts, looks, effects=own)


@pytest.mark.parametrize(
    ("given", "status", "phrases"),
    [
        (
            {},
            (STANDS, NOT_DETECTED),
            (
                (
                    "tokens by delta_p_vs_placebo, not shown by flip_rate (40 questions, true and false"
                    " answers)."
                ),
            ),
        ),
        (
            {"delta": (-1.0, -4.0, 2.0)},
            (NOT_DETECTED, NOT_DETECTED),
            ("no larger effect of", "[-4.0, +2.0]", "compatible"),
        ),
        (
            {"delta": (6.0, 2.0, 10.0)},
            (REVERSED, NOT_DETECTED),
            (
                "no larger effect of replacing exact_question",
                "by delta_p_vs_placebo replacing exact_question acts in the opposite direction,",
            ),
        ),
        (
            {"delta": (6.0, 2.0, 10.0), "effects": {"delta_p_vs_placebo": -1.0}},
            (REVERSED, NOT_DETECTED),
            ("by delta_p_vs_placebo replacing as many other question tokens has the larger",),
        ),
        (
            {"effects": {"delta_p_vs_placebo": -2.0}},
            (NULL_MOVES, NOT_DETECTED),
            (
                "no larger effect of replacing exact_question",
                "by delta_p_vs_placebo the placebo moves",
            ),
        ),
        (
            {"flips": (5.0, 1.0, 9.0)},
            (STANDS, STANDS),
            ("has a larger effect than replacing as many other question tokens (40",),
        ),
        (
            {"wider": 9.0},
            (NOT_DETECTED, NOT_DETECTED),
            ("97.5 % interval", "no larger effect of replacing"),
        ),
        ({"wider": 9.0, "flips": (5.0, 1.0, 9.0)}, (STANDS, STANDS), ("95 % interval",)),
        ({"base": "true_predicted_true"}, (STANDS, NOT_DETECTED), ("true answers predicted true",)),
        (
            {"leak": 0.55},
            (STANDS, NOT_DETECTED),
            ("Beware: a classifier of the answer's text reaches AUC 0.60 [0.55, 0.70].",),
        ),
    ],
)
def test_findings_claim_what_stands_and_no_more(given, status, phrases):
    findings = found(**given)
    assert [one.quantity for one in findings.statements] == ["delta_p_vs_placebo", "flip_rate"]
    assert tuple(one.status for one in findings.statements) == status
    assert {(one.layers, one.control, one.n) for one in findings.statements} == {
        ((3,), "random_tokens", 40)
    }
    if "wider" not in given:
        assert [(one.value, one.low, one.high) for one in findings.statements] == [
            given.get("delta", (-12.0, -16.0, -8.0)),
            given.get("flips", (5.0, -2.0, 12.0)),
        ]
    assert all(phrase in str(findings) for phrase in phrases)
    assert "Q-Anchored -20.0 (30), A-Anchored -4.0 (10)" in str(findings)
    assert len(str(findings).split()) <= 100


def test_a_pathway_of_few_questions_is_left_out_and_without_signal_or_questions_nothing_is_claimed():
    assert "A-Anchored" not in str(found(n_a=9))
    silent, few = found(low=0.5), found(n=9)
    assert silent.statements == ()
    assert "at k* = 3 no signal of the probe" in str(silent)
    assert {one.status for one in few.statements} == {TOO_FEW}
    assert "in 9 questions, but 10" in str(few)


@pytest.mark.slow
def test_findings_of_a_sweep_are_its_contrasts(everyone):
    sure = replace(everyone, record=everyone.record, _memo={})
    contrasts = everyone.contrasts()
    lifted = contrasts["quantity"].eq("auc")
    contrasts.loc[lifted, ["value", "ci_low", "ci_high"]] = (
        0.8,
        0.7,
        0.9,
    )  # a random model's probe shows no signal
    sure._memo["contrasts"] = contrasts
    findings = check_statements(sure)
    assert [one.quantity for one in findings.statements] == ["delta_p_vs_placebo", "flip_rate"]


@pytest.mark.slow
def test_a_model_that_knows_the_answers_is_told_from_its_control(smollm2):
    """A real effect: the subject's name takes a true answer's truth away, other tokens do not."""
    data = al.load_qa("triviaqa-sample", limit=110)
    result = al.patch_tokens_sweep(smollm2, data, layers="16-28:4", n_splits=1, progress=False)
    summary = result.summary().iloc[0]
    assert summary["n_all"] >= 30
    assert summary["delta_p_vs_placebo_high"] < -20
    assert summary["flip_rate_low"] > 20
    assert check_statements(result).statements[0].status == STANDS
