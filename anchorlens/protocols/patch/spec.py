"""Specification of the patch protocol."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

from pydantic import StrictBool
from typing_extensions import override

from anchorlens.constants import (
    DIRECTIONS,
    HEAD_SITES,
    PATCH_BY,
    PATCH_CONTROLS,
    PATCH_METHODS,
    PATCH_METRICS,
    SITES,
)
from anchorlens.errors import InputError
from anchorlens.fingerprint import callable_name, takes_row
from anchorlens.protocols.arguments import Choice, Choices, Indices, Int, Kind, argument
from anchorlens.protocols.specification import ADD_BOS, Specification

AUTO = "auto"
NONE = "none"
EXACT = "exact"
_BY_HEAD = ("head", "head_position")
BY_POSITION = ("position", "head_position")
"""Values of ``by`` whose places are positions: a mean over pairs needs prompts of one length."""


def without_mean(lengths: Iterable[int]) -> str:
    """Return the reason why prompts of these lengths have no mean at a position; empty if they are
    of one length.
    """
    known = sorted(lengths)
    if not known or known[0] == known[-1]:
        return ""
    return (
        f"the pairs have different numbers of positions ({known[0]} to {known[-1]}), so no mean at"
        " a position is shown. Use by='segment', or pairs of one length."
    )


@dataclass(frozen=True)
class Controls(Kind):
    """Names of controls, ``auto`` or ``none``."""

    names: Sequence[str] = PATCH_CONTROLS
    metavar: ClassVar[str] = "A,B"

    @override
    def check(self, name: str, value: Any) -> "str | tuple[str, ...]":
        if isinstance(value, str) and value in (AUTO, NONE):
            return value
        if isinstance(value, (tuple, list)) and not value:
            return NONE
        return Choices(self.names, "control").check(name, value)


@dataclass(frozen=True)
class Positions(Kind):
    """Positions of the prompt; negative ones count from its end."""

    @override
    def check(self, name: str, value: Any) -> "tuple[int, ...] | None":
        return Indices(of="positions").check(name, value)


METRIC = Choice(
    (AUTO, *PATCH_METRICS),
    "a function of the logits [batch pos d_vocab], or of these and the row of the pair",
    (1, 2),
)
METRIC_ARGUMENT = argument(
    AUTO,
    "Metric: logit_diff (logit of the answer minus that of the wrong answer), prob or logprob of"
    " the answer, or kl (divergence from the clean run's next-token distribution). auto: logit_diff"
    " if every pair has a wrong answer, else logprob, and kl without answers. In Python also a"
    " function of the logits, as in TransformerLens, or of the logits and the pair's row (a"
    " dictionary of its columns).",
)
METRIC_POSITIONS = argument(
    None,
    "Positions that a metric function may read, such as (-1,); they are computed at once. If None,"
    " those that it reads on the unpatched logits of both prompts. A pair in which it reads another"
    " position is measured again with all positions.",
    in_shell=False,
)
SPOT_CHECKS = argument(
    None,
    "Number of random cells that the reference engine measures again. If None, as many as take 5 %"
    " of the sweep's work, from 2 to 64. A difference in the first batch stops the sweep, a later"
    " difference marks the run. What is written in every cell and all values that are known"
    " beforehand are compared too; 0 disables all checks.",
    execution_only=True,
)


@runtime_checkable
class PairSpecification(Protocol):
    """Arguments that sweeps over prompt pairs share: those of :class:`Patch` and of
    :class:`~anchorlens.protocols.edges.spec.Edges`.
    """

    @property
    def by(self) -> str: ...
    @property
    def has_rest(self) -> bool: ...
    @property
    def site(self) -> str: ...
    @property
    def metric(self) -> Any: ...
    @property
    def direction(self) -> str: ...
    @property
    def metric_positions(self) -> Any: ...
    @property
    def controls(self) -> Any: ...
    @property
    def automatic_controls(self) -> tuple[str, ...]: ...
    @property
    def takes_row(self) -> bool: ...
    @property
    def seed(self) -> int: ...
    @property
    def batch_size(self) -> int | None: ...
    @property
    def max_memory(self) -> Any: ...
    @property
    def layers_of(self) -> Callable[[int], tuple[int, ...]]: ...


class Patch(Specification):
    """Patch activations of a clean prompt into a corrupted one, at every layer and every position,
    segment or head.

    In one layer (or a window of layers) the activation of the corrupted run is replaced by that of
    the clean run (denoising: what restores the answer?), or the reverse (noising: what breaks it?).
    The metric is then read at the prompt's end.

    The effect is the metric after the patch minus the metric before. The recovered share is 0 at
    the corrupted and 1 at the clean run. With 10 pairs or more, two controls tell whether a patch
    from another pair, or a change of the same norm and angle, does the same; bands are simultaneous
    over the whole grid.

    Source: Meng et al. 2022, Wang et al. 2023, Zhang & Nanda 2024, Heimersheim & Nanda 2024;
    attribution: Nanda 2023.

    Examples:
        >>> import anchorlens as al
        >>> spec = al.Patch(by="head", site="z", direction="noising")
        >>> print(spec.to_toml())
        by = "head"
        site = "z"
        direction = "noising"
        <BLANKLINE>
        >>> study = al.Study("smollm2-135m-instruct", "ioi-pairs", spec)
        >>> done = al.run_study(study, "runs/patch")  # doctest: +SKIP
    """

    NAME = "patch"
    DATA = "pairs"
    QUICK_VALUES: ClassVar[Mapping[str, Any]] = {"controls": NONE}
    QUICK_NULLS: ClassVar[Collection[str]] = ("controls",)

    by: Annotated[str, Choice(PATCH_BY)] = argument(
        "position",
        "What is patched, each separately: position, segment (named in the pairs), layer (all"
        " paired positions), head (at all positions) or head_position (one head at one position).",
    )
    site: Annotated[str, Choice((*SITES, *HEAD_SITES))] = argument(
        "resid_pre",
        f"Hook site whose activation is replaced: {', '.join(SITES)}; of heads"
        f" {', '.join(HEAD_SITES)}.",
    )
    metric: Annotated[Any, METRIC] = METRIC_ARGUMENT
    direction: Annotated[str, Choice(DIRECTIONS)] = argument(
        "denoising",
        "denoising (clean activations into the corrupted prompt) or noising (the reverse).",
    )
    method: Annotated[str, Choice(PATCH_METHODS)] = argument(
        EXACT,
        "exact (the patch itself), or attribution (an estimate: change times gradient, from one"
        " forward and one backward pass per pair; it has no controls and claims nothing).",
    )
    window: Annotated[int, Int(1)] = argument(
        1, "Number of layers to patch together, centred at the reported one."
    )
    add_bos: StrictBool | None = ADD_BOS
    metric_positions: Annotated[Any, Positions()] = METRIC_POSITIONS
    n_spot_checks: Annotated[int | None, Int(none="5 % of the work")] = SPOT_CHECKS
    controls: Annotated[Any, Controls()] = argument(
        AUTO,
        "Controls: other_pair (activations of another pair of the same length, and of the same"
        " template where the data name it, at the same place), norm_matched (a change of the same"
        " norm and angle in another direction), or none. auto: both with 10 groups of pairs or"
        " more, none with fewer.",
        group="controls",
    )

    @override
    def check_together(self) -> None:
        contradictions = [
            (
                "site",
                self.by in _BY_HEAD and self.site not in HEAD_SITES,
                (
                    f"site={self.site!r}: by={self.by!r} needs a site of heads. Use site='z', or"
                    f" one of {', '.join(HEAD_SITES)}."
                ),
            ),
            (
                "window",
                self.window > 1 and self.site in HEAD_SITES[1:] and self.engine == "cone",
                (
                    f"window={self.window}: not with site={self.site!r}, whose patches act within a"
                    " layer. Use window=1, site='z', or engine='reference'."
                ),
            ),
            (
                "metric_positions",
                self.metric_positions is not None and isinstance(self.metric, str),
                (
                    f"metric_positions={self.metric_positions!r} are those of a metric function;"
                    f" got metric={self.metric!r}. Leave metric_positions out."
                ),
            ),
            (
                "controls",
                self.site == "pattern" and "norm_matched" in self.controls,
                (
                    f"controls={self.controls!r}: a random change of an attention pattern is no"
                    " pattern. Leave 'norm_matched' out."
                ),
            ),
        ]
        if self.method != EXACT:
            contradictions += self._contradictions_of_attribution()
        for name, is_wrong, message in contradictions:
            if is_wrong:
                raise InputError(message, argument=name)

    def _contradictions_of_attribution(self) -> list[tuple[str, bool, str]]:
        """Return argument, whether it does not go with ``method="attribution"``, and message."""
        return [
            (
                "method",
                callable(self.metric),
                (
                    f"method={self.method!r}: needs a named metric, whose gradient is known. Use"
                    " metric='logit_diff', 'prob', 'logprob' or 'kl', or method='exact'."
                ),
            ),
            (
                "window",
                self.window > 1,
                (
                    f"window={self.window}: not with method={self.method!r}, which estimates"
                    " patches of one layer. Use window=1, or method='exact'."
                ),
            ),
            (
                "controls",
                self.controls not in (AUTO, NONE),
                (
                    f"controls={self.controls!r}: not with method={self.method!r}, which claims"
                    " nothing. Leave controls out, or use method='exact'."
                ),
            ),
        ]

    @property
    def has_rest(self) -> bool:
        """Whether ``by="segment"`` also has a place of the positions in no segment."""
        return False

    @property
    def automatic_controls(self) -> tuple[str, ...]:
        """Controls that ``auto`` stands for where there are enough pairs."""
        if self.method != EXACT:
            return ()
        if self.site == "pattern":
            return tuple(name for name in PATCH_CONTROLS if name != "norm_matched")
        return PATCH_CONTROLS

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
            "site": self.site,
            "probe_site": "",
            "window": self.window,
            "direction": self.direction,
            "donor_rule": "",
            "knockout_mode": "",
            "readout": "",
            "delta_kind": "difference",
        }
