"""Nothing that a terminal obeys, and nothing that hides text, reaches it from names, paths and
errors.
"""

import ast
import io
import json
import sys
import warnings
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import anchorlens as al
from anchorlens.cli import entry, output
from anchorlens.cli.entry import main
from anchorlens.display import escape_hidden, escape_hidden_json, warn
from anchorlens.errors import DataError
from anchorlens.progress import progress
from anchorlens.results.findings import Findings
from anchorlens.results.verdict_html import verdict_html
from anchorlens.runs import status

HOSTILE = (
    "\x1b]0;title\x07",
    "\x1b[31mred",
    "\x1b[8mhidden",
    "\x9b31m",
    "over\rwritten",
    "back\x08",
    "\u202egnp.exe",
    "\u2066isolated\u2069",
    "\u200fmark",
    "zero\u200bwidth",
    "tag\U000e0041",
    "line\u2028separator",
    "half\ud800",
    "nul\0",
)
NAME = " ".join(HOSTILE)
PLAIN = "Où est 東京? \N{MINUS SIGN}9.7 \N{GREEK CAPITAL LETTER DELTA}P\tx\n\u05d0\u200d\U0001f3f4"


def is_safe(text: str) -> bool:
    """Whether a text has no character of ``HOSTILE`` that is not printable."""
    bad = {char for char in NAME if not char.isprintable()}
    return not bad & {*text}


def test_hidden_characters_are_shown_as_escapes():
    for text in HOSTILE:
        assert escape_hidden(text).isprintable(), ascii(text)
        quoted = json.dumps(text, ensure_ascii=False)
        safe = escape_hidden_json(quoted)
        assert safe.isprintable() and json.loads(safe) == text
    assert escape_hidden(PLAIN) == PLAIN and escape_hidden_json(PLAIN) == PLAIN
    assert escape_hidden("\x1b[31m \u202ex \U000e0041") == r"\x1b[31m \u202ex \U000e0041"


@pytest.mark.parametrize("width", [None, "60"])
def test_names_reach_the_terminal_escaped(monkeypatch, width):
    if width:
        monkeypatch.setenv("COLUMNS", width)

    @click.command()
    def shown() -> None:
        output.echo(NAME)
        output.echo_json(json.dumps({"name": NAME}, ensure_ascii=False))
        output.note(NAME)
        output.note_error(NAME)
        output.show_table(NAME, (NAME, "b"), [(NAME, "x"), ("y", NAME)])
        output.listing(NAME, [{NAME: NAME}], as_json=False)
        output.listing(NAME, [{NAME: NAME}], as_json=True)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            monkeypatch.setattr(warnings, "showwarning", entry._show_warning)
            warnings.warn(NAME, stacklevel=1)

    done = CliRunner().invoke(shown)
    assert done.exception is None
    assert is_safe(done.stdout) and is_safe(done.stderr)
    assert done.output.count(r"\u202egnp.exe") >= 8


def test_long_lines_end_between_words_in_a_terminal_alone(monkeypatch, capsys):
    """A terminal of 120 columns showed "contra" and "sts" on two lines."""
    text = "curves and contrasts " * 20 + "a/path/without/any/blank/" * 6
    row = "anchor  " * 20
    output.echo(f"{text}\n{row}")
    assert capsys.readouterr().out == f"{text}\n{row}\n"
    monkeypatch.setenv("COLUMNS", "60")
    for stream, show in (("stdout", output.echo), ("stderr", output.note)):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
        show(f"{text}\n{row}")
        told = capsys.readouterr()
        lines = (told.out or told.err).rstrip("\n").split("\n")
        assert lines[-1] == row
        assert " ".join(lines[:-1]).split() == text.split()
        assert all(len(line) <= 60 or " " not in line for line in lines[:-1])


def test_the_state_of_a_run_with_hostile_names_is_shown_escaped(monkeypatch):
    one = status.SweepStatus(
        name=NAME,
        finished=True,
        done=1,
        shards=1,
        seconds_left=None,
        updated="2026-01-01T00:00:00+00:00",
    )
    monkeypatch.setattr(
        status,
        "status_of",
        lambda _: status.RunStatus(state="finished", sweeps=(one,), jobs=(NAME,), rss_mb=None),
    )
    for options in ([], ["--json"]):
        done = CliRunner().invoke(entry.cli, ["status", NAME, *options])
        assert done.exit_code == 0 and is_safe(done.output), done


def test_messages_of_errors_warnings_and_bars_are_escaped(capsys, monkeypatch):
    assert is_safe(str(DataError(f"{NAME}: wrong.")))
    with pytest.warns(UserWarning) as caught:
        warn(NAME)
    assert is_safe(str(caught[0].message))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress(NAME, 1, "shard", show=True) as bar:
        bar.advance(1)
    shown = capsys.readouterr().err.replace("\r", "").replace("\x1b[A", "")
    assert r"\u202egnp.exe" in shown and is_safe(shown)
    data = al.load_qa([("Who wrote Emma?", "Austen")], dataset_name=NAME)
    assert is_safe(repr(data))
    row = {"clean": "a b", "corrupted": "a c"}
    assert is_safe(repr(al.load_pairs([row], dataset_name=NAME)))


def test_a_hostile_path_in_an_error_of_the_command_line_is_escaped(capsys):
    for argv in (["status", NAME.replace("\0", "").replace("\ud800", "")], ["swap\x1b[31m"]):
        with pytest.raises(SystemExit):
            entry.main(argv)
        told = capsys.readouterr()
        assert is_safe(told.out) and is_safe(told.err), told


def test_names_in_the_text_of_findings_are_escaped():
    """`print(sweep.verdict)` prints the names of segments, models and sets."""
    found = Findings(
        statements=(),
        headline=f"Largest at {NAME}",
        warnings=(NAME,),
        columns=("anchor", "value"),
        rows=((NAME, "1"),),
        notes=(f"{NAME} was not tested.",),
    )
    assert is_safe(str(found)) and str(found).count(r"\u202egnp.exe") == 4
    assert is_safe(verdict_html(found))


def test_hostile_studies_columns_and_folders_are_shown_escaped(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    hostile = "\x1b[31m\u202ex"
    Path(f"{hostile}.csv").write_text("question,answers\nWho wrote Emma?,Austen\n")
    Path("key.toml").write_text('"key\\u001b[31m\\u202e" = 1\n')
    Path("raw.toml").write_text("bad\x1b = 1\n")
    Path(hostile).mkdir()
    Path(hostile, "config.json").write_text('{"model_type": "e\\u001b[31m\\u202e"}')
    columns = ["--data-file", f"{hostile}.csv", "--columns", f"question={hostile}"]
    for argv in (
        ["swap", "--model", "smollm2-135m-instruct", *columns, "--out", "x"],
        ["swap", "--layers", f"{hostile}3"],
        ["run", "key.toml"],
        ["run", "raw.toml"],
        ["doctor", hostile],
        ["compare", hostile, hostile],
        ["report", hostile, "--out", f"{hostile}.html"],
    ):
        with pytest.raises(SystemExit):
            entry.main(argv)
        told = capsys.readouterr()
        assert told.err and is_safe(told.out) and is_safe(told.err), told


@pytest.mark.slow
def test_every_command_prints_through_the_escaping_functions():
    """`click.echo` stands in output.py, and where the help of a command is printed."""
    found: list[str] = []
    for file in sorted((Path(al.__file__).parent).rglob("*.py")):
        if file.name == "output.py" and file.parent.name == "cli":
            continue
        calls = ast.walk(ast.parse(file.read_text(encoding="utf8")))
        texts = (ast.unparse(node) for node in calls if isinstance(node, ast.Call))
        found += [text for text in texts if text.startswith(("click.echo(", "print("))]
    assert found == ["click.echo(ctx.get_help())"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_a_character_shows_a_question_mark(monkeypatch, encoding):
    """Titles of tables have a Δ: every sweep ended with a traceback, after its work."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    with pytest.raises(SystemExit) as stop:
        main(["donors", "--help"])
    assert stop.value.code in (0, 2)
    print("ΔP", file=sys.stdout)
    out.flush()
    assert out.buffer.getvalue().endswith(b"?P\n")
