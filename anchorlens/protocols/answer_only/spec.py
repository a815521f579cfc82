"""Specification of the answer-only protocol."""

from typing import Annotated

from typing_extensions import override

from anchorlens.constants import KNOCKOUT_MODES
from anchorlens.protocols.arguments import Choice, argument
from anchorlens.protocols.probe_sweep.truth_arguments import TruthSpecification


class AnswerOnly(TruthSpecification):
    """ΔP at every layer when the same answer is read after an empty question, by pathway (METHOD 5).

    A truth probe reads the answer's last token twice: after its question, and in a fresh pass on the prompt with no question in
    it (``Q:\\nA: y``). ΔP is taken on the confidence in the clean prediction, in percentage points. The control ``other_question``
    puts another row's question there: what that moves too is not the absence of a question. Pathways are those of the knockout of
    E_Q at k*.

    Source: Luo et al. 2026; the control is ours.
    """

    NAME = "answer_only"

    knockout_mode: Annotated[str, Choice(KNOCKOUT_MODES)] = argument(
        "mask", "How the knockout that decides the pathways cuts: mask (before the softmax) or zero (after it)."
    )

    @override
    def constant_columns(self) -> dict[str, object]:
        return self.probe_columns(knockout_mode=self.knockout_mode)
