"""Writes docs/cli.md: every command of ``anchorlens`` with its options, from the commands themselves.

    python docs/make_cli.py

`make test` fails where the page is not what this script writes.
"""

import inspect
import re
import textwrap
from pathlib import Path

import click

from anchorlens.cli import cli

PAGE = Path(__file__).with_name("cli.md")

HEAD = """\
# Command line

<!-- written by docs/make_cli.py; do not edit -->

The same calls as in Python, from a shell. Tables and paths go to standard output, progress and warnings to standard error; `--json`
prints one object for scripts. Exit codes: 0 all went well; 1 the work failed or was stopped; 2 the input has to change
([errors.md](errors.md)).
"""


def page() -> str:
    """The whole page."""
    context = click.Context(cli, info_name="anchorlens")
    parts = [HEAD]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None, name
        parts.append(section(command, click.Context(command, info_name=name, parent=context)))
    return "\n".join(parts)


def section(command: click.Command, context: click.Context) -> str:
    """One command: usage, what it does, its options, examples."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"## {context.info_name}", "", f"    {usage}", ""]
    for kept, text in _paragraphs(command.help):
        parts += [textwrap.indent(textwrap.dedent(text), "    ") if kept else _prose(text), ""]
    asked = [one for one in command.get_params(context) if isinstance(one, click.Option) and "--help" not in one.opts]
    rows = [record for one in asked if (record := one.get_help_record(context)) is not None]
    parts += [
        "| option | what it does |",
        "| --- | --- |",
        *(f"| `{_cell(flags)}` | {_plain(text)} |" for flags, text in rows),
    ]
    examples = inspect.cleandoc((command.epilog or "").replace("\b\n", "\n")).removeprefix("Examples:\n")
    parts += ["", textwrap.indent(textwrap.dedent(examples), "    ")]
    return "\n".join(parts) + "\n"


def _paragraphs(text: str | None) -> list[tuple[bool, str]]:
    """Paragraphs of a help text, and whether one keeps its lines: click marks that with ``\\b``."""
    parts = [part for part in inspect.cleandoc(text or "").split("\n\n") if part.strip("\b\n ")]
    return [(part.startswith("\b\n"), part.removeprefix("\b\n").rstrip()) for part in parts]


def _prose(text: str) -> str:
    """One line, with a link where a section of the method is named."""
    line = " ".join(text.replace("``", "`").split())
    return re.sub(r"METHOD (\d)", r"[METHOD \1](method.md)", line)


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


def _plain(text: str) -> str:
    """A cell of text; two brackets in a row would be a link."""
    return _cell(text).replace("[", "\\[")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf8")
