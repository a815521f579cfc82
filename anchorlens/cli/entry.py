"""The ``anchorlens`` command.

Exit codes: 0 success; 1 failed or stopped; 2 invalid input. The module of a command is imported
when the command runs. Tables and paths go to standard output, progress and warnings to standard
error.
"""

import errno
import io
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

import click
from typing_extensions import override

from anchorlens import __version__
from anchorlens.cli.output import describe_os_error, note, note_error, with_options
from anchorlens.display import is_utf8, short_repr
from anchorlens.errors import AnchorlensError, did_you_mean
from anchorlens.protocols.registry import PROTOCOLS

# Commands beside the protocols, and their short help.
_OTHERS = {
    "run": "Measure a study: several models, data sets and protocols",
    "merge": "Combine the shards of several jobs into a run",
    "status": "Show the progress of a run",
    "verify": "Check the files of a run and remeasure some of its cells",
    "report": "Write an HTML report of one or more runs",
    "figure": "Draw the curves of one or more runs",
    "compare": "Compare two runs row by row",
    "circuit": "Select a circuit from an edge sweep, and score it on other pairs",
    "doctor": "Check that a model, its tokenizer and its hooks work as needed",
    "models": "List models that load by name",
    "datasets": "List question sets and the schema of your own files",
}
_MODULES = {
    "run": "study_command",
    "report": "figure_command",
    "models": "listings",
    "datasets": "listings",
}


class _Commands(click.Group):
    """Commands that are imported on first use."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*PROTOCOLS, *_OTHERS]

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (protocol := cmd_name.replace("-", "_")) in PROTOCOLS:
            from anchorlens.cli.protocol_command import protocol_command

            return protocol_command(protocol)
        if cmd_name not in _OTHERS:
            return ctx.fail(
                f"No command '{cmd_name}'. {did_you_mean(cmd_name, self.list_commands(ctx))}"
            )
        module = _MODULES.get(cmd_name, f"{cmd_name}_command")
        return getattr(import_module(f"anchorlens.cli.{module}"), f"{cmd_name}_command")

    @override
    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except AnchorlensError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            note_error(with_options(str(error), command, error.arguments))
            ctx.exit(error.exit_code)

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, rows in (("Protocols", PROTOCOLS), ("Commands", _OTHERS)):
            with formatter.section(title):
                formatter.write_dl(list(rows.items()))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="anchorlens")
def cli() -> None:
    """Does a language model's answer come from the question or from the answer?

    \b
    anchorlens changes activations at tokens of the question or the answer position, layer by layer,
    and draws ΔP curves with 95 % bands and controls.
    \b
      anchorlens swap ... --out runs/a       measure one protocol; writes tables and a figure
      anchorlens run study.toml --out runs/b several models, data sets and protocols
      anchorlens figure runs/a runs/b        one figure from several runs

    `anchorlens COMMAND --help` shows examples.
    """


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    if issubclass(category, UserWarning):
        note(f"Warning: {with_options(str(message))}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the ``anchorlens`` command and exit."""
    warnings.showwarning = _show_warning  # one line on standard error, without file names
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal's encoding lacks, such as Δ in ASCII, is shown as "?".
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    given = list(sys.argv[1:] if argv is None else argv)
    if wrong := next((one for one in given if not is_utf8(one)), None):
        note_error(
            f"{short_repr(wrong)} is not UTF-8. Write it in UTF-8; rename a file of such a name."
        )
        sys.exit(2)
    try:
        code = cli.main(args=given, prog_name="anchorlens", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            note(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n")
        note_error(error.format_message())
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        note("\nStopped.")
        sys.exit(1)
    except OSError as error:
        note_error(describe_os_error(error))
        sys.exit(2 if error.errno == errno.ENAMETOOLONG else 1)
    sys.exit(code if isinstance(code, int) else 0)
