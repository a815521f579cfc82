"""A screen of edges states how many it missed at most."""

import time

import pytest

import anchorlens as al
from anchorlens.errors import InputError
from tests.protocols.edges.test_edges import pairs_of

OPTIONS = {"receivers": "a2.*,m2,logits", "progress": False}


@pytest.mark.slow
def test_the_statement_is_true_where_all_edges_are_known(tiny_model):
    """Forty audits of a small model, whose edges are all measured."""
    model = tiny_model("llama")
    every = al.edge_sweep(model, pairs_of(2), n_spot_checks=0, **OPTIONS).table()
    sizes = every.set_index("edge")["effect"].abs()
    found = al.screen_edges(model, pairs_of(2), top=10, audit=20, **OPTIONS)
    others = sizes.drop(list(found.candidates))
    assert sum(audit.size for audit in found.audits) == len(others)
    assert sum(audit.drawn for audit in found.audits) == 20
    assert found.missed_at_most >= (others >= found.cut).sum()
    assert found.found == (sizes[list(found.candidates)] >= found.cut).sum() == 5
    assert f"at most {found.missed_at_most}" in str(found)
    table = found.table()
    assert table["is_candidate"].sum() == 10 and len(table) == 30
    assert (table.set_index("edge")["effect"].abs() - sizes.loc[table["edge"]]).abs().max() < 1e-4


@pytest.mark.slow
def test_the_statement_by_segment_is_about_edges_that_reach_the_cut_at_some_segment(tiny_model):
    """Every edge counts once, with the largest of its segments."""
    model = tiny_model("llama")
    pairs = al.load_pairs(
        [
            {
                "clean": f"{a} of {b} is in the",
                "corrupted": f"{b} of {a} is in the",
                "answer": f" {a}",
                "wrong": f" {b}",
                "segments": {"first": [f"{a} of", f"{b} of"], "second": [f"{b} is", f"{a} is"]},
            }
            for a, b in ("qx", "zj")
        ]
    )
    options = OPTIONS | {"by": "segment"}
    every = al.edge_sweep(model, pairs, n_spot_checks=0, **options)
    assert every.places == ("first", "second", "rest")
    sizes = every.table()["effect"].abs().groupby(every.table()["edge"]).max()
    found = al.screen_edges(model, pairs, top=10, audit=20, **options)
    others = sizes.drop(list(found.candidates))
    assert sum(audit.size for audit in found.audits) == len(others)
    assert found.missed_at_most >= (others >= found.cut).sum()
    assert found.found == (sizes[list(found.candidates)] >= found.cut).sum() == 5
    assert "at some segment" in str(found)
    assert len(found.table()) == 3 * 30


@pytest.mark.slow
def test_a_cut_that_every_edge_reaches_is_missed_by_all_others(tiny_model):
    found = al.screen_edges(tiny_model("llama"), pairs_of(2), top=10, audit=20, cut=0.0, **OPTIONS)
    assert found.missed_at_most == sum(audit.size for audit in found.audits)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"top": 0}, "top"),
        ({"audit": 0}, "audit"),
        ({"cut": float("nan")}, "cut"),
        ({"cut": -1}, "cut"),
        ({"confidence": "high"}, "confidence"),
        ({"confidence": 1.0}, "confidence"),
        ({"screen": "exactly"}, "method"),
    ],
)
def test_bad_input(tiny_model, options, argument):
    with pytest.raises(InputError, match=argument):
        al.screen_edges(tiny_model("llama"), pairs_of(2), **OPTIONS | options)


@pytest.mark.slow
def test_fewer_edges_than_candidates_leave_nothing_to_miss(tiny_model):
    options = {"receivers": "a1.h0.q", "progress": False}
    found = al.screen_edges(tiny_model("llama"), pairs_of(2), top=100, audit=5, **options)
    assert found.audits == () and found.missed_at_most == 0
    assert len(found.candidates) == len(found.scores.anchors) == len(found.table())


@pytest.mark.slow
def test_the_cost_is_planned_before_anything_is_measured(tiny_model, monkeypatch):
    model = tiny_model("llama")
    plans = []
    found = al.screen_edges(
        model, pairs_of(2), top=10, audit=20, n_spot_checks=0, on_plan=plans.append, **OPTIONS
    )
    (plan,) = plans
    assert (plan.n_edges, plan.n_exact) == (len(found.scores.anchors), 30)
    assert plan.exact.cells == 2 * 30 and plan.scores.cells == 2 * plan.n_edges
    assert str(plan).startswith(f"30 of {plan.n_edges} edges are measured exactly; about")

    class StopHereError(Exception):
        pass

    def stop(_):
        raise StopHereError

    def measure(*_, **options):
        raise AssertionError(f"measured: {sorted(options)}")

    monkeypatch.setattr("anchorlens.running.screen_edges.edge_sweep", measure)
    with pytest.raises(StopHereError):
        al.screen_edges(model, pairs_of(2), on_plan=stop, **OPTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("receivers", ["logits", "all"])
def test_the_planned_time_counts_what_few_edges_cost(tiny_model, receivers):
    """Passes over single rows, checks and tables take most of the time of a small screen."""
    started: list[float] = []
    planned: list[float] = []

    def note(plan):
        planned.append(plan.seconds)
        started.append(time.process_time())

    options = {"top": 10, "audit": 20, "receivers": receivers, "progress": False}
    al.screen_edges(tiny_model("llama"), pairs_of(4), on_plan=note, **options)
    taken = time.process_time() - started[0]
    assert 1 / 3 < planned[0] / taken < 4
