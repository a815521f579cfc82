"""Specification of the answer-only protocol."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import StrictBool
from typing_extensions import override

from anchorlens.constants import KNOCKOUT_MODES
from anchorlens.protocols.arguments import Choice, argument
from anchorlens.protocols.probe_sweep.truth_arguments import TruthSpecification


class AnswerOnly(TruthSpecification):
    """Compute ΔP at every layer for the same answer after an empty question, by pathway.

    A truth probe reads the last answer token twice: after its question, and in a separate pass on
    the prompt without the question (``Q:\\nA: y``). ΔP is the change of the confidence in the clean
    prediction, in percentage points. The control ``other_question`` inserts another row's question;
    effects of the control are not due to the missing question. Pathways are those of the knockout
    at k*, the probe layer with the best validation AUC.

    Source: Luo et al. 2026; the control is new.

    Examples:
        >>> import anchorlens as al
        >>> spec = al.AnswerOnly(layers=(0, 12, 24), seed=1)
        >>> spec.replace(seed=2).layers
        (0, 12, 24)
        >>> study = al.Study("smollm2-135m-instruct", "triviaqa-sample", spec)
        >>> done = al.run_study(study, "runs/answer_only")  # doctest: +SKIP
    """

    NAME = "answer_only"
    QUICK_VALUES: ClassVar[Mapping[str, Any]] = {"placebos": False}
    QUICK_NULLS: ClassVar[Collection[str]] = ("placebos",)

    knockout_mode: Annotated[str, Choice(KNOCKOUT_MODES)] = argument(
        "mask",
        "Cut of the knockout that splits the pathways: mask (before the softmax) or zero (after"
        " it).",
    )
    placebos: StrictBool = argument(
        True,
        "Whether to measure the control other_question; nothing is claimed without it.",
        group="controls",
    )

    @override
    def constant_columns(self) -> dict[str, object]:
        return self.probe_columns(knockout_mode=self.knockout_mode)
