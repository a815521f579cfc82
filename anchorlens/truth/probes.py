"""Truth probes: does a state at the last exact answer token tell whether the answer is false? (METHOD 3)

One linear classifier a layer: standardised features, L2-penalised logistic regression, label 1 = hallucination. The strength of
the penalty is chosen by the log loss on validation questions. A probe remembers the questions it has seen (by hash) and refuses to
score them.

Source: Orgad et al. 2025 (exact answer tokens); Luo et al. 2026.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float
from safetensors.numpy import load_file, save_file
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits
from torch import Tensor

from anchorlens.errors import InputError, LeakError

Array = npt.NDArray[np.float64]
PENALTIES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
FORMAT_VERSION = 1


class TruthProbe(ClassifierMixin, BaseEstimator):
    """Logistic regression on the states of one layer, in scikit-learn's manner.

    Args:
        penalties: Values of scikit-learn's ``C`` to choose from; smaller is stronger.
        max_iter: Most iterations of the solver.

    Attributes:
        classes_: ``[0, 1]``: true, hallucination.
        coef_: Weights of the standardised features, [1 d_model].
        intercept_: [1].
        mean_: Mean of the training features, [d_model].
        scale_: Their standard deviation (1 where it is 0), [d_model].
        C_: The chosen ``C``.
        validation_auc_: AUC on the validation questions; NaN without any.
        train_questions_: ``question_id`` of every question that took part in fitting or choosing, sorted.
        n_features_in_: d_model.
    """

    def __init__(self, *, penalties: tuple[float, ...] = PENALTIES, max_iter: int = 300) -> None:
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
            validation: The same three of the validation rows; without them the middle penalty is taken.

        Raises:
            InputError: Shapes disagree, a label is missing, or only one label is there.
            LeakError: A question stands in both training and validation.
        """
        features, labels = _checked(X, y, question_ids)
        if len(np.unique(labels)) < 2:
            raise InputError(f"A probe needs true and false answers to learn from; all {len(labels)} rows have one label.")
        self.mean_ = features.mean(0)
        spread = features.std(0)
        self.scale_ = np.where(spread > 0, spread, 1.0)
        seen = set(question_ids)
        held: tuple[Array, Array] | None = None
        if validation is not None:
            held_x, held_y = _checked(*validation)
            both = seen & set(validation[2])
            if both:
                raise LeakError(f"{len(both)} questions stand in both training and validation. Split by question first.")
            seen |= set(validation[2])
            held = ((held_x - self.mean_) / self.scale_, held_y)
        self._choose((features - self.mean_) / self.scale_, labels, held)
        self.train_questions_ = sorted(seen)
        self.n_features_in_ = features.shape[1]
        self.classes_ = np.array([0, 1])
        return self

    def _choose(self, x: Array, y: Array, held: tuple[Array, Array] | None) -> None:
        can_choose = held is not None and len(np.unique(held[1])) == 2
        penalties = self.penalties if can_choose else (self.penalties[len(self.penalties) // 2],)
        # With fewer rows than features the solution lies in the rows' span, and the penalty does not change under rotation: the
        # same optimum is found in as many coordinates as there are rows.
        basis = np.linalg.svd(x, full_matrices=False)[2] if x.shape[0] < x.shape[1] else None
        reduced = x if basis is None else x @ basis.T
        model = LogisticRegression(max_iter=self.max_iter, warm_start=True)
        self.validation_auc_ = float("nan")
        best = np.inf
        for penalty in sorted(penalties):  # from strong to weak: each fit starts from the one before
            model.set_params(C=penalty)
            with warnings.catch_warnings():
                # A weak penalty on separable rows takes long; the validation loss decides whether that fit is of use.
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(reduced, y)
            coef = np.asarray(model.coef_, dtype=np.float64)
            weights = coef if basis is None else coef @ basis
            loss, auc = 0.0, float("nan")
            if can_choose:
                assert held is not None
                odds = held[0] @ weights[0] + float(np.asarray(model.intercept_)[0])
                # Log loss, not AUC: ΔP is read in points of probability, so the probability has to be calibrated.
                loss = float(np.logaddexp(0, np.where(held[1] == 1, -odds, odds)).mean())
                auc = float(roc_auc_score(held[1], odds))
            if loss < best:
                best, self.C_, self.validation_auc_ = loss, float(penalty), auc
                self.coef_, self.intercept_ = weights.copy(), np.array(model.intercept_, dtype=np.float64)

    def decision_function(
        self,
        X: npt.ArrayLike,
        question_ids: Sequence[str],
        *,
        allow_seen: bool = False,
    ) -> Array:
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

    def predict_proba(
        self,
        X: npt.ArrayLike,
        question_ids: Sequence[str],
        *,
        allow_seen: bool = False,
    ) -> Array:
        """Probabilities of true and of hallucination, [row 2].

        Args:
            X: States, [row d_model].
            question_ids: Question of each row; checked against the training questions.
            allow_seen: Score training questions too.

        Raises:
            LeakError: The probe was trained on one of these questions.
            InputError: The shapes do not go together.
        """
        p = 1 / (1 + np.exp(-self.decision_function(X, question_ids, allow_seen=allow_seen)))
        return np.stack([1 - p, p], axis=1)

    def predict(
        self,
        X: npt.ArrayLike,
        question_ids: Sequence[str],
        *,
        allow_seen: bool = False,
    ) -> npt.NDArray[np.int64]:
        """1 where P(hallucination) >= 0.5, else 0, [row]."""
        return (self.predict_proba(X, question_ids, allow_seen=allow_seen)[:, 1] >= 0.5).astype(np.int64)

    def score(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        question_ids: Sequence[str],
        *,
        allow_seen: bool = False,
    ) -> float:
        """Share of right predictions. Arguments and errors as in :meth:`predict_proba`."""
        return float((self.predict(X, question_ids, allow_seen=allow_seen) == np.asarray(y)).mean())


def _checked(x: npt.ArrayLike, y: npt.ArrayLike, question_ids: Sequence[str]) -> tuple[Array, Array]:
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
    """

    probes: Mapping[int, TruthProbe]
    site: str = "resid_post"
    model: str = ""
    dataset: str = ""

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that have a probe, ascending."""
        return tuple(sorted(self.probes))

    @property
    def best_layer(self) -> int:
        """k*: the layer with the best validation AUC (the lowest of equals).

        Raises:
            InputError: No probe had validation rows with both labels.
        """
        scored = {layer: self.probes[layer].validation_auc_ for layer in self.layers}
        known = {layer: auc for layer, auc in scored.items() if auc == auc}
        if not known:
            raise InputError(
                "No probe has a validation AUC: the validation split lacks one of the labels. Take more questions."
            )
        return max(known, key=lambda layer: (known[layer], -layer))

    def at(self, layers: Sequence[int]) -> "LayerProbes":
        """The probes of these layers only."""
        return replace(self, probes={layer: self.probes[layer] for layer in layers})

    @property
    def fingerprint(self) -> str:
        """A short hash of all weights: says in a record which probes were read."""
        digest = hashlib.sha256()
        for layer in self.layers:
            for name in ("coef_", "intercept_", "mean_", "scale_"):
                digest.update(np.ascontiguousarray(getattr(self.probes[layer], name)).tobytes())
        return digest.hexdigest()[:12]

    @property
    def question_ids(self) -> frozenset[str]:
        """Every question that a probe has seen."""
        return frozenset(q for probe in self.probes.values() for q in probe.train_questions_)

    def predict(
        self, states: Float[Tensor, "layer example d_model"], question_ids: Sequence[str], *, allow_seen: bool = False
    ) -> Array:
        """P(hallucination) at each layer, [layer example]; ``states`` holds the layers of :attr:`layers`, in order.

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
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        facts: dict[str, Any] = {}
        for layer in self.layers:
            probe = self.probes[layer]
            for name in ("coef_", "intercept_", "mean_", "scale_"):
                arrays[f"{layer}.{name}"] = np.ascontiguousarray(getattr(probe, name))
            auc = None if np.isnan(probe.validation_auc_) else probe.validation_auc_  # JSON has no NaN
            facts[str(layer)] = {"C": probe.C_, "validation_auc": auc, **probe.get_params()}
        # All probes of one fit have seen the same questions: written once.
        questions = {str(layer): self.probes[layer].train_questions_ for layer in self.layers}
        shared = questions[str(self.layers[0])]
        record = {
            "format_version": FORMAT_VERSION, "site": self.site, "model": self.model, "dataset": self.dataset,
            "layers": facts, "train_questions": shared,
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
                f"{folder}: probes of format {record.get('format_version')}, this anchorlens reads {FORMAT_VERSION}."
            )
        arrays = load_file(folder / "probes.safetensors")
        probes: dict[int, TruthProbe] = {}
        for layer, facts in record["layers"].items():
            probe = TruthProbe(penalties=tuple(facts["penalties"]), max_iter=facts["max_iter"])
            for name in ("coef_", "intercept_", "mean_", "scale_"):
                setattr(probe, name, arrays[f"{layer}.{name}"])
            auc = facts["validation_auc"]
            probe.C_, probe.validation_auc_ = facts["C"], float("nan") if auc is None else auc
            probe.train_questions_ = record["train_questions_of_layer"].get(layer, record["train_questions"])
            probe.n_features_in_, probe.classes_ = probe.coef_.shape[1], np.array([0, 1])
            probes[int(layer)] = probe
        return cls(probes, record["site"], record["model"], record["dataset"])

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
) -> LayerProbes:
    """A probe for each layer from the rows of split ``train``, its penalty from those of ``validation``.

    Args:
        layers: Layers of ``states``.
        states: States of every row.
        labels: 1 where the answer is false, [row].
        question_ids: Question of each row.
        split: Split of each row.
        site: Where the states were read.
        model: Its name.
        dataset: Its name.
        like: Take the penalties of these probes: a placebo whose penalty were chosen for itself would be all but constant, and its
            curve flat for that reason alone.
    """
    y, ids, parts = np.asarray(labels, dtype=np.float64), np.asarray(question_ids), np.asarray(split)
    train, held = parts == "train", parts == "validation"
    probes: dict[int, TruthProbe] = {}
    # These matrices are small: threads of the linear algebra library cost more than they give (measured: up to 6 times slower).
    with threadpool_limits(1, "blas"):
        for layer, state in zip(layers, states, strict=True):
            x = state.numpy()
            validation = (x[held], y[held], ids[held].tolist()) if held.any() else None
            probe = TruthProbe() if like is None else TruthProbe(penalties=(like.probes[layer].C_,))
            probes[layer] = probe.fit(x[train], y[train], question_ids=ids[train].tolist(), validation=validation)
    return LayerProbes(probes, site, model, dataset)


__all__ = ["PENALTIES", "LayerProbes", "TruthProbe", "fit_layers"]
