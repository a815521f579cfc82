"""Contents of a report besides figures and rows: findings, tables, dropped rows, provenance, study
files, and one-line definitions of the words that it uses.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from anchorlens.display import minus
from anchorlens.errors import AnchorlensError
from anchorlens.figures import labels
from anchorlens.figures.labels import CONTROLS
from anchorlens.figures.palette import lighten
from anchorlens.protocols.registry import specification_of
from anchorlens.protocols.specification import tomllib
from anchorlens.results.adjusted_claims import adjust_claims, adjustment_text, claim_rows
from anchorlens.results.findings import (
    BEYOND_CHANGE,
    BEYOND_POSITIONS,
    DONORS_ANSWER,
    NOT_DETECTED,
    NULL_MOVES,
    REVERSED,
    SPECIFIC,
    STANDS,
    Findings,
)
from anchorlens.results.sweep import SweepResult
from anchorlens.results.vocabulary import metric_name
from anchorlens.runs.schema import leading_metric

# A TOML list of numbers with one number per line.
_LINES = re.compile(r"\[\n((?: +-?[\d.]+,\n)+)\]")
_NUMBER = re.compile(r"[-+−]?\d|[-–]$")

# Settings that tell sweeps apart, at most.
_MOST_SETTINGS = 3
_USUAL_DIRECTIONS = {"swap": "noising", "patch": "denoising"}


@dataclass(frozen=True)
class Table:
    """Table of a report, optionally with column heads."""

    rows: list[list[str]]
    columns: list[str]
    caption: str = ""

    @property
    def numbers(self) -> list[bool]:
        """Whether each column holds numbers."""
        columns = zip(*self.rows, strict=True)
        return [all(map(_NUMBER.match, column)) for column in columns]


def findings_table(findings: Findings) -> Table:
    """Return the table of the findings; it may be empty."""
    return Table([list(map(minus, row)) for row in findings.rows], list(findings.columns))


def claims_table(results: Sequence[SweepResult]) -> Table:
    """Return the claims of several sweeps, adjusted over the sweeps, with a caption; empty for one
    sweep.
    """
    if len(results) == 1:
        return Table([], [])
    claims = adjust_claims(results)
    text = adjustment_text(claims, results)
    heads, rows = claim_rows(claims) if text else ([], [])
    shown: list[list[str]] = []
    for row in rows:
        cells = map(str, row)
        shown.append(list(map(minus, cells)))
    return Table(shown, heads, minus(text))


def words_of(results: Sequence[SweepResult], captions: Sequence[str]) -> list[tuple[str, str]]:
    """Return the words of findings, tables and captions with one-line definitions."""
    parts = [*captions]
    for result in results:
        samples = result.samples(all_columns=True)
        head = f"{metric_name(leading_metric(samples))} before"
        parts += [result.verdict, head, *samples["control"].unique()]
    for table in tables_of(results):
        parts += [table.caption, *table.columns]
        for row in table.rows:
            parts += row
    return define_words("\n".join(parts))


def names_of(results: Sequence[SweepResult]) -> list[str]:
    """Return the names of the sweeps of a report; those of one protocol, model and data set are
    told apart by the settings that differ.
    """
    plain = [f"{kind_of(one)}: {one.model} on {one.dataset}" for one in results]
    settings = distinguishing_settings(results)
    return [f"{name} ({own})" if own else name for name, own in zip(plain, settings, strict=True)]


def colours_of(
    result: SweepResult, anchors: Sequence[str], sets: Sequence[str]
) -> dict[str, list[str]]:
    """Return the colours of the anchors' curves, for a light and a dark page.

    Args:
        result: Sweep of the curves.
        anchors: Anchors whose curves are drawn.
        sets: Data sets of all sweeps of the page.
    """
    found = labels.anchor_colours(result.dataset, result.protocol.name, anchors, beside=sets)
    return {anchor: [colour, lighten(colour)] for anchor, colour in found.items()}


def distinguishing_settings(results: Sequence[SweepResult]) -> list[str]:
    """Return the settings that tell each sweep from others of the same protocol, model and data
    set, as few as are enough; empty where there is no other.
    """
    groups: dict[tuple[str, str, str], list[int]] = {}
    for number, one in enumerate(results):
        groups.setdefault((kind_of(one), one.model, one.dataset), []).append(number)
    texts = [""] * len(results)
    for alike in groups.values():
        configs = [results[number].record["config"] for number in alike]
        differing = _settings_that_differ(configs)
        rows: list[list[str]] = []
        for own in configs:
            words = [labels.words_of(name, str(own.get(name))) for name in differing]
            rows.append(words)
        n = next((n for n in range(_MOST_SETTINGS) if _are_distinct(rows, n)), _MOST_SETTINGS)
        for place, (number, row) in enumerate(zip(alike, rows, strict=True), start=1):
            alone = "" if len(alike) == 1 else f"run {place}"
            texts[number] = ", ".join(row[:n]) or alone
    return texts


def _settings_that_differ(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the texts and numbers in which the configurations differ."""
    differing: list[str] = []
    for name, value in configs[0].items():
        if not isinstance(value, str | int | float):
            continue
        texts = {str(config.get(name)) for config in configs}
        if len(texts) > 1:
            differing.append(name)
    return differing


def _are_distinct(rows: Sequence[Sequence[str]], n: int) -> bool:
    """Return whether the first ``n`` texts of each row tell the rows apart."""
    return len({tuple(row[:n]) for row in rows}) == len(rows)


def kind_of(result: SweepResult) -> str:
    """Return the title of a sweep's protocol, with the direction unless it is the usual one."""
    title = result.protocol.title
    direction = result.record["config"].get("direction", "")
    usual = _USUAL_DIRECTIONS.get(result.protocol.name, direction)
    more = "" if direction == usual else f", {direction}"
    return f"{title[0].upper()}{title[1:]}{more}"


def about(results: Sequence[SweepResult]) -> str:
    """Return a line that summarises the contents of a report."""
    kinds = dict.fromkeys(kind_of(result) for result in results)
    n_models = len({result.model for result in results})
    n_sets = len({result.dataset for result in results})
    n_examples = sum(len(result.example_ids) for result in results)
    parts = [", ".join(kinds)]
    if n_models > 1:
        parts.append(_count(n_models, "model"))
    if n_sets > 1:
        parts.append(_count(n_sets, "data set"))
    parts += [_count(len(results), "sweep"), _count(n_examples, "example")]
    return " · ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def tables_of(results: Sequence[SweepResult]) -> list[Table]:
    """Return the command line's table of each protocol, without empty columns and those that are
    equal for all sweeps.
    """
    groups: dict[str, list[SweepResult]] = {}
    for result in results:
        groups.setdefault(result.protocol.name, []).append(result)
    tables: list[Table] = []
    for group in groups.values():
        caption, frame = group[0].protocol.table(group)
        settings = distinguishing_settings(group)
        if any(settings):
            parts = [one.protocol.table([one])[1] for one in group]
            for part, text in zip(parts, settings, strict=True):
                part.insert(0, "settings", text)
            frame = pd.concat(parts, ignore_index=True)
        names = {"model": {r.model for r in results}, "data set": {r.dataset for r in results}}
        equal = [column for column in names if len(names[column]) == 1]
        frame = frame.drop(columns=equal, errors="ignore").dropna(axis=1, how="all")
        if frame.empty:  # no mean over pairs
            continue
        rows = [list(map(_cell, row)) for row in frame.itertuples(index=False, name=None)]
        columns = [str(column).replace("_", " ") for column in frame.columns]
        tables.append(Table(rows, columns, caption))
    return tables


def _cell(value: Any) -> str:
    if pd.isna(value):
        return "–"
    return format_value(value) if isinstance(value, float) else minus(str(value))


def format_value(value: float) -> str:
    """Return a number with three significant digits, without an exponent where zeros are few.

    >>> [format_value(one) for one in (-73.271, 0.0007395, 1234.5, 0.0, 2e-6)]
    ['−73.3', '0.00074', '1234', '0', '2e-06']
    """
    text = f"{value + 0.0:.3g}"  # -0.0 is 0
    if abs(value) >= 100:
        text = f"{value:.0f}"
    elif 0 < abs(value) < 0.01:
        text = f"{value:.2g}"
    return minus(text)


def count_drops(results: Sequence[SweepResult]) -> Table:
    """Return the number of dropped rows by sweep and reason, with an example of each."""
    rows: list[list[str]] = []
    for result, name in zip(results, names_of(results), strict=True):
        examples = result.examples(all_columns=True)
        gone = examples[examples["role"] == "dropped"]
        for reason, group in sorted(gone.groupby("drop_reason"), key=lambda pair: -len(pair[1])):
            one = group["question"].iloc[0]
            why = group["drop_detail"].iloc[0]
            example = f"{one} ({why})" if why else one
            rows.append([name, str(reason), str(len(group)), example])
    columns = ["sweep", "reason", "rows", "example"]
    if len(results) == 1:
        return Table([row[1:] for row in rows], columns[1:])
    return Table(rows, columns)


def provenance_by_section(result: SweepResult) -> dict[str, dict[str, str]]:
    """Return the provenance by section."""
    record = result.record
    shown = ("config", "model", "data", "plan", "checks", "noise", "counts", "environment")
    facts = {"run": {"run_id": result.run_id}}
    if "clock" in record:
        facts["run"]["clock"] = record["clock"]
    for name in shown:
        if record.get(name):
            facts[name] = {key: _to_text(value) for key, value in record[name].items()}
    return facts


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]} …"


def command_of(result: SweepResult) -> str:
    """Return the command that measured a sweep."""
    return str(result.record.get("environment", {}).get("command", ""))


def studies_of(results: Sequence[SweepResult]) -> list[str]:
    """Return study files that repeat the sweeps, one for each choice of questions.

    Sweeps of data in memory have none.
    """
    groups: dict[str, list[SweepResult]] = {}
    for result in results:
        of = result.record["data"]
        choice = json.dumps([of["limit"], of["seed"], of.get("spans"), of.get("reading")])
        groups.setdefault(choice, []).append(result)
    return [text for text in map(_study, groups.values()) if text]


def _study(results: Sequence[SweepResult]) -> str:
    import tomli_w

    models = list(dict.fromkeys(result.model for result in results))
    data = {result.dataset: result.record["data"] for result in results}
    tables: list[dict[str, Any]] = []
    for name, of in data.items():
        kind, _, path = str(of["source"]).partition(":")
        if kind not in ("sample", "file", "hub"):
            return ""
        spans = of.get("spans", "auto")
        table = {
            "name": name,
            "path": path if kind == "file" else None,
            "limit": of["limit"],
            "seed": of["seed"],
        }
        table |= {"spans": None if spans == "auto" else spans, **of.get("reading", {})}
        tables.append({key: value for key, value in table.items() if value is not None})
    protocols: list[dict[str, Any]] = []
    for result in results:
        try:
            spec = specification_of(result.protocol.name).from_config(result.record["config"])
            if "clock" in result.record:
                spec = spec.fix_clock(result.record["clock"])
            fields = tomllib.loads(spec.to_toml())
        except AnchorlensError:
            return ""
        changed = {key: value for key, value in fields.items() if value is not None}
        entry = {"name": result.protocol.name, **changed}
        if entry not in protocols:
            protocols.append(entry)
    text = tomli_w.dumps({"models": models, "data": tables, "protocol": protocols})
    return _LINES.sub(lambda found: f"[{', '.join(found[1].replace(',', ' ').split())}]", text)


_TERMS = {
    "P": "the probability that is read; the caption of the figure names it",
    "ΔP": "100 · (P after the change − P before), in percentage points",
    "P before": "mean P without the change; ΔP cannot fall below −100 · P before",
    "anchor": "a named set of positions at which activations are changed",
    "exact_question": (
        "anchor: the tokens of the question's subject and property; the curve of their swap is"
        " called Q-Anchored swap, in a panel of swaps Q-Anchored"
    ),
    "pre_answer": (
        "anchor: the position that predicts the answer; the curve of its swap is called A-Anchored"
        " swap, in a panel of swaps A-Anchored"
    ),
    "Q-Anchored": (
        "of a knockout: rows whose prediction flips when attention from the question is cut; of a"
        " swap: the anchor exact_question"
    ),
    "A-Anchored": (
        "of a knockout: rows whose prediction does not flip; of a swap: the anchor pre_answer"
    ),
    "donor": "the other question whose activations are patched in",
    "null": "control of a swap: a change that should move P less",
    "placebo": "control of a knockout: a cut of other words",
    "joint": "of a band: it holds at 95 % for all layers and places together",
    "logit_diff": "logit of the right answer minus logit of the wrong one",
    "recovered": (
        "share of the difference between the corrupted (0) and the clean run (1) that the patch"
        " restores"
    ),
    "AUC": "chance that the probe ranks a false answer above a true one; 0.5 is no signal",
    "k*": "layer of the probe at which claims are made, chosen before the test rows are read",
    "interchange accuracy": "share of swaps after which the donor's answer is the most likely one",
    "intraclass correlation": (
        "how alike the rows of a relation, template or donor are: 0 not at all, 1 the same"
    ),
    "regression to the mean": (
        "rows that are chosen by a high value have a lower one when they are measured again"
    ),
    "edge": "what one sender adds to the residual stream, as one receiver reads it",
    "circuit": "a set of edges; all others carry what another prompt gives",
    "stability": "share of resamples of whole groups that select the edge",
    "before": "the metric without the change, averaged over the same rows as the effect",
    "n": (
        "number of rows of the mean: questions of a swap or knockout; groups of pairs, which share"
        " a text or a template, of a patch or edge"
    ),
}
_STATUSES = {
    STANDS: "the band excludes 0, also less each control",
    BEYOND_POSITIONS: "the effect exceeds that of a swap of other positions",
    BEYOND_CHANGE: (
        "the effect exceeds that of a change of the same norm and angle in another direction"
    ),
    DONORS_ANSWER: "the donor's answer becomes more likely than after that change",
    SPECIFIC: "the effect of the row's own state exceeds that of other rows' states",
    NOT_DETECTED: "the band includes 0; this is no evidence of no effect",
    REVERSED: "the band excludes 0 on the side that was not expected",
    NULL_MOVES: "the control accounts for most of the difference",
}


def define_words(text: str) -> list[tuple[str, str]]:
    """Return the words of a report that need a definition, with their definitions.

    Args:
        text: Findings, tables and captions of the page.
    """
    controls = {one.short: f"control: {one.explanation}" for one in CONTROLS.values()}
    found: list[tuple[str, str]] = []
    for word, definition in (_TERMS | controls | _STATUSES).items():
        if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE):
            found.append((word, definition))
    return found
