"""Tokenize prompt pairs and pair their positions, when a sweep starts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from anchorlens.display import short_repr, shorten
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter
from anchorlens.models.card import name_of, resolve_add_bos, with_bos
from anchorlens.models.load import adapt
from anchorlens.prompts.answer_space import warn_of_spaces
from anchorlens.prompts.dataset import Dropped, PromptDataset, RowDropped
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.prompts.pairs import (
    AnswerText,
    AnyOf,
    PairData,
    PairPrompt,
    PromptPair,
    TokenizedPair,
    TokenText,
    align_positions,
    drop_pair,
    list_answers,
)
from anchorlens.prompts.sweep_context import DataSource, SweepContext

if TYPE_CHECKING:
    import pandas


_COLUMNS = (
    "id",
    "group",
    "clean",
    "corrupted",
    "answer",
    "wrong",
    "alignment",
    "unpaired_clean",
    "unpaired_corrupted",
    "drop_reason",
    "drop_detail",
)


@dataclass(frozen=True, kw_only=True)
class PairContext(SweepContext):
    """Context of a sweep over prompt pairs."""

    pairs: tuple[TokenizedPair, ...]


@dataclass(frozen=True)
class PairTokenizer:
    """Converts prompt pairs into tokenized pairs.

    Attributes:
        hf: Tokenizer of the model.
        add_bos: Whether BOS is added to texts that do not begin with it; token ids stay as they
            are.
        n_ctx: Maximum number of tokens.
        d_vocab: Number of tokens in the vocabulary.
    """

    hf: PreTrainedTokenizerBase
    add_bos: bool
    n_ctx: int
    d_vocab: int

    def tokenize(self, pair: PromptPair) -> TokenizedPair:
        """Return a tokenized pair; raise RowDropped if it cannot be measured."""
        clean = self._prompt(pair.clean, "clean")
        corrupted = self._prompt(pair.corrupted, "corrupted")
        if clean.ids == corrupted.ids:
            raise RowDropped("same_prompts", "clean and corrupted prompt have the same tokens")
        bos = self.hf.bos_token_id
        if (clean.ids[0] == bos) != (corrupted.ids[0] == bos):
            raise RowDropped("bos_differs", "one prompt begins with BOS, the other does not")
        any_of = isinstance(pair.answer, AnyOf) or isinstance(pair.wrong, AnyOf)
        answers = self._alternatives(pair.answer, pair.clean, clean.ids, "answer")
        wrongs = self._alternatives(pair.wrong, pair.clean, clean.ids, "wrong")
        answer = _ids_of_side(answers, any_of=any_of)
        wrong = _ids_of_side(wrongs, any_of=any_of)
        if any_of and (both := set(answer) & set(wrong)):
            raise RowDropped(
                "answer_equals_wrong",
                f"{self._text([min(both)])!r} begins an answer and a wrong answer",
            )
        if not any_of and answer and wrong and answer[: len(wrong)] == wrong[: len(answer)]:
            raise RowDropped(
                "answer_equals_wrong",
                f"{self._text(answer)!r} and {self._text(wrong)!r}: no token tells them apart",
            )
        clean_spans: dict[str, range] = {}
        corrupted_spans: dict[str, range] = {}
        for name, (a, b) in pair.segments.items():
            clean_spans[name] = clean.span(a, name)
            corrupted_spans[name] = corrupted.span(b, name)
        _check_overlap(clean_spans, "clean")
        _check_overlap(corrupted_spans, "corrupted")
        segments = list(zip(clean_spans.values(), corrupted_spans.values(), strict=True))
        return TokenizedPair(
            clean=self._pair_prompt(pair, f"{pair.id}|clean", clean, clean_spans),
            corrupted=self._pair_prompt(pair, pair.id, corrupted, corrupted_spans),
            answer=answer,
            wrong=wrong,
            alignment=align_positions(clean.ids, corrupted.ids, segments, pair.alignment),
            any_of=any_of,
        )

    def _pair_prompt(
        self, pair: PromptPair, name: str, own: "_Prompt", spans: Mapping[str, range]
    ) -> PairPrompt:
        """Return one prompt of a pair with its named positions."""
        n = len(own.ids)
        positions: dict[str, tuple[int, ...]] = {f"pos:{p}": (p,) for p in range(n)}
        positions["last"] = (n - 1,)
        for segment, span in spans.items():
            positions[segment] = tuple(span)
        return PairPrompt(
            id=name,
            group=pair.group,
            cluster=pair.template or "",
            ids=own.ids,
            text=own.text,
            pair=pair,
            answer_text=self._show(pair.answer),
            wrong_text=self._show(pair.wrong),
            positions=positions,
        )

    def _prompt(self, given: TokenText, which: str) -> "_Prompt":
        """Tokenize a prompt; raise RowDropped if it is too long, begins with BOS twice or has
        unknown tokens.
        """
        if isinstance(given, str):
            out = self.hf(
                given,
                add_special_tokens=False,
                return_offsets_mapping=bool(self.hf.is_fast),
                verbose=False,
            )
            own: list[int] = list(out["input_ids"])  # pyright: ignore[reportArgumentType]
            ids = tuple(with_bos(self.hf, own, self.add_bos))
            offsets: list[tuple[int, int]] = [(0, 0)] * (len(ids) - len(own))  # of BOS
            offsets += out.get("offset_mapping", ())
            prompt = _Prompt(ids, given, offsets, which)
        else:
            self._check_ids(given, which)
            prompt = _Prompt(given, self._text(given), None, which)
        if not prompt.ids:
            raise RowDropped("empty_cell", f"{which} has no token")
        if prompt.ids[:2] == (self.hf.bos_token_id,) * 2:
            raise RowDropped("bos_twice", f"{which} begins with BOS twice")
        if len(prompt.ids) > self.n_ctx:
            raise RowDropped(
                "too_long", f"{which}: {len(prompt.ids)} tokens, the model takes {self.n_ctx}"
            )
        return prompt

    def _alternatives(
        self, given: AnswerText | None, clean: TokenText, clean_ids: tuple[int, ...], which: str
    ) -> list[tuple[int, ...]]:
        """Return the token ids of each alternative of an answer."""
        return [self._answer(one, clean, clean_ids, which) for one in list_answers(given)]

    def _answer(
        self, given: TokenText, clean: TokenText, clean_ids: tuple[int, ...], which: str
    ) -> tuple[int, ...]:
        """Return the token ids of an answer.

        A text has the tokens that continue the clean prompt, or those of the answer alone if it
        merges with the prompt's last token. A prompt of token ids is decoded for that, if its text
        has the same tokens.
        """
        if not isinstance(given, str):
            self._check_ids(given, which)
            return given
        if isinstance(clean, str):
            whole = tuple(with_bos(self.hf, self._encode(clean + given), self.add_bos))
        else:
            whole = tuple(self._encode(self._text(clean) + given))
            has_bos = clean_ids[:1] == (self.hf.bos_token_id,)
            if has_bos and whole[:1] != clean_ids[:1]:
                whole = (clean_ids[0], *whole)
        ids = whole[len(clean_ids) :] if whole[: len(clean_ids)] == clean_ids else ()
        ids = ids or tuple(self._encode(given))
        if not ids:
            raise RowDropped("empty_answer", f"{which}={given!r} has no token")
        return ids

    def _encode(self, text: str) -> list[int]:
        out = self.hf(text, add_special_tokens=False, verbose=False)
        return list(out["input_ids"])  # pyright: ignore[reportReturnType, reportArgumentType]

    def _check_ids(self, ids: Sequence[int], which: str) -> None:
        for i in ids:
            if not 0 <= i < self.d_vocab:
                raise RowDropped(
                    "token_outside_vocabulary",
                    f"{which}: token {i}, the vocabulary has {self.d_vocab}",
                )

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.hf.decode(list(ids), clean_up_tokenization_spaces=False))

    def _show(self, given: AnswerText | None) -> str:
        shown = [one if isinstance(one, str) else self._text(one) for one in list_answers(given)]
        return " |".join(shown)


def _ids_of_side(answers: Sequence[tuple[int, ...]], *, any_of: bool) -> tuple[int, ...]:
    """Return the first tokens of alternatives, each once; of a single answer all its tokens."""
    if any_of:
        return tuple(dict.fromkeys(ids[0] for ids in answers))
    return answers[0] if answers else ()


def _check_overlap(spans: Mapping[str, range], which: str) -> None:
    """Raise RowDropped if two segments of a prompt share a token."""
    taken: set[int] = set()
    for span in spans.values():
        if taken.intersection(span):
            raise RowDropped(
                "segments_overlap", f"two segments share a token of the {which} prompt"
            )
        taken.update(span)


@dataclass(frozen=True)
class _Prompt:
    """Tokens of one prompt of a pair.

    ``offsets`` has the characters of each token. It is None for a prompt of token ids, and empty
    for a slow tokenizer.
    """

    ids: tuple[int, ...]
    text: str
    offsets: list[tuple[int, int]] | None
    which: str

    def span(self, segment: TokenText, name: str) -> range:
        """Return the token positions of a segment; raise RowDropped if it does not occur exactly
        once.
        """
        if isinstance(segment, str) and self.offsets is None:
            raise RowDropped(
                "segment_not_found",
                f"{name}: the {self.which} prompt has token ids. Give those of the segment",
            )
        if isinstance(segment, str) and len(self.offsets or ()) < len(self.ids):
            raise InputError(
                "model: its tokenizer has no character offsets, which segments need. Load the fast"
                " tokenizer (AutoTokenizer.from_pretrained(..., use_fast=True)), or give the"
                " segments as token ids.",
                argument="model",
            )
        whole: TokenText = self.text if isinstance(segment, str) else self.ids
        n = len(segment)
        starts = [i for i in range(len(whole) - n + 1) if whole[i : i + n] == segment]
        if not starts:
            detail = f"{name}: {short_repr(segment)} occurs nowhere in the {self.which} prompt"
            raise RowDropped("segment_not_found", detail)
        if len(starts) > 1:
            times = f"{len(starts)} times in the {self.which} prompt"
            raise RowDropped("segment_not_unique", f"{name}: {short_repr(segment)} occurs {times}")
        start = starts[0]
        end = start + n
        if not isinstance(segment, str):
            return range(start, end)
        own = [i for i, (a, b) in enumerate(self.offsets or ()) if a < end and start < b]
        if not own:
            raise RowDropped(
                "no_segment_token", f"{name}: {shorten(segment)} has no token of its own"
            )
        return range(own[0], own[-1] + 1)


def set_up_pairs(adapter: Adapter, data: PairData, spec: Any) -> PairContext:
    """Tokenize the pairs of a data set; pairs that cannot be measured are dropped and counted."""
    hf = adapter.tokenizer
    if hf is None:
        raise InputError(
            "model: has no tokenizer. Set model.tokenizer, or load it with anchorlens.load_model.",
            argument="model",
        )
    add_bos = resolve_add_bos(hf, spec.add_bos)
    kept, dropped = _tokenize(
        PairTokenizer(hf, add_bos, adapter.shape.n_ctx, adapter.shape.d_vocab), data
    )
    warn_of_spaces([one.clean.pair for one in kept])
    return PairContext(
        adapter=adapter,
        model_name=name_of(adapter.model),
        data=data,
        dropped=(*data.dropped, *dropped),
        progress=spec.progress,
        prompt="",
        add_bos=add_bos,
        prefix=(),
        token_text=_token_text(hf),
        pairs=tuple(kept),
    )


def _token_text(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], str]:
    """Return the function token id -> text."""
    return lambda token: str(tokenizer.decode([token], clean_up_tokenization_spaces=False))


def _tokenize(
    tokenizer: PairTokenizer, data: PairData
) -> tuple[list[TokenizedPair], list[Dropped]]:
    kept: list[TokenizedPair] = []
    dropped: list[Dropped] = []
    for pair in data.pairs:
        try:
            kept.append(tokenizer.tokenize(pair))
        except RowDropped as why:
            dropped.append(drop_pair(pair, data.name, why.reason, why.detail))
    return kept, dropped


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
        One row per pair: ``id group clean corrupted answer wrong`` (texts of the tokens),
        ``alignment`` (pairs of clean and corrupted position), ``unpaired_clean`` and
        ``unpaired_corrupted`` (positions without a partner), ``drop_reason`` and ``drop_detail``.
        Of dropped pairs only the id and the reason are given.

    Raises:
        InputError: If the model has no tokenizer, or the pairs cannot be read.

    Examples:
        >>> import anchorlens as al
        >>> model = al.load_model("smollm2-135m-instruct")  # doctest: +SKIP
        >>> pair = {"clean": "The capital of France is"}
        >>> pair["corrupted"] = "The capital of South Africa is"
        >>> al.tokenize_pairs(model, [pair])["unpaired_corrupted"][0]  # doctest: +SKIP
        (3, 4)
    """
    import pandas

    context = set_up_pairs(adapt(model), _load(pairs, 0), _Options(add_bos))
    rows: list[dict[str, Any]] = []

    def texts(ids: Sequence[int]) -> list[str]:
        return [context.token_text(i) for i in ids]

    for one in context.pairs:
        unpaired_clean, unpaired_corrupted = one.unpaired
        rows.append(
            {
                "id": one.clean.pair.id,
                "group": one.clean.group,
                "clean": texts(one.clean.ids),
                "corrupted": texts(one.corrupted.ids),
                "answer": texts(one.answer),
                "wrong": texts(one.wrong),
                "alignment": one.alignment,
                "unpaired_clean": unpaired_clean,
                "unpaired_corrupted": unpaired_corrupted,
            }
        )
    for row in context.dropped:
        cells = {"id": row.example_id, "drop_reason": row.reason, "drop_detail": row.detail}
        rows.append(cells)
    return pandas.DataFrame(rows, columns=list(_COLUMNS))


def _load(data: Any, seed: int) -> PairData:  # noqa: ARG001
    if isinstance(data, PromptDataset) and not isinstance(data, PairData):
        raise InputError(
            f"data={short_repr(data)}: must be prompt pairs. Use load_pairs, or swap_sweep.",
            argument="data",
        )
    return data if isinstance(data, PairData) else load_pairs(data)


PAIRS = DataSource(_load, set_up_pairs, _token_text)
"""Data source of clean and corrupted prompts, loaded by :func:`anchorlens.load_pairs`."""
