"""What protocols with a truth probe share: labelled rows, the batches that probes are fitted on, and the probes themselves."""

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pandas as pd
import torch

from anchorlens.engine.engine import Engine
from anchorlens.engine.interventions import CutBatch
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter
from anchorlens.protocols.costing import Room, halves
from anchorlens.protocols.plug import Bench, Plan, Prepared, SweepProtocol
from anchorlens.protocols.truth_arguments import TruthSpecification
from anchorlens.questions.example import Dropped
from anchorlens.questions.tokenised import check_not_empty
from anchorlens.questions.tokens import TokenRow, pad_rows
from anchorlens.results.pathways import PathwayResult, pathway_curves
from anchorlens.runs.provenance import no_nan
from anchorlens.truth.fitted import placebo_probes, read_probes
from anchorlens.truth.labelled import TruthRows, truth_rows
from anchorlens.truth.probes import LayerProbes
from anchorlens.truth.text_baseline import TextBaseline, text_baselines


@dataclass(frozen=True)
class PreparedTruth(Prepared):
    """Labelled rows that are ready.

    Attributes:
        truth: All rows; those of split ``test`` are measured (all of them for ``p_true``).
        test: Indices of the rows that are measured; everything that is measured is counted in these.
        model_name: For the probes.
        dataset: For the probes.
        probes: ``none`` (the probes that are read) and those of placebos; empty until they are fitted.
        texts: What classifiers of the text tell, see :meth:`text_baselines`; kept when the rest is replaced.
    """

    truth: TruthRows
    test: tuple[int, ...]
    model_name: str
    dataset: str
    probes: Mapping[str, LayerProbes] = field(default_factory=dict)
    texts: dict[str, TextBaseline] = field(default_factory=dict, kw_only=True)

    def row(self, test: int) -> TokenRow:
        """The row behind an index into :attr:`test`."""
        return self.truth.rows[self.test[test]]

    @property
    def k_star(self) -> int | None:
        """The probes' :attr:`~anchorlens.truth.probes.LayerProbes.best_layer`; None where no probe is read."""
        return self.probes["none"].best_layer if self.probes else None

    def text_baselines(self, spec: TruthSpecification) -> Mapping[str, TextBaseline]:
        """``text_only`` and ``pair_text``: what text alone tells about these rows, fitted once."""
        if not self.texts:
            self.texts.update(text_baselines(self.truth, n_resamples=spec.n_resamples, seed=spec.seed))
        return self.texts

    @property
    def pair_scores(self) -> dict[str, float]:
        """Row id -> P(hallucination) that question and answer as text give it; of test rows, once baselines are fitted."""
        if "pair_text" not in self.texts:
            return {}
        scores = zip(self.truth.rows, self.texts["pair_text"].scores.tolist(), strict=True)
        return {row.row_id: score for row, score in scores if score == score}


SpecT = TypeVar("SpecT", bound=TruthSpecification)
ReadyT = TypeVar("ReadyT", bound=PreparedTruth)


@dataclass(frozen=True)
class TruthPlan(Plan):
    """A plan whose probes are fitted first.

    Attributes:
        training: Batches of the rows that are only read (training, validation), as indices into the rows.
    """

    training: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class _Training:
    rows: tuple[int, ...]

    @property
    def work(self) -> float:
        return len(self.rows)

    def split(self) -> "Sequence[_Training]":
        return [_Training(tuple(part)) for part in halves(self.rows)] if len(self.rows) > 1 else ()


def room_of(engine: Engine, ready: PreparedTruth, spec: TruthSpecification, table: int, *, probed: bool = True) -> Room:
    """What a pass may take beside a table of so many samples, and beside the states that probes are fitted on."""
    adapter = engine.adapter
    kept = 4 * len(ready.truth.rows) * adapter.n_layers * adapter.d_model if probed else 0
    return Room(engine, spec.max_memory, spec.batch_size, table, kept)


def check_layers(spec: TruthSpecification, adapter: Adapter) -> tuple[int, ...]:
    """The layers that are read, of a model and of the probes that were given.

    Raises:
        InputError: One of the two lacks them.
    """
    layers = spec.layers_of(adapter.n_layers)
    if spec.probes is not None and not set(layers) <= set(spec.probes.layers):
        raise InputError(
            f"These probes read layers {spec.probes.layers}; asked for are {layers}. Give layers= that they have."
        )
    adapter.hook_name(spec.probe_site, layers[0])
    return layers


def labelled_rows(bench: Bench, spec: TruthSpecification) -> tuple[TruthRows, tuple[Dropped, ...]]:
    """Rows with true and false answers in every split, and all that was dropped.

    Raises:
        EmptySweepError: No row is left, or a split lacks true or false answers.
    """
    truth = truth_rows(
        bench.adapter, bench.examples, bench.tokenizer, answers=spec.answers, distractor=spec.distractor, fractions=spec.fractions,
        max_new_tokens=spec.max_new_tokens, batch_size=spec.batch_size, seed=spec.seed, progress=bench.progress,
    )  # fmt: skip
    dropped = (*bench.dropped, *truth.dropped)
    check_not_empty(truth.rows, dropped, f"in {bench.data.name}")
    truth.check()
    return truth, dropped


def by_length(indices: Sequence[int], length: Callable[[int], int], size: int) -> tuple[tuple[int, ...], ...]:
    """Batches of similar length."""
    order = sorted(indices, key=length)
    return tuple(tuple(order[i : i + size]) for i in range(0, len(order), size))


def clean_batch(rows: Sequence[TokenRow]) -> CutBatch:
    """Rows that are only read, at the last exact answer token."""
    last = torch.tensor([row.positions["answer"][-1] for row in rows])
    return CutBatch(pad_rows([row.ids for row in rows]), torch.arange(len(rows)), last, ())


def fitted_probes(
    engine: Engine, ready: PreparedTruth, spec: TruthSpecification, plan: TruthPlan, on_work: Callable[[float], object], *,
    placebos: bool, allowed: range,
) -> dict[str, LayerProbes]:  # fmt: skip
    """The probes that are read, and those of the placebos, from the rows that are not measured.

    Args:
        engine: What reads their states.
        ready: Rows.
        spec: Where the probes read, or the probes themselves.
        plan: The batches.
        on_work: Told of every row.
        placebos: Fit those of ``shuffled_labels`` and ``cross_fold`` too.
        allowed: Layers that a cut may touch; the same for every batch of a sweep.
    """
    truth = ready.truth
    states = torch.zeros(len(ready.layers), len(truth.rows), engine.adapter.d_model)

    def read(unit: _Training) -> None:
        rows = [truth.rows[i] for i in unit.rows]
        states[:, list(unit.rows)] = engine.cut_states_everywhere(
            clean_batch(rows), site=spec.probe_site, layers=allowed, on_share=lambda share: on_work(share * len(rows))
        )[0, list(ready.layers)]

    for batch in plan.training:
        plan.memory.measured(read, _Training(batch))
    if spec.probes is not None:
        used = spec.probes.at(ready.layers)
    else:
        used = read_probes(
            truth, ready.layers, states, site=spec.probe_site, model=ready.model_name, dataset=ready.dataset, seed=spec.seed
        )
    return {"none": used} | (placebo_probes(truth, ready.layers, states, used, seed=spec.seed) if placebos else {})


class TruthProtocol(SweepProtocol[SpecT, ReadyT], ABC):
    """What every protocol that fits truth probes says in the same words."""

    result = PathwayResult

    def fit_to(self, spec: SpecT, adapter: Adapter) -> None:
        """See :class:`SweepProtocol`."""
        check_layers(spec, adapter)

    def probes(self, ready: ReadyT) -> tuple[Any, Mapping[str, Any]]:
        """See :class:`SweepProtocol`."""
        return ready.probes.get("none"), {name: probes for name, probes in ready.probes.items() if name != "none"}

    def longest(self, ready: ReadyT) -> int:
        """See :class:`SweepProtocol`."""
        return max(len(row.ids) for row in ready.truth.rows)

    def text_scores(self, ready: ReadyT) -> Mapping[str, float]:
        """See :class:`SweepProtocol`."""
        return ready.pair_scores

    def curves(self, result: PathwayResult) -> pd.DataFrame:
        """Mean change by quantity, control, pathway and layer, n questions, mean before, and the probe's clean AUC."""
        return pathway_curves(result)


def probe_record(ready: PreparedTruth, spec: TruthSpecification) -> dict[str, object]:
    """k* and how steady it is, the probes' validation AUC, and what text alone tells."""
    used, texts = ready.probes.get("none"), ready.text_baselines(spec)
    return {
        "k_star": None if used is None else used.best_layer,
        "k_star_over_seeds": [] if used is None else list(used.k_star_over_seeds),
        "validation_auc": {} if used is None else no_nan({str(k): used.probes[k].validation_auc_ for k in used.layers}),
        **{name: {"auc": one.auc, "ci_low": one.ci_low, "ci_high": one.ci_high} for name, one in texts.items()},
    }


__all__ = [
    "PreparedTruth", "TruthPlan", "TruthProtocol", "by_length", "check_layers", "clean_batch", "fitted_probes", "labelled_rows",
    "probe_record", "room_of",
]  # fmt: skip
