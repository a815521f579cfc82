"""``verify_run``: is a run directory what was written, and do its numbers come out again?

First what needs no measuring: the bytes of every file, then the hashes of weights, tokenizer, question set and code. Then random
cells are measured again, by the oracle, from the inputs that the directory holds: neither question set nor random draws are needed.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pandas as pd

from anchorlens.engine.cost import free_memory
from anchorlens.engine.reference import Oracle
from anchorlens.errors import InputError, RunError
from anchorlens.kinds import as_whole, described
from anchorlens.models.adapter import Adapter
from anchorlens.models.card import ModelCard, card_of
from anchorlens.models.load import as_hooked
from anchorlens.progress import progress
from anchorlens.protocols.loading import load_run
from anchorlens.protocols.registry import protocol_of
from anchorlens.protocols.specification import Specification
from anchorlens.protocols.trust import allowed_gap, measured_twice, place_of
from anchorlens.protocols.written import Written
from anchorlens.questions.datasets import QAData, load_qa
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.checksums import SUMS, changed_files
from anchorlens.runs.provenance import code_sha256, versions
from anchorlens.runs.schema import P, answer_first
from anchorlens.runs.store import read_record

# What is found of one thing.
MATCH, MISMATCH, DIFFERS, NOT_CHECKED = "match", "mismatch", "differs", "not checked"
# The user's own code that decides a cell's number even where all inputs are known.
_OWN = ("readout", "site")
_SAMPLE = "sample:"

Given: TypeAlias = "Any | Mapping[str, Any] | None"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        what: ``files``, ``weights``, ``tokenizer``, ``data``, ``code`` or ``cells``, and of what.
        found: ``match``, ``mismatch``, ``not checked``, or ``differs`` (another version of the code, which may give the same
            numbers).
        said: More about it.
    """

    what: str
    found: str
    said: str


@dataclass(frozen=True)
class Verification:
    """What was found of a run; frozen.

    Attributes:
        path: The run directory.
        checks: In the order in which they were made.
    """

    path: Path
    checks: tuple[Check, ...]
    _cells: pd.DataFrame = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether nothing was a mismatch; what was not checked is not counted."""
        return all(check.found != MISMATCH for check in self.checks)

    def table(self) -> pd.DataFrame:
        """One row a check."""
        return pd.DataFrame([vars(check) for check in self.checks])

    def cells(self) -> pd.DataFrame:
        """The cells that were measured again.

        Returns:
            The columns of ``samples.parquet``, ``value_before_again``, ``value_after_again``, ``delta_p_again``, and ``off``: the
            largest difference of the three, in points. Empty where none was measured.
        """
        return self._cells[answer_first(self._cells)].copy()

    def __repr__(self) -> str:
        said = "\n".join(f"  {one.what}: {one.found}; {one.said}" for one in self.checks)
        return f"Verification of {self.path}: {MATCH if self.ok else MISMATCH}\n{said}"


def verify_run(
    path: "str | os.PathLike[str]",
    *,
    cells: int = 20,
    seed: int = 0,
    model: Given = None,
    data: "QAData | Mapping[str, QAData] | None" = None,
    device: str | None = None,
    stream: bool = False,
    n_devices: int = 1,
    own: Mapping[str, Callable[..., Any]] | None = None,
    show_progress: bool = True,
) -> Verification:
    """Check a run directory: its bytes, what it was measured with, and random cells of it, measured again by the oracle.

    Args:
        path: The run directory.
        cells: How many cells are measured again, of all sweeps together; 0: none.
        seed: Draws them.
        model: The model, or models by the name that the run has for them, as :func:`anchorlens.load_model` takes them. Left out,
            they are loaded by their names; a model from a directory or of your own has to be given.
        data: The question set, or question sets by name, to compare their hashes. The embedded samples need not be given.
        device: Where the model is put.
        stream: Read the weights of models that are loaded here layer by layer, for those larger than memory (docs/streaming.md).
        n_devices: Over how many devices it is spread.
        own: Functions of your own that the run was made with, by argument: ``{"readout": ..., "site": ...}``.
        show_progress: Show a bar.

    Returns:
        What was found. A difference is no error.

    Raises:
        RunError: It is no run, or its tables cannot be read at all.
        InputError: An argument is wrong, or the model has to be given.
    """
    if (count := as_whole(cells)) is None or count < 0:
        raise InputError(f"cells takes a whole number from 0 on; got {described(cells)}.")
    folder = Path(path)
    differing, besides = changed_files(folder)
    said = f"{'; '.join(differing)}" if differing else "every byte is as it was written"
    checks = [Check("files", MISMATCH if differing else MATCH, said + _besides(besides))]
    try:
        record, results = read_record(folder), load_run(folder)
        checks += _code(record)
    except Exception as why:
        # Damage that SHA256SUMS tells of is what was asked for, whatever it does to a reader; all else is no run.
        if not differing or not (folder / SUMS).is_file():
            raise
        return Verification(folder, (*checks, Check("cells", NOT_CHECKED, f"the run cannot be read: {why}")), pd.DataFrame())
    checks += _data(results, data)
    drawn = _drawn(results, count, seed)
    measured: list[pd.DataFrame] = []
    with progress(f"verify {folder.name}", max(1, sum(map(len, drawn))), "cell", show=show_progress and count > 0) as bar:
        for name, group in _by_model(results, drawn):
            adapter, found = _model(name, group[0][0], model, device, n_devices, stream)
            checks += found
            if any(one.found == MISMATCH for one in found):
                checks.append(Check(f"cells: {name}", NOT_CHECKED, "the model is another one"))
                continue
            for result, chosen in group:
                if chosen.empty:
                    continue
                try:
                    again = _again(adapter, result, chosen, own or {})
                except (RunError, LookupError, ValueError, AssertionError) as why:
                    if not differing:
                        raise
                    checks.append(Check(_of(result), NOT_CHECKED, f"the inputs cannot be read: {why}"))
                    continue
                bar.advance(len(chosen))
                measured.append(again)
                checks.append(_cells(result, again, len(chosen), allowed_gap(adapter)))
    frame = pd.concat(measured, ignore_index=True) if measured else pd.DataFrame()
    return Verification(folder, tuple(checks), frame)


def _besides(names: Sequence[str]) -> str:
    return f"; no part of the run: {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}" if names else ""


def _code(record: Mapping[str, Any]) -> list[Check]:
    """Versions of what decides a number; another one is no error, but says where a difference may come from."""
    now = {"code_sha256": code_sha256(), **versions()}
    found: list[str] = []
    for sweep in record["sweeps"]:
        was = sweep["environment"]
        told = {"code_sha256": was.get("code_sha256"), **was["versions"]}
        found += [
            f"{name} {_short(told.get(name))} then, {_short(value)} now"
            for name, value in now.items()
            if told.get(name) != value
        ]
    said = "; ".join(dict.fromkeys(found))
    return [Check("code", DIFFERS if said else MATCH, said or f"anchorlens {now['anchorlens']}, and the same packages")]


def _short(value: object) -> str:
    return str(value)[:12]


def _data(results: Sequence[SweepResult], given: "QAData | Mapping[str, QAData] | None") -> list[Check]:
    found: list[Check] = []
    for name, record in {result.dataset: result.record["data"] for result in results}.items():
        qa = given.get(name) if isinstance(given, Mapping) else given
        if qa is None and str(record["source"]).startswith(_SAMPLE):
            qa = load_qa(name)
        if qa is None:
            said = f"{record['source']} is not at hand (give data=); the cells need only what the run directory holds"
            found.append(Check(f"data: {name}", NOT_CHECKED, said))
            continue
        same = qa.sha256 == record["sha256"]
        said = (
            "the rows that were measured" if same else f"other rows: {_short(record['sha256'])} then, {_short(qa.sha256)} now"
        )
        found.append(Check(f"data: {name}", MATCH if same else MISMATCH, said))
    return found


def _drawn(results: Sequence[SweepResult], count: int, seed: int) -> list[pd.DataFrame]:
    """Random cells of each sweep: of every one first, as long as there are enough."""
    rng = Random(f"{seed}:verify")
    cells = [result.samples().query("quantity == @quantity", local_dict={"quantity": P}) for result in results]
    takes = [0] * len(results)
    order = rng.sample(range(len(results)), len(results))
    for i in range(min(count, sum(map(len, cells)))):
        free = [k for k in order if takes[k] < len(cells[k])]
        takes[free[i % len(free)]] += 1
    return [own.iloc[sorted(rng.sample(range(len(own)), n))] for own, n in zip(cells, takes, strict=True)]


def _by_model(
    results: Sequence[SweepResult], drawn: Sequence[pd.DataFrame]
) -> Iterator[tuple[str, list[tuple[SweepResult, pd.DataFrame]]]]:
    """Sweeps with their cells, those of one model together."""
    groups: dict[str, list[tuple[SweepResult, pd.DataFrame]]] = {}
    for result, cells in zip(results, drawn, strict=True):
        groups.setdefault(result.model, []).append((result, cells))
    yield from groups.items()


def _model(
    name: str, result: SweepResult, given: Given, device: str | None, n_devices: int, stream: bool
) -> tuple[Adapter, list[Check]]:
    """The model that was measured, and whether it is that one."""
    was = result.record["model"]
    meant = given.get(name) if isinstance(given, Mapping) else given
    if meant is None:
        if was["source"] not in ("packaged", "hub"):
            raise InputError(
                f"{name} was no model that loads by its name ({was['source']}): give it, with --model or model=, as a directory, a "
                "file or a live model."
            )
        meant = name
    files = isinstance(meant, (str, os.PathLike))
    # A packaged model has one release, a directory none.
    revision = was["revision"] if meant == name and was["source"] == "hub" else None
    how: dict[str, Any] = {
        "device": device, "n_devices": n_devices, "dtype": was["dtype"], "revision": revision, "stream": stream
    }  # fmt: skip
    hooked = as_hooked(meant, **how) if files else as_hooked(meant)
    card: ModelCard = card_of(hooked)
    found = [
        _hash(f"weights: {name}", was["weights_sha256"], card.weights_sha256),
        _hash(f"tokenizer: {name}", was["tokenizer_sha256"], card.tokenizer_sha256),
    ]
    return Adapter(hooked), found


def _hash(what: str, was: str | None, now: str | None) -> Check:
    same = was == now or (was in (None, "None") and now is None)
    return Check(what, MATCH if same else MISMATCH, _short(now) if same else f"{_short(was)} then, {_short(now)} now")


def _specification(result: SweepResult, own: Mapping[str, Callable[..., Any]]) -> Specification:
    """What was asked for. Code of the user's own that only chose inputs is not needed any more: these are written down."""
    config = dict(result.record["config"])
    theirs = {*config.pop("own_code", {}), *(n for n, v in config.items() if isinstance(v, str) and v.startswith("callable:"))}
    needed = sorted(theirs & set(_OWN) - own.keys())
    if needed:
        raise InputError(
            f"This run was made with code of your own ({', '.join(needed)}), which no directory holds: verify it in Python with "
            f"own={{{needed[0]!r}: ...}}, or take cells=0."
        )
    kept = {name: value for name, value in config.items() if name not in theirs and name != "probes"}
    spec = protocol_of(result.protocol.name).spec.from_config(kept | {name: own[name] for name in own if name in theirs})
    code = result.record["config"].get("own_code", {})
    other = [name for name, told in spec.own_code().items() if code.get(name) not in (None, told)]
    if other:
        raise InputError(f"own: {', '.join(other)} is other code than the run was made with.")
    return spec


def _again(adapter: Adapter, result: SweepResult, chosen: pd.DataFrame, own: Mapping[str, Callable[..., Any]]) -> pd.DataFrame:
    """Cells of one sweep, measured again."""
    protocol, spec = protocol_of(result.protocol.name), _specification(result, own)
    ready = protocol.restored(adapter, spec, Written(result))
    budget = free_memory(adapter.devices) // 2
    both = measured_twice(protocol, ready, spec, Oracle(adapter), result.samples(), chosen, budget)
    gaps = [100 * (both[f"value_{when}"] - both[f"value_{when}_again"]).abs() for when in ("before", "after")]
    gaps.append((both["delta_p"] - both["delta_p_again"]).abs())
    return both.assign(off=pd.concat(gaps, axis=1).max(axis=1, skipna=False))


def _of(result: SweepResult) -> str:
    return f"cells: {result.protocol.name} {result.model} {result.dataset}"


def _cells(result: SweepResult, again: pd.DataFrame, n: int, allowed: float) -> Check:
    what = _of(result)
    off = again[~(again["off"] <= allowed)]  # NaN too
    if off.empty:
        return Check(
            what,
            MATCH,
            f"{n} drawn, {len(again)} measured again, at most {again['off'].max():.2g} points off (allowed: {allowed:.2g})",
        )
    worst = off.loc[off["off"].idxmax() if off["off"].notna().any() else off.index[0]].to_dict()
    return Check(
        what,
        MISMATCH,
        f"{len(off)} of {len(again)} differ, by {worst['off']:.2g} points (allowed: {allowed:.2g}) at {place_of(worst)}",
    )


__all__ = ["DIFFERS", "MATCH", "MISMATCH", "NOT_CHECKED", "Check", "Verification", "verify_run"]
