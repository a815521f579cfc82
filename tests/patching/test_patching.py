"""Equality with ``transformer_lens.patching``, and the calls that the cone engine refuses."""

import inspect
import re
import warnings
from itertools import product

import pandas as pd
import pytest
import torch
import transformer_lens.patching as theirs

from anchorlens import patching as ours
from anchorlens.engine.cone import ConeEngine
from anchorlens.errors import InputError
from anchorlens.measure import grid, patch_plan
from anchorlens.models.hooked.blocks import HookedBlock
from anchorlens.models.load import adapt
from tests.engine.make import counted, random_rows
from tests.raised import raises
from tests.tiers import ON_REQUEST, choose_cases

FAMILIES = ["gpt2", "neox", "llama", "qwen3", "gemma2", "gemma3"]
GRIDS = ("resid_pre", "resid_mid", "attn_out", "mlp_out")
# Every site, on four families; all pairs on request.
FAST_GRIDS = {
    ("gpt2", "resid_mid"),
    ("llama", "resid_pre"),
    ("llama", "mlp_out"),
    ("gemma2", "attn_out"),
    ("neox", "resid_mid"),
}
GRID_CASES = [
    pytest.param(*case, marks=() if case in FAST_GRIDS else ON_REQUEST)
    for case in product(FAMILIES, GRIDS)
]
FUNCTIONS = sorted(name for name in vars(theirs) if name.startswith("get_act_patch_"))


def last(logits):
    return (logits[:, -1, 7] - logits[:, -1, 9]).mean()


def several(logits):
    return logits[:, [2, -3], 5].sum() - logits[0, 4, 1]


def softmax(logits):
    return logits[:, -2].softmax(-1)[:, 3].mean()


def everything(logits):
    return logits.log_softmax(-1)[..., 11].mean()


def rank(logits):
    return (logits[:, -1] > logits[:, -1, 7:8]).sum().float()


def likeliest(logits):
    return logits[:, -1].argmax(-1).float().mean()


def peak(logits):
    return logits[..., 11].max()


def over_half_of_the_best(logits):
    return (logits.softmax(-1)[..., 3] > logits.softmax(-1).amax(-1) / 2).sum().float() + logits[
        0, 2, 4
    ]


def writes(logits):
    logits[..., 7] = -1e9
    logits[:, -1] -= logits[:, -1].mean(-1, keepdim=True)
    return logits[:, -1].log_softmax(-1)[:, 5].mean()


SMOOTH = {"last": last, "several": several, "softmax": softmax, "all": everything}
STEPS = {
    "rank": rank,
    "likeliest": likeliest,
    "peak": peak,
    "half": over_half_of_the_best,
    "writes": writes,
}
METRICS = SMOOTH | STEPS


def prompts(n_rows, first_difference=0, length=7):
    """Clean and corrupted tokens that are equal before ``first_difference``."""
    clean = torch.tensor(random_rows((length,) * n_rows, 3))
    corrupted = torch.tensor(random_rows((length,) * n_rows, 4))
    corrupted[:, :first_difference] = clean[:, :first_difference]
    return clean, corrupted


def cached(model, clean):
    with torch.no_grad():
        return model.run_with_cache(clean)[1]


def compare(function, *args):
    """Return both results and their largest difference as a share of the metric's range."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, wanted = getattr(ours, function)(*args), getattr(theirs, function)(*args)
    assert found.shape == wanted.shape
    spread = float(wanted.max() - wanted.min())
    return found, wanted, float((found - wanted).abs().max()) / (spread or 1.0)


def test_all_names_are_there():
    assert len(FUNCTIONS) == 18
    names = [
        name
        for name, value in vars(theirs).items()
        if name.endswith("_setter") or name in FUNCTIONS
    ]
    # Those of transformer-lens 4.3; 3.9 has other functions of these names elsewhere.
    names += ["get_act_patch_direct_path", "get_act_patch_direct_path_all_sources"]
    assert {*names, "generic_activation_patch", "make_df_from_ranges"} == set(ours.__all__)
    own, wanted = (
        list(inspect.signature(module.generic_activation_patch).parameters)
        for module in (ours, theirs)
    )
    assert own == [
        *wanted,
        "reduce",
        "baseline",
        "positions",
    ]  # two of transformer-lens 4, and ours


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), GRID_CASES)
def test_grids_of_layer_and_position_run_on_the_cone_engine(tiny_model, family, name, recwarn):
    model = tiny_model(family)
    clean, corrupted = prompts(2, first_difference=2)
    cache = cached(model, clean)
    if (family, name) == ("neox", "resid_mid"):  # attention and MLP are parallel
        with raises(InputError, "activation_name"):
            ours.get_act_patch_resid_mid(model, corrupted, cache, last)
        return
    for metric in METRICS.values():
        found, _, gap = compare(f"get_act_patch_{name}", model, corrupted, cache, metric)
        assert gap < 1e-4, metric.__name__
        assert found.std() > 0 or metric in STEPS.values()
    assert not [w for w in recwarn if "one forward pass" in str(w.message)]


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize(
    "function", sorted(set(FUNCTIONS) - {f"get_act_patch_{name}" for name in GRIDS})
)
@pytest.mark.parametrize("family", choose_cases(["llama"], FAMILIES, slow=["gemma3"]))
def test_other_functions(tiny_model, family, function):
    model = tiny_model(family)
    # Those of every site are made of the others.
    cases = [(2, writes)] if function.endswith("every") else [(1, peak), (2, everything)]
    for n_rows, metric in cases:
        clean, corrupted = prompts(n_rows, length=3)
        assert compare(function, model, corrupted, cached(model, clean), metric)[2] < 1e-4, (
            metric.__name__
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "resid_pre",
        "attn_out",
        "attn_head_out_all_pos",
        "attn_head_out_by_pos",
        "attn_head_k_by_pos",
    ],
)
def test_passes_of_a_large_grid_share_the_unpatched_rows_where_memory_allows_it(
    tiny_model, monkeypatch, name
):
    model, through = tiny_model("llama"), {}
    clean, corrupted = prompts(2, first_difference=2)
    cache = cached(model, clean)
    monkeypatch.setattr(patch_plan, "PASS_TOKENS", 20)
    for memory in (2**40, 0):
        monkeypatch.setattr(grid, "free_memory", lambda devices, memory=memory: memory)
        with monkeypatch.context() as patch:
            counts = counted(adapt(model), patch)
            assert compare(f"get_act_patch_{name}", model, corrupted, cache, several)[2] < 1e-4
            through[memory] = counts[0]
    # Each pass that runs alone computes both rows behind their common prefix once more.
    own = corrupted[:, 2:].numel()
    assert through[0] > through[2**40]
    assert (through[0] - through[2**40]) % own == 0


@pytest.mark.parametrize("name", ["resid_pre", "attn_head_out_by_pos"])
def test_passes_that_do_not_fit_into_memory_are_split(tiny_model, monkeypatch, name):
    """Up to single cells if need be; the values stay, and one warning is shown."""
    model = tiny_model("llama")
    clean, corrupted = prompts(2, first_difference=2)
    cache = cached(model, clean)
    patch = getattr(ours, f"get_act_patch_{name}")
    whole = patch(model, corrupted, cache, last)
    right, sizes = ConeEngine.run_swap_batches, []

    def run(engine, batches, **options):
        cells = sum(len(batch.swaps) * len(layers) for batch, layers in batches)
        sizes.append(cells)
        if cells > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return right(engine, batches, **options)

    monkeypatch.setattr(ConeEngine, "run_swap_batches", run)
    with pytest.warns(UserWarning, match="Memory ran out") as told:
        split = patch(model, corrupted, cache, last)
    torch.testing.assert_close(split, whole, rtol=0, atol=1e-4)
    assert len(told) == 1
    assert min(sizes) <= 3 < max(sizes)


def test_values_come_from_the_given_cache(tiny_model):
    model = tiny_model("llama")
    clean, corrupted = prompts(2)
    cache = cached(model, clean)
    cache.cache_dict["blocks.1.hook_resid_pre"] = 2 * cache["blocks.1.hook_resid_pre"] + 0.1
    assert compare("get_act_patch_resid_pre", model, corrupted, cache, last)[2] < 1e-4


def test_one_clean_row_is_used_for_all_rows(tiny_model):
    model = tiny_model("gpt2")
    clean, _ = prompts(1)
    _, corrupted = prompts(3)
    assert compare("get_act_patch_mlp_out", model, corrupted, cached(model, clean), last)[2] < 1e-4


def test_indices_in_a_frame(tiny_model):
    model = tiny_model("gpt2")
    clean, corrupted = prompts(1)
    cache, frame = (
        cached(model, clean),
        pd.DataFrame([(2, 3), (0, 5), (1, 1)], columns=["layer", "pos"]),
    )
    args = (model, corrupted, cache, last, theirs.layer_pos_patch_setter, "resid_pre")
    with torch.no_grad():
        found, indices = ours.generic_activation_patch(*args, index_df=frame, return_index_df=True)
        wanted = theirs.generic_activation_patch(*args, index_df=frame)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert indices is frame
    with raises(InputError, "index_df"):
        ours.generic_activation_patch(*args, index_df=frame, index_axis_names=("layer", "pos"))


def test_a_cache_of_longer_prompts_is_used_as_transformer_lens_does(tiny_model):
    model = tiny_model("gpt2")
    clean, corrupted = torch.tensor(random_rows((9,), 3)), torch.tensor(random_rows((5,), 4))
    with pytest.warns(UserWarning, match=re.escape("the clean cache has other shapes: (1, 9, 1, ")):
        found = ours.get_act_patch_resid_pre(model, corrupted, cached(model, clean), last)
    with torch.no_grad():
        wanted = theirs.get_act_patch_resid_pre(model, corrupted, cached(model, clean), last)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def half(activation, index, clean):
    activation[:, index[1]] = 0.5 * (activation[:, index[1]] + clean[:, index[1]])
    return activation


def test_a_setter_of_the_user_runs_one_pass_per_cell_and_says_so(tiny_model):
    model = tiny_model("gpt2")
    clean, corrupted = prompts(1, length=4)
    args = (model, corrupted, cached(model, clean), last, half, "resid_pre", ("layer", "pos"))
    with pytest.warns(
        UserWarning,
        match=re.escape(
            "resid_pre: one forward pass per cell is run, because the cone engine has no half"
        ),
    ):
        found = ours.generic_activation_patch(*args)
    with torch.no_grad():
        torch.testing.assert_close(
            found, theirs.generic_activation_patch(*args), atol=1e-6, rtol=1e-6
        )


def by_condition(threshold):
    """A metric that reads one of two positions, by a logit that a patch changes."""
    return lambda logits: (
        logits[0, 2, 5] if (logits[0, -1, 7] - threshold).abs() > 1e-3 else logits[0, 4, 5]
    )


def test_cells_in_which_a_metric_reads_another_position_are_computed_again(tiny_model, monkeypatch):
    model = tiny_model("gpt2")
    clean, corrupted = prompts(1, first_difference=2)
    cache = cached(model, clean)
    with torch.no_grad():
        metric = by_condition(model(corrupted)[0, -1, 7])
    # No checked cell shows the other position.
    monkeypatch.setattr(grid, "choose_cells", lambda cells, *_, **__: [cells[0]])
    with torch.no_grad():
        wanted = theirs.get_act_patch_resid_pre(model, corrupted, cache, metric)
        with pytest.warns(
            UserWarning,
            match=r"in \d+ of 21 cells the metric read other positions .* it read \[.*6\]",
        ):
            found = ours.get_act_patch_resid_pre(model, corrupted, cache, metric)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            declared = ours.get_act_patch_resid_pre(
                model, corrupted, cache, metric, positions=[2, 4, -1]
            )
    torch.testing.assert_close(declared, wanted, atol=1e-5, rtol=1e-5)
    with raises(InputError, "positions"):
        ours.get_act_patch_resid_pre(model, corrupted, cache, metric, positions=[7])


class Counting:
    """A metric whose value depends on the number of its calls."""

    def __init__(self):
        self.first, self.calls = None, 0

    def __call__(self, logits):
        value = logits[0, -1, 5]
        self.first = value if self.first is None else self.first
        self.calls += 1
        return value - self.first + self.calls


def test_a_metric_that_keeps_state_is_called_as_transformer_lens_calls_it(tiny_model):
    model = tiny_model("gpt2")
    clean, corrupted = prompts(1, length=4)
    cache, stored = cached(model, clean), []

    def storing(logits):
        stored.append(logits[0, -1])
        return logits[0, -1, 5]

    for make in (Counting, lambda: storing):
        stored.clear()
        mine, other = make(), make()
        with (
            torch.no_grad(),
            pytest.warns(
                UserWarning, match="keeps state between its calls, so that their order matters"
            ),
        ):
            found = ours.get_act_patch_resid_pre(model, corrupted, cache, mine)
        kept = [one + 0 for one in stored]
        stored.clear()
        with torch.no_grad():
            torch.testing.assert_close(
                found,
                theirs.get_act_patch_resid_pre(model, corrupted, cache, other),
                atol=1e-5,
                rtol=1e-5,
            )
        assert len(kept) == len(stored)
        assert all(
            torch.allclose(one, two, atol=1e-4) for one, two in zip(kept, stored, strict=True)
        )


def test_a_metric_that_takes_gradients(tiny_model):
    model = tiny_model("gpt2")
    clean, corrupted = prompts(1, length=4)
    cache = cached(model, clean)

    def steepness(logits):
        (slope,) = torch.autograd.grad(logits[0, -1].logsumexp(-1), logits, retain_graph=True)
        return slope[0, -1, 3]

    with pytest.warns(
        UserWarning,
        match=(
            "the metric cannot be observed .RuntimeError: element 0 of tensors does not require"
            " grad"
        ),
    ):
        found = ours.get_act_patch_resid_pre(model, corrupted, cache, steepness)
    torch.testing.assert_close(
        found,
        theirs.get_act_patch_resid_pre(model, corrupted, cache, steepness),
        atol=1e-6,
        rtol=1e-5,
    )


@pytest.mark.parametrize(
    "fault", ["a full forward pass of", "a pass failed (RuntimeError: no kernel)"]
)
def test_a_cone_engine_that_differs_or_fails_is_not_used(tiny_model, monkeypatch, fault):
    model, right = tiny_model("gpt2"), HookedBlock.mlp_out
    clean, corrupted = prompts(1)

    def mlp_out(block, x):
        if fault.startswith("a pass"):
            raise RuntimeError("no kernel")
        return -right(block, x)

    monkeypatch.setattr(HookedBlock, "mlp_out", mlp_out)
    with pytest.warns(UserWarning, match=re.escape(fault)):
        found = ours.get_act_patch_resid_pre(model, corrupted, cached(model, clean), several)
    with torch.no_grad():
        wanted = theirs.get_act_patch_resid_pre(model, corrupted, cached(model, clean), several)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
