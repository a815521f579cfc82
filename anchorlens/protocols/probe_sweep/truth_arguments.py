"""Arguments of protocols that can read a truth probe or ``p_true``."""

from typing import Annotated, Any

from typing_extensions import override

from anchorlens.constants import ANSWERS, DELTA_KINDS, DISTRACTORS, PROBE_SITES
from anchorlens.errors import InputError
from anchorlens.protocols.arguments import Choice, Int, PythonOnly, argument
from anchorlens.protocols.specification import QuestionSpecification


class TruthSpecification(QuestionSpecification):
    """Arguments on the answers in the input, the truth probe and the kind of ΔP."""

    answers: Annotated[str, Choice(ANSWERS)] = argument(
        "gold",
        "Answers of truth readouts: gold (gold answers and those of other questions) or generated"
        " by the model.",
        group="truth",
    )
    distractor: Annotated[str, Choice(DISTRACTORS)] = argument(
        "matched",
        "False answers for answers='gold': of the same kind (matched) or any (random).",
        group="truth",
    )
    delta_kind: Annotated[str, Choice(DELTA_KINDS)] = argument(
        "confidence",
        "ΔP of truth readouts: change of the confidence in the clean prediction, of P (signed), or"
        " of P of the true label.",
        group="truth",
    )
    probe_site: Annotated[str, Choice(PROBE_SITES)] = argument(
        "resid_post", "Hook site of the truth probe.", group="truth"
    )
    n_splits: Annotated[int, Int(1, most=10**4)] = argument(
        5,
        "Number of splits of truth readouts. Questions form as many blocks; each is tested once, by"
        " probes fitted on the others. With 1 split, 40 % of the questions are tested.",
        group="truth",
    )
    probes: Annotated[
        Any, PythonOnly("CrossFittedProbes", lambda value: hasattr(value, "probe_layer"))
    ] = argument(
        None,
        "Fitted probes, which refuse their training questions. If None, probes are fitted in every"
        " split.",
        group="truth",
        in_shell=False,
    )

    def probe_columns(
        self,
        *,
        knockout_mode: str = "",
        donor_rule: str = "",
        readout: str = "probe",
        window: int = 0,
    ) -> dict[str, object]:
        """Return the constant columns of a probe sweep."""
        return {
            "site": "",
            "probe_site": self.probe_site if readout == "probe" else "",
            "window": window,
            "direction": "noising",
            "donor_rule": donor_rule,
            "knockout_mode": knockout_mode,
            "readout": readout,
            "delta_kind": self.delta_kind,
        }

    @override
    def check_together(self) -> None:
        if self.n_splits == 2:
            raise InputError(
                "n_splits=2: training, validation and test need 3 blocks. Give 1, or at least 3.",
                argument="n_splits",
            )
        readout = getattr(self, "readout", "probe")
        if self.probes is not None and readout != "probe":
            raise InputError(
                f"probes= needs readout='probe'; got readout={readout!r}. Leave probes out.",
                argument="probes",
            )
        if self.probes is not None and self.probes.site != self.probe_site:
            raise InputError(
                f"probe_site={self.probe_site!r}: the probes read {self.probes.site}. Give"
                f" probe_site={self.probes.site!r}.",
                argument="probe_site",
            )
