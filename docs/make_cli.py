"""Write docs/cli.md: every command of ``anchorlens`` with its options, from the command
definitions.

    python docs/make_cli.py

`make test` fails if the page differs from the output of this script.
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

The commands call the Python functions. Tables and paths go to standard output, progress and warnings to standard error. `--json`
prints one object for scripts. Exit codes: 0 success; 1 the work failed or was stopped; 2 invalid input ([errors.md](errors.md)).
"""


def page() -> str:
    """Return the whole page."""
    context = click.Context(cli, info_name="anchorlens")
    parts = [HEAD]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None, name
        parts.append(section(command, click.Context(command, info_name=name, parent=context)))
    return "\n".join(parts)


def section(command: click.Command, context: click.Context) -> str:
    """Return the section of a command: usage, description, options, examples."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"## {context.info_name}", "", f"    {usage}", ""]
    for kept, text in _paragraphs(command.help):
        parts += [textwrap.indent(textwrap.dedent(text), "    ") if kept else _prose(text), ""]
    options = [
        one
        for one in command.get_params(context)
        if isinstance(one, click.Option) and "--help" not in one.opts
    ]
    rows = [record for one in options if (record := one.get_help_record(context)) is not None]
    parts += [
        "| option | meaning |",
        "| --- | --- |",
        *(f"| `{_cell(flags)}` | {_plain(text)} |" for flags, text in rows),
    ]
    examples = inspect.cleandoc((command.epilog or "").replace("\b\n", "\n")).removeprefix(
        "Examples:\n"
    )
    parts += ["", textwrap.indent(textwrap.dedent(examples), "    ")]
    return "\n".join(parts) + "\n"


def _paragraphs(text: str | None) -> list[tuple[bool, str]]:
    """Return (keeps its lines, text) for each paragraph of a help text; click marks the first with
    ``\\b``.
    """
    parts = [part for part in inspect.cleandoc(text or "").split("\n\n") if part.strip("\b\n ")]
    return [(part.startswith("\b\n"), part.removeprefix("\b\n").rstrip()) for part in parts]


def _prose(text: str) -> str:
    """Return a paragraph as one line, with links to named sections of the method."""
    line = " ".join(text.replace("``", "`").split())
    return re.sub(r"METHOD (\d)", r"[METHOD \1](method.md)", line)


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


def _plain(text: str) -> str:
    """Return a table cell; brackets are escaped, because two in a row would be a link."""
    return _cell(text).replace("[", "\\[")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf8")
