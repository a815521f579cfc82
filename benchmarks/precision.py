"""What each choice of precision in a half-precision pass costs in accuracy.

    python benchmarks/precision.py --cells 200

SmolLM2 with weights in half precision, random cells of swaps on questions of PopQA. Every cell is
measured as the package does on a CPU (attention scores and softmax in float32, norms rounded before
and after their weights, final norm and logits in float32), and with one choice replaced. Each
difference is that from a float32 run with the same (rounded) weights: of P of the likeliest token,
of its logit minus the second one's, and of the distribution (KL divergence in nats). The last row
is TransformerLens's own pass.

- *norms in one kernel*: rounded once, as on a GPU.
- *scores in half precision*: attention scores and weights in the model's dtype, as on a GPU.
- *unembedding of one number*: the states that are unembedded are rounded to the model's dtype; a
  GPU gets them as a sum of two such numbers.
- *read in half precision*: final norm and logits in the model's dtype.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from jaxtyping import Float
from torch import Tensor

import anchorlens as al
from anchorlens.engine import cone_attention, cone_pass
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.patches import AnchorSwap, Slots, SwapBatch, pad_rows
from anchorlens.engine.readouts import Metrics
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.models import blocks, read
from anchorlens.models.adapter import Adapter
from anchorlens.models.load import adapt


@dataclass(frozen=True)
class LogitsReader:
    """Reader of all logits at the last position of each row; ``in_dtype``: final norm and logits in
    the dtype of the model.
    """

    last: tuple[int, ...]
    in_dtype: bool = False
    where = None

    @property
    def row(self) -> Tensor:
        """Row of each state."""
        return torch.arange(len(self.last))

    @property
    def position(self) -> Tensor:
        """Position of each state."""
        return torch.tensor(self.last)

    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells read d_model"]) -> Metrics:
        """Return the logits of each cell as one metric, [*cells (example token)]."""
        flat = states.reshape(-1, states.shape[-1])
        if self.in_dtype:
            model: Any = adapter.model
            logits = model.unembed(model.ln_final(flat[:, None]))[:, 0].float()
        else:
            logits = adapter.read.logits(flat)
        return Metrics({"logits": logits.reshape(*states.shape[:-2], -1)})


def main() -> None:
    """Measure all choices and print the table."""
    args = _arguments()
    warnings.simplefilter("ignore")
    half = getattr(torch, args.dtype)
    model = al.load_model("smollm2-135m-instruct", dtype=half, device="cpu", progress=False)
    wide = al.load_model("smollm2-135m-instruct", device="cpu", progress=False)
    for mine, theirs in zip(wide.parameters(), model.parameters(), strict=True):
        mine.data.copy_(theirs.data)  # the same rounded weights
    measure = _Measurement(al.load_qa("popqa-sample", limit=60), args.cells)
    exact = measure.run(ConeEngine(adapt(wide)))
    found = {
        "here on a CPU": measure.run(ConeEngine(adapt(model))),
        "norms in one kernel": _with(measure, model, _fused_norms),
        "scores in half precision": _with(measure, model, _half_scores),
        "all three of a GPU": _with(measure, model, _gpu_kernels),
        "unembedding of one number": _with(measure, model, _one_number),
        "read in half precision": measure.run(ConeEngine(adapt(model)), in_dtype=True),
        "TransformerLens": measure.run(ReferenceEngine(adapt(model)), in_dtype=True),
    }
    print(f"{args.dtype}, {len(exact)} cells; median / largest.\n")
    print("| choices | P | logit difference | KL |")
    print("| --- | ---: | ---: | ---: |")
    for name, logits in found.items():
        print(f"| {name} | {' | '.join(_differences(logits, exact))} |", flush=True)


class _Measurement:
    """Random cells: one row, position and layer each, with the activation of another row."""

    def __init__(self, data: al.QAData, n: int) -> None:
        self.n = n
        self.texts = [example.question for example in data.examples]

    @torch.no_grad()
    def run(self, engine: Any, *, in_dtype: bool = False) -> Float[Tensor, "cell token"]:
        """Return the logits of all cells."""
        adapter = engine.adapter
        model: Any = adapter.model
        rows = [model.tokenizer(f"Q: {text}\nA:")["input_ids"] for text in self.texts]
        generator = torch.Generator().manual_seed(0)
        out: list[Tensor] = []
        while sum(map(len, out)) < self.n:
            order = torch.randperm(len(rows), generator=generator).tolist()
            base, donor = rows[order[0]], rows[order[1]]
            at = int(torch.randint(3, min(len(base), len(donor)), (), generator=generator))
            layers = torch.randperm(adapter.n_layers, generator=generator)[:4].sort().values
            slots = Slots(torch.tensor([[at]]), torch.ones(1, 1, dtype=torch.bool))
            swap = AnchorSwap(anchor="place", control="none", slots=slots, source=slots)
            reader = LogitsReader((len(base) - 1,), in_dtype)
            batch = SwapBatch(pad_rows([base]), reader, (swap,), pad_rows([donor]))
            _, (cells,) = engine.run_swaps(
                batch, site="resid_pre", layers=layers.tolist(), window=1
            )
            out.append(cells.values["logits"])
        return torch.cat(out)[: self.n].double()


def _differences(found: Tensor, exact: Tensor) -> Iterator[str]:
    """Yield median and largest difference of P, logit difference and distribution."""
    first, second = exact.topk(2, dim=-1).indices.T
    cell = torch.arange(len(exact))
    log_p, log_q = exact.log_softmax(-1), found.log_softmax(-1)
    yield _both((log_q[cell, first].exp() - log_p[cell, first].exp()).abs())
    gaps = [logits[cell, first] - logits[cell, second] for logits in (found, exact)]
    yield _both((gaps[0] - gaps[1]).abs())
    yield _both((log_p.exp() * (log_p - log_q)).sum(-1))


def _both(values: Tensor) -> str:
    return f"{float(values.median()):.2g} / {float(values.max()):.2g}"


def _with(
    measure: _Measurement, model: Any, choice: Callable[[ExitStack], None]
) -> Float[Tensor, "cell token"]:
    with ExitStack() as stack:
        choice(stack)
        return measure.run(ConeEngine(adapt(model)))


def _gpu_kernels(stack: ExitStack) -> None:
    """Scores, norms and unembedding as on a GPU."""
    _half_scores(stack)
    _fused_norms(stack)
    _two_numbers(stack)


def _two_numbers(stack: ExitStack) -> None:
    stack.enter_context(mock.patch.object(read, "_has_product", lambda *_: True))
    product = lambda x, weight: x.float() @ weight.float()  # noqa: E731
    stack.enter_context(mock.patch.object(read, "_with_wide_sums", product))


def _half_scores(stack: ExitStack) -> None:
    for module in (cone_attention, cone_pass):
        stack.enter_context(mock.patch.object(module, "wide", lambda heads: heads))


def _fused_norms(stack: ExitStack) -> None:
    stack.enter_context(mock.patch.object(blocks, "has_fused_norms", lambda _: True))


def _one_number(stack: ExitStack) -> None:
    _two_numbers(stack)
    high = lambda x, dtype: (x.to(dtype), torch.zeros_like(x, dtype=dtype))  # noqa: E731
    stack.enter_context(mock.patch.object(read, "split_in_two", high))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    return parser.parse_args()


if __name__ == "__main__":
    main()
