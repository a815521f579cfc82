"""Tokenize prompt pairs and pair their positions, when a sweep starts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from anchorlens.display import short_repr, shorten
from anchorlens.errors import InputError
from anchorlens.models.adapt import adapt
from anchorlens.models.adapter import Adapter
from anchorlens.models.card import name_of, resolve_add_bos, with_bos
from anchorlens.prompts.align_pairs import align_positions
from anchorlens.prompts.dataset import Dropped, PromptDataset, RowDropped
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.prompts.pairs import PairData, PairPrompt, PromptPair, TokenizedPair, TokenText, drop_pair
from anchorlens.prompts.sweep_context import DataSource, SweepContext
from anchorlens.warn import warn

if TYPE_CHECKING:
    import pandas


# From here on scripts of East Asia, which have no spaces between words.
_FIRST_CJK = "\u2e80"
_COLUMNS = (
    "id", "group", "clean", "corrupted", "answer", "wrong", "alignment", "unpaired_clean", "unpaired_corrupted", "drop_reason",
    "drop_detail",
)  # fmt: skip


@dataclass(frozen=True)
class PairContext(SweepContext):
    """Context of a sweep over prompt pairs."""

    pairs: tuple[TokenizedPair, ...]


@dataclass(frozen=True)
class PairTokenizer:
    """Converts prompt pairs into tokenized pairs.

    Attributes:
        hf: Tokenizer of the model.
        add_bos: Whether BOS is added to texts that do not begin with it; token ids stay as they are.
        n_ctx: Maximum number of tokens.
        d_vocab: Number of tokens in the vocabulary.
    """

    hf: PreTrainedTokenizerBase
    add_bos: bool
    n_ctx: int
    d_vocab: int

    def tokenize(self, pair: PromptPair) -> TokenizedPair:
        """Return a tokenized pair; raise RowDropped if it cannot be measured."""
        clean, corrupted = self._prompt(pair.clean, "clean"), self._prompt(pair.corrupted, "corrupted")
        if clean.ids == corrupted.ids:
            raise RowDropped("same_prompts", "clean and corrupted prompt have the same tokens")
        bos = self.hf.bos_token_id
        if (clean.ids[0] == bos) != (corrupted.ids[0] == bos):
            raise RowDropped("bos_differs", "one prompt begins with BOS, the other does not")
        answer, wrong = (self._answer(getattr(pair, which), pair.clean, clean.ids, which) for which in ("answer", "wrong"))
        if answer and wrong and answer[: len(wrong)] == wrong[: len(answer)]:
            raise RowDropped("answer_equals_wrong", f"{self._text(answer)!r} and {self._text(wrong)!r}: no token tells them apart")
        spans = {name: (clean.span(a, name), corrupted.span(b, name)) for name, (a, b) in pair.segments.items()}
        for side in (0, 1):
            taken = [p for own in spans.values() for p in own[side]]
            if len(set(taken)) < len(taken):
                raise RowDropped("segments_overlap", f"two segments share a token of the {('clean', 'corrupted')[side]} prompt")
        alignment = align_positions(clean.ids, corrupted.ids, list(spans.values()), pair.alignment)
        texts = {"answer_text": self._show(pair.answer), "wrong_text": self._show(pair.wrong)}
        prompts = [
            PairPrompt(
                id=name, group=pair.group, ids=own.ids, text=own.text, pair=pair, **texts,
                positions={
                    **{f"pos:{p}": (p,) for p in range(len(own.ids))}, "last": (len(own.ids) - 1,),
                    **{segment: tuple(both[side]) for segment, both in spans.items()},
                },
            )
            for side, (name, own) in enumerate(((f"{pair.id}|clean", clean), (pair.id, corrupted)))
        ]  # fmt: skip
        return TokenizedPair(prompts[0], prompts[1], answer, wrong, alignment)

    def _prompt(self, given: TokenText, which: str) -> "_Prompt":
        """Tokenize a prompt; raise RowDropped if it is too long, begins with BOS twice or has unknown tokens."""
        if isinstance(given, str):
            out = self.hf(given, add_special_tokens=False, return_offsets_mapping=bool(self.hf.is_fast), verbose=False)
            own = [int(i) for i in out["input_ids"]]  # pyright: ignore
            ids = tuple(with_bos(self.hf, own, self.add_bos))
            offsets = [(int(a), int(b)) for a, b in out.get("offset_mapping", ())]  # pyright: ignore
            prompt = _Prompt(ids, given, [(0, 0)] * (len(ids) - len(own)) + offsets, which)
        else:
            self._check_ids(given, which)
            prompt = _Prompt(given, self._text(given), None, which)
        if not prompt.ids:
            raise RowDropped("empty_cell", f"{which} has no token")
        if prompt.ids[:2] == (self.hf.bos_token_id,) * 2:
            raise RowDropped("bos_twice", f"{which} begins with BOS twice")
        if len(prompt.ids) > self.n_ctx:
            raise RowDropped("too_long", f"{which}: {len(prompt.ids)} tokens, the model takes {self.n_ctx}")
        return prompt

    def _answer(self, given: TokenText | None, clean: TokenText, clean_ids: tuple[int, ...], which: str) -> tuple[int, ...]:
        """Return the token ids of an answer.

        A text has the tokens that continue the clean prompt, or those of the answer alone if it merges with the prompt's last token.
        """
        if given is None:
            return ()
        if not isinstance(given, str):
            self._check_ids(given, which)
            return given
        ids: tuple[int, ...] = ()
        if isinstance(clean, str):
            whole = tuple(with_bos(self.hf, self._encode(clean + given), self.add_bos))
            ids = whole[len(clean_ids) :] if whole[: len(clean_ids)] == clean_ids else ()
        ids = ids or tuple(self._encode(given))
        if not ids:
            raise RowDropped("empty_answer", f"{which}={given!r} has no token")
        return ids

    def _encode(self, text: str) -> list[int]:
        return [int(i) for i in self.hf(text, add_special_tokens=False, verbose=False)["input_ids"]]  # pyright: ignore

    def _check_ids(self, ids: Sequence[int], which: str) -> None:
        outside = next((i for i in ids if not 0 <= i < self.d_vocab), None)
        if outside is not None:
            raise RowDropped("token_outside_vocabulary", f"{which}: token {outside}, the vocabulary has {self.d_vocab}")

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.hf.decode(list(ids), clean_up_tokenization_spaces=False))

    def _show(self, given: TokenText | None) -> str:
        return given if isinstance(given, str) else self._text(given or ())


@dataclass(frozen=True)
class _Prompt:
    """Tokens of a prompt; ``offsets`` (characters of each token) is None for token ids, and empty for slow tokenizers."""

    ids: tuple[int, ...]
    text: str
    offsets: list[tuple[int, int]] | None
    which: str

    def span(self, segment: TokenText, name: str) -> range:
        """Return the token positions of a segment; raise RowDropped if it does not occur exactly once."""
        if isinstance(segment, str) and self.offsets is None:
            raise RowDropped("segment_not_found", f"{name}: the {self.which} prompt has token ids. Give those of the segment")
        if isinstance(segment, str) and len(self.offsets or ()) < len(self.ids):
            fix = "Load the fast tokenizer (AutoTokenizer.from_pretrained(..., use_fast=True)), or give the segments as token ids."
            raise InputError(f"model: its tokenizer has no character offsets, which segments need. {fix}", argument="model")
        whole: TokenText = self.text if isinstance(segment, str) else self.ids
        starts = [i for i in range(len(whole) - len(segment) + 1) if whole[i : i + len(segment)] == segment]
        if len(starts) != 1:
            reason, times = ("segment_not_unique", f"{len(starts)} times") if starts else ("segment_not_found", "nowhere")
            raise RowDropped(reason, f"{name}: {short_repr(segment)} occurs {times} in the {self.which} prompt")
        start, end = starts[0], starts[0] + len(segment)
        if not isinstance(segment, str):
            return range(start, end)
        own = [i for i, (a, b) in enumerate(self.offsets or ()) if a < end and start < b]
        if not own:
            raise RowDropped("no_segment_token", f"{name}: {shorten(segment)} has no token of its own")
        return range(own[0], own[-1] + 1)


def set_up_pairs(adapter: Adapter, data: PairData, spec: Any) -> PairContext:
    """Tokenize the pairs of a data set; pairs that cannot be measured are dropped and counted."""
    hf = adapter.tokenizer
    if hf is None:
        raise InputError("model: has no tokenizer. Set model.tokenizer, or load it with anchorlens.load_model.", argument="model")
    add_bos = resolve_add_bos(hf, spec.add_bos)
    kept, dropped = _tokenize(PairTokenizer(hf, add_bos, adapter.shape.n_ctx, adapter.shape.d_vocab), data)
    _warn_of_missing_spaces([one.clean.pair for one in kept])
    return PairContext(
        adapter,
        name_of(adapter.model),
        data,
        (*data.dropped, *dropped),
        spec.progress,
        "",
        add_bos,
        (),
        _token_text(hf),
        tuple(kept),
    )


def _token_text(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], str]:
    """Return the function token id -> text."""
    return lambda token: str(tokenizer.decode([token], clean_up_tokenization_spaces=False))


def _tokenize(tokenizer: PairTokenizer, data: PairData) -> tuple[list[TokenizedPair], list[Dropped]]:
    kept: list[TokenizedPair] = []
    dropped: list[Dropped] = []
    for pair in data.pairs:
        try:
            kept.append(tokenizer.tokenize(pair))
        except RowDropped as why:
            dropped.append(drop_pair(pair, data.name, why.reason, why.detail))
    return kept, dropped


def _warn_of_missing_spaces(pairs: Sequence[PromptPair]) -> None:
    """Warn once if answers continue the last word of their prompt, as "Paris" does after "France is"."""
    joined = [
        (pair.clean, answer)
        for pair in pairs
        for answer in (pair.answer, pair.wrong)
        if isinstance(pair.clean, str) and isinstance(answer, str) and _ends_in_word(pair.clean) and _ends_in_word(answer[:1])
        and not (pair.clean[-1].isdecimal() and answer[0].isdecimal())  # a number is continued, such as a year
    ]  # fmt: skip
    if joined:
        prompt, answer = joined[0]
        n = "1 answer begins" if len(joined) == 1 else f"{len(joined)} answers begin"
        warn(
            f"{n} without a space after a word: {shorten(prompt[-20:])} + {shorten(answer)}. Its first token is that of a continued "
            f"word. Write {f' {answer}'!r}, if the answer is a word of its own."
        )


def _ends_in_word(text: str) -> bool:
    """Return whether a text ends in a letter or digit of a script that separates words by spaces."""
    return text[-1:].isalnum() and text[-1:] < _FIRST_CJK


@dataclass(frozen=True)
class _Options:
    add_bos: bool | None
    progress: bool = False


def tokenize_pairs(model: Any, pairs: Any, *, add_bos: bool | None = None) -> "pandas.DataFrame":
    """Tokenize prompt pairs as a sweep does, to see which positions are paired.

    Args:
        model: Model with a tokenizer.
        pairs: Prompt pairs of :func:`anchorlens.load_pairs`, or its first argument.
        add_bos: Whether BOS is added to texts. If None, as the tokenizer does.

    Returns:
        One row per pair: ``id group clean corrupted answer wrong`` (texts of the tokens), ``alignment`` (pairs of clean and
        corrupted position), ``unpaired_clean`` and ``unpaired_corrupted`` (positions without a partner), ``drop_reason`` and
        ``drop_detail``. Of dropped pairs only the id and the reason are given.

    Raises:
        InputError: If the model has no tokenizer, or the pairs cannot be read.

    Examples:
        >>> rows = [{"clean": "The capital of France is", "corrupted": "The capital of South Africa is"}]
        >>> tokenize_pairs(model, rows)["unpaired_corrupted"][0]  # doctest: +SKIP
        (3, 4)
    """
    import pandas

    context = set_up_pairs(adapt(model), _load(pairs, 0), _Options(add_bos))
    rows: list[dict[str, Any]] = []
    for one in context.pairs:
        ids = {"clean": one.clean.ids, "corrupted": one.corrupted.ids, "answer": one.answer, "wrong": one.wrong}
        rows.append(
            {
                "id": one.clean.pair.id, "group": one.clean.group,
                **{name: [context.token_text(i) for i in own] for name, own in ids.items()}, "alignment": one.alignment,
                **dict(zip(("unpaired_clean", "unpaired_corrupted"), one.unpaired, strict=True)),
            }
        )  # fmt: skip
    rows += [{"id": row.example_id, "drop_reason": row.reason, "drop_detail": row.detail} for row in context.dropped]
    return pandas.DataFrame(rows, columns=list(_COLUMNS))


def _load(data: Any, seed: int) -> PairData:  # noqa: ARG001
    if isinstance(data, PromptDataset) and not isinstance(data, PairData):
        raise InputError(f"data={short_repr(data)}: must be prompt pairs. Use load_pairs, or swap_sweep.", argument="data")
    return data if isinstance(data, PairData) else load_pairs(data)


PAIRS = DataSource(_load, set_up_pairs, _token_text)
"""Data source of clean and corrupted prompts, loaded by :func:`anchorlens.load_pairs`."""
