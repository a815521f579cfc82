"""Inputs of a probe sweep: labelled rows, and the variants of every measured row."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from anchorlens.probing.cross_fitting import CrossFittedProbes
from anchorlens.probing.records import probe_record, row_columns
from anchorlens.probing.text_baseline import TextBaseline
from anchorlens.probing.truth_rows import TruthRows, truth_rows
from anchorlens.prompts.dataset import Dropped
from anchorlens.protocols.base import SweepInputs
from anchorlens.protocols.probe_sweep.truth_arguments import TruthSpecification
from anchorlens.questions.drops import no_rows_left
from anchorlens.questions.example import Example
from anchorlens.questions.tokens import QuestionContext, TokenRow
from anchorlens.runs.schema import InputTable

Array = npt.NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One change of a measured row: another input, or cut attention edges.

    Attributes:
        controls: Names of the controls with this change.
        row: Changed input; None if edges are cut in the row itself.
        positions: Cut positions, or positions that differ from the clean row.
        donor: Donor row, if it is stored among the donors.
        donor_id: ``example_id`` of the donor; empty without one.
    """

    controls: tuple[str, ...]
    row: TokenRow | None = None
    positions: tuple[int, ...] = ()
    donor: TokenRow | None = None
    donor_id: str = ""


@dataclass(frozen=True, kw_only=True)
class ProbeSweepInputs(SweepInputs):
    """Labelled rows and the variants of measured rows.

    Attributes:
        truth: Labelled rows; those of split ``test`` are measured (all rows for ``p_true``).
        test: Indices into ``truth`` of the rows that may be measured; a "test" index elsewhere is
            an index into this tuple.
        variants: Variants of each row in ``test``; a row without variants is not measured.
        model_name: Name of the model, stored with the probes.
        dataset: Name of the data set, stored with the probes.
        probes: Name -> probes: ``none``, and placebos; empty before fitting.
        q: True for Q-Anchored rows, [test]; None if pathways are read with the variants.
        texts: Text baselines by name; empty before fitting.
    """

    truth: TruthRows
    test: tuple[int, ...]
    variants: tuple[tuple[Variant, ...], ...]
    model_name: str
    dataset: str
    probes: dict[str, CrossFittedProbes] = field(default_factory=dict)
    q: npt.NDArray[np.bool_] | None = None
    texts: dict[str, TextBaseline] = field(default_factory=dict)

    def row(self, test: int) -> TokenRow:
        """Return the row of an index into :attr:`test`."""
        return self.truth.rows[self.test[test]]

    @property
    def probe_layer(self) -> int | None:
        """Layer k* of the probes; None if no probe is read."""
        return self.probes["none"].probe_layer if self.probes else None

    @property
    def controls(self) -> tuple[str, ...]:
        """Names of all controls, in order of appearance."""
        names: dict[str, None] = {}
        for j, i in self.cells:
            names |= dict.fromkeys(self.variants[j][i].controls)
        return tuple(names)

    @property
    def n_measured(self) -> int:
        """Number of rows with a variant."""
        return sum(map(bool, self.variants))

    @property
    def cells(self) -> list[tuple[int, int]]:
        """(test, variant) indices of all variants."""
        cells: list[tuple[int, int]] = []
        for j, row_variants in enumerate(self.variants):
            cells += [(j, i) for i in range(len(row_variants))]
        return cells

    @property
    @override
    def max_tokens(self) -> int:
        longest = max(len(row.ids) for row in self.truth.rows)
        for row_variants in self.variants:
            for variant in row_variants:
                if variant.row is not None:
                    longest = max(longest, len(variant.row.ids))
        return longest

    @property
    @override
    def all_probes(self) -> dict[str, CrossFittedProbes]:
        return self.probes

    @override
    def table(self) -> InputTable:
        base: list[TokenRow] = []
        rest: list[TokenRow] = []
        for j, row_variants in enumerate(self.variants):
            if row_variants:
                base.append(self.row(j))
            elif self.q is not None:
                rest.append(self.row(j))
        donors: dict[str, TokenRow] = {}
        changed: dict[str, TokenRow] = {}
        donor_ids: dict[str, list[str]] = {}
        positions: dict[str, dict[str, list[int]]] = {}
        for j, i in self.cells:
            row = self.row(j)
            variant = self.variants[j][i]
            if variant.donor is not None:
                donors[variant.donor.id] = variant.donor
            if variant.donor_id:
                own_donors = donor_ids.setdefault(row.id, [])
                if variant.donor_id not in own_donors:
                    own_donors.append(variant.donor_id)
            if variant.row is None:
                cuts = positions.setdefault(row.id, {})
                for control in variant.controls:
                    cuts[f"cut:{control}"] = list(variant.positions)
                continue
            changed[variant.row.id] = variant.row
            if variant.positions:
                positions[variant.row.id] = {"replaced": list(variant.positions)}
        inputs = {
            "base": base,
            "test": rest,
            **rows_for_fitting(self.truth, set(self.test)),
            "donor": list(donors.values()),
            "corrupt": list(changed.values()),
        }
        return InputTable(inputs, donor_ids, positions, row_columns(self.truth, self.texts))

    @override
    def record(self, spec: Any) -> dict[str, Any]:
        counts = {
            "evaluated": self.n_measured,
            "rows": self.truth.sizes,
        }
        return {
            "config": {},
            "counts": counts,
            "probe": probe_record(self.probes.get("none"), self.texts),
        }


def build_truth_rows(
    context: QuestionContext, spec: TruthSpecification, examples: Sequence[Example]
) -> TruthRows:
    """Build rows with true and false answers of the examples, with the options of the
    specification.
    """
    return truth_rows(
        context.adapter,
        examples,
        context.tokenizer,
        answers=spec.answers,
        distractor=spec.distractor,
        n_splits=spec.n_splits,
        max_new_tokens=spec.max_new_tokens,
        batch_size=spec.batch_size,
        seed=spec.seed,
        progress=context.progress,
    )


def build_labelled_rows(
    context: QuestionContext, spec: TruthSpecification
) -> tuple[TruthRows, tuple[Dropped, ...]]:
    """Build rows with true and false answers in every split, and return them with the dropped rows.

    Raises:
        EmptySweepError: If no row is left, or a split lacks true or false answers.
    """
    truth = build_truth_rows(context, spec, context.examples)
    dropped = (*context.dropped, *truth.dropped)
    if not truth.rows:
        raise no_rows_left(dropped, f"in {context.data.name}")
    truth.check()
    return truth, dropped


def items_at(items: Sequence[T], indices: Iterable[int]) -> tuple[T, ...]:
    """Return the items at some indices."""
    return tuple(items[i] for i in indices)


def rows_for_fitting(truth: TruthRows, tested: Collection[int]) -> dict[str, tuple[TokenRow, ...]]:
    """Return split -> its rows, without those that are tested in another split."""
    rows: dict[str, tuple[TokenRow, ...]] = {}
    for split in ("train", "validation"):
        own = (i for i in truth.of(split) if i not in tested)
        rows[split] = items_at(truth.rows, own)
    return rows


def by_length(
    indices: Iterable[int], length: Callable[[int], int], size: int
) -> tuple[tuple[int, ...], ...]:
    """Group indices into batches of similar length."""
    order = sorted(indices, key=length)
    starts = range(0, len(order), size)
    return tuple(tuple(order[start : start + size]) for start in starts)
