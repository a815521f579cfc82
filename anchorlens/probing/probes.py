"""Truth probes: one linear classifier a layer of the state at the last exact answer token, label 1 = hallucination (METHOD 3).

Source: Orgad et al. 2025 (exact answer tokens); Luo et al. 2026.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float
from safetensors.numpy import load_file, save_file
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from threadpoolctl import threadpool_limits
from torch import Tensor

from anchorlens.errors import InputError, LeakError
from anchorlens.probing.regularization import GRID, ValidationRows, choose_fit
from anchorlens.questions.build_rows import MORE_QUESTIONS
from anchorlens.warn import warn

Array = npt.NDArray[np.float64]
FORMAT_VERSION = 2
_FACTS = {key: f"{key}_" for key in ("C", "converged", "validation_auc", "validation_auc_se")}
_WEIGHTS = ("coef_", "intercept_", "mean_", "scale_")


class TruthProbe(ClassifierMixin, BaseEstimator):
    """Logistic regression on the states of one layer, in scikit-learn's manner.

    Args:
        penalties: Values of scikit-learn's ``C`` to choose from, these and no others; smaller is stronger. None: those of
            ``PENALTIES``, and where the best of them is the first or the last, further ones (each about 3 times the one before)
            as long as the validation log loss falls by more than ``TOLERANCE``, from 1e-8 to 3e3.
        max_iter: Most iterations of the solver while penalties are compared; the chosen fit is then continued until it converges.

    Attributes:
        classes_: ``[0, 1]``: true, hallucination.
        coef_: Weights of the standardised features, [1 d_model].
        intercept_: [1].
        mean_: Mean of the training features, [d_model].
        scale_: Their standard deviation (1 where it is 0), [d_model].
        C_: The chosen ``C``.
        converged_: Whether the solver came to its end with it.
        validation_auc_: AUC on the validation questions; NaN without any.
        validation_auc_se_: Its standard error over these questions; NaN without any.
        train_questions_: ``question_id`` of every question that took part in fitting or choosing, sorted.
        n_features_in_: d_model.
    """

    def __init__(self, *, penalties: tuple[float, ...] | None = None, max_iter: int = 300) -> None:
        self.penalties = penalties
        self.max_iter = max_iter

    def fit(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        *,
        question_ids: Sequence[str],
        validation: tuple[npt.ArrayLike, npt.ArrayLike, Sequence[str]] | None = None,
    ) -> "TruthProbe":
        """Fit on training questions, choose the penalty on validation questions.

        Args:
            X: States, [row d_model].
            y: 1 where the answer is false, else 0, [row].
            question_ids: Question of each row.
            validation: The same three of the validation rows; without both labels in them the middle penalty is taken.

        Raises:
            InputError: Shapes disagree, a label is missing, or only one label is there.
            LeakError: A question stands in both training and validation.
        """
        features, labels = _check_rows(X, y, question_ids)
        if len(np.unique(labels)) < 2:
            raise InputError(f"A probe needs true and false answers to learn from; all {len(labels)} rows have one label.")
        self.mean_ = features.mean(0)
        spread = features.std(0)
        self.scale_ = np.where(spread > 0, spread, 1.0)
        seen = set(question_ids)
        held: ValidationRows | None = None
        if validation is not None:
            held_x, held_y = _check_rows(*validation)
            both = seen & set(validation[2])
            if both:
                raise LeakError(f"{len(both)} questions stand in both training and validation. Split by question first.")
            seen |= set(validation[2])
            if len(np.unique(held_y)) == 2:
                held = ValidationRows((held_x - self.mean_) / self.scale_, held_y, validation[2])
        fit = choose_fit((features - self.mean_) / self.scale_, labels, held, self.penalties, self.max_iter)
        self.C_, self.converged_ = fit.penalty, fit.converged
        self.coef_, self.intercept_ = fit.weights[None], np.array([fit.intercept])
        self.validation_auc_, self.validation_auc_se_ = (float("nan"),) * 2 if held is None else held.auc(fit)
        self.train_questions_ = sorted(seen)
        self.n_features_in_ = features.shape[1]
        self.classes_ = np.array([0, 1])
        return self

    def decision_function(self, X: npt.ArrayLike, question_ids: Sequence[str], *, allow_seen: bool = False) -> Array:
        """Log-odds of a hallucination, [row]. Arguments and errors as in :meth:`predict_proba`."""
        if not hasattr(self, "coef_"):
            raise NotFittedError("This TruthProbe is not fitted yet. Call fit, or load one with LayerProbes.load.")
        features = np.asarray(X, dtype=np.float64)
        if features.ndim != 2 or features.shape[1] != self.n_features_in_ or len(question_ids) != len(features):
            raise InputError(
                f"X must be [row {self.n_features_in_}] with one question id for each row; "
                f"got {features.shape} and {len(question_ids)} ids."
            )
        if not allow_seen:
            seen = set(self.train_questions_) & set(question_ids)
            if seen:
                raise LeakError(
                    f"This probe was trained on {len(seen)} of the questions that it is asked to score (for example "
                    f"{min(seen)}): its scores there mean nothing. Score other questions, or say allow_seen=True."
                )
        return ((features - self.mean_) / self.scale_) @ self.coef_[0] + self.intercept_[0]

    def scale_log_odds(self, factor: float) -> "TruthProbe":
        """Return a probe with the same predictions and its log-odds times a positive factor."""
        other = copy(self)
        other.coef_, other.intercept_ = self.coef_ * factor, self.intercept_ * factor
        return other

    def predict_proba(self, X: npt.ArrayLike, question_ids: Sequence[str], *, allow_seen: bool = False) -> Array:
        """Compute the probabilities of true and of hallucination, [row 2].

        Args:
            X: States, [row d_model].
            question_ids: Question of each row; checked against the training questions.
            allow_seen: Score training questions too.

        Raises:
            LeakError: The probe was trained on one of these questions.
            InputError: The shapes do not go together.
        """
        p = expit(self.decision_function(X, question_ids, allow_seen=allow_seen))
        return np.stack([1 - p, p], axis=1)

    def predict(
        self, X: npt.ArrayLike, question_ids: Sequence[str], *, allow_seen: bool = False
    ) -> npt.NDArray[np.int64]:  # fmt: skip
        """Return 1 where P(hallucination) >= 0.5, else 0, [row]."""
        return (self.predict_proba(X, question_ids, allow_seen=allow_seen)[:, 1] >= 0.5).astype(np.int64)

    def score(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, X: npt.ArrayLike, y: npt.ArrayLike, question_ids: Sequence[str], *, allow_seen: bool = False
    ) -> float:
        """Compute the share of right predictions. Arguments and errors as in :meth:`predict_proba`."""
        return float((self.predict(X, question_ids, allow_seen=allow_seen) == np.asarray(y)).mean())


def _check_rows(x: npt.ArrayLike, y: npt.ArrayLike, question_ids: Sequence[str]) -> tuple[Array, Array]:
    features, labels = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if features.ndim != 2 or labels.shape != (len(features),) or len(question_ids) != len(features):
        raise InputError(
            f"A probe takes X [row d_model], y [row] and one question id for each row; got {features.shape}, {labels.shape} "
            f"and {len(question_ids)} ids."
        )
    if not np.isin(labels, (0, 1)).all():
        raise InputError("Labels of a probe are 0 (true) and 1 (hallucination).")
    return features, labels


@dataclass(frozen=True)
class LayerProbes:
    """One fitted probe for each layer.

    Attributes:
        probes: Layer -> probe.
        site: Where in the block the states were read.
        model: Name of the model.
        dataset: Name of the data set.
        probe_layer_over_seeds: k* of probes of the same questions drawn again (:func:`~anchorlens.probing.fit_probes.read_probes`); () where
            there are none.
    """

    probes: Mapping[int, TruthProbe]
    site: str = "resid_post"
    model: str = ""
    dataset: str = ""
    probe_layer_over_seeds: tuple[int, ...] = ()

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that have a probe, ascending."""
        return tuple(sorted(self.probes))

    @property
    def probe_layer(self) -> int:
        """k*: the lowest layer whose validation AUC lies within one standard error of the best one.

        The best of thirty layers is often one of many alike; the first of these is what a new split would find again.

        Raises:
            InputError: No probe had validation rows with both labels.
        """
        scored = {layer: self.probes[layer].validation_auc_ for layer in self.layers}
        known = {layer: auc for layer, auc in scored.items() if auc == auc}
        if not known:
            raise InputError(
                f"No probe has a validation AUC: the validation split lacks one of the labels. Take {MORE_QUESTIONS}."
            )
        best = max(known, key=lambda layer: (known[layer], -layer))
        error = self.probes[best].validation_auc_se_
        return min(layer for layer, auc in known.items() if auc >= known[best] - error)

    def at(self, layers: Sequence[int]) -> "LayerProbes":
        """The probes of these layers only."""
        return replace(self, probes={layer: self.probes[layer] for layer in layers})

    @property
    def fingerprint(self) -> str:
        """A short hash of all weights: says in a record which probes were read."""
        digest = hashlib.sha256()
        for layer in self.layers:
            for name in _WEIGHTS:
                digest.update(np.ascontiguousarray(getattr(self.probes[layer], name)).tobytes())
        return digest.hexdigest()[:12]

    @property
    def question_ids(self) -> frozenset[str]:
        """Every question that a probe has seen."""
        return frozenset(q for probe in self.probes.values() for q in probe.train_questions_)

    def predict(
        self, states: Float[Tensor, "layer example d_model"], question_ids: Sequence[str], *, allow_seen: bool = False
    ) -> Array:
        """P(hallucination) at each layer.

        Args:
            states: States at the last exact answer token, [layer example d_model], of the layers of :attr:`layers` in their order.
            question_ids: Question of each example.
            allow_seen: Score questions that a probe was trained on, too; what comes out means nothing about others.

        Returns:
            P from 0 to 1, [layer example].

        Raises:
            LeakError: A probe was trained on one of these questions.
        """
        return np.stack(
            [
                self.probes[layer].predict_proba(state.numpy(), question_ids, allow_seen=allow_seen)[:, 1]
                for layer, state in zip(self.layers, states, strict=True)
            ]
        )

    def save(self, directory: "str | Path") -> Path:
        """Write ``probes.safetensors`` (weights) and ``probes.json`` (everything else) into a directory."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {f"{k}.{name}": np.ascontiguousarray(getattr(p, name)) for k, p in self.probes.items() for name in _WEIGHTS}
        facts: dict[str, Any] = {}
        for layer in self.layers:
            values = {key: getattr(self.probes[layer], name) for key, name in _FACTS.items()}
            # JSON has no NaN.
            facts[str(layer)] = {key: None if v != v else v for key, v in values.items()} | self.probes[layer].get_params()
        # All probes of one fit have seen the same questions: written once.
        questions = {str(layer): self.probes[layer].train_questions_ for layer in self.layers}
        shared = questions[str(self.layers[0])]
        record = {
            "format_version": FORMAT_VERSION, "site": self.site, "model": self.model, "dataset": self.dataset,
            "probe_layer_over_seeds": list(self.probe_layer_over_seeds), "layers": facts, "train_questions": shared,
            "train_questions_of_layer": {layer: ids for layer, ids in questions.items() if ids != shared},
        }  # fmt: skip
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        save_file(arrays, folder / ".probes.safetensors.tmp")
        (folder / ".probes.json.tmp").write_text(text, encoding="utf8")
        for name in ("probes.safetensors", "probes.json"):
            (folder / f".{name}.tmp").replace(folder / name)
        return folder

    @classmethod
    def load(cls, directory: "str | Path") -> "LayerProbes":
        """Read probes that :meth:`save` wrote.

        Raises:
            InputError: They are not there, or another version wrote them.
        """
        folder = Path(directory)
        if not (folder / "probes.json").is_file() or not (folder / "probes.safetensors").is_file():
            raise InputError(f"{folder} holds no probes: probes.json and probes.safetensors are needed.")
        record = json.loads((folder / "probes.json").read_text(encoding="utf8"))
        if record.get("format_version") != FORMAT_VERSION:
            raise InputError(
                f"{folder}: probes of format {record.get('format_version')}, this anchorlens reads {FORMAT_VERSION}. Fit them again."
            )
        arrays = load_file(folder / "probes.safetensors")
        probes: dict[int, TruthProbe] = {}
        for layer, facts in record["layers"].items():
            penalties = facts["penalties"]
            probe = TruthProbe(penalties=None if penalties is None else tuple(penalties), max_iter=facts["max_iter"])
            for name in _WEIGHTS:
                setattr(probe, name, arrays[f"{layer}.{name}"])
            for key, name in _FACTS.items():
                setattr(probe, name, float("nan") if facts[key] is None else facts[key])
            probe.train_questions_ = record["train_questions_of_layer"].get(layer, record["train_questions"])
            probe.n_features_in_, probe.classes_ = probe.coef_.shape[1], np.array([0, 1])
            probes[int(layer)] = probe
        return cls(probes, record["site"], record["model"], record["dataset"], tuple(record["probe_layer_over_seeds"]))

    def __repr__(self) -> str:
        if not self.probes:
            return "LayerProbes(empty)"
        layers = f"{len(self.layers)} layers {self.layers[0]}..{self.layers[-1]}"
        return f"LayerProbes({self.model} on {self.dataset}, {self.site}, {layers}, {len(self.question_ids)} questions seen)"


def fit_layers(
    layers: Sequence[int],
    states: Float[Tensor, "layer example d_model"],
    labels: npt.ArrayLike,
    question_ids: Sequence[str],
    split: Sequence[str],
    *,
    site: str = "resid_post",
    model: str = "",
    dataset: str = "",
    like: LayerProbes | None = None,
    where: Sequence[int] | None = None,
) -> LayerProbes:
    """A probe for each layer from the rows of split ``train``, its penalty from those of ``validation``."""
    y, ids, parts = np.asarray(labels, dtype=np.float64), np.asarray(question_ids), np.asarray(split)
    train, held = parts == "train", parts == "validation"
    probes: dict[int, TruthProbe] = {}
    # These matrices are small: threads of the linear algebra library cost more than they give (measured: up to 6 times slower).
    with threadpool_limits(1, "blas"):
        for layer, state in zip(layers, states, strict=True):
            x = (state if where is None else state[list(where)]).numpy()
            validation = (x[held], y[held], ids[held].tolist()) if held.any() else None
            probe = TruthProbe() if like is None else TruthProbe(penalties=(like.probes[layer].C_,))
            probes[layer] = probe.fit(x[train], y[train], question_ids=ids[train].tolist(), validation=validation)
    if like is None:
        _warn_of(probes)
    return LayerProbes(probes, site, model, dataset)


def _warn_of(probes: Mapping[int, TruthProbe]) -> None:
    unsettled = (
        "how sure the probe is, is not settled. AUC and flips can be read as elsewhere; ΔP in points may be too small or too large "
        f"there, so do not compare its size between layers. Take {MORE_QUESTIONS}, or leave these layers out."
    )
    edge = [k for k, p in probes.items() if p.C_ in (GRID[0], GRID[-1]) and p.validation_auc_ - 2 * p.validation_auc_se_ > 0.5]
    if edge:
        tried = f"C = {GRID[0]:g} to {GRID[-1]:g}"
        warn(f"At {_layers(edge)} the best penalty of the probe is the first or last that is tried ({tried}): {unsettled}")
    open_ended = [k for k, p in probes.items() if not p.converged_]
    if open_ended:
        warn(f"At {_layers(open_ended)} the fit of the probe stopped before its end: {unsettled}")


def _layers(layers: Sequence[int]) -> str:
    return f"layer{'' if len(layers) == 1 else 's'} {', '.join(map(str, layers))}"
