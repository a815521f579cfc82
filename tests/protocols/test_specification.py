"""A specification: checked where it is made, frozen, written to TOML and read again, and made again
from anchorlens.protocols.specification import read_toml
from run.json.
"""

import inspect
import json
import sys

import click
import numpy as np
import pytest

import anchorlens as al
from anchorlens.cli.protocol_command import flags_of, protocol_command
from anchorlens.errors import DonorError, InputError
from anchorlens.protocols.arguments import GROUPS
from anchorlens.protocols.registry import (
    PROTOCOLS,
    function_of,
    measurement_of,
    specification_of,
)
from anchorlens.protocols.specification import Specification, read_toml
from tests.protocols.sweeps import run
from tests.questions.make import capitals

SPECIFICATIONS = [specification_of(name) for name in PROTOCOLS]
LAYERS = ((0, 1, 2), [2, 0, 1], "0-2", range(3), np.array([1, 0, 2]), "2,0-1")


def refused(spec, **given):
    with pytest.raises(InputError) as error:
        spec(**given)
    return error.value


@pytest.mark.parametrize("spec", SPECIFICATIONS)
def test_every_argument_is_declared_once_with_its_help(spec):
    arguments = spec.arguments()
    assert set(arguments) == set(spec.model_fields)
    for name, one in arguments.items():
        assert one.help.endswith("."), (name, one.help)
        assert one.group in GROUPS, name
    own = [name for name in vars(spec)["__annotations__"] if name in arguments]
    assert list(arguments)[: len(own)] == own  # the protocol's own come first


@pytest.mark.parametrize("spec", SPECIFICATIONS)
def test_an_unknown_argument_suggests(spec):
    error = refused(spec, layer=3)
    assert str(error).startswith(f"{spec.NAME} has no argument 'layer'. Did you mean 'layers'")
    assert error.arguments == ("layer",)
    with pytest.raises(TypeError):
        spec(3)


@pytest.mark.parametrize("spec", SPECIFICATIONS)
def test_layers_are_sorted_and_may_be_written_in_any_way(spec):
    made = [spec(layers=layers) for layers in LAYERS]
    assert {one.layers for one in made} == {(0, 1, 2)}
    assert all(one == made[0] for one in made)
    assert len({hash(one.layers) for one in made}) == 1
    assert spec(layers=2).layers == (2,)
    assert spec(layers="all") == spec(layers=None) == spec()
    assert spec().layers_of(4) == (0, 1, 2, 3)
    assert spec(layers="1-2").layers_of(3) == (1, 2)
    with pytest.raises(InputError, match="-2 to 1"):
        made[0].layers_of(2)


def test_a_long_range_of_indices_is_not_printed():
    with pytest.raises(InputError, match="-30 to 29"):
        al.Swap(layers=range(10_000)).layers_of(30)


WRONG = {
    "layers": (1.5, [0, 0], "deep"),
    "seed": (-1, 1.0, True),
    "n_resamples": (1,),
    "max_new_tokens": (0,),
    "batch_size": ("many", 0),
    "n_spot_checks": (-1,),
    "engine": ("cones", None),
    "add_bos": ("yes", 1),
    "progress": (1,),
    "on_plan": (3,),
    "max_memory": ("", "GB", "-1", -1, 0, "0.4", "2 G i B", "1,5GB", "two", [1]),
    "prompt": (3, "", "  ", None, ["qa"], int),
    "answers": ("mine",),
    "n_splits": (0, 2),
    "probes": ("mine",),
    "probe_site": (3,),
}


@pytest.mark.parametrize("spec", SPECIFICATIONS)
@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_an_invalid_value_is_refused_before_there_is_a_model(spec, name, value):
    error = refused(spec, **{name: value})
    assert error.arguments == (name,)
    assert name in str(error)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (1, 1),
        (1e9, 10**9),
        ("2GB", 2 * 10**9),
        ("512MiB", 2**29),
        (" 1.5 GiB ", 3 * 2**29),
        (".5K", 500),
        ("3B", 3),
    ],
)
def test_memory_is_stored_in_bytes(given, size):
    assert al.Swap(max_memory=given).max_memory == size


PROBED = ("knockout", "patch_tokens", "answer_only")
# Of several arguments the first one is refused.
REFUSED = {
    "swap": [
        {"anchors": ["exact_questoin"]},
        {"anchors": ("exact_question", "exact_question")},
        {"readout": "first"},
        {"readout": 3},
        {"site": "resid"},
        {"site": 3},
        {"donors": "same"},
        {"donors": 3},
        {"direction": "noise"},
        {"align": "first"},
        {"null_region": "own part"},
        {"known_only": "yes"},
    ],
    "knockout": [
        {"knockout_mode": "masc"},
        {"edges": 3},
        {"readout": "prob"},
        {"window": 0},
        {"window": "all"},
        {"window": None},
        {"placebos": None},
        {"split": "fix"},
        {"heads": [0, 0]},
        {"cut_layers": (5, 2)},
    ],
    "patch_tokens": [{"base": "true"}, {"donors": "mean"}, {"n_donors": 0}],
    "answer_only": [{"edges": "exact_question -> later"}, {"readout": "p_true"}],
} | {"": [{"probe_site": "resid_pre"}, {"delta_kind": "signd"}, {"distractor": "rnd"}]}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        (name, given)
        for of, cases in REFUSED.items()
        for name in ([of] if of else PROBED)
        for given in cases
    ],
)
def test_a_value_that_a_protocol_does_not_take_is_refused(name, given):
    (argument,) = given
    with pytest.raises(DonorError if argument == "donors" else InputError) as refused:
        specification_of(name)(**given)
    assert refused.value.arguments == (argument,)
    assert argument in str(refused.value) or "anchor" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "given", "phrase"),
    [
        ("swap", {"anchors": "answer"}, "Use 'pre_answer'"),
        ("swap", {"donors": "zero", "direction": "denoising"}, "needs donor rows"),
        ("swap", {"n_donors": 8, "donors": "zero"}, "n_donors=8 needs donor rows"),
        ("swap", {"n_donors": 2, "donors": "mean"}, "n_donors=2 needs donor rows"),
        (
            "swap",
            {"null_region": "prompt", "n_null_donors": 0},
            "null_region='prompt' needs a null",
        ),
        (
            "swap",
            {"known_only": True, "readout": "p_true"},
            "known_only=True keeps correct answers only",
        ),
        ("swap", {"delta_kind": "signed"}, "needs the readout 'probe' or 'p_true'"),
        (
            "swap",
            {"delta_kind": "confidence", "readout": "probe", "direction": "denoising"},
            "starts from a corrupt",
        ),
        ("swap", {"n_splits": 3, "readout": pow}, "got readout=callable:pow"),
        ("swap", {"answers": "generated"}, "needs the readout 'probe' or 'p_true'"),
        ("knockout", {"edges": "exact_question"}, "must be 'source -> target'"),
        ("knockout", {"edges": "exact_qestion -> later"}, "Did you mean 'exact_question'"),
        ("knockout", {"edges": "exact_question -> latter"}, "Did you mean 'later'"),
        ("knockout", {"site": "resid_post"}, "has no argument 'site'. Did you mean 'probe_site'"),
    ],
)
def test_what_does_not_fit_together_is_named_with_what_to_do(name, given, phrase):
    with pytest.raises(InputError) as refused:
        specification_of(name)(**given)
    assert refused.value.arguments == (next(iter(given)),)
    assert phrase in str(refused.value)


def test_one_anchor_may_be_a_text_and_edges_are_written_alike():
    assert al.Swap(anchors="exact_question") == al.Swap(anchors=["exact_question"])
    assert al.Swap(anchors="exact_question, pre_answer") == al.Swap()
    assert al.Knockout(edges="exact_question->later").edges == "exact_question -> later"
    assert al.Knockout(edges=" subject ->answer").anchor == "subject -> answer"


@pytest.mark.parametrize("spec", SPECIFICATIONS)
def test_it_is_frozen_and_another_one_is_made_of_it(spec):
    made = spec(seed=3, layers="0-2", progress=False)
    for name, value in (("seed", 4), ("of_my_own", 1)):
        with pytest.raises(InputError, match=rf"frozen.*spec.replace\({name}=...\)"):
            setattr(made, name, value)
    assert made.replace(seed=4, layers=5) == spec(seed=4, layers=[5], progress=False)
    assert (
        made.replace()
        == made
        == spec(seed=3, layers=[0, 1, 2], progress=False)
        != spec(seed=4, layers="0-2", progress=False)
    )
    assert made.seed == 3
    for wrong in ({"seed": -1}, {"layer": 3}):
        with pytest.raises(InputError):
            made.replace(**wrong)


@pytest.mark.parametrize("spec", SPECIFICATIONS)
def test_identity_is_json_and_leaves_out_how(spec):
    plain = spec()
    assert json.loads(json.dumps(plain.identity())) == plain.identity()
    how = spec(
        batch_size=3,
        engine="reference",
        max_memory="2GB",
        n_spot_checks=0,
        progress=False,
        on_plan=print,
    )
    assert how.identity() == plain.identity()
    assert how.own_code() == {}
    assert spec(seed=1).identity() != plain.identity()
    assert how.max_memory == 2 * 10**9


def test_a_specification_of_ones_own_declares_its_arguments_once():
    class Mine(al.Knockout):
        """Mine."""

        NAME = "mine"

    assert list(Mine.arguments()) == list(al.Knockout.arguments())
    assert str(refused(Mine, seeds=1)).startswith(
        "mine has no argument 'seeds'. Did you mean 'seed'"
    )
    assert issubclass(Mine, Specification)


CHANGES = [
    {},
    {"layers": "0-8:4", "seed": 7},
    {"batch_size": 3, "engine": "reference", "max_memory": "1.5GiB", "n_spot_checks": 0},
]
PROMPTS = [
    {"layers": "0-8:4", "seed": 7, "prompt": "fewshot(3, seed=2)"},
    {
        "prompt": 'Frage: {question}\nAntwort "kurz":',
        "add_bos": False,
        "n_resamples": 50,
        "max_new_tokens": 8,
    },
]
OWN = {
    "swap": [
        {
            "anchors": "exact_question",
            "window": 3,
            "direction": "denoising",
            "donors": "random",
            "n_donors": 2,
            "align": "last",
        },
        {
            "readout": "probe",
            "anchors": ["answer", "exact_question"],
            "n_splits": 4,
            "probe_site": "mlp_out",
        },
        {"known_only": True, "n_null_donors": 0},
    ],
    "knockout": [
        {
            "edges": "subject->answer",
            "knockout_mode": "zero",
            "heads": [3, 1],
            "window": 5,
            "cut_layers": "2-11",
            "split": "per_layer",
        },
        {
            "readout": "p_true",
            "placebos": False,
            "answers": "generated",
            "delta_kind": "signed",
            "distractor": "random",
        },
    ],
    "patch": [{"site": "mlp_out", "direction": "noising", "add_bos": False, "n_resamples": 50}],
}
CASES = [
    (spec, change)
    for spec in SPECIFICATIONS
    for change in (*CHANGES, *(() if spec.DATA == "pairs" else PROMPTS), *OWN.get(spec.NAME, ()))
]


@pytest.mark.parametrize(("spec", "change"), CASES)
def test_toml_says_the_same(spec, change):
    made = spec(**change)
    text = made.to_toml()
    assert spec.from_toml(text) == made
    assert bool(text) == bool(change)
    if sys.version_info >= (3, 11):
        import tomllib

        assert set(tomllib.loads(text)) == set(change)


@pytest.mark.parametrize("spec", SPECIFICATIONS)
def test_toml_by_hand(spec):
    wanted = spec(layers=[0, 1, 2], n_resamples=20)
    for name in ("n-resamples", "n_resamples", "resamples"):  # as in Python, or as its flag
        assert spec.from_toml(f'layers = "0-2"\n{name} = 20\n') == wanted
    for text in ("layers = 0-2", "layer = 3", "seed = 1.5", "resamples = 20\nn_resamples = 20"):
        with pytest.raises(InputError):
            spec.from_toml(text)
    # Whether a bar is drawn is no part of what is measured.
    assert spec(progress=False).to_toml() == ""


@pytest.mark.parametrize(("name", "value"), [("donors", lambda base, pool: pool), ("readout", pow)])
def test_what_a_file_cannot_hold_is_named(name, value):
    with pytest.raises(InputError, match=f"^{name}=.* cannot be written to a file"):
        al.Swap(**{name: value}).to_toml()


def config_of(result, folder):
    """As it lies in run.json."""
    return json.loads((result.save(folder) / "run.json").read_text())["sweeps"][0]["config"]


RESOLVED = [
    (
        "swap",
        {
            "layers": [0, 2],
            "prompt": "Q: {question}\\nA:",
            "donors": "random",
            "align": "last",
            "anchors": "exact_question",
        },
    ),
    (
        "swap",
        {
            "layers": [0],
            "add_bos": True,
            "donors": "mean",
            "n_null_donors": 0,
            "n_resamples": 20,
            "seed": 5,
            "window": 2,
        },
    ),
    (
        "knockout",
        {
            "layers": [0, 2],
            "cut_layers": (0, 2),
            "n_resamples": 20,
            "knockout_mode": "zero",
            "heads": [1],
            "placebos": False,
        },
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "given"), RESOLVED)
def test_run_json_gives_the_specification_again(tiny_model, tmp_path, name, given):
    given = {"add_bos": False} | given
    spec, data = (
        specification_of(name)(**given),
        (capitals(4) if name == "swap" else al.load_qa("popqa-sample", limit=40)),
    )
    result = run(
        measurement_of(name),
        tiny_model("llama"),
        data,
        spec.replace(n_spot_checks=0, progress=False),
    )
    assert specification_of(name).from_config(config_of(result, tmp_path / "run")) == spec


@pytest.mark.slow
def test_what_was_left_open_was_resolved_and_is_the_same_sweep(tiny_model, tmp_path):
    """All layers, BOS, shots: run.json says which; measured again by it, the sweep has the same
    name and the same numbers.
    """
    model, data = tiny_model("llama"), capitals(6)
    result = al.swap_sweep(
        model, data, prompt="fewshot(2)", align="last", n_donors=1, n_resamples=20, progress=False
    )
    config = config_of(result, tmp_path / "run")
    assert (config["layers"], config["add_bos"], config["prompt"]) == (
        [0, 1, 2],
        False,
        "fewshot(2, seed=0)",
    )
    again = run(measurement_of("swap"), model, data, al.Swap.from_config(config))
    assert again.run_id == result.run_id
    assert (again.delta_p == result.delta_p).all()


@pytest.mark.slow
def test_a_truth_readout_comes_back_and_code_of_ones_own_cannot(tiny_model, tmp_path):
    model, data = tiny_model("llama"), al.load_qa("popqa-sample", limit=40)
    given = {
        "readout": "probe",
        "layers": [0],
        "add_bos": False,
        "align": "last",
        "n_donors": 1,
        "n_splits": 1,
        "n_resamples": 20,
    }
    result = al.swap_sweep(model, data, **given, progress=False)
    assert al.Swap.from_config(config_of(result, tmp_path / "run")) == al.Swap(**given)

    def every(base, pool):
        return pool

    with_probes = al.swap_sweep(model, data, **given, probes=result.probes, progress=False)
    with_donors = al.swap_sweep(
        model, capitals(4), layers=0, align="last", donors=every, progress=False
    )
    configs = [
        config_of(own, tmp_path / name)
        for own, name in ((with_probes, "probes"), (with_donors, "donors"))
    ]
    assert configs[0]["own_code"] == {"probes": result.probes.fingerprint}
    for config, name in zip(configs, ("see own_code", "donors"), strict=True):
        with pytest.raises(InputError, match=rf"function of yours \({name}\)"):
            al.Swap.from_config(config)


@pytest.mark.parametrize("spec", SPECIFICATIONS)
def test_the_short_way_has_every_argument_with_its_help(spec):
    sweep = getattr(al, function_of(spec.NAME))
    signature, said = inspect.signature(sweep), inspect.getdoc(sweep)
    model, data, *rest = signature.parameters.values()
    assert (model.name, data.name) == ("model", "data")
    assert [one.name for one in rest] == [
        *spec.arguments(),
        "out",
        "overwrite",
        "resume",
        "restart",
        "job",
        "executor",
    ]
    assert all(one.kind is one.KEYWORD_ONLY for one in rest)
    rest = rest[:-6]
    plain = spec()
    assert all(getattr(plain, one.name) == one.default for one in rest)
    for name, one in spec.arguments().items():
        assert f"    {name}: {one.help}" in said
    assert said.startswith(inspect.getdoc(spec).splitlines()[0])
    for part in ("Args:", "Returns:", "Raises:", "    model: ", "    data: "):
        assert part in said
    assert function_of(spec.NAME) in repr(sweep)


SWAP_GROUPS = {
    "Measurement": ("anchors", "layers", "prompt"),
    "Controls": ("n_null_donors", "null_region"),
    "Truth probes and readouts": ("answers", "probe_site"),
    "Statistics": ("n_resamples", "seed"),
    "Execution": ("batch_size", "n_spot_checks"),
}


def test_help_and_docstring_show_arguments_by_group():
    context = click.Context(click.Command("swap"))
    context.meta["anchorlens.help_all"] = True
    told = "\n" + protocol_command("swap").get_help(context)
    said = (inspect.getdoc(al.swap_sweep) or "").replace("Args:\n", "Args: Measurement\n")
    flags = flags_of(al.Swap)
    for text, head, names in (
        (told, "\n{}:\n", flags),
        (said, "\nArgs: {}\n", {name: f"    {name}: " for name in flags}),
    ):
        starts = [text.index(head.format(title)) for title in SWAP_GROUPS]
        assert starts == sorted(starts)
        for start, end, own in zip(starts, [*starts[1:], None], SWAP_GROUPS.values(), strict=True):
            assert all(names[name] in text[start:end] for name in own), own


def test_the_number_of_shots_is_said_where_it_was_left_out():
    assert al.Swap(prompt="fewshot").prompt == "fewshot(4)"
    assert al.Swap(prompt="fewshot") == al.Swap(prompt="fewshot(4)")


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    """Editors of Windows write one."""
    file = tmp_path / "swap.toml"
    file.write_text("seed = 3\n", encoding="utf-8-sig")
    assert read_toml(file) == {"seed": 3}
