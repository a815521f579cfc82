"""The answer after an empty question: what comes out is recomputed from the files, and what must hold by algebra holds."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file

import anchorlens as al
from anchorlens.engine.cone import Cone
from anchorlens.engine.select import choose_engine
from anchorlens.errors import EmptySweepError, InputError
from anchorlens.models.adapter import Adapter
from anchorlens.protocols.answer_only.inputs import changed_row, without_question
from anchorlens.protocols.answer_only.protocol import PROTOCOL, answer_only_sweep
from anchorlens.protocols.answer_only.spec import AnswerOnly
from anchorlens.protocols.driver import set_up
from anchorlens.protocols.registry import protocol_of, specification_of
from anchorlens.questions.example import normalise
from anchorlens.questions.prompts import ChatPrompt, PromptText, QAPrompt, TemplatePrompt
from anchorlens.questions.tokens import RowDropped, RowTokenizer
from anchorlens.results.pathways import PathwayResult
from tests.tokenizers_small import small_tokenizer

OPTIONS = {"progress": False, "n_resamples": 200}
OTHER = "other_question"


@pytest.fixture(scope="module")
def data():
    return al.load_qa("popqa-sample", limit=90)


@pytest.fixture(scope="module")
def sweep(tiny_model, data):
    return answer_only_sweep(tiny_model("llama"), data, **OPTIONS)


@pytest.fixture(scope="module")
def saved(sweep, tmp_path_factory):
    return sweep.save(tmp_path_factory.mktemp("answer_only") / "run")


def own(result, control="none", quantity="p"):
    return result.samples().query(f"control == {control!r} and quantity == {quantity!r}")


def inputs(result, role):
    return result.examples().query(f"role == {role!r}").set_index("example_id")


class Again:
    """P of any stored input by the model's own cache and the saved probes' arrays."""

    def __init__(self, run, model):
        self.model = model
        self.examples = pd.read_parquet(run / "examples.parquet").set_index("example_id")
        (self.sweep,) = json.loads((run / "run.json").read_text(encoding="utf8"))["sweeps"]
        self.probes = load_file(run / "probes" / self.sweep["run_id"] / "probes.safetensors")
        self.samples = pd.read_parquet(run / "samples.parquet")

    def p(self, example_id, layer):
        row = self.examples.loc[example_id]
        with torch.no_grad():
            _, cache = self.model.run_with_cache(torch.tensor([list(map(int, row["token_ids"]))]), prepend_bos=False)
        last = json.loads(row["positions"])["answer"][-1]
        state = cache["resid_post", layer][0, last].double().numpy()
        mean, scale, weights, bias = (self.probes[f"{layer}.{name}"] for name in ("mean_", "scale_", "coef_", "intercept_"))
        return 1 / (1 + np.exp(-(weights[0] @ ((state - mean) / scale) + bias[0])))

    def check(self, cells, atol):
        """Both P and ΔP of each; the changed input of a sample is EXAMPLE_ID~DONOR_ID."""
        for cell in cells.itertuples():
            before = self.p(cell.example_id, cell.layer)
            after = self.p(f"{cell.example_id}~{cell.donor_id}", cell.layer)
            assert before == pytest.approx(cell.value_before, abs=atol)
            assert after == pytest.approx(cell.value_after, abs=atol)
            sign = 1 if before >= 0.5 else -1
            assert sign * 100 * (after - before) == pytest.approx(cell.delta_p, abs=200 * atol)


def test_delta_p_is_recomputed_from_the_files_alone(tiny_model, saved):
    again = Again(saved, tiny_model("llama"))
    p = again.samples[again.samples["quantity"] == "p"]
    cells = p.groupby(["control", "layer"]).sample(n=4, random_state=3)
    assert len(cells) == 2 * 3 * 4
    assert cells["delta_p"].abs().max() > 0.05  # a probe of random weights is held back strongly
    again.check(cells, 1e-5)
    # Flips are those of P, and one row for each.
    flips = again.samples[again.samples["quantity"] == "flip"]
    key = ["control", "example_id", "layer"]
    both = p.merge(flips, on=key, suffixes=("", "_flip"), validate="one_to_one")
    assert len(both) == len(p) == len(flips)
    changed = (both["value_before"] >= 0.5) != (both["value_after"] >= 0.5)
    np.testing.assert_array_equal(both["delta_p_flip"], 100.0 * changed)


@pytest.mark.slow
def test_on_real_weights(smollm2, tmp_path):
    result = answer_only_sweep(smollm2, al.load_qa("triviaqa-sample", limit=40), layers=(4, 15, 29), **OPTIONS)
    again = Again(result.save(tmp_path / "run"), smollm2)
    p = again.samples[again.samples["quantity"] == "p"]
    again.check(p.groupby("control").sample(n=5, random_state=0), 1e-4)
    assert result.effects().query("quantity == 'auc_knocked_out' and control == 'none'")["value"].to_numpy() == pytest.approx(
        0.5
    )


def test_the_input_is_the_template_with_an_empty_question(sweep, data):
    base, corrupt = inputs(sweep, "base"), inputs(sweep, "corrupt")
    questions = {e.example_id: e.question for e in data.examples}
    for example_id, row in base.iterrows():
        empty = corrupt.loc[f"{example_id}~"]
        assert empty["text"] == f"Q:\nA: {row['answer']}"
        assert empty["question"] == ""
        (donor,) = row["donor_ids"]
        other = corrupt.loc[f"{example_id}~{donor}"]
        assert other["text"] == f"Q: {questions[donor]}\nA: {row['answer']}"
        for changed in (empty, other):
            there, here = (
                [r["token_ids"][p] for p in json.loads(r["positions"])["answer"]] for r in (changed, row)
            )  # the exact answer is made of the same tokens
            assert there == here
    assert len(corrupt) == 2 * len(base)


def test_the_other_question_has_nothing_to_do_with_the_answer(sweep, data):
    by_id = {e.example_id: e for e in data.examples}
    base = inputs(sweep, "base")
    tested = {e.removesuffix("|true").removesuffix("|false") for e in base.index}
    donors = set()
    for example_id, row in base.iterrows():
        donor, mine = by_id[row["donor_ids"][0]], by_id[example_id.split("|")[0]]
        donors.add(donor.example_id)
        assert donor.example_id in tested  # of the same split: the probes have not seen it
        assert donor.question_id != mine.question_id
        theirs = {normalise(a) for a in donor.answers}
        assert not theirs & {normalise(a) for a in (*mine.answers, row["answer"])}
        assert f" {normalise(row['answer'])} " not in f" {normalise(donor.question)} "
    assert len(donors) > len(tested) / 4


def test_pathways_are_those_of_the_knockout(tiny_model, data, sweep):
    knockout = al.knockout_sweep(tiny_model("llama"), data, placebos=False, **OPTIONS)
    assert knockout.k_star == sweep.k_star
    ours, theirs = (own(s).groupby("example_id")["pathway"] for s in (sweep, knockout))
    assert (ours.nunique() == 1).all()
    pd.testing.assert_series_equal(ours.first(), theirs.first())
    assert set(ours.first()) == {"Q-Anchored", "A-Anchored"}
    control = own(sweep, OTHER).groupby("example_id")["pathway"].first()
    pd.testing.assert_series_equal(ours.first(), control)
    clean = [s.set_index(["example_id", "layer"])["value_before"].sort_index() for s in (own(sweep), own(knockout))]
    np.testing.assert_allclose(*clean, atol=1e-5)


def test_rows_of_one_answer_have_one_p_and_so_balanced_answers_an_auc_of_one_half(sweep):
    answers = inputs(sweep, "base")["answer"]
    samples = own(sweep).assign(answer=lambda f: f["example_id"].map(answers))
    groups = samples.groupby(["answer", "layer"])["value_after"]
    assert (groups.nunique() == 1).all()
    assert groups.size().min() >= 2
    assert sweep.record["counts"]["distinct_answers"] == answers.nunique() < len(answers)
    auc = sweep.effects().query("quantity == 'auc_knocked_out' and control == 'none'")
    np.testing.assert_allclose(auc["value"], 0.5, atol=1e-12)
    assert ((auc["ci_low"] <= 0.5) & (auc["ci_high"] >= 0.5)).all()
    # The clean AUC stands there once: both measurements share the clean input.
    assert list(sweep.effects().query("quantity == 'auc'")["control"].unique()) == ["none"]


def test_contrasts_are_paired_by_row(sweep):
    effects = sweep.effects().set_index(["quantity", "control", "layer"])
    wanted = {
        "delta_all": ("p", "delta_p", 1),
        "flip_rate": ("flip", "delta_p", 1),
        "p_after": ("p", "value_after", 100),
    }
    for name, (quantity, column, unit) in wanted.items():
        both = own(sweep, quantity=quantity).merge(own(sweep, OTHER, quantity), on=["example_id", "layer"])
        gaps = (unit * (both[f"{column}_x"] - both[f"{column}_y"])).groupby(both["layer"])
        for layer, gap in gaps:
            row = effects.loc[(name, OTHER, layer)]
            assert row["value"] == pytest.approx(gap.mean(), abs=1e-9)
            assert row["ci_low"] <= row["value"] <= row["ci_high"]
            assert row["n"] == both["question_id_x"].nunique()
    (here,) = sweep.summary().to_dict("records")
    at = effects.loc[("delta_all", OTHER, sweep.k_star)]
    assert here["delta_all"] == at["value"]
    assert here["all"] - here["all_other_question"] == pytest.approx(at["value"])
    assert 100 * (here["p_after"] - here["p_after_other_question"]) == pytest.approx(here["p_difference"])


def test_balanced_answers_fix_the_mean_of_delta_p(sweep):
    """A string that is once true and once false, both predicted right: what P becomes leaves their sum, and one of them flips."""
    base = inputs(sweep, "base")
    samples = own(sweep).join(base[["answer", "label"]], on="example_id")
    right = (samples["value_before"] >= 0.5) == (samples["label"] == 1)
    seen = 0
    for (_, _), rows in samples[right].groupby(["answer", "layer"]):
        true, false = (rows[rows["label"] == label].iloc[:1] for label in (0, 1))
        if len(true) and len(false):
            seen += 1
            total = float(true["delta_p"].iloc[0] + false["delta_p"].iloc[0])
            assert total == pytest.approx(100 * float(true["value_before"].iloc[0] - false["value_before"].iloc[0]))
            assert (
                sum((both["value_before"] >= 0.5).iloc[0] != (both["value_after"] >= 0.5).iloc[0] for both in (true, false))
                == 1
            )
    assert seen > 5


def test_same_seed_same_bytes_and_saved_as_loaded(tiny_model, data, sweep, saved, tmp_path):
    again = answer_only_sweep(tiny_model("llama"), data, **OPTIONS).save(tmp_path / "again")
    for file in ("samples", "curves", "examples", "effects"):
        assert (saved / f"{file}.parquet").read_bytes() == (again / f"{file}.parquet").read_bytes()
    (loaded,) = al.load_run(saved)
    assert isinstance(loaded, PathwayResult)
    pd.testing.assert_frame_equal(loaded.curves(controls=True), sweep.curves(controls=True))
    pd.testing.assert_frame_equal(loaded.effects(), sweep.effects())
    pd.testing.assert_frame_equal(loaded.summary(), sweep.summary())
    assert loaded.verdict == sweep.verdict
    assert repr(loaded) == repr(sweep)
    assert specification_of("answer_only").from_config(sweep.record["config"]) == AnswerOnly(
        layers=(0, 1, 2), add_bos=False, n_resamples=200
    )
    other = answer_only_sweep(tiny_model("llama"), data, **OPTIONS, seed=1)
    assert set(other.example_ids) != set(sweep.example_ids)


def test_the_oracle_says_the_same(tiny_model, data, sweep):
    oracle = answer_only_sweep(tiny_model("llama"), data, engine="reference", **OPTIONS)
    cells = ["control", "quantity", "example_id", "donor_id", "layer"]
    ours, theirs = (s.samples().set_index(cells).sort_index() for s in (sweep, oracle))
    for column in ("value_before", "value_after"):
        np.testing.assert_allclose(ours[column], theirs[column], atol=1e-5)
    assert sweep.record["checks"]["cells"] == 4
    assert sweep.record["checks"]["largest_difference"] < 1e-3


def test_memory_that_runs_out_changes_nothing(tiny_model, data, sweep, monkeypatch):
    right = Cone.cut_states_everywhere

    def run(self, batch, **options):
        if len(batch.tokens.ids) > 7:
            raise torch.OutOfMemoryError("out of memory")
        return right(self, batch, **options)

    monkeypatch.setattr(Cone, "cut_states_everywhere", run)
    with pytest.warns(UserWarning, match="Memory ran out"):
        small = answer_only_sweep(tiny_model("llama"), data, **OPTIONS)
    assert small.record["plan"]["split"] > 0
    np.testing.assert_allclose(small.delta_p, sweep.delta_p, atol=1e-3)


def test_the_progress_bar_ends_where_the_plan_says(tiny_model, data):
    spec = AnswerOnly(**OPTIONS, batch_size=16)
    bench = set_up(Adapter(tiny_model("llama")), data, spec, asking=PROTOCOL.asking(spec))
    ready = PROTOCOL.prepare(bench, spec)
    engine = choose_engine(bench.adapter, spec.engine, ready.trial, ready.sites)
    plan = PROTOCOL.plan(engine, ready, spec)
    done: list[float] = []
    ready = PROTOCOL.fit(engine, ready, spec, plan, done.append)
    cells = sum(len(PROTOCOL.measure(engine, ready, spec, unit, done.append)) for unit in plan.units)
    assert sum(done) == pytest.approx(plan.work)
    assert cells == 2 * plan.cost.cells  # P and flip
    # Rows of one input are in one unit.
    unit_of = {j: i for i, unit in enumerate(plan.units) for j in unit.tests}
    assert sorted(unit_of) == list(range(len(ready.test)))
    homes: dict[tuple[int, ...], set[int]] = {}
    for j, i in unit_of.items():
        homes.setdefault(ready.empty[j].ids, set()).add(i)
    assert {len(units) for units in homes.values()} == {1}


def test_shots_stay(tiny_model, data):
    few = answer_only_sweep(tiny_model("llama"), data, prompt="fewshot(2)", **OPTIONS)
    base, corrupt = inputs(few, "base"), inputs(few, "corrupt")
    first = base["text"].iloc[0]
    head = first[: first.rindex("Q: ")]
    assert head.count("Q: ") == head.count("\nA: ") == 2
    assert base["text"].str.startswith(head).all()
    for example_id, row in base.iterrows():
        assert corrupt.loc[f"{example_id}~", "text"] == f"{head}Q:\nA: {row['answer']}"
    assert not base["question"].map(lambda q: q in head).any()


def test_bos_stands_once(tiny_model, data):
    result = answer_only_sweep(tiny_model("llama", True), data, layers=[1], **OPTIONS)
    ids = inputs(result, "corrupt")["token_ids"]
    assert (ids.map(lambda tokens: tokens[0]) == 0).all()
    assert (ids.map(lambda tokens: list(tokens).count(0)) == 1).all()


def test_answers_of_other_tokens_are_dropped_and_counted(tiny_model, data, sweep, monkeypatch):
    answers = inputs(sweep, "base")["answer"]
    chosen = answers.value_counts().index[0]
    right = RowTokenizer.encode

    def encode(self, text):
        ids, offsets = right(self, text)
        return ([*ids[:-1], 7, 7], [*offsets[:-1], offsets[-1], offsets[-1]]) if text == f"Q:\nA: {chosen}" else (ids, offsets)

    monkeypatch.setattr(RowTokenizer, "encode", encode)
    result = answer_only_sweep(tiny_model("llama"), data, **OPTIONS)
    gone = result.examples().query("drop_reason == 'answer_retokenised'")
    assert set(gone["example_id"]) == set(answers.index[answers == chosen])
    assert set(gone["answer"]) == {chosen}
    assert result.dropped_counts["answer_retokenised"] == len(gone) == result.record["counts"]["dropped"]["answer_retokenised"]
    assert set(result.example_ids) == set(sweep.example_ids) - set(gone["example_id"])
    auc = result.effects().query("quantity == 'auc_knocked_out' and control == 'none'")
    np.testing.assert_allclose(auc["value"], 0.5, atol=1e-12)  # both labels of the string left


def test_kinds_of_delta_and_of_the_split(tiny_model, data, sweep):
    signed = answer_only_sweep(tiny_model("llama"), data, delta_kind="signed", mode="zero", **OPTIONS)
    ours, theirs = own(sweep), own(signed)
    np.testing.assert_array_equal(ours["value_after"], theirs["value_after"])
    np.testing.assert_allclose(theirs["delta_p"], 100 * (theirs["value_after"] - theirs["value_before"]))
    assert (ours["pathway"].to_numpy() != theirs["pathway"].to_numpy()).any()
    assert set(theirs["mode"]) == {"zero"}
    assert set(theirs["anchor"]) == {"whole_question"}


# -- the empty question -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        (QAPrompt(), "Q:\nA:"),
        (TemplatePrompt.of("Question: {question} Answer:"), "Question: Answer:"),
        (TemplatePrompt.of("{question} Answer:"), "Answer:"),
        (TemplatePrompt.of("Say ({question})\\n"), "Say ()\n"),
        (TemplatePrompt.of("A: {question}"), "A:"),
    ],
)
def test_the_space_that_an_empty_question_leaves_is_gone(prompt, text):
    made = without_question(RowTokenizer(small_tokenizer("byte", bos=False), prompt))
    assert made.text == text


def test_prompts_that_take_no_empty_question(tiny_model, data):
    said = "answer_only needs a prompt that takes an empty question, such as prompt='qa'; 'chat' does not. "
    with pytest.raises(InputError) as told:
        without_question(RowTokenizer(small_tokenizer("byte", bos=False, chat=True), ChatPrompt()))
    assert str(told.value) == said + "The chat template does not carry the question as it is: ''."
    with pytest.raises(InputError) as told:
        answer_only_sweep(tiny_model("llama"), data, prompt="chat", **OPTIONS)
    assert str(told.value).startswith(said)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (PromptText("Q: " + 60 * "why " + "\nA:\n", 3, ""), "too_long: .* tokens, the model takes 99"),
        (PromptText("", 0, ""), "anchor_at_position_0: answer takes in the first token, the attention sink"),
        (PromptText("Q:\nA:", 2, " "), r"answer_retokenised: after 'Q:\\nA:' the answer is made of other tokens"),
    ],
)
def test_inputs_that_cannot_be_measured(data, prompt, said):
    tokenizer = RowTokenizer(small_tokenizer("byte", bos=False), TemplatePrompt.of("Q: {question}\\nA:\\n"), max_length=99)
    row = tokenizer.row(replace(data.examples[0], answers=("Rome",)))
    with pytest.raises(RowDropped, match=said):
        changed_row(row, tokenizer, prompt, "", "x")


def test_rows_without_any_other_question(tiny_model, data):
    everyone = tuple(replace(e, answers=(*e.answers, "shared by all")) for e in data.examples)
    with pytest.raises(EmptySweepError):  # questions that share an alias are in one split, too
        answer_only_sweep(tiny_model("llama"), replace(data, examples=everyone, pool=everyone), **OPTIONS)


# -- words --------------------------------------------------------------------------------------------------------------------


def made(result, change):
    """The result with other samples; ``change`` gets P before and after by control and label."""
    samples = result.samples()
    labels = samples["example_id"].map(inputs(result, "base")["label"]).astype(float)
    samples = change(samples, labels)
    p = samples["quantity"] == "p"
    before, after = samples["value_before"].astype(float), samples["value_after"].astype(float)
    sign = np.where(before >= 0.5, 1.0, -1.0)
    samples.loc[p, "delta_p"] = (100 * sign * (after - before))[p]
    return PathwayResult.make(PROTOCOL, samples, result.examples(), result.record, result.run_id)


def test_words_speak_of_the_difference_and_of_its_interval(sweep):
    def signal(samples, labels):
        """A probe that is right and sure; both inputs leave it at one half and a little, whatever the label."""
        p = samples["quantity"] == "p"
        samples.loc[p, "value_before"] = (0.1 + 0.8 * labels)[p]
        samples.loc[p, "value_after"] = 0.45
        return samples

    k = sweep.k_star
    same = made(sweep, signal).verdict
    assert same.startswith(
        f"At k* = {k} P(hallucination) is 0.50 clean, 0.45 without a question and 0.45 after another row's: a difference is not "
        "shown; the data allow 0.0 .. 0.0 points. Mean ΔP -40.0 against -40.0 (0.0 [0.0, 0.0]), flips "
    )
    assert "in balanced answers predicted right, both follow from the clean P." in same
    assert same.endswith("AUC 1.00, answer only 0.50 [0.40, 0.60].")

    def beyond(samples, labels):
        samples = signal(samples, labels)
        samples.loc[(samples["quantity"] == "p") & (samples["control"] == OTHER), "value_after"] = 0.85
        return samples

    stands = made(sweep, beyond).verdict
    assert "0.45 without a question and 0.85 after another row's: difference -40.0 [-40.0, -40.0] points." in stands
    assert "Mean ΔP -40.0 against -40.0 (0.0 [" in stands  # what P becomes leaves the mean

    def leak(samples, labels):
        samples = signal(samples, labels)
        own = (samples["quantity"] == "p") & (samples["control"] == "none")
        samples.loc[own, "value_after"] = (0.4 + 0.1 * labels)[own]
        return samples

    told = made(sweep, leak).verdict
    assert told.endswith("answer only 1.00 [0.93, 1.00]: beware, it excludes 0.5 although answers are balanced.")


def test_words_need_a_signal_and_ten_questions(sweep):
    def blind(samples, labels):
        samples.loc[samples["quantity"] == "p", "value_before"] = 0.6
        return samples

    told = made(sweep, blind).verdict
    assert told.startswith("No signal: nothing here speaks of truth. At k* = ")
    assert len(f"{told} beware, it excludes 0.5 although answers are balanced.".split()) <= 90
    few = list(dict.fromkeys(own(sweep)["question_id"]))[:9]
    samples, examples = sweep.samples(), sweep.examples()
    examples = examples[(examples["role"] != "base") | examples["question_id"].isin(few)]
    small = PathwayResult.make(PROTOCOL, samples[samples["question_id"].isin(few)], examples, sweep.record, sweep.run_id)
    assert small.verdict == "Nothing is said: 9 questions were measured, and 10 are needed."


# -- the plug -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mode": "masc"}, "Unknown mode='masc'. Did you mean 'mask'?"),
        ({"edges": "question -> later"}, "answer_only has no argument 'edges'. "),
        ({"readout": "p_true"}, "answer_only has no argument 'readout'. "),
        ({"layers": [99]}, "layers must be different numbers from 0 to 2, got (99,)."),
        ({"probe_site": "resid_mid"}, "Unknown probe_site='resid_mid'. Did you mean 'resid_post'?"),
        ({"max_memory": "2MB"}, "max_memory is 2 MB, and with the smallest batches this sweep needs about "),
    ],
)
def test_bad_arguments(tiny_model, data, change, said):
    with pytest.raises(InputError) as told:
        answer_only_sweep(tiny_model("llama"), data, **OPTIONS, **change)
    assert str(told.value).startswith(said)


def test_probes_of_another_sweep(tiny_model, data, sweep):
    same = answer_only_sweep(tiny_model("llama"), data, probes=sweep.probes, **OPTIONS)
    np.testing.assert_allclose(same.delta_p, sweep.delta_p, atol=1e-9)
    with pytest.raises(InputError) as told:
        answer_only_sweep(tiny_model("llama"), data, probes=sweep.probes, probe_site="mlp_out", **OPTIONS)
    assert (
        str(told.value)
        == "These probes read resid_post; asked for is probe_site='mlp_out'. Give the probe_site= that the probes have."
    )
    with pytest.raises(InputError) as told:
        answer_only_sweep(tiny_model("llama"), data, probes=sweep.probes.at((0, 1)), **OPTIONS)
    assert str(told.value) == "These probes read layers (0, 1); asked for are (0, 1, 2). Give layers= that they have."


def test_it_is_found_by_its_name_and_its_arguments_need_no_torch(sweep):
    assert protocol_of("answer_only") is PROTOCOL
    title, table = PROTOCOL.table([sweep, sweep])
    assert title.startswith("Answer only at k*")
    assert len(table) == 2
    code = (
        "import sys; from anchorlens.protocols.registry import specification_of; "
        "spec = specification_of('answer_only'); assert spec.from_toml(spec(mode='zero').to_toml()) == spec(mode='zero'); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
