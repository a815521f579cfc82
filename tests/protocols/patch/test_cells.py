"""Every cell of small patch sweeps against TransformerLens's own hooks, by place, site, metric,
direction and engine.
"""

import warnings
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from anchorlens.errors import InputError, ShapeError
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.running.sweeps import patch_sweep
from tests.protocols.patch.plain import cache_of, clean_log_p, metric_of, patched_logits
from tests.tiers import choose_cases

# The small tokenizer knows single letters and few words: both prompts of a pair have as many
# tokens.
ROWS = [
    {"clean": "ab is in", "corrupted": "cd is in", "answer": "e", "wrong": "f"},
    {"clean": "The bag of ab is", "corrupted": "The bog of ef is", "answer": "c", "wrong": "d"},
]
# Prompts of different length, answers of several tokens, and a segment whose last token has no
# partner.
RAGGED = [
    {
        "id": "long",
        "clean": "The bag of ab is",
        "corrupted": "The bog of efg is",
        "answer": " cde",
        "wrong": " cdf",
        "segments": {"thing": ["bag", "bog"], "owner": ["ab", "efg"]},
    },
    {
        "id": "short",
        "clean": "a of b is",
        "corrupted": "c of d is",
        "answer": " e",
        "wrong": " fg",
        "segments": {"thing": ["a", "c"], "owner": ["b", "d"]},
    },
]
# Every place, direction and width of a window; the slow tier has every site and metric too.
FAST_CASES = [
    {},
    {"site": "resid_post", "metric": "prob", "direction": "noising", "window": 2},
    {"site": "attn_out", "metric": "kl"},
    {"by": "layer", "site": "resid_mid", "metric": "kl", "direction": "noising"},
    {"by": "head", "site": "z"},
    {"by": "head_position", "site": "v", "metric": "prob"},
]
SLOW_CASES = [
    {"by": "head", "site": "k", "metric": "logprob", "direction": "noising"},
    {"by": "head", "site": "pattern", "metric": "kl"},
    {"by": "position", "site": "q"},
    {"site": "mlp_out", "metric": "logprob"},
]
MORE_CASES = [
    {"direction": "noising"},
    {"by": "layer", "metric": "logit_diff", "window": 3},
    {"by": "head_position", "site": "z", "window": 2},
]


def check_cells(model, result, window=1, atol=1e-4):
    """Raise if a cell of the result differs from plain hooks."""
    config, n_layers = result.record["config"], model.cfg.n_layers
    examples = result.examples(all_columns=True).set_index(["role", "example_id"])
    for (name, donor), cells in result.samples(all_columns=True).groupby(
        ["example_id", "donor_id"]
    ):
        target, source = (
            list(map(int, examples.loc[key]["token_ids"]))
            for key in (("base", name), ("donor", donor))
        )
        at, own, cache = (
            positions(result, name),
            result.record["pairs"][name],
            cache_of(model, source),
        )
        of, last = dict(zip(at["paired"], at["paired_source"], strict=True)), at["last"]
        denoising = config["direction"] == "denoising"
        clean = clean_log_p(
            model, source if denoising else target, at["last_source"] if denoising else last
        )

        def metric(logits, own=own, last=last, clean=clean):
            return metric_of(
                config["metric"], logits, last, own["answer_ids"], own["wrong_ids"], clean
            )

        before = metric(patched_logits(model, target, cache, config["site"], [], [], []))
        for cell in cells.itertuples():
            to = at.get(cell.anchor) or (
                [int(cell.position)] if not pd.isna(cell.position) else at["paired"]
            )
            to = [t for t in to if t in of]
            head = None if pd.isna(cell.head) else int(cell.head)
            first = cell.layer - (window - 1) // 2
            layers = range(max(0, first), min(n_layers, first + window))
            logits = patched_logits(
                model, target, cache, config["site"], layers, to, [of[t] for t in to], head
            )
            assert cell.value_before == pytest.approx(before, abs=atol)
            assert cell.value_after == pytest.approx(metric(logits), abs=atol)
            factor = 100 if config["metric"] == "prob" else 1
            assert cell.effect == pytest.approx(factor * (cell.value_after - cell.value_before))


def positions(result, example_id):
    """Named positions of a measured row, with those of its source."""
    import json

    examples = result.examples(all_columns=True).set_index(["role", "example_id"])
    base = examples.loc[("base", example_id)]
    donor = examples.loc[("donor", base["donor_ids"][0])]
    own, other = (json.loads(one["positions"]) for one in (base, donor))
    segments = {
        name: where
        for name, where in own.items()
        if not name.startswith("pos:") and name not in ("last", "paired")
    }
    return {
        **segments,
        "paired": own["paired"],
        "paired_source": other["paired"],
        "last": own["last"][0],
        "last_source": other["last"][0],
    }


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    choose_cases(FAST_CASES, [*FAST_CASES, *SLOW_CASES, *MORE_CASES], slow=SLOW_CASES),
    ids=lambda case: "-".join(map(str, case.values())) or "default",
)
def test_every_cell_equals_a_hooked_forward_pass_on_both_engines(tiny_model, case):
    model = tiny_model(
        "llama" if case.get("site") in ("k", "v") else "gpt2"
    )  # key/value heads of their own
    options = {"progress": False, "controls": "none", **case}
    result = patch_sweep(model, load_pairs(ROWS), **options)
    check_cells(model, result, case.get("window", 1))
    lengths = [len(positions(result, name)["paired"]) for name in result.example_ids]
    n_heads = model.cfg.n_key_value_heads if case.get("site") in ("k", "v") else model.cfg.n_heads
    places = {
        "position": sum(lengths),
        "layer": 2,
        "head": 2 * n_heads,
        "head_position": sum(lengths) * n_heads,
    }
    assert len(result.samples()) == places[case.get("by", "position")] * model.cfg.n_layers
    assert result.record["config"]["metric"] == case.get("metric", "logit_diff")
    units = {"prob": "percentage points", "logprob": "nat", "kl": "nat"}
    assert set(result.samples()["unit"]) == {units.get(case.get("metric"), "logit")}
    again = patch_sweep(model, load_pairs(ROWS), engine="reference", **options)
    np.testing.assert_allclose(
        again.samples()["value_after"], result.samples()["value_after"], atol=1e-4
    )


@pytest.mark.parametrize(
    "case",
    [
        {"by": "segment"},
        {"by": "segment", "metric": "prob", "direction": "noising", "site": "mlp_out"},
        {"metric": "logprob", "direction": "noising"},
        {"by": "layer", "metric": "kl", "site": "resid_post"},
    ],
    ids=str,
)
def test_cells_of_prompts_of_different_length_and_answers_of_several_tokens(tiny_model, case):
    result = patch_sweep(tiny_model("gpt2"), load_pairs(RAGGED), progress=False, **case)
    check_cells(tiny_model("gpt2"), result)
    at, own = positions(result, "long"), result.record["pairs"]["long"]
    assert at["last"] != at["last_source"] and len(own["answer_ids"]) > 1
    forced = {
        "prob": len(own["answer_ids"]) - 1,
        "logprob": len(own["answer_ids"]) - 1,
        "kl": 0,
    }.get(case.get("metric"))
    tokens = result.examples().set_index(["role", "example_id"]).loc[("base", "long"), "token_ids"]
    appended = list(tokens)[at["last"] + 1 :]
    assert appended == own["answer_ids"][: len(appended)]
    assert forced is None or len(appended) == forced
    places = {"segment": ["thing", "owner"], "layer": ["all"]}.get(case.get("by"))
    assert places is None or list(result.anchors) == places


def last_three(logits):
    """A function in TransformerLens's form that reads the last position and the one before it."""
    return (logits[:, -1, 3] - logits[:, -2].softmax(-1)[:, 5]).mean()


def test_a_metric_function_reads_only_the_positions_that_change_it(tiny_model):
    model = tiny_model("gpt2")
    found = patch_sweep(model, load_pairs(ROWS), metric=last_three, progress=False, by="layer")
    assert found.record["config"]["metric"] == "callable:last_three"
    for name in found.example_ids:
        at = positions(found, name)
        assert at["metric_reads"] == [at["last"] - 1, at["last"]]
    declared = patch_sweep(
        model,
        load_pairs(ROWS),
        metric=last_three,
        metric_positions=(-1, -2),
        progress=False,
        by="layer",
    )
    np.testing.assert_array_equal(found.samples()["value_after"], declared.samples()["value_after"])
    examples = found.examples().set_index(["role", "example_id"])
    for cell in found.samples().itertuples():
        target, source = (
            list(examples.loc[key]["token_ids"])
            for key in (("base", cell.example_id), ("donor", cell.donor_id))
        )
        every = range(len(target))
        logits = patched_logits(
            model, target, cache_of(model, source), "resid_pre", [cell.layer], every, every
        )
        assert cell.value_after == pytest.approx(float(last_three(logits[None])), abs=1e-4)


def by_condition(logits):
    """Reads another position where a patch changes the order of two logits."""
    return logits[0, 1, 5] if logits[0, -1, 7] > logits[0, -1, 9] else logits[0, 2, 5]


def accuracy(logits):
    return (logits[:, -1].argmax(-1) == 9).float().mean()


def peak(logits):
    return logits[0, :, 5].max().numpy()


def masked(logits):
    logits[..., 7] = -1e9
    return logits[:, -1].log_softmax(-1)[:, 3]


FUNCTIONS = (by_condition, accuracy, peak, masked)
FAST_FUNCTIONS = {("gpt2", by_condition), ("llama", accuracy)}
SLOW_FUNCTIONS = {("gpt2", peak), ("llama", masked), ("gemma2", by_condition), ("neox", accuracy)}


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "metric"),
    choose_cases(
        FAST_FUNCTIONS,
        product(("gpt2", "neox", "llama", "qwen3", "gemma2", "gemma3"), FUNCTIONS),
        slow=SLOW_FUNCTIONS,
    ),
)
def test_any_function_of_the_logits_equals_a_hooked_forward_pass_on_both_engines(
    tiny_model, family, metric
):
    model = tiny_model(family)
    for engine in ("cone", "reference"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = patch_sweep(
                model, load_pairs(ROWS), metric=metric, engine=engine, progress=False
            )
        examples = found.examples().set_index(["role", "example_id"])
        for (name, donor), cells in found.samples().groupby(["example_id", "donor_id"]):
            target, source = (
                list(examples.loc[key]["token_ids"]) for key in (("base", name), ("donor", donor))
            )
            cache = cache_of(model, source)
            for cell in cells.itertuples():
                at = [int(cell.position)]
                logits = patched_logits(model, target, cache, "resid_pre", [cell.layer], at, at)
                assert cell.value_after == pytest.approx(
                    float(metric(logits.float()[None])), abs=1e-4
                )


@pytest.mark.slow
def test_pairs_in_which_a_metric_reads_another_position_are_measured_again(tiny_model):
    model, pairs = (
        tiny_model("gpt2"),
        load_pairs([{"clean": [5, 9, 3, 7, 8], "corrupted": [6, 4, 3, 2, 8], "id": "one"}]),
    )
    with torch.no_grad():
        both = [
            float(model(torch.tensor([ids]))[0, -1, 7])
            for ids in ([5, 9, 3, 7, 8], [6, 4, 3, 2, 8])
        ]
    # A threshold beyond both runs: their logits show one position only.
    middle, half = sum(both) / 2, abs(both[0] - both[1]) / 2

    def metric(logits):
        return (
            logits[:, 1, 5]
            if abs(float(logits[0, -1, 7]) - middle) > half + 1e-4
            else logits[:, 2, 5]
        )

    with pytest.warns(
        UserWarning,
        match=r"in \d+ cells the metric read other positions than on the unpatched logits",
    ):
        found = patch_sweep(model, pairs, metric=metric, site="mlp_out", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        again = patch_sweep(
            model, pairs, metric=metric, site="mlp_out", metric_positions=(1, 2, -1), progress=False
        )
    np.testing.assert_allclose(
        found.samples()["value_after"], again.samples()["value_after"], atol=1e-5
    )


@pytest.mark.parametrize(
    ("options", "argument", "phrase"),
    [
        ({"by": "head"}, "site", "by='head' needs a site of heads. Use site='z'"),
        ({"by": "token"}, "by", "Unknown by='token'"),
        ({"metric": "logits"}, "metric", "Unknown metric='logits'"),
        ({"metric": lambda: 0.0}, "metric", "takes another number of arguments"),
        (
            {"metric": lambda logits: logits[0].sum(-1)},
            "metric",
            r"returned shape \(\d+,\). It is called for one prompt at a time",
        ),
        (
            {"metric": lambda logits: torch.tensor(1.0)},
            "metric",
            "reads no logits .pair '.*'., so no patch can change it",
        ),
        (
            {"metric": lambda logits: None},
            "metric",
            "returned None. It is called for one prompt at a time",
        ),
        (
            {"metric": lambda logits: logits.sum() / 0},
            "metric",
            "returned -?inf for pair '.*'. Return finite numbers",
        ),
        ({"metric": lambda logits: logits.sum() * torch.nan}, "metric", "returned nan for pair"),
        ({"metric": lambda logits: 1 / 0}, "metric", "raised ZeroDivisionError"),
        (
            {"metric_positions": (-1,)},
            "metric_positions",
            "are those of a metric function; got metric='auto'",
        ),
        (
            {"metric": last_three, "metric_positions": (99,)},
            "metric_positions",
            "has .* tokens, so 99 is outside",
        ),
        ({"controls": "other"}, "controls", "Unknown control 'other'"),
        (
            {"site": "pattern", "controls": ["norm_matched"]},
            "controls",
            "a random change of an attention pattern is no pattern",
        ),
        (
            {"window": 2, "site": "q"},
            "window",
            "whose patches act within a layer. Use window=1, site='z'",
        ),
        ({"window": 0}, "window", "must be at least 1"),
    ],
)
def test_a_wrong_argument_is_named_with_its_cure(tiny_model, options, argument, phrase):
    with pytest.raises((InputError, ShapeError), match=phrase) as told:
        patch_sweep(tiny_model("gpt2"), load_pairs(ROWS), progress=False, **options)
    assert argument in told.value.arguments


def test_a_metric_that_few_pairs_decide_is_named(tiny_model):
    """One pair without a wrong answer changed the metric of all pairs without a word."""
    *others, last = ROWS
    rows = [*others, {key: value for key, value in last.items() if key != "wrong"}]
    options = {"layers": [0], "by": "layer", "controls": "none", "progress": False}
    with pytest.warns(UserWarning, match="1 of .* pairs do not allow logit_diff") as told:
        result = patch_sweep(tiny_model("gpt2"), load_pairs(rows), **options)
    assert result.metric == "logprob"
    assert len([one for one in told if "do not allow" in str(one.message)]) == 1
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*do not allow")
        patch_sweep(tiny_model("gpt2"), load_pairs(rows), metric="logprob", **options)


def test_the_metric_follows_from_the_answers_that_the_pairs_have():
    from anchorlens.protocols.patch.metric_reading import (
        Answers,
        choose_metric,
        explain_choice,
        lacks,
        tokens_to_append,
    )

    both, one, none = Answers((5, 6), (5, 7)), Answers((5, 6), ()), Answers((), ())
    same = Answers((5,), (5, 6))
    assert choose_metric("auto", [both, both]) == "logit_diff"
    assert choose_metric("auto", [both, one]) == "logprob"
    assert choose_metric("auto", [both, none]) == "kl"
    assert choose_metric("prob", [both, none]) == "prob"
    assert explain_choice("logit_diff", [both, both]) == ""
    assert explain_choice("logprob", [one, one]) == ""
    assert explain_choice("logprob", [both, one, one]).startswith(
        "2 of 3 pairs do not allow logit_diff (no_wrong_answer 2), so the metric of all pairs is"
        " logprob."
    )
    assert explain_choice("kl", [both, none]).startswith(
        "1 of 2 pairs do not allow logprob (no_answer 1), so the metric of all pairs is kl."
    )
    assert explain_choice("kl", [none, none]).startswith("The pairs have no answers")
    assert [lacks("logit_diff", pair) for pair in (both, one, none, same)] == [
        "",
        "no_wrong_answer",
        "no_answer",
        "answer_equals_wrong",
    ]
    assert [tokens_to_append(name, both) for name in ("logit_diff", "prob", "logprob", "kl")] == [
        (5,),
        (5,),
        (5,),
        (),
    ]


class VocabularyRows(TorchDispatchMode):
    """Counts the rows of results that have an entry for every token of the vocabulary."""

    def __init__(self, d_vocab):
        super().__init__()
        self.d_vocab, self.rows = d_vocab, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if "mm" in str(func) and result.shape[-1] == self.d_vocab:
            self.rows += result.numel() // self.d_vocab
        return result


@pytest.mark.parametrize(("metric", "grows"), [("logit_diff", False), ("kl", True)])
def test_a_logit_difference_unembeds_its_two_tokens_in_every_cell(tiny_model, metric, grows):
    """A metric of the whole distribution needs a row of logits for each cell, of two tokens none."""
    model, rows = tiny_model("gpt2"), []
    options = {"metric": metric, "controls": "none", "progress": False, "n_spot_checks": 0}
    for layers in ([0], [0, 1, 2]):
        with VocabularyRows(model.cfg.d_vocab) as count:
            patch_sweep(model, load_pairs(ROWS), layers=layers, **options)
        rows.append(count.rows)
    assert (rows[1] > rows[0]) == grows, rows
    assert torch.is_grad_enabled()
