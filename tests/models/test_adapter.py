"""What the seam refuses in words of its own. Its numbers are those of the engine's tests."""

import pytest

from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter, site_name
from tests.models.test_load import unchecked


def test_names_of_sites():
    assert site_name("resid_pre") == "resid_pre"
    assert site_name(lambda layer: f"blocks.{layer}.hook_z") == "callable:<lambda>"


@pytest.mark.parametrize("site", [3, None, ("resid_pre",)])
def test_a_site_is_a_name_or_a_function(tiny_model, site):
    adapter = Adapter(tiny_model("gpt2"))
    for call in (lambda: unchecked(site_name)(site), lambda: unchecked(Adapter.hook_name)(adapter, site, 0)):
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value) == (
            f"site={site!r} is no site: give one of 'resid_pre', 'resid_mid', 'resid_post', 'attn_out', 'mlp_out', or a function "
            "from a layer to a hook's name."
        )


@pytest.mark.parametrize("answer", ["blocks.0.hook_nothing", None, ["blocks.0.hook_resid_pre"]])
def test_a_users_site_must_name_a_hook(tiny_model, answer):
    with pytest.raises(InputError) as caught:
        Adapter(tiny_model("gpt2")).hook_name(lambda layer: answer, 0)
    assert str(caught.value) == (
        f"Your site gave the hook name {answer!r}, which this model does not have. Return the name of a hook that carries "
        "[example pos d_model], such as f'blocks.{layer}.hook_resid_pre'."
    )


def test_an_adapter_needs_a_hooked_transformer():
    with pytest.raises(InputError) as caught:
        unchecked(Adapter.__init__)(object.__new__(Adapter), "smollm2-135m-instruct")
    assert str(caught.value) == (
        "A HookedTransformer is needed here, not an object of type str: load it with al.load_model(...)."
    )
