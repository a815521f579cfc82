"""What a knockout takes: every argument once, with its help and its checks."""

from typing import Any

from anchorlens.edges import parse_edges
from anchorlens.errors import InputError
from anchorlens.kinds import described
from anchorlens.protocols.arguments import Kind, Numbers, Switch, Whole, Word, argument
from anchorlens.protocols.truth_arguments import TruthSpecification
from anchorlens.vocabulary import KNOCKOUT_MODES, LATER, SPLIT_RULES, TRUTH_READOUTS


class Edges(Kind):
    """``source -> target``."""

    def check(self, name: str, value: Any) -> str:
        """With one space on either side of the arrow."""
        if not isinstance(value, str):
            raise InputError(f"{name} takes a text such as 'question -> later'; got {described(value)}.")
        return " -> ".join(parse_edges(value))


class Knockout(TruthSpecification):
    """ΔP at every layer when attention from the question's exact tokens is cut, by pathway, with placebos (METHOD 5).

    For the probe at layer k all edges from E_Q to later tokens are cut in every layer <= k; ΔP is taken on the confidence in the
    clean prediction, in percentage points. Rows whose prediction flips are Q-Anchored, the others A-Anchored. Because the split
    uses the plotted quantity, every curve comes with its placebos.

    Source: Luo et al. 2026 (pathways), Geva et al. 2023 (attention knockout); the placebos are ours.
    """

    NAME = "knockout"

    edges: str = argument(
        "question -> later",
        Edges("'A -> B'"),
        "Attention that is cut: from an anchor to an anchor, or to later (all later tokens).",
    )
    mode: str = argument(
        "mask",
        Word("NAME", KNOCKOUT_MODES),
        "mask: before the softmax, the other weights renormalise; zero: the weight is 0 after it.",
    )
    heads: Any = argument(None, Numbers("0,3"), "Query heads in which edges are cut; all if left out.")
    window: int | None = argument(
        None, Whole("N", 1, none="all layers up to the one that is read"),
        "Layers that are cut together, centred at the one that is reported, and read at k* (probe) or at the end (p_true); all "
        "layers up to the one that is read if left out.",
    )  # fmt: skip
    cut_layers: Any = argument(None, Numbers("0-11", pair=True), "First and last layer in which edges may be cut at all.")
    readout: str = argument(
        "probe",
        Word("NAME", TRUTH_READOUTS),
        "What P is: probe (P(hallucination) at the last exact answer token) or p_true (P(yes)).",
    )
    split: str = argument(
        "fixed",
        Word("NAME", SPLIT_RULES),
        "Pathways by the flip at k* (fixed), or at each layer by the flip there (per_layer).",
    )
    placebos: bool = argument(True, Switch("", off="--no-placebos"), "Measure the placebo splits too.")
    placebo_sides: bool = argument(
        True, Switch("", off="--no-placebo-sides"),
        "Cut the placebo's tokens before and after the source apart, too (random_before, random_after): what stands after it has "
        "already read it. Takes about a quarter of the sweep's time.",
    )  # fmt: skip

    @property
    def anchor(self) -> str:
        """What is cut off, as outputs name it."""
        source, target = parse_edges(self.edges)
        return source if target == LATER else self.edges

    def check_together(self) -> None:
        """See :class:`Specification`."""
        super().check_together()
        if self.probes is not None and self.readout != "probe":
            raise InputError(f"probes= is for readout='probe'; got readout={self.readout!r}.")


__all__ = ["Knockout"]
