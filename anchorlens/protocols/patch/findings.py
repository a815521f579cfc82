"""Findings of a patch sweep: a statement for every place at which a cell stands, a table, and
notes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import copysign, floor, isnan, log10

import pandas as pd

from anchorlens.constants import (
    MIN_CLUSTERS,
    MIN_QUESTIONS_FOR_CLAIM,
    MIN_QUESTIONS_FOR_LAYERS,
)
from anchorlens.errors import RunError
from anchorlens.protocols.patch.grid_statistics import EFFECT, LESS_CONTROL, SHARE
from anchorlens.protocols.patch.patch_result import PatchResult
from anchorlens.protocols.patch.placements import OTHER_PAIR
from anchorlens.protocols.patch.standing_cells import (
    Cell,
    Facts,
    controls_without_pairs,
    facts_of,
    p_values_of,
    statuses_of,
)
from anchorlens.results.clusters_text import cluster_note
from anchorlens.results.estimates import (
    LayerEstimate,
    concentration_note,
    format_layers,
    join_with_and,
    name_layers,
)
from anchorlens.results.findings import (
    DESCRIPTION,
    NOT_DETECTED,
    NULL_MOVES,
    STANDS,
    TOO_FEW,
    Finding,
    Findings,
    empty_findings,
)
from anchorlens.results.vocabulary import metric_name, row_words, unit_words

_MOST_ROWS = 8
"""Largest number of rows of the table."""
_MOST_NAMED = 4
"""Largest number of places that are named."""


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """Grid of a sweep with its statuses.

    Attributes:
        result: The sweep.
        contrasts: Contrasts with all columns.
        statuses: Status of every cell.
        effects: Mean effect of every cell.
        p: P-value of every tested cell, the largest over controls.
    """

    result: PatchResult
    contrasts: pd.DataFrame
    statuses: Mapping[Cell, str]
    effects: Facts
    p: Mapping[Cell, float]

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return metric_name(self.result.metric)

    @property
    def standing(self) -> list[Cell]:
        """Cells that stand."""
        return [cell for cell, status in self.statuses.items() if status == STANDS]

    @property
    def controls(self) -> str:
        """Controls in words."""
        words = {
            "other_pair": f"another pair's {self.result.changed_word}",
            "norm_matched": "a change of the same norm and angle in another direction",
        }
        return join_with_and([words[control] for control in self.result.controls])

    def size(self, cell: Cell) -> float:
        """Return the size of the effect of a cell."""
        return abs(self.effects[cell].value)

    def least_p(self, cells: Iterable[Cell]) -> float | None:
        """Return the smallest p-value of some cells; None without one."""
        return min((self.p[cell] for cell in cells if cell in self.p), default=None)

    def largest(self, cell: Cell) -> str:
        """Return the effect of a cell with its band, in words."""
        fact = self.effects[cell]
        unit = unit_words(self.result.unit)
        if isnan(fact.sim_low):
            return f"{fact.value:+.{_digits(fact)}f} {unit} at {self.result.name_cell(*cell)}"
        return f"{_with_band(fact)} {unit} at {self.result.name_cell(*cell)}"


def patch_findings(result: PatchResult) -> Findings:
    """Return a statement for every place at which a cell stands, or for the largest cell."""
    if reason := result.no_change or result.no_mean:
        return empty_findings(f"Nothing is claimed: {reason}")
    contrasts = result.contrasts(all_columns=True)
    effects = facts_of(contrasts, EFFECT, "none")
    if not effects:
        raise RunError("The run is damaged: its contrasts have no effect. Make the run again.")
    grid = _Grid(
        result=result,
        contrasts=contrasts,
        statuses=statuses_of(contrasts, result.noise_floor, result.controls),
        effects=effects,
        p=p_values_of(contrasts),
    )
    if not grid.standing:
        return _nothing_stands(grid)
    if not all(effects[cell].names_layers for cell in grid.standing):
        return _without_names(grid)
    return _name_cells(grid)


def _name_cells(grid: _Grid) -> Findings:
    """Return a statement for every place and direction at which cells stand."""
    result = grid.result
    # Layers of one statement: heads of one number in several layers are different heads; effects of
    # other sign stand apart.
    is_apart = result.by in ("head", "head_position") or not result.has_layers
    places: dict[tuple[str, float], list[int]] = {}
    for place, layer in grid.standing:
        part = layer if is_apart else copysign(1, grid.effects[place, layer].value)
        places.setdefault((place, part), []).append(layer)
    top = max(grid.standing, key=grid.size)
    share = facts_of(grid.contrasts, SHARE, "none")[top]
    larger = _larger_cell(grid, top)
    which = "Largest that stands" if larger else "Largest"
    headline = (
        f"{len(grid.standing)} of {len(grid.effects)} {result.cell_word}s stand:"
        f" {_directions(grid, places)} more than {grid.controls}. {which}: {grid.largest(top)};"
        f" recovered share {share.to_text(share.digits(2), sign=False)} there."
    )
    if larger:
        headline += f" The largest effect, {grid.largest(larger)}, does not stand."
    statements: list[Finding] = []
    for (place, _), layers in places.items():
        cells = [(place, layer) for layer in layers]
        largest = max(cells, key=grid.size)
        own = grid.effects[largest]
        banded = own._replace(low=own.sim_low, high=own.sim_high)
        p = grid.least_p(cells)
        statements.append(
            Finding.of(
                EFFECT,
                STANDS,
                banded,
                layers=tuple(layers),
                layer=largest[1],
                anchor=place,
                p=p,
            )
        )
    statements.sort(key=lambda one: -abs(one.value or 0.0))
    rows = [_row(one, grid.contrasts, result) for one in statements[:_MOST_ROWS]]
    heads = (
        *(
            (result.place_word, "layers", "max layer")
            if result.has_layers
            else (result.place_word,)
        ),
        f"effect [joint 95 %], {unit_words(result.unit)}",
        "recovered",
        *(f"minus {name}" for name in result.controls),
        "p",
    )
    if len(statements) > _MOST_ROWS:
        rest = f"and {len(statements) - _MOST_ROWS} more: contrasts()"
        rows.append((rest, *[""] * (len(heads) - 1)))
    return Findings(tuple(statements), headline, (), tuple(rows), heads, _notes(grid, top))


def _larger_cell(grid: _Grid, top: Cell) -> Cell | None:
    """Return the tested cell with the largest effect if it is larger than that of the largest cell
    that stands; None otherwise.
    """
    tested = [cell for cell, fact in grid.effects.items() if not isnan(fact.sim_low)]
    largest = max(tested, key=grid.size)
    return largest if grid.size(largest) > grid.size(top) else None


def _directions(grid: _Grid, places: Mapping[tuple[str, float], list[int]]) -> str:
    """Return what is patched and whether the metric rises: ``patching A (layer 3) raises
    logit_diff``.
    """
    result = grid.result
    clauses: list[str] = []
    for verb, sign in (("raises", 1), ("lowers", -1)):
        own: dict[tuple[str, float], list[int]] = {}
        for key, layers in places.items():
            effect = grid.effects[key[0], layers[0]]
            if effect.value * sign > 0:
                own[key] = layers
        if own:
            clauses.append(f"{result.change_word} {_where(result, own)} {verb} {grid.metric}")
    return join_with_and(clauses) + (", each" if len(clauses) > 1 else "")


def _without_names(grid: _Grid) -> Findings:
    """Return a statement without places and layers for each direction in which cells stand: there
    are fewer than twenty groups or clusters.
    """
    statements: list[Finding] = []
    verbs: list[str] = []
    for verb, sign in (("raises", 1), ("lowers", -1)):
        cells = [cell for cell in grid.standing if grid.effects[cell].value * sign > 0]
        if not cells:
            continue
        verbs.append(verb)
        fact = grid.effects[cells[0]]
        statements.append(
            Finding(
                EFFECT,
                STANDS,
                n=fact.n,
                n_clusters=fact.n_clusters,
                sentence=f"{EFFECT}: {STANDS}, n = {fact.n}.",
                p=grid.least_p(cells),
            )
        )
    fact = grid.effects[grid.standing[0]]
    words = row_words("patch")
    result = grid.result
    named = f"{result.cell_word}s"
    is_few = fact.n < MIN_QUESTIONS_FOR_LAYERS
    n, of = (fact.n, words.groups) if is_few else (fact.n_clusters, words.clusters)
    effect = f"{verbs[0]} {grid.metric}"
    if len(verbs) > 1:
        effect += f", at others it {verbs[1]} it, each"
    headline = (
        f"At some {named} {result.change_word} {effect} more than {grid.controls}."
        f" {named.capitalize()} are named from {MIN_QUESTIONS_FOR_LAYERS} {of} on; here are {n}."
    )
    top = max(grid.standing, key=grid.size)
    return Findings(tuple(statements), headline, notes=_notes(grid, top))


def _nothing_stands(grid: _Grid) -> Findings:
    """Return a statement of the largest cell, and why nothing is claimed."""
    result = grid.result
    groups = result.statistics.n_groups
    tested = [cell for cell, fact in grid.effects.items() if not isnan(fact.sim_low)]
    best = max(tested or grid.effects, key=grid.size)
    n = len(result.example_ids)
    of = "1 pair" if n == 1 else f"{n} pairs"
    if groups != n:
        of += f" in {groups} group{'s' * (groups > 1)}"
    status, sentence = _without_claim(grid, groups, best)
    what = f"estimate by {result.method}" if result.is_estimate else "effect"
    largest = f"Largest mean {what}: {grid.largest(best)} ({of})."
    fact = grid.effects[best]
    notes = _notes(grid, best)
    if isnan(fact.sim_low):  # a number without an interval is no headline
        headline = sentence
        notes = (largest, *notes)
    else:
        headline = f"{largest} {sentence}"
    one = Finding(
        EFFECT,
        status,
        (best[1],),
        layer=best[1],
        value=fact.value,
        low=None if isnan(fact.sim_low) else fact.sim_low,
        high=None if isnan(fact.sim_high) else fact.sim_high,
        n=fact.n,
        n_clusters=fact.n_clusters,
        anchor=best[0],
        sentence=f"{largest} {sentence}",
        p=None if status in (DESCRIPTION, TOO_FEW) else grid.least_p([best]),
    )
    return Findings((one,), headline, notes=notes)


def _without_claim(grid: _Grid, groups: int, best: Cell) -> tuple[str, str]:
    """Return the status of the largest cell, and the reason why nothing is claimed."""
    result = grid.result
    if result.is_estimate and not result.controls:
        return DESCRIPTION, (
            f"Estimates claim nothing: measure the {result.cell_word}s with method='exact'."
        )
    if groups < MIN_QUESTIONS_FOR_CLAIM:
        which = f"Fewer than {MIN_QUESTIONS_FOR_CLAIM} {row_words('patch').groups} show"
        if len(result.example_ids) == 1:
            which = "A single pair shows"
        return DESCRIPTION, f"{which} values without bands: nothing is claimed."
    if not result.controls:
        return DESCRIPTION, "No control was measured, so nothing is claimed."
    lacking = controls_without_pairs(grid.contrasts, result.controls)
    if lacking:
        return DESCRIPTION, f"Nothing is claimed: no pair has the control {' or '.join(lacking)}."
    sentence = f"No {result.cell_word} stands against {' and '.join(result.controls)}."
    found = list(grid.statuses.values()).count(NULL_MOVES)
    if found:
        sentence += (
            f" At {found} {result.cell_word}s a control itself accounts for most of the difference."
        )
    status = TOO_FEW if grid.statuses[best] == TOO_FEW else NOT_DETECTED
    return status, sentence


def _notes(grid: _Grid, cell: Cell) -> tuple[str, ...]:
    """Return sentences on what limits the findings.

    ``cell``: the largest one.
    """
    result = grid.result
    words = row_words("patch")
    notes = [result.share_note()]
    if grid.effects[cell].n >= MIN_QUESTIONS_FOR_CLAIM:
        leading = None
        if result.controls:
            control = result.controls[0]
            correlation = result.statistics.correlation(control, cell)
            leading = (f"effect minus {control}", correlation)
        clusters = result.statistics.clusters
        n = grid.effects[cell].n
        notes.append(cluster_note(clusters, n, rows=words, leading=leading))
    own = grid.contrasts[(grid.contrasts["quantity"] == EFFECT) & grid.contrasts["sim_low"].notna()]
    if len(own):
        if grid.standing:
            notes.append(concentration_note(own, "quantity", "the {}", words))
        excluded = len(grid.statuses) - len(own)
        if excluded:
            notes.append(
                f"Not tested: {excluded} of {len(grid.statuses)} {result.cell_word}s, whose value"
                " follows by construction."
            )
    notes += _notes_on_shared_prompts(result) or _notes_on_shared_answers(grid)
    n_unpaired = result.record["counts"].get("unpaired_positions", 0)
    if n_unpaired:
        which = "1 token" if n_unpaired == 1 else f"{n_unpaired} tokens"
        notes.append(
            f"{which} of the prompts had no partner in the other prompt of the pair and stayed as"
            " they are: give prompts of equal length, or name segments."
        )
    return tuple(filter(None, (*notes, *_notes_on_controls(result))))


def _notes_on_shared_prompts(result: PatchResult) -> list[str]:
    """Return how many different prompts the pairs have, the rarer side first, where pairs of
    several groups share most of them.
    """
    counts = result.record["counts"]
    n_groups = result.statistics.n_groups
    if n_groups < MIN_QUESTIONS_FOR_CLAIM:  # nothing is claimed
        return []
    corrupted, clean = "different_targets", "different_sources"
    if not result.is_denoising:
        corrupted, clean = clean, corrupted
    numbers = {
        "clean": counts.get(clean, n_groups),
        "corrupted": counts.get(corrupted, n_groups),
    }
    most = min(n_groups, MIN_QUESTIONS_FOR_LAYERS)
    few: list[str] = []
    notes: list[str] = []
    for side, n in sorted(numbers.items(), key=lambda one: one[1]):
        if n == 1:
            others = f"other {side} prompts"
            notes.append(f"All pairs have the same {side} prompt: nothing is said about {others}.")
        elif n < most:
            few.append(f"{n} different {side}")
    if few:
        notes.append(
            f"The pairs have only {join_with_and(few)} prompts: pairs that share one are not"
            " independent, and more is claimed than holds."
        )
    return notes


def _notes_on_shared_answers(grid: _Grid) -> list[str]:
    """Return how many different answers, with their wrong answers, the pairs have where cells stand
    and neither groups nor templates join the pairs that share them: these may be near copies.
    """
    result = grid.result
    statistics = result.statistics
    if not grid.standing:
        return []
    pairs = result.record.get("pairs", {})
    answers: set[str] = set()
    has_wrong = False
    for name in result.example_ids:
        own = pairs.get(name, {})
        if not own.get("answer_ids"):
            return []
        answers.add(repr((own["answer_ids"], own.get("wrong_ids"))))
        has_wrong = has_wrong or bool(own.get("wrong_ids"))
    n = len(answers)
    most = min(statistics.n_groups, MIN_QUESTIONS_FOR_LAYERS)
    if statistics.clusters.n_named > 1:  # the data name templates, and the note on them their limit
        most = min(most, statistics.clusters.n_named)
    if n >= most:
        return []
    what = "pairs of answer and wrong answer" if has_wrong else "answers"
    which = f"The pairs have only {n} different {what}"
    if n == 1:
        which = f"All pairs have the same answer{' and wrong answer' * has_wrong}"
    return [
        f"{which}: if pairs with the same ones are near copies, they are not independent, and more"
        " is claimed than holds. Give near copies the same value in the column group."
    ]


def _notes_on_controls(result: PatchResult) -> list[str]:
    """Return which pairs the controls use, and how many pairs lack them."""
    counts = result.record["counts"]
    n = len(result.example_ids)
    known = counts.get("with_template", 0)
    notes: list[str] = []
    lonely = counts.get("without_other_pair", 0)
    if OTHER_PAIR in result.controls and lonely < n:
        if not known:
            notes.append(
                "The data name no template, so other_pair may be a pair of another template."
            )
        elif known < n:
            notes.append(
                f"{n - known} of {n} pairs name no template: their other_pair may be one of another"
                " template."
            )
        own = result.samples(all_columns=True)
        n_used = own.loc[own["control"] == OTHER_PAIR, "donor_id"].nunique()
        # Where no pair serves at all, the sentence on pairs that lack the control says it.
        if n >= MIN_QUESTIONS_FOR_CLAIM and 0 < n_used < MIN_CLUSTERS:
            notes.append(
                f"Only {n_used} pairs serve as other_pair of all {n}: pairs that share one are not"
                " independent, and more is claimed than holds. Give more pairs of one length."
            )
    if lonely:
        which = "1 pair has" if lonely == 1 else f"{lonely} pairs have"
        same = "template, " if known else ""
        notes.append(
            f"{which} no other pair of the same {same}length with another prompt and another"
            " answer: the control other_pair lacks them."
        )
    gaussian = counts.get("gaussian_directions", 0)
    if gaussian:
        which = "1 pair has" if gaussian == 1 else f"{gaussian} pairs have"
        notes.append(
            f"{which} no two other pairs for the direction of norm_matched, which is Gaussian."
        )
    return notes


def _row(one: Finding, contrasts: pd.DataFrame, result: PatchResult) -> tuple[str, ...]:
    """Return the cells of a place in the table."""
    effects = facts_of(contrasts, EFFECT, "none")
    along = {cell: fact.value for cell, fact in effects.items() if cell[0] == one.anchor}
    at = next(cell for cell, value in along.items() if value == one.value)
    less = [facts_of(contrasts, LESS_CONTROL, control)[at] for control in result.controls]
    effect = effects[at]
    share = facts_of(contrasts, SHARE, "none")[at]
    layers = (format_layers(one.layers), str(at[1])) if result.has_layers else ()
    return (
        one.anchor,
        *layers,
        _with_band(effect),
        share.to_text(share.digits(2), sign=False),
        *map(_with_band, less),
        _p_text(one.p),
    )


def _p_text(p: float | None) -> str:
    if p is None:
        return ""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _with_band(fact: LayerEstimate) -> str:
    return fact._replace(low=fact.sim_low, high=fact.sim_high).to_text(_digits(fact))


def _digits(fact: LayerEstimate) -> int:
    """Return the decimals that show three digits of a value."""
    return min(12, max(1, 2 - floor(log10(abs(fact.value))))) if fact.value else 2


def _where(result: PatchResult, places: Mapping[tuple[str, float], list[int]]) -> str:
    if len(places) > _MOST_NAMED:
        return f"{len(places)} {result.place_word}s"
    return join_with_and(
        [result.name_place(place, name_layers(layers)) for (place, _), layers in places.items()]
    )
