"""What an answer-only sweep takes: every argument once, with its help and its checks."""

from anchorlens.protocols.arguments import Word, argument
from anchorlens.protocols.truth_arguments import TruthSpecification
from anchorlens.vocabulary import KNOCKOUT_MODES


class AnswerOnly(TruthSpecification):
    """ΔP at every layer when the same answer is read after an empty question, by pathway (METHOD 5).

    A truth probe reads the answer's last token twice: after its question, and in a fresh pass on the prompt with no question in
    it (``Q:\\nA: y``). ΔP is taken on the confidence in the clean prediction, in percentage points. The control ``other_question``
    puts another row's question there: what that moves too is not the absence of a question. Pathways are those of the knockout of
    E_Q at k*.

    Source: Luo et al. 2026; the control is ours.
    """

    NAME = "answer_only"

    mode: str = argument(
        "mask", Word("NAME", KNOCKOUT_MODES),
        "How the knockout that decides the pathways cuts: mask (before the softmax) or zero (after it).",
    )  # fmt: skip


__all__ = ["AnswerOnly"]
