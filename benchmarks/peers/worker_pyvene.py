"""pyvene: one pass over all layers collects the donors; then one intervenable model, one layer and
one pass for each cell.

pyvene can also run the sources again with every cell; passing the collected activations
(``source_representations``) saves half of all passes. It wraps the model without the unembedding,
so that only the read positions are unembedded.
"""

from pathlib import Path
from typing import Any

import pyvene as pv
import torch
from protocol import Job, Sweep
from tensors import Part, Rows, load_hf, probability

LIBRARIES = ("torch", "pyvene", "transformers")


def load(directory: Path) -> Any:
    return load_hf(directory)


def _slots(job: Job, side: str, place: str) -> list[list[int]]:
    """Return positions, [row][slot]; pyvene needs equally many per row, so shorter rows repeat
    their last slot.
    """
    found = [list(row[side][place]) for row in job["rows"] if place in row[side]]
    most = max(len(where) for where in found)
    return [where + where[-1:] * (most - len(where)) for where in found]


@torch.inference_mode()
def run(model: Any, job: Job) -> Sweep:
    rows = Rows.of(job)
    inner, layers = model.model, job["layers"]

    def read(states: torch.Tensor, part: Rows | Part) -> list[float]:
        return probability(model.lm_head(states[part.row, part.read]), part.token)

    collector = pv.IntervenableModel(
        [
            {"layer": layer, "component": "block_input", "intervention": pv.CollectIntervention()}
            for layer in layers
        ],
        model=inner,
    )
    everywhere = list(range(rows.donor_ids.shape[1]))
    places = [[everywhere] * len(rows.row)] * len(layers)
    (_, collected), _ = collector(
        base={"input_ids": rows.donor_ids},
        unit_locations={"sources->base": (None, places)},
        use_cache=False,
    )
    streams = dict(zip(layers, collected, strict=True))

    out = Sweep(p_before=read(inner(input_ids=rows.ids, use_cache=False).last_hidden_state, rows))
    for place in job["places"]:
        part = Part.of(job, [place], rows)
        target = _slots(job, "target", place)
        source = torch.tensor(_slots(job, "source", place))
        out.p[place] = []
        for layer in layers:
            patched = pv.IntervenableModel(
                {
                    "layer": layer,
                    "component": "block_input",
                    "intervention_type": pv.VanillaIntervention,
                },
                model=inner,
            )
            _, changed = patched(
                base={"input_ids": part.ids},
                source_representations={
                    patched.sorted_keys[0]: streams[layer][part.rows[:, None], source]
                },
                unit_locations={"sources->base": (None, [target])},
                use_cache=False,
            )
            out.p[place].append(read(changed.last_hidden_state, part))
    return out
