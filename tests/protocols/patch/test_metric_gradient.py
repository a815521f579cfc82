"""Named metrics as functions of the final stream equal their readers, with their gradients."""

import pytest
import torch

from anchorlens.engine.hooked_passes import last_stream
from anchorlens.engine.patches import pad_rows
from anchorlens.models.load import adapt
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.prompts.tokenize_pairs import set_up_pairs
from anchorlens.protocols.edges.edge_inputs import prepare_edges
from anchorlens.protocols.edges.spec import Edges
from anchorlens.protocols.patch.metric_gradient import stream_metric

PROMPTS = {"clean": [20, 30, 31, 32], "corrupted": [20, 40, 41, 32]}
ANSWERS = {
    "single tokens": {"answer": [50], "wrong": [52]},
    "a common first token": {"answer": [50, 51], "wrong": [50, 52, 53]},
    "alternatives": {"answer": [[50], [54]], "wrong": [[52], [53]]},
}
# Gemma 2 has soft-capped logits, GPT-2 a centred norm with a bias.
FAMILIES = ["gemma2", "gpt2", "llama"]


@pytest.mark.parametrize("answers", ANSWERS)
@pytest.mark.parametrize("metric", ["logit_diff", "prob", "logprob", "kl"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_metric_of_the_stream_is_that_of_its_reader(tiny_model, family, metric, answers):
    adapter = adapt(tiny_model(family))
    spec = Edges(metric=metric, controls="none", progress=False)
    data = load_pairs([PROMPTS | ANSWERS[answers]])
    inputs = prepare_edges(set_up_pairs(adapter, data, spec), spec).read_sources(adapter, spec)
    (pair,) = inputs.pairs
    row, pair_id = pair.target, pair.base.id
    reader = inputs.reading.reader([row], [pair_id])
    of = stream_metric(adapter, inputs.reading, row, pair_id)

    def read(stream):
        return float(reader.metrics(adapter, stream[reader.position]).values[metric].flatten()[0])

    stream = last_stream(adapter, pad_rows([row.ids]))[0].requires_grad_(True)
    value = of(stream)
    assert value.item() == pytest.approx(read(stream.detach()), rel=1e-4, abs=1e-6)
    (gradient,) = torch.autograd.grad(value, stream)
    # Along the gradient the change is largest, so that float32 has digits for it.
    step = 3e-3 * stream.detach().norm() * gradient / gradient.norm()
    slope = (read(stream.detach() + step) - read(stream.detach() - step)) / 2
    assert slope == pytest.approx(float((gradient * step).sum()), rel=2e-2)
