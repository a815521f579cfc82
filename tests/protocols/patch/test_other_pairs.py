"""Other pairs of the controls: a partner of the same template, and two pairs whose difference is
the direction of ``norm_matched``.
"""

import re
import warnings
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch

import anchorlens as al
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.running.sweeps import patch_sweep
from tests.protocols.patch.plain import cache_of, hook_of, metric_of
from tests.protocols.patch.test_patch import MANY, OPTIONS

TEMPLATES = [{**row, "template": f"t{i % 2}"} for i, row in enumerate(MANY)]
ALONE = [*TEMPLATES[:-1], {**TEMPLATES[-1], "template": "rare"}]


@pytest.fixture(scope="module")
def sweep(tiny_model):
    return patch_sweep(tiny_model("gpt2"), load_pairs(ALONE), by="layer", **OPTIONS)


def partners(sweep):
    """Pair -> its other pair."""
    own = sweep.samples().query("control == 'other_pair'").drop_duplicates("example_id")
    return {row.example_id: row.donor_id.split("|")[0] for row in own.itertuples()}


@pytest.mark.slow
def test_another_pair_is_of_the_same_template_and_those_without_one_are_counted(sweep):
    template = {row["id"]: row["template"] for row in ALONE}
    answer = {row["id"]: row["answer"] for row in ALONE}
    found = partners(sweep)
    assert set(found) == set(template) - {ALONE[-1]["id"]}
    for own, other in found.items():
        assert template[own] == template[other]
        assert answer[own] != answer[other]
    counts = sweep.record["counts"]
    assert counts["with_template"] == len(ALONE)
    assert counts["without_other_pair"] == counts["gaussian_directions"] == 1
    assert (
        "1 pair has no other pair of the same template, length with another prompt" in sweep.verdict
    )
    assert "no template" not in sweep.verdict
    assert "1 pair has no two other pairs for the direction of norm_matched" in sweep.verdict


def test_each_pair_serves_about_once(sweep):
    """Pairs with a common partner are not independent."""
    template = {row["id"]: row["template"] for row in ALONE}
    served = Counter(partners(sweep).values())
    sizes = Counter(template[own] for own in partners(sweep))
    assert max(served.values()) <= 2
    for name, size in sizes.items():
        own = [other for other in served if template[other] == name]
        assert len(own) >= size - 1, f"of {size} pairs of a template, {len(own)} serve"


FEW_SERVE = r"Only (\d+) pairs serve as other_pair of all (\d+): pairs that share one"


def with_answers(*answers):
    """The pairs, with these right answers and another wrong one for all."""
    rows = zip(MANY, answers, strict=True)
    return load_pairs([{**row, "answer": answer, "wrong": " x"} for row, answer in rows])


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["patch", "edges"])
def test_few_pairs_that_serve_as_other_pair_are_told(tiny_model, protocol):
    """A pair of the common answer has two others that answer differently."""

    def measure(*answers):
        model, pairs = tiny_model("gpt2"), with_answers(*answers)
        if protocol == "patch":
            return patch_sweep(model, pairs, by="layer", **OPTIONS, layers=[1])
        return al.edge_sweep(model, pairs, edges="embed -> logits", **OPTIONS)

    n = len(MANY)
    few = measure(" b", " b", *[" g"] * (n - 2))
    (told,) = re.findall(FEW_SERVE, few.verdict)
    assert told == (str(len(set(partners(few).values()))), str(n))
    assert int(told[0]) < 10
    many = measure(*(f" {letter}" for letter in "bghijkbghij"))
    assert len(set(partners(many).values())) >= 10
    assert not re.search(FEW_SERVE, many.verdict)


@pytest.mark.slow
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("protocol", ["patch", "edges"])
def test_nothing_is_claimed_against_a_control_that_no_pair_has(tiny_model, protocol, copies):
    """Of one answer alone no pair serves: said before measuring, and no cell stands against it. From
    twenty groups on a large effect was an error after the measurement.
    """
    rows = [{**row, "answer": " b", "wrong": " x"} for row in MANY]
    more = [{**row, "id": f"{row['id']}'", "group": f"{row['id']}'"} for row in rows]
    alone = load_pairs([*rows, *more][: copies * len(rows)])

    def measure(controls):
        model = tiny_model("gpt2")
        if protocol == "patch":
            return patch_sweep(model, alone, metric="kl", layers=[1], controls=controls, **OPTIONS)
        chosen = {"edges": "embed -> logits", "controls": "other_pair"}
        return al.edge_sweep(model, alone, metric="kl", **chosen, **OPTIONS)

    with pytest.warns(UserWarning, match="control other_pair is missing"):
        found = measure(("other_pair", "norm_matched"))
    assert "Nothing is claimed: no pair has the control other_pair." in found.verdict
    assert f"{len(alone.pairs)} pairs have no other pair of the same length" in found.verdict
    assert not re.search("serve as other_pair|may be a pair of another", found.verdict)
    assert not found.findings.claims
    if protocol == "patch":
        assert measure("norm_matched").findings.claims


@pytest.mark.parametrize("by", ["position", "layer"])
def test_prompts_of_several_lengths_are_named_before_anything_is_measured(tiny_model, by):
    """A mean at a position needs one length: it was said after the measurement."""
    longer = {"id": "long", "clean": "b of g and h is", "corrupted": "b of i and h is"}
    pairs = load_pairs([*MANY[:2], {**longer, "answer": " b", "wrong": " x"}])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch_sweep(tiny_model("gpt2"), pairs, by=by, layers=[1], **OPTIONS)
    said = [str(one.message) for one in caught if "different numbers of positions" in str(one)]
    assert len(said) == (by == "position")
    quick = patch_sweep(tiny_model("gpt2"), pairs, by=by, quick=True, progress=False)
    assert quick.verdict.startswith("Nothing" if by == "position" else "Quick look")


@pytest.mark.slow
def test_without_templates_the_verdict_says_that_another_template_may_be_drawn(tiny_model):
    plain = patch_sweep(tiny_model("gpt2"), load_pairs(MANY), by="layer", **OPTIONS)
    assert plain.record["counts"]["with_template"] == 0
    assert "The data name no template, so other_pair may be a pair of another" in plain.verdict
    some = [{**row, "template": None if i < 4 else "t"} for i, row in enumerate(MANY)]
    mixed = patch_sweep(tiny_model("gpt2"), load_pairs(pd.DataFrame(some)), by="layer", **OPTIONS)
    assert "4 of 11 pairs name no template" in mixed.verdict


def test_a_direction_is_the_difference_of_two_other_pairs_of_the_template(tiny_model, sweep):
    """Values by hooks and caches alone: norm and angle of the source's activation are kept."""
    model = tiny_model("gpt2")
    examples = sweep.examples().set_index(["role", "example_id"])
    template = {row["id"]: row["template"] for row in ALONE}
    name = ALONE[0]["id"]
    ids = {
        role: list(examples.loc[key, "token_ids"])
        for role, key in (
            ("target", ("base", name)),
            ("source", ("donor", f"{name}|clean")),
            ("first", ("direction", f"{name}~a")),
            ("second", ("direction", f"{name}~b")),
        )
    }
    texts = {row["clean"]: row["id"] for row in ALONE}
    others = [texts[examples.loc[("direction", f"{name}~{side}"), "text"]] for side in "ab"]
    assert len({name, *others}) == 3
    assert {template[one] for one in others} == {template[name]}
    caches = {role: cache_of(model, one) for role, one in ids.items()}
    own = sweep.samples().query("control == 'norm_matched'")
    cell = own[(own["example_id"] == name) & (own["layer"] == 1)].iloc[0]
    where = hook_of("resid_pre", 1)
    last = len(ids["first"]) - 1
    h, d, j, k = (caches[role][where][0].double() for role in ids)
    changed = h.clone()
    for at in range(last + 1):
        unit = h[at] / h[at].norm()
        sideways = (j[at] - k[at]) - ((j[at] - k[at]) @ unit) * unit
        across = d[at] - (d[at] @ unit) * unit
        if across.norm() > 1e-9 and sideways.norm() > 1e-9:
            turned = (d[at] @ unit) * unit + across.norm() * sideways / sideways.norm()
            assert float(turned.norm()) == pytest.approx(float(d[at].norm()))
            changed[at] = turned
    with torch.no_grad():
        logits = model.run_with_hooks(
            torch.tensor([ids["target"]]),
            fwd_hooks=[(where, lambda value, hook: changed.float()[None])],
        )[0].double()
    answers = [sweep.record["pairs"][name][one] for one in ("answer_ids", "wrong_ids")]
    expected = metric_of("logit_diff", logits, last, *answers, None)
    assert cell.value_after == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_directions_are_measured_again_from_the_run_directory(tmp_path, tiny_model, sweep):
    run = sweep.save(tmp_path / "run")
    verified = al.verify_run(run, model=tiny_model("gpt2"), cells=30, show_progress=False)
    (cells,) = [check for check in verified.checks if check.what.startswith("cells")]
    assert cells.status == "match"
    measured = verified.cells()
    assert "norm_matched" in set(measured["control"])
    assert np.nanmax(measured["max_abs_diff"]) < 1e-3
