"""Read damaged files of every kind that a user passes: questions, prompt pairs and studies; and
every such file, cut at every sixteenth.

    python -m tests.fuzz_files --cases 6000 --seed 0

Half of the cases are question files (:mod:`tests.fuzz_questions`), a quarter each pairs files and
studies (:mod:`tests.fuzz_arguments`). An outcome is right, a clear error of one line, raw, or
silently other than an independent reading.
"""

import argparse
import gzip
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import tomli_w

from anchorlens.errors import AnchorlensError
from anchorlens.prompts.load_pairs import load_pairs
from tests import fuzz_arguments, fuzz_questions
from tests.fuzz_questions import Case, Outcome

GOOD = ("right", "clear error")
PAIRS: list[dict[str, Any]] = [
    {"clean": "The sky, at noon, is", "corrupted": "The sea, at noon, is", "answer": " blue"},
    {"clean": 'He said "yes" to', "corrupted": 'He said "no" to', "answer": '[" her", " him"]'},
    {"clean": "Où est Ulm", "corrupted": "Où est ドイツ", "answer": " là"},
]


def pairs_file(kind: str, rows: list[dict[str, Any]]) -> bytes:
    """Return the bytes of a file of pairs."""
    if kind == "parquet":
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
        return sink.getvalue().to_pybytes()
    if kind in ("csv", "tsv"):
        delimiter = "," if kind == "csv" else "\t"
        quiet = random.Random(1)  # draws no damage: the rows are well formed
        return fuzz_questions._delimited(rows, quiet, delimiter, False).encode("utf8")
    objects = [fuzz_questions._object(row, random.Random(0), False) for row in rows]
    text = "\n".join(objects) if kind == "jsonl" else "[" + ", ".join(objects) + "]"
    return text.encode("utf8")


def pairs_case(seed: int, number: int) -> Case:
    """Return a damaged file of pairs; equal numbers give equal cases."""
    rng = random.Random(f"pairs {seed} {number}")
    kind = rng.choice(fuzz_questions.FILES)
    rows = [dict(row) for row in PAIRS]
    texts = [text for text in fuzz_questions.TEXTS if len(text) < 3000]
    for _ in range(rng.randrange(3)):
        rng.choice(rows)[rng.choice(("clean", "corrupted", "answer"))] = rng.choice(texts)
    content = pairs_file(kind, rows)
    return Case(kind, fuzz_questions._damage(content, rng) if rng.random() < 0.7 else content)


def run_pairs(case: Case, folder: Path) -> Outcome:
    """Read a file of pairs with ``load_pairs`` and with the independent reading."""
    file = folder / f"pairs.{case.kind}"
    file.write_bytes(case.content)
    try:
        records = fuzz_questions._records(case)
    except Exception:  # noqa: BLE001 - whatever stops the simple reading, the input has no reading
        records = None
    try:
        data = load_pairs(file)
    except AnchorlensError as error:
        is_clear = str(error).isprintable() and len(str(error)) < 1500
        return Outcome("clear error" if is_clear else "several lines", str(error))
    except Exception as error:  # noqa: BLE001 - the fuzzer counts these
        return Outcome("raw", f"{type(error).__name__}: {error}")
    if records is None:
        return Outcome("silently other", "read, although it has no single reading")
    if len(data.pairs) + len(data.dropped) != len(records):
        return Outcome("silently other", f"{len(data.pairs)} pairs of {len(records)} rows")
    for pair in data.pairs:
        # Without a column of ids a pair is named by the number of its row.
        record = records[int(pair.id)]
        fields = {fuzz_questions._bare(str(name)).casefold(): one for name, one in record.items()}
        for side in ("clean", "corrupted"):
            text = getattr(pair, side)
            if isinstance(text, str) and text != fields[side]:
                return Outcome("silently other", f"{side} {text!r} is not {fields[side]!r}")
    return Outcome("right")


def run_questions(case: Case, folder: Path) -> Outcome:
    return fuzz_questions.run_case(case, folder)


def cut_cases() -> Iterator[tuple[str, Case]]:
    """Yield every kind of file of questions and pairs, cut at every sixteenth."""
    for kind in fuzz_questions.FILES:
        sink = pyarrow.BufferOutputStream()
        table = fuzz_questions._table(fuzz_questions.ROWS, random.Random(0))
        pyarrow.parquet.write_table(table, sink)
        whole = sink.getvalue().to_pybytes()
        if kind != "parquet":
            rows = [
                {name: row[name] for name in ("question", "note")} for row in fuzz_questions.ROWS
            ]
            whole = pairs_file(kind, [{**row, "answers": "x"} for row in rows])
        pairs = pairs_file(kind, PAIRS)
        for sixteenth in range(17):
            yield "questions", Case(kind, whole[: len(whole) * sixteenth // 16])
            yield "pairs", Case(kind, pairs[: len(pairs) * sixteenth // 16])


def run_cut_gzip(folder: Path) -> Iterator[Outcome]:
    """Yield the outcomes of a compressed file, cut at every sixteenth: an error but for all."""
    whole = gzip.compress(pairs_file("csv", PAIRS))
    for sixteenth in range(17):
        file = folder / "cut.csv.gz"
        file.write_bytes(whole[: len(whole) * sixteenth // 16])
        try:
            n_pairs = len(load_pairs(file))
        except AnchorlensError as error:
            yield Outcome("clear error" if sixteenth < 16 else "silently other", str(error))
        except Exception as error:  # noqa: BLE001 - the fuzzer counts these
            yield Outcome("raw", f"{type(error).__name__}: {error}")
        else:
            is_whole = sixteenth == 16 and n_pairs == len(PAIRS)
            yield Outcome("right" if is_whole else "silently other", f"cut at {sixteenth}/16")


def run_study(place: fuzz_arguments.Place, case: fuzz_arguments.Case) -> Outcome:
    """Check a study file with ``anchorlens run`` and ``Study.check``."""
    found = place.run(case)
    kinds = {"accepted": "right", "clear": "clear error"}
    return Outcome(kinds.get(found.kind, found.kind), found.message)


def cut_studies(place: fuzz_arguments.Place) -> Iterator[tuple[int, Outcome]]:
    """Yield the length and the outcome of a whole study, cut at every sixteenth."""
    whole = tomli_w.dumps(fuzz_arguments.study_of(place.model))
    for sixteenth in range(17):
        text = whole[: len(whole) * sixteenth // 16]
        yield len(text), run_study(place, fuzz_arguments.Case(fuzz_arguments._RUN, text))


def fuzz(folder: Path, cases: int, seed: int) -> Iterator[tuple[str, str, Outcome]]:
    """Yield the kind of file, the case and its outcome."""
    runs = {"questions": run_questions, "pairs": run_pairs}
    for name, case in cut_cases():
        yield f"cut {name}", f"{case.kind} of {len(case.content)} bytes", runs[name](case, folder)
    for outcome in run_cut_gzip(folder):
        yield "cut gzip", "", outcome
    for number in range(cases // 2):
        case = fuzz_questions.make_case(seed, number)
        yield "questions", str(number), run_questions(case, folder)
    for number in range(cases // 4):
        yield "pairs", str(number), run_pairs(pairs_case(seed, number), folder)
    with fuzz_arguments.Place.make(folder / "studies") as place:
        for length, outcome in cut_studies(place):
            yield "cut studies", f"{length} characters", outcome
        for number in range(cases - cases // 2 - cases // 4):
            rng = random.Random(f"{seed} {number}")
            case = fuzz_arguments.mutate_study(rng, place.model)
            yield "studies", str(number), run_study(place, case)


def main() -> None:
    """Print the number of cases by kind of file and outcome, and the cases that failed."""
    parser = argparse.ArgumentParser(description="Read damaged files of every kind.")
    parser.add_argument("--cases", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, case, outcome in fuzz(Path(folder), args.cases, args.seed):
            counts.setdefault(kind, Counter())[outcome.kind] += 1
            if outcome.kind not in GOOD:
                print(f"{kind} {case}: {outcome.kind}: {outcome.detail[:300]}", flush=True)
    for kind, own in counts.items():
        shown = ", ".join(f"{name} {n}" for name, n in own.most_common())
        print(f"{kind}: {sum(own.values())} cases, {shown}")
    total = sum(counts.values(), Counter())
    print(f"raw {total['raw']}, silently other {total['silently other']}")


if __name__ == "__main__":
    main()
