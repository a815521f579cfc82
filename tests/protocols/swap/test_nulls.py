"""Nulls by name: both engines, random directions, contrasts, verdict and figure."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import anchorlens as al
from anchorlens.constants import NULL_CONTROLS
from anchorlens.engine import reference
from anchorlens.errors import InputError
from anchorlens.measure.patched_pairs import gaussian_directions
from anchorlens.runs.schema import CELL
from tests.engine.make import ANCHORS, case
from tests.questions.make import capitals, equal_lengths

ALL = ("same_role", "norm_matched", "displaced")
"""Nulls that every row has; ``same_answer`` needs another question with the answer."""
CONTROLS = {name: NULL_CONTROLS[name] for name in ALL}
QUIET = {"progress": False, "n_spot_checks": 0, "n_resamples": 20}


def effects(sweep):
    return sweep.samples(all_columns=True).set_index(CELL)["effect"].sort_index()


def check_engines(model, data, atol, **options):
    """Every cell of both engines; returns those of the cone engine."""
    cone, oracle = (
        effects(al.swap_sweep(model, data, engine=engine, **QUIET | options))
        for engine in ("cone", "reference")
    )
    pd.testing.assert_series_equal(cone, oracle, rtol=0, atol=atol)
    return cone


@pytest.mark.slow
@pytest.mark.exhaustive
def test_both_engines_agree_cell_by_cell_on_the_real_model(smollm2):
    data = al.load_qa("popqa-sample", limit=2, seed=2)
    cells = check_engines(
        smollm2, data, 1e-3, null=ALL, n_donors=1, layers=(0, 12), prompt="fewshot(1)", seed=2
    )
    by_control = cells.abs().groupby(["anchor", "control"]).max()
    assert by_control["exact_question", "norm_matched"] > 1
    assert by_control["pre_answer", "norm_matched"] > 0.01
    assert by_control["exact_question", "same_role"] > 0.001
    assert by_control["exact_question", "same_role"] < by_control["exact_question", "norm_matched"]


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {
            "direction": "denoising",
            "window": 2,
            "null": ("same_role", "norm_matched", "displaced"),
        },
        {"site": "attn_out"},
        {"site": "resid_post", "window": 3, "readout": "answer_joint"},
        {"donors": "noise", "null": ("displaced", "norm_matched")},
        {"donors": "mean", "null": "norm_matched"},
        {
            "readout": "p_true",
            "anchors": ("exact_question", "answer"),
            "null": "norm_matched,same_role",
        },
    ],
    ids=str,
)
def test_both_engines_agree_in_every_setting(tiny_model, options):
    given = {"null": ALL, "align": "last"} | (
        {} if options.get("donors") else {"n_donors": 2, "donors": "random"}
    )
    cells = check_engines(tiny_model("llama"), capitals(3), 3e-4, **given | options)
    assert cells.abs().groupby("control").max().min() > 5e-4


@pytest.mark.slow
def test_draws_depend_neither_on_batches_nor_on_other_nulls(tiny_model):
    def run(**options):
        return effects(
            al.swap_sweep(
                tiny_model("llama"), capitals(4), align="last", n_donors=2, **QUIET | options
            )
        )

    whole = run(null=ALL)
    pd.testing.assert_series_equal(whole, run(null=ALL[::-1], batch_size=1), rtol=0, atol=1e-3)
    for null, control in CONTROLS.items():
        alone = run(null=null)
        assert set(alone.index.get_level_values("control")) == {"none", control}
        pd.testing.assert_series_equal(whole[alone.index], alone, rtol=0, atol=1e-3)
    assert not np.allclose(whole, run(null=ALL, seed=9).reindex(whole.index), atol=1e-3)


def test_a_turned_activation_has_the_norm_and_angle_of_the_donors(tiny_model, monkeypatch):
    adapter, batch = case(tiny_model("llama"))
    swap, site, streams = batch.swaps[0], "resid_pre", []
    towards = {
        i: gaussian_directions(f"row {i}", len(at), adapter.d_model).expand(
            adapter.n_layers, -1, -1
        )
        for i, at in enumerate(ANCHORS[swap.anchor][0])
        if i != 1
    }
    right = reference.swap_hooks
    monkeypatch.setattr(
        reference, "swap_hooks", lambda *given: streams.append(given[2]) or right(*given)
    )
    batch = replace(batch, swaps=(replace(swap, directions=towards),))
    reference.ReferenceEngine(adapter).run_swaps(batch, site=site, layers=(0,), window=1)
    (own,) = reference.capture(adapter, batch.tokens, site, [swap.slots])
    (donor,) = reference.capture(adapter, batch.donors, site, [swap.source])
    torch.testing.assert_close(
        streams[0][:, 1], donor[:, 1]
    )  # a row without directions gets the donor's streams
    for i, directions in towards.items():
        n = directions.shape[1]
        made, base, given = streams[0][:, i, :n], own[:, i, :n], donor[:, i, :n]
        torch.testing.assert_close(made.norm(dim=-1), given.norm(dim=-1))
        cosine = torch.nn.functional.cosine_similarity
        torch.testing.assert_close(cosine(made, base, dim=-1), cosine(given, base, dim=-1))
        torch.testing.assert_close((made - base).norm(dim=-1), (given - base).norm(dim=-1))
        # Three vectors in one plane: base, direction and result.
        plane = torch.stack([base, directions, made], dim=-2).double()
        smallest = torch.linalg.svdvals(plane / plane.norm(dim=-1, keepdim=True))[..., -1]
        assert smallest.max() < 1e-6
    assert not torch.equal(towards[0], towards[2][:, : towards[0].shape[1]])


@pytest.mark.slow
def test_every_null_has_contrasts_and_a_line_of_its_own(tiny_model):
    made = al.swap_sweep(tiny_model("llama"), equal_lengths(), null=ALL, n_donors=1, **QUIET)
    less = made.contrasts().query("quantity == 'delta_p_minus_null'")
    samples = (
        made.samples()
        .groupby(["anchor", "layer", "control", "example_id"])["effect"]
        .mean()
        .unstack("control")
    )
    for control in CONTROLS.values():
        gap = (samples["none"] - samples[control]).groupby(["anchor", "layer"]).mean()
        own = less[less["control"] == control].set_index(["anchor", "layer"])["value"]
        np.testing.assert_allclose(own.astype(float), gap.loc[own.index], atol=1e-9)
    one = al.swap_sweep(tiny_model("llama"), equal_lengths(), null="displaced", n_donors=1, **QUIET)
    alone = one.contrasts().query("quantity == 'delta_p_minus_null'")
    both = less[less["control"] == "null"]
    np.testing.assert_allclose(alone["value"].astype(float), both["value"].astype(float), atol=1e-3)
    figure = al.plot_curves(made, controls=[*CONTROLS.values()])
    lines = [str(trace.name).rpartition(", ")[2] for trace in figure.data]
    assert all(lines.count(control) >= len(made.anchors) for control in CONTROLS.values())
    assert ", null same_role, norm_matched, displaced (4 draws), seed 0" in " ".join(
        repr(made).split()
    )
    assert made.record["config"]["null"] == [*ALL]


@pytest.mark.slow
def test_the_default_nulls_are_same_role_and_norm_matched_if_donors_are_rows(tiny_model):
    for donors, nulls in (
        ("same_relation", ["same_role", "norm_matched"]),
        ("noise", ["norm_matched"]),
    ):
        made = al.swap_sweep(tiny_model("llama"), equal_lengths(), donors=donors, **QUIET)
        assert made.record["config"]["null"] == nulls
        assert set(made.samples()["control"]) == {"none", *nulls}
        assert set(
            made.summary(all_columns=True)[[*CONTROLS.values()]].dropna(axis=1).columns
        ) == set(nulls)
        again = al.Swap.from_config(made.record["config"])
        assert again.null_controls == tuple(nulls)
        assert again.null == al.Swap(donors=donors).null


def test_after_the_last_attention_only_a_change_at_the_readouts_position_acts(tiny_model):
    """Other cells of the last layer's resid_post are 0 by construction; pre_answer against
    same_role would claim them.
    """
    options = QUIET | {"site": "resid_post", "layers": (1, 2), "align": "last", "n_donors": 1}
    own = al.swap_sweep(tiny_model("llama"), capitals(4), null=ALL, **options).samples()
    marked = own.groupby(["layer", "anchor", "control"])["by_construction"].agg(set)
    acting = {("pre_answer", "none"), ("pre_answer", "norm_matched")}
    assert {place for place, is_fixed in marked[2].items() if is_fixed == {False}} == acting
    assert set.union(*marked[1]) == {False}
    fixed, free = (
        own[(own["layer"] == 2) & (own["by_construction"] == is_fixed)]["effect"].abs()
        for is_fixed in (True, False)
    )
    assert fixed.max() < 1e-4 < free.max()


def test_a_null_without_position_is_marked(tiny_model):
    """The question's words outside E_Q are the anchor: only the template's tokens are left, and
    their embeddings are equal.
    """
    made = al.swap_sweep(
        tiny_model("llama"),
        equal_lengths(),
        anchors=("question_rest",),
        null="same_role",
        layers=(0, 1),
        n_donors=1,
        **QUIET,
    )
    own = made.samples().query("control == 'same_role'")
    assert (own["n_null_patched"] < own["n_patched"]).all()
    assert own.groupby("layer")["by_construction"].all().tolist() == [True, False]
    assert own[own["layer"] == 0]["effect"].abs().max() < 1e-4
    short = (own["n_patched"] - own["n_null_patched"])[own["layer"] == 0].sum()
    assert made.record["counts"]["null_shortfall"]["question_rest, same_role"] == short
    curves = made.curves(controls=True)
    assert set(curves["frac_null_incomplete"]) == {1.0}


@pytest.mark.parametrize(
    ("options", "argument", "message"),
    [
        ({"null": "sham"}, "null", "Unknown null 'sham'"),
        ({"null": ()}, "null", "one or more different nulls"),
        ({"null": "same_role", "n_null_donors": 0}, "null", "n_null_donors=0 measures none"),
        ({"null": "same_role", "donors": "zero"}, "null", "'same_role' is not defined for"),
        ({"null": "norm_matched", "donors": "zero"}, "null", "'norm_matched' is not defined for"),
        (
            {"null": "same_answer", "direction": "denoising"},
            "null",
            "'same_answer' needs direction='noising'",
        ),
        (
            {"null": "norm_matched", "null_region": "prompt"},
            "null_region",
            "is a region of 'displaced'",
        ),
    ],
)
def test_nulls_that_contradict_other_arguments_are_refused(options, argument, message):
    with pytest.raises(InputError, match=message) as caught:
        al.Swap(**options)
    assert caught.value.arguments == (argument,)


@pytest.mark.slow
def test_spot_checks_of_mixed_nulls_agree(tiny_model):
    """One forward pass measures cells of all controls again: rows with a random direction beside
    rows without.
    """
    options = QUIET | {"n_spot_checks": 60, "n_donors": 1, "align": "last"}
    checks = al.swap_sweep(
        tiny_model("llama"), capitals(4), null=ALL, prompt="fewshot(3)", **options
    ).record["checks"]
    assert checks["failed"] == []
    assert checks["cells"] == 60


def twins():
    """Capitals, each asked twice in other words of equal length."""
    rows = []
    for place, answer in (("Peru", "Lima"), ("Cuba", "Havana"), ("Iran", "Tehran")):
        shared = {"answer": answer, "subject": place, "property": "capital"}
        rows += [
            {"question": f"{word} is the capital of {place}?", **shared}
            for word in ("What", "Which")
        ]
    return al.load_qa(rows)


@pytest.mark.slow
def test_same_answer_patches_another_question_with_the_same_answer(tiny_model):
    options = QUIET | {"null": "same_answer", "n_donors": 1, "align": "last", "layers": (0, 1, 2)}
    made = al.swap_sweep(tiny_model("llama"), twins(), **options)
    own = made.samples(all_columns=True).query("control == 'same_answer'")
    examples = made.examples(all_columns=True).set_index(["role", "example_id"])
    assert len(own)
    for row in own.drop_duplicates(["example_id", "donor_id"]).itertuples():
        base, donor = examples.loc[("base", row.example_id)], examples.loc[("donor", row.donor_id)]
        assert base["answer"] == donor["answer"]
        assert base["question"] != donor["question"]
    assert own["donor_p_after"].isna().all()
    less = made.contrasts().query("control == 'same_answer'")
    assert set(less["quantity"]) == {"delta_p_minus_null"}
    assert made.record["counts"]["without_same_answer"] == 0
    lonely = al.swap_sweep(tiny_model("llama"), capitals(4), **options)
    assert lonely.record["counts"]["without_same_answer"] == 4
    check_engines(tiny_model("llama"), twins(), 3e-4, **options)


@pytest.mark.slow
def test_draws_of_norm_matched_are_stored_and_averaged(tiny_model):
    options = QUIET | {"null": "norm_matched", "n_donors": 1, "align": "last", "layers": (1,)}
    made = al.swap_sweep(tiny_model("llama"), capitals(), n_null_draws=3, **options)
    own = made.samples(all_columns=True).query("control == 'norm_matched'")
    assert set(own["draw"]) == {0, 1, 2}
    assert own.groupby(["example_id", "anchor"])["effect"].nunique().max() == 3
    one = al.swap_sweep(tiny_model("llama"), capitals(), n_null_draws=1, **options)
    first = own[own["draw"] == 0].set_index(CELL)["effect"]
    alone = one.samples(all_columns=True).query("control == 'norm_matched'")
    pd.testing.assert_series_equal(
        alone.set_index(CELL)["effect"].sort_index(), first.sort_index(), rtol=0, atol=1e-3
    )
    curve = made.curves(controls=True).query("control == 'norm_matched'").set_index("anchor")
    for anchor, values in own.groupby("anchor"):
        per_row = values.groupby("example_id")["effect"].mean()
        assert curve.loc[anchor, "effect"] == pytest.approx(per_row.mean())


@pytest.mark.slow
def test_directions_are_differences_of_rows_without_the_answers(tiny_model):
    options = QUIET | {"null": "norm_matched", "n_donors": 1, "align": "last", "layers": (1,)}
    made = al.swap_sweep(tiny_model("llama"), capitals(), **options)
    examples = made.examples(all_columns=True)
    towards = examples[examples["role"] == "direction"]
    # Where fewer than two rows share no answer, the direction is Gaussian.
    n_gaussian = made.record["counts"]["gaussian_draws"]
    assert len(towards) == 2 * (4 * len(made.example_ids) - n_gaussian) > 0
    answers = examples[examples["role"] == "base"].set_index("example_id")["answer"]
    for row in towards.itertuples():
        base, donor, _ = row.example_id.split("~")
        assert row.answer not in (answers[base], answers.get(donor))
    gaussian = al.swap_sweep(tiny_model("llama"), capitals(), null_direction="gaussian", **options)
    assert "direction" not in set(gaussian.examples(all_columns=True)["role"])
    three = al.load_qa(
        [
            {"question": f"What is the capital of {place}?", "answer": answer}
            for place, answer in (("Peru", "Lima"), ("Cuba", "Havana"), ("Iran", "Tehran"))
        ]
    )
    few = al.swap_sweep(tiny_model("llama"), three, **options)
    assert few.record["counts"]["gaussian_draws"] == 4 * 3
