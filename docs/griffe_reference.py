"""What a reader of sources cannot see, for the reference (mkdocs.yml, ``extensions:`` of the Python
handler).

mkdocstrings reads sources and imports nothing. But ``NAME_sweep`` and the arguments of a
specification are made when the package is imported, each from one declaration. Here they get the
signature and the docstring that ``help()`` shows. And what Sphinx calls roles (``:func:`name```)
become links within the reference, or code where the name does not stand in it.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import griffe
from pymdownx.slugs import slugify

from anchorlens.protocols.registry import PROTOCOLS, class_of, function_of

DOCS = Path(__file__).parent
_STUB = ast.parse((DOCS.parent / "anchorlens" / "__init__.pyi").read_text(encoding="utf8"))
_HOMES = {
    one.name: node.module
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for one in node.names
}
_SHOWN = re.compile(r"^::: (\S+)$", re.MULTILINE)
_ROLE = re.compile(r":(?:func|class|meth|attr|mod):`(?P<short>~?)(?P<name>[\w.]+)`")
_METHOD = re.compile(r"\bMETHOD (?P<section>\d)")

_KINDS = {
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
}


def shown_names() -> list[str]:
    """Every name that the reference shows, by its home: ``anchorlens.models.load.load_model``, and
    so on.
    """
    return [
        name
        for page in sorted((DOCS / "reference").glob("*.md"))
        for name in _SHOWN.findall(page.read_text(encoding="utf8"))
    ]


def home_of(name: str) -> str:
    """Where a public name lives: that of ``anchorlens.load_model`` or ``load_model`` is
    ``anchorlens.models.load.load_model``.
    """
    short = name.removeprefix("anchorlens.")
    home = _HOMES.get(short)
    return f"anchorlens.{home}.{short}" if home else name


class Reference(griffe.Extension):
    """Sweeps and specifications as they are, not as they are written; roles as links."""

    def __init__(self) -> None:
        super().__init__()
        self._shown = set(shown_names())
        text = (DOCS / "method.md").read_text(encoding="utf8")
        named = re.findall(r"^## ((\d)\. .+)$", text, re.MULTILINE)
        self._sections = {number: slugify(case="lower")(heading, "-") for heading, number in named}

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Every docstring."""
        if obj.docstring is not None:
            obj.docstring.value = self._linked(obj.docstring.value)

    def _linked(self, text: str) -> str:
        return _METHOD.sub(self._section, _ROLE.sub(self._role, text))

    def _role(self, found: re.Match[str]) -> str:
        name = found["name"].rpartition(".")[2] if found["short"] else found["name"]
        home = home_of(found["name"])
        return f"[`{name}`][{home}]" if home in self._shown else f"`{name}`"

    def _section(self, found: re.Match[str]) -> str:
        slug = self._sections.get(found["section"])
        return f"[{found[0]}][{slug}]" if slug else found[0]

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Once all of anchorlens has been read."""
        if pkg.name != "anchorlens":
            return
        for name in PROTOCOLS:
            folder = pkg[f"protocols.{name}"]
            function = function_of(name)
            sweep = getattr(importlib.import_module("anchorlens.running.sweeps"), function)
            pkg["running.sweeps"].set_member(function, self._function(function, sweep))
            spec = getattr(
                importlib.import_module(f"anchorlens.protocols.{name}.spec"), class_of(name)
            )
            self._specification(folder[f"spec.{class_of(name)}"], spec)

    def _function(self, name: str, made: Any) -> griffe.Function:
        signature = inspect.signature(made)
        function = griffe.Function(
            name,
            parameters=_parameters(signature.parameters.values()),
            returns=_written(signature.return_annotation),
        )
        function.docstring = griffe.Docstring(
            self._linked(inspect.getdoc(made) or ""), parser="google", parent=function
        )
        return function

    def _specification(self, shown: griffe.Class, spec: Any) -> None:
        """Its arguments as a signature and a list, in place of the fields that declare them."""
        arguments = spec.arguments()
        given = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.get_default(),
                annotation=field.annotation,
            )
            for name, field in ((name, spec.model_fields[name]) for name in arguments)
        ]
        shown.set_member("__init__", griffe.Function("__init__", parameters=_parameters(given)))
        lines = [
            inspect.cleandoc(spec.__doc__ or ""),
            "",
            "Args:",
            *(f"    {name}: {one.help}" for name, one in arguments.items()),
        ]
        shown.docstring = griffe.Docstring(
            self._linked("\n".join(lines)), parser="google", parent=shown
        )
        for name in arguments:
            if name in shown.members:
                shown.del_member(name)


def _parameters(given: Any) -> griffe.Parameters:
    return griffe.Parameters(
        *(
            griffe.Parameter(
                one.name,
                kind=_KINDS[one.kind],
                annotation=_written(one.annotation),
                default=None if one.default is one.empty else repr(one.default),
            )
            for one in given
        )
    )


def _written(annotation: Any) -> str | None:
    if annotation is inspect.Signature.empty:
        return None
    plain = isinstance(annotation, type) and not hasattr(annotation, "__args__")
    text = (
        annotation
        if isinstance(annotation, str)
        else annotation.__name__
        if plain
        else inspect.formatannotation(annotation)
    )
    return re.sub(r"\b(?:typing|collections\.abc)\.", "", text)
