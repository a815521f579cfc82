"""Token patching: every input and every number again by other means, and what it refuses."""

import copy
import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

import anchorlens as al
from anchorlens.engine.cone import Cone
from anchorlens.errors import DonorError, EmptySweepError, InputError
from anchorlens.protocols.patch_tokens.measuring import PatchUnit
from anchorlens.protocols.patch_tokens.patching import Patcher
from anchorlens.protocols.patch_tokens.wording import patch_words
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokenised import make_rows
from anchorlens.questions.tokens import Answer, RowTokenizer
from anchorlens.runs.schema import CELL
from anchorlens.statistics.contrasts import mean_of
from anchorlens.statistics.pathways import quantity_frame
from anchorlens.statistics.resamples import Resamples

OPTIONS = {"progress": False, "n_resamples": 200}
KEYS = ["example_id", "donor_id", "control", "layer"]


@pytest.fixture(scope="module")
def data():
    return al.load_qa("popqa-sample", limit=150)


@pytest.fixture(scope="module")
def fitted(tiny_model, data):
    """Every test row, read by probes of the sweep's own."""
    return al.patch_tokens_sweep(tiny_model("llama"), data, base="all", **OPTIONS)


@pytest.fixture(scope="module")
def sharp(fitted):
    """The same probes, a thousand times as sure: a random model's are all but constant."""
    probes = copy.deepcopy(fitted.probes)
    for probe in probes.probes.values():
        probe.coef_, probe.intercept_ = 1000 * probe.coef_, 1000 * probe.intercept_
    return probes


@pytest.fixture(scope="module")
def sweep(tiny_model, data, sharp):
    return al.patch_tokens_sweep(tiny_model("llama"), data, probes=sharp, **OPTIONS)


@pytest.fixture(scope="module")
def everyone(tiny_model, data, sharp):
    return al.patch_tokens_sweep(tiny_model("llama"), data, base="all", probes=sharp, **OPTIONS)


def inputs_of(result):
    """Row id -> the stored input."""
    kept = result.examples().query("role != 'dropped' and role != 'donor'").set_index("example_id")
    return kept.assign(positions=kept["positions"].map(json.loads))


def stored(sample):
    """Row id of the patched input behind a sample."""
    name = f"{sample.example_id}~{sample.donor_id}"
    return name if sample.control == "none" else f"{name}~{sample.control}"


def p_by_hand(model, probes, row, layer):
    """P(hallucination) from token ids, TransformerLens's own cache, and the probe's four arrays."""
    with torch.no_grad():
        _, cache = model.run_with_cache(torch.tensor([list(row["token_ids"])]), prepend_bos=False)
    state = cache[f"blocks.{layer}.hook_resid_post"][0, row["positions"]["answer"][-1]].double().numpy()
    probe = probes.probes[layer]
    return 1 / (1 + np.exp(-(((state - probe.mean_) / probe.scale_) @ probe.coef_[0] + probe.intercept_[0])))


def test_delta_p_of_single_cells_from_the_stored_inputs(tiny_model, sweep):
    inputs = inputs_of(sweep)
    samples = sweep.samples().query("quantity == 'p'")
    assert samples["delta_p"].abs().median() > 1  # not all but zero
    for control in ("none", "random_tokens", "matched"):
        for sample in samples[samples["control"] == control].sample(6, random_state=1).itertuples():
            name = stored(sample) if stored(sample) in inputs.index else stored(sample).removesuffix("~matched")
            before, after = (
                p_by_hand(tiny_model("llama"), sweep.probes, inputs.loc[which], sample.layer)
                for which in (sample.example_id, name)
            )
            assert sample.value_before == pytest.approx(before, abs=1e-3)  # the probe multiplies rounding by 1000
            assert sample.value_after == pytest.approx(after, abs=1e-3)
            assert sample.delta_p == pytest.approx(100 * (after - before if before >= 0.5 else before - after), abs=0.1)


def test_fitted_probes_read_what_the_sweep_says(tiny_model, fitted):
    """The default way: probes of the sweep itself, fitted on rows that are not patched."""
    inputs = inputs_of(fitted)
    assert not set(fitted.probes.question_ids) & set(fitted.samples()["question_id"])
    for sample in fitted.samples().query("quantity == 'p' and control == 'none'").sample(4, random_state=2).itertuples():
        p = p_by_hand(tiny_model("llama"), fitted.probes, inputs.loc[stored(sample)], sample.layer)
        assert sample.value_after == pytest.approx(p, abs=1e-6)


def test_what_is_replaced_and_by_what(tiny_model, sweep):
    """Inputs and positions, from examples.parquet alone."""
    inputs, tokenizer = inputs_of(sweep), tiny_model("llama").tokenizer
    frame = sweep.examples()
    donors = frame[frame["role"] == "donor"].set_index("example_id")
    pool = {
        i
        for ids, p in zip(donors["token_ids"], donors["positions"].map(json.loads), strict=True)
        for i in (ids[q] for q in p["question_rest"])
    }
    fewer = pairs = same = 0
    for example_id, base in inputs[inputs["role"] == "base"].iterrows():
        own, clean = base["positions"], list(base["token_ids"])
        assert len(set(base["donor_ids"])) == len(base["donor_ids"]) <= 4
        for donor_id in base["donor_ids"]:
            pairs += 1
            whole = inputs.loc[f"{example_id}~{donor_id}"]
            donor = donors.loc[donor_id]
            theirs = json.loads(donor["positions"])
            for role in ("subject", "property"):
                put = tokenizer.decode([whole["token_ids"][p] for p in own[role]]).strip()
                assert put == tokenizer.decode([donor["token_ids"][p] for p in theirs[role]]).strip()
            changed = {}
            for name in ("", "~random_tokens", "~matched"):
                key = f"{example_id}~{donor_id}{name}"
                if key in inputs.index:
                    row = inputs.loc[key]
                    differs = [p for p, (a, b) in enumerate(zip(clean, row["token_ids"], strict=True)) if a != b]
                    assert differs == row["positions"].pop("replaced")
                    assert row["positions"] == own  # everything stays where it was
                    assert (row["answer"], row["label"]) == (base["answer"], base["label"])
                    changed[name] = set(differs)
            assert changed[""] <= set(own["question"])
            assert changed["~random_tokens"] <= set(own["question_rest"]) - {0}
            if "~matched" in changed:
                fewer += 1
                assert changed["~matched"] < changed[""]
                assert len(changed["~matched"]) == len(changed["~random_tokens"])
                kept = inputs.loc[f"{example_id}~{donor_id}~matched", "token_ids"]
                assert all(kept[p] == whole["token_ids"][p] for p in changed["~matched"])
            else:
                assert len(changed[""]) == len(changed["~random_tokens"])
            rest = Counter(donor["token_ids"][p] for p in theirs["question_rest"])
            put = Counter(
                inputs.loc[f"{example_id}~{donor_id}~random_tokens", "token_ids"][p] for p in changed["~random_tokens"]
            )
            same += not put - rest  # from the donor's own question where that has enough
            assert set(put) <= pool | set(rest) or put - rest
    assert pairs == sweep.record["counts"]["pairs"]
    assert fewer
    assert same > pairs / 2


def test_random_tokens_come_from_the_pool_where_the_donor_has_too_few(tiny_model, data):
    tokenizer = RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())
    rows = make_rows(data.examples, tokenizer).rows
    patcher = Patcher(tokenizer, rows, rule="random", n_donors=4, seed=0)
    made = patcher.patches(dict(enumerate(rows[:40]))).patches
    outside = {row.ids[p] for row in rows for p in row.positions["question_rest"]}
    from_pool = 0
    for patch in made:
        row = rows[patch.test]
        put = [patch.inputs["random_tokens"].ids[p] for p in patch.replaced["random_tokens"]]
        assert set(put) <= outside
        assert all(new != row.ids[p] for new, p in zip(put, patch.replaced["random_tokens"], strict=True))
        from_pool += bool(Counter(put) - Counter(patch.donor.ids[p] for p in patch.donor.positions["question_rest"]))
    assert from_pool


def test_base_rows_are_true_and_predicted_true(sweep, everyone):
    base = sweep.examples().query("role == 'base'")
    assert set(base["label"]) == {0}
    at = sweep.samples().query(f"quantity == 'p' and layer == {sweep.k_star}")
    assert at["value_before"].max() < 0.5
    # Every other true row with a donor was predicted false, and is listed.
    all_rows = everyone.samples().query(f"quantity == 'p' and layer == {sweep.k_star} and control == 'none'")
    true = all_rows[all_rows["example_id"].str.endswith("|true")].groupby("example_id")["value_before"].first()
    assert set(base["example_id"]) == set(true.index[true < 0.5])
    gone = sweep.examples().query("drop_reason == 'predicted_false'")
    assert set(gone["example_id"]) == set(true.index[true >= 0.5])
    assert sweep.dropped_counts["predicted_false"] == len(gone) > 0
    assert set(everyone.examples().query("role == 'base'")["label"]) == {0, 1}


def test_pathways_are_those_of_the_knockout(tiny_model, data, sharp, everyone):
    cut = al.knockout_sweep(tiny_model("llama"), data, probes=sharp, placebos=False, **OPTIONS)
    ours, theirs = (
        result.samples().query("quantity == 'p' and control == 'none'").groupby("example_id")["pathway"].first()
        for result in (everyone, cut)
    )
    assert set(ours) == {"Q-Anchored", "A-Anchored"}
    pd.testing.assert_series_equal(ours, theirs[ours.index])
    for _, one in everyone.samples().groupby("example_id"):
        assert one["pathway"].nunique() == 1  # the same under every control, donor and quantity


def test_flips_and_curves_are_means_of_the_samples(everyone):
    samples = everyone.samples()
    p = samples[samples["quantity"] == "p"].set_index(KEYS).sort_index()
    flip = samples[samples["quantity"] == "flip"].set_index(KEYS).sort_index()
    np.testing.assert_array_equal(flip["delta_p"], 100.0 * ((p["value_before"] >= 0.5) != (p["value_after"] >= 0.5)))
    curves = everyone.curves(controls=True).set_index(["quantity", "control", "pathway", "layer"])
    for quantity, own in samples.groupby("quantity"):
        # Donors first, then rows.
        by_row = own.groupby(["control", "layer", "example_id"]).agg(delta=("delta_p", "mean"), pathway=("pathway", "first"))
        for (control, layer), rows in by_row.groupby(["control", "layer"]):
            assert curves.loc[(quantity, control, "All", layer), "delta_p"] == pytest.approx(rows["delta"].mean())
            for pathway, group in rows.groupby("pathway"):
                assert curves.loc[(quantity, control, pathway, layer), "delta_p"] == pytest.approx(group["delta"].mean())
    several = samples.groupby("example_id")["donor_id"].nunique()
    assert several.max() == 4
    assert several.nunique() > 1  # so that donors first and rows first differ
    rows = samples.query("quantity == 'p' and control == 'none'")
    means = rows.groupby(["layer", "example_id"])["delta_p"].mean().unstack()[list(everyone.example_ids)]
    np.testing.assert_allclose(everyone.delta_p[0].numpy(), means.to_numpy())


def test_contrasts_are_paired_by_row(everyone):
    effects = everyone.effects().set_index(["quantity", "control", "layer"])
    means = everyone.samples().groupby(["quantity", "control", "layer", "example_id"])["delta_p"].mean()
    for layer in everyone.layers:
        for name, quantity in (("delta_all", "p"), ("flip_rate", "flip")):
            gap = (means[quantity, "matched", layer] - means[quantity, "random_tokens", layer]).dropna()
            row = effects.loc[(name, "random_tokens", layer)]
            assert row["value"] == pytest.approx(gap.mean())
            assert row["ci_low"] < row["value"] < row["ci_high"]
        rates = [
            effects.loc[(f"flip_rate_{x}", c, layer), "value"]
            for x, c in (("patched", "matched"), ("random", "random_tokens"))
        ]
        assert effects.loc[("flip_rate", "random_tokens", layer), "value"] == pytest.approx(rates[0] - rates[1])
        curves = everyone.curves(quantity="p").query(f"layer == {layer}").set_index("pathway")["delta_p"]
        assert effects.loc[("gap", "none", layer), "value"] == pytest.approx(curves["Q-Anchored"] - curves["A-Anchored"])
    assert set(effects.index.get_level_values("quantity")) == {
        "delta_all", "flip_rate", "flip_rate_patched", "flip_rate_random", "gap", "placebo_gap", "auc", "auc_knocked_out",
        "auc_beyond_text",
    }  # fmt: skip


def test_auc_is_that_of_all_test_rows_where_the_measured_ones_are_all_true(tiny_model, data, sharp, sweep):
    cut = al.knockout_sweep(tiny_model("llama"), data, probes=sharp, placebos=False, **OPTIONS)
    labels = cut.examples().query("role == 'base'").set_index("example_id")["label"].astype(float)
    auc = sweep.effects().query("quantity == 'auc'").set_index("layer")
    for layer in sweep.layers:
        p = cut.samples().query(f"control == 'none' and layer == {layer}").set_index("example_id")["value_before"]
        assert auc.loc[layer, "value"] == pytest.approx(roc_auc_score(labels[p.index], p), abs=5e-3)
        assert (auc.loc[layer, "control"], auc.loc[layer, "n"]) == ("none", cut.samples()["question_id"].nunique())
    curves = sweep.curves(controls=True)
    np.testing.assert_allclose(curves["auc"], auc.loc[curves["layer"], "value"])
    assert set(sweep.effects()["quantity"]) & {"auc_knocked_out"} == set()


def test_summary_and_words_speak_of_k_star(everyone):
    summary, effects = everyone.summary().iloc[0], everyone.effects()
    assert summary["layer"] == everyone.k_star
    fact = effects.query(f"quantity == 'delta_all' and layer == {everyone.k_star}").iloc[0]
    assert summary[["delta_all", "delta_all_low", "delta_all_high"]].tolist() == fact[["value", "ci_low", "ci_high"]].tolist()
    flips = (
        everyone.curves(quantity="flip", controls=True).query(f"layer == {everyone.k_star}").set_index(["control", "pathway"])
    )
    assert summary["flips_q_random_tokens"] == flips.loc[("random_tokens", "Q-Anchored"), "delta_p"]
    assert summary["flips_all"] == flips.loc[("none", "All"), "delta_p"]
    assert "Few" not in everyone.verdict
    title, table = everyone.protocol.table([everyone, everyone])
    assert "patch / control" in title
    assert len(table) == 2
    assert table["ΔP"].iloc[0] == f"{summary['all']:+.1f} / {summary['all_random_tokens']:+.1f}"


def test_same_seed_same_bytes_and_saved_as_loaded(tiny_model, data, sharp, sweep, tmp_path):
    again = al.patch_tokens_sweep(tiny_model("llama"), data, probes=sharp, **OPTIONS)
    for name, one in (("a", sweep), ("b", again)):
        one.save(tmp_path / name)
    for file in ("samples", "curves", "examples", "effects"):
        assert (tmp_path / "a" / f"{file}.parquet").read_bytes() == (tmp_path / "b" / f"{file}.parquet").read_bytes()
    (loaded,) = al.load_run(tmp_path / "a")
    assert isinstance(loaded, al.PathwayResult)
    assert loaded.verdict == sweep.verdict
    pd.testing.assert_frame_equal(loaded.curves(controls=True), sweep.curves(controls=True))
    pd.testing.assert_frame_equal(loaded.effects(), sweep.effects())
    pd.testing.assert_frame_equal(loaded.summary(), sweep.summary())
    assert repr(loaded) == repr(sweep)
    other = al.patch_tokens_sweep(tiny_model("llama"), data, n_donors=2, **OPTIONS)
    # The first donors are the same ones.
    ours, theirs = (
        result.examples().query("role == 'base'").set_index("example_id")["donor_ids"] for result in (sweep, other)
    )
    for example_id in set(ours.index) & set(theirs.index):
        assert list(theirs[example_id]) == list(ours[example_id])[:2]


def test_the_oracle_gives_the_same(tiny_model, data, sharp, sweep):
    oracle = al.patch_tokens_sweep(tiny_model("llama"), data, probes=sharp, engine="reference", **OPTIONS)
    ours, theirs = (result.samples().query("quantity == 'p'").set_index(CELL).sort_index() for result in (sweep, oracle))
    assert ours.index.equals(theirs.index)
    assert (ours["delta_p"] - theirs["delta_p"]).abs().max() < 0.2  # a thousand times the rounding
    assert (ours["pathway"] == theirs["pathway"]).all()
    assert oracle.record["plan"]["engine"] == "reference"
    assert sweep.record["checks"]["cells"] == 4
    assert 0 < sweep.record["noise"]["floor"] < 0.2
    assert sweep.record["noise"]["cells"] > 0


def test_batches_and_memory_change_no_number(tiny_model, data, sharp, sweep, monkeypatch):
    right, sizes = Cone.cut_states_everywhere, []

    def limited(self, batch, **options):
        if not batch.edges and len(batch.tokens.ids) > 3:
            raise torch.OutOfMemoryError("out of memory")
        sizes.append(len(batch.tokens.ids))
        return right(self, batch, **options)

    monkeypatch.setattr(Cone, "cut_states_everywhere", limited)
    with pytest.warns(UserWarning, match="Memory ran out"):
        small = al.patch_tokens_sweep(tiny_model("llama"), data, probes=sharp, batch_size=30, **OPTIONS)
    assert max(sizes) > 3  # the clean rows, read with their edges cut
    ours, theirs = (result.samples().query("quantity == 'p'").set_index(CELL).sort_index() for result in (sweep, small))
    assert ours.index.equals(theirs.index)
    assert (ours["delta_p"] - theirs["delta_p"]).abs().max() < 0.2
    assert small.record["plan"]["split"] > 0


def test_a_pair_alone_is_split_into_its_inputs(tiny_model, data):
    tokenizer = RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())
    rows = make_rows(data.examples[:40], tokenizer).rows
    patches = Patcher(tokenizer, rows, rule="random", n_donors=2, seed=0).patches(dict(enumerate(rows))).patches
    for i, patch in enumerate(patches):
        unit = PatchUnit.of(patches, (i,))
        assert unit.inputs == 1 + len({row.row_id for row in patch.inputs.values()})
        assert [one.variants for one in unit.split()] == [("none",), ("random_tokens",), ("matched",)]
        assert unit.split()[0].split() == ()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"base": "true"}, InputError, "Unknown base='true'. Did you mean 'true_predicted_true'?"),
        ({"donors": "mean"}, DonorError, "Unknown donors='mean'. Known: random, same_relation."),
        ({"n_donors": 0}, InputError, "n_donors must be at least 1, got 0."),
        ({"readout": "probe"}, InputError, "patch_tokens has no argument 'readout'."),
        ({"layers": [7]}, InputError, "layers must be different numbers from 0 to 2, got (7,)."),
    ],
)  # fmt: skip
def test_bad_arguments_are_told(tiny_model, data, options, error, message):
    with pytest.raises(error) as told:
        al.patch_tokens_sweep(tiny_model("llama"), data, **options)
    assert str(told.value).startswith(message)


def test_probes_of_another_site_or_without_a_layer_are_refused(tiny_model, data, sharp):
    with pytest.raises(InputError, match="These probes read resid_post; asked for is probe_site='mlp_out'."):
        al.patch_tokens_sweep(tiny_model("llama"), data, probes=sharp, probe_site="mlp_out")
    with pytest.raises(InputError, match=r"These probes read layers \(0,\); asked for are \(0, 1, 2\)."):
        al.patch_tokens_sweep(tiny_model("llama"), data, probes=sharp.at([0]))


def test_without_a_donor_or_a_true_row_it_stops(tiny_model, data, sharp):
    with pytest.raises(
        EmptySweepError, match="No row of popqa-sample has a donor whose subject and property take as many tokens"
    ):
        al.patch_tokens_sweep(tiny_model("llama"), data, donors=lambda base, pool: (), **OPTIONS)
    never = copy.deepcopy(sharp)
    for probe in never.probes.values():
        probe.coef_, probe.intercept_ = 0 * probe.coef_, probe.intercept_ * 0 + 5
    with pytest.raises(EmptySweepError, match=r"None of \d+ true test rows is predicted true by the probe at k\* = "):
        al.patch_tokens_sweep(tiny_model("llama"), data, probes=never, **OPTIONS)


def test_a_donor_for_whose_question_the_answer_is_right_is_left_out(tiny_model, data):
    tokenizer = RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())
    rows = make_rows(data.examples, tokenizer).rows
    patcher = Patcher(tokenizer, rows, rule="random", n_donors=50, seed=0)
    refused = 0
    for base in rows[:60]:
        (donor, *_) = [patch.donor for patch in patcher.patches({0: base}).patches] or [None]
        if donor is not None and len(donor.example.answers) > 1:
            # The false answer is another alias of the donor's: after its question it would be a true one.
            false = tokenizer.row(base.example, Answer.gold(donor.example.answers[1]), f"{base.row_id}|false")
            found = patcher.patches({0: false})
            assert donor.row_id not in {patch.donor.row_id for patch in found.patches}
            refused += found.failed.get("same_answer", 0)
    assert refused


def said(auc=0.8, low=0.7, delta=(-12.0, -16.0, -8.0), flips=(5.0, -2.0, 12.0), n=40, n_a=10, base="all", leak=0.45):
    """The words of a sweep with these numbers at its layer."""
    summary = {"layer": 3, "q": -20.0, "n_q": 30, "a": -4.0, "n_a": n_a}
    facts = [
        ("auc", "none", auc, low, 0.9, n), ("delta_all", "random_tokens", *delta, n), ("flip_rate", "random_tokens", *flips, n),
        ("flip_rate_patched", "matched", 30.0, 20.0, 40.0, n), ("flip_rate_random", "random_tokens", 25.0, 20.0, 30.0, n),
    ]  # fmt: skip
    columns = ["quantity", "control", "value", "ci_low", "ci_high", "n"]
    effects = pd.DataFrame(facts, columns=columns).assign(layer=3, sim_low=np.nan, sim_high=np.nan)
    record = {"config": {"base": base}, "probe": {"k_star": 3, "text_only": {"auc": 0.6, "ci_low": leak, "ci_high": 0.7}}}
    return patch_words(record, summary, effects)


def test_words_claim_what_stands_and_no_more():
    assert said() == (
        "At k* = 3 replacing E_Q moves ΔP by -12.0 [-16.0, -8.0] points beyond replacing as many other question tokens (40 "
        "questions, true and false answers). Flips: 30 % against 25 %; a difference is not shown, the data allow -2.0 .. +12.0 "
        "points. ΔP: Q-Anchored -20.0 (30), A-Anchored -4.0 (10); pathways were split by a flip of the same clean P, so their "
        "difference is description."
    )
    assert said(delta=(-1.0, -4.0, 2.0), base="true_predicted_true").startswith(
        "Not shown at k* = 3 (40 questions, true answers predicted true): that replacing E_Q changes ΔP otherwise than replacing as "
        "many other question tokens; the data allow -4.0 .. +2.0 points. "
    )
    assert said(delta=(6.0, 2.0, 10.0)).startswith(
        "At k* = 3 ΔP is +6.0 [+2.0, +10.0] points above that of replacing as many other question tokens (40 questions, true and "
        "false answers): E_Q is not shown to matter more than they do. "
    )
    assert "difference +5.0 [+1.0, +9.0]." in said(flips=(5.0, 1.0, 9.0))
    assert "A-Anchored" not in said(n_a=9)
    assert said(leak=0.55).startswith("Beware: the answer's text alone reaches AUC 0.60 [0.55, 0.70]. At k* = 3")
    assert len(said(delta=(-1.0, -4.0, 2.0), leak=0.55).split()) <= 90
    assert said(low=0.5) == "The probe shows no signal at k* = 3 (AUC 0.80 [0.50, 0.90]): nothing is said of truth."
    assert said(n=9) == "Patch and control can be compared in 9 questions: below 10 nothing is said."


@pytest.mark.slow
def test_a_model_that_knows_the_answers_is_told_from_its_control(smollm2):
    """A real effect: the subject's name takes a true answer's truth away, other tokens do not."""
    result = al.patch_tokens_sweep(smollm2, al.load_qa("triviaqa-sample", limit=110), progress=False)
    summary = result.summary().iloc[0]
    assert summary["n_all"] >= 30
    assert summary["delta_all_high"] < -20
    assert summary["flip_rate_low"] > 20
    assert result.verdict.startswith(f"At k* = {result.k_star} replacing E_Q moves ΔP by -")


def test_where_patch_and_control_are_alike_the_interval_holds_zero():
    """Calibration, at the level of statistics: rows that fall far now and then, under patch and control alike."""
    rng = np.random.default_rng(0)
    n, sweeps = 40, 400
    draws = Resamples.of([f"q{i}" for i in range(n)], n_resamples=400, seed=0)

    def fallen(shape, often):
        return np.where(rng.random(shape) < often, -100 * rng.random(shape), rng.normal(0, 3, shape))

    def difference(own, other):
        return quantity_frame(range(len(own)), "delta_all", "random_tokens", mean_of(own - other, draws))

    null = difference(fallen((sweeps, n), 0.15), fallen((sweeps, n), 0.15))
    excludes = ((null["ci_low"] > 0) | (null["ci_high"] < 0)).mean()
    assert 0.02 <= excludes <= 0.09
    real = difference(fallen((sweeps, n), 0.6), fallen((sweeps, n), 0.15))
    assert (real["ci_high"] < 0).mean() > 0.9
    # Rows without a control do not count.
    own = np.array([[-10.0, -20.0, np.nan, *[-10.0] * 37]])
    only = difference(own, np.zeros_like(own))
    assert only["value"].iloc[0] == pytest.approx(np.nanmean(own))
    assert only["n"].iloc[0] == 39
