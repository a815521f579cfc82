"""Where the null lies and how far it falls short, and rows whose answer is predicted from another
token.
"""

import json

import pandas as pd
import pytest
import torch

import anchorlens as al
from tests.questions.make import CAPITALS, capital, capitals, data_of, equal_lengths

QUIET = {"progress": False, "align": "last"}


@pytest.mark.slow
def test_samples_say_how_many_positions_the_anchor_and_its_null_change(tiny_model):
    options = {
        "anchors": ("exact_question", "question_rest"),
        "layers": (0, 1),
        "n_donors": 2,
        "seed": 1,
        "null": "displaced",
    }
    made = al.swap_sweep(tiny_model("llama"), capitals(5), **options, **QUIET)
    examples = made.examples().set_index(["role", "example_id"])["positions"].map(json.loads)
    known = 0
    for row in made.samples().itertuples():
        base, donor = examples["base", row.example_id], examples["donor", row.donor_id]
        parts = ("subject", "property") if row.anchor == "exact_question" else (row.anchor,)
        assert row.n_patched == sum(min(len(base[part]), len(donor[part])) for part in parts)
        null = base.get(f"null:{row.anchor}:{row.donor_id}")
        # The first donor of a row measures the null; of the others there is none.
        assert pd.isna(row.n_null_patched) == (null is None)
        if null is not None:
            known += 1
            assert row.n_null_patched == len(null)
    assert known
    short = made.curves(controls=True).groupby("anchor")["frac_null_incomplete"].agg(set)
    assert short["exact_question"] == {0.0}
    # The question's own words outside E_Q are many, what is left of the prompt is short.
    assert short["question_rest"] == {1.0}
    assert (
        "null weaker (fewer slots than the anchor): question_rest displaced 100 % of rows"
        in repr(made)
    )
    (null,) = {text for text in made.protocol.table([made])[1]["displaced"] if "weaker" in text}
    assert null.endswith(" (weaker)")


@pytest.mark.slow
def test_the_null_costs_what_the_anchor_costs(tiny_model):
    """Behind five shots: a null in the row's own part adds as much again, one in the shots several
    times that.
    """
    cost = {}
    for region, n in (("question", 0), ("question", 1), ("prompt", 1)):
        al.swap_sweep(
            tiny_model("llama"),
            capitals(4),
            anchors=("exact_question",),
            prompt="fewshot(5)",
            n_donors=1,
            n_null_donors=n,
            null_region=region,
            **({"null": "displaced"} if n else {}),
            on_plan=lambda plan, key=(region, n): cost.update({key: plan.flops}),
            **QUIET,
        )
    alone, own, prompt = cost["question", 0], cost["question", 1], cost["prompt", 1]
    assert alone < own < 2.2 * alone
    assert prompt > 2 * own


@pytest.mark.slow
def test_no_null_of_a_run_lies_in_the_shots(tiny_model):
    options = {
        "prompt": "fewshot(2)",
        "layers": (0,),
        "n_donors": 2,
        "n_null_donors": 2,
        "null": "displaced",
        **QUIET,
    }
    made = al.swap_sweep(tiny_model("llama"), capitals(4), **options)
    base = made.examples().query("role == 'base'")
    shared = min(
        next(i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1])
        for a in base["token_ids"]
        for b in base["token_ids"]
        if list(a) != list(b)
    )
    places = [json.loads(text) for text in base["positions"]]
    nulls = [
        min(where) for row in places for name, where in row.items() if name.startswith("null:")
    ]
    # The question opens with words that all capitals share: it begins at its first word, not where
    # the rows part.
    assert min(nulls) >= min(min(row["question_rest"]) for row in places)
    assert max(nulls) > shared
    assert made.record["config"]["null_region"] == "question"
    assert "null displaced," in repr(made)


def test_rows_whose_answer_is_predicted_from_another_token_are_marked(tiny_model):
    """The site of a row with an answer inside a longer text is that text's token, not the
    template's.
    """
    data = data_of([capital(c, a) for c, a in CAPITALS.items()])
    made = al.swap_sweep(tiny_model("llama"), data, anchors=("pre_answer",), n_donors=4, **QUIET)
    examples = made.examples().set_index(["role", "example_id"])
    site = {
        key: (list(row["token_ids"]), json.loads(row["positions"])["pre_answer"][0])
        for key, row in examples.iterrows()
    }
    for row in made.samples().query("control == 'none'").itertuples():
        (base, at), (donor, there) = site["base", row.example_id], site["donor", row.donor_id]
        assert row.pre_answer_token_differs == (base[at] != donor[there])
        # Layer 0 holds nothing but the token: with the same one nothing is changed, and that says
        # nothing.
        assert row.by_construction == (row.layer == 0 and not row.pre_answer_token_differs)
    rows = made.samples().groupby("example_id")["pre_answer_token_differs"].any().sum()
    assert made.record["counts"]["pre_answer_token_differs"] == rows


@pytest.mark.slow
def test_of_a_mixed_site_layer_0_is_not_zero(smollm2):
    """Digits start a token of their own: their site is the space, that of words the colon."""
    years = {"Chad": "1960", "Mali": "1961", "Togo": "1962"}
    rows = [
        capital(country, answer)
        for country, answer in [*list(CAPITALS.items())[:3], *years.items()]
    ]
    made = al.swap_sweep(
        smollm2,
        data_of(rows),
        anchors=("pre_answer",),
        n_donors=5,
        layers=(0,),
        n_null_donors=0,
        **QUIET,
    )
    own = made.samples()
    assert 0 < own["pre_answer_token_differs"].sum() < len(own)
    same = own[~own["pre_answer_token_differs"].astype(bool)]
    assert same["effect"].abs().max() < 1e-3
    assert same["by_construction"].all()
    other = own[own["pre_answer_token_differs"].astype(bool)]
    assert other["effect"].abs().max() > 1e-3
    assert not other["by_construction"].any()


def test_statistics_have_no_donor_whose_site_could_differ_and_count_as_one(tiny_model):
    made = al.swap_sweep(tiny_model("llama"), capitals(3), donors="zero", layers=(0,), **QUIET)
    assert made.samples(all_columns=True)["pre_answer_token_differs"].isna().all()
    assert not made.samples()["by_construction"].any()
    assert made.record["config"]["n_donors"] == 1
    again = al.Swap.from_config(made.record["config"])
    assert (again.donors, again.n_donors) == (
        "zero",
        4,
    )  # as it was asked for: the default, which says nothing here


@pytest.mark.slow
def test_a_window_that_goes_beyond_layer_0_is_not_by_construction(tiny_model):
    """The template's last token is the same in base and donor, so its embedding is too: a swap of
    it changes nothing.
    """
    options = {
        "anchors": ("pre_answer", "pre_answer_all"),
        "layers": (0, 1),
        "null": "displaced",
        **QUIET,
    }
    ways = {"window": 1}, {"window": 2}, {"engine": "reference"}
    one, two, oracle = (
        al.swap_sweep(tiny_model("llama"), equal_lengths(), **way, **options) for way in ways
    )
    marked = [
        way.curves(controls=True)
        .query("by_construction")[["anchor", "layer", "control"]]
        .values.tolist()
        for way in (one, two)
    ]
    assert marked[0] == [[anchor, 0, "none"] for anchor in options["anchors"]]
    assert marked[1] == [
        ["pre_answer_all", 0, "none"]
    ]  # the donor's answer tokens come in as inputs, whatever the window
    assert one.delta_p[:, 0].abs().max() < 1e-4
    assert one.delta_p[:, 1].abs().max() > 1e-2
    assert two.delta_p[:, 0].abs().max() > 1e-3
    assert torch.equal(oracle.delta_p[0, 0], torch.zeros(6, dtype=torch.float64))


@pytest.mark.slow
@pytest.mark.parametrize("readout", ["first_token", "answer_joint"])
def test_an_answer_readout_has_no_true_and_false_answers_and_without_a_null_there_are_no_null_slots(
    tiny_model, readout
):
    asked = al.Swap(
        readout=readout, layers=(0,), n_donors=1, n_null_donors=0, align="last", add_bos=False
    )
    made = al.swap_sweep(
        tiny_model("llama"),
        capitals(3),
        readout=readout,
        layers=(0,),
        n_donors=1,
        n_null_donors=0,
        **QUIET,
    )
    assert made.record["config"]["answers"] == made.record["config"]["distractor"] == ""
    assert (
        made.curves(all_columns=True)[["answers", "distractor", "frac_null_incomplete"]]
        .isna()
        .all(axis=None)
    )
    assert made.samples(all_columns=True)["n_null_patched"].isna().all()
    assert "weaker" not in repr(made)
    assert al.Swap.from_config(made.record["config"]).identity() == asked.identity()


def test_the_donors_answer_is_read_at_the_first_token_in_which_the_answers_differ(tiny_model):
    """Lima and Lille share two tokens, Lima and Lisbon one: P of a shared token would tell
    nothing.
    """
    model = tiny_model("llama")
    cities = {"Peru": "Lima", "Chile": "Lisbon", "Cuba": "Limassol", "Italy": "Lille"}
    data = data_of([capital(country, city) for country, city in cities.items()])
    options = {"layers": (0,), "n_donors": 3, "null": ("same_role",), "donors": "random"}
    made = al.swap_sweep(model, data, anchors=("pre_answer",), **options, **QUIET)
    rows = made.examples().set_index(["role", "example_id"])

    def answer_of(role, name):
        row = rows.loc[(role, name)]
        at = json.loads(row["positions"])["answer"]
        return list(row["token_ids"]), at[0], [row["token_ids"][i] for i in at]

    shared_counts = set()
    for row in made.samples(all_columns=True).query("control == 'none'").itertuples():
        ids, start, own = answer_of("base", row.example_id)
        *_, theirs = answer_of("donor", row.donor_id)
        shared = next(
            (i for i, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), None
        )
        if shared is None:  # one answer begins with the other
            continue
        shared_counts.add(shared)
        with torch.no_grad():
            logits = model(torch.tensor([ids[: start + shared]]))[0, -1].double()
        p = logits.softmax(-1)[theirs[shared]]
        assert row.donor_p_before == pytest.approx(float(p), rel=1e-4)
    assert len(shared_counts) > 1
    assert min(shared_counts) >= 1
