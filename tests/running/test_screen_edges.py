"""A screen of edges states how many it missed at most."""

import pytest

import anchorlens as al
from anchorlens.errors import InputError
from tests.protocols.edges.test_edges import pairs_of

OPTIONS = {"receivers": "a2.*,m2,logits", "progress": False}


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


def test_a_cut_that_every_edge_reaches_is_missed_by_all_others(tiny_model):
    found = al.screen_edges(tiny_model("llama"), pairs_of(2), top=10, audit=20, cut=0.0, **OPTIONS)
    assert found.missed_at_most == sum(audit.size for audit in found.audits)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"top": 0}, "top"),
        ({"audit": 0}, "audit"),
        ({"confidence": 1.0}, "confidence"),
        ({"screen": "exactly"}, "method"),
    ],
)
def test_bad_input(tiny_model, options, argument):
    with pytest.raises(InputError, match=argument):
        al.screen_edges(tiny_model("llama"), pairs_of(2), **OPTIONS | options)
