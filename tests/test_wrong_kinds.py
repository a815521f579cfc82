"""Whatever is given in an argument's place, the answer is one of our errors with the cure: never a
raw Python one.
"""

import numpy as np
import pytest

import anchorlens as al
from tests.questions.make import CAPITALS, capitals
from tests.raised import raises

pytestmark = pytest.mark.usefixtures("unchecked")
QUIET = {
    "progress": False,
    "align": "last",
    "n_donors": 1,
    "layers": (0,),
    "n_spot_checks": 0,
    "n_resamples": 20,
}


@pytest.fixture(scope="module")
def swap(tiny_model):
    """A swap on a small model, as a user calls it."""
    model, data = tiny_model("llama"), capitals(5)

    def call(**options):
        return al.swap_sweep(model, data, **QUIET | options)

    return call


@pytest.mark.parametrize(
    "name",
    [
        "n_donors",
        "window",
        "seed",
        "n_resamples",
        "max_new_tokens",
        "n_null_donors",
        "n_spot_checks",
    ],
)
def test_whole_numbers(swap, name):
    for value in ("2", 2.5, True, None, [1], -5):
        with raises(al.InputError, name):
            swap(**{name: value})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layers": range(300_000)}, r"300000 values \(0, 1, 2, \.\.\.\)"),
        ({"donors": lambda a, b: None}, "returned None .* must return rows"),
        ({"donors": lambda a: []}, "donors=.*: takes another number"),
        ({"readout": lambda log_probs: log_probs}, "a function of log-probabilities and mask"),
        ({"readout": lambda log_probs, mask: np.zeros(3)}, "readout: returned a ndarray"),
        ({"readout": lambda log_probs, mask: log_probs}, "Return an .example. tensor of length 5"),
        ({"readout": lambda log_probs, mask: log_probs[:, 0].exp()}, "Return log P, not P"),
        ({"readout": lambda log_probs, mask: log_probs[:, 0] * float("nan")}, "returned nan"),
        ({"site": lambda: "x"}, "site=.*: takes another number"),
        ({"site": lambda layer: "nope"}, "returned the hook name 'nope'"),
        ({"prompt": lambda question: question}, "prompt=.* must be 'qa'"),
        ({"n_donor": 3}, "swap has no argument 'n_donor'. Did you mean 'n_donors'"),
    ],
)
def test_functions_and_names(swap, options, said):
    with pytest.raises(al.InputError, match=said):
        swap(**options)


@pytest.mark.slow
def test_what_anyone_would_expect_to_work(tiny_model, tiny):
    """A model's name, all layers in words, one layer, one anchor, a list of dictionaries, a
    template for a prompt.
    """
    model, data = str(tiny("llama")), capitals(5)
    options = QUIET | {"anchors": "exact_question"}
    by_name = al.swap_sweep(model, data, **options)
    assert by_name.anchors == ("exact_question",)
    assert by_name.delta_p.equal(al.swap_sweep(tiny_model("llama"), data, **options).delta_p)
    assert al.swap_sweep(model, data, **options | {"layers": "all"}).layers == (0, 1, 2)
    assert al.swap_sweep(model, data, **options | {"layers": 2}).layers == (2,)
    assert al.swap_sweep(model, data, **options | {"layers": np.array([2, 0])}).layers == (0, 2)
    rows = [
        {
            "question": f"What is the capital of {c}?",
            "answer": a,
            "subject": c,
            "property": "capital",
        }
        for c, a in CAPITALS.items()
    ]
    assert len(al.swap_sweep(model, rows, **options).example_ids) == len(CAPITALS)
    template = al.swap_sweep(model, data, **options | {"prompt": "Question: {question}\nAnswer:"})
    assert (
        template.examples()
        .query("role == 'base'")["text"]
        .str.match(r"Question: .*\?\nAnswer: ")
        .all()
    )


def test_a_live_hugging_face_model_is_a_model(tiny, tiny_model):
    import transformers

    hf = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama"))
    with pytest.raises(al.InputError, match="tokenizer="):
        al.swap_sweep(hf, capitals(5), **QUIET)


@pytest.mark.parametrize("what", [None, 5, al.Span(0, 1), [1]])
def test_no_model_and_no_data(tiny_model, what):
    with pytest.raises(
        al.InputError, match="not a model|takes the name of a set|not understood|takes"
    ):
        al.swap_sweep(what, capitals(5), **QUIET)
    with pytest.raises(al.InputError, match="must be|rows|dictionar"):
        al.swap_sweep(tiny_model("llama"), what, **QUIET)


@pytest.mark.slow
def test_nothing_is_lost_to_a_wrong_argument_of_a_writer(tiny_model, tmp_path, swap):
    sweep = swap()
    for call, said in (
        (lambda: sweep.save(None), "^out=None: must be the path"),
        (lambda: al.save_run(None, tmp_path / "a"), "takes the result of a sweep"),
        (lambda: al.load_run(None), "^path=None: must be the path"),
        (lambda: al.save_html(None, tmp_path / "f.html"), "takes a plotly figure"),
        (lambda: al.run_study(3), "study=3 is no anchorlens.Study"),
    ):
        with pytest.raises(al.InputError, match=said):
            call()
    assert [*tmp_path.iterdir()] == []
