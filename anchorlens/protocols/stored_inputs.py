"""Rebuild the inputs of a saved sweep from its tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from anchorlens.errors import RunError
from anchorlens.probing.cross_fitting import CrossFittedProbes
from anchorlens.questions.example import Example, Span
from anchorlens.questions.tokens import Answer, TokenRow
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import parse_positions


@dataclass(frozen=True)
class StoredInputs:
    """Inputs of a saved sweep, rebuilt without data set and tokenizer."""

    result: SweepResult

    @property
    def config(self) -> dict[str, Any]:
        """Resolved arguments."""
        return self.result.record["config"]

    @property
    def layers(self) -> tuple[int, ...]:
        """Measured layers."""
        return tuple(self.config["layers"])

    @property
    def probes(self) -> dict[str, CrossFittedProbes]:
        """Name -> probes: ``none`` for the probes that were read, other names for placebos."""
        probes = self.result.probes
        return {} if probes is None else {"none": probes, **self.result.placebo_probes}

    @cached_property
    def records(self) -> Mapping[tuple[str, str], dict[str, Any]]:
        """(role, id) -> columns of an input."""
        examples = self.result.examples(all_columns=True)
        inputs: list[dict[Any, Any]] = examples[examples["role"] != "dropped"].to_dict("records")
        return {(str(one["role"]), str(one["example_id"])): one for one in inputs}

    @cached_property
    def rows(self) -> Mapping[tuple[str, str], TokenRow]:
        """(role, id) -> question and answer."""
        return {key: _row(record) for key, record in self.records.items()}

    @cached_property
    def donor_ids(self) -> dict[str, list[str]]:
        """Base row -> ids of its donors, in order."""
        base = self.result.examples(all_columns=True).query("role == 'base'")
        donor_ids: dict[str, list[str]] = {}
        for name, ids in zip(base["example_id"], base["donor_ids"], strict=True):
            donor_ids[str(name)] = list(map(str, ids))
        return donor_ids

    def row(self, role: str, name: str) -> TokenRow:
        """Return one input.

        Raises:
            RunError: If the run directory lacks the input.
        """
        if (role, name) not in self.rows:
            raise _lacking(role, name)
        return self.rows[role, name]

    def fields(self, role: str, name: str) -> dict[str, Any]:
        """Return the fields of the :class:`~anchorlens.prompts.tokenized_prompt.TokenizedPrompt` of
        an input.

        Raises:
            RunError: If the run directory lacks the input.
        """
        if (role, name) not in self.records:
            raise _lacking(role, name)
        return _fields(self.records[role, name])

    def of(self, role: str) -> tuple[TokenRow, ...]:
        """Return all inputs of a role, in file order."""
        return tuple(row for (name, _), row in self.rows.items() if name == role)


def _lacking(role: str, name: str) -> RunError:
    return RunError(
        f"examples.parquet lacks the {role} row {name!r}, so its cells cannot be measured again."
    )


class _StoredPositions(dict[str, tuple[int, ...]]):
    """Named positions of a stored input; a name that it lacks is an error of the run."""

    def __init__(self, row_id: str, text: str, n_tokens: int) -> None:
        positions = parse_positions(row_id, text, n_tokens)
        super().__init__((name, tuple(where)) for name, where in positions.items())
        self.row_id = row_id

    def __missing__(self, name: str) -> NoReturn:
        raise RunError(
            f"examples.parquet is damaged: example_id={self.row_id!r}: positions lack {name!r}."
            " Make the run again."
        )


def _fields(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": str(record["example_id"]),
        "group": str(record["question_id"]),
        "cluster": str(record["cluster"]),
        "ids": tuple(map(int, record["token_ids"])),
        "positions": _StoredPositions(
            record["example_id"], record["positions"], len(record["token_ids"])
        ),
    }


def _row(record: Mapping[str, Any]) -> TokenRow:
    """Return an input with the fields that measurements read; spans and aliases are empty."""
    answer = str(record["answer"])
    empty = Span(0, 0)
    example = Example(
        example_id=str(record["example_id"]),
        question_id=str(record["question_id"]),
        dataset=str(record["dataset"]),
        question=str(record["question"]),
        answers=(answer,),
        subject=empty,
        property=empty,
    )
    given = Answer(answer, Span(0, len(answer)), label=int(record["label"]))
    fields = _fields(record)
    last = fields["positions"].get("prompt_last", (-1,))
    if len(last) != 1:
        problem = f"example_id={fields['id']!r}: prompt_last has {len(last)} positions, not one"
        raise RunError(f"examples.parquet is damaged: {problem}. Make the run again.")
    return TokenRow(
        **fields,
        example=example,
        text=str(record["text"]),
        question=example.question,
        answer=given,
        prompt_length=last[0] + 1,
    )
