"""Shapes are checked at run time in every test; the real model is loaded once."""

from jaxtyping import install_import_hook

install_import_hook("anchorlens", "beartype.beartype").__enter__()

from pathlib import Path  # noqa: E402

import pytest  # noqa: E402

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def smollm2():
    """The packaged model, converted once in the user's cache."""
    from anchorlens.models.load import load_model

    return load_model("smollm2-135m-instruct", device="cpu")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real rows of the four data sets, where they lie beside the project."""
    if not (SHARED / "popqa.jsonl").is_file():
        pytest.skip("the real rows in ../shared/data are not here")
    return SHARED
