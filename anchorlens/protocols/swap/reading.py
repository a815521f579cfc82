"""Readouts of a swap sweep: probability of the answer, truth probe, or P(yes)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.constants import SITE_ORDER
from anchorlens.engine.patches import window_layers
from anchorlens.engine.readouts import AnswerReader, Reader, ReadoutLike, StateReader, make_readout
from anchorlens.models.adapter import Adapter
from anchorlens.probing.cross_fitting import CrossFittedProbes
from anchorlens.probing.p_true import truth_reader
from anchorlens.probing.truth_rows import TruthRows
from anchorlens.protocols.swap.pairing import NORM_MATCHED, NULL, QAPair
from anchorlens.protocols.swap.spec import Swap
from anchorlens.questions.tokens import TokenRow, answer_reads


@dataclass(frozen=True)
class Reading:
    """Readout of a swap sweep, with its rows and probes.

    Attributes:
        readout: Name or function of the readout.
        truth: Labelled rows with their splits; None for answer readouts.
        probes: Fitted or given probes; None unless the readout is ``probe``.
        n_layers: Number of layers of the model.
    """

    readout: ReadoutLike
    truth: TruthRows | None = None
    probes: CrossFittedProbes | None = None
    n_layers: int = 0

    @property
    def probe_layer(self) -> int | None:
        """Layer k* of the probe; None for other readouts."""
        return None if self.probes is None else self.probes.probe_layer

    def event(self, row: TokenRow) -> int:
        """Return 1 if the event of P is the case for a row, else 0."""
        return 1 - row.answer.label if self.readout == "p_true" else row.answer.label

    def reader(self, adapter: Adapter, pairs: Sequence[QAPair]) -> Reader:
        """Return the reader of a batch. Raise LeakError if a probe was trained on a question."""
        targets = [p.target for p in pairs]
        if self.readout == "p_true":
            return truth_reader(adapter, targets)
        if self.probes is not None:
            probes = self.probes
            layer = probes.probe_layer
            ids = [row.example.question_id for row in targets]

            def score(states: Tensor) -> Float[Tensor, "example"]:
                return torch.from_numpy(probes.log_odds(layer, states.numpy(), ids)).float()

            last = torch.tensor([row.positions["answer"][-1] for row in targets])
            return StateReader(layer, probes.site, last, score)
        name, function = make_readout(self.readout)
        donors = [pair.donor for pair in pairs]
        reads = answer_reads(targets, donors, first_only=name == "first_token")
        return AnswerReader(reads, function)

    def reaches(self, spec: Swap, anchor: str, control: str, layer: int) -> bool:
        """Return whether a swap can reach the readout; other cells are missing, not zero."""
        first = window_layers(layer, spec.window, layer + 1).start
        if self.probes is None or first < self.probes.probe_layer:
            return True
        if first > self.probes.probe_layer:
            return False
        # In the layer of the probe, other positions act only through its attention, which reads
        # resid_pre.
        if not isinstance(spec.site, str) or spec.site == "resid_pre":
            return True
        return (
            anchor == "answer"
            and control in ("none", NORM_MATCHED)
            and SITE_ORDER.index(spec.site) <= SITE_ORDER.index(self.probes.site)
        )

    def is_by_construction(
        self, spec: Swap, pair: QAPair, anchor: str, control: str, layer: int
    ) -> bool:
        """Return whether the value of a cell follows by construction.

        The stream into block 0 depends on tokens only: equal tokens in both inputs (``pre_answer``
        in most rows) change nothing, and ``pre_answer_all`` inserts the donor's answer tokens. A
        swap of ``answer`` at k* makes the probe read the donor's state. ``same_role`` and
        ``norm_matched`` change nothing with equal tokens, or without a position. After the last
        attention a change reaches the readout at its own position only.
        """
        changed = window_layers(layer, spec.window, layer + spec.window)
        if (
            isinstance(spec.site, str)
            and spec.site != "resid_pre"
            and self.probes is None
            and changed.start == self.n_layers - 1
        ):
            read: set[int] = set()
            if self.readout != "p_true":
                read.update(pair.target.positions["pre_answer_all"])
            changed_positions: set[int] = set()
            for place in pair.placements:
                if (place.anchor, place.control) == (anchor, control):
                    changed_positions.update(place.target_positions)
            if not read & changed_positions:
                return True
        same = changed == range(1) and pair.same_tokens(anchor, control)
        if control != "none":
            return control != NULL and (
                not pair.slots(anchor, control) or (spec.site == "resid_pre" and same)
            )
        if spec.site == "resid_pre" and 0 in changed and (anchor == "pre_answer_all" or same):
            return True
        return anchor == "answer" and self.probe_layer in changed
