"""Pairs of unequal length, of token ids, and with answers of several tokens, against plain forward
passes.
"""

import pytest
import torch

import anchorlens as al
from anchorlens.models.load import adapt
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.prompts.tokenize_pairs import set_up_pairs, tokenize_pairs
from anchorlens.protocols.patch.spec import Patch

ROWS = [
    {
        "id": "ends",
        "clean": "The bag of ab is",
        "corrupted": "The bag of cdef is",
        "answer": " e f",
        "wrong": " e g",
    },
    {
        "id": "segment",
        "clean": "ab of the bag",
        "corrupted": "cd of my the bag",
        "answer": "e",
        "wrong": "f",
        "segments": {"x": ["ab", "cd"]},
    },
    {
        "id": "ids",
        "clean": [20, 30, 31, 32],
        "corrupted": [20, 40, 32],
        "answer": [50, 51],
        "wrong": [50, 52, 53],
    },
    {
        "id": "list",
        "clean": [20, 30, 31, 32],
        "corrupted": [21, 40, 41],
        "answer": [50],
        "wrong": [52],
        "alignment": [[0, 0], [3, 2], [1, 1]],
    },
]


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_every_cell_patches_the_paired_position_of_the_other_prompt(
    tiny_model, tmp_path, monkeypatch, direction
):
    model, layer, data = tiny_model("llama"), 1, load_pairs(ROWS)
    result = al.patch_sweep(model, data, direction=direction, layers=[layer], progress=False)
    samples = result.samples().set_index(["example_id", "position"])["value_after"]
    pairs = {one.clean.pair.id: one for one in set_up_pairs(adapt(model), data, Patch()).pairs}
    assert set(samples.index.get_level_values(0)) == set(pairs) == {row["id"] for row in ROWS}
    name, side = f"blocks.{layer}.hook_resid_pre", direction == "denoising"
    for key, one in pairs.items():
        target, source = (one.corrupted, one.clean) if side else (one.clean, one.corrupted)
        alike = next(
            i for i, (a, b) in enumerate(zip(one.answer, one.wrong, strict=False)) if a != b
        )
        forced = one.answer[:alike]
        places = {(b, a) if side else (a, b) for a, b in one.alignment}
        assert set(samples[key].index) == {to for to, _ in places}
        assert len(places) < max(len(one.clean.ids), len(one.corrupted.ids))
        for to, by in places:
            with torch.no_grad():
                cached = model.run_with_cache(
                    torch.tensor([source.ids + forced]), names_filter=name
                )[1][name][0, by]

                def put(stream, hook, to=to, cached=cached):
                    stream[:, to] = cached
                    return stream

                logits = model.run_with_hooks(
                    torch.tensor([target.ids + forced]), fwd_hooks=[(name, put)]
                )[0, -1]
            wanted = float(logits[one.answer[alike]] - logits[one.wrong[alike]])
            assert samples[key, to] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.slow
def test_the_listed_pairing_is_the_one_that_is_measured_and_saved(tiny_model, tmp_path):
    model = tiny_model("llama")
    frame = tokenize_pairs(model, ROWS).set_index("id")
    result = al.patch_sweep(model, load_pairs(ROWS), layers=[0, 1], progress=False)
    measured = result.samples().groupby("example_id")["position"].agg(lambda own: sorted(set(own)))
    assert {
        name: sorted(b for _, b in pairs) for name, pairs in frame["alignment"].items()
    } == measured.to_dict()
    (cells,) = [
        check
        for check in al.verify_run(
            result.save(tmp_path / "run"), model=model, cells=10, show_progress=False
        ).checks
        if check.what.startswith("cells")
    ]
    assert cells.status == "match", cells.detail
