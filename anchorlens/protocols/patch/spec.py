"""Specification of the patch protocol."""

from typing import Annotated

from pydantic import StrictBool
from typing_extensions import override

from anchorlens.constants import DIRECTIONS, SITES
from anchorlens.protocols.arguments import Choice, argument
from anchorlens.protocols.specification import ADD_BOS, Specification


class Patch(Specification):
    """Patch activations of a clean prompt into a corrupted one, position by position and layer by layer.

    At one layer and position, the activation of the corrupted run is replaced by that of the clean run (denoising), or the reverse
    (noising). The metric is read at the last position. The effect is the metric after minus before.

    Source: Meng et al. 2022, Wang et al. 2023, Zhang & Nanda 2024.
    """

    NAME = "patch"
    DATA = "pairs"

    site: Annotated[str, Choice(SITES)] = argument("resid_pre", "Hook site whose activation is replaced.")
    direction: Annotated[str, Choice(DIRECTIONS)] = argument(
        "denoising", "denoising (clean activations into the corrupted prompt) or noising (the reverse)."
    )
    metric: Annotated[str, Choice(("logit_diff",))] = argument(
        "logit_diff", "Metric at the last position: logit_diff (logit of the answer minus logit of the wrong answer)."
    )

    add_bos: StrictBool | None = ADD_BOS

    @override
    def constant_columns(self) -> dict[str, object]:
        return {
            "pathway": "", "site": self.site, "probe_site": "", "window": 1, "direction": self.direction, "donor_rule": "",
            "knockout_mode": "", "readout": "", "delta_kind": "difference",
        }  # fmt: skip
