"""Named metrics as differentiable functions of a prompt's final stream, for attribution."""

import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.engine.readouts import KL, LOGIT_DIFF, PROB
from anchorlens.engine.site_gradients import StreamMetric
from anchorlens.models.adapter import Adapter
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.protocols.patch.metric_reading import Answers, MetricReading


def stream_metric(
    adapter: Adapter, reading: MetricReading, row: TokenizedPrompt, pair_id: str
) -> StreamMetric:
    """Return the metric of a prompt as a function of its final stream, with a gradient.

    Its value is that of the metric's reader, up to rounding.
    """
    positions = reading.positions(row, pair_id)
    own = reading.answers[pair_id]

    def metric(stream: Float[Tensor, "pos d_model"]) -> Float[Tensor, ""]:
        logits = adapter.read.logits(stream[positions]).float()
        if reading.metric == LOGIT_DIFF:
            return _difference(logits[0], own)
        log_p = logits.log_softmax(-1)
        if reading.metric == KL:
            clean = reading.clean_states[pair_id].to(stream.device)
            wanted = adapter.read.logits(clean[None]).float().log_softmax(-1).detach()[0]
            never = wanted.isneginf()  # padding tokens may have a bias of minus infinity
            terms = wanted.exp() * (wanted - log_p[0])
            return terms.masked_fill(never, 0.0).sum()
        total = _log_probability(log_p, own)
        return total.exp() if reading.metric == PROB else total

    return metric


def _difference(logits: Float[Tensor, "d_vocab"], own: Answers) -> Float[Tensor, ""]:
    """Return the logit of the answer minus that of the wrong answer."""
    if own.any_of:
        return logits[list(own.answer)].logsumexp(0) - logits[list(own.wrong)].logsumexp(0)
    return logits[own.answer[own.n_common]] - logits[own.wrong[own.n_common]]


def _log_probability(log_p: Float[Tensor, "read d_vocab"], own: Answers) -> Float[Tensor, ""]:
    """Return the log-probability of the answer."""
    if own.any_of:
        return log_p[0, list(own.answer)].logsumexp(0)
    return log_p[torch.arange(len(own.answer)), list(own.answer)].sum()
