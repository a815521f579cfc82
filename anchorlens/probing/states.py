"""Features of truth probes: states of every layer at the last exact answer token."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.engine.hooked_passes import read_states
from anchorlens.engine.patches import Slots
from anchorlens.models.adapter import Adapter
from anchorlens.prompts.batches import pad_rows
from anchorlens.questions.tokens import TokenRow


def last_answer_states(
    adapter: Adapter, rows: Sequence[TokenRow], site: str, *, batch_size: int | None = None
) -> Float[Tensor, "layer example d_model"]:
    """Return the states of every layer at t*, the last exact answer token, float32 on the CPU."""
    if batch_size is not None:
        states = torch.zeros(adapter.n_layers, len(rows), adapter.d_model)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            states[:, batch] = last_answer_states(adapter, [rows[i] for i in batch], site)
        return states
    last = torch.tensor([[row.positions["answer"][-1]] for row in rows])
    slots = Slots(last, torch.ones_like(last, dtype=torch.bool))
    batch = pad_rows([row.ids for row in rows])
    return read_states(adapter, batch, slots, site)[:, :, 0]
