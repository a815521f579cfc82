"""A sweep that takes a second, and engines that have no memory."""

import warnings

import torch

import anchorlens as al
from anchorlens.runs.schema import CELL
from tests.engine.replace_swaps import replace_swaps, right_swaps
from tests.questions.make import capitals

OPTIONS = {"align": "last", "n_donors": 2, "seed": 1, "progress": False}


def sweep(model, **options):
    return al.swap_sweep(model, capitals(6), **(OPTIONS | options))


def delta_p(result):
    return result.samples().set_index(CELL)["effect"].sort_index()


def running_out(monkeypatch, too_large):
    """The engine has no memory for batches that ``too_large`` names; returns the sizes that went
    through.
    """
    through = []

    def run(self, batch, **options):
        if too_large(len(batch.tokens.ids), len(options["layers"])):
            raise torch.OutOfMemoryError("out of memory")
        through.append((len(batch.tokens.ids), len(options["layers"])))
        return right_swaps(self, batch, **options)

    replace_swaps(monkeypatch, run)
    return through


def memory_warnings(call):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = call()
    return result, [str(w.message) for w in told if "Memory ran out" in str(w.message)]
