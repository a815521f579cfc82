"""anchorlens: does a language model's answer come from the question or from the answer?

The names below are imported when they are first used, so that ``import anchorlens`` is quick and loads no torch.
"""

from typing import TYPE_CHECKING, Any

from anchorlens.errors import AnchorlensError, CheckError, EmptySweepError, HookError, InputError, LeakError, RunError
from anchorlens.protocols.registry import PROTOCOLS, class_of

if TYPE_CHECKING:
    from anchorlens.engine.sizes import ModelSize, model_size
    from anchorlens.figures.curves import plot_curves
    from anchorlens.figures.files import write_figure
    from anchorlens.figures.further import plot_auc, plot_heatmap, plot_sizes
    from anchorlens.figures.page import save_html
    from anchorlens.models.card import ModelCard, card_of
    from anchorlens.models.load import load_model
    from anchorlens.models.names import known_models
    from anchorlens.protocols.answer_only.protocol import answer_only_sweep
    from anchorlens.protocols.answer_only.spec import AnswerOnly
    from anchorlens.protocols.comparing import Comparison, compare
    from anchorlens.protocols.knockout.protocol import knockout_sweep
    from anchorlens.protocols.knockout.spec import Knockout
    from anchorlens.protocols.loading import load_run
    from anchorlens.protocols.patch_tokens.protocol import patch_tokens_sweep
    from anchorlens.protocols.patch_tokens.spec import PatchTokens
    from anchorlens.protocols.study import DataRequest, Study, run_study, study_plans
    from anchorlens.protocols.swap.protocol import swap_sweep
    from anchorlens.protocols.swap.spec import Swap
    from anchorlens.protocols.verifying import Verification, verify_run
    from anchorlens.questions.datasets import QAData, known_datasets, load_qa
    from anchorlens.questions.example import Example, Span
    from anchorlens.questions.prompts import PromptText
    from anchorlens.report.explorer import explore
    from anchorlens.report.page import write_report
    from anchorlens.results.pathways import PathwayResult
    from anchorlens.results.saving import save_run
    from anchorlens.results.sweep import SweepResult
    from anchorlens.runs.store import load_curves
    from anchorlens.runs.workers import RayExecutor
    from anchorlens.truth.probes import LayerProbes, TruthProbe

_HOME = {
    "Comparison": "protocols.comparing",
    "DataRequest": "protocols.study",
    "Example": "questions.example",
    "LayerProbes": "truth.probes",
    "ModelCard": "models.card",
    "ModelSize": "engine.sizes",
    "PathwayResult": "results.pathways",
    "PromptText": "questions.prompts",
    "QAData": "questions.datasets",
    "RayExecutor": "runs.workers",
    "Span": "questions.example",
    "Study": "protocols.study",
    "SweepResult": "results.sweep",
    "TruthProbe": "truth.probes",
    "Verification": "protocols.verifying",
    "card_of": "models.card",
    "compare": "protocols.comparing",
    "explore": "report.explorer",
    "known_datasets": "questions.datasets",
    "known_models": "models.names",
    "load_curves": "runs.store",
    "load_model": "models.load",
    "load_qa": "questions.datasets",
    "load_run": "protocols.loading",
    "model_size": "engine.sizes",
    "plot_auc": "figures.further",
    "plot_curves": "figures.curves",
    "plot_heatmap": "figures.further",
    "plot_sizes": "figures.further",
    "run_study": "protocols.study",
    "save_html": "figures.page",
    "save_run": "results.saving",
    "study_plans": "protocols.study",
    "write_figure": "figures.files",
    "verify_run": "protocols.verifying",
    "write_report": "report.page",
}

# Every protocol gives its sweep and its specification.
for _name in PROTOCOLS:
    _HOME[f"{_name}_sweep"] = f"protocols.{_name}.protocol"
    _HOME[class_of(_name)] = f"protocols.{_name}.spec"

__version__ = "0.1.0"
__all__ = [
    "AnchorlensError",
    "AnswerOnly",
    "CheckError",
    "Comparison",
    "DataRequest",
    "EmptySweepError",
    "Example",
    "HookError",
    "InputError",
    "Knockout",
    "LayerProbes",
    "LeakError",
    "ModelCard",
    "ModelSize",
    "PatchTokens",
    "PathwayResult",
    "PromptText",
    "QAData",
    "RayExecutor",
    "RunError",
    "Span",
    "Study",
    "Swap",
    "SweepResult",
    "TruthProbe",
    "Verification",
    "__version__",
    "answer_only_sweep",
    "card_of",
    "compare",
    "explore",
    "knockout_sweep",
    "known_datasets",
    "known_models",
    "load_curves",
    "load_model",
    "load_qa",
    "load_run",
    "model_size",
    "patch_tokens_sweep",
    "plot_auc",
    "plot_curves",
    "plot_heatmap",
    "plot_sizes",
    "run_study",
    "save_html",
    "save_run",
    "study_plans",
    "swap_sweep",
    "verify_run",
    "write_figure",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from anchorlens.errors import did_you_mean

        raise AttributeError(f"anchorlens has no {name!r}. {did_you_mean(name, __dir__())}")
    import importlib

    value = getattr(importlib.import_module(f"anchorlens.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOME})
