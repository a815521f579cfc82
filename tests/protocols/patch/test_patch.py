"""Runs of the patch protocol: controls, files, resuming, verification, and pairs that are
refused.
"""

from itertools import islice, permutations

import numpy as np
import pandas as pd
import pytest
import torch

import anchorlens as al
from anchorlens.display import three_digits
from anchorlens.errors import EmptySweepError, InputError
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.protocols.patch.grid_statistics import GridStatistics
from anchorlens.running.sweeps import patch_sweep
from anchorlens.runs.checksums import write_sums
from tests.protocols.patch.plain import cache_of, metric_of, patched_logits
from tests.protocols.patch.test_cells import ROWS, check_cells, positions
from tests.raised import raises
from tests.tiers import choose_cases

# The small tokenizer knows single letters: all prompts have as many tokens.
MANY = [
    {
        "id": f"p{i:02d}",
        "clean": f"{a} of {b} is",
        "corrupted": f"{c} of {d} is",
        "answer": f" {e}",
        "wrong": f" {f}",
        "segments": {"first": [f"{a} of", f"{c} of"], "second": [f"{b} is", f"{d} is"]},
    }
    for i, (a, b, c, d, e, f) in enumerate(islice(permutations("bghijk", 6), 0, 720, 70))
]
OPTIONS = {"progress": False, "n_resamples": 100}


def second_last(logits):
    """A metric that reads two positions."""
    return logits[0, -1, 3] - logits[0, -2, 5]


def rank(logits):
    """A metric that moves in steps and reads all positions."""
    return (logits[0].amax(0) > logits[0, -1, 3]).sum()


CASES = [
    {},
    {"by": "segment", "metric": "prob", "direction": "noising", "window": 2},
    {"by": "head", "site": "z", "metric": "kl"},
    pytest.param(
        {"by": "layer", "metric": second_last, "site": "attn_out"}, marks=pytest.mark.slow
    ),
    {"by": "layer", "metric": rank, "site": "mlp_out"},
]


@pytest.fixture(scope="module")
def sweep(tiny_model):
    return patch_sweep(tiny_model("gpt2"), load_pairs(MANY), **OPTIONS)


@pytest.mark.slow
def test_the_last_stream_of_the_clean_run_gives_the_clean_metric(tiny_model):
    model = tiny_model("gpt2")
    layer = model.cfg.n_layers - 1
    put = patch_sweep(model, load_pairs(ROWS), site="resid_post", layers=[layer], progress=False)
    last = put.samples().sort_values("position").groupby("example_id").tail(1)
    assert last["value_after"].to_numpy() == pytest.approx(
        last["example_id"].map(put.source_values).to_numpy(), abs=1e-4
    )
    assert last["by_construction"].all()
    noising = patch_sweep(
        model, load_pairs(ROWS), direction="noising", layers=[layer], progress=False
    )
    before = noising.samples().drop_duplicates("example_id").set_index("example_id")["value_before"]
    assert before.to_dict() == pytest.approx(put.source_values, abs=1e-4)


@pytest.mark.slow
def test_the_controls_take_another_pair_or_a_random_direction(tiny_model, sweep):
    assert (
        sweep.controls == ("other_pair", "norm_matched")
        and sweep.record["counts"]["without_other_pair"] == 0
    )
    model, examples = tiny_model("gpt2"), sweep.examples().set_index(["role", "example_id"])
    samples, partners = sweep.samples(), dict[str, set]()
    for cell in samples[samples["control"] == "other_pair"].itertuples():
        partners.setdefault(cell.example_id, set()).add(cell.donor_id)
        target, source = (
            list(examples.loc[key]["token_ids"])
            for key in (("base", cell.example_id), ("donor", cell.donor_id))
        )
        at = [int(cell.position)]
        logits = patched_logits(
            model, target, cache_of(model, source), "resid_pre", [cell.layer], at, at
        )
        answers = (
            sweep.record["pairs"][cell.example_id][name] for name in ("answer_ids", "wrong_ids")
        )
        last = positions(sweep, cell.example_id)["last"]
        assert cell.value_after == pytest.approx(
            metric_of("logit_diff", logits, last, *answers, None), abs=1e-4
        )
    for name, others in partners.items():
        (other,) = others
        own = examples.loc[("base", name), "answer"]
        assert not other.startswith(name)
        assert examples.loc[("donor", other), "answer"] != own
    again = patch_sweep(model, load_pairs(MANY), seed=1, **OPTIONS).samples()
    other = (
        again[again["control"] == "other_pair"]
        .drop_duplicates("example_id")
        .set_index("example_id")["donor_id"]
    )
    assert other.to_dict() != {name: next(iter(others)) for name, others in partners.items()}
    # A random direction of the norm of no difference changes nothing.
    moved = samples[samples["control"] == "norm_matched"].set_index(
        ["example_id", "layer", "position"]
    )["effect"]
    own = samples[samples["control"] == "none"].set_index(["example_id", "layer", "position"])
    assert (moved[own["by_construction"] & (own["effect"].abs() < 1e-9)].abs() < 1e-4).all()
    assert (moved.abs() > 1e-3).any()


@pytest.mark.slow
def test_the_printed_table_is_not_broken_into_blocks_and_has_the_words_of_a_reader(sweep):
    """Pandas moved the last columns below the others, and the heads were names of columns."""
    title, table = sweep.protocol.table([sweep])
    _, _, below = repr(sweep).partition(f"{title}\n")
    head, first = below.splitlines()[:2]
    assert head.split() == [
        *("place", "max", "layer", "effect", "joint", "95", "%", "recovered"),
        *("other_pair", "norm_matched", "before", "n"),
    ]
    assert first.split()[0] == sweep.summary()["anchor"].iloc[0]
    assert len(head) <= 100
    assert title == "Largest effect at each place: Δ logit_diff in logits"
    largest = sweep.summary()["effect"]
    assert list(table["effect"]) == [three_digits(value) for value in largest]


def test_positions_without_a_partner_are_counted(tiny_model):
    model, longer = (
        tiny_model("gpt2"),
        {
            **MANY[0],
            "id": "long",
            "clean": "a b of c is",
            "segments": {},
        },
    )
    found = al.tokenize_pairs(model, [longer, MANY[1]])
    unpaired = sum(
        len(one) for name in ("unpaired_clean", "unpaired_corrupted") for one in found[name]
    )
    assert unpaired > 0
    sweep = patch_sweep(model, load_pairs([longer, MANY[1]]), layers=[0], **OPTIONS)
    assert sweep.record["counts"]["unpaired_positions"] == unpaired


@pytest.mark.slow
def test_few_pairs_have_no_controls_unless_they_are_named(tiny_model):
    model = tiny_model("gpt2")
    few = patch_sweep(model, load_pairs(MANY[:9]), by="layer", **OPTIONS)
    assert few.controls == () and set(few.samples()["control"]) == {"none"}
    named = patch_sweep(model, load_pairs(MANY[:3]), by="layer", controls="other_pair", **OPTIONS)
    assert named.controls == ("other_pair",)
    ragged = [
        {
            **MANY[0],
            "id": "long",
            "clean": "The a of b is",
            "corrupted": "The c of d is",
            "segments": {},
        },
        *MANY[:2],
    ]
    lonely = patch_sweep(model, load_pairs(ragged), by="layer", controls="other_pair", **OPTIONS)
    assert lonely.record["counts"]["without_other_pair"] == 1
    assert (
        "1 pair has no other pair of the same length"
        in patch_sweep(model, load_pairs([ragged[0], *MANY]), by="layer", **OPTIONS).verdict
    )


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)) or "default")
def test_a_saved_run_is_read_verified_and_drawn(tmp_path, tiny_model, case):
    model, options = tiny_model("gpt2"), {**OPTIONS, **case}
    sweep = patch_sweep(model, load_pairs(MANY), **options)
    run = sweep.save(tmp_path / "run")
    assert (run / "figure.html").is_file()
    (read,) = al.load_run(run)
    assert (
        type(read) is type(sweep) and read.findings == sweep.findings and repr(read) == repr(sweep)
    )
    assert torch.equal(read.effects.nan_to_num(), sweep.effects.nan_to_num())
    for quantity in ("effect", "recovered_share"):
        np.testing.assert_array_equal(
            read.grid(quantity=quantity).values, sweep.grid(quantity=quantity).values
        )
    functions = {"metric": case["metric"]} if callable(case.get("metric")) else {}
    verified = al.verify_run(run, model=model, cells=12, callables=functions, show_progress=False)
    (cells,) = [check for check in verified.checks if check.what.startswith("cells")]
    assert cells.status == "match", verified.checks
    assert set(verified.cells()["control"]) == {"none", "other_pair", "norm_matched"}
    if functions:
        with pytest.raises(InputError, match="made with functions of yours .metric."):
            al.verify_run(run, model=model, show_progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("direction", choose_cases(["noising"], ["denoising", "noising"]))
def test_verification_finds_a_changed_value(tmp_path, monkeypatch, tiny_model, direction):
    model, file = tiny_model("gpt2"), tmp_path / "pairs.csv"
    pd.DataFrame(ROWS).to_csv(file, index=False)
    run = patch_sweep(model, load_pairs(file), direction=direction, progress=False).save(
        tmp_path / "run"
    )
    assert (
        run / "figure.html"
    ).is_file()  # positions of different numbers have no mean, but each pair is shown
    monkeypatch.chdir(tmp_path)
    (read,) = al.load_run(run)
    assert read.curves().empty and "Use by='segment'" in read.verdict
    verified = al.verify_run(run, model=model, cells=12, show_progress=False)
    assert {
        check.what.partition(":")[0]: check.status
        for check in verified.checks
        if check.what != "code"
    } == dict.fromkeys(
        ("files", "data", "tables", "inputs", "figure", "weights", "tokenizer", "cells"), "match"
    )
    assert len(verified.cells()) == 12 and verified.cells()["max_abs_diff"].max() < 1e-3
    table = pd.read_parquet(run / "samples.parquet")
    table.assign(value_after=table["value_after"] + 0.02, effect=table["effect"] + 0.02).to_parquet(
        run / "samples.parquet"
    )
    write_sums(run)
    (cells,) = [
        check
        for check in al.verify_run(run, model=model, show_progress=False).checks
        if check.what.startswith("cells")
    ]
    assert cells.status == "mismatch" and "by 0.02 logit (allowed" in cells.detail


@pytest.mark.parametrize("metric", [pytest.param("kl", marks=pytest.mark.slow), rank])
def test_jobs_and_resume_give_the_samples_of_one_sweep(small_shards, tmp_path, tiny_model, metric):
    model, data, out = tiny_model("gpt2"), load_pairs(MANY), tmp_path / "run"
    options = {**OPTIONS, "metric": metric, "by": "segment"}
    whole = patch_sweep(model, data, **options)
    status = patch_sweep(model, data, batch_size=3, out=out, job="1/2", **options)
    (part,) = status.sweeps
    assert part.shards is not None and 0 < part.done < part.shards
    resumed = patch_sweep(model, data, batch_size=3, out=out, resume=True, **options)
    ours, theirs = (one.samples().drop(columns="run_id") for one in (whole, resumed))
    pd.testing.assert_frame_equal(ours, theirs, atol=1e-5, rtol=0)
    assert resumed.source_values == pytest.approx(whole.source_values, abs=1e-5)


@pytest.mark.slow
def test_a_grid_larger_than_memory_is_cut_into_passes(tiny_model):
    model, plans = tiny_model("gpt2"), list[object]()
    options = {**OPTIONS, "by": "head_position", "site": "z", "controls": "none"}
    whole = patch_sweep(model, load_pairs(MANY[:1]), **options)
    limit = int(26e6)
    cut = patch_sweep(
        model, load_pairs(MANY[:1]), max_memory=limit, on_plan=plans.append, **options
    )
    assert cut.record["plan"]["peak_bytes"] <= limit
    assert len(cut.record["plan"]["batches"]) > len(whole.record["plan"]["batches"])
    np.testing.assert_allclose(
        cut.samples()["value_after"], whole.samples()["value_after"], atol=1e-5
    )
    check_cells(model, cut)


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        ({"corrupted": ROWS[0]["clean"]}, {}, "same_prompts"),
        ({"wrong": None}, {"metric": "logit_diff"}, "no_wrong_answer"),
        ({"answer": None, "wrong": None}, {"metric": "prob"}, "no_answer"),
        ({}, {"by": "segment"}, "no_segment"),
    ],
)
def test_a_data_set_without_a_usable_pair_is_refused(tiny_model, change, options, reason):
    with pytest.raises(EmptySweepError, match=reason):
        patch_sweep(
            tiny_model("gpt2"), load_pairs([{**ROWS[0], **change}]), progress=False, **options
        )


def test_a_pair_whose_numbers_overflow_stops_the_sweep(tiny):
    """It was left out of the means without a word."""
    model = al.load_model(str(tiny("gpt2")), device="cpu", progress=False)
    token = model.to_tokens(MANY[3]["clean"])[0, 0]
    others = [row for row in MANY if token not in model.to_tokens(row["clean"])]
    rows = [*others, MANY[3]]
    with torch.no_grad():
        model.W_E[token] = torch.inf
    for metric in ("logit_diff", "prob", "kl"):
        with raises(InputError, "model", word="not finite"):
            patch_sweep(model, load_pairs(rows), metric=metric, layers=(1,), **OPTIONS)


def bands_of_steps(unit, scale=1.0):
    """Bands of twelve pairs whose metric goes from 0 to 1 at one place, and for a third of them at
    another.
    """
    rows = []
    for number in range(12):
        name = f"p{number}"
        for anchor, after in (("pos:1", 1.0), ("pos:2", float(number % 3 == 0))):
            same = {"example_id": name, "question_id": name, "cluster": "", "donor_id": name}
            cell = {"anchor": anchor, "layer": 1, "control": "none", "unit": unit}
            values = {"value_before": 0.0, "value_after": after * scale, "effect": after * scale}
            rows.append(same | cell | values)
    statistics = GridStatistics(pd.DataFrame(rows), ("pos:1", "pos:2"), 200, 0)
    return statistics.bands(statistics.table("none"), np.zeros(2, dtype=bool))


def test_a_step_that_all_pairs_make_is_no_certainty():
    """A rate of 100 % in twelve groups is compatible with one of 74 %. Named metrics do not move in
    steps.
    """
    steps = bands_of_steps("units of the metric")
    assert steps.value[0] == 1
    assert steps.low[0] == pytest.approx(0.025 ** (1 / 12))
    assert steps.sim_low[0] < steps.low[0]
    assert bands_of_steps("logit").sim_low[0] == 1


def test_the_band_of_a_function_does_not_depend_on_its_scale():
    small, large = (bands_of_steps("units of the metric", scale) for scale in (1e-12, 1.0))
    for name in ("value", "low", "high", "sim_low", "sim_high"):
        found = getattr(small, name) / 1e-12
        assert found == pytest.approx(getattr(large, name), rel=1e-9), name
