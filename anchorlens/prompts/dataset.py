"""Interface of a data set of prompts (questions, clean/corrupted pairs)."""

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class Dropped:
    """Row that was left out; rows are counted by ``reason``."""

    example_id: str
    dataset: str
    question: str
    answer: str
    reason: str
    detail: str = field(default="")


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
