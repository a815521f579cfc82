"""Signatures of the sweep functions, as a notebook shows them."""

import inspect

import pytest

import anchorlens as al


@pytest.mark.parametrize(
    "sweep", [al.swap_sweep, al.knockout_sweep, al.patch_sweep, al.answer_only_sweep]
)
def test_a_signature_has_plain_types(sweep):
    text = str(inspect.signature(sweep))
    for word in ("Annotated", "pydantic", "FieldInfo", "Strict"):
        assert word not in text
    assert "max_memory: int | str | None = None" in text
    assert "add_bos: bool | None = None" in text
