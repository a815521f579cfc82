"""Language of the package beyond ruff's rules.

The budgets can only fall: lower them when a count falls.
"""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

BUDGETS = {"duplicate_names": 0, "vague_docstrings": 0, "participle_functions": 14}
VAGUE = re.compile(
    r"^(what|who|whose|whom|where|how|which|that|those|these|this|it|its|they|them|theirs?|all|each|both)\b",
    re.I,
)
ENTRY = re.compile(r"^\s{4,}[\w*, ]+(?: \([^)]*\))?: (\S.*)$", re.M)
PARTICIPLE = re.compile(
    r"\w{3,}ed|told|said|kept|held|written|given|shown|known|found|taken|drawn|made|done|begun|gone|grown"
)
VERBS = {"embed", "unembed", "feed", "need", "seed", "speed"}
# Modules that every protocol has.
SHARED = {"__init__", "spec", "analysis", "findings", "measurement"}
# Modules of both backends, and of what they have in common.
SHARED |= {"adapter", "blocks", "load"}
NODES = [
    node
    for path in sorted((Path(__file__).parents[1] / "anchorlens").rglob("*.py"))
    for node in [path, *ast.walk(ast.parse(path.read_text(encoding="utf8")))]
]


def duplicate_names() -> list[str]:
    """Names of classes, or of modules, that occur twice."""
    classes = Counter(node.name for node in NODES if isinstance(node, ast.ClassDef))
    modules = Counter(
        node.stem for node in NODES if isinstance(node, Path) and node.stem not in SHARED
    )
    return [name for counts in (classes, modules) for name, count in counts.items() if count > 1]


def vague_docstrings() -> list[str]:
    """First lines and argument descriptions that open with a pronoun or a question word, or have
    under ten characters.
    """
    documented = (
        node for node in NODES if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)
    )
    docstrings = [text for node in documented if (text := ast.get_docstring(node))]
    entries = [text for docstring in docstrings for text in ENTRY.findall(docstring)]
    first = [docstring.split("\n", 1)[0] for docstring in docstrings]
    return [text for text in [*first, *entries] if VAGUE.match(text)] + [
        text for text in entries if len(text) < 10
    ]


def participle_functions() -> list[str]:
    """Functions, but no properties, whose name starts or ends with a past participle."""
    functions = (node for node in NODES if isinstance(node, ast.FunctionDef))
    names = [
        node.name.strip("_")
        for node in functions
        if "property" not in "".join(map(ast.unparse, node.decorator_list))
    ]
    ends = {
        name: {*name.split("_")[:1], *name.split("_")[-1:]} - VERBS
        for name in names
        if not name.startswith(("is_", "has_"))
    }
    return [
        name for name in names if any(PARTICIPLE.fullmatch(word) for word in ends.get(name, ()))
    ]


@pytest.mark.parametrize(
    "rule",
    [duplicate_names, vague_docstrings, participle_functions],
    ids=lambda rule: rule.__name__,
)
def test_counts_do_not_grow(rule):
    found = rule()
    said = f"{rule.__doc__} Rename yours; there are:\n"
    assert len(found) <= BUDGETS[rule.__name__], said + "\n".join(found)
