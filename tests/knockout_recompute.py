"""An independent program: ΔP and pathway of a knockout run, from its files alone, with a plain
Hugging Face model.

It shares no line with anchorlens: it reads the parquet files with pandas, builds each input from
its token ids, and hides the cut tokens with a four-dimensional attention mask, one input at a time.
The probes are arrays and one formula.
"""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.numpy import load_file

PLAIN = {
    "knockout_mode": "mask",
    "heads": None,
    "window": "cumulative",
    "readout": "probe",
    "probe_site": "resid_post",
    "delta_kind": "confidence",
    "split": "fixed",
}


class KnockoutRecompute:
    """ΔP of single samples and the pathway of single rows.

    Args:
        run: A run directory of sweeps whose settings are those of ``PLAIN``, with edges ``... ->
            later`` and all layers cut.
        model: The same model, as Hugging Face has it (eager attention, so that it takes any mask).
    """

    def __init__(self, run: Path, model) -> None:
        self.model = model
        self.samples = pd.read_parquet(run / "samples.parquet")
        base = pd.read_parquet(run / "examples.parquet").query("role == 'base'")
        self.rows = {
            (run_id, example_id): ([int(token) for token in ids], json.loads(positions))
            for run_id, example_id, ids, positions in zip(
                base["run_id"],
                base["example_id"],
                base["token_ids"],
                base["positions"],
                strict=True,
            )
        }
        self.probe_layer, self.probes, self.seen, self.streams = {}, {}, {}, {}
        self.question = dict(zip(base["example_id"], base["question_id"], strict=True))
        for sweep in json.loads((run / "run.json").read_text(encoding="utf8"))["sweeps"]:
            config, run_id = sweep["config"], sweep["run_id"]
            assert {name: config[name] for name in PLAIN} == PLAIN
            assert config["edges"].endswith("-> later")
            assert config["cut_layers"] == [0, len(model.model.layers) - 1]
            self.probe_layer[run_id] = sweep["probe"]["probe_layer"]
            self.probes[run_id] = load_file(run / "probes" / run_id / "probes.safetensors")
            said = json.loads((run / "probes" / run_id / "probes.json").read_text(encoding="utf8"))
            assert {one["site"] for one in said["splits"]} == {"resid_post"}
            self.seen[run_id] = [frozenset(one["train_questions"]) for one in said["splits"]]

    def stream(self, run_id: str, example_id: str, control: str | None) -> list[np.ndarray]:
        """What leaves every block at the last exact answer token; ``control`` None: nothing
        is cut.
        """
        key = (run_id, example_id, control)
        if key in self.streams:
            return self.streams[key]
        ids, positions = self.rows[run_id, example_id]
        n = len(ids)
        hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
        cut = [] if control is None else positions[f"cut:{control}"]
        for source in cut:
            for later in range(source + 1, n):
                if later not in cut:
                    hidden[later, source] = True
        mask = torch.zeros(1, 1, n, n).masked_fill(hidden, torch.finfo(torch.float32).min)
        left: list[np.ndarray] = []
        last = positions["answer"][-1]

        def keep(module, args, output):
            stream = output[0] if isinstance(output, tuple) else output
            left.append(stream[0, last].numpy().astype(np.float64))

        hooks = [block.register_forward_hook(keep) for block in self.model.model.layers]
        with torch.no_grad():
            self.model(torch.tensor([ids]), attention_mask=mask)
        for hook in hooks:
            hook.remove()
        self.streams[key] = left
        return left

    def p(self, run_id: str, example_id: str, control: str | None, layer: int) -> float:
        """P(hallucination), as the probe of this layer reads it."""
        (split,) = (
            s for s, seen in enumerate(self.seen[run_id]) if self.question[example_id] not in seen
        )
        mean, scale, weights, bias = (
            self.probes[run_id][f"{split}.{layer}.{name}"]
            for name in ("mean_", "scale_", "coef_", "intercept_")
        )
        standard = (self.stream(run_id, example_id, control)[layer] - mean) / scale
        return 1 / (1 + math.exp(-(float(np.dot(weights[0], standard)) + float(bias[0]))))

    def delta_p(self, cell) -> float:
        """100 * (confidence after - confidence before) in what was predicted before, of one row of
        samples.parquet.
        """
        before = self.p(cell.run_id, cell.example_id, None, cell.layer)
        after = self.p(cell.run_id, cell.example_id, cell.control, cell.layer)
        return 100 * (after - before) if before >= 0.5 else 100 * (before - after)

    def pathway(self, run_id: str, example_id: str, control: str) -> str:
        """Q-Anchored where the prediction at k* is another one after the cut."""
        predicted = [
            self.p(run_id, example_id, when, self.probe_layer[run_id]) >= 0.5
            for when in (None, control)
        ]
        return "A-Anchored" if predicted[0] == predicted[1] else "Q-Anchored"
