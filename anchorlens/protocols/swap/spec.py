"""Specification of the swap protocol."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import StrictBool
from typing_extensions import override

from anchorlens.constants import (
    ALIGNMENTS,
    ANCHORS,
    ANSWER_READOUTS,
    DIRECTIONS,
    DONOR_FUNCTION,
    DONOR_RULES,
    NULL_REGIONS,
    SITES,
    STATISTIC_RULES,
    TRUTH_READOUTS,
)
from anchorlens.errors import DonorError, InputError
from anchorlens.fingerprint import callable_name
from anchorlens.protocols.arguments import Choice, Choices, Int, argument
from anchorlens.protocols.probe_sweep.truth_arguments import TruthSpecification

_READOUTS = Choice((*ANSWER_READOUTS, *TRUTH_READOUTS), "a function of log-probabilities and mask", 2)
# Arguments that an answer readout ignores.
_TRUTH_ONLY = ("answers", "distractor", "delta_kind", "probes", "probe_site", "fractions")


class Swap(TruthSpecification):
    """ΔP at every layer when an anchor's activations are swapped with a donor's (METHOD 4).

    At one layer, the stream at an anchor's positions is replaced by that of a donor run; the model goes on; P of the base's answer
    is read. ΔP = 100 * (P after - P before), in percentage points; negative where the change took support away (noising), or
    positive where it gave support back (denoising). Beside every curve stands a null: the donor's streams at random other positions.
    """

    NAME = "swap"

    anchors: Annotated[Any, Choices(ANCHORS, "anchor")] = argument(
        ("exact_question", "pre_answer"),
        "Roles whose activations are swapped, each on its own. answer is for truth readouts alone.",
    )
    readout: Annotated[Any, _READOUTS] = argument(
        "first_token",
        "What P is: first_token, answer_mean or answer_joint of the answer; or the truth readouts probe (P(hallucination) at "
        "k*) and p_true (P(yes) where the model is asked whether the answer is right).",
    )
    site: Annotated[Any, Choice(SITES, "a function layer -> hook name", 1)] = argument(
        "resid_pre", "Which activation of a block is replaced."
    )
    window: Annotated[int, Int(1)] = argument(1, "Layers that are changed together, centred at the one that is reported.")
    direction: Annotated[str, Choice(DIRECTIONS)] = argument(
        "noising", "noising (is it necessary?) or denoising (is it sufficient?)."
    )
    donors: Annotated[Any, Choice(DONOR_RULES, DONOR_FUNCTION, 2, DonorError)] = argument(
        "same_relation", "Whose activations are put there: rows (same_relation, random) or a statistic (mean, zero, noise)."
    )
    n_donors: Annotated[int, Int(1)] = argument(4, "Most donors for a row; averaged per row before anything else.")
    align: Annotated[str, Choice(ALIGNMENTS)] = argument(
        "equal", "equal: paired segments have one length; last: they are paired from their last token."
    )
    known_only: StrictBool = argument(
        False, "Keep only questions that the model answers right, with its own answer in the input.", off="--all-rows"
    )
    n_null_donors: Annotated[int, Int()] = argument(
        1, "Donors of each row that measure the null too; 0: no null.", group="controls"
    )
    null_region: Annotated[str, Choice(NULL_REGIONS)] = argument(
        "question",
        "Where the null lies: question: from the question on; prompt: in shots and template too.",
        group="controls",
    )

    @classmethod
    @override
    def from_config(cls, config: Mapping[str, Any]) -> "Swap":
        answer = config.get("readout") not in TRUTH_READOUTS
        unused = {*(_TRUTH_ONLY if answer else ()), *(("n_donors",) if config.get("donors") in STATISTIC_RULES else ())}
        return super().from_config({name: value for name, value in config.items() if name not in unused})

    @property
    def is_truth_readout(self) -> bool:
        """Whether the readout is a truth readout."""
        return self.readout in TRUTH_READOUTS

    @property
    def kind(self) -> str:
        """Quantity of ΔP; ``probability`` for answer readouts."""
        return self.delta_kind if self.is_truth_readout else "probability"

    @property
    def donor_rule(self) -> str:
        """Donor rule, and the alignment if it is not ``equal``, as in the ``donor_rule`` column of the outputs."""
        rule = self.donors if isinstance(self.donors, str) else callable_name(self.donors)
        return rule if self.align == "equal" else f"{rule}, align={self.align}"

    @override
    def constant_columns(self) -> dict[str, object]:
        site, readout = (one if isinstance(one, str) else callable_name(one) for one in (self.site, self.readout))
        return {
            "pathway": "", "site": site, "probe_site": self.probe_site if readout == "probe" else "", "window": self.window,
            "direction": self.direction, "donor_rule": self.donor_rule, "knockout_mode": "", "readout": readout, "delta_kind": self.kind,
        }  # fmt: skip

    @override
    def check_together(self) -> None:
        from_rows = self.donors not in STATISTIC_RULES
        noising = self.direction == "noising"
        contradictions = [
            (
                "anchors", "answer" in self.anchors and not self.is_truth_readout,
                "The anchor 'answer' is for readouts after the answer: a stream at an answer token cannot change that token's own "
                "probability. Use 'pre_answer' or 'pre_answer_all'.",
            ),
            (
                "donors", not noising and not from_rows,
                f"direction='denoising' needs donor rows, and donors={self.donors!r} has none. Use donors='same_relation' or "
                "donors='random'.",
            ),
            (
                "n_donors", not from_rows and self.n_donors not in (1, self.default_of("n_donors")),
                f"n_donors={self.n_donors} is for donor rows: donors={self.donors!r} puts one stream there. Leave n_donors out.",
            ),
            (
                "null_region", self.null_region != "question" and not self.n_null_donors,
                f"null_region={self.null_region!r} says where the null lies, and n_null_donors=0 measures none. Leave one of them out.",
            ),
            (
                "delta_kind", self.is_truth_readout and not noising and self.delta_kind == "confidence",
                "direction='denoising' starts from a corrupt input, and delta_kind='confidence' speaks of the clean prediction. "
                "Use delta_kind='true_label' or delta_kind='signed'.",
            ),
            (
                "known_only", self.is_truth_readout and self.known_only,
                "known_only=True keeps right answers alone, and a truth readout needs wrong ones too. Leave it off.",
            ),
        ]  # fmt: skip
        for name, is_wrong, message in contradictions:
            if is_wrong:
                raise InputError(message, argument=name)
        if not self.is_truth_readout:
            for name in _TRUTH_ONLY:
                if getattr(self, name) != self.default_of(name):
                    readout = callable_name(self.readout) if callable(self.readout) else repr(self.readout)
                    raise InputError(
                        f"{name}= belongs to the readouts 'probe' and 'p_true'; this sweep has readout={readout}.",
                        argument=name,
                    )
            return
        super().check_together()
