"""Curves, contrasts, findings and grids of patch sweeps on constructed effects."""

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.export import caption_of
from anchorlens.protocols.patch.standing_cells import cell_status, find_standing_cells
from anchorlens.protocols.registry import analysis_of
from anchorlens.results.estimates import LayerEstimate
from anchorlens.results.findings import DESCRIPTION, NOT_DETECTED, NULL_MOVES, STANDS, TOO_FEW
from anchorlens.runs.schema import SAMPLE_COLUMNS, SLOT_TYPES
from tests.protocols.sweeps import check_statements

SIMULATION = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "null_rates_patch.py"))
CONTROLS = ("none", "other_pair", "norm_matched")


def standing_cells(result):
    return find_standing_cells(
        result.contrasts(all_columns=True), result.noise_floor, result.controls
    )


def made(
    effects,
    *,
    lengths=None,
    groups=None,
    fixed=(),
    total=4.0,
    direction="denoising",
    n_resamples=300,
):
    """Make a result from effects [control pair layer place]; the clean metric is ``total`` above
    the corrupted one.
    """
    n_controls, n_pairs, n_layers, n_places = effects.shape
    names = [f"p{i:03d}" for i in range(n_pairs)]
    lengths = lengths or [n_places] * n_pairs
    index = pd.MultiIndex.from_product(
        [CONTROLS[:n_controls], names, range(n_layers), range(n_places)],
        names=["control", "example_id", "layer", "position"],
    )
    own = index.to_frame(index=False).assign(effect=effects.ravel())
    own = own[own["position"] < own["example_id"].map(dict(zip(names, lengths, strict=True)))]
    before = 1.0 if direction == "denoising" else 1.0 + total
    same = {
        "model": "none",
        "dataset": "pairs",
        "protocol": "patch",
        "delta_kind": "difference",
        "donor_id": "d",
        "metric": "logit_diff",
        "unit": "logit",
        "value_before": before,
        "seed": 0,
        "n_patched": 1,
        "window": 1,
        "head": pd.NA,
        "direction": direction,
        "site": "resid_pre",
    }
    group = dict(zip(names, groups or names, strict=True))
    own = own.assign(
        question_id=own["example_id"].map(group),
        anchor="pos:" + own["position"].astype(str),
        value_after=before + own["effect"],
        by_construction=[cell in fixed for cell in zip(own["layer"], own["position"], strict=True)],
        **same,
    )
    samples = own.assign(
        **{name: None for name in SAMPLE_COLUMNS if name not in own.columns}
    ).astype(SLOT_TYPES)
    rows = []
    for name, length in zip(names, lengths, strict=True):
        where = {
            "last": [length - 1],
            "paired": list(range(length)),
            **{f"pos:{p}": [p] for p in range(length)},
        }
        tokens = {
            "base": [f"c{p}" for p in range(length)],
            "donor": [f"{name if p == 1 else 't'}{p}" for p in range(length)],
        }
        rows += [
            {
                "role": role,
                "example_id": name + ("|clean" if role == "donor" else ""),
                "question_id": group[name],
                "question": name,
                "answer": "a",
                "positions": json.dumps(where),
                "tokens": tokens[role],
                "donor_ids": [f"{name}|clean"],
                "dataset": "pairs",
                "drop_reason": "",
                "drop_detail": "",
            }
            for role in ("base", "donor")
        ]
    source = before + total if direction == "denoising" else before - total
    config = {
        "anchors": [f"pos:{p}" for p in range(n_places)],
        "layers": list(range(n_layers)),
        "by": "position",
        "site": "resid_pre",
        "metric": "logit_diff",
        "direction": direction,
        "controls": list(CONTROLS[1:n_controls]) or "none",
        "window": 1,
        "n_resamples": n_resamples,
        "seed": 0,
    }
    record = {
        "config": config,
        "noise": {"floor": 1e-4},
        "model": {"name": "none"},
        "data": {"name": "pairs"},
        "counts": {},
        "pairs": {
            name: {"answer_ids": [1], "wrong_ids": [2], "source_value": source} for name in names
        },
    }
    analysis = analysis_of("patch")
    return analysis.result.make(analysis, samples, pd.DataFrame(rows), record, "simulated")


def world(kind, pairs, seed=0, layers=4, places=5, block=(slice(1, 3), slice(2, 3)), size=3.0):
    """Effects [control pair layer place] with a block of cells that stand, or in which a control
    moves alike.
    """
    rng = np.random.default_rng(seed)
    z = 0.5 * rng.normal(size=(3, pairs, layers, places))
    z[(0, slice(None), *block)] += size
    if kind == "control moves":
        z[(1, slice(None), *block)] += size
    return z


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_cells_with_an_effect_beyond_both_controls_stand(direction):
    effects = world("effect", 30) * (1 if direction == "denoising" else -1)
    result = made(effects, direction=direction)
    assert standing_cells(result) == {("pos:2", 1), ("pos:2", 2)}
    findings = check_statements(result)
    (one,) = findings.statements
    assert (one.status, one.anchor, one.layers, one.n) == (STANDS, "pos:2", (1, 2), 30)
    share = abs(one.value) / 4 if direction == "denoising" else 1 - abs(one.value) / 4
    assert f"recovered share {share:.2f}" in findings.headline
    grid = result.grid()
    assert grid.stands.tolist() == [
        [False] * 5,
        *[[False, False, True, False, False]] * 2,
        [False] * 5,
    ]
    np.testing.assert_allclose(grid.values, effects[0].mean(0))
    np.testing.assert_allclose(
        result.grid(quantity="recovered_share").values,
        effects[0].mean(0) / 4 + (direction == "noising"),
    )
    np.testing.assert_allclose(result.effects.numpy(), effects[0])


@pytest.mark.parametrize("opposite", [False, True])
def test_layers_share_a_statement_only_if_their_effects_have_one_sign(opposite):
    effects = world("effect", 30)
    effects[0, :, 2] *= -1 if opposite else 1
    statements = made(effects).findings.statements
    assert sorted(one.layers for one in statements) == ([(1,), (2,)] if opposite else [(1, 2)])


def test_heads_of_one_number_in_several_layers_are_different_heads():
    result = made(world("effect", 30))
    result.record["config"]["by"] = "head"
    assert sorted(one.layers for one in result.findings.statements) == [(1,), (2,)]


@pytest.mark.slow
def test_the_largest_effect_is_named_where_it_does_not_stand():
    """The verdict named head 4 with -2.01 as the largest, beside head 0 with +2.57."""
    effects = world("effect", 30)
    assert "Largest: " in made(effects).verdict
    effects[:2, :, 3, 4] += 6.0  # a control moves alike
    result = made(effects)
    assert standing_cells(result) == {("pos:2", 1), ("pos:2", 2)}
    (first, *_) = result.verdict.splitlines()
    assert "Largest that stands: +3." in first
    assert "The largest effect, +6." in first
    assert first.endswith(" logits at pos:4, layer 3, does not stand.")


@pytest.mark.parametrize(
    ("effects", "status", "phrase"),
    [
        (
            world("control moves", 30),
            NOT_DETECTED,
            "No cell stands against other_pair and norm_matched.",
        ),
        (world("effect", 30)[:1], DESCRIPTION, "No control was measured, so nothing is claimed."),
        (
            world("effect", 9),
            DESCRIPTION,
            "Fewer than 10 groups of pairs show values without bands: nothing is claimed.",
        ),
        (
            world("effect", 1),
            DESCRIPTION,
            "A single pair shows values without bands: nothing is claimed.",
        ),
    ],
)
def test_nothing_is_claimed_without_controls_or_groups_or_where_a_control_moves_alike(
    effects, status, phrase
):
    result = made(effects)
    assert not standing_cells(result) and not result.findings.claims
    assert [one.status for one in result.findings.statements] == [status]
    assert phrase in result.verdict
    few = effects.shape[1] < 10
    assert result.curves()["ci_low"].isna().all() == few
    assert result.contrasts()["sim_low"].isna().all() == few


@pytest.mark.slow
def test_groups_count_not_pairs():
    effects = world("effect", 30)
    assert not made(effects, groups=[f"g{i % 9}" for i in range(30)]).findings.claims
    assert made(effects, groups=[f"g{i % 15}" for i in range(30)]).findings.claims


def test_a_difference_that_a_control_makes_is_no_claim():
    def fact(value, width=0.5, n=30):
        ends = (value - width, value + width)
        return LayerEstimate(value, *ends, *ends, n, n)

    assert cell_status(fact(2.0), {"a": fact(1.9), "b": fact(2.2)}, 0.0) == STANDS
    assert cell_status(fact(2.0), {"a": fact(1.9), "b": fact(0.3)}, 0.0) == NOT_DETECTED
    assert cell_status(fact(2.0), {"a": fact(1.9), "b": fact(-2.2)}, 0.0) == NOT_DETECTED
    assert cell_status(fact(1.0), {"a": fact(4.0)}, 0.0) == NULL_MOVES
    assert cell_status(fact(0.4), {"a": fact(2.0)}, 0.0) == NOT_DETECTED
    assert cell_status(fact(2.0, n=9), {"a": fact(2.0)}, 0.0) == TOO_FEW
    assert cell_status(fact(2.0), {"a": fact(2.0)}, 3.0) == NOT_DETECTED


@pytest.mark.slow
def test_cells_by_construction_are_never_claimed_and_do_not_widen_the_band():
    effects = world("effect", 30)
    fixed = {(layer, place) for layer in range(4) for place in (0, 1, 3, 4)} | {(1, 2)}
    some, every = made(effects, fixed=fixed), made(effects)
    assert standing_cells(some) == {("pos:2", 2)}
    assert "Not tested: 17 of 20 cells" in some.verdict
    widths = [
        float((row["sim_high"] - row["sim_low"]).iloc[0])
        for row in (one.curves().query("anchor == 'pos:2' and layer == 2") for one in (some, every))
    ]
    assert widths[0] < widths[1]


@pytest.mark.slow
def test_the_findings_follow_the_rule_whose_null_rates_are_simulated():
    for name, pairs in (("block", 40), ("mixed", 20), ("sparse", 20)):
        effects = SIMULATION["draw"](name, pairs, 1)
        result = made(effects, n_resamples=200)
        found = SIMULATION["claimed"](effects, n_resamples=200)
        assert standing_cells(result) == {
            (f"pos:{place}", layer) for layer, place in np.argwhere(found).tolist()
        }
        assert found.any() == (name == "block")


def test_null_worlds_from_measured_effects():
    """Labels: each group keeps its three grids, in any order.

    Signs: each keeps its sizes. Claims are found in neither.
    """
    measured = world("effect", 30).reshape(3, 30, 1, -1)
    measured[..., 0] = np.arange(1, 31)[:, None]  # the first cell tells the group
    labels, signs, same = (
        SIMULATION["draw_measured"](name, measured, 12, 0) for name in SIMULATION["MEASURED"]
    )
    for drawn in (labels, signs, same):
        assert drawn.shape == (3, 12, 1, 20)
        for i in range(12):
            grids, group = np.abs(drawn[:, i, 0]), int(abs(drawn[0, i, 0, 0])) - 1
            assert sorted(map(tuple, grids)) == sorted(map(tuple, np.abs(measured[:, group, 0])))
    assert {int(one.argmax()) for one in labels[:, :, 0, 7].T} == {
        0,
        1,
        2,
    }  # the cell with the effect, now under any label
    assert (same[..., 0] > 0).all() and set(np.sign(signs[0, :, 0, 0])) == {-1, 1}
    measured = world("effect", 30).reshape(3, 30, 1, -1)
    rates = {
        name: SIMULATION["measured_rates"](name, measured, 20, 5, n_resamples=200)
        for name in SIMULATION["MEASURED"]
    }
    assert rates["as measured"][0] == 1 and rates["as measured"][2] == 0
    assert rates["labels exchanged"][2] == rates["signs drawn"][2] == 0


def test_measured_effects_are_those_of_the_findings():
    """Means of each group, without cells that follow by construction; the same cells stand."""
    effects = world("effect", 40)
    effects[:, :, 0, 0] = 9
    result = made(effects, groups=[f"g{i // 2:02d}" for i in range(40)], fixed=((0, 0), (3, 4)))
    measured = SIMULATION["measured_effects"](result.statistics)
    by_group = effects.reshape(3, 20, 2, 20).mean(2)
    np.testing.assert_allclose(np.sort(measured[:, :, 0]), np.sort(by_group[..., 1:-1]), rtol=1e-6)
    assert (
        SIMULATION["claimed"](measured, n_resamples=300).sum() == len(standing_cells(result)) == 2
    )


def test_pairs_of_different_length_have_no_mean_by_position():
    result = made(world("effect", 12), lengths=[5] * 11 + [4])
    assert result.curves().empty and result.contrasts().empty and not result.findings.statements
    assert (
        "different numbers of positions (4 to 5), so no mean at a position is shown. Use"
        " by='segment'" in result.verdict
    )
    with pytest.raises(InputError, match="pair='mean': the pairs have different"):
        result.grid()
    assert (
        np.isnan(result.grid("p011").values[:, 4]).all()
        and not np.isnan(result.grid("p011").values[:, :4]).any()
    )
    assert result.effects.isnan().sum() == 4
    assert "different numbers" in repr(result)


def test_shares_are_unreliable_where_both_runs_are_alike():
    effects = world("effect", 12)
    result = made(effects)
    assert result.share_note() == "" and result.grid("p003", "recovered_share").note == ""
    alike = made(effects, total=0.0)
    assert "recovered shares are unreliable" in alike.verdict
    assert "differ by" in alike.grid(quantity="recovered_share").note


def test_a_grid_names_the_tokens_of_both_prompts():
    result = made(world("effect", 12))
    one, mean = result.grid(3), result.grid()
    assert one.pair == "p003" and mean.pair == "mean" and mean.n == 12
    assert one.clean_tokens == ("t0", "p0031", "t2", "t3", "t4")
    assert mean.clean_tokens == ("t0", "*", "t2", "t3", "t4")
    assert mean.corrupted_tokens == one.corrupted_tokens == ("c0", "c1", "c2", "c3", "c4")
    assert one.places == mean.places == tuple(f"pos:{p}" for p in range(5)) and one.layers == (
        0,
        1,
        2,
        3,
    )
    for wrong in ({"quantity": "delta"}, {"control": "displaced"}, {"pair": "p999"}):
        with pytest.raises(InputError):
            result.grid(**wrong)


def test_labelled_arrays_have_the_places_as_an_axis():
    xarray = pytest.importorskip("xarray")
    effects = world("effect", 12)
    array = made(effects).to_xarray()
    assert isinstance(array, xarray.DataArray) and array.dims == ("pair", "layer", "position")
    assert float(array.sel(pair="p004", layer=2, position=3)) == effects[0, 4, 2, 3]
    np.testing.assert_allclose(array.mean("pair"), effects[0].mean(0))
    assert array.attrs["metric"] == "logit_diff" and array.attrs["units"] == "logit"
    np.testing.assert_allclose(made(effects).to_xarray(control="other_pair"), effects[1])
    np.testing.assert_allclose(made(effects).to_xarray("recovered_share"), effects[0] / 4)


@pytest.mark.slow
def test_texts_name_the_metric_and_its_unit_and_speak_of_pairs():
    result = made(world("effect", 30))
    figure = plot_curves(result)
    hovers = [text for trace in figure.data for text in trace.text or ()]
    texts = [
        repr(result),
        result._repr_html_(),
        figure.layout.title.text,
        caption_of(figure),
        *hovers,
    ]
    assert "effects on logit_diff in logits [pair 30, layer 4, position 5]" in texts[0]
    assert "n = 30, Δ logit_diff in logits" in texts[1]
    assert "<b>Δ logit_diff by layer: activation patching</b>" in texts[2]
    assert "30 groups of pairs; logit_diff before " in texts[3]
    assert "<br>logit_diff before " in hovers[0]
    wrong = re.compile(r"ΔP|\bP\b|delta_p|question|donor")
    assert [found for text in texts for found in wrong.findall(text)] == []


@pytest.mark.parametrize(("sign", "verb"), [(1, "raises"), (-1, "lowers")])
def test_the_headline_says_whether_the_metric_rises_and_how_sure_the_share_is(sign, verb):
    """The sentence before: "changes logit_diff", "recovered share 0.75" without an interval."""
    result = made(sign * world("effect", 30), total=4.0 * sign)
    headline = result.findings.headline
    assert (
        f"2 of 20 cells stand: patching pos:2 (layers 1-2) {verb} logit_diff more than" in headline
    )
    share = result.contrasts().query("quantity == 'recovered_share' and anchor == 'pos:2'")
    low, high = share.loc[
        share["layer"] == result.findings.statements[0].layers[0], ["ci_low", "ci_high"]
    ].iloc[0]
    assert re.search(r"recovered share 0\.\d\d \[0\.\d\d, 0\.\d\d\] there\.", headline)
    assert 0 < low < high < 1


def test_effects_of_both_signs_are_told_apart():
    effects = world("effect", 30)
    effects[0, :, 2] *= -1
    headline = made(effects).findings.headline
    assert (
        "patching pos:2 (layer 1) raises logit_diff and patching pos:2 (layer 2) lowers logit_diff,"
        " each more than another pair's activations" in headline
    )


@pytest.mark.slow
def test_ten_to_nineteen_groups_name_no_cell():
    some = made(world("effect", 15))
    (one,) = some.findings.claims
    assert (one.status, one.layers, one.anchor, one.n) == (STANDS, (), "", 15)
    assert one.p is not None and one.p <= 0.05
    assert some.findings.headline == (
        "At some cells patching raises logit_diff more than another pair's activations and a change"
        " of the same norm and angle in another direction. Cells are named from 20 groups of pairs"
        " on; here are 15."
    )
    assert not some.grid().stands.any()
    assert made(world("effect", 20)).grid().stands.any()


@pytest.mark.slow
def test_templates_are_drawn_and_named():
    def by_template(n):
        result = made(world("effect", 40))
        names = {f"p{i:03d}": f"t{i % n}" for i in range(40)}
        result._samples["cluster"] = result._samples["question_id"].map(names)
        return result

    few, some, many = (by_template(n) for n in (4, 12, 20))
    assert "40 groups of pairs of 4 templates: groups of pairs are drawn" in few.verdict
    assert "Nothing is said beyond these templates" in few.verdict
    assert set(some.contrasts()["n_clusters"]) == {12}
    assert "Cells are named from 20 templates on; here are 12." in some.verdict
    assert "40 groups of pairs of 12 templates: whole templates are drawn" in some.verdict
    assert "Intraclass correlation of effect minus other_pair" in some.verdict
    assert many.findings.statements[0].layers == (1, 2)


@pytest.mark.slow
def test_p_values_are_those_of_the_control_that_is_exceeded_least_and_claim_nothing_alone():
    result = made(world("effect", 30))
    contrasts = result.contrasts(all_columns=True)
    assert contrasts.loc[contrasts["quantity"] != "effect_minus_control", "p"].isna().all()
    own = contrasts[contrasts["quantity"] == "effect_minus_control"].set_index(["anchor", "layer"])
    (one,) = result.findings.statements
    largest = own.groupby(level=[0, 1])["p"].max()
    assert one.p == largest.loc[[("pos:2", 1), ("pos:2", 2)]].min() <= 0.05
    moves = made(world("effect", 30) - 0.0)
    moves._samples.loc[moves._samples["control"] == "none", "effect"] = 0.05
    assert not moves.findings.claims
    fixed = made(world("effect", 30), fixed={(1, 2)})
    cells = fixed.contrasts(all_columns=True).query("anchor == 'pos:2' and layer == 1")
    assert cells["p"].isna().all()


def test_few_pairs_are_told_under_claims_alone():
    effects = 0.01 * world("noise", 30, size=0.0)
    effects[0, 3, 1, 2] = 5.0
    none = made(effects)
    assert not none.findings.claims
    assert "Few groups of pairs" not in none.verdict


def test_the_other_pair_of_a_control_joins_no_groups():
    """Pair 2k lends its source to pair 2k + 1: 15 components of 30 pairs."""
    result = made(world("effect", 30))
    own = result._samples["example_id"].str[1:].astype(int)
    is_control = result._samples["control"] == "other_pair"
    result._samples["donor_id"] = (own - own % 2 * is_control).astype(str)
    assert set(result.contrasts()["n_clusters"]) == {30}
    assert result.findings.statements[0].layers == (1, 2)


@pytest.mark.parametrize(
    ("n_pairs", "n_partners", "is_told"),
    [(30, 9, True), (30, 10, False), (30, 30, False), (10, 9, True), (9, 2, False)],
)
def test_the_other_pairs_are_few_below_ten(n_pairs, n_partners, is_told):
    """Fewer than ten pairs claim nothing, so nothing needs to be said of their control."""
    result = made(world("effect", n_pairs))
    own = result._samples["example_id"].str[1:].astype(int)
    is_control = result._samples["control"] == "other_pair"
    result._samples.loc[is_control, "donor_id"] = (own % n_partners).astype(str)
    said = f"Only {n_partners} pairs serve as other_pair of all {n_pairs}: "
    assert (said in result.verdict) == is_told
    assert ("serve as other_pair" in result.verdict) == is_told


@pytest.mark.parametrize(
    ("n_pairs", "counts", "said"),
    [
        (24, {"different_sources": 1}, "All pairs have the same clean prompt"),
        (24, {"different_targets": 1}, "All pairs have the same corrupted prompt"),
        (24, {"different_sources": 12}, "The pairs have only 12 different clean prompts"),
        (24, {"different_sources": 24, "different_targets": 24}, ""),
        (60, {"different_sources": 30}, ""),
        (9, {"different_sources": 1}, ""),  # nothing is claimed
        (
            28,
            {"different_sources": 2, "different_targets": 14},
            "The pairs have only 2 different clean and 14 different corrupted prompts",
        ),
        (
            28,
            {"different_sources": 14, "different_targets": 2},
            "The pairs have only 2 different corrupted and 14 different clean prompts",
        ),
        (
            28,
            {"different_sources": 2, "different_targets": 28},
            "The pairs have only 2 different clean prompts",
        ),
    ],
)
def test_pairs_that_share_prompts_are_noted(n_pairs, counts, said):
    result = made(world("effect", n_pairs))
    result.record["counts"].update(counts)
    noted = [note for note in result.findings.notes if " prompt" in note]
    assert len(noted) == bool(said)
    assert all(note.startswith(said) for note in noted)


def test_the_prompts_of_noising_are_those_of_the_other_run():
    result = made(world("effect", 28), direction="noising", total=-4.0)
    result.record["counts"].update({"different_sources": 2, "different_targets": 14})
    assert "only 2 different corrupted and 14 different clean prompts" in result.verdict


@pytest.mark.parametrize(
    ("n_answers", "options", "said"),
    [
        (2, {}, "The pairs have only 2 different pairs of answer and wrong answer: "),
        (19, {}, "The pairs have only 19 different pairs of answer and wrong answer: "),
        (20, {}, ""),
        (2, {"wrong": False}, "The pairs have only 2 different answers: "),
        (1, {}, "All pairs have the same answer and wrong answer: "),
        (1, {"wrong": False}, "All pairs have the same answer: "),
        (1, {"answers": False}, ""),
        (2, {"templates": 2}, ""),
        (2, {"templates": 1}, "The pairs have only 2 different pairs of answer and wrong answer: "),
        (12, {"groups": 12}, ""),
        (2, {"noise": True}, ""),  # nothing is claimed
        (2, {"counts": {"different_sources": 2}}, ""),  # the note on prompts says it
    ],
)
def test_pairs_that_share_answers_are_noted_where_nothing_joins_them(n_answers, options, said):
    """Near copies: 24 pairs of 2 facts with a number in front are 2 observations."""
    n = 24
    groups = [f"g{i % options['groups']}" for i in range(n)] if "groups" in options else None
    effects = 0.01 * world("noise", n, size=0.0) if "noise" in options else world("effect", n)
    result = made(effects, groups=groups)
    result.record["counts"].update(options.get("counts", {}))
    answers = [[10 + i % n_answers] if options.get("answers", True) else [] for i in range(n)]
    wrong = [[50 + i % n_answers] if options.get("wrong", True) else [] for i in range(n)]
    for i, name in enumerate(result.example_ids):
        own = {"answer_ids": answers[i], "wrong_ids": wrong[i]}
        result.record.setdefault("pairs", {}).setdefault(name, {}).update(own)
    if "templates" in options:
        names = {f"p{i:03d}": f"t{i % options['templates']}" for i in range(n)}
        result._samples["cluster"] = result._samples["question_id"].map(names)
    before = result.contrasts()
    noted = [note for note in result.findings.notes if "near copies" in note]
    assert len(noted) == bool(said)
    assert all(note.startswith(said) and "column group" in note for note in noted)
    pd.testing.assert_frame_equal(before, result.contrasts())
