"""Write docs/arguments.md: every argument of every protocol, from the specifications.

    python docs/make_arguments.py

`make test` fails if the page differs from the output of this script.
"""

from pathlib import Path

from anchorlens.cli.protocol_command import flags_of
from anchorlens.protocols.arguments import Argument, group_arguments
from anchorlens.protocols.probe_sweep.truth_arguments import TruthSpecification
from anchorlens.protocols.registry import PROTOCOLS, class_of, function_of, specification_of
from anchorlens.protocols.specification import QuestionSpecification, Specification

PAGE = Path(__file__).with_name("arguments.md")

HEAD = """\
# Arguments

<!-- written by docs/make_arguments.py; do not edit -->

Every protocol has a Python function (`al.swap_sweep(model, data, ...)`), a command (`anchorlens swap ...`) and a specification
(`al.Swap(...)`: frozen, validated, `to_toml()`, `from_toml(text)`). A table `[[protocol]]` in a study's file takes the same names.
The sections *Shared* list arguments that several protocols have. Arguments marked † affect only the execution; they are excluded
from `run_id`.
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for name, description in PROTOCOLS.items():
        spec = specification_of(name)
        shared = TruthSpecification if issubclass(spec, TruthSpecification) else Specification
        own = {n: a for n, a in spec.arguments().items() if n not in shared.model_fields}
        where = f"`al.{function_of(name)}`, `al.{class_of(name)}`, `anchorlens {name}`"
        parts.append(f"## {name}\n\n{description}. {where}.\n\n{table(spec, own)}")
    truth = {
        n: a
        for n, a in TruthSpecification.arguments().items()
        if n not in QuestionSpecification.model_fields
    }
    question = {
        n: a
        for n, a in QuestionSpecification.arguments().items()
        if n not in Specification.model_fields
    }
    parts.append(f"## Shared: truth readouts\n\n{table(TruthSpecification, truth)}")
    parts.append(f"## Shared: questions\n\n{table(QuestionSpecification, question)}")
    parts.append(f"## Shared: all protocols\n\n{table(Specification, Specification.arguments())}")
    return "\n".join(parts)


def table(spec: type[Specification], arguments: dict[str, Argument]) -> str:
    """Return a table for each group of arguments, one row per argument."""
    groups = group_arguments(arguments)
    tables = {title: _rows(spec, own) for title, own in groups.items()}
    return (
        "\n".join(f"**{title}**\n\n{rows}" for title, rows in tables.items())
        if len(tables) > 1
        else "".join(tables.values())
    )


def _rows(spec: type[Specification], arguments: dict[str, Argument]) -> str:
    flags = flags_of(spec)
    lines = ["| argument | option | default | meaning |", "| --- | --- | --- | --- |"]
    for name, one in arguments.items():
        default = spec.model_fields[name].get_default()
        flag = f"`{flags[name]}`" if name in flags else "Python only"
        shown = "`None`" if default is None else f"`{default!r}`"
        lines.append(
            f"| `{name}`{' †' if one.execution_only else ''} | {flag} | {shown} |"
            f" {one.help.replace('|', chr(92) + '|')} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf8")
