"""Interface of a data set of prompts (questions, clean/corrupted pairs)."""

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """Row that was left out; rows are counted by ``reason``."""

    example_id: str
    dataset: str
    question: str
    answer: str
    reason: str
    detail: str = field(default="")


class RowDropped(Exception):  # noqa: N818 - caught and counted by its reason, never an error
    """Raised for a row that cannot be measured; rows are counted by ``reason``."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class CountsDropped:
    """Counts and lists the rows that a data set has left out."""

    dropped: tuple[Dropped, ...]

    @property
    def dropped_counts(self) -> dict[str, int]:
        """Reason -> number of rows in ``dropped``, sorted by reason."""
        return dict(sorted(Counter(row.reason for row in self.dropped).items()))

    def dropped_frame(self) -> "pandas.DataFrame":
        """Return one row per dropped row: ``example_id dataset question answer reason detail``."""
        import pandas

        return pandas.DataFrame(
            [vars(row) for row in self.dropped], columns=[one.name for one in fields(Dropped)]
        )


@dataclass(frozen=True, kw_only=True)
class KnownDataset:
    """Data set that is loaded by name.

    Attributes:
        name: Name to pass to ``load_qa`` or, for prompt pairs, to ``load_pairs``.
        hub_id: Repository on the Hugging Face hub; for a sample of questions, the repository with
            the same schema.
        config: Default configuration. If None, the repository has only one.
        split: Default split of the repository.
        kind: ``hub``, ``sample`` (embedded questions) or ``pairs`` (embedded prompt pairs).
        note: Description in one line.
    """

    name: str
    hub_id: str | None
    config: str | None
    split: str | None
    kind: str
    note: str


@runtime_checkable
class PromptDataset(Protocol):
    """Interface of a data set of prompts, as used by the runner, resuming and provenance."""

    @property
    def name(self) -> str:
        """Name of the data set in outputs."""
        ...

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Rows that were left out while loading."""
        ...

    def record(self) -> dict[str, Any]:
        """Return name, source, content hash and sizes for ``run.json``."""
        ...
