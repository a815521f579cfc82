"""How much goes through the model at once: sizes, splitting, memory, spot checks and the noise floor of a sweep."""

import math
import warnings
from dataclasses import replace

import pytest
import torch

import anchorlens as al
from anchorlens.analysis.checks import check_gap
from anchorlens.analysis.pairs import Pair
from anchorlens.analysis.swap_plan import Batch
from anchorlens.engine.cone import Cone
from anchorlens.engine.interventions import window_layers
from anchorlens.engine.layout import Group, Lanes, common_prefix
from anchorlens.engine.plan import PassSize, fitted, halves, out_of_memory, parse_memory, pass_bytes
from anchorlens.engine.readouts import Metrics
from anchorlens.errors import CheckError, InputError
from anchorlens.models.adapter import Adapter
from anchorlens.models.load import load_model
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowTokenizer
from tests.engine.test_cone import answer_reader, batch_of, random_rows
from tests.questions.make import capital, capitals

OPTIONS = {"align": "last", "n_donors": 2, "seed": 1, "progress": False}
CELL = ["example_id", "donor_id", "anchor", "control", "layer"]


def sweep(model, **options):
    return al.swap_sweep(model, capitals(6), **(OPTIONS | options))


def delta_p(result):
    return result.samples().set_index(CELL)["delta_p"].sort_index()


@pytest.fixture(scope="module")
def plain(tiny_model):
    return sweep(tiny_model("llama"))


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (None, None), (1, 1), (4096, 4096), (1e9, 10**9), ("2GB", 2 * 10**9), ("2gb", 2 * 10**9), ("512MiB", 2**29),
        (" 1.5 GiB ", 3 * 2**29), (".5K", 500), ("7", 7), ("3B", 3),
    ],
)  # fmt: skip
def test_memory_that_is_understood(given, size):
    assert parse_memory(given) == size


@pytest.mark.parametrize("given", ["", "GB", "-1", -1, 0, "0.4", "2 G i B", "1,5GB", "two", "nan", math.inf, "1e9GB", True])
def test_memory_that_is_not(given):
    with pytest.raises(InputError) as told:
        parse_memory(given)
    assert str(told.value) == f"max_memory={given!r} is not understood. Write bytes, or for example '2GB' or '512MiB'."


def test_halves():
    assert halves([1, 2, 3, 4, 5]) == ([1, 2, 3], [4, 5])
    assert halves((1, 2)) == ((1,), (2,))


def test_neighbours_are_packed_as_long_as_they_fit():
    def small(some):
        return sum(some) <= 5

    assert fitted([1, 2, 2, 9, 3, 1, 4], small) == [[1, 2, 2], [9], [3, 1], [4]]
    assert fitted([], small) == []
    assert fitted([9, 9], small) == [[9], [9]]


def test_what_counts_as_out_of_memory():
    told = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    assert [out_of_memory(e) for e in (torch.OutOfMemoryError("x"), MemoryError(), told)] == [True, True, True]
    assert not out_of_memory(RuntimeError("shapes do not match"))


def test_more_of_anything_needs_more_memory(tiny_model):
    adapter = Adapter(tiny_model("llama"))
    size = PassSize(runs=2000, run_rows=40, run_keys=50, packs=((800, 40, 20, 50), (40, 40, 1, 50)), prefix=10, reads=40)
    one = pass_bytes(adapter, size, 3)
    more = {
        "lanes": pass_bytes(adapter, size, 6),
        "runs": pass_bytes(adapter, replace(size, runs=4000, run_rows=80), 3),
        "cells": pass_bytes(adapter, replace(size, packs=((1600, 80, 20, 50), (80, 80, 1, 50))), 3),
        "keys": pass_bytes(adapter, replace(size, run_keys=500), 3),
        "prefix": pass_bytes(adapter, replace(size, prefix=1000), 3),
        "reads": pass_bytes(adapter, replace(size, reads=4000), 3),
    }
    assert {name for name, need in more.items() if need <= one} == set()
    assert one > 4 * 2**20


def test_a_batch_splits_into_halves_of_pairs_then_of_layers(tiny_model):
    tokenizer = RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())
    row = tokenizer.row(capital("France", "Paris"))
    a, b, c = (Pair(row, row, None, None, name, ()) for name in "abc")
    first, second = Batch((a, b, c), (0, 1, 2)).split()
    assert [[p.donor_id for p in part.pairs] for part in (first, second)] == [["a", "b"], ["c"]]
    assert [part.layers for part in (first, second)] == [(0, 1, 2), (0, 1, 2)]
    assert [(part.layers, part.pairs) for part in second.split()] == [((0, 1), (c,)), ((2,), (c,))]
    assert Batch((a,), (2,)).split() == ()


def running_out(monkeypatch, too_large):
    """The engine has no memory for batches that ``too_large`` names; returns the sizes that went through."""
    right, through = Cone.run_swaps, []

    def run(self, batch, **options):
        if too_large(len(batch.tokens.ids), len(options["layers"])):
            raise torch.OutOfMemoryError("out of memory")
        through.append((len(batch.tokens.ids), len(options["layers"])))
        return right(self, batch, **options)

    monkeypatch.setattr(Cone, "run_swaps", run)
    return through


def told_by(call):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = call()
    return result, [str(w.message) for w in told if "Memory ran out" in str(w.message)]


def test_a_sweep_that_runs_out_of_memory_goes_on_in_smaller_batches(tiny_model, plain, monkeypatch):
    through = running_out(monkeypatch, lambda rows, layers: rows > 2)
    split, told = told_by(lambda: sweep(tiny_model("llama")))
    assert len(told) == 1
    assert split.record["plan"]["split"] > 0
    assert plain.record["plan"]["split"] == 0
    assert {rows for rows, _ in through} == {1, 2}
    far = (delta_p(split) - delta_p(plain)).abs()
    assert len(far) == len(plain.samples()) > 50
    assert far.max() <= 1e-3
    assert delta_p(plain).abs().max() > 0.1
    assert split.run_id == plain.run_id


def test_a_pair_that_does_not_fit_at_all_layers_is_measured_at_some(tiny_model, plain, monkeypatch):
    through = running_out(monkeypatch, lambda rows, layers: rows * layers > 2)
    split, told = told_by(lambda: sweep(tiny_model("llama")))
    assert len(told) == 1
    assert max(rows * layers for rows, layers in through) <= 2
    assert (delta_p(split) - delta_p(plain)).abs().max() <= 1e-3


def test_memory_that_suffices_for_nothing_is_an_error(tiny_model, monkeypatch):
    through = running_out(monkeypatch, lambda rows, layers: True)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        told_by(lambda: sweep(tiny_model("llama")))
    assert through == []


def test_another_error_is_not_taken_for_missing_memory(tiny_model, monkeypatch):
    def broken(self, batch, **options):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Cone, "run_swaps", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        sweep(tiny_model("llama"))


def test_too_little_memory_names_both_sizes(tiny_model):
    with pytest.raises(
        InputError, match=r"max_memory is 1 MB, and with the smallest batches .* needs about \d+ MB beside the model"
    ):
        sweep(tiny_model("llama"), max_memory="1MB")
    with pytest.raises(InputError, match="max_memory='lots' is not understood"):
        sweep(tiny_model("llama"), max_memory="lots")


def test_little_memory_makes_more_batches_and_the_same_numbers(tiny_model, plain):
    """The limit lies between what one pair needs and what all of them need."""
    sizes, model = [], tiny_model("llama")
    sweep(model, batch_size=1, on_plan=lambda plan: sizes.append(plan.peak_bytes))
    sweep(model, batch_size=100, on_plan=lambda plan: sizes.append(plan.peak_bytes))
    alone, together = sizes
    assert alone < together
    limit = alone + (together - alone) // 4
    little = sweep(model, max_memory=limit)
    assert len(little.record["plan"]["batches"]) > len(plain.record["plan"]["batches"])
    assert sum(little.record["plan"]["batches"]) == sum(plain.record["plan"]["batches"])
    assert little.record["plan"]["max_memory"] == limit
    assert little.record["plan"]["peak_bytes"] <= limit
    assert (delta_p(little) - delta_p(plain)).abs().max() <= 1e-3


@pytest.mark.parametrize("wrong", [0.01, float("nan")])
def test_a_spot_check_finds_an_engine_that_is_wrong(tiny_model, monkeypatch, wrong):
    right = Cone.run_swaps

    def falsified(self, batch, **options):
        before, after = right(self, batch, **options)
        return before, [Metrics(m.p + wrong, m.log_p, m.logit_diff) for m in after]

    monkeypatch.setattr(Cone, "run_swaps", falsified)
    with pytest.raises(CheckError) as told:
        sweep(tiny_model("llama"), check_cells=3)
    message = str(told.value)
    assert ("nan points" if math.isnan(wrong) else "differ by 1 points") in message
    for part in ("example ", "donor ", "anchor ", "layer ", "Nothing was saved", "engine='reference'"):
        assert part in message
    assert sweep(tiny_model("llama"), check_cells=0).record["checks"] == {"cells": 0, "largest_difference": None}


@pytest.mark.parametrize("k", [1, 5])
def test_checks_and_noise_are_recorded(tiny_model, k):
    record = sweep(tiny_model("llama"), check_cells=k).record
    assert record["checks"]["cells"] == k
    assert 0 <= record["checks"]["largest_difference"] < 1e-3
    assert 0 < record["noise"]["floor"] < 1e-2
    assert record["noise"]["floor"] >= record["checks"]["largest_difference"]
    assert record["noise"]["cells"] > 0


def test_no_more_cells_are_checked_than_there_are(tiny_model):
    result = sweep(tiny_model("llama"), check_cells=10_000, layers=(1,), anchors=("answer_site",), n_donors=1)
    assert result.record["checks"]["cells"] == len(result.samples())
    assert result.record["checks"]["largest_difference"] < 1e-3


def test_fewer_than_no_checks_are_an_error(tiny_model):
    with pytest.raises(InputError, match="check_cells must be at least 0, got -1"):
        sweep(tiny_model("llama"), check_cells=-1)


def test_the_oracle_has_nothing_to_check(tiny_model, plain):
    result = sweep(tiny_model("llama"), engine="reference")
    assert result.record["checks"] == {"cells": 0, "largest_difference": None}
    assert result.record["plan"]["engine"] == "reference"
    assert plain.record["plan"]["engine"] == "cone"
    assert (delta_p(result) - delta_p(plain)).abs().max() <= 1e-3


def test_half_precision_has_a_larger_noise_floor(tiny, plain):
    record = sweep(load_model(str(tiny("llama")), device="cpu", dtype="bfloat16")).record
    assert record["plan"]["engine"] == "cone"
    assert record["noise"]["floor"] > 10 * plain.record["noise"]["floor"]
    assert record["noise"]["floor"] > 1e-3


@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 1e-3), ("float16", 1.0), ("bfloat16", 5.0)])
def test_what_a_checked_cell_may_be_off_by(tiny_model, monkeypatch, dtype, allowed):
    adapter = Adapter(tiny_model("llama"))
    monkeypatch.setattr(adapter.model.cfg, "dtype", getattr(torch, dtype))
    for floor, limit in ((0.0, allowed), (allowed, 3 * allowed)):
        check_gap(0.99 * limit, adapter, floor, "here")
        with pytest.raises(CheckError, match="points .* at here"):
            check_gap(1.01 * limit, adapter, floor, "here")


def test_the_plan_is_told_before_anything_is_measured(tiny_model, monkeypatch):
    events, right = [], Cone.run_swaps

    def run(self, batch, **options):
        events.append("measured")
        return right(self, batch, **options)

    monkeypatch.setattr(Cone, "run_swaps", run)
    result = sweep(tiny_model("llama"), on_plan=events.append)
    plan, *later = events
    assert set(later) == {"measured"}
    assert plan.cells == len(result.samples())
    assert plan.questions == 6
    assert plan.flops > 0
    assert plan.seconds > 0
    assert f"{plan.questions} rows, {plan.cells} cells in {len(plan.batches)} batches; engine cone (fused)" in str(plan)


def test_what_on_plan_raises_stops_the_sweep(tiny_model, monkeypatch):
    class Stop(Exception):  # noqa: N818
        pass

    def stop(plan):
        raise Stop

    through = running_out(monkeypatch, lambda rows, layers: False)
    with pytest.raises(Stop):
        sweep(tiny_model("llama"), on_plan=stop)
    assert through == []


def test_lanes_join_where_their_window_begins():
    """Layers in any order: lanes stand in the order in which they join, and those that are changed together are neighbours."""
    lanes = Lanes.windows((5, 0, 3), 3, 6)
    assert (lanes.start, lanes.first, lanes.last) == ((0, 2, 4), (0, 2, 4), (1, 4, 5))
    assert lanes.order == (1, 2, 0)
    assert [lanes.joined(layer) for layer in range(6)] == [1, 1, 2, 2, 3, 3]
    assert [lanes.changed(layer) for layer in range(6)] == [[(0, 1)], [(0, 1)], [(1, 2)], [(1, 2)], [(1, 3)], [(2, 3)]]
    gap = Lanes.windows((0, 4), 1, 6)
    assert [gap.changed(layer) for layer in range(6)] == [[(0, 1)], [], [], [], [(1, 2)], []]
    # A long window beside short ones: the lanes that are changed need not be neighbours.
    long = Lanes((0, 0, 1, 2), (0, 0, 1, 2), (0, 3, 1, 2), (0, 1, 2, 3))
    assert [long.changed(layer) for layer in range(4)] == [[(0, 2)], [(1, 3)], [(1, 2), (3, 4)], [(1, 2)]]


@pytest.mark.parametrize("window", [1, 2, 3, 6])
def test_changed_lanes_are_those_whose_window_holds_the_layer(window):
    layers = (4, 1, 0, 5, 2)
    lanes = Lanes.windows(layers, window, 6)
    for layer in range(6):
        changed = [j for first, stop in lanes.changed(layer) for j in range(first, stop)]
        wanted = {i for i, at in enumerate(layers) if layer in window_layers(at, window, 6)}
        assert {lanes.order[j] for j in changed} == wanted
        assert max(changed, default=0) <= lanes.joined(layer)


def test_a_common_prefix_ends_where_rows_part_or_one_ends():
    assert common_prefix([(1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 3)], 10) == 3
    assert common_prefix([(1, 2, 3, 4), (1, 2, 3, 5)], 2) == 2
    assert common_prefix([(1, 2), (2, 2)], 9) == 0
    assert common_prefix([(1, 2, 3)], 9) == 3


def test_which_keys_a_query_may_read():
    """A prefix of two tokens; a row with own tokens 3, 4 (one of its clean run before them), one with own token 2."""
    group = Group.make([3, 2], [5, 3], 2, [0, 3])
    assert group.key_positions.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 2, 3]]
    assert group.query_positions.tolist() == [[3, 4], [2, 2]]
    assert group.base.tolist() == [[0], [3]]
    assert group.found.tolist() == [0, 1, 2]
    full = [[[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], [[1, 1, 0, 1, 0], [1, 1, 0, 1, 0]]]
    near = [[[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]], [[0, 1, 0, 1, 0], [0, 1, 0, 1, 0]]]
    assert group.allowed(None).int().tolist() == full
    assert group.allowed(2).int().tolist() == near
    assert group.allowed(5).int().tolist() == full


def test_one_query_that_may_read_everything_needs_no_mask():
    group = Group.make([4], [5], 3, [0])
    assert group.allowed(None) is None
    assert group.allowed(5) is None
    assert group.allowed(4).tolist() == [[[False, True, True, True, True]]]


def counted(cone, monkeypatch):
    """Tokens that go through each block."""
    through, right = [0] * cone.blocks.n_layers, cone.blocks.project

    def project(layer, x):
        through[layer] += len(x)
        return right(layer, x)

    monkeypatch.setattr(cone.blocks, "project", project)
    return through


def one_row(adapter, begin=()):
    (row,), (donor,) = random_rows((15,), 1), random_rows((12,), 2)
    return answer_reader(adapter, [[*begin, *row]], [(len(begin) + 11,)]), [[*begin, *row]], [[*begin, *donor]]


def test_an_answer_site_costs_one_token_for_each_layer_above(tiny_model, monkeypatch):
    adapter = Adapter(tiny_model("llama"))
    cone, n = Cone(adapter), 3
    reader, rows, donors = one_row(adapter)
    through = counted(cone, monkeypatch)
    batch = batch_of(reader, rows, donors, {"answer_site": (((11,),), ((8,),))})
    after = cone.run_swaps(batch, site="resid_pre", layers=range(n), window=1)[1]
    # The base is needed up to its read (12 tokens), the donor up to what is taken (9); a lane is one token.
    assert through == [12 + 9 + layer + 1 for layer in range(n)]
    assert sum(through) <= (15 + 12) * n + n * (n + 1) // 2
    assert after[0].p.shape == (3, 1)


def test_cells_hold_the_positions_from_the_first_changed_to_the_last_read(tiny_model, monkeypatch):
    adapter = Adapter(tiny_model("llama"))
    cone = Cone(adapter)
    reader, rows, donors = one_row(adapter)
    through = counted(cone, monkeypatch)
    batch = batch_of(reader, rows, donors, {"question": (((7, 4, 5),), ((2, 3, 4),))})
    cone.run_swaps(batch, site="resid_pre", layers=(0, 2), window=1)
    cell = 12 - 4  # positions 4 to 11
    assert through == [12 + 5 + cell, 12 + 5 + cell, 12 + 5 + 2 * cell]


def test_a_common_prefix_goes_through_the_blocks_once_for_two_batches(tiny_model, monkeypatch):
    adapter = Adapter(tiny_model("llama"))
    cone, (begin,) = Cone(adapter), random_rows((40,), 9)
    reader, rows, donors = one_row(adapter, begin)
    through = counted(cone, monkeypatch)
    batch = batch_of(reader, rows, donors, {"answer_site": (((51,),), ((48,),))})
    options = {"site": "resid_pre", "layers": (2,), "window": 1}
    cone.run_swaps(batch, **options)
    assert through == [40 + 12 + 9, 40 + 12 + 9, 40 + 12 + 9 + 1]
    cone.run_swaps(batch, **options)
    assert through == [40 + 2 * (12 + 9), 40 + 2 * (12 + 9), 40 + 2 * (12 + 9 + 1)]
