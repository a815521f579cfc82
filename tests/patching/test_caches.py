"""Clean caches as people have them: edited, partial, of other dtypes and shapes; and unusual
settings of torch and the model.
"""

import threading
import warnings

import pandas as pd
import pytest
import torch
import transformer_lens.patching as theirs

from anchorlens import patching as ours
from anchorlens.errors import InputError
from anchorlens.models.load import load_model
from tests.patching.test_patching import cached, last, prompts, rank
from tests.raised import raises


def both(model, corrupted, cache, metric=last, function="get_act_patch_resid_pre"):
    """Results of both libraries; a fallback to one pass per cell is an error."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*one forward pass per cell.*")
        found = getattr(ours, function)(model, corrupted, cache, metric)
        return found, getattr(theirs, function)(model, corrupted, cache, metric)


def make_massive(model):
    """Give the first position one activation that is far larger than all others, as in large
    models.
    """
    with torch.no_grad():
        model.pos_embed.W_pos[0, 3] += 2e4
    return model


@pytest.mark.slow
@pytest.mark.parametrize("size", [0.2, 1e-3])
def test_a_small_edit_beside_a_massive_activation_is_patched(tiny, size):
    model = make_massive(load_model(str(tiny("gpt2")), device="cpu"))
    _, corrupted = prompts(1)
    own = cached(model, corrupted)
    assert own["blocks.1.hook_resid_pre"].abs().max() > 1e4
    cache = {
        name: value + size * torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
        for name, value in own.items()
    }
    for metric in (last, rank):
        found, wanted = both(model, corrupted, cache, metric)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    found, _ = both(model, corrupted, cache)
    with torch.no_grad():
        assert ((found[:, 1:] - last(model(corrupted))).abs() > 1e-4 * size).any(1).all()


@pytest.mark.parametrize("share", [0.01, 0.5])
def test_an_interpolated_cache(tiny_model, share):
    model = tiny_model("llama")
    clean, corrupted = prompts(2, first_difference=2)
    own, other = cached(model, corrupted), cached(model, clean)
    cache = {name: own[name] + share * (other[name] - own[name]) for name in own}
    found, wanted = both(model, corrupted, cache)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_cache_with_numbers_that_are_not_finite(tiny_model, value):
    model = tiny_model("gpt2")
    clean, corrupted = prompts(1)
    cache = {name: each.clone() for name, each in cached(model, clean).items()}
    cache["blocks.1.hook_attn_out"][:, 4, 0] = value
    found, wanted = both(model, corrupted, cache, function="get_act_patch_attn_out")
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5, equal_nan=True)
    assert found[1, 4].isnan() and not found[0].isnan().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_cache_of_another_dtype(tiny_model, dtype):
    model = tiny_model("gpt2")
    clean, corrupted = prompts(2)
    cache = {name: value.to(dtype) for name, value in cached(model, clean).items()}
    torch.testing.assert_close(*both(model, corrupted, cache), atol=1e-5, rtol=1e-5)


def test_a_cache_with_some_layers(tiny_model):
    model = tiny_model("gpt2")
    clean, corrupted = prompts(1)
    with torch.no_grad():
        cache = model.run_with_cache(
            clean, names_filter=lambda name: name == "blocks.1.hook_resid_pre"
        )[1]
        frame = pd.DataFrame([(1, 3), (1, -1)], columns=["layer", "pos"])
        args = (model, corrupted, cache, last, theirs.layer_pos_patch_setter, "resid_pre")
        found = ours.generic_activation_patch(*args, index_df=frame)
        torch.testing.assert_close(
            found, theirs.generic_activation_patch(*args, index_df=frame), atol=1e-5, rtol=1e-5
        )
        with raises(InputError, "clean_cache", word="blocks.0.hook_resid_pre"):
            ours.get_act_patch_resid_pre(model, corrupted, cache, last)


def test_wrong_arguments_are_named_with_their_cure(tiny_model, unchecked):
    model = tiny_model("gpt2")
    clean, corrupted = prompts(1)
    cache = cached(model, clean)
    args = (last, theirs.layer_pos_patch_setter, "resid_pre")
    with raises(InputError, "clean_cache", word="remove_batch_dim"):
        ours.get_act_patch_resid_pre(
            model, corrupted, cached(model, clean).remove_batch_dim(), last
        )
    with raises(InputError, "clean_cache", word="run_with_cache"):
        ours.get_act_patch_resid_pre(model, corrupted, clean, last)
    with raises(InputError, "corrupted_tokens"):
        ours.get_act_patch_resid_pre(model, "a prompt", cache, last)
    for row, phrase in (
        ((9, 1), "layer"),
        ((0, 9), "pos=9"),
        ((-1, 0), "layer"),
    ):
        frame = pd.DataFrame([row], columns=["layer", "pos"])
        with raises(InputError, "index_df", word=phrase):
            ours.generic_activation_patch(model, corrupted, cache, *args, index_df=frame)


def test_no_index_gives_no_value(tiny_model):
    model = tiny_model("gpt2")
    clean, corrupted = prompts(1)
    frame = pd.DataFrame([], columns=["layer", "pos"])
    args = (
        model,
        corrupted,
        cached(model, clean),
        last,
        theirs.layer_pos_patch_setter,
        "resid_pre",
    )
    assert (
        ours.generic_activation_patch(*args, index_df=frame).shape
        == theirs.generic_activation_patch(*args, index_df=frame).shape
    )


@pytest.mark.parametrize("function", ["k_by_pos", "v_all_pos", "out_by_pos"])
def test_ungrouped_heads_of_keys_and_values(tiny, function):
    model = load_model(str(tiny("llama")), device="cpu")
    model.set_ungroup_grouped_query_attention(True)
    clean, corrupted = prompts(2, first_difference=1)
    found, wanted = both(
        model, corrupted, cached(model, clean), function=f"get_act_patch_attn_head_{function}"
    )
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_default_dtype_is_that_of_the_result(tiny_model, dtype):
    model = tiny_model("gpt2")
    clean, corrupted = prompts(1)
    cache, before = cached(model, clean), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        found, wanted = both(model, corrupted, cache)
    finally:
        torch.set_default_dtype(before)
    assert found.dtype is wanted.dtype is dtype
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_another_default_device_and_a_compiled_model(tiny_model, unchecked):
    model = tiny_model("gpt2")
    clean, corrupted = prompts(1)
    cache = cached(model, clean)
    with torch.device("meta"):
        found, wanted = both(model, corrupted, cache)
    assert found.device.type == wanted.device.type == "cpu"
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert torch.equal(both(torch.compile(model), corrupted, cache)[0], found)


def test_a_model_without_numbers_is_refused(tiny):
    model = load_model(str(tiny("gpt2")), device="cpu")
    clean, corrupted = prompts(1)
    cache = cached(model, clean)
    with raises(InputError, "model"):
        ours.get_act_patch_resid_pre(model.to("meta"), corrupted, cache, last)


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"positions": "-1"}, "positions"),
        ({"clean_cache": None}, "clean_cache"),
        ({"patching_metric": "accuracy"}, "patching_metric"),
        ({"activation_name": "resid_pree"}, "activation_name"),
        (
            {"index_axis_names": None, "index_df": pd.DataFrame({"layer": [0, None], "pos": 1})},
            "index_df",
        ),
    ],
)
def test_an_argument_without_meaning_is_refused_by_name(unchecked, tiny_model, change, argument):
    model = tiny_model("gpt2")
    clean, corrupted = prompts(1)
    given = {
        "clean_cache": cached(model, clean),
        "patching_metric": last,
        "patch_setter": ours.layer_pos_patch_setter,
        "activation_name": "resid_pre",
        "index_axis_names": ("layer", "pos"),
    }
    with raises(InputError, argument):
        ours.generic_activation_patch(model, corrupted, **given | change)


def test_a_cache_of_a_shorter_prompt_is_refused(tiny_model):
    model = tiny_model("gpt2")
    clean, corrupted = prompts(1)
    cache = cached(model, clean[:, :-1])
    with raises(InputError, "clean_cache"):
        ours.get_act_patch_resid_pre(model, corrupted, cache, last)


def test_two_threads_share_a_model(tiny_model):
    model = tiny_model("gpt2")
    clean, corrupted = prompts(1)
    cache, found = cached(model, clean), {}

    def run(number):
        with torch.no_grad():
            found[number] = ours.get_act_patch_resid_pre(model, corrupted, cache, last)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], both(model, corrupted, cache)[1], atol=1e-5, rtol=1e-5)
