"""Greedy generation in batches, and the label-blind rule that finds the exact answer in a generated text (METHOD 3)."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache

from anchorlens.models.adapter import Adapter
from anchorlens.questions.example import Span, normalise


def greedy(
    adapter: Adapter,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    batch_size: int,
    stop: Callable[[list[int]], bool],
    on_batch: Callable[[int], None] = lambda rows: None,  # noqa: ARG005
) -> list[list[int]]:
    """Greedy continuations of many prompts, with a key-value cache.

    Prompts of the same length go together, so no row is padded and every row's keys stand where they would stand alone: exact for
    absolute positions and sliding windows as well.

    Args:
        adapter: The model.
        prompts: Token ids of each prompt.
        max_new_tokens: Most tokens for one continuation.
        batch_size: Most rows at once.
        stop: Tells of the tokens generated so far whether this continuation is finished.
        on_batch: Called after each batch with its number of rows.

    Returns:
        New token ids of each prompt, in the order of ``prompts``.
    """
    by_length: dict[int, list[int]] = defaultdict(list)
    for i, ids in enumerate(prompts):
        by_length[len(ids)].append(i)
    out: list[list[int]] = [[] for _ in prompts]
    for length in sorted(by_length):
        rows = by_length[length]
        for start in range(0, len(rows), batch_size):
            chunk = rows[start : start + batch_size]
            for i, ids in zip(chunk, _greedy_batch(adapter, [prompts[i] for i in chunk], max_new_tokens, stop), strict=True):
                out[i] = ids
            on_batch(len(chunk))
    return out


def _greedy_batch(
    adapter: Adapter, prompts: Sequence[Sequence[int]], max_new_tokens: int, stop: Callable[[list[int]], bool]
) -> list[list[int]]:
    model, device = adapter.model, adapter.device
    cache = TransformerLensKeyValueCache.init_cache(model.cfg, device, len(prompts))
    step = torch.tensor(prompts, device=device)
    out: list[list[int]] = [[] for _ in prompts]
    done = [False] * len(prompts)
    with torch.inference_mode():
        for _ in range(max_new_tokens):
            stream = model(
                step,
                stop_at_layer=adapter.n_layers,
                past_kv_cache=cache,
                attention_mask=torch.ones_like(step),
                prepend_bos=False,
                padding_side="right",
            )
            chosen = adapter.logits(stream[:, -1]).argmax(-1)
            for i, token in enumerate(chosen.tolist()):
                if not done[i]:
                    out[i].append(token)
                    done[i] = stop(out[i])
            if all(done):
                break
            step = chosen[:, None]
    return out


# Phrases with which a chat model repeats the question before it answers; stripped for right and wrong answers alike. They are few
# on purpose: the rule must not know the answer.
_LEAD_IN = re.compile(
    r"""^(?:
        (?:a|answer)\s*:                                       # "A:", "Answer:"
      | (?:sure|certainly|of\ course)[,!.:]
      | the\ (?:correct\ |right\ )?answer\ (?:to\ [^:]{1,80}\ )?(?:is|was)\b:?
      | (?:it|he|she|this|that|they)\ (?:is|was|are|were)\b
      | the\ [^.,;:]{1,80}?\ (?:is|was|are|were)\ (?:called\ |named\ |known\ as\ |located\ in\ |in\ |by\ )?
    )\s*""",
    re.IGNORECASE | re.VERBOSE,
)
_OPEN = "\"'“”‘’«([*_ \t"
_CLOSE = "\"'“”‘’»)]*_ \t.,;:!?"


def exact_answer(text: str) -> Span | None:
    """The short answer inside a generated text, found without looking at the gold answer.

    First line; lead-in phrases, opening quotes and trailing punctuation stripped; a further sentence or clause is cut off.

    Returns:
        Characters of ``text``, or None where nothing is left.

    >>> exact_answer("The capital of France is Paris. It lies on the Seine.")
    Span(start=25, end=30)
    """
    start = len(text) - len(text.lstrip())
    line = text[start:].split("\n", 1)[0]
    offset = start
    for _ in range(2):
        match = _LEAD_IN.match(line)
        if match is None or not line[match.end() :].strip(_CLOSE):
            break
        offset, line = offset + match.end(), line[match.end() :]
    stripped = line.lstrip(_OPEN)
    offset, line = offset + len(line) - len(stripped), stripped
    # A full stop ends the sentence only after a longer word, so that "St. Louis" and "J. K. Rowling" stay whole.
    line = re.split(r"(?<=\w{4})\.(?=\s|$)|[!?;](?=\s|$)|\s[-–—]\s|\s\(", line, maxsplit=1)[0]
    line = line.rstrip(_CLOSE)
    return Span(offset, offset + len(line)) if line else None


def is_right(answer: str, gold: Sequence[str]) -> bool:
    """Whether a gold alias occurs in the answer as whole words, case- and punctuation-insensitively."""
    words = f" {normalise(answer)} "
    return any(f" {normalise(alias)} " in words for alias in gold if normalise(alias))
