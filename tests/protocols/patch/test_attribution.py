"""Patch sweeps by attribution: values, directions, files, verification, words and bad input."""

import numpy as np
import pytest
import torch

import anchorlens as al
from anchorlens.errors import InputError
from anchorlens.protocols.patch.measurement import PatchMeasurement
from tests.protocols.patch.plain import hook_of
from tests.protocols.patch.test_cells import ROWS
from tests.protocols.patch.test_patch import MANY

OPTIONS = {"progress": False}


def sweep(model, pairs=None, **options):
    given = al.load_pairs(MANY[:3]) if pairs is None else pairs
    return al.patch_sweep(model, given, method="attribution", **(OPTIONS | options))


def plain_scores(model, result, pair, site):
    """Score of every layer and position of a pair, by TransformerLens' cache and autograd alone."""
    examples = result.examples().set_index(["role", "example_id"])
    base = examples.loc[("base", pair)]
    target, source = base["token_ids"], examples.loc[("donor", base["donor_ids"][0]), "token_ids"]
    both = (result.record["pairs"][pair][key] for key in ("answer_ids", "wrong_ids"))
    # Tokens that both begin with are appended to the prompts.
    answer, wrong = next((a, b) for a, b in zip(*both, strict=True) if a != b)
    layers = range(model.cfg.n_layers)
    names = [hook_of(site, layer) for layer in layers]
    kept = {}

    def keep(value, hook):
        kept[hook.name] = value.requires_grad_(True)
        return value

    with torch.enable_grad():
        logits = model.run_with_hooks(
            torch.tensor([list(target)]), fwd_hooks=[(name, keep) for name in names]
        )[0, -1]
        gradients = torch.autograd.grad(logits[answer] - logits[wrong], list(kept.values()))
    _, cache = model.run_with_cache(torch.tensor([list(source)]))
    scores = []
    for name, gradient in zip(names, gradients, strict=True):
        change = (cache[name] - kept[name]).detach() * gradient
        scores.append(change[0].flatten(1).sum(1))
    return torch.stack(scores)


@pytest.mark.parametrize("direction", ["denoising", "noising"])
@pytest.mark.parametrize("site", ["resid_pre", "mlp_out", "z", "v"])
def test_effects_are_change_times_gradient(tiny_model, site, direction):
    model = tiny_model("llama")
    found = sweep(model, site=site, direction=direction)
    array = found.to_xarray()
    for pair in found.example_ids:
        wanted = plain_scores(model, found, pair, site)[:, array["position"].to_numpy().copy()]
        own = torch.from_numpy(array.sel(pair=pair).to_numpy())
        assert torch.allclose(own, wanted.double(), rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_positions_and_heads_add_up(tiny_model):
    model = tiny_model("llama")
    positions = sweep(model, by="position", site="attn_out").effects
    whole = sweep(model, by="layer", site="attn_out").effects
    assert torch.allclose(positions.sum(-1), whole, atol=1e-5)
    heads = sweep(model, by="head_position", site="k").effects
    assert heads.shape[-1] == 2  # key/value heads
    assert torch.allclose(
        heads.sum((-1, -2)), sweep(model, by="layer", site="k").effects, atol=1e-5
    )


def test_only_values_that_do_not_move_are_known_beforehand(tiny_model):
    """The estimate of the last stream is no source's run, unlike the exact patch."""
    model = tiny_model("gpt2")
    found = sweep(model, al.load_pairs(ROWS), site="resid_post")
    samples = found.samples(all_columns=True)
    fixed = samples[samples["by_construction"]]
    assert len(fixed) and (fixed["effect"] == 0).all()
    last = samples[samples["layer"] == model.cfg.n_layers - 1].sort_values("position")
    read = last.groupby("example_id").tail(1)
    assert not read["by_construction"].any() and (read["effect"] != 0).all()


@pytest.mark.slow
def test_an_estimate_claims_nothing_and_is_named(tiny_model, tmp_path):
    found = sweep(tiny_model("gpt2"), al.load_pairs(MANY))
    assert found.controls == ()
    assert "attribution" in found.verdict and "Estimates claim nothing" in found.verdict
    assert "attribution (estimate)" in repr(found)
    figure = al.plot_heatmap(found)
    assert "attribution (estimate)" in figure.layout.title.text
    assert not found.grid().stands.any()
    found.save(tmp_path / "run")
    (again,) = al.load_run(tmp_path / "run")
    assert again.is_estimate
    verified = al.verify_run(
        tmp_path / "run", model=tiny_model("gpt2"), cells=12, show_progress=False
    )
    statuses = {check.status for check in verified.checks}
    assert "match" in statuses and "mismatch" not in statuses


def test_a_changed_sample_is_found(tiny_model, monkeypatch):
    """Estimates are computed again: a value that was wrong when it was stored differs."""
    right = PatchMeasurement.measure

    def faulty(self, *args, **options):
        return right(self, *args, **options).assign(value_after=3.0)

    monkeypatch.setattr(PatchMeasurement, "measure", faulty)
    with pytest.raises(al.errors.CheckError):
        sweep(tiny_model("gpt2"), n_spot_checks=8)


def test_a_metric_without_slope_gives_a_warning(tiny_model):
    with pytest.warns(UserWarning, match="no slope in the clean run"):
        found = sweep(tiny_model("gpt2"), metric="kl", direction="noising")
    assert found.samples()["effect"].abs().max() < 1e-4


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"metric": lambda logits: logits[0, -1, 3]}, "method"),
        ({"window": 2}, "window"),
        ({"controls": "other_pair"}, "controls"),
        ({"method": "gradient"}, "method"),
    ],
)
def test_what_attribution_does_not_do_is_refused(tiny_model, options, argument):
    with pytest.raises(InputError) as caught:
        al.patch_sweep(
            tiny_model("gpt2"),
            al.load_pairs(MANY[:3]),
            **({"method": "attribution"} | OPTIONS | options),
        )
    assert caught.value.arguments == (argument,)


@pytest.mark.slow
def test_grids_are_compared(tiny_model):
    model = tiny_model("llama")
    pairs = al.load_pairs(MANY[:3])
    exact = al.patch_sweep(model, pairs, controls="none", **OPTIONS)
    fast = sweep(model)
    frame = al.compare_methods(exact, fast, top=5)
    one, two = (
        result.samples(all_columns=True).set_index(["example_id", "anchor", "layer"])
        for result in (exact, fast)
    )
    kept = ~one["by_construction"].astype(bool) & ~two["by_construction"].astype(bool)
    means = [each["effect"][kept].groupby(["anchor", "layer"]).mean() for each in (one, two)]
    assert frame["n"].item() == len(means[0])
    best = means[0].abs().nlargest(5).index
    assert frame["sign_errors"].item() == int((means[0][best] * means[1][best] < 0).sum())
    ratio = np.median(means[1][best] / means[0][best])
    assert frame["median_ratio"].item() == pytest.approx(ratio)
    some = al.compare_methods(exact, fast, top=5, layers=[1])
    assert some["n"].item() == (means[0].index.get_level_values("layer") == 1).sum()


@pytest.mark.slow
def test_grids_that_differ_are_not_compared(tiny_model):
    exact = al.patch_sweep(
        tiny_model("llama"), al.load_pairs(MANY[:3]), controls="none", site="z", **OPTIONS
    )
    with pytest.raises(InputError, match="differ in site"):
        al.compare_methods(exact, sweep(tiny_model("llama"), site="v"))
    with pytest.raises(InputError, match="method='exact' first"):
        al.compare_methods(sweep(tiny_model("llama")), exact)
