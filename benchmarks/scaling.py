"""Seconds of a sweep per example, by the number of examples, beside plain forward passes of the same rows.

    python benchmarks/scaling.py

Every layer of one anchor (or both); the plain passes are those of TransformerLens, of all bases and of all donors, in batches of one
length. Medians of interleaved rounds.
"""

import argparse
import json
import sys
import tempfile
import time
from itertools import groupby
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from jobs import ANCHOR_SETS, PROMPTS, Case, model_directory, write_jobs
from ours import load, sweep_job

from anchorlens.engine.reference import last_stream
from anchorlens.models.adapter import Adapter
from anchorlens.questions.tokens import pad_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--anchors", nargs="+", choices=list(ANCHOR_SETS), default=["answer_site", "both"])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    adapter = load(model_directory())
    print(f"{'prompt':12} {'anchors':12} {'n':>3} {'sweep s/example':>16} {'two forwards s/example':>23} {'ratio':>6}")
    for prompt in PROMPTS:
        for anchors in args.anchors:
            cases = [Case(prompt, anchors, n) for n in args.examples]
            with tempfile.TemporaryDirectory() as folder:
                files = write_jobs(cases, Path(folder))
                jobs = {case: json.loads(files[case.name].read_text()) for case in cases}
            for job in jobs.values():
                sweep_job(adapter, {**job, "layers": job["layers"][:1]}, "cone")
            times: dict[Case, list[tuple[float, float]]] = {case: [] for case in cases}
            for _ in range(args.rounds):
                for case, job in jobs.items():
                    times[case].append((_seconds(lambda job=job: sweep_job(adapter, job, "cone")), _plain(adapter, job)))
            for case, measured in times.items():
                n = len(jobs[case]["rows"])
                sweep, plain = (median(column) / n for column in zip(*measured, strict=True))
                ratio = median(a / b for a, b in measured)
                print(f"{prompt:12} {anchors:12} {n:3d} {sweep:16.3f} {plain:23.3f} {ratio:6.2f}", flush=True)


def _seconds(work: object) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _plain(adapter: Adapter, job: dict) -> float:
    """All bases and all donors once, rows of one length together, at most 16 in a batch."""
    rows = sorted((row[kind] for row in job["rows"] for kind in ("ids", "donor_ids")), key=len)
    batches = []
    for _, same in groupby(rows, key=len):
        some = list(same)
        batches += [some[i : i + 16] for i in range(0, len(some), 16)]
    return _seconds(lambda: [last_stream(adapter, pad_rows(batch)) for batch in batches])


if __name__ == "__main__":
    main()
