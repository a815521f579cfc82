"""A quick look: fewer layers and donors, no nulls, and no claim, also after it is loaded."""

import json

import pytest

import anchorlens as al
from anchorlens.errors import InputError
from anchorlens.figures.choose_figure import main_figure
from anchorlens.protocols.registry import PROTOCOLS, specification_of
from anchorlens.results.vocabulary import row_words
from tests.protocols.patch.test_patch import MANY
from tests.protocols.sweeps import measured
from tests.questions.make import capitals

# Arguments of a protocol -> what a quick look measures.
MEASURED = (
    ("swap", {}, {"n_donors": 1, "n_null_donors": 0, "layers": None}),
    ("swap", {"donors": "mean"}, {"n_donors": 1}),
    ("swap", {"n_donors": 4, "layers": "0-3"}, {"n_donors": 4, "layers": (0, 1, 2, 3)}),
    ("swap", {"direction": "both"}, {"n_donors": 1, "n_null_donors": 0}),
    ("knockout", {}, {"placebos": False}),
    ("patch", {}, {"controls": "none"}),
    ("patch", {"controls": ()}, {"controls": "none"}),
    ("patch_tokens", {"n_donors": 3}, {"n_donors": 3, "placebos": False}),
    ("answer_only", {"layers": -1}, {"layers": (-1,), "placebos": False}),
)
# Arguments that ask for what a quick look leaves out -> argument of the error.
CONTRADICTIONS = (
    ("swap", {"n_null_donors": 2}, "n_null_donors"),
    ("swap", {"n_null_donors": 1}, "n_null_donors"),
    ("swap", {"null": ("displaced",)}, "null"),
    ("swap", {"layers": "all"}, "layers"),
    ("knockout", {"placebos": True}, "placebos"),
    ("patch_tokens", {"placebos": True}, "placebos"),
    ("answer_only", {"placebos": True}, "placebos"),
    ("patch", {"controls": "auto"}, "controls"),
    ("patch", {"controls": ("other_pair",)}, "controls"),
    ("patch", {"layers": " ALL "}, "layers"),
    ("swap", {"quick": 1}, "quick"),
)


def test_given_layers_and_donors_are_kept_and_what_contradicts_is_an_error():
    for name, given, expected in MEASURED:
        spec = specification_of(name)(**{"quick": True, **given})
        assert {key: getattr(spec, key) for key in expected} == expected, (name, given)
        for again in (spec.replace(seed=1), *spec.each_direction()):
            assert {key: getattr(again, key) for key in expected} == expected, (name, given)
        read = type(spec).from_toml(spec.to_toml())
        assert read == spec, (name, given)
    for name, given, argument in CONTRADICTIONS:
        with pytest.raises(InputError) as error:
            specification_of(name)(**{"quick": True, **given})
        assert error.value.arguments == (argument,), (name, given)
    for name in PROTOCOLS:
        spec = specification_of(name)()
        assert not spec.quick
        quick = spec.replace(quick=True)
        assert quick == specification_of(name)(quick=True)
        for n_layers, layers in ((30, (*range(0, 30, 4), 29)), (2, (0, 1)), (1, (0,))):
            assert quick.layers_of(n_layers) == layers
            assert quick.resolve(n_layers=n_layers, n_heads=2).layers_of(n_layers) == layers


def check_quick(result, path):
    """Raise if a quick look, or the run that it is saved as, claims something or is not named."""
    result.save(path)
    assert json.loads((path / "run.json").read_text())["sweeps"][0]["config"]["quick"] is True
    (loaded,) = al.load_run(path)
    for one in (result, loaded):
        assert one.is_quick
        assert one.verdict.startswith("Quick look, nothing is claimed: ")
        assert "without quick=True" in one.verdict
        assert "Largest Δ" in one.verdict
        n = one.curves(all_columns=True)["n"].max()
        assert f"claimed: {row_words(one.protocol.name).count(int(n))}" in one.verdict
        assert not one.findings.statements
        # A swap that starts from a low P says why its curve is flat.
        assert ("P before is " in one.verdict) == (one.protocol.name == "swap")
        figure = main_figure([one], with_controls=False)
        said = str(figure.layout.meta) + str(figure.layout.title.text)
        assert "quick look, nothing is claimed" in said
    assert set(result.samples()["control"]) == {"none"}
    assert al.verify_run(path, cells=0).ok


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_quick_look_claims_nothing(tiny_model, tmp_path):
    model = tiny_model("llama")
    for name in ("swap", "knockout", "patch_tokens", "answer_only"):
        check_quick(measured(model, name, quick=True), tmp_path / name)
    pairs = al.load_pairs(MANY)
    grid = al.patch_sweep(tiny_model("gpt2"), pairs, quick=True, progress=False)
    check_quick(grid, tmp_path / "patch")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_both_directions_claim_neither_necessity_nor_sufficiency(tiny_model):
    both = al.swap_sweep(
        tiny_model("llama"), capitals(6), direction="both", align="last", quick=True, progress=False
    )
    assert both.verdict.startswith("Noising: Quick look, nothing is claimed: ")
    assert "is shown" not in both.verdict
    # Each verdict is printed once, before the tables.
    for one in both.results:
        assert repr(both).count(one.verdict) == repr(both).count(one.findings.notes[0]) == 1
