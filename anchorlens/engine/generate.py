"""Greedy generation in batches, and the label-blind rule that finds the exact answer in a generated text (METHOD 3)."""

import re
from collections.abc import Callable, Sequence
from itertools import takewhile

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache
from transformer_lens.cache.key_value_cache_entry import TransformerLensKeyValueCacheEntry

from anchorlens.engine.plan import free_memory, row_bytes, rows_per_batch
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter
from anchorlens.questions.example import Span, normalise

# One token a row goes through the model at each step, so many rows are needed before a step costs more than reading the weights;
# beyond these nothing is gained.
_MOST_ROWS = {"cpu": 64, "cuda": 512, "mps": 128}


def greedy(
    adapter: Adapter,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    batch_size: int | None = None,
    stop: Callable[[list[int]], bool],
    on_batch: Callable[[int], None] = lambda rows: None,  # noqa: ARG005
) -> list[list[int]]:
    """Greedy continuations of many prompts, with a key-value cache.

    The tokens that all prompts begin with go through the model once. Prompts of similar length go together, padded on the left:
    the tokens of a row stand as far from each other as they would alone, and positions are counted from the mask, so absolute
    positions, rotary positions and sliding windows are those of the row alone.

    Args:
        adapter: The model.
        prompts: Token ids of each prompt.
        max_new_tokens: Most tokens for one continuation.
        batch_size: Most rows at once; None: chosen for the memory at hand.
        stop: Tells of the tokens generated so far whether this continuation is finished.
        on_batch: Called after each batch with its number of rows.

    Returns:
        New token ids of each prompt, in the order of ``prompts``.

    Raises:
        InputError: A prompt is empty, or ``batch_size`` is below 1.
    """
    if not all(prompts):
        raise InputError("A prompt without tokens cannot be continued.")
    size = _rows_at_once(adapter, max((len(ids) for ids in prompts), default=0) + max_new_tokens, batch_size)
    out: list[list[int]] = [[] for _ in prompts]
    by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    with torch.inference_mode():
        prefix = _run_prefix(adapter, prompts)
        for start in range(0, len(prompts), size):
            chunk = by_length[start : start + size]
            new = _greedy_batch(adapter, [prompts[i] for i in chunk], prefix, max_new_tokens, stop)
            for i, ids in zip(chunk, new, strict=True):
                out[i] = ids
            on_batch(len(chunk))
    return out


def _rows_at_once(adapter: Adapter, width: int, batch_size: int | None) -> int:
    if batch_size is not None:
        return rows_per_batch(adapter, width, batch_size)
    cfg = adapter.model.cfg
    # Unlike in a single pass, keys and values of all layers stay.
    cached = 2 * adapter.n_layers * (cfg.n_key_value_heads or cfg.n_heads) * cfg.d_head * torch.finfo(cfg.dtype).bits // 8
    by_memory = free_memory(adapter.device) // 2 // (row_bytes(adapter, width) + width * cached)
    return max(1, min(by_memory, _MOST_ROWS.get(adapter.device.type, 64)))


def _run_prefix(adapter: Adapter, prompts: Sequence[Sequence[int]]) -> TransformerLensKeyValueCache:
    """Keys and values, in one row, of the tokens that all prompts begin with; the shortest prompt keeps a token to run."""
    cache = TransformerLensKeyValueCache.init_cache(adapter.model.cfg, adapter.device, 1)
    columns = zip(*(ids[:-1] for ids in prompts), strict=False)
    ids = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
    # Nobody shares a single prompt's tokens: two passes would be slower than one.
    if ids and len(prompts) > 1:
        row = torch.tensor([ids], device=adapter.device)
        _next_tokens(adapter, row, torch.ones_like(row), cache)
    return cache


def _greedy_batch(
    adapter: Adapter,
    prompts: Sequence[Sequence[int]],
    prefix: TransformerLensKeyValueCache,
    max_new_tokens: int,
    stop: Callable[[list[int]], bool],
) -> list[list[int]]:
    width, cached = max(len(ids) for ids in prompts), prefix.previous_attention_mask.shape[1]
    padding = [width - len(ids) for ids in prompts]
    padded = [[0] * pad + list(ids) for pad, ids in zip(padding, prompts, strict=True)]
    step = torch.tensor(padded, device=adapter.device)[:, cached:]
    mask = (torch.arange(width) >= torch.tensor(padding)[:, None]).long().to(adapter.device)
    # Columns are those of the padded rows, so the prefix starts at each row's own padding, and what it thereby loses at its end is
    # run again. Keys may be moved because the cache holds them before they are rotated.
    cache = _gathered(prefix, (torch.arange(cached) - torch.tensor(padding)[:, None]).clamp(min=0), mask[:, :cached])
    mask = mask[:, cached:]
    out: list[list[int]] = [[] for _ in prompts]
    running = list(range(len(prompts)))
    for _ in range(max_new_tokens):
        chosen = _next_tokens(adapter, step, mask, cache)
        for i, token in zip(running, chosen.tolist(), strict=True):
            out[i].append(token)
        rows = [row for row, i in enumerate(running) if not stop(out[i])]
        if not rows:
            break
        if len(rows) < len(running):
            running, chosen = [running[row] for row in rows], chosen[rows]
            _keep_rows(cache, rows)
        step = chosen[:, None]
        mask = torch.ones_like(step)
    return out


def _next_tokens(
    adapter: Adapter, ids: Int[Tensor, "row pos"], mask: Int[Tensor, "row pos"], cache: TransformerLensKeyValueCache
) -> Int[Tensor, "row"]:
    """The likeliest token after each row; the cache grows by the row's keys and values."""
    stream = adapter.model(
        ids,
        stop_at_layer=adapter.n_layers,
        past_kv_cache=cache,
        attention_mask=mask,
        prepend_bos=False,
        padding_side="right",
    )
    return adapter.logits(stream[:, -1]).argmax(-1)


def _gathered(
    prefix: TransformerLensKeyValueCache, columns: Int[Tensor, "row pos"], mask: Int[Tensor, "row pos"]
) -> TransformerLensKeyValueCache:
    """A new cache whose rows hold the given columns of the prefix."""
    entries = [
        TransformerLensKeyValueCacheEntry(entry.past_keys[0, columns], entry.past_values[0, columns])
        for entry in prefix.entries
    ]
    return TransformerLensKeyValueCache(entries, mask)


def _keep_rows(cache: TransformerLensKeyValueCache, rows: list[int]) -> None:
    """Drop the other rows, so that finished continuations cost nothing more."""
    cache.previous_attention_mask = cache.previous_attention_mask[rows]
    for entry in cache.entries:
        entry.past_keys, entry.past_values = entry.past_keys[rows], entry.past_values[rows]


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


# What a reasoning model writes before its answer. Some templates open the block themselves, so that only its end is generated.
_THINKING = "think|thinking|thought|reasoning"
_THOUGHT = re.compile(rf"<(?:{_THINKING})>|\[THINK\]", re.IGNORECASE)
_THOUGHT_END = re.compile(rf"</(?:{_THINKING})>|\[/THINK\]", re.IGNORECASE)
# "Paris, the capital of France": what follows only says what Paris is. "The Good, the Bad and the Ugly" goes on in capitals.
_APPOSITION = re.compile(r",\s(?=(?:an?\s\w|(?:the|one\sof)\s[a-z]|which\b|who(?:se)?\b|where\b))")


def answer_line(text: str, *, opened: bool = False) -> Span | None:
    """The line of a generated text in which the answer stands: the first one, after a reasoning model's thinking.

    Args:
        text: What was generated.
        opened: Whether the prompt ends inside a block of thinking (:func:`unfinished_thinking` of it).

    Returns:
        Characters of ``text``, without white space around them; None where the thinking does not end or nothing follows it.

    >>> answer_line("<think>Rome? No.</think>\\n\\nParis is it.\\nQ: And?")
    Span(start=26, end=38)
    """
    start = _after_thinking(text, opened)
    if start is None:
        return None
    start += len(text[start:]) - len(text[start:].lstrip())
    line = text[start:].split("\n", 1)[0].rstrip()
    return Span(start, start + len(line)) if line else None


def unfinished_thinking(text: str, *, opened: bool = False) -> bool:
    """Whether a text, generated after a prompt that had ``opened`` a block of thinking or not, ends inside one."""
    return _after_thinking(text, opened) is None


def is_thinking_tag(text: str) -> bool:
    """Whether a text is what opens or ends a block of thinking, and nothing else."""
    return bool(_THOUGHT.fullmatch(text) or _THOUGHT_END.fullmatch(text))


def _after_thinking(text: str, opened: bool) -> int | None:
    """Where the last block of thinking ends, 0 where there is none; None where one is still open."""
    ends = [found.end() for found in _THOUGHT_END.finditer(text)]
    end = max(ends, default=0)
    return None if (opened and not ends) or _THOUGHT.search(text, end) else end


def exact_answer(text: str, *, opened: bool = False) -> Span | None:
    """The short answer inside a generated text, found without looking at the gold answer.

    The line of :func:`answer_line`; lead-in phrases, opening quotes and trailing punctuation stripped; a further sentence, clause
    or apposition is cut off. It says where the answer's tokens are, not whether it is right: that is judged on the whole line.

    Args:
        text: What was generated.
        opened: Whether the prompt ends inside a block of thinking.

    Returns:
        Characters of ``text``, or None where nothing is left.

    >>> exact_answer("The capital of France is Paris. It lies on the Seine.")
    Span(start=25, end=30)
    """
    whole = answer_line(text, opened=opened)
    if whole is None:
        return None
    offset, line = whole.start, whole.of(text)
    for _ in range(2):
        match = _LEAD_IN.match(line)
        if match is None or not line[match.end() :].strip(_CLOSE):
            break
        offset, line = offset + match.end(), line[match.end() :]
    stripped = line.lstrip(_OPEN)
    offset, line = offset + len(line) - len(stripped), stripped
    # A full stop ends the sentence only after a longer word, so that "St. Louis" and "J. K. Rowling" stay whole.
    line = re.split(r"(?<=\w{4})\.(?=\s|$)|[!?;](?=\s|$)|\s[-–—]\s|\s\(", line, maxsplit=1)[0]
    line = _APPOSITION.split(line, maxsplit=1)[0].rstrip(_CLOSE)
    return Span(offset, offset + len(line)) if line else None


def is_right(line: str, gold: Sequence[str]) -> bool:
    """Whether a gold alias occurs in an answer's line as whole words, case- and punctuation-insensitively (see ``normalise``)."""
    words = f" {normalise(line)} "
    return any(f" {normalise(alias)} " in words for alias in gold if normalise(alias))
