"""Angles between the streams of a swap, raw and behind the norm."""

import json

import pytest
import torch

import anchorlens as al
from anchorlens.errors import InputError
from tests.questions.make import capitals

OPTIONS = {"n_donors": 1, "n_null_donors": 0, "n_spot_checks": 0, "progress": False}


def angle(one, two):
    cosine = torch.nn.functional.cosine_similarity(one.double(), two.double(), dim=-1)
    return torch.rad2deg(torch.arccos(cosine.clamp(-1, 1)))


@pytest.mark.slow
def test_angles_are_those_of_cached_activations(tiny_model):
    model = tiny_model("llama")
    data = capitals()
    sweep = al.swap_sweep(model, data, layers=(0, 1), **OPTIONS)
    found = al.swap_angles(model, sweep, batch_size=3).set_index(["anchor", "layer"])
    examples = sweep.examples(all_columns=True)
    rows = {(one["role"], one["example_id"]): one for one in examples.to_dict("records")}
    raw, normed = [], []
    for one in examples[examples["role"] == "base"].to_dict("records"):
        donor = rows["donor", one["donor_ids"][0]]
        activations = []
        for row in (one, donor):
            _, cache = model.run_with_cache(torch.tensor([list(row["token_ids"])]))
            at = torch.tensor(json.loads(row["positions"])["exact_question"])
            block = model.blocks[1].ln1
            stream = cache["resid_pre", 1][0, at]
            activations.append((stream, block(stream[None])[0]))
        (base, base_normed), (other, other_normed) = activations
        raw.append(angle(base, other))
        normed.append(angle(base_normed, other_normed))
    assert found.loc[("exact_question", 1), "n"] == len(torch.cat(raw))
    assert found.loc[("exact_question", 1), "angle"] == pytest.approx(
        float(torch.cat(raw).detach().median()), abs=1e-3
    )
    assert found.loc[("exact_question", 1), "angle_normed"] == pytest.approx(
        float(torch.cat(normed).detach().median()), abs=1e-3
    )
    assert found.loc[("exact_question", 1), "angle"] > 1


def test_a_site_that_no_attention_reads_has_no_normed_angle(tiny_model):
    model = tiny_model("llama")
    data = capitals()
    sweep = al.swap_sweep(model, data, site="attn_out", layers=(1,), **OPTIONS)
    found = al.swap_angles(model, sweep)
    assert found["angle"].notna().all()
    assert found["angle_normed"].isna().all()


def test_donors_that_are_no_rows_have_no_angle(tiny_model):
    model = tiny_model("llama")
    data = capitals()
    sweep = al.swap_sweep(model, data, donors="zero", layers=(1,), **OPTIONS)
    with pytest.raises(InputError) as caught:
        al.swap_angles(model, sweep)
    assert caught.value.arguments == ("sweep",)
