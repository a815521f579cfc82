"""Truth probes of several splits: each question is scored by the probes that were not fitted on it
(METHOD 5, "Several splits").
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, median_low
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float
from safetensors.numpy import load_file, save_file
from scipy.special import expit
from torch import Tensor

from anchorlens.errors import InputError, LeakError
from anchorlens.probing.probes import LayerProbes, TruthProbe

Array = npt.NDArray[np.float64]
FORMAT_VERSION = 3
_FACTS = {key: f"{key}_" for key in ("C", "converged", "validation_auc", "validation_auc_se")}
_WEIGHTS = ("coef_", "intercept_", "mean_", "scale_")


@dataclass(frozen=True)
class CrossFittedProbes:
    """Truth probes of several splits of one data set.

    Each question is scored by the probes that were not fitted on it. Sweeps that read a probe keep
    it as ``sweep.probes``.

    Examples:
        >>> import anchorlens as al
        >>> probes = al.CrossFittedProbes.load("runs/knockout/probes")  # doctest: +SKIP
        >>> probes.validation_auc[probes.probe_layer]  # doctest: +SKIP

    Attributes:
        splits: Probes of each split, with the same layers and site.
    """

    splits: tuple[LayerProbes, ...]

    @classmethod
    def of(cls, probes: "LayerProbes | CrossFittedProbes") -> "CrossFittedProbes":
        """Return probes of one split as cross-fitted probes."""
        return cls((probes,)) if isinstance(probes, LayerProbes) else probes

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers with a probe, in ascending order."""
        return self.splits[0].layers

    @property
    def site(self) -> str:
        """Hook site of the states, such as ``resid_post``."""
        return self.splits[0].site

    @property
    def probe_layers(self) -> tuple[int, ...]:
        """Layer k* of each split (:attr:`LayerProbes.probe_layer`)."""
        return tuple(one.probe_layer for one in self.splits)

    @property
    def probe_layer(self) -> int:
        """Layer k*: the median over splits, the lower one of two."""
        return median_low(self.probe_layers)

    @property
    def validation_auc(self) -> dict[int, float]:
        """Mean validation AUC over splits by layer; NaN if a split has none."""
        aucs: dict[int, float] = {}
        for layer in self.layers:
            aucs[layer] = fmean(one.probes[layer].validation_auc_ for one in self.splits)
        return aucs

    @property
    def fingerprint(self) -> str:
        """Hash of all weights, 12 hex digits, which identifies the probes in a record."""
        digest = hashlib.sha256()
        for one in self.splits:
            for layer in one.layers:
                for name in _WEIGHTS:
                    digest.update(np.ascontiguousarray(getattr(one.probes[layer], name)).tobytes())
        return digest.hexdigest()[:12]

    @cached_property
    def _seen(self) -> tuple[frozenset[str], ...]:
        return tuple(one.question_ids for one in self.splits)

    @property
    def question_ids(self) -> frozenset[str]:
        """Training and validation questions of all splits."""
        return frozenset().union(*self._seen)

    def at(self, layers: Sequence[int]) -> "CrossFittedProbes":
        """Return the probes of these layers only."""
        return replace(self, splits=tuple(one.at(layers) for one in self.splits))

    def log_odds(
        self,
        layer: int,
        states: npt.ArrayLike,
        question_ids: Sequence[str],
        *,
        allow_seen: bool = False,
    ) -> Array:
        """Compute the log-odds of a hallucination, averaged over the splits that were not fitted on
        the question.

        Args:
            layer: Layer of the states.
            states: States at the last exact answer token, [example d_model].
            question_ids: Question of each example.
            allow_seen: Whether to average over all splits; scores of training questions do not
                generalise.

        Returns:
            Log-odds, [example].

        Raises:
            LeakError: If the probes of all splits were fitted on one of these questions.
            InputError: If the shapes disagree.
        """
        x = np.asarray(states)
        ids = np.asarray(question_ids)
        # Whether a split may score an example, [split example].
        unseen = np.ones((len(self.splits), len(question_ids)), dtype=bool)
        for own, seen in zip(unseen, self._seen, strict=True):
            if not allow_seen:
                own[:] = [question not in seen for question in question_ids]
        fitted = ids[~unseen.any(0)]
        if len(fitted):
            raise LeakError(
                f"question_ids: the probes were fitted on {len(set(fitted))} of these questions"
                f" (for example {min(fitted)}), so their scores are not valid."
                " Score other questions, or pass allow_seen=True.",
                argument="question_ids",
            )
        total = np.zeros(len(x))
        for one, rows in zip(self.splits, unseen, strict=True):
            if rows.any():
                total[rows] += one.probes[layer].decision_function(
                    x[rows], ids[rows].tolist(), allow_seen=allow_seen
                )
        return total / unseen.sum(0)

    def predict(
        self,
        states: Float[Tensor, "layer example d_model"],
        question_ids: Sequence[str],
        *,
        allow_seen: bool = False,
    ) -> Array:
        """Compute P(hallucination) at each layer, in [0, 1], [layer example]; arguments and errors
        as in :meth:`log_odds`.
        """
        scores: list[Array] = []
        for layer, state in zip(self.layers, states, strict=True):
            odds = self.log_odds(layer, state.numpy(), question_ids, allow_seen=allow_seen)
            scores.append(odds)
        return expit(np.stack(scores))

    def save(self, directory: "str | Path") -> Path:
        """Write ``probes.safetensors`` (weights) and ``probes.json`` (all other data) to a
        directory and return its path.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Array] = {}
        for number, one in enumerate(self.splits):
            for layer, probe in one.probes.items():
                for name in _WEIGHTS:
                    weights = np.ascontiguousarray(getattr(probe, name))
                    arrays[f"{number}.{layer}.{name}"] = weights
        record = {"format_version": FORMAT_VERSION, "splits": [_record(one) for one in self.splits]}
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        save_file(arrays, folder / ".probes.safetensors.tmp")
        (folder / ".probes.json.tmp").write_text(text, encoding="utf8")
        for name in ("probes.safetensors", "probes.json"):
            (folder / f".{name}.tmp").replace(folder / name)
        return folder

    @classmethod
    def load(cls, directory: "str | Path") -> "CrossFittedProbes":
        """Read probes written by :meth:`save`.

        Raises:
            InputError: If the files are missing, or of another format version.
        """
        folder = Path(directory)
        if not (folder / "probes.json").is_file() or not (folder / "probes.safetensors").is_file():
            raise InputError(
                f"directory={str(folder)!r}: probes.json or probes.safetensors is missing."
                " Pass a directory of probes.save().",
                argument="directory",
            )
        record = json.loads((folder / "probes.json").read_text(encoding="utf8"))
        if record.get("format_version") != FORMAT_VERSION:
            raise InputError(
                f"directory={str(folder)!r}: the probes have format {record.get('format_version')},"
                f" this version reads {FORMAT_VERSION}. Fit them again.",
                argument="directory",
            )
        arrays = load_file(folder / "probes.safetensors")
        splits = enumerate(record["splits"])
        return cls(tuple(_load_split(one, number, arrays) for number, one in splits))

    def __repr__(self) -> str:
        return f"CrossFittedProbes({len(self.splits)} splits of {self.splits[0]!r})"


def _record(probes: LayerProbes) -> dict[str, Any]:
    """Return the data of one split besides the weights, as JSON types.

    A value that is not a number is None, because JSON has no NaN.
    """
    facts: dict[str, Any] = {}
    for layer, probe in probes.probes.items():
        own: dict[str, Any] = {}
        for key, name in _FACTS.items():
            value = getattr(probe, name)
            own[key] = None if np.isnan(value) else value
        facts[str(layer)] = own | probe.get_params()
    # Probes of one fit usually share their questions, which are then written once.
    questions = {str(layer): probe.train_questions_ for layer, probe in probes.probes.items()}
    shared = next(iter(questions.values()))
    others = {layer: ids for layer, ids in questions.items() if ids != shared}
    return {
        "site": probes.site,
        "model": probes.model,
        "dataset": probes.dataset,
        "layers": facts,
        "train_questions": shared,
        "train_questions_of_layer": others,
    }


def _load_split(record: dict[str, Any], number: int, arrays: dict[str, Any]) -> LayerProbes:
    probes: dict[int, TruthProbe] = {}
    for layer, facts in record["layers"].items():
        penalties = facts["penalties"]
        probe = TruthProbe(
            penalties=None if penalties is None else tuple(penalties), max_iter=facts["max_iter"]
        )
        for name in _WEIGHTS:
            setattr(probe, name, arrays[f"{number}.{layer}.{name}"])
        for key, name in _FACTS.items():
            setattr(probe, name, float("nan") if facts[key] is None else facts[key])
        probe.train_questions_ = record["train_questions_of_layer"].get(
            layer, record["train_questions"]
        )
        probe.n_features_in_ = probe.coef_.shape[1]
        probe.classes_ = np.array([0, 1])
        probes[int(layer)] = probe
    return LayerProbes(probes, record["site"], record["model"], record["dataset"])
