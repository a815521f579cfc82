"""Cells of a patch sweep by TransformerLens alone: a cache, hooks and logits."""

import math

import torch


def hook_of(site, layer):
    """Name of the hook of a site."""
    return f"blocks.{layer}.{'attn.' if site in ('z', 'q', 'k', 'v', 'pattern') else ''}hook_{site}"


def cache_of(model, source):
    """Activations of a prompt's own run."""
    with torch.no_grad():
        return model.run_with_cache(torch.tensor([source]))[1]


def patched_logits(model, target, cache, site, layers, to, by, head=None):
    """Logits [pos d_vocab] of a target whose activations are replaced by those of a source."""
    with torch.no_grad():

        def put(value, hook):
            new = cache[hook.name]
            if site == "pattern":
                for t, s in zip(to, by, strict=True):
                    rows = slice(None) if head is None else head
                    value[0, rows, t] = new[0, rows, s]
            elif head is None:
                value[0, list(to)] = new[0, list(by)]
            else:
                value[0, list(to), head] = new[0, list(by), head]
            return value

        hooks = [(hook_of(site, layer), put) for layer in layers]
        return model.run_with_hooks(torch.tensor([target]), fwd_hooks=hooks)[0].double()


def metric_of(name, logits, last, answer, wrong, clean):
    """Value of a named metric; ``logits`` [pos d_vocab], ``clean``: log-probabilities of the clean
    run after its prompt.
    """
    log_p = logits.log_softmax(-1)
    if name == "kl":
        return float((clean.exp() * (clean - log_p[last])).sum())
    if name == "logit_diff":
        k = next(i for i, (a, b) in enumerate(zip(answer, wrong, strict=False)) if a != b)
        return float(logits[last + k, answer[k]] - logits[last + k, wrong[k]])
    joint = sum(float(log_p[last + i, token]) for i, token in enumerate(answer))
    return joint if name == "logprob" else math.exp(joint)


def clean_log_p(model, ids, last):
    """Log-probabilities of the next token after a prompt."""
    with torch.no_grad():
        return model(torch.tensor([ids]))[0, last].double().log_softmax(-1)
