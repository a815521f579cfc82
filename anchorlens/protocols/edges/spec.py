"""Specification of the edge protocol."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import StrictBool
from typing_extensions import override

from anchorlens.constants import (
    BETWEEN,
    DIRECTIONS,
    DOWNSTREAM,
    EDGE_BY,
    EDGE_CONTROLS,
    EDGE_METHODS,
)
from anchorlens.display import short_repr
from anchorlens.errors import InputError
from anchorlens.fingerprint import callable_name, takes_row
from anchorlens.protocols.arguments import Choice, Int, Kind, argument
from anchorlens.protocols.patch.spec import (
    AUTO,
    EXACT,
    METRIC,
    METRIC_ARGUMENT,
    METRIC_POSITIONS,
    NONE,
    SPOT_CHECKS,
    Controls,
    Positions,
)
from anchorlens.protocols.specification import ADD_BOS, Specification

ATTRIBUTION, ATTRIBUTION_IG = "attribution", "attribution_ig"
IG_ACTIVATIONS = "attribution_ig_activations"
_ALL = ("all",)


@dataclass(frozen=True)
class _Nodes(Kind):
    """Names or patterns of senders, receivers or edges; those of the model are known later."""

    none: bool = False
    metavar: ClassVar[str] = "A,B"

    @override
    def check(self, name: str, value: Any) -> "tuple[str, ...] | None":
        if value is None and self.none:
            return None
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        is_list = isinstance(value, Sequence) and all(isinstance(one, str) for one in value)
        if not is_list or not value:
            raise InputError(
                f"{name}={short_repr(value)} must be one or more names, such as 'a5.h3', 'm4' or"
                " 'a9.*'."
            )
        return tuple(dict.fromkeys(value))


class Edges(Specification):
    """Measure the effect of edges: what a sender adds to the residual stream, as one receiver reads
    it.

    Senders are the embedding, heads and MLPs; receivers are the queries, keys and values of heads,
    MLPs and the logits. An edge replaces the sender's contribution in the receiver's input by that
    of the other prompt of the pair. Everything behind the receiver is recomputed, or frozen.

    ``exact`` runs this intervention, under grouped queries too. ``attribution`` estimates it by the
    gradient at the receiver's input. The effect is the metric after the change minus the metric
    before. With 10 pairs or more, the same edge with the contribution of another pair is the
    control; bands are simultaneous over all edges.

    Source: Goldowsky-Dill et al. 2023, Wang et al. 2023 (path patching), Syed et al. 2023 (edge
    attribution), Hanna et al. 2024 (integrated gradients).

    Examples:
        >>> import anchorlens as al
        >>> spec = al.Edges(senders="a1*,m1*", receivers="a20.*")
        >>> spec.senders
        ('a1*', 'm1*')
        >>> study = al.Study("smollm2-135m-instruct", "ioi-pairs", spec)
        >>> done = al.run_study(study, "runs/edges")  # doctest: +SKIP
    """

    NAME = "edges"
    DATA = "pairs"
    QUICK_VALUES: ClassVar[Mapping[str, Any]] = {"controls": NONE}
    QUICK_NULLS: ClassVar[Collection[str]] = ("controls",)

    senders: Annotated[tuple[str, ...], _Nodes()] = argument(
        _ALL,
        "Senders: names (embed, a5.h3, m4), patterns (a5.*), or all, heads, mlps.",
    )
    receivers: Annotated[tuple[str, ...], _Nodes()] = argument(
        _ALL,
        "Receivers: names (a9.h1.q, m9, logits), patterns (a9.*, *.k), or all, q, k, v, mlps. Keys"
        " and values have the number of their key/value head.",
    )
    edges: Annotated[tuple[str, ...] | None, _Nodes(none=True)] = argument(
        None,
        "Names of single edges, such as 'a5.h3 -> a9.h1.q', instead of senders and receivers. If"
        " None, all edges from senders to receivers.",
    )
    method: Annotated[str, Choice(EDGE_METHODS)] = argument(
        EXACT,
        "exact (the intervention itself), attribution (change times gradient, as EAP),"
        " attribution_ig (the gradient averaged over interpolated embeddings, as EAP-IG), or"
        " attribution_ig_activations (averaged over interpolated outputs of each layer's attention"
        " and MLP, as EAP-IG over activations).",
    )
    steps: Annotated[int, Int(1, most=10**4)] = argument(
        5,
        "Number of interpolated runs of attribution_ig; of attribution_ig_activations, for each"
        " attention and MLP.",
    )
    by: Annotated[str, Choice(EDGE_BY)] = argument(
        "all",
        "Positions whose contributions are exchanged together: all paired positions, those of a"
        " segment (named in the pairs; the positions in none of them are 'rest'), or each position"
        " separately.",
    )
    between: Annotated[str, Choice(BETWEEN)] = argument(
        "direct",
        "Between sender and receiver: direct (nothing changes) or mlps (the MLPs are recomputed).",
    )
    downstream: Annotated[str, Choice(DOWNSTREAM)] = argument(
        "flow",
        "Behind the receiver: flow (everything is recomputed) or freeze (all other parts keep their"
        " values, so the change reaches the logits by the residual stream alone).",
    )
    metric: Annotated[Any, METRIC] = METRIC_ARGUMENT
    direction: Annotated[str, Choice(DIRECTIONS)] = argument(
        "denoising",
        "denoising (clean contributions into the corrupted run) or noising (the reverse).",
    )
    add_bos: StrictBool | None = ADD_BOS
    metric_positions: Annotated[Any, Positions()] = METRIC_POSITIONS
    n_spot_checks: Annotated[int | None, Int(none="5 % of the work")] = SPOT_CHECKS
    controls: Annotated[Any, Controls(EDGE_CONTROLS)] = argument(
        AUTO,
        "Control: other_pair (the contribution of another pair of the same length, and of the same"
        " template where the data name it), or none. auto: other_pair with 10 groups of pairs or"
        " more, none with fewer.",
        group="controls",
    )

    @override
    def check_together(self) -> None:
        for name in ("senders", "receivers"):
            if self.edges is not None and getattr(self, name) != _ALL:
                raise InputError(
                    f"{name}={short_repr(','.join(getattr(self, name)))}: not with edges=, which"
                    f" names single edges. Leave out {name}= or edges=.",
                    argument=name,
                )
        if self.method != EXACT and (self.between, self.downstream) != ("direct", "flow"):
            name = "between" if self.between != "direct" else "downstream"
            raise InputError(
                f"{name}={getattr(self, name)!r}: not with method={self.method!r}, which estimates"
                " direct edges with everything behind them recomputed. Use method='exact'.",
                argument=name,
            )
        if self.method != EXACT and callable(self.metric):
            raise InputError(
                f"method={self.method!r}: needs a named metric, whose gradient is known. Use"
                " metric='logit_diff', 'prob', 'logprob' or 'kl', or method='exact'.",
                argument="method",
            )

    # A contribution is a change of the residual stream, and acts at one receiver.
    @property
    def site(self) -> str:
        """Site whose positions are paired: the residual stream."""
        return "resid_pre"

    @property
    def has_rest(self) -> bool:
        """Whether ``by="segment"`` also has a place of the positions in no segment: an edge acts
        at all positions.
        """
        return True

    @property
    def automatic_controls(self) -> tuple[str, ...]:
        """Controls that ``auto`` stands for where there are enough pairs."""
        return EDGE_CONTROLS

    def n_gradients(self, n_layers: int) -> int:
        """Return the number of forward and backward passes through a model of ``n_layers`` that a
        pair takes, as whole passes; 0 for exact effects.
        """
        if self.method == EXACT:
            return 0
        if self.method == IG_ACTIVATIONS:  # two nodes in each layer, and the layers above them
            return self.steps * (n_layers + 2)
        return self.steps if self.method == ATTRIBUTION_IG else 1

    @property
    def takes_row(self) -> bool:
        """Whether the metric is a function of the logits and the row of the pair."""
        return callable(self.metric) and takes_row(self.metric)

    @property
    def metric_name(self) -> str:
        """Name of the metric in outputs; ``auto`` before the pairs are known."""
        return self.metric if isinstance(self.metric, str) else callable_name(self.metric)

    @override
    def constant_columns(self) -> dict[str, object]:
        return {
            "pathway": "",
            "site": "",
            "probe_site": "",
            "window": 1,
            "direction": self.direction,
            "donor_rule": "",
            "knockout_mode": "",
            "readout": "",
            "delta_kind": "difference",
        }
