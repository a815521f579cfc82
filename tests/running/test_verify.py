"""``verify_run``: right runs match in every setting, and what differs is a mismatch."""

import json
import re
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

import anchorlens as al
from anchorlens.errors import InputError, RunError
from anchorlens.models.adapter import stream_of
from anchorlens.running import remeasure
from anchorlens.running import verify as verifying
from anchorlens.runs.checksums import SUMS, write_sums
from tests.questions.make import capitals
from tests.raised import raises
from tests.tiers import choose_cases

pytestmark = pytest.mark.filterwarnings("ignore:Few rows")
SMALL = {"align": "last", "n_donors": 2, "n_resamples": 20, "progress": False}
TRUTH = {"n_splits": 1, "n_resamples": 20, "progress": False}


@cache
def questions():
    return al.load_qa("popqa-sample", limit=45)


def own_readout(log_probs, mask):
    return (log_probs * mask).sum(-1) / 2


# name -> how a sweep is made; together they touch every kind of input that a run directory has to
# hold.
SWEEPS = {
    "swap": lambda m: al.swap_sweep(m, capitals(), **SMALL),
    "denoising": lambda m: al.swap_sweep(
        m, capitals(), direction="denoising", readout="answer_joint", window=2, **SMALL
    ),
    "mean": lambda m: al.swap_sweep(
        m, capitals(), donors="mean", site="mlp_out", **(SMALL | {"n_donors": 1})
    ),
    "noise": lambda m: al.swap_sweep(
        m, capitals(), donors="noise", seed=3, **(SMALL | {"n_donors": 1})
    ),
    "nulls": lambda m: al.swap_sweep(
        m,
        capitals(),
        direction="denoising",
        donors="random",
        null=["displaced", "same_role", "norm_matched"],
        **(SMALL | {"align": "equal"}),
    ),
    "zero": lambda m: al.swap_sweep(
        m, capitals(), donors="zero", layers=[1], **(SMALL | {"n_donors": 1})
    ),
    "probe": lambda m: al.swap_sweep(
        m, questions(), readout="probe", n_splits=1, anchors=["exact_question", "answer"], **SMALL
    ),
    "p_true": lambda m: al.swap_sweep(m, capitals(), readout="p_true", answers="gold", **SMALL),
    "probe, denoising": lambda m: al.swap_sweep(
        m, questions(), readout="probe", direction="denoising", delta_kind="signed", **SMALL
    ),
    "knockout": lambda m: al.knockout_sweep(m, questions(), layers=[0, 2], **TRUTH),
    "knockout, windows": lambda m: al.knockout_sweep(
        m,
        questions(),
        window=1,
        edges="subject -> pre_answer",
        heads=[0, 1],
        knockout_mode="zero",
        split="per_layer",
        **TRUTH,
    ),
    "knockout, p_true": lambda m: al.knockout_sweep(
        m, questions(), readout="p_true", cut_layers=[1, 2], **TRUTH
    ),
    "patch_tokens": lambda m: al.patch_tokens_sweep(m, questions(), base="all", **TRUTH),
    "patch_tokens, true rows": lambda m: al.patch_tokens_sweep(m, questions(), **TRUTH),
    "answer_only": lambda m: al.answer_only_sweep(m, questions(), **TRUTH),
}


@pytest.fixture(scope="module")
def written(tiny_model, tmp_path_factory):
    """``written(name)``: a run directory of that sweep, made once; whoever changes it takes
    a copy.
    """

    @cache
    def make(name):
        out = tmp_path_factory.mktemp("runs") / name.replace(" ", "-")
        SWEEPS[name](tiny_model("llama")).save(out)
        return out

    return make


@pytest.fixture
def copied(written, tmp_path):
    """The same, as a copy that may be changed."""
    return lambda name: shutil.copytree(written(name), tmp_path / "run")


def verify(path, tiny_model, **more):
    return al.verify_run(path, **({"model": tiny_model("llama"), "show_progress": False} | more))


def found(verified, what):
    (one,) = [check for check in verified.checks if check.what.partition(":")[0] == what]
    return one


FAST = ["swap", "probe", "knockout"]


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", choose_cases(FAST, SWEEPS, slow=["nulls", "denoising", "noise"]))
def test_every_kind_of_sweep_comes_out_again(name, written, tiny_model):
    verified = verify(written(name), tiny_model, cells=20)
    assert verified.ok, verified
    assert found(verified, "cells").status == verifying.MATCH
    assert len(verified.cells()) >= 20
    assert verified.cells()["max_abs_diff"].max() < 1e-3
    # Not one and the same number: every control and anchor of the sweep is among them, or could be.
    assert verified.cells()["value_after_again"].nunique() > 5
    assert "mismatch" not in repr(verified)


def added(column, by):
    """Change every number of a column."""
    return lambda table: table.assign(**{column: table[column] + by})


def with_other_values(samples):
    """Raise P before and after where no prediction changes, so that effects and logits still follow
    from them.
    """
    of_p = samples["metric"] == "p"
    before, after = samples["value_before"], samples["value_after"]
    crosses = pd.Series(data=False, index=samples.index)
    for p in (before, after):
        crosses |= (p + 1e-3 >= 0.5) != (p >= 0.5)
    shift = np.where(crosses, 0.0, 1e-3)
    changed = samples.copy()
    for when, p in (("before", before), ("after", after)):
        other = p + shift
        changed[f"value_{when}"] = other.where(of_p, p)
        logs = of_p & samples[f"logp_{when}"].notna()
        changed.loc[logs, f"logp_{when}"] = np.log(other[logs])
        logits = samples[f"logit_diff_{when}"]
        of_truth = of_p & (np.abs(1 / (1 + np.exp(-logits)) - p) < 1e-5)
        changed.loc[of_truth, f"logit_diff_{when}"] = np.log(other / (1 - other))[of_truth]
    return changed


def with_other_ids(examples):
    base = examples["role"] == "base"
    changed = [[*ids[:2], ids[2] + 1, *ids[3:]] for ids in examples.loc[base, "token_ids"]]
    examples.loc[base, "token_ids"] = pd.Series(changed, index=examples.index[base])
    return examples


# name -> table, change, check that finds it, and words of its detail.
CHANGES = {
    **{
        f"{name} values": ("samples", with_other_values, "cells", "differ, by")
        for name in (
            "swap",
            "noise",
            "denoising",
            "probe",
            "knockout",
            "patch_tokens",
            "answer_only",
        )
    },
    "swap value_before": ("samples", added("value_before", 1e-3), "tables", "row 0: effect="),
    "swap delta_p": ("samples", added("effect", 0.1), "tables", "row 0: effect="),
    "swap without numbers": (
        "samples",
        added("value_after", np.nan),
        "tables",
        "row 0: value_after=nan: no finite number",
    ),
    "swap by_construction": (
        "samples",
        lambda table: table.assign(by_construction=True),
        "inputs",
        "by_construction=True",
    ),
    "swap rows": ("samples", lambda table: table.iloc[:-1], "inputs", "lacks the planned cell"),
    "swap token_ids": ("examples", with_other_ids, "inputs", "tokens are not those of token_ids"),
    "swap curves": ("curves", added("effect", 1.0), "tables", "curves.parquet: row 0: effect="),
    "knockout n": ("curves", added("n", 1), "tables", "curves.parquet: row 0: n="),
    "swap contrasts": (
        "contrasts",
        added("ci_low", -1.0),
        "tables",
        "contrasts.parquet: row 0: ci_low=",
    ),
}


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    choose_cases([name for name in CHANGES if name.startswith(("swap", "knockout"))], CHANGES),
)
def test_another_number_or_input_is_a_mismatch(case, copied, tiny_model):
    run, (table, change, what, words) = copied(case.split()[0]), CHANGES[case]
    rewrite(run, table, change)
    verified = verify(run, tiny_model, cells=3)
    assert found(verified, "files").status == verifying.MATCH
    assert found(verified, what).status == verifying.MISMATCH, verified
    assert words in found(verified, what).detail
    assert not verified.ok


def rewrite(run, table, change):
    """Change a table as somebody does who knows the format: row count and sums are written
    again.
    """
    file, record = run / f"{table}.parquet", json.loads((run / "run.json").read_text())
    frame = change(pd.read_parquet(file))
    frame.to_parquet(file, index=False)
    record["sweeps"][0]["rows"][table] = len(frame)
    (run / "run.json").write_text(json.dumps(record))
    write_sums(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda sweep: sweep.update(verdict="PROVEN"), "tables: verdict"),
        (
            lambda sweep: sweep["findings"].update(headline="PROVEN"),
            "tables: findings.headline='PROVEN'",
        ),
        (
            lambda sweep: sweep["counts"].update(dropped={"no_donor": 1}),
            "tables: .*counts.dropped={'no_donor': 1}",
        ),
        (
            lambda sweep: sweep["counts"]["null_shortfall"].update(pre_answer=7),
            "inputs: counts.null_shortfall.pre_answer=7",
        ),
        (lambda sweep: sweep["config"].update(donors="random"), "tables: .*run_id="),
        (lambda sweep: sweep["noise"].update(floor=1e9), "tables: .*checks.largest_difference="),
        (
            lambda sweep: (
                sweep["noise"].update(floor=1.0),
                sweep["checks"].update(largest_difference=1.0),
            ),
            "tables: curves.*; inputs: noise.floor=1:",
        ),
    ],
)
def test_a_record_that_does_not_follow_from_its_run_is_a_mismatch(
    change, words, copied, tiny_model
):
    run = copied("swap")
    record = json.loads((run / "run.json").read_text())
    change(record["sweeps"][0])
    (run / "run.json").write_text(json.dumps(record))
    write_sums(run)
    verified = verify(run, tiny_model, cells=1, data=capitals())
    problems = [
        f"{one.what.partition(':')[0]}: {one.detail}"
        for one in verified.checks
        if one.status == verifying.MISMATCH
    ]
    assert re.match(words, "; ".join(problems)), verified


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [{"questions": 99}, {"layers": {str(k): [0.5] * 5 for k in range(3)}}]
)
def test_an_auc_of_rows_without_samples_is_read_again(change, copied, tiny_model):
    run = copied("patch_tokens, true rows")
    record = json.loads((run / "run.json").read_text())
    record["sweeps"][0]["probe"]["test_auc"] |= change
    (run / "run.json").write_text(json.dumps(record))
    write_sums(run)
    assert not verify(run, tiny_model, cells=1).ok


@pytest.mark.slow
def test_a_run_that_is_replaced_while_it_is_verified_is_named(
    copied, tiny_model, tmp_path, monkeypatch
):
    run, right = copied("swap"), verifying.find_changes

    def find_changes(folder):
        shutil.copytree(folder, tmp_path / "other")
        folder.rename(tmp_path / "old")
        (tmp_path / "other").rename(folder)
        return right(folder)

    monkeypatch.setattr(verifying, "find_changes", find_changes)
    with pytest.raises(RunError, match="replaced"):
        verify(run, tiny_model, cells=1)


@pytest.mark.slow
def test_another_figure_is_a_mismatch(copied):
    run = copied("swap")
    (run / "figure.html").write_text("<script>alert(1)</script>")
    write_sums(run)
    verified = al.verify_run(run, cells=0)
    assert [one.what for one in verified.checks if one.status == verifying.MISMATCH] == ["figure"]


@pytest.mark.slow
def test_the_inputs_are_drawn_again_only_from_the_same_rows(written, tiny_model):
    run = written("swap")
    alike, fewer, none = (
        found(verify(run, tiny_model, cells=1, data=data), "inputs")
        for data in (capitals(), capitals(7), None)
    )
    assert {one.status for one in (alike, fewer, none)} == {verifying.MATCH}
    assert alike.detail.endswith("rows, donors and counts drawn again")
    assert "rows not drawn again: the data set was loaded otherwise (data." in fewer.detail
    assert "rows not drawn again: the data set is not here" in none.detail


@pytest.mark.slow
def test_all_cells_can_be_measured_again(written, tiny_model):
    some, every = (verify(written("swap"), tiny_model, cells=cells) for cells in (9, "all"))
    n = len(al.load_run(written("swap"))[0].samples())
    assert some.limits[0].startswith(
        f"9 of {n} cells ({100 * 9 / n:.2g} %) were drawn. Not detected: another value"
    )
    assert every.ok
    assert len(every.cells()) == n
    assert every.limits == ()
    assert "because no cell was measured" in verify(written("swap"), tiny_model, cells=0).limits[0]


@pytest.mark.slow
def test_each_file_is_checked(copied):
    run = copied("knockout")
    for file in sorted(run.rglob("*")):
        if file.is_file() and file.name not in ("figure.html", SUMS):
            whole = file.read_bytes()
            where = len(whole) // 2
            file.write_bytes(whole[:where] + bytes([whole[where] ^ 1]) + whole[where + 1 :])
            verified = al.verify_run(run)  # nothing else is read, and no model is asked for
            assert [(one.what, one.status) for one in verified.checks] == [
                ("files", "mismatch"),
                ("cells", "not checked"),
            ]
            assert f"{file.relative_to(run)} has other bytes" in found(verified, "files").detail
            file.write_bytes(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cells"), [("figure.html", verifying.MATCH), (SUMS, verifying.NOT_CHECKED)]
)
def test_cells_are_measured_where_only_the_figure_is_another(name, cells, copied, tiny_model):
    """Without checksums no file can be read."""
    run = copied("swap")
    (run / name).unlink()
    verified = verify(run, tiny_model, cells=1)
    assert found(verified, "files").status == verifying.MISMATCH
    assert found(verified, "cells").status == cells
    assert not verified.ok


@pytest.mark.slow
def test_the_hashes_come_first(copied, written, tiny_model):
    run = copied("swap")
    record = json.loads((run / "run.json").read_text())
    record["sweeps"][0]["data"]["sha256"] = "1" * 64
    record["sweeps"][0]["environment"]["versions"]["torch"] = "1.0"
    (run / "run.json").write_text(json.dumps(record))
    write_sums(run)
    verified = verify(run, tiny_model, cells=2, data=capitals())
    assert found(verified, "data").status == verifying.MISMATCH
    assert found(verified, "code").status == verifying.DIFFERS
    assert "torch 1.0 then" in found(verified, "code").detail
    assert (
        found(verify(written("swap"), tiny_model, cells=0, data=capitals()), "data").status
        == verifying.MATCH
    )
    without = al.verify_run(written("swap"), cells=0, show_progress=False)
    assert [found(without, what).status for what in ("data", "weights")] == [
        verifying.NOT_CHECKED
    ] * 2
    assert without.ok
    assert (
        found(verify(written("knockout"), tiny_model, cells=0), "data").status == verifying.MATCH
    )  # an embedded sample


@pytest.mark.slow
def test_other_weights_are_not_measured(written, tiny):
    other = al.load_model(str(tiny("llama")), device="cpu")
    other.blocks[1].mlp.W_out.data[0, 0] += 1e-3
    for given in ({"model": other}, {"model": str(tiny("qwen3")), "device": "cpu", "stream": True}):
        verified = al.verify_run(written("swap"), show_progress=False, **given)
        assert found(verified, "weights").status == verifying.MISMATCH
        assert found(verified, "cells").status == verifying.NOT_CHECKED
        assert verified.cells().empty
        assert not verified.ok


@pytest.mark.slow
def test_a_model_that_loads_by_no_name_has_to_be_given(written, tiny):
    with raises(InputError, "model"):
        al.verify_run(written("swap"), show_progress=False)
    verified = al.verify_run(
        written("swap"),
        model={"llama": str(tiny("llama"))},
        device="cpu",
        cells=2,
        show_progress=False,
    )
    assert verified.ok, verified


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", choose_cases(["swap"], ["swap", "denoising", "knockout", "patch_tokens", "answer_only"])
)
def test_a_model_larger_than_memory_is_read_layer_by_layer(name, written, tiny, monkeypatch):
    """Its blocks are never all there, the hashes are those of the model in memory, and the cells
    come out again.
    """
    held, right = [], remeasure.ReferenceEngine

    def oracle(adapter):
        held.append(
            (stream_of(adapter.model), {p.device.type for p in adapter.model.blocks.parameters()})
        )
        return right(adapter)

    monkeypatch.setattr(remeasure, "ReferenceEngine", oracle)
    how = {"model": str(tiny("llama")), "device": "cpu", "cells": 8, "show_progress": False}
    streamed, whole = (
        al.verify_run(written(name), stream=stream, **how) for stream in (True, False)
    )
    assert (held[0][0] is None, held[1][0] is None) == (False, True)
    assert [places for _, places in held] == [{"meta"}, {"cpu"}]
    assert streamed.ok, streamed
    assert found(streamed, "weights").status == verifying.MATCH
    assert streamed.checks == whole.checks
    pd.testing.assert_frame_equal(streamed.cells(), whole.cells())


@pytest.mark.slow
def test_own_code_has_to_be_given_again(tiny_model, tmp_path):
    al.swap_sweep(tiny_model("llama"), capitals(), readout=own_readout, **SMALL).save(
        tmp_path / "run"
    )
    with pytest.raises(InputError, match="callables={'readout'"):
        verify(tmp_path / "run", tiny_model)
    assert verify(tmp_path / "run", tiny_model, callables={"readout": own_readout}).ok
    with raises(InputError, "callables"):
        verify(
            tmp_path / "run",
            tiny_model,
            callables={"readout": lambda log_probs, mask: log_probs[:, 0]},
        )


@pytest.mark.slow
def test_own_donors_prompts_and_probes_are_written_down(tiny_model, tmp_path):
    model = tiny_model("llama")
    fitted = al.knockout_sweep(model, replace(questions(), name="fitted"), **TRUTH).probes
    runs = {
        "donors": al.swap_sweep(
            model,
            capitals(),
            donors=lambda row, pool: [one for one in pool if one is not row],
            **SMALL,
        ),
        "prompt": al.swap_sweep(model, capitals(), prompt="Say it: {question} =", **SMALL),
        "probes": al.knockout_sweep(model, questions(), probes=fitted, **TRUTH),
    }
    for name, sweep in runs.items():
        sweep.save(tmp_path / name)
        verified = verify(tmp_path / name, tiny_model, cells=5)
        assert verified.ok, verified
        assert len(verified.cells()) >= 5


@pytest.mark.slow
def test_the_cells_are_random_and_of_every_sweep(tiny_model, tmp_path):
    model = tiny_model("llama")
    al.save_run(
        [
            al.swap_sweep(model, capitals(), **SMALL),
            al.knockout_sweep(model, questions(), layers=[0], **TRUTH),
        ],
        tmp_path / "run",
    )
    one, again, other = (
        verify(tmp_path / "run", tiny_model, cells=6, seed=seed) for seed in (0, 0, 1)
    )
    assert {check.what.split()[1] for check in one.checks if check.what.startswith("cells")} == {
        "swap",
        "knockout",
    }
    keys = ["example_id", "donor_id", "layer", "anchor", "control"]
    assert one.cells()[keys].equals(again.cells()[keys])
    assert not one.cells()[keys].equals(other.cells()[keys])


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments(written, tiny_model, tmp_path):
    with pytest.raises(RunError, match="is not a run"):
        verify(tmp_path, tiny_model)
    for cells in (-1, "many", 1.5, None, True):
        with raises(InputError, "cells"):
            verify(written("swap"), tiny_model, cells=cells)
    assert verify(written("swap"), tiny_model, cells=10**6).ok  # all there are
    with raises(InputError, "stream"):
        verify(written("swap"), tiny_model, model="a/b/c.gguf", stream=True)


def test_hooks_that_are_missing_are_named(tiny, tmp_path):
    model = al.load_model(str(tiny("llama")), device="cpu", progress=False)
    model.add_hook("blocks.0.hook_resid_post", lambda x, hook: x * 3.0)
    with pytest.warns(UserWarning, match="a hook is attached"):
        al.swap_sweep(model, capitals(), layers=(1,), **SMALL).save(tmp_path / "run")
    assert al.verify_run(tmp_path / "run", model=model, cells=4).ok
    model.reset_hooks()
    found = al.verify_run(tmp_path / "run", model=model, cells=4)
    assert not found.ok
    assert "hooks at blocks.0.hook_resid_post then, at no place now" in str(found)
