"""Findings of a patch sweep: a statement for every place at which a cell stands, a table, and notes."""

from collections.abc import Mapping
from math import copysign, floor, isnan, log10

import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM
from anchorlens.errors import RunError
from anchorlens.protocols.patch.grid_statistics import EFFECT, LESS_CONTROL, SHARE
from anchorlens.protocols.patch.patch_result import PatchResult
from anchorlens.protocols.patch.standing_cells import Cell, facts_of, statuses_of
from anchorlens.results.estimates import LayerEstimate, concentration_note, format_layers, join_with_and, name_layers
from anchorlens.results.findings import DESCRIPTION, NOT_DETECTED, NULL_MOVES, STANDS, TOO_FEW, Finding, Findings, empty_findings

_MOST_ROWS, _MOST_NAMED = 8, 4
_WORDS = {"other_pair": "another pair's activations", "norm_matched": "a random change of the same norm"}


def patch_findings(result: PatchResult) -> Findings:
    """Return a statement for every place at which a cell stands, or for the largest cell."""
    if result.no_mean:
        return empty_findings(f"Nothing is claimed: {result.no_mean}")
    contrasts = result.contrasts(all_columns=True)
    statuses = statuses_of(contrasts, result.noise_floor)
    effects, n = facts_of(contrasts, EFFECT, "none"), len(result.example_ids)
    if not effects:
        raise RunError("The run is damaged: its contrasts have no effect. Make the run again.")
    groups = result.statistics.n_groups
    tested = {cell: fact for cell, fact in effects.items() if not isnan(fact.sim_low)}
    best = max(tested or effects, key=lambda cell: abs(effects[cell].value))
    unit, most = _unit(result), f"{effects[best].value:+.{_digits(effects[best])}f} {_unit(result)} at {best[0]}, layer {best[1]}"
    # Layers of one statement: heads of one number in several layers are different heads; effects of other sign stand apart.
    has_heads = result.by in ("head", "head_position")
    places: dict[tuple[str, float], list[int]] = {}
    for (place, layer), status in statuses.items():
        if status == STANDS:
            part = layer if has_heads else copysign(1, effects[place, layer].value)
            places.setdefault((place, part), []).append(layer)
    notes = [result.share_note(), *_notes(result, statuses, contrasts)]
    if not places:
        of = f"{n} pair{'s' if n != 1 else ''}" + (f" in {groups} groups" if groups != n else "")
        status, sentence = _without_claim(result, statuses, groups, best)
        headline = f"Largest mean effect: {most} ({of}). {sentence}"
        fact = effects[best]
        low, high = (None if isnan(end) else end for end in (fact.sim_low, fact.sim_high))
        one = Finding(EFFECT, status, (best[1],), fact.value, low, high, fact.n, best[0], sentence=headline)
        return Findings((one,), headline, notes=tuple(note for note in notes if note))
    cells = sum(map(len, places.values()))
    top = max(((place, k) for (place, _), layers in places.items() for k in layers), key=lambda cell: abs(effects[cell].value))
    fact, share = effects[top], facts_of(contrasts, SHARE, "none")[top].value
    controls = join_with_and([_WORDS[control] for control in result.controls])
    headline = (
        f"{cells} of {len(effects)} cells stand: patching {_where(places)} changes {result.metric} more than {controls}. Largest: "
        f"{_with_band(fact)} {unit} at {top[0]}, layer {top[1]}; recovered share {share:.2f}."
    )
    statements: list[Finding] = []
    for (place, _), layers in places.items():
        at = max(layers, key=lambda k: abs(effects[place, k].value))
        own = effects[place, at]
        banded = own._replace(low=own.sim_low, high=own.sim_high)
        statements.append(Finding.of(EFFECT, STANDS, banded, layers=tuple(layers), anchor=place))
    statements.sort(key=lambda one: -abs(one.value or 0.0))
    rows = [_row(one, contrasts, result.controls) for one in statements[:_MOST_ROWS]]
    heads = (
        "place",
        "layers",
        "max layer",
        f"effect [joint 95 %], {unit}",
        "recovered",
        *(f"minus {name}" for name in result.controls),
    )
    if len(statements) > _MOST_ROWS:
        rows.append((f"and {len(statements) - _MOST_ROWS} more: contrasts()", *[""] * (len(heads) - 1)))
    return Findings(tuple(statements), headline, (), tuple(rows), heads, tuple(note for note in notes if note))


def _without_claim(result: PatchResult, statuses: Mapping[Cell, str], groups: int, best: Cell) -> tuple[str, str]:
    """Return the status of the largest cell, and the reason why nothing is claimed."""
    if groups < MIN_QUESTIONS_FOR_CLAIM:
        which = (
            "A single pair shows" if len(result.example_ids) == 1 else f"Fewer than {MIN_QUESTIONS_FOR_CLAIM} groups of pairs show"
        )
        return DESCRIPTION, f"{which} values without bands: nothing is claimed."
    if not result.controls:
        return DESCRIPTION, "No control was measured, so nothing is claimed."
    found = sum(status == NULL_MOVES for status in statuses.values())
    moves = f" At {found} cells a control itself accounts for most of the difference." if found else ""
    return NOT_DETECTED if statuses[best] != TOO_FEW else TOO_FEW, f"No cell stands against {' and '.join(result.controls)}.{moves}"


def _notes(result: PatchResult, statuses: Mapping[Cell, str], contrasts: pd.DataFrame) -> list[str]:
    """Return sentences on what limits the findings."""
    notes: list[str] = []
    own = contrasts[(contrasts["quantity"] == EFFECT) & contrasts["sim_low"].notna()]
    if len(own):
        notes.append(concentration_note(own, "quantity", "the {}"))
        excluded = len(statuses) - len(own)
        notes.append(f"Not tested: {excluded} of {len(statuses)} cells, whose value follows by construction." if excluded else "")
    lonely = result.record["counts"].get("without_other_pair", 0)
    if lonely:
        which = "1 pair has" if lonely == 1 else f"{lonely} pairs have"
        notes.append(f"{which} no other pair of the same length and another answer: the control other_pair lacks them.")
    return notes


def _row(one: Finding, contrasts: pd.DataFrame, controls: tuple[str, ...]) -> tuple[str, ...]:
    """Return the cells of a place in the table."""
    effects = facts_of(contrasts, EFFECT, "none")
    at = next(cell for cell, fact in effects.items() if cell[0] == one.anchor and fact.value == one.value)
    less = [facts_of(contrasts, LESS_CONTROL, control)[at] for control in controls]
    effect, share = effects[at], facts_of(contrasts, SHARE, "none")[at]
    return (one.anchor, format_layers(one.layers), str(at[1]), _with_band(effect), f"{share.value:.2f}", *map(_with_band, less))


def _with_band(fact: LayerEstimate) -> str:
    return fact._replace(low=fact.sim_low, high=fact.sim_high).to_text(_digits(fact))


def _digits(fact: LayerEstimate) -> int:
    """Return the decimals that show three digits of a value; at most 6."""
    return min(6, max(1, 2 - floor(log10(abs(fact.value))))) if fact.value else 2


def _where(places: Mapping[tuple[str, float], list[int]]) -> str:
    if len(places) > _MOST_NAMED:
        return f"{len(places)} places"
    return join_with_and([f"{place} ({name_layers(layers)})" for (place, _), layers in places.items()])


def _unit(result: PatchResult) -> str:
    return {"logit": "logits", "nat": "nats", "percentage points": "points"}.get(result.unit, result.unit)
