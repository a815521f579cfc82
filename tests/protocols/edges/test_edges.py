"""`al.edge_sweep`: frames, matrix, control, files, verification and bad input."""

import json
import re

import numpy as np
import pytest
import torch
from transformer_lens import HookedTransformer

import anchorlens as al
from anchorlens.engine.edges import exact
from anchorlens.errors import CheckError, InputError
from anchorlens.protocols.edges.edge_inputs import graph_of
from tests.raised import raises
from tests.tiers import choose_cases

WORDS = ("tea", "ale", "oil", "ice", "gum", "jam", "rye", "egg", "fig", "ham", "nut", "pie")


def pairs_of(n, template=""):
    rows = []
    for i in range(n):
        word, other = WORDS[i % len(WORDS)], WORDS[(i + 1) % len(WORDS)]
        row = {
            "clean": f"of {word} is a cup of",
            "corrupted": f"of {other} is a cup of",
            "answer": f" {word[0]}",
            "wrong": f" {other[1]}",
            "segments": {"word": [word, other]},
        }
        rows.append(row | ({"template": f"{template}{i % 3}"} if template else {}))
    return al.load_pairs(rows)


def sweep(model, pairs=None, **options):
    pairs = pairs_of(3) if pairs is None else pairs
    return al.edge_sweep(model, pairs, progress=False, **options)


@pytest.mark.slow
def test_a_sweep_has_every_edge_of_every_pair(tiny_model):
    from anchorlens.models.load import adapt

    found = sweep(tiny_model("llama"), receivers="a2.*,logits")
    graph = graph_of(adapt(tiny_model("llama")))
    edges = graph.edges(graph.senders, graph.choose(["a2.*", "logits"], "receivers"))
    assert found.anchors == tuple(edge.name for edge in edges)
    assert len(found.samples()) == 3 * len(edges)
    assert found.effects.shape == (3, 1, len(graph.senders), 4 + 2 + 2 + 1)
    labelled = found.to_xarray()
    assert labelled.dims == ("pair", "place", "sender", "receiver")
    # Attention of layer 2 does not read the heads of layer 2.
    assert np.isnan(labelled.sel(sender="a2.h0", receiver="a2.h1.q")).all()
    assert not np.isnan(labelled.sel(sender="a2.h0", receiver="logits")).any()


def test_table_and_matrix_show_the_mean_over_pairs(tiny_model):
    found = sweep(tiny_model("llama"), receivers="logits")
    table = found.table()
    assert list(table["effect"].abs()) == sorted(table["effect"].abs(), reverse=True)
    best = table.iloc[0]
    matrix = found.matrix()
    row, column = matrix.senders.index(best["sender"]), matrix.receivers.index("logits")
    own = found.samples().query("anchor == @best.edge")["effect"].mean()
    assert matrix.values[row, column] == pytest.approx(own) == pytest.approx(best["effect"])
    assert len(found.table(3)) == 3


def test_an_edge_from_the_embedding_to_the_logits_is_the_change_of_the_stream(tiny_model):
    """The edge whose effect needs no block: by hand from the embeddings of both prompts."""
    import torch

    model = tiny_model("gpt2")
    pairs = al.load_pairs(
        [
            {
                "clean": "of tea is a cup",
                "corrupted": "of tea is a jam",
                "answer": " t",
                "wrong": " e",
            }
        ]
    )
    found = sweep(model, pairs, edges="embed -> logits")
    clean, corrupted = (
        model.to_tokens(text, prepend_bos=False) for text in ("of tea is a cup", "of tea is a jam")
    )
    with torch.no_grad():
        logits, cache = model.run_with_cache(corrupted)
        change = model.embed(clean)[0, -1] - model.embed(corrupted)[0, -1]
        stream = cache["blocks.2.hook_resid_post"][0, -1] + change
        moved = model.unembed(model.ln_final(stream[None, None]))[0, 0]
    answer, wrong = (model.to_tokens(text, prepend_bos=False)[0, 0] for text in (" t", " e"))
    before = logits[0, -1, answer] - logits[0, -1, wrong]
    wanted = (moved[answer] - moved[wrong] - before).item()
    assert found.samples()["effect"].item() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("by", ["segment", "position"])
def test_by_segment_and_by_position(tiny_model, by):
    pairs = al.load_pairs(
        [
            {
                "clean": f"of {a} is in the",
                "corrupted": f"of {b} is in the",
                "answer": f" {a}",
                "wrong": f" {b}",
                "segments": {"word": [a, b]},
            }
            for a, b in ("qx", "zj", "vk")
        ]
    )
    found = sweep(tiny_model("llama"), pairs, receivers="logits", senders="mlps", by=by)
    assert all(" @ " in anchor for anchor in found.anchors)
    if by == "segment":
        assert found.places == ("word", "rest")
    else:
        assert found.places[0].startswith("pos:")
        assert found.matrix(0).place in found.places


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"between": "mlps"},
        {"downstream": "freeze"},
        {"direction": "noising"},
        {"metric": "kl"},
        {"metric": "prob"},
    ],
)
def test_other_ways_are_checked_against_hooks(tiny_model, how):
    found = sweep(
        tiny_model("llama"),
        senders="a0.*,m0",
        receivers="a1.*,a2.h0.*,logits",
        n_spot_checks=6,
        **how,
    )
    assert found.record["checks"]["cells"] == 6
    assert not found.record["checks"]["failed"]


@pytest.mark.slow
def test_a_metric_that_moves_in_steps(tiny_model):
    """The accuracy of an edge is that of its logits: 0 or 1, measured and not estimated."""

    def accuracy(logits, row):
        return (logits[0, -1].argmax() == 41).float()

    found = sweep(tiny_model("llama"), senders="a0.*,m0", receivers="a1.*", metric=accuracy)
    assert set(found.samples()["value_after"]) <= {0.0, 1.0}
    with pytest.raises(InputError, match="named metric"):
        sweep(tiny_model("llama"), method="attribution", metric=accuracy)


@pytest.mark.slow
def test_a_wrong_engine_is_found_by_the_checks(tiny_model, monkeypatch):
    right = exact._patch_of

    def wrong(adapter, changed, number, edge, end):
        return right(adapter, changed, (number + 1) % len(changed.senders), edge, end)

    monkeypatch.setattr(exact, "_patch_of", wrong)
    with pytest.raises(CheckError):
        sweep(tiny_model("llama"), receivers="a2.*", senders="a0.*,m0,a1.*", n_spot_checks=32)


@pytest.mark.slow
def test_the_control_is_the_same_edge_with_another_pair(tiny_model):
    found = sweep(tiny_model("llama"), pairs_of(12, template="t"), receivers="logits")
    assert found.controls == ("other_pair",)
    table = found.table()
    assert {"other_pair", "effect_minus_control", "sim_low", "stands"} <= set(table)
    assert found.record["counts"]["with_template"] == 12
    assert "edge" in found.verdict and "cell" not in found.verdict
    quick = sweep(tiny_model("llama"), pairs_of(12), receivers="logits", quick=True)
    assert quick.controls == ()


@pytest.mark.slow
def test_a_run_is_saved_verified_resumed_and_drawn(tiny_model, tmp_path, small_shards):
    model = tiny_model("llama")
    out = tmp_path / "run"
    found = sweep(model, receivers="a1.*,logits", layers="1-2", out=out)
    (again,) = al.load_run(out)
    assert isinstance(again, al.EdgeResult)
    assert again.samples().equals(found.samples())
    assert again.layers == (1, 2)
    checked = al.verify_run(out, model=model, cells="all")
    assert checked.ok, str(checked)
    resumed = sweep(model, receivers="a1.*,logits", layers="1-2", out=tmp_path / "two", resume=True)
    assert resumed.run_id == found.run_id
    figure = al.plot_heatmap(again)
    assert figure.data[0].z.shape == again.matrix().values.shape
    assert list(figure.layout.xaxis.ticktext) == list(again.matrix().receivers)
    assert (out / "figure.html").is_file()
    al.save_report([again], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "a1.h0.q" in page and "by edge</h2>" in page
    assert len(again.leading_anchors) == 20 < len(again.anchors)


@pytest.mark.slow
def test_a_value_that_was_changed_is_found_by_verify(tiny_model, tmp_path):
    import pandas as pd

    out = sweep(tiny_model("llama"), receivers="logits").save(tmp_path / "run")
    file = out / "samples.parquet"
    samples = pd.read_parquet(file)
    samples.loc[3, ["value_after", "effect"]] += 0.5
    samples.to_parquet(file)
    assert not al.verify_run(out, model=tiny_model("llama"), cells="all").ok


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("method", ["attribution", "attribution_ig", "attribution_ig_activations"])
def test_attribution_estimates_the_same_edges(tiny_model, method, tmp_path):
    options = {"senders": "a1.*,m1", "receivers": "logits,m2,a2.*"}
    estimate = sweep(tiny_model("gemma2"), method=method, **options)
    measured = sweep(tiny_model("gemma2"), **options)
    assert estimate.anchors == measured.anchors
    both = estimate.effects.flatten(), measured.effects.flatten()
    known = ~both[0].isnan()
    correlation = np.corrcoef(both[0][known], both[1][known])[0, 1]
    assert correlation > 0.8
    assert method in json.dumps(estimate.record["config"])
    assert al.verify_run(estimate.save(tmp_path / "run"), model=tiny_model("gemma2")).ok


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"senders": "b7"}, "senders"),
        ({"receivers": []}, "receivers"),
        ({"receivers": "a9.h0.q"}, "receivers"),
        ({"edges": "m0 -> m9"}, "edges"),
        ({"method": "exactly"}, "method"),
        ({"method": "attribution", "downstream": "freeze"}, "downstream"),
        ({"between": "heads"}, "between"),
        ({"steps": 0}, "steps"),
        ({"sender": "a0.*"}, "sender"),
    ],
)
def test_bad_input_is_one_error_with_its_argument(tiny_model, options, argument):
    with pytest.raises(InputError) as error:
        sweep(tiny_model("llama"), **options)
    assert argument in (*error.value.arguments, *str(error.value).split("=")[:1]) or (
        argument in str(error.value)
    )


@pytest.mark.parametrize("name", ["senders", "receivers"])
@pytest.mark.parametrize("nodes", ["m0", ["m0", "all"], "mlps"])
def test_single_edges_are_not_named_beside_their_nodes(tiny_model, name, nodes):
    with raises(InputError, name, word="not with edges="):
        sweep(tiny_model("llama"), edges="embed -> logits", **{name: nodes})
    assert al.Edges(edges="embed -> logits", **{name: "all"}).edges == ("embed -> logits",)


def test_single_edges_outside_of_the_layers_are_named(tiny_model):
    edges = ["embed -> m0", "embed -> m2"]
    with pytest.warns(UserWarning, match="^embed -> m2: left out"):
        found = sweep(tiny_model("llama"), edges=edges, layers=[0])
    assert found.anchors == ("embed -> m0",)
    with raises(al.EmptySweepError, "edges", word="edges='embed -> m2'"):
        sweep(tiny_model("llama"), edges="embed -> m2", layers=[0])


def test_what_a_quick_look_leaves_out_of_the_named_edges_is_told(tiny_model):
    """It measures the layers 0 and 2 of three."""
    model = tiny_model("llama")
    with pytest.warns(UserWarning, match="^m0 -> m1: left out.*quick=True.*Give layers="):
        found = sweep(model, edges="m0 -> m1,m0 -> m2", quick=True)
    assert found.anchors == ("m0 -> m2",)
    with raises(al.EmptySweepError, "edges", word="the layers of quick=True"):
        sweep(model, edges="m0 -> m1", quick=True)
    with pytest.raises(al.EmptySweepError, match="the layers of quick=True"):
        sweep(model, senders="embed", receivers="a1.*", quick=True)
    assert len(sweep(model, edges="m0 -> m1", quick=True, layers=[1]).anchors) == 1


@pytest.mark.parametrize("one", ["m1", "a1.*"])
def test_named_nodes_and_patterns_that_a_quick_look_leaves_out_are_told(tiny_model, one):
    with pytest.warns(UserWarning, match=rf"^{re.escape(one)}: at no edge.*quick=True"):
        sweep(tiny_model("llama"), senders="embed", receivers=f"{one},logits", quick=True)


def test_senders_above_every_receiver_are_an_error(tiny_model):
    with pytest.raises(al.EmptySweepError, match="lower layer"):
        sweep(tiny_model("llama"), senders="m2", receivers="a1.*")


def test_a_named_sender_without_a_receiver_above_it_is_noticed(tiny_model):
    with pytest.warns(UserWarning, match=r"^a2\.h0: at no edge of this sweep"):
        found = sweep(tiny_model("llama"), senders="a0.h0,a2.h0", receivers="a1.h0.q")
    assert found.anchors == ("a0.h0 -> a1.h0.q",)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("family", choose_cases(("gpt2",), ("gpt2", "olmo2", "gemma3", "neox")))
def test_a_bridge_gives_the_numbers_of_a_hooked_transformer(tiny, family):
    found = []
    for backend in ("hooked", "bridge"):
        model = al.load_model(str(tiny(family)), backend=backend, progress=False)
        found.append(sweep(model, senders="a0.*,m0", receivers="a2.*,m2,logits").effects)
    known = ~found[0].isnan()
    assert (found[0] - found[1])[known].abs().max() < 1e-4


@pytest.mark.slow
def test_edges_of_the_real_model_stand_against_another_pair(smollm2, shared_data):
    """Subject-verb agreement: MLPs of the last layers write the number of the verb."""
    rows = []
    for line in (shared_data / "pairs/agreement_simple.jsonl").read_text().splitlines()[:12]:
        row = json.loads(line)
        rows.append(
            {
                "clean": row["clean_prefix"],
                "corrupted": row["patch_prefix"],
                "answer": row["clean_answer"],
                "wrong": row["patch_answer"],
            }
        )
    found = sweep(smollm2, al.load_pairs(rows), senders="m2*", receivers="logits")
    assert found.table(1)["sender"].item().startswith("m2")
    assert found.record["checks"]["cells"] > 0 and not found.record["checks"]["failed"]


@pytest.mark.slow
def test_methods_are_compared_with_the_exact_effects(tiny_model):
    options = {"senders": "a1.*,m1", "receivers": "logits,m2,a2.*"}
    exact = sweep(tiny_model("llama"), **options)
    fast_one = sweep(tiny_model("llama"), method="attribution", **options)
    frame = al.compare_methods(exact, fast_one, top=5)
    assert list(frame["method"]) == ["attribution"]
    assert frame["n"].item() == len(exact.anchors)
    assert 0 <= frame["missed"].item() <= 5
    values = exact.table()["effect"], fast_one.table().set_index("edge")["effect"]
    best = exact.table(5).set_index("edge")["effect"]
    signs = (best * values[1].loc[best.index] < 0).sum()
    assert frame["sign_errors"].item() == signs
    with pytest.raises(InputError, match="method='exact' first"):
        al.compare_methods(fast_one, exact)


@pytest.mark.slow
def test_an_estimate_is_not_tested_against_a_measurement(tiny_model):
    options = {"senders": "a1.*,m1", "receivers": "logits"}
    exact = sweep(tiny_model("llama"), **options)
    estimate = sweep(tiny_model("llama"), method="attribution", **options)
    integrated = sweep(tiny_model("llama"), method="attribution_ig", **options)
    for one, other in ((exact, estimate), (integrated, exact)):
        with pytest.raises(InputError, match="al.compare_methods"):
            al.compare(one, other)
    for one, other in ((exact, exact), (estimate, integrated)):
        table = al.compare(one, other).table()
        assert len(table) == len(exact.anchors)


@pytest.mark.slow
def test_too_few_pairs_for_many_edges_are_said_before_measuring(tiny_model):
    with pytest.warns(UserWarning, match="edges share one simultaneous band over 12 groups"):
        sweep(tiny_model("llama"), pairs_of(12), method="attribution")


@pytest.mark.parametrize("method", ["exact", "attribution"])
def test_a_pair_in_which_nothing_is_exchanged_has_effects_of_0(tiny_model, method):
    """Prompts of other lengths are paired up to the first difference, where all is equal."""
    pairs = al.load_pairs(
        [{"clean": "of a cup", "corrupted": "of a cup of tea", "answer": " a", "wrong": " e"}]
    )
    found = sweep(tiny_model("llama"), pairs, receivers="logits", method=method)
    assert (found.samples()["effect"] == 0).all()
    assert found.samples(all_columns=True)["by_construction"].all()


def test_scores_that_are_0_by_construction_give_a_warning(tiny_model):
    with pytest.warns(UserWarning, match="no slope in the clean run"):
        found = sweep(
            tiny_model("llama"),
            senders="m0",
            receivers="logits",
            method="attribution",
            metric="kl",
            direction="noising",
        )
    assert found.samples()["effect"].abs().max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"method": "attribution"}, {"downstream": "freeze"}])
def test_a_streamed_model_gives_the_numbers_of_one_in_memory(tiny, how):
    found = []
    for stream in (False, True):
        model = al.load_model(str(tiny("llama")), stream=stream, progress=False)
        found.append(sweep(model, senders="a0.*,m0", receivers="a1.*,m2,logits", **how).effects)
    known = ~found[0].isnan()
    assert (found[0] - found[1])[known].abs().max() < 1e-5


@pytest.mark.slow
def test_in_bfloat16_the_checks_hold(tiny):
    model = al.load_model(str(tiny("llama")), dtype="bfloat16", progress=False)
    found = sweep(model, senders="a0.*,m0", receivers="a1.*,m2,logits", n_spot_checks=12)
    assert found.record["checks"]["cells"] == 12 and not found.record["checks"]["failed"]
    assert found.noise_floor > 0


def test_grouped_queries_that_are_ungrouped_give_the_same_edges(tiny):
    """Checks patched one copy of a key or value head, where there is one for each query head."""
    model = al.load_model(str(tiny("llama")), device="cpu", progress=False)
    wanted = sweep(model, receivers="a2.*", n_spot_checks=30).effects
    model.set_ungroup_grouped_query_attention(True)
    found = sweep(model, receivers="a2.*", n_spot_checks=30).effects
    assert np.allclose(found, wanted, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("method", ["attribution", "attribution_ig_activations"])
def test_attribution_within_inference_mode(tiny_model, method):
    model = tiny_model("llama")
    wanted = sweep(model, method=method).effects
    with torch.inference_mode():
        found = sweep(model, method=method).effects
    assert np.array_equal(found, wanted, equal_nan=True)


def test_weights_of_inference_mode_have_no_gradient(tiny):
    with torch.inference_mode():
        loaded = al.load_model(str(tiny("llama")), device="cpu", progress=False)
        made = HookedTransformer(loaded.cfg, loaded.tokenizer)
    sweep(loaded, method="attribution")
    with pytest.raises(InputError, match="inference_mode"):
        sweep(made, method="attribution")


@pytest.mark.parametrize("top", [-1, "5", 1.5])
def test_a_table_has_a_whole_number_of_rows(tiny_model, unchecked, top):
    with pytest.raises(InputError, match="top="):
        sweep(tiny_model("llama"), receivers="logits").table(top)
