"""Errors of the adapter; its numbers are tested with the engines."""

import pytest

from anchorlens.errors import InputError
from anchorlens.models.adapter import site_name
from anchorlens.models.load import adapt
from tests.raised import raises

pytestmark = pytest.mark.usefixtures("unchecked")


def test_names_of_sites():
    assert site_name("resid_pre") == "resid_pre"
    assert site_name(lambda layer: f"blocks.{layer}.hook_z") == "callable:<lambda>"


@pytest.mark.parametrize("site", [3, None, ("resid_pre",)])
def test_a_site_is_a_name_or_a_function(tiny_model, site):
    for call in (lambda: site_name(site), lambda: adapt(tiny_model("gpt2")).hook_name(site, 0)):
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value).startswith(
            f"site={site!r}: not a site. Give one of resid_pre, resid_mid"
        )


@pytest.mark.parametrize("answer", ["blocks.0.hook_nothing", None, ["blocks.0.hook_resid_pre"]])
def test_a_users_site_must_name_a_hook(tiny_model, answer):
    with pytest.raises(InputError) as caught:
        adapt(tiny_model("gpt2")).hook_name(lambda layer: answer, 0)
    assert f"hook name {answer!r}, which this model does not have" in str(caught.value)


def test_an_adapter_needs_a_model_of_transformer_lens():
    with raises(InputError, "model"):
        adapt("smollm2-135m-instruct")
