"""A specification: checked where it is made, frozen, written to TOML and read again, and made again from run.json."""

import inspect
import json
import sys

import numpy as np
import pytest

import anchorlens as al
from anchorlens.errors import DonorError, InputError
from anchorlens.protocols.driver import run
from anchorlens.protocols.registry import PROTOCOLS, protocol_of, specification_of
from anchorlens.protocols.specification import Specification, whole_run
from anchorlens.vocabulary import FRACTIONS
from tests.questions.make import capitals

SPECIFICATIONS = [specification_of(name) for name in PROTOCOLS]
LAYERS = ((0, 1, 2), [2, 0, 1], "0-2", range(3), np.array([1, 0, 2]), "2,0-1")


def refusal(spec, **given):
    with pytest.raises(InputError) as told:
        spec(**given)
    return str(told.value)


# --- what it takes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECIFICATIONS)
def test_every_argument_is_declared_once_with_its_help(spec):
    arguments = spec.arguments()
    assert set(arguments) == set(spec.model_fields)
    for name, one in arguments.items():
        assert one.help.endswith("."), (name, one.help)
    own = [name for name in vars(spec)["__annotations__"] if name in arguments]
    assert list(arguments)[: len(own)] == own  # the protocol's own come first


@pytest.mark.parametrize("spec", SPECIFICATIONS)
def test_an_unknown_argument_suggests(spec):
    assert refusal(spec, layer=3).startswith(f"{spec.NAME} has no argument 'layer'. Did you mean 'layers'")
    assert refusal(spec, xyzzy=3).startswith(f"{spec.NAME} has no argument 'xyzzy'. Known: add_bos, ")
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
    with pytest.raises(InputError, match=r"^layers must be different numbers from 0 to 1, got \(0, 1, 2\)\.$"):
        made[0].layers_of(2)


def test_a_long_run_of_numbers_is_not_printed():
    with pytest.raises(InputError) as told:
        whole_run(range(10_000), 30, "layers")
    assert str(told.value) == "layers must be different numbers from 0 to 29, got 10000 values (0, 1, 2, ...)."


@pytest.mark.parametrize("spec", SPECIFICATIONS)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"layers": 1.5}, "layers takes 'all', a number, a list of numbers or a text such as '0-11'; got 1.5."),
        ({"layers": [0, 0]}, "layers must be different numbers from 0 on, got [0, 0]."),
        ({"layers": "deep"}, "layers='deep' is not understood. Write 0-11, or 0,4,8, or 0-28:4."),
        ({"seed": -1}, "seed must be at least 0, got -1."),
        ({"seed": 1.0}, "seed takes a whole number; got 1.0."),
        ({"seed": True}, "seed takes a whole number; got True."),
        ({"n_resamples": 1}, "n_resamples must be at least 2, got 1."),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0."),
        ({"batch_size": "many"}, "batch_size takes a whole number, or None for what fits; got 'many'."),
        ({"batch_size": 0}, "batch_size must be at least 1, or None for what fits, got 0."),
        ({"check_cells": -1}, "check_cells must be at least 0, got -1."),
        ({"engine": "cones"}, "Unknown engine='cones'. Did you mean 'cone'?"),
        ({"engine": None}, "engine takes one of cone, reference; got None."),
        ({"max_memory": "lots"}, "max_memory='lots' is not understood. Write bytes, or for example '2GB' or '512MiB'."),
        ({"add_bos": "yes"}, "add_bos takes True, False or None; got 'yes'."),
        ({"progress": 1}, "progress takes True or False; got 1."),
        ({"on_plan": 3}, "on_plan takes a function that takes the plan; got 3."),
    ],
)
def test_what_is_refused_before_there_is_a_model(spec, given, said):
    assert refusal(spec, **given) == said


@pytest.mark.parametrize("spec", SPECIFICATIONS)
@pytest.mark.parametrize("prompt", [3, "", "  ", None, ["qa"], int])
def test_what_can_be_no_prompt(spec, prompt):
    assert refusal(spec, prompt=prompt).startswith(
        "prompt takes 'qa', 'fewshot(4)', 'chat', a text with {question} in it, or an "
    )


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"anchors": ["questoin"]}, InputError, "Unknown anchor 'questoin'. Did you mean 'question'"),
        ({"anchors": 3}, InputError, "anchors takes names of anchors ("),
        ({"anchors": "answer"}, InputError, "The anchor 'answer' is for readouts after the answer"),
        ({"readout": 3}, InputError, "readout takes one of first_token, answer_mean, answer_joint, probe, p_true, or a function of"),
        ({"site": 3}, InputError, "site takes one of resid_pre, "),
        ({"donors": "same"}, DonorError, "Unknown donors='same'. Did you mean 'same_relation'?"),
        ({"donors": 3}, DonorError, "donors takes one of same_relation, random, mean, zero, noise, or a function of"),
        ({"known_only": "yes"}, InputError, "known_only takes True or False; got 'yes'."),
        ({"direction": "denoising", "donors": "zero"}, InputError,
         "direction='denoising' needs donor rows, and donors='zero' has none."),
        ({"delta_kind": "signed"}, InputError,
         "delta_kind= belongs to the readouts 'probe' and 'p_true'; this sweep has readout='first_token'."),
        ({"fractions": (0.5, 0.25, 0.25), "readout": pow}, InputError,
         "fractions= belongs to the readouts 'probe' and 'p_true'; this sweep has readout=callable:pow."),
        ({"readout": "probe", "direction": "denoising"}, InputError, "direction='denoising' starts from a corrupt input"),
        ({"readout": "p_true", "known_only": True}, InputError, "known_only=True keeps right answers alone"),
        ({"probes": "mine"}, InputError, "probes takes LayerProbes; got 'mine'."),
        ({"fractions": (1, 0, 0)}, InputError, "fractions must be three positive numbers that sum to 1"),
    ],
)  # fmt: skip
def test_what_a_swap_refuses(given, error, said):
    with pytest.raises(error) as told:
        al.Swap(**given)
    assert str(told.value).startswith(said)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"edges": 3}, "edges takes a text such as 'question -> later'; got 3."),
        (
            {"edges": "question"},
            "edges='question' is not understood. Write 'source -> target', for example 'question -> later'.",
        ),
        ({"heads": [0, 0]}, "heads must be different numbers from 0 on, got [0, 0]."),
        ({"cut_layers": (5, 2)}, "cut_layers must be first and last, such as (0, 11); got (5, 2)."),
        ({"window": 0}, "window must be at least 1, or None for all layers up to the one that is read, got 0."),
        ({"placebos": None}, "placebos takes True or False; got None."),
        ({"site": "resid_post"}, "knockout has no argument 'site'. Did you mean 'probe_site' or 'split'?"),
    ],
)
def test_what_a_knockout_refuses(given, said):
    assert refusal(al.Knockout, **given) == said


def test_one_anchor_may_be_a_text_and_edges_are_written_alike():
    assert al.Swap(anchors="question") == al.Swap(anchors=["question"])
    assert al.Swap(anchors="question, answer_site") == al.Swap()
    assert al.Knockout(edges="question->later").edges == "question -> later"
    assert al.Knockout(edges=" subject ->answer").anchor == "subject -> answer"


# --- frozen, equal, whole ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECIFICATIONS)
def test_it_is_frozen(spec):
    made = spec(seed=3)
    for name, value in (("seed", 4), ("fractions", (0.5, 0.25, 0.25)), ("of_my_own", 1)):
        with pytest.raises(InputError) as told:
            setattr(made, name, value)
        assert str(told.value) == f"A specification is frozen. Make another one: spec.changed({name}=...)."
    assert made == spec(seed=3) != spec(seed=4)
    assert made.fractions == FRACTIONS


@pytest.mark.parametrize("spec", SPECIFICATIONS)
def test_another_one_is_made_of_it(spec):
    made = spec(seed=3, layers="0-2", progress=False)
    other = made.changed(seed=4, layers=5)
    assert other == spec(seed=4, layers=[5], progress=False)
    assert made == spec(seed=3, layers=[0, 1, 2], progress=False)
    assert made.changed() == made
    with pytest.raises(InputError, match="seed must be at least 0, got -1"):
        made.changed(seed=-1)
    with pytest.raises(InputError, match="has no argument 'layer'. Did you mean 'layers'"):
        made.changed(layer=3)


@pytest.mark.parametrize("spec", SPECIFICATIONS)
def test_identity_is_json_and_leaves_out_how(spec):
    plain = spec()
    assert json.loads(json.dumps(plain.identity())) == plain.identity()
    how = spec(batch_size=3, engine="reference", max_memory="2GB", check_cells=0, progress=False, on_plan=print)
    assert how.identity() == plain.identity()
    assert how.own_code() == {}
    assert spec(seed=1).identity() != plain.identity()
    assert how.max_memory == 2 * 10**9


def test_a_specification_of_ones_own_declares_its_arguments_once():
    class Mine(al.Knockout):
        """Mine."""

        NAME = "mine"

    assert list(Mine.arguments()) == list(al.Knockout.arguments())
    assert refusal(Mine, seeds=1).startswith("mine has no argument 'seeds'. Did you mean 'seed'")
    assert issubclass(Mine, Specification)


# --- files ---------------------------------------------------------------------------------------------------------------------

CHANGES = [
    {},
    {"layers": "0-8:4", "seed": 7, "prompt": "fewshot(3, seed=2)"},
    {"prompt": "Frage: {question}\nAntwort \"kurz\":", "add_bos": False, "n_resamples": 50, "max_new_tokens": 8},
    {"batch_size": 3, "engine": "reference", "max_memory": "1.5GiB", "check_cells": 0},
]  # fmt: skip
OWN = {
    "swap": [
        {"anchors": "question", "window": 3, "direction": "denoising", "donors": "random", "n_donors": 2, "align": "last"},
        {"readout": "probe", "anchors": ["answer", "question"], "fractions": (0.5, 0.25, 0.25), "probe_site": "mlp_out"},
        {"known_only": True, "null_donors": 0},
    ],
    "knockout": [
        {"edges": "subject->answer", "mode": "zero", "heads": [3, 1], "window": 5, "cut_layers": "2-11", "split": "per_layer"},
        {"readout": "p_true", "placebos": False, "answers": "generated", "delta_kind": "signed", "distractor": "random"},
    ],
}  # fmt: skip
CASES = [(spec, change) for spec in SPECIFICATIONS for change in (*CHANGES, *OWN.get(spec.NAME, ()))]


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
    with pytest.raises(InputError, match="^This is not TOML: "):
        spec.from_toml("layers = 0-2")
    with pytest.raises(InputError, match=f"{spec.NAME} has no argument 'layer'. Did you mean 'layers'"):
        spec.from_toml("layer = 3")
    with pytest.raises(InputError, match="seed takes a whole number; got 1.5"):
        spec.from_toml("seed = 1.5")
    # Whether a bar is drawn is no part of what is measured.
    assert spec(progress=False).to_toml() == ""


@pytest.mark.parametrize(("name", "value"), [("donors", lambda base, pool: pool), ("readout", pow)])
def test_what_a_file_cannot_hold_is_named(name, value):
    with pytest.raises(InputError) as told:
        al.Swap(**{name: value}).to_toml()
    assert str(told.value) == f"{name}= holds an object of your own, and a file cannot: leave it out, or stay in Python."


def config_of(result, folder):
    """As it lies in run.json."""
    return json.loads((result.save(folder) / "run.json").read_text())["sweeps"][0]["config"]


RESOLVED = [
    {"layers": [0, 2], "add_bos": False, "prompt": "Q: {question}\\nA:", "donors": "random", "align": "last", "anchors": "question"},
    {"layers": [0], "add_bos": True, "donors": "mean", "null_donors": 0, "n_resamples": 20, "seed": 5, "window": 2},
]  # fmt: skip


@pytest.mark.parametrize("given", RESOLVED)
def test_run_json_gives_the_swap_again(tiny_model, tmp_path, given):
    result = al.swap_sweep(tiny_model("llama"), capitals(4), **given, progress=False)
    assert al.Swap.from_config(config_of(result, tmp_path / "run")) == al.Swap(**given)


def test_run_json_gives_the_knockout_again(tiny_model, tmp_path):
    given = {"layers": [0, 2], "add_bos": False, "cut_layers": (0, 2), "n_resamples": 20, "mode": "zero", "heads": [1]}
    data = al.load_qa("popqa-sample", limit=60)
    result = al.knockout_sweep(tiny_model("llama"), data, **given, progress=False)
    assert al.Knockout.from_config(config_of(result, tmp_path / "run")) == al.Knockout(**given)


def test_what_was_left_open_was_resolved_and_is_the_same_sweep(tiny_model, tmp_path):
    """All layers, BOS, shots: run.json says which; measured again by it, the sweep has the same name and the same numbers."""
    model, data = tiny_model("llama"), capitals(6)
    result = al.swap_sweep(model, data, prompt="fewshot(2)", align="last", n_donors=1, n_resamples=20, progress=False)
    config = config_of(result, tmp_path / "run")
    assert (config["layers"], config["add_bos"], config["prompt"]) == ([0, 1, 2], False, "fewshot(2, seed=0)")
    again = run(protocol_of("swap"), model, data, al.Swap.from_config(config))
    assert again.run_id == result.run_id
    assert (again.delta_p == result.delta_p).all()


def test_a_truth_readout_comes_back_too(tiny_model, tmp_path):
    data = al.load_qa("popqa-sample", limit=60)
    given = {"readout": "probe", "layers": [0], "add_bos": False, "align": "last", "n_donors": 1, "n_resamples": 20}
    result = al.swap_sweep(tiny_model("llama"), data, **given, progress=False)
    config = config_of(result, tmp_path / "run")
    assert al.Swap.from_config(config) == al.Swap(**given)
    with_probes = al.swap_sweep(tiny_model("llama"), data, **given, probes=result.probes, progress=False)
    config = config_of(with_probes, tmp_path / "other")
    assert config["own_code"] == {"probes": result.probes.fingerprint}
    with pytest.raises(
        InputError, match=r"^This sweep was made with code of your own \(see own_code\): give it again in Python\.$"
    ):
        al.Swap.from_config(config)


def test_code_of_ones_own_cannot_come_back(tiny_model, tmp_path):
    def every(base, pool):
        return pool

    result = al.swap_sweep(tiny_model("llama"), capitals(4), layers=0, align="last", donors=every, progress=False)
    with pytest.raises(InputError, match=r"^This sweep was made with code of your own \(donors\): give it again in Python\.$"):
        al.Swap.from_config(config_of(result, tmp_path / "run"))


# --- the short way -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECIFICATIONS)
def test_the_short_way_has_every_argument_with_its_help(spec):
    sweep = getattr(al, f"{spec.NAME}_sweep")
    signature, said = inspect.signature(sweep), inspect.getdoc(sweep)
    model, data, *rest = signature.parameters.values()
    assert (model.name, data.name) == ("model", "data")
    assert [one.name for one in rest] == [*spec.arguments(), "out", "overwrite", "resume", "force_new", "shard", "executor"]
    assert all(one.kind is one.KEYWORD_ONLY for one in rest)
    rest = rest[:-6]
    plain = spec()
    assert all(getattr(plain, one.name) == one.default for one in rest)
    for name, one in spec.arguments().items():
        assert f"    {name}: {one.help}" in said
    assert said.startswith(inspect.getdoc(spec).splitlines()[0])
    for part in ("Args:", "Returns:", "Raises:", "    model: ", "    data: "):
        assert part in said
    assert f"{spec.NAME}_sweep" in repr(sweep)
