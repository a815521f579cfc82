"""Clean and corrupted prompts: pairs as they are read, and tokenized pairs with their aligned positions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from typing_extensions import override

from anchorlens.prompts.dataset import CountsDropped, Dropped
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt

if TYPE_CHECKING:
    import pandas

TokenText: TypeAlias = str | tuple[int, ...]
"""Text, or token ids that are used as they are."""


@dataclass(frozen=True)
class PromptPair:
    """Clean and corrupted prompt, with the answer to the clean one and a wrong answer.

    Attributes:
        id: Unique name of the pair.
        group: Resampling unit; the pair's id if the data give none.
        clean: Prompt that leads to the answer.
        corrupted: Changed prompt.
        answer: Right continuation of the clean prompt, with its leading space if it has one. None without one.
        wrong: Wrong continuation. None without one.
        segments: Name -> the segment in the clean and in the corrupted prompt.
        alignment: Paired (clean position, corrupted position) of tokens, BOS counted. If None, positions are paired by rule.
    """

    id: str
    group: str
    clean: TokenText
    corrupted: TokenText
    answer: TokenText | None = None
    wrong: TokenText | None = None
    segments: Mapping[str, tuple[TokenText, TokenText]] = field(default_factory=dict)
    alignment: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class PairData(CountsDropped):
    """Data set of prompt pairs, returned by :func:`anchorlens.load_pairs`.

    Attributes:
        name: Name of the data set in outputs.
        pairs: Pairs in the order of the data.
        dropped: Rows that were left out, with reasons; :meth:`dropped_frame` returns a table.
        source: ``file:pairs.csv``, ``sample:ioi-pairs``, ``frame``, ``dataset`` or ``list``.
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
        reasons = ", ".join(f"{reason} {n}" for reason, n in self.dropped_counts.items())
        dropped = f"{len(self.dropped)}" + (f" ({reasons})" if reasons else "")
        return f"PairData({self.name!r}: pairs {len(self)} | dropped {dropped} | source {self.source})"

    def record(self) -> dict[str, Any]:
        """Return name, source, content hash and sizes for ``run.json``."""
        facts = {name: getattr(self, name) for name in ("name", "source", "sha256", "limit")}
        return {**facts, "seed": 0, "examples": len(self.pairs)}

    def to_frame(self) -> "pandas.DataFrame":
        """Return one row per pair: ``id group clean corrupted answer wrong segments alignment``."""
        import pandas

        columns = list(PromptPair.__dataclass_fields__)
        return pandas.DataFrame([vars(pair) for pair in self.pairs], columns=columns)


@dataclass(frozen=True, kw_only=True)
class PairPrompt(TokenizedPrompt):
    """Tokenized prompt of a pair; ``positions`` has ``pos:0``, ``pos:1``, ..., ``last`` and the named segments."""

    text: str
    pair: PromptPair
    answer_text: str = ""
    wrong_text: str = ""

    @override
    def columns(self) -> dict[str, object]:
        return {"question": self.text, "answer": self.answer_text, "wrong_answer": self.wrong_text, "text": self.text}


@dataclass(frozen=True)
class TokenizedPair:
    """Tokenized pair of prompts.

    Attributes:
        clean: Clean prompt, without the answer.
        corrupted: Corrupted prompt, without the answer.
        answer: Token ids of the answer; empty without one.
        wrong: Token ids of the wrong answer; empty without one.
        alignment: Paired (clean position, corrupted position), in the order of the clean prompt.
    """

    clean: PairPrompt
    corrupted: PairPrompt
    answer: tuple[int, ...]
    wrong: tuple[int, ...]
    alignment: tuple[tuple[int, int], ...]

    @property
    def unpaired(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Positions without a partner, of the clean and of the corrupted prompt."""
        clean, corrupted = zip(*self.alignment, strict=True)
        return (
            tuple(p for p in range(len(self.clean.ids)) if p not in clean),
            tuple(p for p in range(len(self.corrupted.ids)) if p not in corrupted),
        )


def drop_pair(pair: PromptPair, dataset: str, reason: str, detail: str) -> Dropped:
    """Return the record of a pair that was left out."""
    return Dropped(pair.id, dataset, as_text(pair.clean), as_text(pair.answer), reason, detail)


def as_text(given: TokenText | None) -> str:
    """Return a text as it is, token ids as a list, and "" for None."""
    return given if isinstance(given, str) else "" if given is None else str(list(given))
