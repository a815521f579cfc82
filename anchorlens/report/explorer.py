"""Single examples of a sweep in a notebook, with the layer under a slider; nothing is measured again."""

import json
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from anchorlens.display import as_whole, described
from anchorlens.errors import InputError
from anchorlens.report.contents import name_of
from anchorlens.results.example_view import rows_of
from anchorlens.results.sweep import SweepResult
from anchorlens.running.loading import results_of
from anchorlens.statistics.pathways import RANDOM

if TYPE_CHECKING:
    from anchorlens.report.explorer_widget import Explorer


def explore(
    sweep: "SweepResult | str | os.PathLike[str]", *, example: str | int | None = None, layer: int | None = None
) -> "Explorer":
    """Show a sweep's examples, layer by layer, in Jupyter, VS Code or Colab.

    A slider chooses the layer, a list with a search field the example. Tokens of an anchor are underlined, and tinted by |ΔP| of
    that anchor at the layer; ΔP of every anchor and control stands below, beside the example's own curve with the layer marked.

    Args:
        sweep: Result of a sweep function or of :func:`~anchorlens.load_run`, or the run directory of one sweep.
        example: The first example to show, as ``sweep.show`` takes it (id, number or words of its question); if None, the first.
        layer: The first layer to show; if None, that of the example's largest change.

    Returns:
        A widget; its attributes ``example`` and ``layer`` hold the choice and may be set.

    Raises:
        InputError: If the package anywidget is missing, or there is no such sweep, example or layer.
    """
    found = results_of(sweep)
    sweep = found[0] if isinstance(found, list) and len(found) == 1 else found  # pyright: ignore[reportAssignmentType]
    if not isinstance(sweep, SweepResult):
        told = f"a {type(sweep).__name__}; choose one of it" if isinstance(sweep, list | tuple) else described(sweep)
        raise InputError(f"explore takes a sweep, such as swap_sweep gives or load_run lists; got {told}.")
    if find_spec("anywidget") is None:
        raise InputError(
            "explore needs anywidget, which is not installed: pip install 'anchorlens[explorer]'. Without it "
            "sweep.plot_example(example) draws one example, and save_report all of them."
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
    """Return ``heading``, ``layers`` and ``rows`` of the explorer as plain values.

    The rows are those of :func:`~anchorlens.results.example_view.rows_of`, with ``places`` (name of a curve -> positions that were
    changed for it, where they are the same for all donors) and ``answer_tokens`` in place of ``marks``.
    """
    rows = rows_of(sweep.samples(all_columns=True), sweep.examples(all_columns=True), sweep.anchors, sweep.layers)
    base = sweep.examples(all_columns=True).query("role == 'base'").set_index("example_id")["positions"]
    for row in rows:
        row["places"] = _places(json.loads(base[row["id"]]), row["curves"], row.pop("marks"))
        row["answer_tokens"] = row["places"].pop("", [])
    return {"heading": name_of(sweep), "layers": list(sweep.layers), "rows": rows}


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
