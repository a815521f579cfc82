"""anchorlens: does a language model's answer come from the question or from the answer?

The names of ``__init__.pyi`` are imported on first use, so that ``import anchorlens`` is fast and
loads no torch.
"""

from typing import Any

import lazy_loader

__version__ = "0.1.0"
_import_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    from anchorlens.progress import is_in_place, name_import

    # Only for people who look: a line in the log of a script is for calls that it makes.
    with name_import(show=is_in_place()):
        return _import_name(name)
