"""Clean and corrupted prompts as a data set: rows from a list or a CSV file, tokenized when a sweep starts."""

import csv
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from anchorlens.display import as_int, short_repr
from anchorlens.errors import InputError, did_you_mean
from anchorlens.models.adapter import Adapter
from anchorlens.models.card import name_of, resolve_add_bos, with_bos
from anchorlens.prompts.dataset import Dropped, PromptDataset
from anchorlens.prompts.sweep_context import DataSource, SweepContext
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt

_REQUIRED = ("clean", "corrupted", "answer", "wrong")
_COLUMNS = ("id", "group", *_REQUIRED)


@dataclass(frozen=True)
class PromptPair:
    """Clean and corrupted prompt, with the answer to the clean one and a wrong answer.

    Attributes:
        id: Unique name of the pair.
        group: Resampling unit; the pair's id if the data give none.
        clean: Prompt that leads to the answer.
        corrupted: Changed prompt of the same number of tokens.
        answer: Right next token of the clean prompt, with its leading space if it has one.
        wrong: Wrong next token.
    """

    id: str
    group: str
    clean: str
    corrupted: str
    answer: str
    wrong: str


@dataclass(frozen=True)
class PairData:
    """Data set of prompt pairs.

    Attributes:
        name: Name of the data set in outputs.
        pairs: Pairs in the order of the data.
        dropped: Rows that were left out.
        source: ``file:pairs.csv`` or ``list``.
        sha256: Hash of the pairs.
        limit: Number of rows loaded. If None, all.
    """

    name: str
    pairs: tuple[PromptPair, ...]
    dropped: tuple[Dropped, ...]
    source: str
    sha256: str
    limit: int | None = None

    def __len__(self) -> int:
        return len(self.pairs)

    def __repr__(self) -> str:
        return f"PairData({self.name!r}: pairs {len(self)} | dropped {len(self.dropped)} | source {self.source})"

    def record(self) -> dict[str, Any]:
        """Return name, source, content hash and sizes for ``run.json``."""
        facts = {name: getattr(self, name) for name in ("name", "source", "sha256", "limit")}
        return {**facts, "seed": 0, "examples": len(self.pairs)}


@dataclass(frozen=True, kw_only=True)
class PairPrompt(TokenizedPrompt):
    """Tokenized prompt of a pair."""

    text: str
    pair: PromptPair

    @override
    def columns(self) -> dict[str, object]:
        return {"question": self.text, "answer": self.pair.answer, "wrong_answer": self.pair.wrong, "text": self.text}


@dataclass(frozen=True)
class TokenizedPair:
    """Tokenized pair of prompts of equal length, with the token ids of both answers."""

    clean: PairPrompt
    corrupted: PairPrompt
    answer: int
    wrong: int


@dataclass(frozen=True)
class PairContext(SweepContext):
    """Context of a sweep over prompt pairs."""

    pairs: tuple[TokenizedPair, ...]


def load_pairs(
    source: "Sequence[Mapping[str, object]] | str | os.PathLike[str]", *, name: str | None = None, limit: int | None = None
) -> PairData:
    """Load clean and corrupted prompts.

    Args:
        source: Rows with ``clean``, ``corrupted``, ``answer``, ``wrong`` and optionally ``id`` and ``group``, or the path of
            a CSV file with these columns.
        name: Name of the data set. If None, the file's name or ``pairs``.
        limit: Number of rows to load. If None, all.

    Returns:
        Data set of the pairs. Rows with an empty cell are dropped and counted.

    Raises:
        InputError: If the file does not exist or is no CSV file in UTF-8, a column is missing or unknown, or an id occurs twice.

    Examples:
        >>> data = load_pairs([{"clean": "The capital of France is", "corrupted": "The capital of Italy is",
        ...                     "answer": " Paris", "wrong": " Rome"}])
        >>> len(data)
        1
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if not path.is_file():
            raise InputError(f"source={str(source)!r}: no such file. Give a CSV file or a list of rows.", argument="source")
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                rows: list[Mapping[str, object]] = list(csv.DictReader(file, strict=True))
        except (csv.Error, UnicodeDecodeError) as why:
            raise InputError(f"source={str(source)!r}: no CSV file ({why}). Save it as CSV in UTF-8.", argument="source") from why
        origin, dataset = f"file:{path.name}", name or path.stem
    else:
        rows, origin, dataset = list(source) if isinstance(source, Sequence) else [], "list", name or "pairs"
        if not isinstance(source, Sequence) or not all(isinstance(row, Mapping) for row in rows):
            raise InputError(f"source={short_repr(source)}: must be a CSV file or a list of dictionaries.", argument="source")
    count = as_int(limit)
    if limit is not None and (count is None or count < 1):
        raise InputError(f"limit={short_repr(limit)}: must be a whole number of at least 1, or None.", argument="limit")
    pairs: list[PromptPair] = []
    dropped: list[Dropped] = []
    for number, row in enumerate(rows[:count], start=1):
        if None in row:
            raise InputError(f"source: row {number} has more cells than the header. Quote cells with commas.", argument="source")
        unknown = next((str(key) for key in row if key not in _COLUMNS), None)
        if unknown is not None:
            raise InputError(f"source: row {number} has column {unknown!r}. {did_you_mean(unknown, _COLUMNS)}", argument="source")
        missing = next((key for key in _REQUIRED if key not in row), None)
        if missing is not None:
            raise InputError(f"source: row {number} has no {missing!r}. Rows need {', '.join(_REQUIRED)}.", argument="source")
        cells = {key: row[key] if isinstance(row[key], str) else "" for key in _REQUIRED}
        pair_id = str(row.get("id") or f"{number - 1:06d}")
        pair = PromptPair(pair_id, str(row.get("group") or pair_id), **cells)  # pyright: ignore[reportArgumentType]
        empty = next((key for key, cell in cells.items() if not str(cell).strip()), None)
        if empty is None:
            pairs.append(pair)
        else:
            dropped.append(drop_pair(pair, dataset, "empty_cell", f"{empty} is empty or no text"))
    if len({pair.id for pair in pairs}) < len(pairs):
        raise InputError("source: two rows have the same id. Give unique ids, or none.", argument="source")
    text = json.dumps([vars(pair) for pair in pairs], sort_keys=True, ensure_ascii=False)
    return PairData(dataset, tuple(pairs), tuple(dropped), origin, hashlib.sha256(text.encode("utf8")).hexdigest(), count)


def drop_pair(pair: PromptPair, dataset: str, reason: str, detail: str) -> Dropped:
    """Return the record of a pair that was left out."""
    return Dropped(pair.id, dataset, pair.clean, pair.answer, reason, detail)


def set_up_pairs(adapter: Adapter, data: PairData, spec: Any) -> PairContext:
    """Tokenize the pairs of a data set.

    Pairs whose prompts differ in length or exceed ``n_ctx``, or whose answers are not single tokens, are dropped and counted.
    """
    hf = adapter.tokenizer
    if hf is None:
        raise InputError("model: has no tokenizer. Set model.tokenizer, or load it with anchorlens.load_model.", argument="model")
    add_bos = resolve_add_bos(hf, spec.add_bos)

    def encode(text: str) -> tuple[int, ...]:
        ids = [int(i) for i in hf(text, add_special_tokens=False, verbose=False)["input_ids"]]  # pyright: ignore
        return tuple(with_bos(hf, ids, add_bos))

    def token(text: str) -> int | None:
        ids = hf(text, add_special_tokens=False, verbose=False)["input_ids"]
        return int(ids[0]) if len(ids) == 1 else None  # pyright: ignore

    kept: list[TokenizedPair] = []
    dropped: list[Dropped] = []
    for pair in data.pairs:
        clean, corrupted = encode(pair.clean), encode(pair.corrupted)
        answer, wrong = token(pair.answer), token(pair.wrong)
        if answer is None or wrong is None:
            which = "answer" if answer is None else "wrong"
            dropped.append(drop_pair(pair, data.name, "answer_not_one_token", f"{which} {getattr(pair, which)!r}"))
        elif len(clean) != len(corrupted):
            dropped.append(drop_pair(pair, data.name, "length_differs", f"{len(clean)} and {len(corrupted)} tokens"))
        elif len(clean) > adapter.shape.n_ctx:
            dropped.append(drop_pair(pair, data.name, "too_long", f"{len(clean)} tokens, the model takes {adapter.shape.n_ctx}"))
        else:
            named = {f"pos:{p}": (p,) for p in range(len(clean))} | {"last": (len(clean) - 1,)}
            first = PairPrompt(id=f"{pair.id}|clean", group=pair.group, ids=clean, positions=named, text=pair.clean, pair=pair)
            second = replace(first, id=pair.id, ids=corrupted, text=pair.corrupted)
            kept.append(TokenizedPair(first, second, answer, wrong))

    def token_text(i: int) -> str:
        return str(hf.decode([i], clean_up_tokenization_spaces=False))

    return PairContext(
        adapter, name_of(adapter.model), data, (*data.dropped, *dropped), spec.progress, "", add_bos, (), token_text, tuple(kept)
    )


def _load(data: Any, seed: int) -> PairData:  # noqa: ARG001
    if isinstance(data, PromptDataset) and not isinstance(data, PairData):
        raise InputError(f"data={short_repr(data)}: must be prompt pairs. Use load_pairs, or swap_sweep.", argument="data")
    return data if isinstance(data, PairData) else load_pairs(data)


PAIRS = DataSource(_load, set_up_pairs)
"""Data source of clean and corrupted prompts, loaded by :func:`load_pairs`."""
