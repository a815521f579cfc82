"""The knockout sweep: what comes out, what it refuses, and planted mistakes that are caught by name."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import anchorlens as al
from anchorlens.analysis.cuts import row_cuts
from anchorlens.analysis.rows import make_rows
from anchorlens.analysis.truth import TruthRows, half_splits, shuffled_labels, text_only, truth_rows
from anchorlens.errors import EmptySweepError, InputError, LeakError, SpanError
from anchorlens.models.adapter import Adapter
from anchorlens.questions.example import Span
from anchorlens.questions.given import FRACTIONS, given_answers, split_questions
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import Answer, RowDropped, RowTokenizer

OPTIONS = {"progress": False, "n_resamples": 200, "batch_size": 40}


@pytest.fixture(scope="module")
def data():
    return al.load_qa("popqa-sample", limit=90)


@pytest.fixture(scope="module")
def sweep(tiny_model, data):
    return al.knockout_sweep(tiny_model("llama"), data, **OPTIONS)


def rows_of(model, data, **changes):
    tokenizer = RowTokenizer(model.tokenizer, QAPrompt())
    options = {"answers": "given", "distractor": "matched", "fractions": FRACTIONS, "max_new_tokens": 4, "batch_size": 8}
    return truth_rows(Adapter(model), data.examples, tokenizer, **options | changes, seed=0, progress=False)


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
    flips = (at["p_before"] >= 0.5) != (at["p_after"] >= 0.5)
    for _, layer in own.groupby("layer"):
        said = layer.set_index("example_id")["pathway"] == "Q-Anchored"
        pd.testing.assert_series_equal(said.sort_index(), flips.sort_index(), check_names=False)


def test_placebos_effects_and_their_arithmetic(sweep):
    assert set(sweep.samples()["control"]) == {"none", "matched", "random_tokens", "shuffled_labels", "cross_fold"}
    by = sweep.effects().set_index(["quantity", "control", "layer"])["value"]
    curves = sweep.curves(controls=True).set_index(["control", "pathway", "layer"])["delta_p"]
    for layer in sweep.layers:
        gaps = {
            c: curves[c, "Q-Anchored", layer] - curves[c, "A-Anchored", layer] for c in ("none", "matched", "random_tokens")
        }
        assert by["gap", "none", layer] == pytest.approx(gaps["none"], nan_ok=True)
        assert by["placebo_gap", "random_tokens", layer] == pytest.approx(gaps["random_tokens"], nan_ok=True)
        wanted = gaps["matched"] - gaps["random_tokens"]
        assert by["effect", "random_tokens", layer] == pytest.approx(wanted, nan_ok=True)


def test_per_layer_split_differs_and_shares_the_samples(tiny_model, data, sweep):
    other = al.knockout_sweep(tiny_model("llama"), data, split="per_layer", **OPTIONS)
    own, theirs = (s.samples().query("control == 'none'") for s in (sweep, other))
    np.testing.assert_array_equal(own["p_after"], theirs["p_after"])
    flips = (theirs["p_before"] >= 0.5) != (theirs["p_after"] >= 0.5)
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
    assert set(loaded.placebo_probes) == {"shuffled_labels", "fold_a", "fold_b"}
    # The cross-fold split can be made again from the stored probes and P.
    assert loaded.placebo_probes["fold_a"].fingerprint == sweep.placebo_probes["fold_a"].fingerprint
    pd.testing.assert_frame_equal(al.load_curves(tmp_path / "a"), sweep.curves(controls=True))


def test_probes_of_a_sweep_refuse_the_questions_they_saw(tiny_model, data, sweep):
    """Planted: a probe that saw test questions."""
    with pytest.raises(LeakError, match="was trained on .* of the questions that it is asked to score"):
        al.knockout_sweep(tiny_model("llama"), data, probes=sweep.probes, **OPTIONS | {"seed": 1})
    same = al.knockout_sweep(tiny_model("llama"), data, probes=sweep.probes, placebos=False, **OPTIONS)
    np.testing.assert_allclose(same.samples()["p_after"], sweep.samples().query("control == 'none'")["p_after"], atol=1e-12)
    assert "No placebo was measured" in same.verdict or "No claim about pathways" in same.verdict


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
    assert "shows no signal" in result.verdict
    assert "No claim about pathways is made" in result.verdict


def test_planted_distractors_across_splits_are_caught_by_name(tiny_model, data):
    model = tiny_model("llama")
    split = split_questions(data.examples)
    # The mistake: the permutation is drawn over all questions, and the split comes afterwards.
    given = given_answers(data.examples, dict.fromkeys(split, "train"), seed=0)
    tokenizer = RowTokenizer(model.tokenizer, QAPrompt())
    rows = []
    for e in data.examples:
        if e.example_id in given.false:
            false = given.false[e.example_id]
            rows += [
                tokenizer.row(e),
                tokenizer.row(e, Answer(false, Span(0, len(false)), "given", 1), f"{e.example_id}|false"),
            ]
    planted = TruthRows(tuple(rows), tuple(split[r.example.question_id] for r in rows), ())
    with pytest.raises(LeakError, match="stand more often on one side .* Draw false answers inside each split"):
        planted.check_balance()
    clean = rows_of(model, data)
    clean.check_balance()
    # Balanced strings teach the text-only classifier nothing; drawn across splits they do (inverted: below 0.5).
    assert text_only(clean, n_resamples=100, seed=0)["auc"] == pytest.approx(0.5, abs=0.02)
    assert text_only(planted, n_resamples=100, seed=0)["ci_high"] < 0.5


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


def test_placebo_positions_are_other_question_tokens_and_matched_in_number(tiny_model, data):
    model = tiny_model("llama")
    rows = make_rows(data.examples, RowTokenizer(model.tokenizer, QAPrompt())).rows
    fewer = 0
    for row in rows:
        cuts = row_cuts(row, "question -> later", 0, placebos=True).sources
        own, other, matched = set(cuts["none"]), set(cuts["random_tokens"]), set(cuts["matched"])
        assert own == set(row.positions["question"])
        assert not other & own
        assert other <= set(row.positions["question_rest"])
        assert 0 not in other
        assert len(other) == len(matched) == min(len(own), len(row.positions["question_rest"]))
        assert matched <= own
        fewer += len(matched) < len(own)
    assert fewer
    only = row_cuts(rows[0], "question -> later", 0, placebos=False).sources
    assert set(only) == {"none"}


def test_shuffles_and_folds(tiny_model, data):
    rows = rows_of(tiny_model("llama"), data)
    labels, mixed = rows.labels, shuffled_labels(rows, 0)
    for name in ("train", "validation"):
        where = rows.of(name)
        assert mixed[where].mean() == pytest.approx(0.5, abs=0.02)
        assert abs(np.corrcoef(labels[where], mixed[where])[0, 1]) < 0.1
    np.testing.assert_array_equal(labels[rows.of("test")], mixed[rows.of("test")])
    a, b = half_splits(rows, 0)
    used = [{q for q, s in zip(rows.question_ids, fold, strict=True) if s in ("train", "validation")} for fold in (a, b)]
    assert used[0]
    assert used[1]
    assert not used[0] & used[1]


def test_windows_are_read_at_k_star_and_miss_what_cannot_reach_it(tiny_model, data, sweep):
    window = al.knockout_sweep(tiny_model("llama"), data, window=1, **OPTIONS)
    assert window.shown_layer <= window.k_star
    own = window.samples().query("control == 'none'")
    assert set(own["layer"]) == {layer for layer in window.layers if layer <= window.k_star}
    # The same split: rows that flip under the whole cut.
    ours, theirs = (s.samples().query("control == 'none' and layer == 0") for s in (sweep, window))
    assert (ours.set_index("example_id")["pathway"] == theirs.set_index("example_id")["pathway"]).all()
    everything = al.knockout_sweep(tiny_model("llama"), data, window=99, placebos=False, **OPTIONS)
    whole = everything.samples().query("layer == 0").set_index("example_id")["p_after"]
    k = sweep.samples().query(f"control == 'none' and layer == {sweep.k_star}").set_index("example_id")["p_after"]
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
    assert set(result.samples()["control"]) == {"none", "matched", "random_tokens"}
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
    assert sample.loc[row["example_id"], "p_before"] == pytest.approx(float(gap.sigmoid()), abs=1e-5)


def test_modes_and_heads_are_named_and_differ(tiny_model, data, sweep):
    zero = al.knockout_sweep(tiny_model("llama"), data, mode="zero", placebos=False, **OPTIONS)
    head = al.knockout_sweep(tiny_model("llama"), data, heads=[0], placebos=False, **OPTIONS)
    own = sweep.samples().query("control == 'none'")
    assert set(zero.samples()["mode"]) == {"zero"}
    assert set(head.samples()["mode"]) == {"mask, heads 0"}
    for other in (zero, head):
        np.testing.assert_array_equal(other.samples()["p_before"], own["p_before"])
        assert np.abs(other.samples()["p_after"].to_numpy() - own["p_after"].to_numpy()).max() > 1e-4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mode": "masc"}, "Unknown mode='masc'. Did you mean 'mask'"),
        ({"edges": "question"}, "Write 'source -> target'"),
        ({"edges": "qestion -> later"}, "Did you mean 'question'"),
        ({"edges": "question -> latter"}, "Did you mean 'later'"),
        ({"readout": "prob"}, "Did you mean 'probe'"),
        ({"site": "resid_pre"}, "Unknown site='resid_pre'"),
        ({"split": "fix"}, "Did you mean 'fixed'"),
        ({"delta_kind": "signd"}, "Did you mean 'signed'"),
        ({"answers": "giver"}, "Did you mean 'given'"),
        ({"distractor": "rnd"}, "Unknown distractor='rnd'"),
        ({"layers": [99]}, "layers must be different numbers from 0 to"),
        ({"heads": [99]}, "heads must be different numbers from 0 to"),
        ({"heads": [0, 0]}, "heads must be different numbers from 0 to"),
        ({"edges": "answer -> question"}, "cut nothing in any row"),
        ({"edges": "answer -> later"}, "cut nothing in any row"),
        ({"cut_layers": (2, 1)}, "cut_layers must be first and last layer"),
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


def test_swaps_are_read_by_a_probe_at_k_star(tiny_model, data, sweep):
    """The clean P is that of the knockout's probe; layers above k* are missing; t* at k* is trivial."""
    model = tiny_model("llama")
    swap = al.swap_sweep(model, data, anchors=("question", "answer"), readout="probe", align="last", n_donors=1, **OPTIONS)
    k = swap.record["probe"]["k_star"]
    assert k == sweep.k_star
    own = swap.samples().query("control == 'none'")
    assert set(own["layer"]) == set(range(k + 1))
    clean = sweep.samples().query(f"control == 'none' and layer == {k}").set_index("example_id")["p_before"]
    mine = own.query("layer == 0 and anchor == 'question'").set_index("example_id")["p_before"]
    np.testing.assert_allclose(mine, clean[mine.index], atol=1e-5)
    trivial = own.groupby(["anchor", "layer"])["trivial"].any()
    assert trivial["answer", k]
    assert not trivial["question"].any()
    pi = np.where(own["p_before"] >= 0.5, own["p_after"] - own["p_before"], own["p_before"] - own["p_after"])
    np.testing.assert_allclose(own["delta_p"], 100 * pi)


def test_swaps_that_cannot_reach_the_probe_are_missing_or_refused(tiny_model, data, sweep):
    model, k = tiny_model("llama"), sweep.k_star
    options = {"readout": "probe", "align": "last", "n_donors": 1, **OPTIONS}
    late = al.swap_sweep(model, data, anchors=("question", "answer"), site="resid_post", **options)
    own = late.samples().query("control == 'none'")
    # resid_post of layer k* at other positions comes after its attention; at t* itself the probe reads the donor.
    assert set(own.query("anchor == 'question'")["layer"]) == set(range(k))
    assert set(own.query("anchor == 'answer'")["layer"]) == set(range(k + 1))
    assert own.query(f"anchor == 'answer' and layer == {k}")["trivial"].all()
    assert late.record["probe"]["text_only"]["auc"] == pytest.approx(0.5, abs=0.02)
    assert late.curves()["auc"].nunique() == 1
    above = range(k + 1, len(sweep.layers))
    if above:
        with pytest.raises(InputError, match=f"The probe reads layer {k}, and no change at layers"):
            al.swap_sweep(model, data, layers=list(above), **options)
    with pytest.raises(InputError, match="'confidence' speaks of the clean prediction"):
        al.swap_sweep(model, data, direction="denoising", **options)
    with pytest.raises(InputError, match="answers= belongs to the readouts 'probe' and 'p_true'"):
        al.swap_sweep(model, data, answers="generated", progress=False)


def test_swaps_are_read_by_p_true(tiny_model, data):
    swap = al.swap_sweep(tiny_model("llama"), data, readout="p_true", align="last", n_donors=1, layers=[0, 1], **OPTIONS)
    own = swap.samples()
    assert set(own["readout"]) == {"p_true"}
    assert set(own["delta_kind"]) == {"confidence"}
    assert own["p_before"].between(0, 1).all()
    assert own.query("control == 'none'")["delta_p"].abs().max() > 0
    with pytest.raises(InputError, match="known_only=True keeps right answers alone"):
        al.swap_sweep(tiny_model("llama"), data, readout="p_true", known_only=True, **OPTIONS)
