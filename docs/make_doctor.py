"""Write the tables of docs/doctor.md that the installed version of transformer-lens makes.

    python docs/make_doctor.py            # the demo model and every small family, on each backend
    python docs/make_doctor.py families   # or only one of the two

Run it once in an environment with transformer-lens 3.9 and once with 4.x: each run replaces its own
tables and columns.
"""

import re
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from anchorlens.diagnosis.doctor import CHECKS, doctor  # noqa: E402
from anchorlens.errors import InputError  # noqa: E402
from anchorlens.models.adapter import HAS_HOOKED, TRANSFORMER_LENS  # noqa: E402
from tests.models.tiny import FAMILIES, FURTHER_FAMILIES, random_model  # noqa: E402
from tests.tokenizers_small import small_tokenizer  # noqa: E402

PAGE = Path(__file__).with_name("doctor.md")
TINY = FAMILIES | FURTHER_FAMILIES
VERSION = ".".join(TRANSFORMER_LENS.split(".")[:2])
BACKENDS = ("hooked", "bridge") if HAS_HOOKED else ("bridge",)
COLUMNS = ("3.9 hooked", "3.9 bridge", "4.3 bridge")


def demo(backend: str) -> str:
    """Return the table of the demo model."""
    found = doctor("smollm2-135m-instruct", device="cpu", backend=backend, show_progress=False)
    rows = ["| check | status | value | limit | |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*rows, *(f"| {' | '.join(check.texts())} |" for check in found.checks)])


def outcome(family: str, backend: str) -> str:
    """Return the result of one small family in a few words."""
    live, tokenizer = random_model(TINY[family]()), small_tokenizer("byte", bos=True, chat=True)
    try:
        found = doctor(
            live, tokenizer=tokenizer, device="cpu", backend=backend, show_progress=False
        )
    except InputError as error:
        return f"does not load: {re.split(r'[.(] ?', str(error).partition(': ')[2])[0].strip()}"
    names = {
        status: [check.name for check in found.checks if check.status == status]
        for status in ("failed", "not applicable")
    }
    parts = [f"{status}: {', '.join(which)}" for status, which in names.items() if which]
    return "; ".join(["ok" if found.ok else f"**{len(names['failed'])} of {len(CHECKS)}**", *parts])


def families(text: str) -> str:
    """Return the table of the families with this version's columns replaced."""
    known = {
        row[0].strip("`"): row[1:]
        for row in rows_of(section(text, "families"))
        if row[0] in {f"`{name}`" for name in TINY}
    }
    lines = [f"| family | {' | '.join(COLUMNS)} |", "| --- |" + " --- |" * len(COLUMNS)]
    for family in TINY:
        cells = dict(zip(COLUMNS, known.get(family, [""] * len(COLUMNS)), strict=True))
        cells |= {f"{VERSION} {backend}": outcome(family, backend) for backend in BACKENDS}
        lines.append(f"| `{family}` | {' | '.join(cells[column] for column in COLUMNS)} |")
    return "\n".join(lines)


def rows_of(table: str) -> list[list[str]]:
    """Return the cells of each row of a table."""
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in table.split("\n") if line]


def section(text: str, name: str) -> str:
    """Return the text between the marks of a section."""
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- end of {name} -->")[0]


def replaced(text: str, name: str, table: str) -> str:
    """Return the page with another table in a section."""
    head, start, rest = text.partition(f"<!-- {name} -->\n")
    assert start, f"{PAGE.name} has no section {name}"
    return (
        f"{head}{start}\n{table}\n\n<!-- end of {name}"
        f" -->{rest.partition(f'<!-- end of {name} -->')[2]}"
    )


def main(parts: list[str]) -> None:
    """Replace the tables of this version."""
    warnings.simplefilter("ignore")
    text = PAGE.read_text(encoding="utf8")
    if "demo" in parts:
        for backend in BACKENDS:
            text = replaced(text, f"{VERSION} {backend}", demo(backend))
    if "families" in parts:
        text = replaced(text, "families", families(text))
    PAGE.write_text(text, encoding="utf8")


if __name__ == "__main__":
    main(sys.argv[1:] or ["demo", "families"])
