"""What token patching takes: every argument once, with its help and its checks."""

from typing import Any

from anchorlens.callables import callable_name
from anchorlens.errors import DonorError
from anchorlens.protocols.arguments import Whole, Word, argument
from anchorlens.protocols.truth_arguments import TruthSpecification
from anchorlens.vocabulary import ROW_RULES

PATCH_BASES = ("true_predicted_true", "all")


class PatchTokens(TruthSpecification):
    """ΔP and flips at every layer when E_Q's text is replaced by another question's and the answer is kept (METHOD 5).

    A truth probe reads the last exact answer token of the patched input at every layer. ΔP is taken on the confidence in the clean
    prediction, in percentage points. Beside it stands the control random_tokens: as many other question tokens are replaced. Rows
    are also shown by pathway, as the knockout of E_Q splits them at k*.

    Source: Luo et al. 2026 (token patching, pathways); the contrasts with the control are ours.
    """

    NAME = "patch_tokens"

    base: str = argument(
        "true_predicted_true", Word("NAME", PATCH_BASES),
        "Rows that are patched: test rows whose answer is true and predicted true at k* (true_predicted_true), or all test rows.",
    )  # fmt: skip
    donors: Any = argument(
        "same_relation", Word("RULE", ROW_RULES, "a function of a row and the pool that gives rows of the pool", DonorError, 2),
        "Whose E_Q is put there: rows of the same relation (or kind of answer), or random ones.",
    )  # fmt: skip
    n_donors: int = argument(4, Whole("N", 1), "Most donors for a row; averaged per row before anything else.")

    @property
    def mode(self) -> str:
        """The donor rule: the ``mode`` column of the outputs."""
        return self.donors if isinstance(self.donors, str) else callable_name(self.donors)


__all__ = ["PATCH_BASES", "PatchTokens"]
