"""Arguments of every protocol that may read a truth probe or the model's own word: declared here once."""

from typing import Any

from anchorlens.errors import InputError
from anchorlens.protocols.arguments import Own, Shares, Word, argument
from anchorlens.protocols.specification import Specification
from anchorlens.vocabulary import ANSWERS, DELTA_KINDS, DISTRACTORS, FRACTIONS, PROBE_SITES


class TruthSpecification(Specification):
    """Which answers stand in the input, who tells true from false, and on what ΔP is taken."""

    answers: str = argument(
        "given",
        Word("NAME", ANSWERS),
        "Of truth readouts: given (gold answers against others') or generated (the model's own).",
    )
    distractor: str = argument(
        "matched", Word("NAME", DISTRACTORS), "Of given answers: false ones of the same kind (matched), or any (random)."
    )
    delta_kind: str = argument(
        "confidence", Word("NAME", DELTA_KINDS),
        "Of truth readouts: change of the confidence in the clean prediction, of P itself (signed), or of P of the true label.",
    )  # fmt: skip
    probe_site: str = argument("resid_post", Word("NAME", PROBE_SITES), "Where a truth probe reads.")
    fractions: Any = argument(
        FRACTIONS, Shares("A,B,C"), "Of truth readouts: shares of training, validation and test questions."
    )
    probes: Any = argument(
        None, Own("", "LayerProbes", lambda value: hasattr(value, "best_layer")),
        "Fitted probes; they refuse questions that they have seen. Trained on the training split where they are left out.",
    )  # fmt: skip

    def check_together(self) -> None:
        """See :class:`Specification`."""
        if self.probes is not None and self.probes.site != self.probe_site:
            raise InputError(
                f"These probes read {self.probes.site}; asked for is probe_site={self.probe_site!r}. Give the probe_site= that the "
                "probes have."
            )


__all__ = ["TruthSpecification"]
