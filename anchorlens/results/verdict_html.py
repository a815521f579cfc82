"""Findings as HTML for notebooks: sentences, a table of numbers, notes."""

from html import escape

from anchorlens.display import escape_hidden, minus
from anchorlens.results.findings import Findings

# Jupyter aligns tables to the right and breaks long words; columns of text are read from the left.
_CELL = "style='text-align: left; white-space: nowrap'"


def verdict_html(findings: Findings) -> str:
    """Return the findings as HTML: warnings, headline, table and notes; empty if there are none.

    Args:
        findings: Findings of a sweep.
    """
    parts = [_paragraph(line) for line in findings.warnings]
    if findings.headline:
        parts.append(f"<p><b>{_text(findings.headline)}</b></p>")
    if findings.rows:
        head = _row(findings.columns, "th") if findings.columns else ""
        body = "".join(_row(row, "td") for row in findings.rows)
        parts.append(f"<table><thead>{head}</thead><tbody>{body}</tbody></table>")
    parts += [_paragraph(line) for line in findings.notes]
    return "".join(parts)


def _row(cells: tuple[str, ...], tag: str) -> str:
    made = [f"<{tag} {_CELL}>{_text(cell)}</{tag}>" for cell in cells]
    return f"<tr>{''.join(made)}</tr>"


def _paragraph(line: str) -> str:
    return f"<p>{_text(line)}</p>"


def _text(text: str) -> str:
    return escape(minus(escape_hidden(text)))
