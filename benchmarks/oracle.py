"""How long the oracle engine's forward passes take: milliseconds a row, by batch size, on the packaged model."""

import argparse
import time

import torch

import anchorlens as al
from anchorlens.engine.reference import last_stream
from anchorlens.models.adapter import Adapter
from anchorlens.questions.tokens import TokenBatch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of a row")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    adapter = Adapter(al.load_model(args.model))
    print(
        f"{args.model} on {adapter.device}, {torch.get_num_threads()} threads, {args.tokens} tokens a row; median of {args.repeats}"
    )
    for rows in (1, 4, 16, 64):
        ids = torch.randint(5, 1000, (rows, args.tokens), generator=torch.Generator().manual_seed(0))
        batch = TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool))
        last_stream(adapter, batch)
        times = []
        for _ in range(args.repeats):
            started = time.perf_counter()
            last_stream(adapter, batch)
            times.append(time.perf_counter() - started)
        print(f"  {rows:3d} rows: {1000 * sorted(times)[len(times) // 2] / rows:7.2f} ms a row")


if __name__ == "__main__":
    main()
