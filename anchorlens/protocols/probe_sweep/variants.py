"""Inputs of a probe sweep: labelled rows, and the variants of every measured row."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

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
from anchorlens.questions.build_rows import check_not_empty
from anchorlens.questions.example import Example
from anchorlens.questions.qa_context import QuestionContext
from anchorlens.questions.tokens import TokenRow
from anchorlens.results.tables import InputTable

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class ProbeSweepInputs(SweepInputs):
    """Labelled rows and the variants of measured rows.

    Attributes:
        truth: Labelled rows; those of split ``test`` are measured (all rows for ``p_true``).
        test: Indices into ``truth`` of the rows that may be measured; a "test" index elsewhere is an index into this tuple.
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
    texts: dict[str, TextBaseline] = field(default_factory=dict, kw_only=True)

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
        return tuple(dict.fromkeys(name for row_variants in self.variants for one in row_variants for name in one.controls))

    @property
    def cells(self) -> list[tuple[int, int]]:
        """(test, variant) indices of all variants."""
        return [(j, i) for j, row_variants in enumerate(self.variants) for i in range(len(row_variants))]

    @property
    @override
    def max_tokens(self) -> int:
        changed = (one.row for row_variants in self.variants for one in row_variants)
        return max(len(row.ids) for row in (*self.truth.rows, *changed) if row is not None)

    @property
    @override
    def all_probes(self) -> dict[str, CrossFittedProbes]:
        return self.probes

    @override
    def table(self) -> InputTable:
        measured = [j for j, row_variants in enumerate(self.variants) if row_variants]
        variants = [(self.row(j), one) for j in measured for one in self.variants[j]]
        tested = {self.test[j] for j in range(len(self.test))}
        rest = [self.row(j) for j, row_variants in enumerate(self.variants) if not row_variants and self.q is not None]
        fitted = {name: [self.truth.rows[i] for i in self.truth.of(name) if i not in tested] for name in ("train", "validation")}
        donors = {one.donor.id: one.donor for _, one in variants if one.donor is not None}
        changed = {one.row.id: one.row for _, one in variants if one.row is not None}
        ids: dict[str, list[str]] = {}
        where: dict[str, dict[str, list[int]]] = {}
        for row, one in variants:
            if one.donor_id and one.donor_id not in ids.setdefault(row.id, []):
                ids[row.id].append(one.donor_id)
            if one.row is None:
                where.setdefault(row.id, {}).update({f"cut:{control}": list(one.positions) for control in one.controls})
            elif one.positions:
                where[one.row.id] = {"replaced": list(one.positions)}
        inputs = {
            "base": [self.row(j) for j in measured], "test": rest, **fitted, "donor": list(donors.values()),
            "corrupt": list(changed.values()),
        }  # fmt: skip
        return InputTable(inputs, ids, where, row_columns(self.truth, self.texts))

    @override
    def record(self, spec: Any) -> dict[str, Any]:
        counts = {"evaluated": sum(bool(row_variants) for row_variants in self.variants), "rows": self.truth.sizes}
        return {"config": {}, "counts": counts, "probe": probe_record(self.probes.get("none"), self.texts)}


def build_truth_rows(context: QuestionContext, spec: TruthSpecification, examples: Sequence[Example]) -> TruthRows:
    """Build rows with true and false answers of the examples, with the options of the specification."""
    return truth_rows(
        context.adapter, examples, context.tokenizer, answers=spec.answers, distractor=spec.distractor, n_splits=spec.n_splits,
        max_new_tokens=spec.max_new_tokens, batch_size=spec.batch_size, seed=spec.seed, progress=context.progress,
    )  # fmt: skip


def build_labelled_rows(context: QuestionContext, spec: TruthSpecification) -> tuple[TruthRows, tuple[Dropped, ...]]:
    """Build rows with true and false answers in every split, and return them with the dropped rows.

    Raises:
        EmptySweepError: If no row is left, or a split lacks true or false answers.
    """
    truth = build_truth_rows(context, spec, context.examples)
    dropped = (*context.dropped, *truth.dropped)
    check_not_empty(truth.rows, dropped, f"in {context.data.name}")
    truth.check()
    return truth, dropped


def by_length(indices: Iterable[int], length: Callable[[int], int], size: int) -> tuple[tuple[int, ...], ...]:
    """Group indices into batches of similar length."""
    order: Sequence[int] = sorted(indices, key=length)
    return tuple(tuple(order[i : i + size]) for i in range(0, len(order), size))
