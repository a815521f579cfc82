"""anchorlens: does a language model's answer come from the question or from the answer?

The names below are imported when they are first used, so that ``import anchorlens`` is quick and loads no torch.
"""

from typing import TYPE_CHECKING, Any

from anchorlens.errors import AnchorlensError, CheckError, EmptySweepError, HookError, InputError, LeakError, RunError

if TYPE_CHECKING:
    from anchorlens.analysis.knockout import knockout_sweep
    from anchorlens.analysis.probes import LayerProbes, TruthProbe
    from anchorlens.analysis.swap import swap_sweep
    from anchorlens.figures.curves import plot_curves
    from anchorlens.figures.page import save_html
    from anchorlens.models.card import ModelCard, card_of
    from anchorlens.models.load import load_model
    from anchorlens.models.names import known_models
    from anchorlens.questions.datasets import QAData, known_datasets, load_qa
    from anchorlens.questions.example import Example, Span
    from anchorlens.results.knockout import KnockoutResult
    from anchorlens.results.runs import load_curves, load_run, save_run
    from anchorlens.results.sweep import SweepResult

_HOME = {
    "Example": "questions.example",
    "KnockoutResult": "results.knockout",
    "LayerProbes": "analysis.probes",
    "ModelCard": "models.card",
    "QAData": "questions.datasets",
    "Span": "questions.example",
    "SweepResult": "results.sweep",
    "TruthProbe": "analysis.probes",
    "card_of": "models.card",
    "knockout_sweep": "analysis.knockout",
    "known_datasets": "questions.datasets",
    "known_models": "models.names",
    "load_curves": "results.runs",
    "load_model": "models.load",
    "load_qa": "questions.datasets",
    "load_run": "results.runs",
    "plot_curves": "figures.curves",
    "save_html": "figures.page",
    "save_run": "results.runs",
    "swap_sweep": "analysis.swap",
}

__version__ = "0.1.0"
__all__ = [
    "AnchorlensError",
    "CheckError",
    "EmptySweepError",
    "Example",
    "HookError",
    "InputError",
    "KnockoutResult",
    "LayerProbes",
    "LeakError",
    "ModelCard",
    "QAData",
    "RunError",
    "Span",
    "SweepResult",
    "TruthProbe",
    "__version__",
    "card_of",
    "knockout_sweep",
    "known_datasets",
    "known_models",
    "load_curves",
    "load_model",
    "load_qa",
    "load_run",
    "plot_curves",
    "save_html",
    "save_run",
    "swap_sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from anchorlens.errors import did_you_mean

        raise AttributeError(f"anchorlens has no {name!r}. {did_you_mean(name, __all__)}")
    import importlib

    value = getattr(importlib.import_module(f"anchorlens.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
