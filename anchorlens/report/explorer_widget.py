"""Widget of ``explore``; needs anywidget (``pip install 'anchorlens[explorer]'``)."""

from importlib.resources import files
from typing import Any

import anywidget
import traitlets

from anchorlens.errors import InputError
from anchorlens.results.find_example import find_example

_HERE = files("anchorlens.report")


class Explorer(anywidget.AnyWidget):
    """Widget that shows one example of a sweep at one layer; made by :func:`anchorlens.explore`.

    ``example`` (id, or words of the question) and ``layer`` can be set.
    """

    _esm = _HERE.joinpath("explorer.js").read_text(encoding="utf8")
    _css = _HERE.joinpath("explorer.css").read_text(encoding="utf8")
    data = traitlets.Dict().tag(sync=True)
    example = traitlets.Unicode().tag(sync=True)
    layer = traitlets.Int().tag(sync=True)

    @traitlets.validate("example")
    def _validate_example(self, proposal: Any) -> str:
        return find_example(
            proposal["value"],
            {row["id"]: (row["question"], row["answer"]) for row in self.data["rows"]},
        )

    @traitlets.validate("layer")
    def _validate_layer(self, proposal: Any) -> int:
        layer = proposal["value"]
        layers = self.data["layers"]
        if layer not in layers:
            raise InputError(
                f"layer={layer}: not measured. Use one of {', '.join(map(str, layers))}.",
                argument="layer",
            )
        return layer

    def __repr__(self) -> str:
        return (
            f"Explorer({self.data['heading']!r}, {len(self.data['rows'])} examples;"
            f" example={self.example!r}, layer={self.layer})"
        )
