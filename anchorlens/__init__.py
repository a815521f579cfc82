"""anchorlens: does a language model's answer come from the question or from the answer?

The names of ``__init__.pyi`` are imported on first use, so that ``import anchorlens`` is fast and
loads no torch.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
