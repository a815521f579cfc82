"""Types of the package's front page; at run time each name is imported on first use."""

from . import patching
from .diagnosis.doctor import doctor
from .diagnosis.model_check import Diagnosis
from .errors import (
    AnchorlensError,
    CheckError,
    EmptySweepError,
    HookError,
    InputError,
    LeakError,
    RunError,
)
from .figures.choose_figure import plot_heatmap
from .figures.circuit_graph import plot_circuit
from .figures.curves import plot_curves
from .figures.diagnostics import plot_pathway_sizes, plot_probe_auc
from .figures.export import save_figure, save_html
from .loading.load_run import load_run
from .models.card import ModelCard, model_card
from .models.load import load_model
from .models.names import known_models
from .models.size import ModelSize, model_size
from .probing.cross_fitting import CrossFittedProbes
from .probing.probes import LayerProbes, TruthProbe
from .prompts.load_pairs import load_pairs
from .prompts.pairs import PairData
from .prompts.tokenize_pairs import tokenize_pairs
from .protocols.answer_only.spec import AnswerOnly
from .protocols.compare_methods import compare_methods
from .protocols.edges.circuit import Circuit
from .protocols.edges.circuit_files import load_circuit, save_circuit
from .protocols.edges.edge_result import EdgeResult
from .protocols.edges.faithfulness import Faithfulness
from .protocols.edges.find_acdc import acdc
from .protocols.edges.head_effects import HeadEffects, head_effects
from .protocols.edges.spec import Edges
from .protocols.knockout.spec import Knockout
from .protocols.patch.spec import Patch
from .protocols.patch_tokens.spec import PatchTokens
from .protocols.probe_sweep.pathway_result import PathwayResult
from .protocols.swap.spec import Swap
from .questions.datasets import known_datasets, load_qa
from .questions.example import Example, QAData, Span
from .questions.prompts import PromptText
from .report.explorer import explore
from .report.page import save_report
from .results.adjusted_claims import adjust_claims
from .results.both_directions import BothDirections
from .results.comparison import Comparison
from .results.sweep import SweepResult
from .running.compare import compare
from .running.dataset_spec import DatasetSpec
from .running.executors import RayExecutor
from .running.run_study import plan_study, run_study
from .running.saving import save_run
from .running.screen_edges import EdgeScreen, screen_edges
from .running.study import Study
from .running.swap_angles import swap_angles
from .running.sweeps import (
    answer_only_sweep,
    edge_sweep,
    knockout_sweep,
    patch_sweep,
    patch_tokens_sweep,
    swap_sweep,
)
from .running.verify import Verification, verify_run
from .runs.store import load_curves

__version__: str
__all__ = [
    "AnchorlensError",
    "AnswerOnly",
    "BothDirections",
    "CheckError",
    "Circuit",
    "Comparison",
    "CrossFittedProbes",
    "DatasetSpec",
    "Diagnosis",
    "EdgeResult",
    "EdgeScreen",
    "Edges",
    "EmptySweepError",
    "Example",
    "Faithfulness",
    "HeadEffects",
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
    "acdc",
    "adjust_claims",
    "answer_only_sweep",
    "compare",
    "compare_methods",
    "doctor",
    "edge_sweep",
    "explore",
    "head_effects",
    "knockout_sweep",
    "known_datasets",
    "known_models",
    "load_circuit",
    "load_curves",
    "load_model",
    "load_pairs",
    "load_qa",
    "load_run",
    "model_card",
    "model_size",
    "patch_sweep",
    "patch_tokens_sweep",
    "patching",
    "plan_study",
    "plot_circuit",
    "plot_curves",
    "plot_heatmap",
    "plot_pathway_sizes",
    "plot_probe_auc",
    "run_study",
    "save_circuit",
    "save_figure",
    "save_html",
    "save_report",
    "save_run",
    "screen_edges",
    "swap_angles",
    "swap_sweep",
    "tokenize_pairs",
    "verify_run",
]
