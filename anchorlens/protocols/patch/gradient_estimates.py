"""Effects of patches estimated by attribution: one unit of work per pair, with its gradients."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from anchorlens.display import warn
from anchorlens.engine.cost import rows_bytes, rows_flops
from anchorlens.engine.engine import Engine
from anchorlens.engine.patches import OnProgress
from anchorlens.engine.readouts import KL, Metrics
from anchorlens.engine.site_gradients import patch_scores, site_activations, site_gradients
from anchorlens.errors import InputError
from anchorlens.measure.budget import MemoryBudget, UnitGroup
from anchorlens.measure.patch_plan import Batch
from anchorlens.measure.patch_runner import Values
from anchorlens.models.adapter import Adapter
from anchorlens.protocols.base import Plan
from anchorlens.protocols.patch.metric_gradient import stream_metric
from anchorlens.protocols.patch.patch_inputs import PatchInputs
from anchorlens.protocols.patch.spec import Patch

# Forward and backward pass, in forward passes.
_WITH_BACKWARD = 3


def check_model_has_gradients(adapter: Adapter) -> None:
    """Raise InputError if a model cannot run one backward pass through all blocks: if its weights
    are not in memory together, or were made in inference mode.
    """
    check_weights_have_gradients(adapter)
    if adapter.shape.streamed is not None:
        raise InputError(
            "method='attribution': a backward pass needs all weights in memory, and those of this"
            " model are read layer by layer. Use method='exact', or load the model as a whole.",
            argument="method",
        )


def check_weights_have_gradients(adapter: Adapter) -> None:
    """Raise InputError if the weights of a model were made in inference mode."""
    if any(parameter.is_inference() for parameter in adapter.model.parameters()):
        raise InputError(
            "model: its weights were made within torch.inference_mode(), so no gradient can pass"
            " through it. Load it outside, or use method='exact'.",
            argument="model",
        )


def warn_of_flat_metric(metric: object, direction: str, others: str) -> None:
    """Warn if a metric has no slope in the run whose gradient is taken.

    Args:
        metric: Metric of the sweep.
        direction: ``denoising`` or ``noising``.
        others: Methods without this limit, as in ``method='exact'``.
    """
    if metric == KL and direction == "noising":
        warn(
            "metric='kl' has no slope in the clean run, so every score of direction='noising' is 0."
            f" Use {others}, or another metric."
        )


def plan_attribution(engine: Engine, inputs: PatchInputs, spec: Patch) -> Plan:
    """Return one unit of work per pair, and the predicted cost."""
    shape = engine.adapter.shape
    groups: list[UnitGroup[Batch]] = []
    cells = 0
    flops = 0.0
    most = 0
    for pair in inputs.pairs:
        assert pair.source is not None  # every pair has two prompts
        batch = Batch((pair,), inputs.layers)
        groups.append(UnitGroup((batch,)))
        cells += batch.work
        flops += rows_flops(shape, 1, len(pair.source.ids))
        flops += _WITH_BACKWARD * rows_flops(shape, 1, len(pair.target.ids))
        # The graph keeps the activations of all blocks.
        most = max(most, shape.n_layers * rows_bytes(shape, 1, len(pair.target.ids)))
    budget = MemoryBudget(engine, spec.max_memory, spec.batch_size, cells)
    cost = budget.plan(
        [1] * len(groups),
        rows=len(inputs.own_pairs),
        cells=cells,
        flops=flops,
        largest_pass=most,
        width=inputs.max_tokens,
        checks=spec.n_spot_checks,
    )
    return Plan(tuple(groups), cost, "cell", engine.adapter.device)


@dataclass(frozen=True)
class AttributionRunner:
    """Estimates the effects of batches by attribution, pair by pair."""

    adapter: Adapter
    inputs: PatchInputs
    spec: Patch

    def run(self, batches: Sequence[Batch], on_progress: OnProgress) -> list[Values]:
        """Return the metrics of each batch, without and with its patches."""
        work = sum(batch.work for batch in batches)
        values: list[Values] = []
        for batch in batches:
            values.append(attribute_batch(self.adapter, self.inputs, self.spec, batch))
            on_progress(batch.work / work)
        return values


def attribute_batch(adapter: Adapter, inputs: PatchInputs, spec: Patch, batch: Batch) -> Values:
    """Return the metric of a pair before, [1], and for each placement the metric before plus the
    score, [layer 1].
    """
    (pair,) = batch.pairs
    # Activations that are equal in both prompts differ by rounding only.
    pair = pair.without_equal_positions()
    assert pair.source is not None  # every pair has two prompts
    metric = stream_metric(adapter, inputs.reading, pair.target, pair.base.id)
    target = site_gradients(adapter, pair.target.ids, metric, spec.site)
    source = site_activations(adapter, pair.source.ids, spec.site)
    layers = list(batch.layers)
    name = inputs.reading.name
    changed: list[Metrics] = []
    for place in pair.placements:
        scores = patch_scores(
            target, source, at=place.target_positions, by=place.source_positions, head=place.head
        )
        changed.append(Metrics({name: (target.value + scores[layers])[:, None]}))
    before = torch.tensor([target.value], dtype=torch.float64, device="cpu")
    return Metrics({name: before}), changed


def attribute_cells(
    adapter: Adapter, inputs: PatchInputs, spec: Patch, batches: "list[Batch]"
) -> tuple[list[float], list[float]]:
    """Return the metric before and after of single cells: batches of one pair, placement and
    layer. The gradients of a pair are computed once.
    """
    before = [0.0] * len(batches)
    after = [0.0] * len(batches)
    of_pair: dict[tuple[str, str], list[int]] = {}
    for number, batch in enumerate(batches):
        of_pair.setdefault(batch.pairs[0].key, []).append(number)
    name = inputs.reading.name
    for numbers in of_pair.values():
        places = tuple(batches[number].pairs[0].placements[0] for number in numbers)
        pair = replace(batches[numbers[0]].pairs[0], placements=places)
        layers = tuple(batches[number].layers[0] for number in numbers)
        own, changed = attribute_batch(adapter, inputs, spec, Batch((pair,), layers))
        for i, number in enumerate(numbers):
            before[number] = float(own.values[name][0])
            after[number] = float(changed[i].values[name][i, 0])
    return before, after
