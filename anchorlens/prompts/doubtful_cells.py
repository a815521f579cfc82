"""Notice cells that seem to have another meaning than their text: a missing value, an error or a
formula of a spreadsheet, HTML, or a text that was decoded wrongly.
"""

import re

# Marks of a missing value.
_MISSING = frozenset(("nan", "<na>", "n/a", "null", "none", "nat"))
# Errors of spreadsheets: those of English ones, and of others by their form (#BEZUG!, #¿NOMBRE?).
_ERRORS = frozenset(("#n/a", "#nv", "#n/d", "#nd", "#div/0!"))
_ERROR = re.compile(r"#[¡¿]?[^\W\d_]+(/\d)?[!?]")
# A reference or a function call behind an equals sign; code has "==" and "= x".
_FORMULA = re.compile(
    r"=\s*[+-]?("
    r"[$A-Z]{1,4}\$?\d"  # =B7
    r"|[A-Z][A-Z0-9.]*\("  # =SUM(A1:A3)
    r"|'?[A-Za-z][\w ]*'?!\$?[A-Z]"  # =Sheet1!B2
    r"|[\d(\"'])"  # =1+1
)
_LEAVE_EMPTY = "is read as text. Leave the cell empty if it has no value."
_ENTITY = re.compile(r"&(?:#\d+|#[xX][\da-fA-F]+|[a-zA-Z]{2,8});")
# A text without one of these characters needs no closer look.
_SUSPECT = re.compile(r"[^A-Za-z0-9 .'-]")


def find_doubt(cell: str, blanks: frozenset[str] = frozenset()) -> str:
    """Return what a cell may mean instead, and the cure; empty for a plain text. ``blanks``:
    further texts that stand for a missing value.

    >>> find_doubt("#N/A")
    'is read as text. Leave the cell empty if it has no value.'
    """
    if is_missing(cell) or cell.strip() in blanks:
        return _LEAVE_EMPTY
    if not _SUSPECT.search(cell):
        return ""
    if _FORMULA.match(cell.strip()):
        return "is a formula of a spreadsheet. Save the sheet with its values."
    return find_coding(cell)


def is_missing(cell: str) -> bool:
    """Return whether a cell is a mark of a missing value, or an error of a spreadsheet."""
    text = cell.strip()
    folded = text.casefold()
    return folded in _MISSING or folded in _ERRORS or _ERROR.fullmatch(text) is not None


def find_coding(cell: str) -> str:
    """Return how a text seems to be coded, and the cure; empty for a plain text."""
    if "&" in cell and _ENTITY.search(cell):
        return "has characters of HTML (&amp;). Replace them (html.unescape)."
    if "\ufffd" in cell:
        return "has characters that were lost (\ufffd). Save its source as UTF-8 again."
    if not cell.isascii() and _is_decoded_wrongly(cell):
        return "is UTF-8 that was read as Latin-1. Read its source as UTF-8."
    return ""


def find_line_ends(text: str) -> str:
    r"""Return that a text has line ends of Windows or of old Macs, which a model reads as other
    tokens than ``\n``, and the cure; empty for other texts.
    """
    if "\r" not in text:
        return ""
    return (
        r"has line ends with \r, which are other tokens than \n. Replace them, if they are not"
        r" meant: text.replace('\r\n', '\n')."
    )


def _is_decoded_wrongly(text: str) -> bool:
    """Return whether the bytes of a text in UTF-8 were read as Windows-1252 or Latin-1."""
    for encoding in ("cp1252", "latin-1"):
        try:
            text.encode(encoding).decode("utf-8")
        except UnicodeError:
            continue
        return True
    return False
