"""The knockout sweep: what comes out, what it refuses, and planted mistakes that are caught by name."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import anchorlens as al
from anchorlens.errors import EmptySweepError, InputError, LeakError, SpanError
from anchorlens.questions.example import Span
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowDropped, RowTokenizer

PLACEBOS = {"random_tokens", "random_before", "random_after"}
OPTIONS = {"progress": False, "n_resamples": 200, "batch_size": 40}


@pytest.fixture(scope="module")
def data():
    return al.load_qa("popqa-sample", limit=90)


@pytest.fixture(scope="module")
def sweep(tiny_model, data):
    return al.knockout_sweep(tiny_model("llama"), data, **OPTIONS)


def test_frames_and_tensor_agree(sweep):
    assert tuple(sweep.delta_p.shape) == (1, len(sweep.layers), len(sweep.example_ids))
    own = sweep.samples().query("control == 'none'")
    curves = sweep.curves().set_index(["pathway", "layer"])
    everyone = own.groupby("layer")["delta_p"].mean()
    for layer in sweep.layers:
        assert curves.loc[("All", layer), "delta_p"] == pytest.approx(everyone[layer])
        for pathway, group in own[own["layer"] == layer].groupby("pathway"):
            assert curves.loc[(pathway, layer), "delta_p"] == pytest.approx(group["delta_p"].mean())
            assert curves.loc[(pathway, layer), "n"] == group["question_id"].nunique()
    np.testing.assert_allclose(sweep.delta_p[0].mean(-1).numpy(), everyone.to_numpy())


def test_the_fixed_split_is_the_flip_at_k_star(sweep):
    own = sweep.samples().query("control == 'none'")
    at = own[own["layer"] == sweep.k_star].set_index("example_id")
    flips = (at["value_before"] >= 0.5) != (at["value_after"] >= 0.5)
    for _, layer in own.groupby("layer"):
        said = layer.set_index("example_id")["pathway"] == "Q-Anchored"
        pd.testing.assert_series_equal(said.sort_index(), flips.sort_index(), check_names=False)


def test_placebos_effects_and_their_arithmetic(sweep):
    assert set(sweep.samples()["control"]) == {"none", "matched", "shuffled_labels", "cross_fold", *PLACEBOS}
    by = sweep.effects().set_index(["quantity", "control", "layer"])["value"]
    curves = sweep.curves(controls=True).set_index(["control", "pathway", "layer"])["delta_p"]
    for layer in sweep.layers:
        gaps = {
            c: curves[c, "Q-Anchored", layer] - curves[c, "A-Anchored", layer] for c in ("none", "matched", "random_tokens")
        }
        assert by["gap", "none", layer] == pytest.approx(gaps["none"], nan_ok=True)
        assert by["placebo_gap", "random_tokens", layer] == pytest.approx(gaps["random_tokens"], nan_ok=True)
        wanted = gaps["matched"] - gaps["random_tokens"]
        assert by["gap_difference", "random_tokens", layer] == pytest.approx(wanted, nan_ok=True)


def test_the_record_says_how_steady_k_star_is_and_what_text_alone_tells(sweep):
    probe = sweep.record["probe"]
    assert len(probe["k_star_over_seeds"]) == 5
    assert set(probe["k_star_over_seeds"]) <= set(sweep.layers)
    base = sweep.examples().query("role == 'base'")
    assert base["pair_text"].between(0, 1).all()
    assert roc_auc_score(base["label"], base["pair_text"]) == pytest.approx(probe["pair_text"]["auc"])
    for name in ("text_only", "pair_text"):
        assert probe[name]["ci_low"] <= probe[name]["auc"] <= probe[name]["ci_high"]


def test_planted_overlap_of_question_and_answer_is_the_first_thing_that_is_said(tiny_model):
    """The answer shares a word with its question, and no string is more often true than false: the pair alone tells."""
    towns = [
        f"{a}{b}"
        for a in ("Bar", "Cor", "Dun", "Fel", "Gor", "Hal", "Kin", "Lor")
        for b in ("nes", "vick", "dmar", "phil", "ston")
    ]
    rows = [
        {"question": f"Which river runs through {town}?", "answers": [f"{town} River"], "subject": town, "property": "river"}
        for town in towns
    ]
    told = al.knockout_sweep(tiny_model("llama"), al.load_qa(rows, dataset_name="rivers"), **OPTIONS)
    assert told.pair_text["ci_low"] > 0.5
    assert told.text_only["ci_low"] <= 0.5 <= told.text_only["ci_high"]
    assert told.verdict.startswith("Beware: question and answer as text reach AUC ")
    assert "; the probe's AUC " in told.verdict
    assert told.facts(told.k_star)["auc_beyond_text", "none"].value < 0
    assert told.protocol.table([told])[1]["pair text"].tolist() == [f"{told.pair_text['auc']:.2f}"]


def test_the_placebo_on_either_side_is_measured_unless_it_is_left_out(tiny_model, data, sweep):
    together = al.knockout_sweep(tiny_model("llama"), data, placebo_sides=False, **OPTIONS)
    more = {"random_before", "random_after"}
    assert set(sweep.samples()["control"]) == set(together.samples()["control"]) | more
    same = sweep.samples()[~sweep.samples()["control"].isin(more)]
    np.testing.assert_allclose(same["value_after"], together.samples()["value_after"], atol=1e-5)
    asked = al.knockout_sweep(tiny_model("llama"), data, readout="p_true", layers=[0, 2], **OPTIONS)
    assert set(asked.samples()["control"]) == {"none", "matched", "random_tokens", *more}


def test_per_layer_split_differs_and_shares_the_samples(tiny_model, data, sweep):
    other = al.knockout_sweep(tiny_model("llama"), data, split="per_layer", **OPTIONS)
    own, theirs = (s.samples().query("control == 'none'") for s in (sweep, other))
    np.testing.assert_array_equal(own["value_after"], theirs["value_after"])
    flips = (theirs["value_before"] >= 0.5) != (theirs["value_after"] >= 0.5)
    assert ((theirs["pathway"] == "Q-Anchored") == flips).all()


def test_same_seed_same_bytes_and_saved_as_loaded(tiny_model, data, sweep, tmp_path):
    again = al.knockout_sweep(tiny_model("llama"), data, **OPTIONS)
    for name, one in (("a", sweep), ("b", again)):
        one.save(tmp_path / name)
    for file in ("samples", "curves", "examples", "effects"):
        assert (tmp_path / "a" / f"{file}.parquet").read_bytes() == (tmp_path / "b" / f"{file}.parquet").read_bytes()
    (loaded,) = al.load_run(tmp_path / "a")
    assert loaded.verdict == sweep.verdict == json.loads((tmp_path / "a" / "run.json").read_text())["sweeps"][0]["verdict"]
    pd.testing.assert_frame_equal(loaded.curves(controls=True), sweep.curves(controls=True))
    pd.testing.assert_frame_equal(loaded.effects(), sweep.effects())
    assert loaded.probes.best_layer == sweep.k_star
    assert set(loaded.placebo_probes) == {*(f"shuffled_labels_{i}" for i in range(1, 6)), "fold_a", "fold_b"}
    # The cross-fold split can be made again from the stored probes and P.
    assert loaded.placebo_probes["fold_a"].fingerprint == sweep.placebo_probes["fold_a"].fingerprint
    pd.testing.assert_frame_equal(al.load_curves(tmp_path / "a"), sweep.curves(controls=True))


def test_probes_of_a_sweep_refuse_the_questions_they_saw(tiny_model, data, sweep):
    """Planted: a probe that saw test questions."""
    with pytest.raises(LeakError, match="was trained on .* of the questions that it is asked to score"):
        al.knockout_sweep(tiny_model("llama"), data, probes=sweep.probes, **OPTIONS | {"seed": 1})
    same = al.knockout_sweep(tiny_model("llama"), data, probes=sweep.probes, placebos=False, **OPTIONS)
    np.testing.assert_allclose(
        same.samples()["value_after"], sweep.samples().query("control == 'none'")["value_after"], atol=1e-12
    )
    assert "Nothing is claimed" in same.verdict


def test_planted_shuffled_labels_give_no_signal(tiny_model, data):
    """Whoever labels at random reads: no signal, and no claim."""
    rng = np.random.default_rng(3)
    # Every question gets another question's answers: gold and false answers are equally wrong for it.
    examples = [e for e in data.examples if e.relation == data.examples[0].relation or True]
    order = rng.permutation(len(examples))
    mixed = [replace(e, answers=examples[j].answers, relation=None) for e, j in zip(examples, order, strict=True)]
    shuffled = replace(data, examples=tuple(mixed), pool=tuple(mixed))
    result = al.knockout_sweep(tiny_model("llama"), shuffled, **OPTIONS)
    curves = result.curves()
    assert (~curves["signal"]).sum() > 0.8 * len(curves)
    assert "Nothing is claimed: " in result.verdict
    assert "no signal of the probe is shown" in result.verdict


def test_planted_span_off_by_one_is_caught_by_name(tiny_model, data):
    example = data.examples[0]
    moved = Span(example.subject.start + 1, example.subject.end + 1)
    tokenizer = RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())
    good = tokenizer.row(example)
    bad = tokenizer.row(replace(example, subject=moved))
    # A moved span names other tokens: the decoded text of the anchor is that of the moved span, never silently the old one.
    assert good.positions["subject"] != bad.positions["subject"]
    shifted = {name: tuple(p + 1 for p in where) for name, where in good.positions.items()}
    with pytest.raises(RowDropped, match="anchor_text_mismatch: subject: tokens say"):
        tokenizer._check_text(replace(good, positions=shifted), "subject", example.subject.of(example.question))
    beyond = Span(len(example.question) - 2, len(example.question) + 1)
    with pytest.raises(SpanError, match="does not lie inside the question"):
        tokenizer.row(replace(example, property=beyond))


def test_windows_are_read_at_k_star_and_miss_what_cannot_reach_it(tiny_model, data, sweep):
    window = al.knockout_sweep(tiny_model("llama"), data, window=1, **OPTIONS)
    assert window.shown_layer <= window.k_star
    own = window.samples().query("control == 'none'")
    assert set(own["layer"]) == {layer for layer in window.layers if layer <= window.k_star}
    # The same split: rows that flip under the whole cut.
    ours, theirs = (s.samples().query("control == 'none' and layer == 0") for s in (sweep, window))
    assert (ours.set_index("example_id")["pathway"] == theirs.set_index("example_id")["pathway"]).all()
    everything = al.knockout_sweep(tiny_model("llama"), data, window=99, placebos=False, **OPTIONS)
    whole = everything.samples().query("layer == 0").set_index("example_id")["value_after"]
    k = sweep.samples().query(f"control == 'none' and layer == {sweep.k_star}").set_index("example_id")["value_after"]
    np.testing.assert_allclose(whole.sort_index(), k.sort_index(), atol=1e-6)


def test_cut_layers_leave_the_layers_below_untouched(tiny_model, data, sweep):
    late = al.knockout_sweep(tiny_model("llama"), data, cut_layers=(1, len(sweep.layers) - 1), placebos=False, **OPTIONS)
    own = late.samples()
    assert 0 not in set(own["layer"])  # nothing is cut there: missing, not zero
    assert own[own["layer"] == len(sweep.layers) - 1]["delta_p"].abs().max() > 0


def test_p_true_is_read_after_the_question_whether_it_is_right(tiny_model, data):
    model = tiny_model("llama")
    result = al.knockout_sweep(model, data, readout="p_true", layers=[0, 2], **OPTIONS)
    assert result.k_star is None
    assert set(result.samples()["control"]) == {"none", "matched", *PLACEBOS}
    base = result.examples().query("role == 'base'")
    assert base["text"].str.endswith("\nIs this answer correct? Answer yes or no.\nA:").all()
    row = base.iloc[0]
    # P(yes) against no, by hand, from the stored input.
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([list(row["token_ids"])]), prepend_bos=False)[0, -1]
    first = {
        word: {
            model.tokenizer(space + form, add_special_tokens=False)["input_ids"][0] for space in ("", " ") for form in forms
        }
        for word, forms in (("yes", ("yes", "Yes", "YES")), ("no", ("no", "No", "NO")))
    }
    yes, no = sorted(first["yes"] - first["no"]), sorted(first["no"] - first["yes"])
    gap = logits[yes].logsumexp(0) - logits[no].logsumexp(0)
    sample = result.samples().query("control == 'none' and layer == 0").set_index("example_id")
    assert sample.loc[row["example_id"], "value_before"] == pytest.approx(float(gap.sigmoid()), abs=1e-5)


def test_modes_and_heads_are_named_and_differ(tiny_model, data, sweep):
    zero = al.knockout_sweep(tiny_model("llama"), data, mode="zero", placebos=False, **OPTIONS)
    head = al.knockout_sweep(tiny_model("llama"), data, heads=[0], placebos=False, **OPTIONS)
    own = sweep.samples().query("control == 'none'")
    assert set(zero.samples()["mode"]) == {"zero"}
    assert set(head.samples()["mode"]) == {"mask, heads 0"}
    for other in (zero, head):
        np.testing.assert_array_equal(other.samples()["value_before"], own["value_before"])
        assert np.abs(other.samples()["value_after"].to_numpy() - own["value_after"].to_numpy()).max() > 1e-4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mode": "masc"}, "Unknown mode='masc'. Did you mean 'mask'"),
        ({"edges": "question"}, "Write 'source -> target'"),
        ({"edges": "qestion -> later"}, "Did you mean 'question'"),
        ({"edges": "question -> latter"}, "Did you mean 'later'"),
        ({"readout": "prob"}, "Did you mean 'probe'"),
        ({"probe_site": "resid_pre"}, "Unknown probe_site='resid_pre'"),
        ({"site": "resid_post"}, "knockout has no argument 'site'. Did you mean 'probe_site'"),
        ({"split": "fix"}, "Did you mean 'fixed'"),
        ({"delta_kind": "signd"}, "Did you mean 'signed'"),
        ({"answers": "giver"}, "Did you mean 'given'"),
        ({"distractor": "rnd"}, "Unknown distractor='rnd'"),
        ({"layers": [99]}, "layers must be different numbers from 0 to"),
        ({"heads": [99]}, "heads must be different numbers from 0 to"),
        ({"heads": [0, 0]}, "heads must be different numbers from 0 on"),
        ({"edges": "answer -> question"}, "cut nothing in any row"),
        ({"edges": "answer -> later"}, "cut nothing in any row"),
        ({"cut_layers": (2, 1)}, "cut_layers must be first and last, such as (0, 11); got (2, 1)"),
        ({"cut_layers": (0, 99)}, "cut_layers must be first and last layer, from 0 to"),
        ({"window": 0}, "window must be at least 1"),
        ({"fractions": (1.0, 0.0, 0.0)}, "three positive numbers"),
    ],
)
def test_bad_arguments_are_named(tiny_model, data, change, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(").replace(")", r"\)")):
        al.knockout_sweep(tiny_model("llama"), data, **OPTIONS | change)


def test_few_rows_are_said(tiny_model):
    small = al.load_qa("triviaqa-sample", limit=70)
    with pytest.warns(UserWarning, match=r"Few rows \(validation \d+\): k\*, AUC and groups are noisy"):
        al.knockout_sweep(tiny_model("llama"), small, layers=[0], placebos=False, **OPTIONS)


def test_generated_answers_of_a_model_that_knows_nothing_stop_with_counts(tiny_model, data):
    with pytest.raises(EmptySweepError, match=r"in every split, and here are train: 0 true.*or answers='given'"):
        al.knockout_sweep(tiny_model("llama"), data, answers="generated", max_new_tokens=4, **OPTIONS)
