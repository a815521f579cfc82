"""What a swap sweep reads: the answer's probability, a truth probe, or the model's own yes or no."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.engine.readouts import AnswerReader, Reader, ReadoutLike, ReadPlan, StateReader, make_readout
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.protocols.swap.pairing import Pair
from anchorlens.questions.tokens import TokenRow
from anchorlens.truth.asked import truth_reader
from anchorlens.truth.fitted import read_probes
from anchorlens.truth.labelled import TruthRows
from anchorlens.truth.probes import LayerProbes, TruthProbe
from anchorlens.truth.states import last_answer_states

_ORDER = ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")


@dataclass(frozen=True)
class Reading:
    """How P is read from a batch of pairs.

    Attributes:
        make: The reader of a batch.
        rows: Rows that are measured, where the reading decides them (truth readouts); None where it does not.
        truth: All rows with their splits, for truth readouts.
        k_star: The probe's layer; None for the others.
        probes: All probes that were fitted or given.
        event_is_true: P is that of the answer being true, not false.
    """

    make: Callable[[Sequence[Pair]], Reader]
    rows: tuple[TokenRow, ...] | None = None
    truth: TruthRows | None = None
    k_star: int | None = None
    probes: LayerProbes | None = None
    event_is_true: bool = False

    def event(self, row: TokenRow) -> int:
        """1 where what P speaks of is the case."""
        return 1 - row.answer.label if self.event_is_true else row.answer.label

    def reaches(self, first: int, site: SiteLike, *, at_answer: bool) -> bool:
        """Whether a change can reach the probe; cells that cannot are missing, not zero.

        Args:
            first: Lowest layer that is changed.
            site: Where in the block.
            at_answer: Whether the probe's own position is among those that are changed.
        """
        if self.k_star is None or self.probes is None or first < self.k_star:
            return True
        if first > self.k_star:
            return False
        # In the probe's own layer: from other positions only by that layer's attention, which reads resid_pre.
        if not isinstance(site, str) or site == "resid_pre":
            return True
        return at_answer and _ORDER.index(site) <= _ORDER.index(self.probes.site)


def answer_reading(readout: ReadoutLike) -> Reading:
    """P of the answer that stands in the input."""
    name, function = make_readout(readout)

    def make(pairs: Sequence[Pair]) -> Reader:
        plan = ReadPlan.make([p.target for p in pairs], [p.donor for p in pairs], first_only=name == "first_token")
        return AnswerReader(plan, function)

    return Reading(make)


def truth_question_reading(adapter: Adapter, rows: TruthRows) -> Reading:
    """P(yes) where the model is asked whether the answer is right; all rows are measured."""
    return Reading(lambda pairs: truth_reader(adapter, [p.target for p in pairs]), rows.rows, rows, event_is_true=True)


def probe_reading(
    adapter: Adapter,
    rows: TruthRows,
    probes: LayerProbes | None,
    *,
    site: str,
    batch_size: int,
    model: str,
    dataset: str,
    seed: int,
) -> Reading:
    """P(hallucination) at k*; the test rows are measured, and the others train the probes where none are given.

    Raises:
        LeakError: The given probes have seen questions of the test split.
    """
    if probes is None:
        states = last_answer_states(adapter, rows.rows, site, batch_size=batch_size)
        probes = read_probes(rows, range(adapter.n_layers), states, site=site, model=model, dataset=dataset, seed=seed)
    k = probes.best_layer
    probe, where = probes.probes[k], probes.site

    def make(pairs: Sequence[Pair]) -> Reader:
        targets = [p.target for p in pairs]
        last = torch.tensor([row.positions["answer"][-1] for row in targets])
        return StateReader(k, where, last, _scorer(probe, [row.example.question_id for row in targets]))

    return Reading(make, tuple(rows.rows[i] for i in rows.of("test")), rows, k, probes)


def _scorer(probe: TruthProbe, question_ids: Sequence[str]) -> Callable[[Tensor], Float[Tensor, "example"]]:
    """Log-odds of a batch's states; the probe refuses questions that it has seen."""

    def score(states: Tensor) -> Float[Tensor, "example"]:
        return torch.from_numpy(probe.decision_function(states.numpy(), question_ids)).float()

    return score


__all__ = ["Reading", "answer_reading", "probe_reading", "truth_question_reading"]
