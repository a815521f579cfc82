"""Circuits: selection, stability, faithfulness, ACDC, effects of heads, files, bad input."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import anchorlens as al
from anchorlens.engine.edges.circuits import Ablation, CircuitRuns
from anchorlens.engine.edges.graph import Graph
from anchorlens.engine.readouts import LOGIT_DIFF
from anchorlens.errors import DataError, EmptySweepError, InputError
from anchorlens.models.load import adapt
from anchorlens.protocols.edges import circuit_pairs
from anchorlens.protocols.edges.circuit_pairs import CircuitPairs
from anchorlens.protocols.edges.edge_inputs import graph_of
from anchorlens.protocols.edges.head_effects import measure_heads
from anchorlens.protocols.edges.select_edges import connect, grow_from_logits, select_often
from benchmarks.planted_circuits import BETA, CIRCUITS
from tests.raised import raises

QUIET = {"progress": False}
# One token each for the tiny tokenizers, or as many.
WORDS = ("gum", "jam", "rye", "egg", "fig", "ham", "nut", "pie", "tea")


def pairs_of(n):
    rows = []
    for i in range(n):
        word, other = WORDS[i % len(WORDS)], WORDS[(i + 1 + i // len(WORDS)) % len(WORDS)]
        rows.append(
            {
                "clean": f"of {word} is a cup of",
                "corrupted": f"of {other} is a cup of",
                "answer": f" {word[0]}",
                "wrong": f" {other[1]}",
            }
        )
    return al.load_pairs(rows)


@pytest.fixture(scope="module")
def sweep(tiny_model):
    return al.edge_sweep(
        tiny_model("llama"), pairs_of(12), method="attribution", controls="none", **QUIET
    )


def graph_edges(graph, *names):
    return [graph.edge(name) for name in names]


@pytest.mark.slow
def test_top_edges_are_those_of_the_table(sweep):
    circuit = sweep.circuit(7)
    table = sweep.table(7)
    assert list(circuit.table()["edge"]) == list(table["edge"])
    assert circuit.table()["effect"].tolist() == pytest.approx(table["effect"].tolist())
    signed = sweep.circuit(7, absolute=False).table()["effect"]
    assert (signed > 0).all()
    assert signed.is_monotonic_decreasing


def test_greedy_grows_from_the_logits():
    graph = Graph(n_layers=2, n_heads=2, n_kv_heads=1)
    # The key belongs to both heads of its group, of which head 1 reaches the logits.
    names = ["a0.h0 -> a1.h0.k", "embed -> a0.h0.q", "a1.h1 -> logits", "m0 -> a1.h0.q"]
    scores = dict(zip(graph_edges(graph, *names), (5.0, 4.0, -2.0, 6.0), strict=True))
    found = [edge.name for edge in grow_from_logits(graph, scores, 10)]
    assert found == ["a1.h1 -> logits", "a0.h0 -> a1.h0.k", "embed -> a0.h0.q"]


def test_only_edges_on_a_path_are_connected():
    graph = Graph(n_layers=2, n_heads=2, n_kv_heads=2)
    path = graph_edges(graph, "embed -> a0.h0.v", "a0.h0 -> a1.h1.q", "a1.h1 -> logits")
    loose = graph_edges(graph, "embed -> a0.h1.v", "m0 -> logits")
    assert connect(graph, [*loose, *path]) == path
    assert connect(graph, loose) == []


def test_stability_is_the_share_of_resamples():
    values = np.array([[3.0, 1.0, 2.0], [3.0, 2.0, 1.0]])
    draws = [np.array([2.0, 0.0]), np.array([0.0, 2.0]), np.array([2.0, 0.0])]
    assert select_often(values, draws, 2).tolist() == pytest.approx([1, 1 / 3, 2 / 3])


@pytest.mark.slow
def test_a_consensus_ranks_by_stability(sweep):
    circuit = sweep.circuit(30, rule="consensus", n_resamples=50)
    shares = circuit.table()["stability"]
    assert shares.is_monotonic_decreasing
    assert 0 < circuit.overlap <= 1
    assert "two resamples share" in str(circuit)


def test_a_control_does_not_change_the_stability(tiny_model):
    """Two pairs that have the same control stay in groups of their own."""
    model = tiny_model("llama")
    pairs = al.load_pairs("ioi-pairs", limit=40)
    swept = {"receivers": "logits", "senders": "a2.*,m*", **QUIET}
    plain, controlled = (
        al.edge_sweep(model, pairs, controls=controls, n_spot_checks=0, **swept).circuit(3)
        for controls in ("none", "other_pair")
    )
    assert controlled.stability == plain.stability
    assert controlled.overlap == plain.overlap < 1


@pytest.mark.slow
def test_faithfulness_goes_from_the_corrupted_to_the_clean_metric(sweep, tiny_model):
    """Means over pairs, beside runs of each circuit alone; areas by hand."""
    circuit = sweep.circuit(20)
    scores = circuit.faithfulness(tiny_model("llama"), pairs_of(12), **QUIET)
    frame = scores.table()
    whole = frame.iloc[-1]
    assert whole["share"] == 1
    assert whole["faithfulness"] == pytest.approx(1, abs=1e-3)
    assert whole["rest"] == pytest.approx(0, abs=1e-3)
    assert (frame["low"] <= frame["faithfulness"]).all()
    f, shares = frame["faithfulness"].to_numpy(), frame["share"].to_numpy()
    assert scores.cpr is not None
    assert scores.cmd is not None
    assert scores.cpr.value == pytest.approx(np.trapezoid(f, shares))
    assert scores.cmd.value == pytest.approx(np.trapezoid(abs(1 - f), shares))
    assert scores.cpr.low <= scores.cpr.value <= scores.cpr.high
    one = circuit.faithfulness(tiny_model("llama"), pairs_of(12), sizes=[20], **QUIET)
    assert one.cpr is None
    assert "20" in str(one)


@pytest.mark.slow
def test_a_metric_function_is_measured_in_every_circuit(sweep, tiny_model):
    """The same numbers as by the named metric, whichever circuit is run first."""
    model = tiny_model("llama")
    pairs = al.load_pairs(
        [
            {"clean": pair.clean, "corrupted": pair.corrupted, "answer": "e", "wrong": "a"}
            for pair in pairs_of(4).pairs
        ]
    )
    (token,) = model.to_tokens("e", prepend_bos=False)[0]

    def log_p(logits):
        return logits[0, -1].log_softmax(-1)[token]

    circuit = sweep.circuit(60)
    masks = circuit.graph.masks(
        [circuit.graph.edges(circuit.graph.senders, circuit.graph.receivers), circuit.edges, []]
    )
    named, own = (
        circuit._open(model, pairs, metric, "patching", progress=False)
        for metric in ("logprob", log_p)
    )
    assert own.clean == pytest.approx(named.clean, abs=1e-5)
    for some in (masks, masks.flip(0)):
        values = named.values(some)
        assert own.values(some) == pytest.approx(values, abs=1e-5)
        assert np.ptp(values, axis=1).min() > 1e-3


def test_a_metric_function_may_read_what_it_did_not_read_before(tiny_model):
    """A position that a function reads in some circuits only is there in all."""
    model = tiny_model("llama")

    def wander(logits):
        position = int(logits[0, -1].argmax()) % logits.shape[1]
        return logits[0, position, 3]

    opened = circuit_pairs.open_pairs(model, pairs_of(6), metric=wander)
    graph = opened.graph
    everything = graph.edges(graph.senders, graph.receivers)
    sizes = (0, 50, 200, 400, len(everything))
    assert np.isfinite(opened.values(graph.masks([everything[:n] for n in sizes]))).all()


def test_connected_edges_compute_the_same(sweep, tiny_model):
    circuit = sweep.circuit(40)
    fewer = circuit.prune()
    assert len(fewer.edges) < len(circuit.edges)
    opened = circuit._open(tiny_model("llama"), pairs_of(3), None, "patching", progress=False)
    found = opened.values(circuit.graph.masks([circuit.edges, fewer.edges]))
    assert found[:, 0] == pytest.approx(found[:, 1], abs=1e-5)


def test_minimality_is_the_loss_without_an_edge(sweep, tiny_model):
    circuit = sweep.circuit(5)
    found = circuit.minimality(tiny_model("llama"), pairs_of(4), **QUIET)
    opened = circuit._open(tiny_model("llama"), pairs_of(4), None, "patching", progress=False)
    values = opened.values(circuit.graph.masks([circuit.edges, circuit.edges[1:]])).mean(0)
    assert found["effect"][0] == pytest.approx(values[0] - values[1], abs=1e-5)


@pytest.mark.slow
def test_mean_ablation_differs_and_warns_of_few_prompts(sweep, tiny_model):
    circuit = sweep.circuit(100)
    with pytest.warns(UserWarning, match="mean is over"):
        few = circuit._open(tiny_model("llama"), pairs_of(4), None, "mean", progress=False)
    other = circuit._open(tiny_model("llama"), pairs_of(4), None, "patching", progress=False)
    assert few.ablated != pytest.approx(other.ablated, abs=1e-3)
    scores = circuit.faithfulness(
        tiny_model("llama"), pairs_of(27), ablation="mean", sizes=[1.0], **QUIET
    )
    assert scores.table()["faithfulness"][0] == pytest.approx(1, abs=1e-3)


@pytest.mark.slow
def test_acdc_keeps_fewer_edges_with_a_larger_threshold(tiny_model):
    model = tiny_model("llama")
    options = {"receivers": ["a2.*", "logits"], **QUIET}
    small, large = (
        al.acdc(model, pairs_of(2), threshold=threshold, **options) for threshold in (1e-4, 1e-2)
    )
    assert set(large.scores) == set(small.scores)
    assert len(large.edges) < len(small.edges)
    assert set(large.scores) - set(large.edges)
    assert len(large.faithfulness(model, pairs_of(2), **QUIET).table()) == 1
    with pytest.raises(InputError, match="one size"):
        large.of_size(3)


def opened_planted(name):
    """A planted circuit as the pairs of a sweep would open it."""
    planted = CIRCUITS[name]()
    adapter = adapt(planted.model)
    graph = graph_of(adapter)
    clean, corrupted = planted.target, planted.source
    runs = CircuitRuns(
        adapter,
        graph,
        clean,
        Ablation.of(adapter, [corrupted]),
        planted.reader,
        metric=LOGIT_DIFF,
    )
    everything = graph.edges(graph.senders, graph.receivers)
    whole, empty = runs.values([everything, ()])
    return CircuitPairs(
        places=("all",),
        graph=graph,
        model="planted",
        dataset=name,
        runs=(runs, runs),
        groups=("0", "1"),
        clusters=("", ""),
        clean=np.full(2, whole),
        whole=np.full(2, whole),
        ablated=np.full(2, empty),
        metric=LOGIT_DIFF,
        unit="logit",
        factor=1.0,
        n_dropped=0,
    )


@pytest.mark.parametrize(
    ("name", "single", "interaction"), [("or, noising", 0.0, 1.0), ("and, noising", 1.0, -1.0)]
)
def test_joint_effects_find_planted_pairs_of_heads(name, single, interaction):
    """Of two heads of which one is enough, single effects show nothing; of two that are both
    needed, they are counted twice.
    """
    found = measure_heads(opened_planted(name), "heads", joint=2)
    assert found.singles["total"].tolist() == pytest.approx([single, single], abs=1e-4)
    assert found.joint["interaction"].tolist() == pytest.approx([interaction], abs=1e-4)
    assert found.joint["joint"].tolist() == pytest.approx([1.0], abs=1e-4)


def test_repair_finds_a_planted_backup():
    found = measure_heads(opened_planted("backup, noising"), "heads", joint=0)
    head = found.singles.set_index("head").loc["a0.h0"]

    def weight(primary):
        score = np.exp(BETA * (1 - 2 * primary))
        return score / (score + 2)

    assert head["direct"] == pytest.approx(1.0, abs=1e-4)
    assert head["repaired"] == pytest.approx(weight(0) - weight(1), abs=1e-4)
    assert found.joint.empty


def test_effects_of_heads_of_a_model(tiny_model):
    model = tiny_model("neox")
    last = f"a{model.cfg.n_layers - 1}.*"
    found = al.head_effects(model, pairs_of(3), heads=last, joint=2, **QUIET)
    assert len(found.singles) == model.cfg.n_heads
    assert len(found.joint) == 1
    # Nothing reads these heads but the logits, so direct and total effect are the same.
    assert found.singles["direct"].to_numpy() == pytest.approx(
        found.singles["total"].to_numpy(), abs=1e-4
    )
    assert "Pairs of heads" in str(found)


def test_files_keep_the_circuit(sweep, tmp_path):
    circuit = sweep.circuit(25, rule="greedy")
    path = al.save_circuit(circuit, tmp_path / "method" / "ioi_llama" / "importances.json")
    again = al.load_circuit(path)
    assert set(again.edges) == set(circuit.edges)
    assert again.scores == pytest.approx(circuit.scores)
    assert again.graph == circuit.graph
    assert (again.model, again.metric, again.rule) == (sweep.model, sweep.metric, "greedy")
    written = json.loads(path.read_text())
    # Keys of both query heads of a group, as EAP-IG has them.
    assert "input->a1.h0<k>" in written["edges"]
    assert "input->a1.h1<k>" in written["edges"]
    assert written["nodes"]["logits"] == {"in_graph": True}


def test_files_of_other_programs_are_read(sweep, tmp_path):
    """Without our part of the file, the scores of a group are added."""
    path = al.save_circuit(sweep.circuit(25), tmp_path / "importances.json")
    written = json.loads(path.read_text())
    del written["anchorlens"]
    path.write_text(json.dumps(written))
    graph = sweep.circuit(25).graph
    found = al.load_circuit(path, n_kv_heads=graph.n_kv_heads)
    edge = graph.edge("embed -> a1.h0.k")
    rep = graph.n_heads // graph.n_kv_heads
    assert found.scores[edge] == pytest.approx(rep * sweep.circuit(25).scores[edge])
    assert set(found.edges) == set(sweep.circuit(25).edges)
    written["edges"]["input->a1.h0<k>"] = {"score": 1.0, "in_graph": True}
    written["edges"]["input->a1.h1<k>"] = {"score": 1.0, "in_graph": False}
    path.write_text(json.dumps(written))
    with pytest.raises(DataError, match="some query heads"):
        al.load_circuit(path, n_kv_heads=graph.n_kv_heads)


@pytest.mark.parametrize("is_inside", [True, False])
def test_an_edge_that_the_model_of_a_file_lacks_is_an_error(sweep, tmp_path, is_inside):
    path = al.save_circuit(sweep.circuit(25), tmp_path / "importances.json")
    written = json.loads(path.read_text())
    written["edges"]["a9.h9->logits"] = {"score": 1.0, "in_graph": is_inside}
    path.write_text(json.dumps(written))
    with raises(DataError, "path", word="'a9.h9->logits' is no edge of cfg") as error:
        al.load_circuit(path)
    assert "importances.json" in str(error.value)


@pytest.mark.parametrize("content", ["", "[]", '{"cfg": {}}', '{"cfg": 3, "edges": {}}', "null"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "no.json"
    path.write_text(content)
    with pytest.raises(DataError, match="path="):
        al.load_circuit(path)
    with pytest.raises(DataError, match="path="):
        al.load_circuit(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"top": 0}, "top=0"),
        ({"top": 10**6}, "top=1000000"),
        ({"top": True}, "top=True"),
        ({"rule": "gready"}, "greedy"),
        ({"top": 5, "rule": "consensus", "n_resamples": 0}, "needs resamples"),
    ],
)
def test_bad_arguments_of_a_selection(sweep, options, words):
    with pytest.raises(InputError, match=words):
        sweep.circuit(**options)


def test_a_circuit_without_a_path_says_that_it_computes_nothing(tiny_model):
    """Edges of the last layers alone; the embedding reaches none of them."""
    found = al.edge_sweep(
        tiny_model("llama"),
        pairs_of(3),
        senders="a1.*",
        receivers="logits",
        controls="none",
        **QUIET,
    )
    circuit = found.circuit(2)
    assert "2 of 4 measured edges" in str(circuit)
    assert "No edge is on a path" in str(circuit)
    with pytest.warns(UserWarning, match="No edge is on a path from the embedding"):
        table = circuit.faithfulness(tiny_model("llama"), pairs_of(3), **QUIET).table()
    assert table["faithfulness"].abs().max() < 1e-3
    empty = circuit.prune()
    assert not empty.edges
    assert "nan" not in str(empty)


def test_bad_arguments_of_a_score(sweep, tiny_model):
    circuit = sweep.circuit(10)
    model = tiny_model("llama")
    for options, words in (
        ({"sizes": [0]}, "sizes=0"),
        ({"sizes": [1.5]}, "sizes=1.5"),
        ({"ablation": "zero"}, "ablation='zero'"),
    ):
        with pytest.raises(InputError, match=words):
            circuit.faithfulness(model, pairs_of(2), **options, **QUIET)
    with pytest.raises(InputError, match="the circuit is of a model with"):
        circuit.faithfulness(tiny_model("gpt2"), pairs_of(2), **QUIET)
    unequal = [
        {"clean": "of tea is a cup of", "corrupted": "of jam", "answer": " t", "wrong": " j"}
    ]
    with pytest.raises(EmptySweepError, match="equal length"):
        circuit.faithfulness(model, al.load_pairs(unequal), **QUIET)
    with pytest.raises(InputError, match="threshold=0"):
        al.acdc(model, pairs_of(2), threshold=0, **QUIET)
    with pytest.raises(InputError, match="heads='m0'"):
        al.head_effects(model, pairs_of(2), heads="m0", **QUIET)


@pytest.mark.parametrize(
    "sizes",
    [
        *([], (), 5, 0.5, "5", b"5", [0], [True], [None], ["5"], [10**6]),
        *([-0.1], [0.0], [1.5], [float("nan")], [float("inf")]),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_sizes_are_edges_or_shares(sweep, sizes):
    with raises(InputError, "sizes"):
        sweep.circuit(10).faithfulness(None, None, sizes=sizes, **QUIET)
    with raises(InputError, "sizes", word="one size"):
        replace(sweep.circuit(10), rule="acdc").faithfulness(None, None, sizes=sizes, **QUIET)


@pytest.mark.usefixtures("unchecked")
def test_sizes_are_whole_numbers_of_any_type(sweep):
    found = sweep.circuit(10)._sizes([np.int64(7), 3, 1.0, np.float64(1.0)])
    assert found == [3, 7, sweep.circuit(10).n_all]
    for n in (0, 2.5, "5", None):
        with raises(InputError, "n"):
            sweep.circuit(10).of_size(n)


def test_fewer_edges_than_the_smallest_share_need_sizes(sweep):
    circuit = replace(sweep.circuit(10), graph=Graph(n_layers=30, n_heads=9, n_kv_heads=3))
    edge = circuit.edges[0]
    few = replace(circuit, scores={edge: 1.0}, edges=(edge,))
    with raises(InputError, "sizes", word="1 of 70,651 edges were measured"):
        few.faithfulness(None, None, **QUIET)


def test_a_model_whose_graph_is_wrong_is_refused(sweep, tiny_model, monkeypatch):
    """The check of the whole graph can fail: a head that adds twice what it should."""
    from anchorlens.engine.edges import circuits

    right = circuits.CircuitRuns._attention
    monkeypatch.setattr(circuits.CircuitRuns, "_attention", lambda *args: 1.5 * right(*args))
    with pytest.raises(InputError, match="whole graph gives"):
        sweep.circuit(10).faithfulness(tiny_model("llama"), pairs_of(2), **QUIET)


def test_rounding_may_turn_some_pairs_of_a_metric_in_steps(sweep, tiny_model):
    """A few pairs warn; more than half are a fault, and so is one pair of a named metric."""
    opened = sweep.circuit(10)._open(
        tiny_model("llama"), pairs_of(4), None, "patching", progress=False
    )
    clean = opened.whole + np.array([5.0, 0, 0, 0])
    turned = replace(opened, clean=clean)
    with pytest.warns(UserWarning, match="In 1 of 4 pairs"):
        circuit_pairs._check_whole_graph(turned, torch.float32, in_steps=True)
    with pytest.raises(InputError, match="whole graph gives"):
        circuit_pairs._check_whole_graph(turned, torch.float32, in_steps=False)
    far = replace(opened, clean=opened.whole + 5.0)
    with pytest.raises(InputError, match="whole graph gives"):
        circuit_pairs._check_whole_graph(far, torch.float32, in_steps=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_in_bfloat16_the_whole_graph_is_the_model(sweep, tiny, dtype):
    from anchorlens.models.load import load_model

    model = load_model(str(tiny("llama")), dtype=dtype)
    scores = sweep.circuit(20).faithfulness(model, pairs_of(12), sizes=[1.0], **QUIET)
    assert scores.table()["faithfulness"][0] == pytest.approx(1, abs=0.1)


def with_segments(n):
    """Pairs that name the changed word; three other words follow, which are in no segment."""
    rows = [
        {
            "clean": one.clean,
            "corrupted": one.corrupted,
            "answer": one.answer,
            "wrong": one.wrong,
            "segments": {"word": [one.clean.split()[1], one.corrupted.split()[1]]},
        }
        for one in pairs_of(n).pairs
    ]
    return al.load_pairs(rows)


@pytest.fixture(scope="module")
def by_segment(tiny_model):
    return al.edge_sweep(
        tiny_model("llama"),
        with_segments(12),
        by="segment",
        method="attribution",
        controls="none",
        **QUIET,
    )


@pytest.mark.slow
def test_edges_by_segment_add_up_to_those_over_all_positions(by_segment, sweep):
    """Positions in no segment are a place of their own, so nothing is lost."""
    assert by_segment.places == ("word", "rest")
    table = by_segment.table()
    total = table.groupby("edge")["effect"].sum()
    assert by_segment.effects.shape[1] == 2
    whole = sweep.table().set_index("edge")["effect"]
    assert total.to_numpy() == pytest.approx(whole.loc[total.index].to_numpy(), abs=1e-5)


@pytest.mark.slow
def test_a_circuit_by_segment_goes_from_the_corrupted_to_the_clean_metric(by_segment, tiny_model):
    circuit = by_segment.circuit(50)
    assert circuit.n_all == len(by_segment.anchors)
    assert set(circuit.table()["place"]) <= {"word", "rest"}
    found = circuit.faithfulness(tiny_model("llama"), with_segments(12), **QUIET)
    assert found.cpr is not None
    whole = found.table().iloc[-1]
    assert (whole["share"], whole["rest"]) == (1, pytest.approx(0, abs=1e-3))
    assert whole["faithfulness"] == pytest.approx(1, abs=1e-3)
    # Edges of both places together are the edges over all positions.
    model, pairs = tiny_model("llama"), with_segments(4)
    edges = circuit.graph.edges(circuit.graph.senders, circuit.graph.receivers)[::7]
    both = [edge._replace(place=place) for edge in edges for place in circuit.places]
    placed = circuit_pairs.open_pairs(model, pairs, by="segment")
    plain = circuit_pairs.open_pairs(model, pairs)
    values = placed.values(placed.masks([both])), plain.values(plain.masks([edges]))
    assert values[0] == pytest.approx(values[1], abs=1e-4)


@pytest.mark.slow
def test_a_circuit_by_position_is_drawn_and_pruned(tiny_model):
    found = al.edge_sweep(
        tiny_model("llama"),
        pairs_of(2),
        receivers="logits",
        by="position",
        controls="none",
        **QUIET,
    )
    circuit = found.circuit(3)
    assert set(circuit.table()["place"]) <= set(found.places)
    assert len(circuit.prune().edges) <= 3
    assert al.plot_circuit(circuit).data


@pytest.mark.slow
def test_what_a_circuit_by_segment_cannot_do_says_so(by_segment, tiny_model, tmp_path):
    circuit = by_segment.circuit(5)
    with pytest.raises(InputError, match="by='all'"):
        al.save_circuit(circuit, tmp_path / "circuit.json")
    assert not list(tmp_path.iterdir())
    rows = with_segments(4).to_frame()
    renamed = rows.assign(segments=[{"noun": one["word"]} for one in rows["segments"]])
    with pytest.raises(InputError, match="same segments"):
        circuit.faithfulness(tiny_model("llama"), al.load_pairs(renamed), **QUIET)
    named_rest = rows.assign(segments=[{"rest": one["word"]} for one in rows["segments"]])
    with pytest.raises(InputError, match="another name"):
        al.edge_sweep(tiny_model("llama"), al.load_pairs(named_rest), by="segment", **QUIET)
