"""Types of the package's front page; at run time each name is imported on first use."""

from .errors import AnchorlensError, CheckError, EmptySweepError, HookError, InputError, LeakError, RunError
from .figures.curves import plot_curves
from .figures.diagnostics import plot_auc, plot_heatmap, plot_sizes
from .figures.export import save_html, write_figure
from .models.card import ModelCard, card_of
from .models.load import load_model
from .models.names import known_models
from .models.size import ModelSize, model_size
from .probing.probes import LayerProbes, TruthProbe
from .prompts.pairs import PairData, load_pairs
from .protocols.answer_only.spec import AnswerOnly
from .protocols.knockout.spec import Knockout
from .protocols.patch.spec import Patch
from .protocols.patch_tokens.spec import PatchTokens
from .protocols.probe_sweep.pathway_result import PathwayResult
from .protocols.swap.spec import Swap
from .questions.datasets import QAData, known_datasets, load_qa
from .questions.example import Example, Span
from .questions.prompts import PromptText
from .report.explorer import explore
from .report.page import write_report
from .results.saving import save_run
from .results.sweep import SweepResult
from .running.compare import Comparison, compare
from .running.executors import RayExecutor
from .running.loading import load_run
from .running.study import DataRequest, Study, run_study, study_plans
from .running.sweeps import answer_only_sweep, knockout_sweep, patch_sweep, patch_tokens_sweep, swap_sweep
from .running.verify import Verification, verify_run
from .runs.store import load_curves

__version__: str
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
    "PairData",
    "Patch",
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
    "load_pairs",
    "load_qa",
    "load_run",
    "model_size",
    "patch_sweep",
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
