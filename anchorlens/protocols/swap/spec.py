"""What a swap takes: every argument once, with its help and its checks."""

from collections.abc import Mapping
from typing import Any

from anchorlens.callables import callable_name
from anchorlens.errors import DonorError, InputError
from anchorlens.protocols.arguments import Switch, Whole, Word, Words, argument
from anchorlens.protocols.truth_arguments import TruthSpecification
from anchorlens.vocabulary import (
    ALIGNMENTS,
    ANCHORS,
    ANSWER_READOUTS,
    DIRECTIONS,
    DONOR_RULES,
    NULL_PLACES,
    SITES,
    STATISTIC_RULES,
    TRUTH_READOUTS,
)

# Arguments that an answer readout would pass over.
_OF_TRUTH = ("answers", "distractor", "delta_kind", "probes", "probe_site", "fractions")


class Swap(TruthSpecification):
    """ΔP at every layer when an anchor's activations are swapped with a donor's (METHOD 4).

    At one layer, the stream at an anchor's positions is replaced by that of a donor run; the model goes on; P of the base's answer
    is read. ΔP = 100 * (P after - P before), in percentage points; negative where the change took support away (noising), or
    positive where it gave support back (denoising). Beside every curve stands a null: the donor's streams at random other positions.
    """

    NAME = "swap"

    anchors: Any = argument(
        ("question", "answer_site"), Words("A,B", ANCHORS, "anchor"),
        "Roles whose activations are swapped, each on its own. answer is for truth readouts alone.",
    )  # fmt: skip
    readout: Any = argument(
        "first_token", Word("NAME", (*ANSWER_READOUTS, *TRUTH_READOUTS), "a function of log-probabilities and mask", takes=2),
        "What P is: first_token, answer_mean or answer_joint of the answer; or the truth readouts probe (P(hallucination) at k*) "
        "and p_true (P(yes) where the model is asked whether the answer is right).",
    )  # fmt: skip
    site: Any = argument(
        "resid_pre", Word("NAME", SITES, "a function layer -> hook name", takes=1), "Which activation of a block is replaced.",
    )  # fmt: skip
    window: int = argument(1, Whole("N", 1), "Layers that are changed together, centred at the one that is reported.")
    direction: str = argument(
        "noising", Word("NAME", DIRECTIONS), "noising (is it necessary?) or denoising (is it sufficient?)."
    )
    donors: Any = argument(
        "same_relation", Word("RULE", DONOR_RULES, "a function of a row and the pool that gives rows of the pool", DonorError, 2),
        "Whose activations are put there: rows (same_relation, random) or a statistic (mean, zero, noise).",
    )  # fmt: skip
    n_donors: int = argument(4, Whole("N", 1), "Most donors for a row; averaged per row before anything else.")
    align: str = argument(
        "equal",
        Word("NAME", ALIGNMENTS),
        "equal: paired segments have one length; last: they are paired from their last token.",
    )
    known_only: bool = argument(
        False,
        Switch("", off="--all-rows"),
        "Keep only questions that the model answers right, with its own answer in the input.",
    )
    null_donors: int = argument(1, Whole("N", 0), "Donors of each row that measure the null too; 0: no null.")
    null: str = argument(
        "own", Word("NAME", NULL_PLACES),
        "Where the null lies: own: in the row's own part of the prompt, from the question on; anywhere: in shots and template too.",
    )  # fmt: skip

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Swap":
        """See :class:`Specification`; with an answer readout, a record's words on truth readouts mean nothing."""
        answer = config.get("readout") not in TRUTH_READOUTS
        unused = {*(_OF_TRUTH if answer else ()), *(("n_donors",) if config.get("donors") in STATISTIC_RULES else ())}
        return super().from_config({name: value for name, value in config.items() if name not in unused})

    @property
    def of_truth(self) -> bool:
        """Whether a truth readout is read."""
        return self.readout in TRUTH_READOUTS

    @property
    def kind(self) -> str:
        """What ΔP is taken on: ``probability`` for answers."""
        return self.delta_kind if self.of_truth else "probability"

    @property
    def mode(self) -> str:
        """The donor rule, and the alignment where it is not ``equal``: the ``mode`` column of the outputs."""
        rule = self.donors if isinstance(self.donors, str) else callable_name(self.donors)
        return rule if self.align == "equal" else f"{rule}, align={self.align}"

    def check_together(self) -> None:
        """See :class:`Specification`."""
        if "answer" in self.anchors and not self.of_truth:
            raise InputError(
                "The anchor 'answer' is for readouts after the answer: a stream at an answer token cannot change that token's "
                "own probability. Use 'answer_site' or 'answer_site_all'."
            )
        if self.direction == "denoising" and self.donors in STATISTIC_RULES:
            raise InputError(
                f"direction='denoising' needs donor rows, and donors={self.donors!r} has none. Use donors='same_relation' or "
                "donors='random'."
            )
        if self.donors in STATISTIC_RULES and self.n_donors not in (1, type(self).model_fields["n_donors"].get_default()):
            raise InputError(
                f"n_donors={self.n_donors} is for donor rows: donors={self.donors!r} puts one stream there. Leave n_donors out."
            )
        if self.null != "own" and not self.null_donors:
            raise InputError(
                f"null={self.null!r} says where the null lies, and null_donors=0 measures none. Leave one of them out."
            )
        if not self.of_truth:
            for name in _OF_TRUTH:
                if getattr(self, name) != type(self).model_fields[name].get_default():
                    said = callable_name(self.readout) if callable(self.readout) else repr(self.readout)
                    raise InputError(f"{name}= belongs to the readouts 'probe' and 'p_true'; this sweep has readout={said}.")
            return
        if self.direction == "denoising" and self.delta_kind == "confidence":
            raise InputError(
                "direction='denoising' starts from a corrupt input, and delta_kind='confidence' speaks of the clean prediction. "
                "Use delta_kind='true_label' or delta_kind='signed'."
            )
        if self.known_only:
            raise InputError(
                "known_only=True keeps right answers alone, and a truth readout needs wrong ones too. Leave it off."
            )
        if self.probes is not None and self.readout != "probe":
            raise InputError(f"probes= is for readout='probe'; got readout={self.readout!r}.")


__all__ = ["Swap"]
