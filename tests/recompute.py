"""Independent programs: ΔP of a run from its files alone; a swap's with plain Hugging Face hooks, a
probe's with the model's cache.

They share no line with anchorlens: the first reads the parquet files with pandas, builds each input
from its token ids, and changes the hidden states of a Hugging Face model with PyTorch's own forward
hooks, one input at a time.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.numpy import load_file


def paired(base: dict, source: dict, anchor: str) -> tuple[list[int], list[int]]:
    """Positions of both sides; ``question`` is subject and property, each paired from its last
    token.
    """
    out: tuple[list[int], list[int]] = ([], [])
    for part in ("subject", "property") if anchor == "exact_question" else (anchor,):
        n = min(len(base[part]), len(source[part]))
        out[0].extend(base[part][-n:])
        out[1].extend(source[part][-n:])
    return out


class Recompute:
    """ΔP of single cells.

    Args:
        run: A run directory of the site ``resid_pre``, window 1, readout ``first_token``.
        model: The same model, as Hugging Face has it.
    """

    def __init__(self, run: Path, model) -> None:
        self.model, self.blocks = model, model.model.layers
        self.samples = pd.read_parquet(run / "samples.parquet")
        examples = pd.read_parquet(run / "examples.parquet")
        self.rows = {
            (row.dataset, row.role, row.example_id): (
                list(row.token_ids),
                json.loads(row.positions),
            )
            for row in examples.itertuples()
            if row.role != "dropped"
        }
        self.states: dict[tuple, tuple] = {}

    def hidden(self, key: tuple) -> tuple:
        """Streams that enter every block of one input, and its last logits."""
        if key not in self.states:
            with torch.no_grad():
                out = self.model(torch.tensor([self.rows[key][0]]), output_hidden_states=True)
            self.states[key] = (out.hidden_states, out.logits)
        return self.states[key]

    def delta_p(self, cell) -> float:
        """100 * (P after - P before) of one row of samples.parquet."""
        base_key = (cell.dataset, "base", cell.example_id)
        donor_key = (cell.dataset, "donor", cell.donor_id)
        target_key, source_key = base_key, donor_key
        if cell.direction == "denoising":
            target_key, source_key = (
                (
                    cell.dataset,
                    "corrupt",
                    f"{cell.example_id}~{cell.donor_id}",
                ),
                base_key,
            )
        ids, positions = self.rows[target_key]
        source_positions = self.rows[source_key][1]
        shared = self.shared_answer(base_key, donor_key)
        if cell.anchor == "pre_answer":
            to, where = (
                [positions["pre_answer_all"][shared]],
                [source_positions["pre_answer_all"][shared]],
            )
        else:
            to, where = paired(positions, source_positions, cell.anchor)
        if cell.control == "null":
            to = positions[f"null:{cell.anchor}:{cell.donor_id}"]
            where = where[: len(to)]
        if cell.control == "same_role":
            to, where = (
                positions[f"{key}:{cell.anchor}:{cell.donor_id}"]
                for key in ("same_role", "same_role_source")
            )
        stream = self.hidden(source_key)[0][cell.layer][0, where]
        if cell.control == "norm_matched":
            own = self.hidden(target_key)[0][cell.layer][0, to]
            stream = turned(own, stream, self.towards(cell, target_key, source_key, stream.shape))

        def put(module, args):
            changed = args[0].clone()
            changed[0, to] = stream
            return (changed, *args[1:])

        hook = self.blocks[cell.layer].register_forward_pre_hook(put)
        with torch.no_grad():
            after = self.model(torch.tensor([ids])).logits
        hook.remove()
        first = positions["answer"][shared]
        before = self.hidden(target_key)[1]
        p = [logits[0, first - 1].float().softmax(-1)[ids[first]] for logits in (before, after)]
        return 100 * float(p[1] - p[0])

    def shared_answer(self, base_key: tuple, donor_key: tuple) -> int:
        """Number of tokens that both answers begin with; 0 where one answer begins with the other."""
        answers = []
        for ids, positions in (self.rows[base_key], self.rows[donor_key]):
            answers.append([ids[p] for p in positions["answer"]])
        for number, (a, b) in enumerate(zip(*answers, strict=False)):
            if a != b:
                return number
        return 0

    def towards(self, cell, target_key: tuple, source_key: tuple, shape) -> torch.Tensor:
        """Direction of a draw: the difference of two stored rows, else Gaussian."""
        label = f"{cell.seed}:norm_matched:{cell.example_id}:{cell.donor_id}:{cell.anchor}"
        label += f":{cell.draw}" if cell.draw else ""
        seed = int.from_bytes(hashlib.sha256(label.encode()).digest()[:7], "big")
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        names = [f"{cell.example_id}~{cell.donor_id}~{cell.draw}{side}" for side in "ab"]
        if (cell.dataset, "direction", names[0]) not in self.rows:
            return drawn
        parts = ("subject", "property") if cell.anchor == "exact_question" else (cell.anchor,)
        streams = []
        for name in names:
            key = (cell.dataset, "direction", name)
            at = []
            for part in parts:
                n = min(len(self.rows[one][1][part]) for one in (target_key, source_key))
                at.extend(self.rows[key][1][part][-n:])
            streams.append(self.hidden(key)[0][cell.layer][0, at])
        return torch.where(
            (streams[0] == streams[1]).all(-1, keepdim=True), drawn, streams[0] - streams[1]
        )


def turned(own: torch.Tensor, donor: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """Own activation with the donor's norm and angle to it, turned towards a direction: |d| (cos a u
    + sin a v).
    """
    u = own / own.norm(dim=-1, keepdim=True)
    v = direction - (direction * u).sum(-1, keepdim=True) * u
    v = v / v.norm(dim=-1, keepdim=True)
    cosine = torch.cosine_similarity(own, donor, dim=-1)[..., None].double().clamp(-1, 1)
    size = donor.norm(dim=-1, keepdim=True).double()
    return (size * (cosine * u + (1 - cosine**2).sqrt() * v)).to(own.dtype)


class ProbeRecompute:
    """P of any stored input of a probe sweep, by TransformerLens's own cache and the saved probes'
    arrays.

    Args:
        run: A run directory of one sweep that is read by a probe at ``resid_post``.
        model: The model.
    """

    def __init__(self, run: Path, model) -> None:
        self.model = model
        self.examples = (
            pd.read_parquet(run / "examples.parquet")
            .query("role != 'donor'")
            .set_index("example_id")
        )
        (sweep,) = json.loads((run / "run.json").read_text(encoding="utf8"))["sweeps"]
        home = run / "probes" / sweep["run_id"]
        self.probes = load_file(home / "probes.safetensors")
        self.seen = [
            set(one["train_questions"])
            for one in json.loads((home / "probes.json").read_text(encoding="utf8"))["splits"]
        ]
        self.samples = pd.read_parquet(run / "samples.parquet")

    def p(self, example_id: str, layer: int) -> float:
        """P(hallucination) of one input."""
        row = self.examples.loc[example_id]
        with torch.no_grad():
            _, cache = self.model.run_with_cache(
                torch.tensor([list(map(int, row["token_ids"]))]), prepend_bos=False
            )
        state = (
            cache["resid_post", layer][0, json.loads(row["positions"])["answer"][-1]]
            .double()
            .numpy()
        )
        (split,) = (s for s, seen in enumerate(self.seen) if row["question_id"] not in seen)
        mean, scale, weights, bias = (
            self.probes[f"{split}.{layer}.{name}"]
            for name in ("mean_", "scale_", "coef_", "intercept_")
        )
        return 1 / (1 + np.exp(-(weights[0] @ ((state - mean) / scale) + bias[0])))

    def check(self, cells: pd.DataFrame, atol: float) -> None:
        """Raise if P or delta_p of a sample differ; its changed input is EXAMPLE_ID~DONOR_ID, or
        that and ~CONTROL.
        """
        for cell in cells.itertuples():
            donor = (
                "" if pd.isna(cell.donor_id) else cell.donor_id
            )  # an input without a donor is EXAMPLE_ID~
            name = f"{cell.example_id}~{donor}"
            changed = (
                f"{name}~{cell.control}"
                if f"{name}~{cell.control}" in self.examples.index
                else name
            )
            before, after = self.p(cell.example_id, cell.layer), self.p(changed, cell.layer)
            found = before, after, 100 * (after - before if before >= 0.5 else before - after)
            np.testing.assert_allclose(found[:2], (cell.value_before, cell.value_after), atol=atol)
            np.testing.assert_allclose(found[2], cell.effect, atol=200 * atol)
