"""Specification of the attention knockout protocol."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import StrictBool
from typing_extensions import override

from anchorlens.constants import KNOCKOUT_MODES, LATER, SPLIT_RULES, TRUTH_READOUTS
from anchorlens.display import short_repr
from anchorlens.errors import InputError
from anchorlens.protocols.arguments import Choice, Indices, Int, Kind, argument
from anchorlens.protocols.probe_sweep.truth_arguments import TruthSpecification
from anchorlens.questions.edges import parse_edges


class CutEdges(Kind):
    """Attention edges as text: ``source -> target``."""

    metavar: ClassVar[str] = "'A -> B'"

    @override
    def check(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise InputError(
                f"{name}={short_repr(value)} must be a text such as 'exact_question -> later'."
            )
        return " -> ".join(parse_edges(value))


class Knockout(TruthSpecification):
    """Compute ΔP at every layer after cutting attention from the question's subject and property,
    by pathway.

    For the probe at layer k, all edges from the exact question tokens (subject and property) to
    later tokens are cut in every layer <= k. ΔP is the change of the confidence in the clean
    prediction, in percentage points. Rows whose prediction flips are Q-Anchored, the others
    A-Anchored. Placebos accompany every curve, because the split uses the plotted quantity.

    Source: Luo et al. 2026 (pathways), Geva et al. 2023 (attention knockout); the placebos are new.

    Examples:
        >>> import anchorlens as al
        >>> spec = al.Knockout(edges="subject->later", knockout_mode="zero")
        >>> spec.edges
        'subject -> later'
        >>> study = al.Study("smollm2-135m-instruct", "triviaqa-sample", spec)
        >>> done = al.run_study(study, "runs/knockout")  # doctest: +SKIP
    """

    NAME = "knockout"
    QUICK_VALUES: ClassVar[Mapping[str, Any]] = {"placebos": False}
    QUICK_NULLS: ClassVar[Collection[str]] = ("placebos",)

    edges: Annotated[str, CutEdges()] = argument(
        "exact_question -> later",
        "Attention edges to cut: from an anchor to another anchor or to later (all later tokens).",
    )
    knockout_mode: Annotated[str, Choice(KNOCKOUT_MODES)] = argument(
        "mask",
        "mask: cut before the softmax, so other weights renormalise; zero: set the weight to 0"
        " after it.",
    )
    heads: Annotated[Any, Indices(of="heads")] = argument(
        None, "Query heads in which edges are cut. If None, all.", metavar="0,3"
    )
    window: Annotated[int | Literal["cumulative"], Int(1, word="cumulative")] = argument(
        "cumulative",
        "cumulative: cut in all layers up to the reported one; N: cut in N layers centred at it,"
        " read at k* (probe) or at the end (p_true).",
    )
    cut_layers: Annotated[Any, Indices(bounds=True)] = argument(
        None, "First and last layer in which edges may be cut. If None, all layers."
    )
    readout: Annotated[str, Choice(TRUTH_READOUTS)] = argument(
        "probe",
        "Readout of P: probe (P(hallucination) at the last exact answer token) or p_true (P(yes)).",
    )
    split: Annotated[str, Choice(SPLIT_RULES)] = argument(
        "fixed",
        "Split into pathways by the flip at k* (fixed) or by the flip at each layer (per_layer).",
    )
    placebos: StrictBool = argument(
        True, "Whether to measure the placebo splits.", group="controls"
    )
    split_placebo_by_side: StrictBool = argument(
        True,
        "Whether to also cut the placebo tokens before and after the source separately"
        " (random_before, random_after), since later tokens have read the source. Takes about a"
        " quarter of the time of the sweep.",
        group="controls",
    )

    @property
    def anchor(self) -> str:
        """Value of the ``anchor`` column: the source of the edges, or source and target if the
        target is an anchor.
        """
        source, target = parse_edges(self.edges)
        return source if target == LATER else self.edges

    @property
    def window_size(self) -> int:
        """Number of layers of a window; 0 for ``cumulative``."""
        return 0 if isinstance(self.window, str) else self.window

    @override
    def constant_columns(self) -> dict[str, object]:
        heads = "" if self.heads is None else f", heads {','.join(map(str, self.heads))}"
        return self.probe_columns(
            knockout_mode=self.knockout_mode + heads, readout=self.readout, window=self.window_size
        )
