"""Arguments of every protocol that can read a truth probe or ``p_true``."""

from typing import Annotated, Any

from typing_extensions import override

from anchorlens.constants import ANSWERS, DELTA_KINDS, DISTRACTORS, FRACTIONS, PROBE_SITES
from anchorlens.errors import InputError
from anchorlens.protocols.arguments import Choice, PythonOnly, SplitFractions, argument
from anchorlens.protocols.specification import QuestionSpecification


class TruthSpecification(QuestionSpecification):
    """Arguments on the answers in the input, the truth probe and the quantity of ΔP."""

    answers: Annotated[str, Choice(ANSWERS)] = argument(
        "gold", "Of truth readouts: gold (gold answers against others') or generated (the model's own).", group="truth"
    )
    distractor: Annotated[str, Choice(DISTRACTORS)] = argument(
        "matched", "Of gold answers: false ones of the same kind (matched), or any (random).", group="truth"
    )
    delta_kind: Annotated[str, Choice(DELTA_KINDS)] = argument(
        "confidence",
        "Of truth readouts: change of the confidence in the clean prediction, of P itself (signed), or of P of the true label.",
        group="truth",
    )
    probe_site: Annotated[str, Choice(PROBE_SITES)] = argument("resid_post", "Where a truth probe reads.", group="truth")
    fractions: Annotated[Any, SplitFractions()] = argument(
        FRACTIONS, "Of truth readouts: shares of training, validation and test questions.", group="truth"
    )
    probes: Annotated[Any, PythonOnly("LayerProbes", lambda value: hasattr(value, "probe_layer"))] = argument(
        None,
        "Fitted probes; they refuse questions that they have seen. Trained on the training split where they are left out.",
        group="truth",
        in_shell=False,
    )

    def probe_columns(
        self, *, knockout_mode: str = "", donor_rule: str = "", readout: str = "probe", window: int = 0
    ) -> dict[str, object]:
        """Return the constant columns of a probe sweep."""
        return {
            "site": "", "probe_site": self.probe_site if readout == "probe" else "", "window": window, "direction": "noising",
            "donor_rule": donor_rule, "knockout_mode": knockout_mode, "readout": readout, "delta_kind": self.delta_kind,
        }  # fmt: skip

    @override
    def check_together(self) -> None:
        readout = getattr(self, "readout", "probe")
        if self.probes is not None and readout != "probe":
            raise InputError(f"probes= is for readout='probe'; got readout={readout!r}.")
        if self.probes is not None and self.probes.site != self.probe_site:
            raise InputError(
                f"These probes read {self.probes.site}; asked for is probe_site={self.probe_site!r}. Give the probe_site= that the "
                "probes have.",
                argument="probe_site",
            )
