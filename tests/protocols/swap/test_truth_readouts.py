"""Swaps that are read by a truth probe at k*, or by the model's own word."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import anchorlens as al
from anchorlens.errors import InputError
from anchorlens.questions.example import normalise
from tests.protocols.sweeps import own as own_of
from tests.protocols.sweeps import questions, swept

OPTIONS = {
    "align": "last",
    "n_donors": 1,
    "progress": False,
    "n_resamples": 50,
    "batch_size": 40,
    "n_spot_checks": 0,
}
SMALL = al.load_qa("popqa-sample", limit=36)


@pytest.fixture(scope="module")
def knockout(tiny_model):
    """Its probe is that of a swap of the same rows."""
    return swept(tiny_model("llama"), "knockout")


@pytest.mark.slow
def test_swaps_are_read_by_a_probe_at_k_star(tiny_model, knockout):
    """The clean P is that of the knockout's probe; layers above k* are missing; t* at k* holds by
    construction.
    """
    swap = al.swap_sweep(
        tiny_model("llama"),
        questions(),
        anchors=("exact_question", "answer"),
        readout="probe",
        n_splits=1,
        **OPTIONS,
    )
    k = swap.record["probe"]["probe_layer"]
    assert k == knockout.probe_layer
    own = swap.samples().query("control == 'none'")
    assert set(own["layer"]) == set(range(k + 1))
    # What was asked for and cannot reach the probe is missing, not zero, and not left out of the
    # tensor.
    assert swap.layers == knockout.layers
    assert swap.delta_p[:, [i for i, layer in enumerate(swap.layers) if layer > k]].isnan().all()
    clean = own_of(knockout).query(f"layer == {k}").set_index("example_id")["value_before"]
    mine = own.query("layer == 0 and anchor == 'exact_question'").set_index("example_id")[
        "value_before"
    ]
    np.testing.assert_allclose(mine, clean[mine.index], atol=1e-5)
    held = own.groupby(["anchor", "layer"])["by_construction"].any()
    assert held["answer", k]
    assert not held["exact_question"].any()
    change = own["value_after"] - own["value_before"]
    np.testing.assert_allclose(
        own["effect"], 100 * np.where(own["value_before"] >= 0.5, change, -change)
    )


@pytest.mark.slow
def test_swaps_that_cannot_reach_the_probe_are_missing_or_refused(tiny_model, knockout):
    model, data, k = tiny_model("llama"), questions(), knockout.probe_layer
    options = {"readout": "probe", "n_splits": 1, **OPTIONS}
    late = al.swap_sweep(
        model, data, anchors=("exact_question", "answer"), site="resid_post", **options
    )
    own = late.samples().query("control == 'none'")
    # resid_post of layer k* at other positions comes after its attention; at t* itself the probe
    # reads the donor.
    assert set(own.query("anchor == 'exact_question'")["layer"]) == set(range(k))
    assert set(own.query("anchor == 'answer'")["layer"]) == set(range(k + 1))
    assert own.query(f"anchor == 'answer' and layer == {k}")["by_construction"].all()
    assert late.record["probe"]["answer_text_auc"]["auc"] == pytest.approx(0.5, abs=0.02)
    test = late.examples().query("role == 'base'")
    pair = late.record["probe"]["qa_text_auc"]
    assert test["qa_text_score"].notna().all()
    assert roc_auc_score(test["label"].astype(int), test["qa_text_score"]) == pytest.approx(
        pair["auc"], abs=0.02
    )
    assert pair["ci_low"] < pair["auc"] < pair["ci_high"]
    assert late.curves()["auc"].nunique() == 1
    with pytest.raises(InputError, match=f"^layers=.*reaches the probe at layer {k}"):
        al.swap_sweep(model, data, layers=[k + 1, k + 2], probes=knockout.probes, **options)
    with pytest.raises(InputError, match="^delta_kind='confidence'"):
        al.swap_sweep(model, data, direction="denoising", **options)


@pytest.mark.slow
@pytest.mark.parametrize("readout", ["probe", "p_true"])
def test_donors_of_a_truth_readout_have_the_label_of_their_base(tiny_model, readout):
    """True rows get streams of true rows, false ones those of false rows; no false answer of a
    donor is right for the base.
    """
    swap = al.swap_sweep(
        tiny_model("llama"),
        SMALL,
        readout=readout,
        layers=[0],
        **OPTIONS | {"n_donors": 3},
    )
    examples = swap.examples()
    base, donor = (
        examples[examples["role"] == role].set_index("example_id") for role in ("base", "donor")
    )
    asked = {example.question: example for example in SMALL.pool}
    labels = set()
    for name, row in base.iterrows():
        assert len(row["donor_ids"])
        gold = {normalise(answer) for answer in asked[row["question"]].answers}
        for other in row["donor_ids"]:
            assert donor.loc[other, "label"] == row["label"]
            assert donor.loc[other, "question"] != row["question"]
            assert normalise(donor.loc[other, "answer"]) not in gold, name
        labels.add(row["label"])
    assert labels == {0, 1}
    # From the whole file, not from the questions that limit= drew.
    assert set(donor["question"]) - {example.question for example in SMALL.examples}
    assert swap.record["config"]["donor_label"] == "same"
    assert "donors same_relation (up to 3), donor label same" in " ".join(repr(swap).split())


@pytest.mark.slow
def test_the_mean_stream_of_a_truth_readout_is_that_of_true_and_false_rows(tiny_model):
    options = {name: value for name, value in OPTIONS.items() if name not in ("align", "n_donors")}
    swap = al.swap_sweep(
        tiny_model("llama"), SMALL, readout="p_true", donors="mean", layers=[0], **options
    )
    labels = swap.examples().query("role == 'donor'")["label"]
    assert labels.mean() == pytest.approx(0.5, abs=0.25)
    assert swap.record["config"]["donor_label"] == "both"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("readout", "kind"),
    [
        ("probe", "signed"),
        ("probe", "true_label"),
        ("p_true", "confidence"),
        pytest.param("p_true", "true_label", marks=pytest.mark.slow),
    ],
)
def test_p_before_is_what_delta_p_starts_from(tiny_model, readout, kind):
    """value_before + ΔP / 100 is the mean of the same metric after the swap."""
    swap = al.swap_sweep(
        tiny_model("llama"),
        SMALL,
        readout=readout,
        delta_kind=kind,
        layers=[0],
        **OPTIONS,
    )
    label = swap.examples().query("role == 'base'").set_index("example_id")["label"].astype(float)
    own = swap.samples().query("control == 'none' and anchor == 'exact_question'")
    p, after = own["value_before"], own["value_after"]
    false = own["example_id"].map(label)
    # The probe says P(false), the model P(yes, it is right).
    up = {
        "signed": p == p,
        "confidence": p >= 0.5,
        "true_label": (false == 1) == (readout == "probe"),
    }[kind]
    curve = swap.curves().query("anchor == 'exact_question'").iloc[0]
    assert curve["value_before"] == pytest.approx(np.where(up, p, 1 - p).mean())
    assert set(own["readout"]) == {readout}
    assert p.between(0, 1).all()
    assert own["effect"].abs().max() > 0
    assert curve["value_before"] + curve["effect"] / 100 == pytest.approx(
        np.where(up, after, 1 - after).mean()
    )


@pytest.mark.slow
def test_the_clean_auc_is_drawn_by_relations_and_not_by_donors(tiny_model):
    swap = al.swap_sweep(tiny_model("llama"), SMALL, readout="p_true", layers=[0], **OPTIONS)
    number = pd.factorize(swap._samples["question_id"])[0]
    # Two questions each, of one relation or of one donor.
    names = pd.Series(number // 2, index=swap._samples.index).map("name {}".format)
    assert names.nunique() >= 10

    def ends(**columns):
        other = replace(swap, _samples=swap._samples.assign(**columns), _memo={})
        return tuple(other.curves(all_columns=True)[["auc", "auc_low", "auc_high"]].iloc[0])

    by_question = ends(cluster="")
    by_relation = ends(cluster=names)
    assert by_relation[0] == by_question[0]
    assert by_relation != by_question
    assert ends(cluster="", donor_id=names) == by_question
