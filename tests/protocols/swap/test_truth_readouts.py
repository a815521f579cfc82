"""Swaps that are read by a truth probe at k*, or by the model's own word."""

import numpy as np
import pytest

import anchorlens as al
from anchorlens.errors import InputError

OPTIONS = {"progress": False, "n_resamples": 200, "batch_size": 40}


@pytest.fixture(scope="module")
def data():
    return al.load_qa("popqa-sample", limit=90)


@pytest.fixture(scope="module")
def sweep(tiny_model, data):
    """A knockout: its probe is the same."""
    return al.knockout_sweep(tiny_model("llama"), data, placebos=False, **OPTIONS)


def test_swaps_are_read_by_a_probe_at_k_star(tiny_model, data, sweep):
    """The clean P is that of the knockout's probe; layers above k* are missing; t* at k* is trivial."""
    model = tiny_model("llama")
    swap = al.swap_sweep(model, data, anchors=("question", "answer"), readout="probe", align="last", n_donors=1, **OPTIONS)
    k = swap.record["probe"]["k_star"]
    assert k == sweep.k_star
    own = swap.samples().query("control == 'none'")
    assert set(own["layer"]) == set(range(k + 1))
    # What was asked for and cannot reach the probe is missing, not zero, and not left out of the tensor.
    assert swap.layers == sweep.layers
    assert swap.delta_p[:, [i for i, layer in enumerate(swap.layers) if layer > k]].isnan().all()
    clean = sweep.samples().query(f"control == 'none' and layer == {k}").set_index("example_id")["value_before"]
    mine = own.query("layer == 0 and anchor == 'question'").set_index("example_id")["value_before"]
    np.testing.assert_allclose(mine, clean[mine.index], atol=1e-5)
    trivial = own.groupby(["anchor", "layer"])["trivial"].any()
    assert trivial["answer", k]
    assert not trivial["question"].any()
    pi = np.where(
        own["value_before"] >= 0.5, own["value_after"] - own["value_before"], own["value_before"] - own["value_after"]
    )
    np.testing.assert_allclose(own["delta_p"], 100 * pi)


def test_swaps_that_cannot_reach_the_probe_are_missing_or_refused(tiny_model, data, sweep):
    model, k = tiny_model("llama"), sweep.k_star
    options = {"readout": "probe", "align": "last", "n_donors": 1, **OPTIONS}
    late = al.swap_sweep(model, data, anchors=("question", "answer"), site="resid_post", **options)
    own = late.samples().query("control == 'none'")
    # resid_post of layer k* at other positions comes after its attention; at t* itself the probe reads the donor.
    assert set(own.query("anchor == 'question'")["layer"]) == set(range(k))
    assert set(own.query("anchor == 'answer'")["layer"]) == set(range(k + 1))
    assert own.query(f"anchor == 'answer' and layer == {k}")["trivial"].all()
    assert late.record["probe"]["text_only"]["auc"] == pytest.approx(0.5, abs=0.02)
    assert late.curves()["auc"].nunique() == 1
    above = range(k + 1, len(sweep.layers))
    if above:
        with pytest.raises(InputError, match=f"The probe reads layer {k}, and no change at layers"):
            al.swap_sweep(model, data, layers=list(above), **options)
    with pytest.raises(InputError, match="'confidence' speaks of the clean prediction"):
        al.swap_sweep(model, data, direction="denoising", **options)
    with pytest.raises(InputError, match="answers= belongs to the readouts 'probe' and 'p_true'"):
        al.swap_sweep(model, data, answers="generated", progress=False)


def test_swaps_are_read_by_p_true(tiny_model, data):
    swap = al.swap_sweep(tiny_model("llama"), data, readout="p_true", align="last", n_donors=1, layers=[0, 1], **OPTIONS)
    own = swap.samples()
    assert set(own["readout"]) == {"p_true"}
    assert set(own["delta_kind"]) == {"confidence"}
    assert own["value_before"].between(0, 1).all()
    assert own.query("control == 'none'")["delta_p"].abs().max() > 0
    with pytest.raises(InputError, match="known_only=True keeps right answers alone"):
        al.swap_sweep(tiny_model("llama"), data, readout="p_true", known_only=True, **OPTIONS)
