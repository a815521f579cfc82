"""What mkdocs does beside its own work (mkdocs.yml, ``hooks:``): formulas become MathML, and pages
come from the repository's root.

MathML is drawn by the browser itself: no script, no font and no network, when the site is built or
when it is read.
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
# File in the root -> page of the site.
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
_FILE = re.compile(r"\[(?P<page>[\w-]+\.md)\]\(")
_CELL = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)
# What pymdownx.arithmatex makes of $...$ and of $$...$$.
_FORMULA = re.compile(
    r'<span class="arithmatex">\\\((?P<line>.*?)\\\)</span>|<div'
    r' class="arithmatex">\s*\\\[(?P<block>.*?)\\\]\s*</div>',
    re.DOTALL,
)


def on_files(files: Files, config: Any) -> Files:
    """Pages whose source lies in the repository's root, their links as seen from docs/."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf8").replace("](docs/", "](")
        for other, target in PAGES.items():
            text = text.replace(f"]({other}", f"]({target}")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """A link that is called by its file, as it is read best in a repository, gets the page's name
    in the navigation.
    """
    names = dict(_named(config.nav))
    return _FILE.sub(lambda found: f"[{names.get(found['page'], found['page'])}](", markdown)


def _named(nav: list[Any]) -> Iterator[tuple[str, str]]:
    """File -> name of every page."""
    for one in nav:
        for name, inner in one.items() if isinstance(one, dict) else ():
            yield from [(inner, name)] if isinstance(inner, str) else _named(inner)


def on_page_content(html: str, **_: Any) -> str:
    """Every formula of a page; and a bar in the code of a table, which has to be escaped in the
    source, is a bar.
    """
    return _CELL.sub(lambda found: found[0].replace("\\|", "|"), _FORMULA.sub(_mathml, html))


def _mathml(found: re.Match[str]) -> str:
    block = found["line"] is None
    tex = html.unescape(found["block" if block else "line"]).strip()
    # A sign that TeX wants escaped inside ``text`` stays escaped in the converter's <mtext>.
    made = re.sub(r"\\([_%])", r"\1", convert(tex, display="block" if block else "inline"))
    return f'<div class="formula">{made}</div>' if block else made
