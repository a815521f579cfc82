"""Explore the examples of a sweep in a notebook, with a slider for the layer; nothing is
remeasured.
"""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from anchorlens.display import as_int, short_repr
from anchorlens.errors import InputError
from anchorlens.figures.palette import darken
from anchorlens.loading.load_run import results_of
from anchorlens.report.contents import colours_of, names_of
from anchorlens.results.example_view import example_rows
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import parse_positions
from anchorlens.statistics.pathways import RANDOM

if TYPE_CHECKING:
    from anchorlens.report.explorer_widget import Explorer


def explore(
    sweep: "SweepResult | str | os.PathLike[str]",
    *,
    example: str | int | None = None,
    layer: int | None = None,
) -> "Explorer":
    """Show a sweep's examples, layer by layer, in Jupyter, VS Code or Colab.

    A slider selects the layer, a list with a search field the example. Tokens of an anchor are
    underlined, and tinted by the size of its effect at the layer. Below are the effect of every
    anchor and control with its unit, and the curves of the example.

    Args:
        sweep: Result of a sweep function or of :func:`~anchorlens.load_run`.
        example: Example shown first: id, index or words of its question. If None, the first of the
            sweep.
        layer: Layer shown first. If None, the layer of the largest effect of the example.

    Returns:
        A widget whose attributes ``example`` and ``layer`` hold the selection and can be set.

    Raises:
        InputError: If anywidget is not installed, or ``sweep``, ``example`` or ``layer`` is
            invalid.

    Examples:
        >>> import anchorlens as al
        >>> al.explore("runs/swap", example="france", layer=8)  # doctest: +SKIP
    """
    found = results_of(sweep)
    if isinstance(found, list) and len(found) == 1:
        found = found[0]
    sweep = found  # pyright: ignore[reportAssignmentType]
    if not isinstance(sweep, SweepResult):
        got = short_repr(sweep)
        if isinstance(sweep, list | tuple):
            got = f"a {type(sweep).__name__}; pass one of its elements"
        raise InputError(
            f"sweep: explore takes one sweep, such as swap_sweep returns; got {got}.",
            argument="sweep",
        )
    if find_spec("anywidget") is None:
        raise InputError(
            "explore needs anywidget: pip install 'anchorlens[explorer]'."
            " Without it, use sweep.plot_example(example) or save_report."
        )
    from anchorlens.report.explorer_widget import Explorer

    data = contents(sweep)
    rows = {row["id"]: row for row in data["rows"]}
    selected = sweep.id_of(0 if example is None else example)
    at = as_int(rows[selected]["at"] if layer is None else layer)
    if at not in sweep.layers:
        raise InputError(
            f"layer={layer!r}: not measured. Use one of {', '.join(map(str, sweep.layers))}.",
            argument="layer",
        )
    return Explorer(data=data, example=selected, layer=at)


def contents(sweep: SweepResult) -> dict[str, Any]:
    """Return ``heading``, ``layers``, ``rows`` and ``colours`` of the explorer as plain values.

    Rows are those of :func:`~anchorlens.results.example_view.example_rows`, with ``places`` (name
    of a curve -> changed positions, if equal for all donors) and ``answer_tokens`` instead of
    ``marks``.
    """
    rows = example_rows(
        sweep.samples(all_columns=True),
        sweep.examples(all_columns=True),
        sweep.anchors,
        sweep.layers,
    )
    base = (
        sweep.examples(all_columns=True)
        .query("role == 'base'")
        .set_index("example_id")["positions"]
    )
    shown: list[dict[str, Any]] = []
    for row in rows:
        positions = parse_positions(row["id"], base[row["id"]], len(row["tokens"]))
        places = _places(positions, row["curves"], row["marks"])
        values = {name: value for name, value in row.items() if name != "marks"}
        shown.append(values | {"answer_tokens": places.pop("", []), "places": places})
    (name,) = names_of([sweep])
    colours = colours_of(sweep, sweep.anchors, [sweep.dataset])
    return {
        "heading": name,
        "layers": list(sweep.layers),
        "rows": shown,
        # A curve of the explorer has no legend beside it, so that its hue must be plain.
        "colours": {anchor: [darken(light), dark] for anchor, (light, dark) in colours.items()},
    }


def _places(
    positions: dict[str, list[int]], curves: dict[str, Any], marks: dict[str, list[int]]
) -> dict[str, list[int]]:
    places = {"": marks.get("answer", [])}
    for name in curves:
        anchor, _, control = name.partition(", ")
        if control == RANDOM:
            where = positions.get(f"cut:{RANDOM}", [])
        elif control:
            where = []  # the positions of a null differ between donors
        else:
            # Edges are named "source -> target", the source is cut off; an anchor of ``patch`` is
            # "pos:" and its position.
            of_patch = [int(anchor[4:])] if anchor.startswith("pos:") else []
            where = positions.get("replaced") or positions.get(anchor.split(" -> ")[0], of_patch)
        places[name] = where
    return places
