"""The command line: the same calls as in Python, from a shell."""

from anchorlens.cli.entry import cli, main

__all__ = ["cli", "main"]
