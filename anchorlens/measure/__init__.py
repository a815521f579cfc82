"""Measure cells: cells and a reader go in, checked values come out.

Read :mod:`~anchorlens.measure.patch_plan` first: it turns the pairs of a sweep into batches that
fit into memory. :mod:`~anchorlens.measure.patch_runner` runs them and checks what was written.
:mod:`~anchorlens.measure.grid` does the same for a grid of `anchorlens.patching`, whose metric is a
function of all logits of a batch. :mod:`~anchorlens.measure.budget` predicts the cost of a sweep,
:mod:`~anchorlens.measure.checks` compares values of both engines. The room has token ids,
positions and activations, nothing of questions or answers.
"""
