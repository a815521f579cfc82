"""Specification of the swap protocol."""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import StrictBool
from typing_extensions import override

from anchorlens.constants import (
    ALIGNMENTS,
    ANCHORS,
    ANSWER_READOUTS,
    BOTH_DIRECTIONS,
    DIRECTION_RULES,
    DIRECTIONS,
    DONOR_FUNCTION,
    DONOR_RULES,
    NULL_CONTROLS,
    NULL_REGIONS,
    SITES,
    STATISTIC_RULES,
    TRUTH_READOUTS,
)
from anchorlens.errors import DonorError, InputError
from anchorlens.fingerprint import callable_name
from anchorlens.protocols.arguments import Choice, Choices, Int, argument
from anchorlens.protocols.probe_sweep.truth_arguments import TruthSpecification

_READOUTS = Choice(
    (*ANSWER_READOUTS, *TRUTH_READOUTS), "a function of log-probabilities and mask", 2
)
# Arguments that answer readouts do not use.
Contradiction: TypeAlias = tuple[str, bool, str]
"""Argument that contradicts another, whether it does, and the message."""

_TRUTH_ONLY = ("answers", "distractor", "delta_kind", "probes", "probe_site", "n_splits")


class Swap(TruthSpecification):
    """Compute ΔP at every layer after swapping the activations of an anchor with those of another
    question, the donor.

    At one layer, the residual stream at an anchor's positions is replaced by that of the donor's
    forward pass. P of the answer to the original question is then read. ΔP = 100 * (P after - P
    before), in percentage points; negative if the swap removes support for the answer (noising),
    positive if it restores support (denoising). Every curve has two nulls by default: a swap of as
    many other positions, and a change of the same norm and angle in another direction at the
    anchor.

    Examples:
        >>> import anchorlens as al
        >>> spec = al.Swap(anchors="pre_answer", layers="0-28:4", n_donors=1)
        >>> spec.layers
        (0, 4, 8, 12, 16, 20, 24, 28)
        >>> study = al.Study("smollm2-135m-instruct", "popqa-sample", spec)
        >>> done = al.run_study(study, "runs/swap")  # doctest: +SKIP
    """

    NAME = "swap"
    QUICK_VALUES: ClassVar[Mapping[str, Any]] = {"n_donors": 1, "n_null_donors": 0}
    QUICK_NULLS: ClassVar[Collection[str]] = ("n_null_donors",)

    anchors: Annotated[Any, Choices(ANCHORS, "anchor")] = argument(
        ("exact_question", "pre_answer"),
        f"Anchors to swap, each separately: {', '.join(ANCHORS)}. The anchor answer needs a truth"
        " readout.",
    )
    readout: Annotated[Any, _READOUTS] = argument(
        "first_token",
        "Readout of P: first_token, answer_mean or answer_joint of the answer, or the truth"
        " readouts probe (P that the answer is false, by a truth probe) and p_true (P(yes) after a"
        " question about the answer's truth).",
    )
    metric: Annotated[str, Choice(("prob", "logit_diff"))] = argument(
        "prob",
        "Metric of the claims: prob (probability of the answer) or logit_diff (logit of the answer"
        " minus that of the donor's answer). Both are measured; the verdict says where they"
        " differ.",
    )
    site: Annotated[Any, Choice(SITES, "a function layer -> hook name", 1)] = argument(
        "resid_pre", f"Hook site whose activation is replaced: {', '.join(SITES)}."
    )
    window: Annotated[int, Int(1)] = argument(
        1, "Number of layers to swap together, centred at the reported one."
    )
    direction: Annotated[str, Choice((*DIRECTIONS, BOTH_DIRECTIONS))] = argument(
        "noising",
        "noising (tests necessity), denoising (tests sufficiency) or both (one sweep of each, told"
        " together).",
    )
    donors: Annotated[Any, Choice(DONOR_RULES, DONOR_FUNCTION, 2, DonorError)] = argument(
        "same_relation",
        "Source of the activations: donor rows (same_relation, random) or a statistic (mean, zero,"
        " noise).",
    )
    n_donors: Annotated[int, Int(1)] = argument(
        4, "Maximum number of donors per row; effects are averaged over donors first."
    )
    align: Annotated[str, Choice(ALIGNMENTS)] = argument(
        "equal",
        "Alignment of paired segments: equal (same length only) or last (paired from the last"
        " token).",
    )
    known_only: StrictBool = argument(
        False,
        "Whether to keep only questions that the model answers correctly, with its own answer in"
        " the input.",
        off="--all-rows",
    )
    n_null_donors: Annotated[int, Int()] = argument(
        1, "Number of donors per row with a null; 0 measures no null.", group="controls"
    )
    null: Annotated[Any, Choices(tuple(NULL_CONTROLS), "null", "n_null_donors=0")] = argument(
        ("same_role", "norm_matched"),
        "Nulls: same_role (the donor's streams of other positions, each at its counterpart),"
        " norm_matched (the anchor's stream with the norm and angle of the donor's, turned in"
        " another direction), displaced (the anchor's donor streams at random other positions) or"
        " same_answer (the anchor's streams of another question with the same answer). The default"
        " is norm_matched alone for the donors mean and noise.",
        group="controls",
    )
    n_null_draws: Annotated[int, Int(1)] = argument(
        4,
        "Number of draws of norm_matched for each row and donor; ΔP is averaged over them.",
        group="controls",
    )
    null_direction: Annotated[str, Choice(DIRECTION_RULES)] = argument(
        "data",
        "Direction of norm_matched: data (difference of two other rows at the same role) or"
        " gaussian.",
        group="controls",
    )
    null_region: Annotated[str, Choice(NULL_REGIONS)] = argument(
        "question",
        "Region of displaced: question (from the question on) or prompt (also shots and template).",
        group="controls",
    )

    @classmethod
    @override
    def from_config(cls, config: Mapping[str, Any]) -> "Swap":
        answer = config.get("readout") not in TRUTH_READOUTS
        unused: set[str] = set(_TRUTH_ONLY) if answer else set()
        if config.get("donors") in STATISTIC_RULES:
            unused.add("n_donors")
            if config.get("null") == ["norm_matched"]:
                unused.add("null")
        return super().from_config(
            {name: value for name, value in config.items() if name not in unused}
        )

    @override
    def each_direction(self) -> "tuple[Swap, ...]":
        if self.direction != BOTH_DIRECTIONS:
            return (self,)
        return tuple(self.replace(direction=one) for one in DIRECTIONS)

    @property
    def is_truth_readout(self) -> bool:
        """Whether the readout is ``probe`` or ``p_true``."""
        return self.readout in TRUTH_READOUTS

    @property
    def kind(self) -> str:
        """Kind of ΔP; ``probability`` for answer readouts."""
        return self.delta_kind if self.is_truth_readout else "probability"

    @property
    def nulls(self) -> tuple[str, ...]:
        """Names of the measured nulls; ``same_role`` needs donor rows."""
        if not self.n_null_donors:
            return ()
        wanted = set(self.null)
        if self.donors in STATISTIC_RULES:
            wanted -= {"same_role", "same_answer"}
        if self.donors == "zero":
            wanted.discard("norm_matched")
        return tuple(name for name in NULL_CONTROLS if name in wanted)

    @property
    def null_controls(self) -> tuple[str, ...]:
        """Controls of the measured nulls."""
        return tuple(NULL_CONTROLS[name] for name in self.nulls)

    @property
    def donor_rule(self) -> str:
        """Value of the ``donor_rule`` column: the rule, and the alignment unless it is
        ``equal``.
        """
        rule = _name_of(self.donors)
        return rule if self.align == "equal" else f"{rule}, align={self.align}"

    @override
    def constant_columns(self) -> dict[str, object]:
        readout = _name_of(self.readout)
        return {
            "pathway": "",
            "site": _name_of(self.site),
            "probe_site": self.probe_site if readout == "probe" else "",
            "window": self.window,
            "direction": self.direction,
            "donor_rule": self.donor_rule,
            "knockout_mode": "",
            "readout": readout,
            "delta_kind": self.kind,
        }

    def _nulls_without_rows(self) -> Iterator[Contradiction]:
        """Yield a contradiction for each null that a statistic as donor does not have."""
        is_default = self.null == self.default_of("null")
        without: dict[str, tuple[str, ...]] = {
            "same_role": STATISTIC_RULES,
            "same_answer": STATISTIC_RULES,
        }
        without["norm_matched"] = ("zero",)
        for name, rules in without.items():
            is_wrong = name in self.null and self.donors in rules and not is_default
            message = (
                f"null={self.null!r}: {name!r} is not defined for donors={self.donors!r}. Leave"
                f" {name!r} out."
            )
            yield "null", is_wrong, message

    def _donor_contradictions(self) -> Iterator[Contradiction]:
        from_rows = self.donors not in STATISTIC_RULES
        yield (
            "donors",
            self.direction != "noising" and not from_rows,
            (
                f"donors={self.donors!r}: direction='denoising' needs donor rows. Use"
                " donors='same_relation' or donors='random'."
            ),
        )
        yield (
            "n_donors",
            not from_rows and self.n_donors not in (1, self.default_of("n_donors")),
            (
                f"n_donors={self.n_donors} needs donor rows; got donors={self.donors!r}. Leave"
                " n_donors out."
            ),
        )

    def _null_contradictions(self) -> Iterator[Contradiction]:
        yield (
            "null",
            self.null != self.default_of("null") and not self.n_null_donors,
            (
                f"null={self.null!r} needs a null, but n_null_donors=0 measures none. Leave one"
                " of them out."
            ),
        )
        yield from self._nulls_without_rows()
        yield (
            "null",
            "same_answer" in self.null and self.direction != "noising",
            (
                f"null={self.null!r}: 'same_answer' needs direction='noising'. Leave"
                " 'same_answer' out."
            ),
        )
        yield (
            "null_region",
            self.null_region != "question" and not self.n_null_donors,
            (
                f"null_region={self.null_region!r} needs a null, but n_null_donors=0 measures"
                " none. Leave one of them out."
            ),
        )
        yield (
            "null_region",
            self.null_region != "question" and "displaced" not in self.null,
            (
                f"null_region={self.null_region!r} is a region of 'displaced'; got"
                f" null={self.null!r}. Leave null_region out."
            ),
        )

    def _readout_contradictions(self) -> Iterator[Contradiction]:
        is_truth = self.is_truth_readout
        from_rows = self.donors not in STATISTIC_RULES
        yield (
            "delta_kind",
            is_truth and self.direction != "noising" and self.delta_kind == "confidence",
            (
                "delta_kind='confidence' is the confidence in the clean prediction, but"
                " direction='denoising' starts from a corrupt input. Use"
                " delta_kind='true_label' or delta_kind='signed'."
            ),
        )
        yield (
            "metric",
            self.metric != "prob" and (is_truth or not from_rows),
            (
                f"metric={self.metric!r} needs a donor's answer: an answer readout and donor"
                " rows. Leave metric out."
            ),
        )
        yield (
            "known_only",
            is_truth and self.known_only,
            (
                "known_only=True keeps correct answers only, but truth readouts need false"
                " answers too. Leave known_only out."
            ),
        )

    @override
    def check_together(self) -> None:
        needs_truth = (
            "anchors",
            "answer" in self.anchors and not self.is_truth_readout,
            (
                f"anchors={self.anchors!r}: 'answer' needs a truth readout, since a stream at"
                " an answer token cannot change the probability of that token. Use"
                " 'pre_answer' or 'pre_answer_all'."
            ),
        )
        for name, is_wrong, message in (
            needs_truth,
            *self._donor_contradictions(),
            *self._null_contradictions(),
            *self._readout_contradictions(),
        ):
            if is_wrong:
                raise InputError(message, argument=name)
        if not self.is_truth_readout:
            self._check_no_truth_arguments()
            return
        super().check_together()

    def _check_no_truth_arguments(self) -> None:
        for name in _TRUTH_ONLY:
            if getattr(self, name) == self.default_of(name):
                continue
            readout = callable_name(self.readout) if callable(self.readout) else repr(self.readout)
            raise InputError(
                f"{name}= needs the readout 'probe' or 'p_true'; got readout={readout}."
                f" Leave {name} out.",
                argument=name,
            )


def _name_of(value: Any) -> str:
    """Return a name as it is, and the name of a function or site of the user."""
    return value if isinstance(value, str) else callable_name(value)
