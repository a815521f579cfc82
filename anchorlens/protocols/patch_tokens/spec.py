"""Specification of the token patching protocol."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import StrictBool
from typing_extensions import override

from anchorlens.constants import DONOR_FUNCTION, ROW_RULES
from anchorlens.errors import DonorError
from anchorlens.fingerprint import callable_name
from anchorlens.protocols.arguments import Choice, Int, argument
from anchorlens.protocols.probe_sweep.truth_arguments import TruthSpecification

PATCH_BASES = ("true_predicted_true", "all")


class PatchTokens(TruthSpecification):
    """Compute ΔP and flips at every layer after replacing subject and property in the question's
    text, with the same answer.

    A truth probe reads the last exact answer token of the patched input at every layer. ΔP is the
    change of the confidence in the clean prediction, in percentage points. The control
    random_tokens replaces as many other question tokens. Pathways are those of the knockout at k*,
    the probe layer with the best validation AUC.

    Source: Luo et al. 2026 (token patching, pathways); the contrasts with the control are new.

    Examples:
        >>> import anchorlens as al
        >>> spec = al.PatchTokens(donors="random", n_donors=2)
        >>> spec.donor_rule
        'random'
        >>> study = al.Study("smollm2-135m-instruct", "triviaqa-sample", spec)
        >>> done = al.run_study(study, "runs/patch_tokens")  # doctest: +SKIP
    """

    NAME = "patch_tokens"
    QUICK_VALUES: ClassVar[Mapping[str, Any]] = {"n_donors": 1, "placebos": False}
    QUICK_NULLS: ClassVar[Collection[str]] = ("placebos",)

    base: Annotated[str, Choice(PATCH_BASES)] = argument(
        "true_predicted_true",
        "Rows to patch: test rows with a true answer that is predicted true at k*"
        " (true_predicted_true), or all test rows (all).",
    )
    donors: Annotated[Any, Choice(ROW_RULES, DONOR_FUNCTION, 2, DonorError)] = argument(
        "same_relation",
        "Donors of subject and property: rows of the same relation or kind of answer"
        " (same_relation), or random rows (random).",
    )
    n_donors: Annotated[int, Int(1)] = argument(
        4, "Maximum number of donors per row; effects are averaged over donors first."
    )
    placebos: StrictBool = argument(
        True,
        "Whether to measure the control random_tokens; nothing is claimed without it.",
        group="controls",
    )

    @property
    def donor_rule(self) -> str:
        """Value of the ``donor_rule`` column."""
        return self.donors if isinstance(self.donors, str) else callable_name(self.donors)

    @override
    def constant_columns(self) -> dict[str, object]:
        return self.probe_columns(donor_rule=self.donor_rule)
