"""Memory: it stays below what was promised, and does not grow from sweep to sweep."""

import json

import pytest

from tests.engine.memory import STATUS, told_by

LAYERS = [0, 10]
PEAK = """
import json, sys, warnings
warnings.simplefilter("ignore")
import anchorlens as al
from tests.engine.memory import holes, peak

model = al.load_model("smollm2-135m-instruct", device="cpu")
data = al.load_qa("popqa-sample", limit=5)
swap = {"n_donors": 1, "align": "last", "donors": "random", "progress": False, "n_spot_checks": 2}
swap |= {"null": ["same_role"], "layers": [0, 29]}
al.swap_sweep(model, data, **swap)  # imports, thread pools, rotary tables
kept = holes(300)
told = []
for kind, options in json.loads(sys.argv[1]):
    plans = []
    sweep = al.swap_sweep if kind == "swap" else al.knockout_sweep
    if kind == "swap":
        options = swap | options
    else:
        data, options = al.load_qa("popqa-sample", limit=40), {"n_splits": 1} | options
    with peak() as found:
        result = sweep(model, data, on_plan=plans.append, **{**options, "progress": False})
    told.append({"peak": found[0], "predicted": plans[0].peak_bytes, "batches": len(plans[0].batch_sizes),
                 "engine": plans[0].engine})
print(json.dumps(told))
"""
FUNCTION = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
import anchorlens as al
from tests.engine.memory import peak

def mean_logprob(logits):
    return logits.log_softmax(-1)[0, :, 50].mean()

def is_first(logits):
    return (logits[0, -1].argmax(-1) == 50).float()

model = al.load_model("smollm2-135m-instruct", device="cpu")
draws = torch.Generator().manual_seed(1)
rows = []
for number in range(4):
    clean = torch.randint(5, 40_000, (64,), generator=draws).tolist()
    rows.append({"clean": clean, "corrupted": [*clean[:40], 7, *clean[41:]], "id": str(number)})
options = {"by": "position", "layers": (28,), "controls": "none", "progress": False, "n_spot_checks": 8}
pairs = al.load_pairs(rows)
al.patch_sweep(model, al.load_pairs(rows[:1]), metric=is_first, **options)
told = []
for metric in (mean_logprob, is_first):
    plans = []
    with peak() as found:
        al.patch_sweep(model, pairs, metric=metric, on_plan=plans.append, **options)
    told.append([found[0], plans[0].peak_bytes])
print(json.dumps(told))
"""
GROWTH = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import anchorlens as al
from tests.engine.memory import settled

model = al.load_model(sys.argv[1], device="cpu")
data = al.load_qa("popqa-sample", limit=3)
sizes = []
counts = []
for i in range(60):
    al.swap_sweep(model, data, n_donors=1, align="last", donors="random", n_spot_checks=1, n_resamples=20, seed=i % 7,
                  prompt="fewshot(2)", progress=False)
    if i in (19, 59):
        sizes.append(settled())
        counts.append([len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))])
print(json.dumps([sizes, counts]))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not STATUS.exists(), reason="memory is read from /proc"),
]


LIMIT = 64 * 10**6
FIRST = [("swap", {}), ("swap", {"max_memory": 56 * 10**6, "prompt": "fewshot(5)"})]
OTHERS = [
    ("swap", {"site": "mlp_out", "window": 3, "readout": "answer_joint", "max_memory": LIMIT}),
    ("swap", {"engine": "reference"}),
    ("knockout", {"max_memory": LIMIT, "window": 3, "layers": LAYERS}),
    ("knockout", {"max_memory": LIMIT, "readout": "p_true", "layers": LAYERS}),
]


def check_peaks(cases):
    told = told_by(PEAK, json.dumps(cases))
    for (kind, options), one in zip(cases, told, strict=True):
        allowed = options.get("max_memory", one["predicted"])
        what = kind, options, one
        assert one["peak"] <= allowed, what
        assert one["predicted"] <= allowed, what
        assert one["peak"] > 10**6, what  # a sweep takes memory: this is measured at all
    return told


def test_the_peak_is_below_what_was_predicted_and_allowed():
    told = check_peaks(FIRST)
    assert told[1]["batches"] > told[0]["batches"]


def test_the_logits_that_a_metric_function_reads_are_planned():
    """All logits of eight checked cells at once would take 200 MB for each copy. The heap has no
    holes here: in one with holes the peaks are 130 and 270 MB, where 99 and 266 are planned.
    """
    told = told_by(FUNCTION)
    for peak, predicted in told:
        assert 10**6 < peak <= predicted < 3 * peak, told


@pytest.mark.exhaustive
def test_peaks_of_other_sites_readouts_and_engines():
    check_peaks(OTHERS)


@pytest.mark.exhaustive
def test_many_sweeps_do_not_grow(tiny):
    (early, late), (before, after) = told_by(GROWTH, str(tiny("llama")))
    assert late - early < 1.5 * 2**20, (early, late)
    assert after == before, "open files and threads"
