"""Specification of the token patching protocol."""

from typing import Annotated, Any

from typing_extensions import override

from anchorlens.constants import DONOR_FUNCTION, ROW_RULES
from anchorlens.errors import DonorError
from anchorlens.fingerprint import callable_name
from anchorlens.protocols.arguments import Choice, Int, argument
from anchorlens.protocols.probe_sweep.truth_arguments import TruthSpecification

PATCH_BASES = ("true_predicted_true", "all")


class PatchTokens(TruthSpecification):
    """ΔP and flips at every layer when E_Q's text is replaced by another question's and the answer is kept (METHOD 5).

    A truth probe reads the last exact answer token of the patched input at every layer. ΔP is taken on the confidence in the clean
    prediction, in percentage points. Beside it stands the control random_tokens: as many other question tokens are replaced. Rows
    are also shown by pathway, as the knockout of E_Q splits them at k*.

    Source: Luo et al. 2026 (token patching, pathways); the contrasts with the control are ours.
    """

    NAME = "patch_tokens"

    base: Annotated[str, Choice(PATCH_BASES)] = argument(
        "true_predicted_true",
        "Rows that are patched: test rows whose answer is true and predicted true at k* (true_predicted_true), or all test rows.",
    )
    donors: Annotated[Any, Choice(ROW_RULES, DONOR_FUNCTION, 2, DonorError)] = argument(
        "same_relation", "Whose E_Q is put there: rows of the same relation (or kind of answer), or random ones."
    )
    n_donors: Annotated[int, Int(1)] = argument(4, "Most donors for a row; averaged per row before anything else.")

    @property
    def donor_rule(self) -> str:
        """Donor rule, as in the ``donor_rule`` column of the outputs."""
        return self.donors if isinstance(self.donors, str) else callable_name(self.donors)

    @override
    def constant_columns(self) -> dict[str, object]:
        return self.probe_columns(donor_rule=self.donor_rule)
