"""Run-time checks of types and shapes in tests."""

import jaxtyping
from beartype import BeartypeConf, beartype

# As in PEP 484, an int is a float too.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


def check_package() -> None:
    """Check every function and dataclass of anchorlens that is imported from here on, except functions inside functions.

    A nested function is defined anew at every call, and its checks take a millisecond to compile: 40% of the engine's tests.
    """
    jaxtyping.jaxtyped = _jaxtyped_unless_nested
    jaxtyping.install_import_hook("anchorlens", "tests.checking.checked").__enter__()


def _jaxtyped_unless_nested(*, typechecker):
    return lambda kind: kind if "<locals>" in kind.__qualname__ else _jaxtyped(kind, typechecker=typechecker)
