"""What a knockout sweep shows, in words. It speaks of effects beyond the controls only (METHOD 5)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pandas as pd


class Fact(NamedTuple):
    """A value with its interval."""

    value: float
    low: float
    high: float


Facts: TypeAlias = "dict[tuple[str, str, int], Fact]"

PLACEBO_WORDS = {
    "random_tokens": "other question tokens cut in place of E_Q",
    "shuffled_labels": "a probe of shuffled labels",
    "cross_fold": "split by one probe fold, ΔP by another",
}


def knockout_verdict(record: Mapping[str, Any], layer: int, curves: pd.DataFrame, effects: pd.DataFrame) -> str:
    """One paragraph.

    Args:
        record: Of the sweep.
        layer: The layer that it speaks of: k* where there is a probe.
        curves: With controls.
        effects: Of the same sweep.
    """
    config = record["config"]
    by: Facts = {
        (str(row.quantity), str(row.control), int(row.layer)): Fact(float(row.value), float(row.ci_low), float(row.ci_high))
        for row in effects[["quantity", "control", "layer", "value", "ci_low", "ci_high"]].itertuples(index=False)
    }
    parts = [_signal(record, by, layer), _leak(record)]
    if not _has_signal(by, layer):
        parts.append("No claim about pathways is made: a split by a readout without signal draws Q below A by construction.")
    elif config["delta_kind"] != "confidence":
        parts.append(
            f"The verdict on pathways is made for delta_kind='confidence' alone; this sweep has {config['delta_kind']!r}."
        )
    else:
        parts += _pathways(config, by, layer, curves)
    return " ".join(part for part in parts if part)


def _pathways(config: Mapping[str, Any], by: Facts, layer: int, curves: pd.DataFrame) -> list[str]:
    parts = [_groups(curves, layer)]
    if not config["placebos"]:
        return [*parts, "No placebo was measured, so how much of this gap is selection is not known."]
    expected = [p for p in PLACEBO_WORDS if config["readout"] == "probe" or p == "random_tokens"]
    parts += _effects(by, layer, expected)
    if config["answers"] == "given":
        parts.append("With given answers the answer alone carries no label: A-Anchored means 'did not flip', no more.")
    return parts


def _has_signal(by: Facts, layer: int) -> bool:
    return by["auc", "none", layer].low > 0.5


def _signal(record: Mapping[str, Any], by: Facts, layer: int) -> str:
    auc = by["auc", "none", layer]
    reader = "The probe" if record["config"]["readout"] == "probe" else "P(True)"
    k = record["probe"]["k_star"]
    where = f" at k* = {k}" if k is not None else ""
    if auc.value != auc.value:
        return f"{reader}: no AUC can be computed{where}, because the measured rows lack true or false answers."
    if _has_signal(by, layer):
        cut = by["auc_knocked_out", "none", layer]
        what = f"with the edges {record['config']['edges']} cut ({record['config']['mode']})"
        return f"{reader} tells true from false answers{where} with AUC {_interval(auc, 2)}; {what} {_interval(cut, 2)}."
    return f"{reader} shows no signal{where}: AUC {_interval(auc, 2)}, an interval that reaches 0.5."


def _leak(record: Mapping[str, Any]) -> str:
    text = record["probe"]["text_only"]
    if text["ci_low"] > 0.5 or text["ci_high"] < 0.5:
        return (
            f"Beware: a classifier that sees the answer's text alone reaches AUC {text['auc']:.2f} "
            f"[{text['ci_low']:.2f}, {text['ci_high']:.2f}], so part of the probe's AUC may be the answer's form."
        )
    return ""


def _groups(curves: pd.DataFrame, layer: int) -> str:
    here = curves[(curves["layer"] == layer) & (curves["control"] == "none")].set_index("pathway")
    said = [
        f"{name} {row['delta_p']:+.1f} ({int(row['n'])} questions)" if row["n"] else f"{name} has no row"
        for name, row in ((name, here.loc[name]) for name in ("Q-Anchored", "A-Anchored", "All"))
    ]
    return f"ΔP there: {', '.join(said)}."


def _effects(by: Facts, layer: int, expected: Sequence[str]) -> list[str]:
    gap, matched = by["gap", "none", layer], by.get(("gap", "matched", layer))
    if gap.value != gap.value:
        return ["One of the groups is empty: there is no gap to speak of."]
    as_many = (
        ""
        if matched is None or matched == gap
        else f" ({_interval(matched, 1)} with as many E_Q tokens cut as there are others)"
    )
    said = [f"The gap between Q and A is {_interval(gap, 1)} points{as_many}. Against the controls:"]
    verdicts: dict[str, bool] = {}
    for placebo in expected:
        words = PLACEBO_WORDS[placebo]
        nothing = Fact(float("nan"), float("nan"), float("nan"))
        other, effect = (by.get((name, placebo, layer), nothing) for name in ("placebo_gap", "effect"))
        judged = other if placebo == "cross_fold" else effect
        if judged.high != judged.high:
            said.append(f"{words}: could not be measured, a group is empty or too small;")
        elif placebo == "cross_fold":
            # This gap is itself free of the probe's selection: it has to stand, not to vanish.
            verdicts[placebo] = other.high < 0
            said.append(f"{words}: {_interval(other, 1)} of the gap {'stands' if verdicts[placebo] else 'is left'};")
        else:
            verdicts[placebo] = effect.high < 0
            said.append(f"{words}: {_interval(other, 1)}, so an effect of {_interval(effect, 1)};")
    said[-1] = said[-1].rstrip(";") + "."
    return [*said, _conclusion(gap, verdicts, expected), _layers_beyond(by)]


def _conclusion(gap: Fact, verdicts: Mapping[str, bool], expected: Sequence[str]) -> str:
    missing = [p for p in expected if p not in verdicts]
    if not verdicts:
        return "No control could be measured: no effect can be stated."
    if gap.value >= 0 or not any(verdicts.values()):
        return "There is no effect beyond the controls at this layer."
    if not all(verdicts.values()):
        return f"The evidence is mixed: it does not stand beyond {', '.join(p for p, ok in verdicts.items() if not ok)}."
    without = f" that could be measured ({', '.join(missing)} could not)" if missing else ""
    return f"The effect stands beyond every control{without} at this layer."


def _layers_beyond(by: Facts) -> str:
    """Layers at which the probe has signal and the effect beyond random tokens has an interval below zero."""
    facts = {k: fact for (quantity, control, k), fact in by.items() if (quantity, control) == ("effect", "random_tokens")}
    measured = [k for k, fact in facts.items() if fact.high == fact.high]
    layers = [k for k in measured if facts[k].high < 0 and _has_signal(by, k)]
    if not measured:
        return ""
    if not layers:
        return "At no layer with signal does the gap exceed that of other question tokens."
    where = f"{_ranges(layers)} ({len(layers)} of {len(measured)})"
    return f"Layers with signal where the gap exceeds that of other question tokens: {where}."


def _ranges(numbers: Sequence[int]) -> str:
    """``[0, 1, 2, 7]`` -> ``0-2, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _interval(fact: Fact, digits: int) -> str:
    sign = "+" if digits == 1 else ""
    return f"{fact.value:{sign}.{digits}f} [{fact.low:{sign}.{digits}f}, {fact.high:{sign}.{digits}f}]"


__all__ = ["knockout_verdict"]
