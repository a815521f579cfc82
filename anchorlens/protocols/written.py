"""What a run directory says of one sweep, as the rows and probes that its cells are measured with again."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from anchorlens.errors import RunError
from anchorlens.models.adapter import SiteLike
from anchorlens.questions.example import Example, Span
from anchorlens.questions.tokens import Answer, TokenRow
from anchorlens.results.sweep import SweepResult
from anchorlens.truth.labelled import TruthRows
from anchorlens.truth.probes import LayerProbes


@dataclass(frozen=True)
class Written:
    """The inputs of a sweep that was read from its files; no question set and no tokenizer is needed for them.

    Attributes:
        result: The sweep.
    """

    result: SweepResult

    @property
    def config(self) -> dict[str, Any]:
        """What was asked for and what that came to."""
        return self.result.record["config"]

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that were asked for."""
        return tuple(self.config["layers"])

    @property
    def probes(self) -> dict[str, LayerProbes]:
        """``none`` -> the probes that were read; and those of placebos by name."""
        own = self.result.probes
        return {} if own is None else {"none": own, **self.result.placebo_probes}

    @cached_property
    def rows(self) -> Mapping[tuple[str, str], TokenRow]:
        """Every input by role and id."""
        examples = self.result.examples()
        inputs: list[dict[Any, Any]] = examples[examples["role"] != "dropped"].to_dict("records")
        return {(str(one["role"]), str(one["example_id"])): _row(one) for one in inputs}

    @cached_property
    def donor_ids(self) -> dict[str, list[str]]:
        """Base row -> ids of its donors, in their order."""
        base = self.result.examples().query("role == 'base'")
        return {str(name): [str(one) for one in ids] for name, ids in zip(base["example_id"], base["donor_ids"], strict=True)}

    def row(self, role: str, name: str) -> TokenRow:
        """One input.

        Raises:
            RunError: It is not there.
        """
        if (role, name) not in self.rows:
            raise RunError(f"examples.parquet lacks the {role} row {name!r}: its cells cannot be measured again.")
        return self.rows[role, name]

    def of(self, role: str) -> tuple[TokenRow, ...]:
        """All inputs of a role, in the order of the file."""
        return tuple(row for (own, _), row in self.rows.items() if own == role)

    def truth(self, *sites: SiteLike) -> dict[str, Any]:
        """The fields of :class:`~anchorlens.protocols.truth_probing.PreparedTruth`; only the rows that were measured are in it."""
        base = self.of("base")
        return {
            "dropped": (), "trial": base[0].ids, "sites": sites, "layers": self.layers,
            "truth": TruthRows(base, ("test",) * len(base), ()), "test": tuple(range(len(base))), "model_name": self.result.model,
            "dataset": self.result.dataset, "probes": self.probes,
        }  # fmt: skip


def _row(record: Mapping[str, Any]) -> TokenRow:
    """An input; what no measurement looks at (spans, aliases, how the answer was found) is left empty."""
    answer, nothing = str(record["answer"]), Span(0, 0)
    example = Example(
        str(record["example_id"]), str(record["question_id"]), str(record["dataset"]), str(record["question"]), (answer,), nothing,
        nothing,
    )  # fmt: skip
    given = Answer(answer, Span(0, len(answer)), label=int(record["label"]))
    positions = {name: tuple(where) for name, where in json.loads(record["positions"]).items()}
    (last,) = positions.get("prompt_last", (-1,))
    ids = tuple(map(int, record["token_ids"]))
    return TokenRow(example.example_id, example, str(record["text"]), example.question, given, ids, last + 1, positions)


__all__ = ["Written"]
