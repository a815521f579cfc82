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


def knockout_verdict(record: Mapping[str, Any], curves: pd.DataFrame, effects: pd.DataFrame) -> str:
    """One paragraph.

    Args:
        record: Of the sweep.
        curves: With controls.
        effects: Of the same sweep.
    """
    config = record["config"]
    by: Facts = {
        (str(row.quantity), str(row.control), int(row.layer)): Fact(float(row.value), float(row.ci_low), float(row.ci_high))
        for row in effects[["quantity", "control", "layer", "value", "ci_low", "ci_high"]].itertuples(index=False)
    }
    layer = record["probe"]["k_star"]
    layer = int(curves["layer"].max()) if layer is None else int(layer)
    parts = [_signal(record, by, layer), _leak(record)]
    if not _has_signal(by, layer):
        parts.append("No claim about pathways is made: a split by a readout without signal draws Q below A by construction.")
        return " ".join(part for part in parts if part)
    parts.append(_groups(curves, layer))
    if not config["placebos"]:
        parts.append("No placebo was measured, so how much of this gap is selection is not known.")
        return " ".join(part for part in parts if part)
    parts += _effects(by, layer, [p for p in PLACEBO_WORDS if ("effect", p, layer) in by])
    if config["answers"] == "given":
        parts.append("With given answers the answer alone carries no label: A-Anchored means 'did not flip', no more.")
    return " ".join(part for part in parts if part)


def _has_signal(by: Facts, layer: int) -> bool:
    return by["auc", "none", layer].low > 0.5


def _signal(record: Mapping[str, Any], by: Facts, layer: int) -> str:
    auc = by["auc", "none", layer]
    reader = "The probe" if record["config"]["readout"] == "probe" else "P(True)"
    where = f" at k* = {layer}" if record["probe"]["k_star"] is not None else ""
    said = f"{reader} tells true from false answers{where} with AUC {_interval(auc, 2)}"
    if _has_signal(by, layer):
        cut = by["auc_knocked_out", "none", layer]
        return f"{said}; with the edges {record['config']['edges']} cut ({record['config']['mode']}) {_interval(cut, 2)}."
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


def _effects(by: Facts, layer: int, placebos: Sequence[str]) -> list[str]:
    gap = by["gap", "none", layer]
    if gap.value != gap.value or not placebos:
        return ["One of the groups is empty, or no placebo could be measured: no effect can be stated."]
    said = [f"The gap between Q and A is {_interval(gap, 1)} points. Against the controls:"]
    verdicts: list[bool] = []
    for placebo in placebos:
        other, effect = by["placebo_gap", placebo, layer], by["effect", placebo, layer]
        if placebo == "cross_fold":
            # Here the placebo's gap is itself free of the probe's selection: it has to stand, not to vanish.
            stands = other.high < 0
            said.append(f"{PLACEBO_WORDS[placebo]}: {_interval(other, 1)} of the gap {'stands' if stands else 'is left'};")
        else:
            stands = effect.high < 0
            said.append(f"{PLACEBO_WORDS[placebo]}: {_interval(other, 1)}, so an effect of {_interval(effect, 1)};")
        verdicts.append(stands)
    said[-1] = said[-1].rstrip(";") + "."
    if gap.value >= 0 or not any(verdicts):
        end = "There is no effect beyond the controls at this layer."
    elif all(verdicts):
        end = "The effect stands beyond every control at this layer."
    else:
        failed = [p for p, ok in zip(placebos, verdicts, strict=True) if not ok]
        end = f"The evidence is mixed: it does not stand beyond {', '.join(failed)}."
    beyond = _layers_beyond(by)
    return [*said, end, beyond]


def _layers_beyond(by: Facts) -> str:
    """Layers at which the probe has signal and the effect beyond random tokens has an interval below zero."""
    measured = [layer for quantity, control, layer in by if (quantity, control) == ("effect", "random_tokens")]
    layers = [i for i in measured if by["effect", "random_tokens", i].high < 0 and _has_signal(by, i)]
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
