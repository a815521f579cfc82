"""A swap in both directions: what is necessary, and what is sufficient (METHOD 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from anchorlens.display import escape_hidden
from anchorlens.errors import EmptySweepError
from anchorlens.results.estimates import name_layers
from anchorlens.results.findings import BEYOND_POSITIONS, Findings
from anchorlens.results.sweep import SweepResult


@dataclass(frozen=True, repr=False, eq=False)
class BothDirections:
    """Noising and denoising sweep of the same questions; ``direction="both"`` of
    :func:`anchorlens.swap_sweep` returns it.

    Examples:
        >>> import anchorlens as al
        >>> data = al.load_qa("popqa-sample", limit=20)
        >>> both = al.swap_sweep("smollm2-135m-instruct", data, direction="both")  # doctest: +SKIP
        >>> print(both.verdict)  # doctest: +SKIP

    Attributes:
        noising: Sweep with donor activations in clean runs: what is necessary.
        denoising: Sweep with clean activations in corrupt runs: what is sufficient.
    """

    noising: SweepResult
    denoising: SweepResult

    @classmethod
    def of(cls, results: Sequence[SweepResult]) -> "BothDirections":
        """Make the pair of two sweeps.

        Raises:
            EmptySweepError: If a direction has no row.
        """
        by_direction = {one.record["config"]["direction"]: one for one in results}
        lacking = [name for name in ("noising", "denoising") if name not in by_direction]
        if lacking:
            raise EmptySweepError(
                f"direction='both': no row is left to measure by {lacking[0]}. Measure one"
                " direction, or take more rows."
            )
        return cls(by_direction["noising"], by_direction["denoising"])

    @property
    def results(self) -> tuple[SweepResult, SweepResult]:
        """Sweeps of both directions, for reports and :func:`anchorlens.plot_curves`."""
        return self.noising, self.denoising

    def curves(self, **options: Any) -> pd.DataFrame:
        """Return the curves of both sweeps; options as for ``SweepResult.curves``."""
        return pd.concat([one.curves(**options) for one in self.results], ignore_index=True)

    @property
    def verdict(self) -> str:
        """One sentence for each anchor on necessity and sufficiency, then both verdicts; of a quick
        look only the verdicts.
        """
        return "\n".join(
            [
                *self._sentences(),
                f"Noising: {self.noising.verdict}",
                f"Denoising: {self.denoising.verdict}",
            ]
        )

    def _sentences(self) -> list[str]:
        """Return the sentence of each anchor; none for a quick look."""
        if self.noising.is_quick:
            return []
        noising = self.noising.findings
        denoising = self.denoising.findings
        return [necessity_sentence(anchor, noising, denoising) for anchor in self.noising.anchors]

    def __repr__(self) -> str:
        # The repr of a sweep begins with its verdict.
        tables = [repr(one).removeprefix(f"{one.verdict}\n") for one in self.results]
        return "\n".join([escape_hidden(self.verdict), *tables])

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{escape(escape_hidden(one))}</b></p>" for one in self._sentences()]
        for name, result in (("Noising", self.noising), ("Denoising", self.denoising)):
            parts.append(f"<h4>{name}</h4>{result._repr_html_()}")
        return "".join(parts)


def necessity_sentence(anchor: str, noising: Findings, denoising: Findings) -> str:
    """Return the sentence on necessity and sufficiency of one anchor."""
    necessary = _layers_of_claims(noising, anchor, -1)
    sufficient = _layers_of_claims(denoising, anchor, 1)
    if necessary is None and sufficient is None:
        return f"{anchor}: neither necessity nor sufficiency is shown."
    if sufficient is None:
        return (
            f"{anchor}: necessary{_at(necessary)}, not shown to be sufficient; other positions"
            " may be needed with it (AND)."
        )
    if necessary is None:
        return (
            f"{anchor}: sufficient{_at(sufficient)}, not shown to be necessary; another"
            " position may serve as well (OR, backup)."
        )
    return f"{anchor}: necessary{_at(necessary)} and sufficient{_at(sufficient)}."


def _layers_of_claims(findings: Findings, anchor: str, sign: int) -> list[int] | None:
    """Return the layers of the claims beyond other positions with one sign of the effect; empty if
    too few clusters name layers, None without a claim.
    """
    layers: set[int] = set()
    is_any = False
    for one in findings.claims:
        if one.anchor != anchor or one.status != BEYOND_POSITIONS:
            continue
        if one.value is None or one.value * sign > 0:
            is_any = True
            layers.update(one.layers)
    return sorted(layers) if is_any else None


def _at(layers: Sequence[int] | None) -> str:
    return f" ({name_layers(layers)})" if layers else ""
