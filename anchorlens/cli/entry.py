"""The ``anchorlens`` command.

Exit codes: 0 all went well; 1 the work failed or was stopped; 2 the input has to change. Nothing heavy is imported before a
command runs, so that ``--help`` answers at once. Tables and paths go to standard output, progress and warnings to standard error.
"""

import sys
import warnings
from collections.abc import Sequence

import click

from anchorlens import __version__
from anchorlens.cli.shown import note
from anchorlens.cli.wording import translated
from anchorlens.errors import AnchorlensError, did_you_mean

# Command -> what it does; protocols stand in the registry.
_OTHERS = {
    "run": "Measure a study: several models, data sets and protocols",
    "merge": "Finish a run from the shards of several jobs",
    "status": "How far a run is, whoever measures it",
    "verify": "Check a run's bytes, and measure some of its cells again",
    "report": "One page of everything about one or more runs",
    "figure": "Draw the curves of one or more runs",
    "models": "List models that load by name",
    "datasets": "List question sets, and the schema of your own",
}


class _Commands(click.Group):
    """Commands that are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        from anchorlens.protocols.registry import PROTOCOLS

        return [*PROTOCOLS, *_OTHERS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from anchorlens.protocols.registry import PROTOCOLS

        if (protocol := cmd_name.replace("-", "_")) in PROTOCOLS:
            from anchorlens.cli.protocol_command import protocol_command

            return protocol_command(protocol)
        if cmd_name == "run":
            from anchorlens.cli.study_command import run_command

            return run_command
        if cmd_name == "merge":
            from anchorlens.cli.merge_command import merge_command

            return merge_command
        if cmd_name == "status":
            from anchorlens.cli.status_command import status_command

            return status_command
        if cmd_name == "verify":
            from anchorlens.cli.verify_command import verify_command

            return verify_command
        if cmd_name == "report":
            from anchorlens.cli.report_command import report_command

            return report_command
        if cmd_name == "figure":
            from anchorlens.cli.figure_command import figure_command

            return figure_command
        if cmd_name in ("models", "datasets"):
            from anchorlens.cli.listings import datasets_command, models_command

            return models_command if cmd_name == "models" else datasets_command
        return ctx.fail(f"No command '{cmd_name}'. {did_you_mean(cmd_name, self.list_commands(ctx))}")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """From the table of names alone, so that help imports no command."""
        from anchorlens.protocols.registry import PROTOCOLS

        for title, rows in (("Protocols", PROTOCOLS), ("Commands", _OTHERS)):
            with formatter.section(title):
                formatter.write_dl(list(rows.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="anchorlens")
def cli() -> None:
    """Does a language model's answer come from the question or from the answer?

    \b
    anchorlens changes activations at question- or answer-anchored tokens, layer by layer (swaps of residual streams,
    attention knockout), and draws how far a probability falls: ΔP curves, with 95 % bands and controls beside each.
    \b
      anchorlens swap ... --out runs/a       measure one protocol; writes tables and a figure
      anchorlens run study.toml --out runs/b several models, data sets and protocols
      anchorlens figure runs/a runs/b        one figure from several runs

    `anchorlens COMMAND --help` shows examples.
    """


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    if issubclass(category, UserWarning):
        note(f"Warning: {translated(str(message))}")


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the ``anchorlens`` command."""
    warnings.showwarning = _show_warning  # one line on standard error, without file names
    try:
        code = cli.main(args=None if argv is None else list(argv), prog_name="anchorlens", standalone_mode=False)
    except AnchorlensError as why:
        note(f"Error: {translated(str(why))}")
        sys.exit(why.exit_code)
    except click.ClickException as why:
        why.show()
        sys.exit(why.exit_code)
    except (KeyboardInterrupt, click.Abort):
        note("\nStopped. Nothing was written.")
        sys.exit(1)
    except OSError as why:
        note(f"Error: {why.strerror or why}{f': {why.filename}' if why.filename else ''}. Nothing was written.")
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


__all__ = ["cli", "main"]
