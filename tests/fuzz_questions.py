"""Read mutated question files and tables with ``load_qa``, and compare the result with an
independent reading.

    python -m tests.fuzz_questions --cases 3000 --seed 0

Outcomes of a case:

- right: the rows of the independent reading;
- clear error: an error of this package with a message of one line;
- several lines: an error of this package with a longer message, or with control characters in it;
- raw: another exception;
- silently other: other rows, or rows of an input without a single meaning.

A case is reproduced with ``--only N``.
"""

import argparse
import ast
import copy
import json
import math
import random
import tempfile
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pandas
import pyarrow
import pyarrow.parquet

from anchorlens.errors import AnchorlensError
from anchorlens.questions.datasets import load_qa

FILES = ("jsonl", "json", "csv", "tsv", "parquet")
KINDS = (*FILES, "list", "frame")
FIELDS = ("id", "question", "answers", "relation", "popularity", "subject", "note")
ROWS = [
    {
        "id": "a",
        "question": "Who wrote Emma?",
        "answers": ["Jane Austen", "Austen"],
        "relation": "author",
        "popularity": 12.5,
        "subject": "Emma",
        "note": "x",
    },
    {
        "id": "b",
        "question": 'Who sang "Heroes", live?',
        "answers": ["Bowie"],
        "relation": "singer",
        "popularity": 3.0,
        "subject": "Heroes",
        "note": "y\nz",
    },
    {
        "id": "c",
        "question": "Où est Ulm?",
        "answers": ["Allemagne", "ドイツ"],
        "relation": "country",
        "popularity": 7.0,
        "subject": "Ulm",
        "note": "",
    },
]
DIGITS, DEEP = "7" * 5000, "[" * 2000 + "]" * 2000
# Placeholders of JSON that Python's writer refuses.
LONG_NUMBER, NESTED, HUGE = "\ue000", "\ue001", "\ue002"
TEXTS = (
    "",
    "  ",
    "nul\0",
    "bell\x07",
    "tab\tand\nline",
    "return\rhere",
    "sep\u2028next\x85line",
    "\x0bvt",
    "+AD4-x",
    "nan",
    "1e400",
    "-inf",
    "true",
    "5",
    '["Rome", "Roma"]',
    "['Rome', \"L'ma\"]",
    "['Rome' 'Roma']",
    "{'Rome', 'Roma'}",
    '[["Rome"]]',
    '{"value": "Rome"}',
    '{"a": "Rome"}',
    '{"value": "a", "value": "b"}',
    "[sic] Rome",
    "[...]",
    "[1, 2.0]",
    "[true]",
    '["Ro',
    "[1e400]",
    "[" * 2000,
    f"[{DIGITS}]",
    f"[0x{'f' * 5000}]",
    '"',
    'a "b" c',
    '"b" c',
    "a,b",
    "a;b|c",
    "x" * 200_000,
    "\ufeffbom",
    "b'Rome'",
)
VALUES = (
    None,
    True,
    False,
    0,
    -5,
    2**53 + 1,
    10**30,
    10**400,
    1.0,
    0.1,
    1e22,
    math.inf,
    -math.inf,
    math.nan,
    [],
    {},
    [[]],
    ["Rome", ["Roma"]],
    ["Rome", None, 3],
    {"value": "Rome", "aliases": ["Roma"]},
    {"a": 1},
    [True],
)
SURROGATE = "half\ud800"


def nest(value: object, depth: int) -> object:
    """Return a value inside nested lists."""
    for _ in range(depth):
        value = [value]
    return value


OBJECTS = (
    b"Who",
    bytearray(b"Who"),
    memoryview(b"Who"),
    {"Rome", "Roma"},
    date(2020, 1, 2),
    datetime(2020, 1, 2),
    Decimal("1.50"),
    Decimal("NaN"),
    10**5000,
    1 + 2j,
    pandas.Timestamp("2020-01-02"),
    pandas.NaT,
    range(2),
    ("Rome", "Roma"),
    [b"Who"],
    numpy.array(["Rome", "Roma"]),
    numpy.datetime64("2020-01-02", "ns"),
    numpy.float32(2.5),
    nest("Rome", 100),
    nest("Rome", 2000),
)
COLUMNS = (
    pyarrow.array([b"Who", b"\xff", b"x"]),
    pyarrow.array([True, False, None]),
    pyarrow.array([1.0, math.inf, math.nan]),
    pyarrow.array([1, 2, 2**62]),
    pyarrow.array([["a"], ["b", "c"], None]),
    pyarrow.array([[["a"]]] * 3),
    pyarrow.nulls(3),
    pyarrow.array([{"value": "a", "aliases": ["b"]}] * 3),
    pyarrow.array([{"a": 1}] * 3),
    pyarrow.array([date(2020, 1, 2)] * 3),
    pyarrow.array([[("value", "Rome")]] * 3, pyarrow.map_(pyarrow.string(), pyarrow.string())),
    pyarrow.array([Decimal("1.50")] * 3),
    pyarrow.array(["p", "q", "r"]).dictionary_encode(),
    pyarrow.array([2**60, 0, 1], pyarrow.timestamp("us")),
    pyarrow.array([0, 1, 2], pyarrow.timestamp("s", "Nowhere/X")),
    pyarrow.array([2**62, 0, 1], pyarrow.duration("s")),
    pyarrow.array([1, 2, 3], pyarrow.timestamp("ns")),
    pyarrow.StructArray.from_arrays([pyarrow.array(["a"] * 3)] * 2, names=["value", "value"]),
    # Text that is not UTF-8.
    pyarrow.array([b"\xff", b"a", b"b"]).view(pyarrow.string()),
)


class RefusedError(Exception):
    """The input has no single meaning."""


@dataclass(frozen=True)
class Case:
    """A mutated input: the content of a file, or a list or frame."""

    kind: str
    content: Any


@dataclass(frozen=True)
class Outcome:
    """Kind of a result, and its detail."""

    kind: str
    detail: str = ""
    is_readable: bool = True


# Making cases


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    for mark, written in ((LONG_NUMBER, DIGITS), (NESTED, DEEP), (HUGE, "1e400")):
        text = text.replace(f'"{mark}"', written)
    return text.replace("\ud800", "\\ud800")


def _object(row: dict[str, Any], rng: random.Random, doubled: bool) -> str:
    pairs = [f"{json.dumps(name)}: {_json(value)}" for name, value in row.items()]
    return "{" + ", ".join([*pairs, rng.choice(pairs)] if doubled else pairs) + "}"


def _cell(value: object) -> str:
    return (
        ""
        if value is None
        else (
            value
            if isinstance(value, str)
            else _json(value)
            if isinstance(value, list | dict)
            else str(value)
        )
    )


def _delimited(
    rows: list[dict[str, Any]], rng: random.Random, delimiter: str, doubled: bool
) -> str:
    names = list(rows[0])
    if doubled:
        names.append(rng.choice([*names, "", ""]))
    if rng.random() < 0.1:
        names[rng.randrange(len(names))] = rng.choice(["", " question", "Answers", "x\ny"])
    table = [
        names,
        *([_cell(row.get(name, "")) for name in list(rows[0])] + ["2nd"] * doubled for row in rows),
    ]
    special = {delimiter, '"', "\n", "\r"}
    quoted = [
        ['"' + cell.replace('"', '""') + '"' if special & set(cell) else cell for cell in line]
        for line in table
    ]
    if rng.random() < 0.1:
        quoted[rng.randrange(len(quoted))].pop()
    return "".join(delimiter.join(line) + rng.choice(["\n", "\r\n"]) for line in quoted)


def _table(rows: list[dict[str, Any]], rng: random.Random) -> pyarrow.Table:
    names, columns = list(FIELDS), [pyarrow.array([row[name] for row in rows]) for name in FIELDS]
    for _ in range(rng.randrange(3)):
        columns[rng.randrange(len(columns))] = rng.choice(COLUMNS)
    if rng.random() < 0.1:
        names[rng.randrange(len(names))] = rng.choice(names)
    return pyarrow.table(columns, names=names)


def _damage(content: bytes, rng: random.Random) -> bytes:
    """Return damaged or recoded bytes of a file."""
    way, at = rng.randrange(5), rng.randrange(len(content) + 1)
    if way == 0:
        damaged = bytearray(content)
        for _ in range(rng.randrange(1, 6) if content else 0):
            damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        return bytes(damaged)
    if way == 1:
        return content[:at]
    if way == 2:
        return (
            content[:at]
            + rng.choice([rng.randbytes(3), b"\0", b'"', b"\n", b"\r", b",", b"[", b"\xe2\x80\xa8"])
            + content[at:]
        )
    if way == 3:
        return content[:at] + content[at + rng.randrange(1, 9) :]
    encoding = rng.choice(
        ["utf-16", "utf-16-le", "utf-32", "utf-7", "latin-1", "cp1252", "utf-8-sig", "shift-jis"]
    )
    return content.decode("utf8", "replace").encode(encoding, "replace")


def make_case(seed: int, number: int) -> Case:
    """Return a case; equal numbers give equal cases."""
    rng = random.Random(f"{seed}-{number}")
    kind, rows = rng.choice(KINDS), copy.deepcopy(ROWS)
    doubled = rng.random() < 0.1
    if kind == "parquet":
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(_table(rows, rng), sink)
        content = sink.getvalue().to_pybytes()
        return Case(kind, _damage(content, rng) if rng.random() < 0.5 else content)
    more = {"list": (SURROGATE, *OBJECTS), "frame": OBJECTS, "csv": (), "tsv": ()}
    choices = (*TEXTS, *VALUES, *more.get(kind, (SURROGATE, LONG_NUMBER, NESTED, HUGE)))
    for _ in range(rng.randrange(3)):
        rng.choice(rows)[rng.choice(FIELDS)] = rng.choice(choices)
    if kind == "list":
        return Case(kind, rows)
    if kind == "frame":
        frame = pandas.DataFrame(rows)
        return Case(
            kind, pandas.concat([frame, frame[[rng.choice(FIELDS)]]], axis=1) if doubled else frame
        )
    if kind in {"csv", "tsv"}:
        text = _delimited(rows, rng, "," if kind == "csv" else "\t", doubled)
    else:
        objects = [_object(row, rng, doubled and rng.random() < 0.5) for row in rows]
        text = "\n".join(objects) if kind == "jsonl" else "[" + ", ".join(objects) + "]"
    content = text.encode("utf8")
    return Case(kind, _damage(content, rng) if rng.random() < 0.4 else content)


# The independent reading


def _split_cells(text: str, delimiter: str) -> list[list[str]]:
    """Return the rows of a delimited text by RFC 4180."""
    rows: list[list[str]] = [[]]
    cell, i, is_open = "", 0, False
    while i < len(text):
        char = text[i]
        if not cell and char == '"' and not is_open:
            end = i + 1
            while True:
                end = text.find('"', end)
                if end < 0:
                    raise RefusedError("a quoted cell does not end")
                if text[end + 1 : end + 2] != '"':
                    break
                end += 2
            cell, i, is_open = text[i + 1 : end].replace('""', '"'), end + 1, True
            if i < len(text) and text[i] not in {delimiter, "\n", "\r"}:
                raise RefusedError("text after a quoted cell")
        elif char in {delimiter, "\n", "\r"}:
            if char == delimiter or rows[-1] or cell or is_open:
                rows[-1].append(cell)
            if char != delimiter:
                rows.append([])
            cell, is_open, i = "", False, i + 1
        else:
            cell, i = cell + char, i + 1
    if rows[-1] or cell or is_open:
        rows[-1].append(cell)
    return [row for row in rows if row]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise RefusedError("a name repeats")
    return dict(pairs)


_KNOWN = {*FIELDS, "answer", "prop", "s_pop", "answer_type", "property"} - {"note"}


_READ = {*_KNOWN, "clean", "corrupted"}


def _delimiter(text: str, usual: str) -> str:
    """Return the delimiter of a table: the usual one, unless the header has a known column, or
    several columns, with one other alone.
    """
    sizes: dict[str, int] = {}
    known: list[str] = []
    header = text.lstrip("\r\n").partition("\n")[0]
    for one in (",", ";", "\t", "|"):
        try:
            names = _split_cells(header, one)[0]
        except (RefusedError, IndexError):
            names = []
        sizes[one] = len(names)
        if _KNOWN & {_bare(name).casefold() for name in names}:
            known.append(one)
    if usual not in known and len(known) == 1:
        return known[0]
    if known:
        return usual
    others = [one for one, size in sizes.items() if one != usual and size > 1]
    return others[0] if sizes[usual] == 1 and len(others) == 1 else usual


def _records(case: Case) -> list[dict[str, Any]]:
    """Return the rows of an input as dictionaries."""
    if case.kind == "list":
        return case.content
    if case.kind == "frame":
        names = list(case.content.columns)
        return [
            _once([(name, case.content.iat[i, j]) for j, name in enumerate(names)])
            for i in range(len(case.content))
        ]
    if case.kind == "parquet":
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(case.content))
        _once([(name, None) for name in file.schema_arrow.names])
        # Columns that no schema names, such as ``note``, are not decoded.
        table = file.read(columns=[name for name in file.schema_arrow.names if name in _READ])
        table.validate(full=True)
        return [
            _once([(n, table.column(j)[i].as_py()) for j, n in enumerate(table.column_names)])
            for i in range(len(table))
        ]
    has_mark = case.content[:2] in (b"\xff\xfe", b"\xfe\xff")
    encoding = "utf-16" if has_mark else "utf8"
    if case.content[:4] in (b"\xff\xfe\0\0", b"\0\0\xfe\xff"):
        encoding = "utf-32"
    text = case.content.decode(encoding).removeprefix("\ufeff")
    if "\0" in text[:2]:
        raise RefusedError("null characters")
    if case.kind in {"csv", "tsv"}:
        header, *lines = _split_cells(text, _delimiter(text, "," if case.kind == "csv" else "\t"))
        if any(len(line) != len(header) for line in lines):
            raise RefusedError("rows of unequal length")
        return [
            _once([(name, cell) for name, cell in zip(header, line, strict=True) if name])
            for line in lines
        ]
    if case.kind == "json":
        rows = json.loads(text, object_pairs_hook=_once)
        rows = rows["data"] if isinstance(rows, dict) else rows
    else:
        rows = [
            json.loads(line, object_pairs_hook=_once) for line in text.split("\n") if line.strip()
        ]
    if not all(isinstance(row, dict) for row in rows):
        raise RefusedError("a row is no object")
    return rows


def _missing(value: object) -> bool:
    return (
        value is None
        or value is pandas.NaT
        or (isinstance(value, float | Decimal) and value != value)
    )


def _bare(text: str) -> str:
    """Return a text without white space at its ends and characters of width zero."""
    for invisible in "\u200b\u2060\ufeff\u00ad":
        text = text.replace(invisible, "")
    inner = text.strip().strip("\u200e\u200f")
    return inner if inner == text else _bare(inner)


def _text(value: object) -> str:
    """Return a cell as text, empty if missing."""
    if _missing(value):
        return ""
    if isinstance(value, str):
        return _bare(value)
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1.7e308:
        raise RefusedError(f"{type(value).__name__} is no text")
    return str(value).removesuffix(".0") if abs(value) < 1e15 else str(int(value))


def _leaves(value: object) -> list[str]:
    return (
        [value]
        if isinstance(value, str)
        else [leaf for item in value for leaf in _leaves(item)]
        if isinstance(value, list)
        else []
    )


def _answers(value: Any) -> list[str]:
    if isinstance(value, str) and value.strip()[:1] in {"[", "{"}:
        text = value.strip()
        try:
            value = json.loads(text, object_pairs_hook=_once)
        except json.JSONDecodeError:
            try:
                literal = ast.literal_eval(text)
                if all(leaf in text or repr(leaf)[1:-1] in text for leaf in _leaves(literal)):
                    value = literal
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                pass
            if isinstance(value, str) and text[1:].lstrip()[:1] in {'"', "'", "[", "{"}:
                raise RefusedError("a damaged list") from None
    if isinstance(value, dict) and {"value", "aliases"} & set(value):
        more = value.get("aliases") or []
        value = [value.get("value"), *(more if isinstance(more, list) else [more])]
    items = (
        list(value)
        if isinstance(value, list | tuple) or type(value).__name__ == "ndarray"
        else [value]
    )
    return list(dict.fromkeys(filter(None, map(_text, items))))


def expected_rows(case: Case) -> list[tuple[str, list[str], str, float | None]]:
    """Return question, answers, relation and popularity of each usable row; raise an exception for
    input without one meaning.
    """
    rows, records = [], _records(case)
    names = {
        name
        for row in records
        for name, cell in row.items()
        if not _missing(cell) and not (isinstance(cell, str) and not cell)
    }
    for fields in (("question",), ("answers", "answer")):
        near = [name for name in names if _bare(str(name)).casefold() in fields]
        if len(near) == 1:
            records = [
                {_bare(n).casefold() if n == near[0] else n: cell for n, cell in row.items()}
                for row in records
            ]
    for row in records:
        ids, _ = _text(row.get("id")), _text(row.get("subject"))
        question, relation = (
            _text(row.get("question")),
            _text(row.get("relation")) or _text(row.get("prop")),
        )
        answers = _answers(row.get("answers")) or _answers(row.get("answer"))
        views = _text(row.get("popularity")) or _text(row.get("s_pop"))
        popularity = float(views) if views else None
        if popularity is not None and not math.isfinite(popularity):
            raise RefusedError("popularity is not finite")
        texts = "".join([ids, question, relation, *answers])
        unusable = any(
            (char < " " and char not in "\t\n\r")
            or ("\x7f" <= char < "\xa0" and char != "\x85")
            or "\ud800" <= char <= "\udfff"
            for char in texts
        )
        unusable |= any(
            "\u202a" <= char <= "\u202e" or "\u2066" <= char <= "\u206f" or char >= "\U000e0000"
            for char in texts
        )
        if (
            1 < len(question) <= 100_000
            and answers
            and not unusable
            and question[0].strip()
            and question[-1].strip()
        ):
            rows.append((question, answers, relation, popularity))
    return rows


# Running cases


def _ends(question: str) -> tuple[tuple[int, int], tuple[int, int]] | None:
    return ((0, 1), (len(question) - 1, len(question))) if len(question) > 1 else None


def run_case(case: Case, folder: Path) -> Outcome:
    """Read a case with ``load_qa`` and with the independent reading."""
    source = case.content
    if case.kind in FILES:
        source = folder / f"case.{case.kind}"
        source.write_bytes(case.content)
    try:
        expected, why = expected_rows(case), ""
    except Exception as error:  # noqa: BLE001 - whatever stops the simple reading, the input has no reading
        expected, why = None, f"{type(error).__name__}: {error}"
    try:
        data = load_qa(source, spans=_ends)
    except AnchorlensError as error:
        message = str(error)
        is_clear = 10 < len(message) < 1000 and message.isprintable()
        return Outcome(
            "clear error" if is_clear else "several lines", message, expected is not None
        )
    except Exception as error:  # noqa: BLE001 - the fuzzer counts these
        return Outcome(
            "raw",
            f"{type(error).__name__}: {str(error)[:200]} in"
            f" {traceback.extract_tb(error.__traceback__)[-1]}",
        )
    got = [(e.question, list(e.answers), e.relation or "", e.popularity) for e in data.examples]
    if expected is None:
        return Outcome("silently other", f"read although {why[:200]}: {str(got)[:300]}")
    return (
        Outcome("right")
        if _equal(got, expected)
        else Outcome("silently other", f"{str(got)[:300]} is not {str(expected)[:300]}")
    )


def _equal(got: list[tuple], expected: list[tuple]) -> bool:
    """Compare rows; rows of one question share their answers."""
    if len(got) != len(expected):
        return False
    twice = {
        question
        for question, n in Counter(" ".join(row[0].casefold().split()) for row in expected).items()
        if n > 1
    }
    for (question, answers, *rest), (question2, answers2, *rest2) in zip(
        got, expected, strict=True
    ):
        own = (
            answers[: len(answers2)] if " ".join(question.casefold().split()) in twice else answers
        )
        if (question, own, rest) != (question2, answers2, rest2):
            return False
    return True


def fuzz(seed: int, numbers: range) -> dict[int, Outcome]:
    """Run cases; return the outcome of each."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {number: run_case(make_case(seed, number), Path(name)) for number in numbers}


def main() -> None:
    """Print the number of cases by outcome, and the first cases of each bad kind."""
    parser = argparse.ArgumentParser(description="Read mutated question files.")
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--show", type=int, default=10, help="number of failed cases to print")
    args = parser.parse_args()
    if args.only is not None:
        print(
            make_case(args.seed, args.only),
            *fuzz(args.seed, range(args.only, args.only + 1)).values(),
            sep="\n",
        )
        return
    outcomes = fuzz(args.seed, range(args.cases))
    counts = Counter(outcome.kind for outcome in outcomes.values())
    for kind in ("right", "clear error", "several lines", "raw", "silently other"):
        print(f"{kind:15} {counts[kind]:6}")
    strict = sum(
        outcome.kind == "clear error" and outcome.is_readable for outcome in outcomes.values()
    )
    print(f"{strict} of the clear errors refuse an input that the independent reading accepts")
    failed = [
        (number, outcome)
        for number, outcome in outcomes.items()
        if outcome.kind not in {"right", "clear error"}
    ]
    for number, outcome in failed[: args.show]:
        print(number, make_case(args.seed, number).kind, outcome.kind, outcome.detail, sep=" | ")


if __name__ == "__main__":
    main()
