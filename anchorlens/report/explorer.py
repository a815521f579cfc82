"""``explore``: single examples of a sweep in a notebook, with the layer under a slider.

What is shown is what a report shows of a row (``results/own_rows.py``): its tokens, and its own ΔP by layer. Here the tokens of
an anchor are tinted by how far the change at the chosen layer moves P, so that scrubbing through the layers shows the hand-over
from the question's words to the place of the answer. It runs in the browser alone: nothing is measured again, nothing fetched.
"""

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from anchorlens.errors import InputError
from anchorlens.kinds import as_whole, described
from anchorlens.results.own_rows import rows_of
from anchorlens.results.sweep import SweepResult
from anchorlens.statistics.pathways import RANDOM

if TYPE_CHECKING:
    from anchorlens.report.explorer_widget import Explorer


def explore(sweep: SweepResult, *, example: str | int | None = None, layer: int | None = None) -> "Explorer":
    """Look through a sweep's examples, layer by layer, in Jupyter, VS Code or Colab.

    A slider chooses the layer, a list with a search field the example. Tokens of an anchor are underlined, and tinted by |ΔP| of
    that anchor at the layer; ΔP of every anchor and control stands below, beside the example's own curve with the layer marked.
    One example shows what happens in it; what holds of the questions is what ``curves()`` and ``verdict`` say.

    Args:
        sweep: What a sweep function or :func:`~anchorlens.load_run` gave.
        example: The example to begin with, as ``sweep.show`` takes it (id, number or words of its question); the first where it
            is left out.
        layer: The layer to begin with; that of the example's largest change where it is left out.

    Returns:
        A widget, which a notebook shows where it is the last value of a cell. Its attributes ``example`` and ``layer`` say what is
        chosen, and choose.

    Raises:
        InputError: The package anywidget is missing, what is given is no sweep, or it has no such example or layer. (So does setting
            one of the two attributes.)
    """
    if not isinstance(sweep, SweepResult):
        told = f"a {type(sweep).__name__}; choose one of it" if isinstance(sweep, list | tuple) else described(sweep)
        raise InputError(f"explore takes a sweep, such as swap_sweep gives or load_run lists; got {told}.")
    if find_spec("anywidget") is None:
        raise InputError(
            "explore needs anywidget, which is not installed: pip install 'anchorlens[explorer]'. Without it "
            "sweep.show(example) draws one example, and write_report all of them."
        )
    from anchorlens.report.explorer_widget import Explorer

    made = contents(sweep)
    rows = {row["id"]: row for row in made["rows"]}
    chosen = sweep.id_of(0 if example is None else example)
    at = as_whole(rows[chosen]["at"] if layer is None else layer)
    if at not in sweep.layers:
        raise InputError(f"Layer {layer!r} was not measured. Measured: {', '.join(map(str, sweep.layers))}.")
    return Explorer(data=made, example=chosen, layer=at)


def contents(sweep: SweepResult) -> dict[str, Any]:
    """What the explorer shows, as plain values.

    Returns:
        ``heading``, ``layers``, and ``rows`` as :func:`~anchorlens.results.own_rows.rows_of` gives them, without ``marks``; instead
        ``places`` (name of a curve -> positions that were changed for it, where they are the same for all donors) and
        ``answer_tokens``.
    """
    rows = rows_of(sweep.samples(), sweep.examples(), sweep.anchors, sweep.layers)
    base = sweep.examples().query("role == 'base'").set_index("example_id")["positions"]
    for row in rows:
        row["places"] = _places(json.loads(base[row["id"]]), row["curves"], row.pop("marks"))
        row["answer_tokens"] = row["places"].pop("", [])
    title = sweep.protocol.title
    return {
        "heading": f"{title[0].upper()}{title[1:]}: {sweep.model} on {sweep.dataset}",
        "layers": list(sweep.layers),
        "rows": rows,
    }


def _places(positions: dict[str, list[int]], curves: dict[str, Any], marks: dict[str, list[int]]) -> dict[str, list[int]]:
    found = {"": marks.get("answer", [])}
    for name in curves:
        anchor, _, control = name.partition(", ")
        if control == RANDOM:
            where = positions.get(f"cut:{RANDOM}", [])
        elif control:
            where = []  # a null's places differ from donor to donor
        else:
            # Edges from one anchor to another are named after both: what is cut off is the first.
            where = positions.get("replaced") or positions.get(anchor.split(" -> ")[0], [])
        found[name] = where
    return found


__all__ = ["contents", "explore"]
