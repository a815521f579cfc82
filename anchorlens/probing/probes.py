"""Truth probes: a linear classifier per layer of the state at the last exact answer token, label 1
= hallucination (METHOD 3).

Source: Orgad et al. 2025 (exact answer tokens); Luo et al. 2026.
"""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from jaxtyping import Float
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from threadpoolctl import threadpool_limits
from torch import Tensor

from anchorlens.display import warn
from anchorlens.errors import InputError, LeakError
from anchorlens.probing.regularization import GRID, ValidationRows, choose_fit
from anchorlens.questions.drops import MORE_QUESTIONS

Array = npt.NDArray[np.float64]


class TruthProbe(ClassifierMixin, BaseEstimator):
    """Logistic regression on the states of one layer with the interface of scikit-learn.

    Examples:
        >>> import anchorlens as al
        >>> states = [[0.0, 1.0], [1.0, 0.0], [0.1, 0.9], [0.9, 0.2]]
        >>> labels = [0, 1, 0, 1]
        >>> probe = al.TruthProbe().fit(states, labels, question_ids=["a", "a", "b", "b"])
        >>> probe.predict([[0.0, 0.8], [1.0, 0.1]], ["c", "c"])
        array([0, 1])

    Args:
        penalties: Values of scikit-learn's ``C`` to choose from; smaller is stronger. If None,
            ``PENALTIES``. These are extended by factors of about 3, within 1e-8 to 3e3, while the
            validation log loss decreases by more than ``TOLERANCE``.
        max_iter: Largest number of iterations while penalties are compared; the chosen fit then
            continues until convergence.

    Attributes:
        classes_: ``[0, 1]`` for true and hallucination.
        coef_: Weights of the standardised features, [1 d_model].
        intercept_: Intercept of the log-odds, [1].
        mean_: Mean of the training features, [d_model].
        scale_: Standard deviation of the training features (1 if it is 0), [d_model].
        C_: Chosen value of ``C``.
        converged_: True if the solver converged with ``C_``.
        validation_auc_: AUC on the validation questions, in [0, 1]; NaN without validation
            questions.
        validation_auc_se_: Standard error of the AUC over validation questions; NaN without them.
        train_questions_: Sorted ``question_id`` of all training and validation questions, which are
            not scored.
        n_features_in_: Number of features, d_model.
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
        """Fit on training questions and choose the penalty on validation questions.

        Args:
            X: States, [row d_model].
            y: Labels, 1 for a false answer, else 0, [row].
            question_ids: Question of each row.
            validation: ``X``, ``y`` and ``question_ids`` of the validation rows. If None, or
                without both labels, the middle penalty is used.

        Returns:
            The fitted probe.

        Raises:
            InputError: If shapes disagree, a label is not 0 or 1, or all labels are equal.
            LeakError: If a question occurs in both training and validation.
        """
        features, labels = _check_rows(X, y, question_ids)
        if len(np.unique(labels)) < 2:
            raise InputError(
                f"y: all {len(labels)} rows have one label. Pass true and false answers.",
                argument="y",
            )
        self.mean_ = features.mean(0)
        spread = features.std(0)
        self.scale_ = np.where(spread > 0, spread, 1.0)
        seen = set(question_ids)
        held: ValidationRows | None = None
        if validation is not None:
            held_x, held_y = _check_rows(*validation)
            both = seen & set(validation[2])
            if both:
                raise LeakError(
                    f"validation: {len(both)} questions occur in both training and validation."
                    " Split by question first.",
                    argument="validation",
                )
            seen |= set(validation[2])
            if len(np.unique(held_y)) == 2:
                held = ValidationRows((held_x - self.mean_) / self.scale_, held_y, validation[2])
        fit = choose_fit(
            (features - self.mean_) / self.scale_, labels, held, self.penalties, self.max_iter
        )
        self.C_ = fit.penalty
        self.converged_ = fit.converged
        self.coef_ = fit.weights[None]
        self.intercept_ = np.array([fit.intercept])
        self.validation_auc_ = self.validation_auc_se_ = float("nan")
        if held is not None:
            self.validation_auc_, self.validation_auc_se_ = held.auc(fit)
        self.train_questions_ = sorted(seen)
        self.n_features_in_ = features.shape[1]
        self.classes_ = np.array([0, 1])
        return self

    def decision_function(
        self, X: npt.ArrayLike, question_ids: Sequence[str], *, allow_seen: bool = False
    ) -> Array:
        """Compute the log-odds of a hallucination, [row]; arguments and errors as in
        :meth:`predict_proba`.
        """
        if not hasattr(self, "coef_"):
            raise NotFittedError(
                "This TruthProbe is not fitted yet."
                " Call fit, or load one with CrossFittedProbes.load."
            )
        features = np.asarray(X, dtype=np.float64)
        has_shape = features.ndim == 2 and features.shape[1] == self.n_features_in_
        if not has_shape or len(question_ids) != len(features):
            raise InputError(
                f"X: must have shape [row {self.n_features_in_}] and one question id per row; "
                f"got {features.shape} and {len(question_ids)} ids.",
                argument="X",
            )
        if not allow_seen:
            seen = set(self.train_questions_) & set(question_ids)
            if seen:
                raise LeakError(
                    f"question_ids: the probe was trained on {len(seen)} of these questions (for"
                    f" example {min(seen)}), so their scores are not valid. Score other questions,"
                    " or pass allow_seen=True.",
                    argument="question_ids",
                )
        return ((features - self.mean_) / self.scale_) @ self.coef_[0] + self.intercept_[0]

    def scale_log_odds(self, factor: float) -> "TruthProbe":
        """Return a probe with the same predictions and log-odds multiplied by a positive factor."""
        other = copy(self)
        other.coef_ = self.coef_ * factor
        other.intercept_ = self.intercept_ * factor
        return other

    def predict_proba(
        self, X: npt.ArrayLike, question_ids: Sequence[str], *, allow_seen: bool = False
    ) -> Array:
        """Compute the probabilities of true and of hallucination, [row 2].

        Args:
            X: States, [row d_model].
            question_ids: Question of each row, compared with the training questions.
            allow_seen: Whether to score training questions too.

        Raises:
            LeakError: If the probe was trained on one of these questions.
            InputError: If the shapes disagree.
            NotFittedError: If the probe is not fitted.
        """
        p = expit(self.decision_function(X, question_ids, allow_seen=allow_seen))
        return np.stack([1 - p, p], axis=1)

    def predict(
        self, X: npt.ArrayLike, question_ids: Sequence[str], *, allow_seen: bool = False
    ) -> npt.NDArray[np.int64]:
        """Return 1 where P(hallucination) >= 0.5, else 0, [row]."""
        p = self.predict_proba(X, question_ids, allow_seen=allow_seen)[:, 1]
        return (p >= 0.5).astype(np.int64)

    def score(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        question_ids: Sequence[str],
        *,
        allow_seen: bool = False,
    ) -> float:
        """Compute the accuracy, in [0, 1]; arguments and errors as in :meth:`predict_proba`."""
        return float((self.predict(X, question_ids, allow_seen=allow_seen) == np.asarray(y)).mean())


def _check_rows(
    x: npt.ArrayLike, y: npt.ArrayLike, question_ids: Sequence[str]
) -> tuple[Array, Array]:
    features = np.asarray(x, dtype=np.float64)
    labels = np.asarray(y, dtype=np.float64)
    if features.ndim != 2 or labels.shape != (len(features),) or len(question_ids) != len(features):
        raise InputError(
            "X: must be [row d_model] with y [row] and one question id per row; got"
            f" {features.shape}, {labels.shape} and {len(question_ids)} ids.",
            argument="X",
        )
    if not np.isin(labels, (0, 1)).all():
        raise InputError("y: labels must be 0 (true) or 1 (hallucination).", argument="y")
    return features, labels


@dataclass(frozen=True)
class LayerProbes:
    """Truth probes of several layers, fitted on one split.

    Examples:
        >>> import anchorlens as al
        >>> probe = al.TruthProbe().fit([[0.0], [1.0]], [0, 1], question_ids=["a", "b"])
        >>> al.LayerProbes({3: probe}, model="gpt2", dataset="popqa")
        LayerProbes(gpt2 on popqa, resid_post, 1 layers 3..3, 2 questions seen)

    Attributes:
        probes: Layer -> probe.
        site: Hook site of the states, such as ``resid_post``.
        model: Name of the model.
        dataset: Name of the data set.
    """

    probes: Mapping[int, TruthProbe]
    site: str = "resid_post"
    model: str = ""
    dataset: str = ""

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers with a probe, in ascending order."""
        return tuple(sorted(self.probes))

    @property
    def probe_layer(self) -> int:
        """Lowest layer with a validation AUC within one standard error of the best AUC (k*).

        Many layers are often about equally good; the lowest of them is stable across splits.

        Raises:
            InputError: If no probe had validation rows with both labels.
        """
        all_aucs = {layer: self.probes[layer].validation_auc_ for layer in self.layers}
        aucs = {layer: auc for layer, auc in all_aucs.items() if auc == auc}
        if not aucs:
            raise InputError(
                "No probe has a validation AUC: the validation split lacks one of the labels."
                f" Use {MORE_QUESTIONS}."
            )
        best = max(aucs, key=lambda layer: (aucs[layer], -layer))
        error = self.probes[best].validation_auc_se_
        return min(layer for layer, auc in aucs.items() if auc >= aucs[best] - error)

    def at(self, layers: Sequence[int]) -> "LayerProbes":
        """Return the probes of these layers only."""
        return replace(self, probes={layer: self.probes[layer] for layer in layers})

    @property
    def question_ids(self) -> frozenset[str]:
        """Training and validation questions of all probes."""
        questions: set[str] = set()
        for probe in self.probes.values():
            questions.update(probe.train_questions_)
        return frozenset(questions)

    def __repr__(self) -> str:
        if not self.probes:
            return "LayerProbes(empty)"
        layers = f"{len(self.layers)} layers {self.layers[0]}..{self.layers[-1]}"
        return (
            f"LayerProbes({self.model} on {self.dataset}, {self.site}, {layers},"
            f" {len(self.question_ids)} questions seen)"
        )


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
    """Fit one probe per layer on ``train`` rows, with its penalty chosen on ``validation`` rows.

    ``like``: probes of the same split whose penalties are used. All their questions count as seen,
    also if ``split`` leaves some out: a false answer of a question is the right answer of another
    one of its block, so the score of its neighbour leaks its label.
    """
    y = np.asarray(labels, dtype=np.float64)
    ids = np.asarray(question_ids)
    train = np.asarray(split) == "train"
    held = np.asarray(split) == "validation"
    probes: dict[int, TruthProbe] = {}
    # One thread: with more the small matrices take up to 6 times as long (measured).
    with threadpool_limits(1, "blas"):
        for layer, state in zip(layers, states, strict=True):
            x = state.numpy()
            validation = (x[held], y[held], ids[held].tolist()) if held.any() else None
            probe = TruthProbe() if like is None else TruthProbe(penalties=(like.probes[layer].C_,))
            probes[layer] = probe.fit(
                x[train], y[train], question_ids=ids[train].tolist(), validation=validation
            )
            if like is not None:
                probe.train_questions_ = like.probes[layer].train_questions_
    return LayerProbes(probes, site, model, dataset)


def warn_of_calibration(splits: Sequence[LayerProbes]) -> None:
    """Warn of layers at which the best penalty of a split is at the edge of the grid, or the fit
    did not converge.
    """
    consequence = (
        "probabilities may be badly calibrated. AUC and flips are valid; ΔP in points may be too"
        " small or too large, so do not compare its size between layers."
        f" Use {MORE_QUESTIONS}, or leave these layers out."
    )
    edge: set[int] = set()
    not_converged: set[int] = set()
    for one in splits:
        for layer, probe in one.probes.items():
            lower_auc = probe.validation_auc_ - 2 * probe.validation_auc_se_
            if probe.C_ in (GRID[0], GRID[-1]) and lower_auc > 0.5:
                edge.add(layer)
            if not probe.converged_:
                not_converged.add(layer)
    if edge:
        warn(
            f"At {_layers(edge)} the best penalty of the probe is at the edge of the grid (C ="
            f" {GRID[0]:g} to {GRID[-1]:g}): {consequence}"
        )
    if not_converged:
        warn(f"At {_layers(not_converged)} the fit of the probe did not converge: {consequence}")


def _layers(layers: Collection[int]) -> str:
    plural = "" if len(layers) == 1 else "s"
    return f"layer{plural} {', '.join(map(str, sorted(layers)))}"
