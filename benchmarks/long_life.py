"""Measure memory, open files and threads of one process over many sweeps.

    OMP_NUM_THREADS=1 python benchmarks/long_life.py --sweeps 100

A small random Llama. Each round is a swap sweep that writes a run directory, which is loaded again,
a swap with the chat template, a patch sweep of pairs, and a patch by the drop-in for
``transformer_lens.patching``. Memory is resident anonymous memory after a collection.
"""

import argparse
import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

SWAP = {"n_donors": 1, "align": "last", "donors": "random", "n_resamples": 20, "n_spot_checks": 1}
CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def live(folder: Path, n_sweeps: int, every: int) -> Iterator[dict[str, Any]]:
    """Yield the state of this process before the first sweep and after every ``every`` sweeps, in
    rounds of four.
    """
    import anchorlens as al
    from anchorlens import patching
    from tests.engine.memory import settled
    from tests.models.tiny import save_tiny

    save_tiny("llama", folder / "llama")
    model = al.load_model(folder / "llama", device="cpu", progress=False)
    assert model.tokenizer is not None
    model.tokenizer.chat_template = CHAT
    data = al.load_qa("popqa-sample", limit=3)
    pairs = al.load_pairs(
        [
            {"clean": "The sky is", "corrupted": "The sea is", "answer": " a", "wrong": " b"},
            {"clean": "My cat is", "corrupted": "My dog is", "answer": " b", "wrong": " a"},
        ]
    )
    tokens = model.to_tokens("The sea is")
    _, cache = model.run_with_cache(model.to_tokens("The sky is"))
    process = psutil.Process()
    for done in range(0, n_sweeps + 4, 4):
        if done % every == 0:
            yield {
                "sweeps": done,
                "MB": settled() / 1e6,
                "files": process.num_fds(),
                "threads": process.num_threads(),
            }
        options: dict[str, Any] = {**SWAP, "seed": done % 7, "progress": False}
        out = folder / "run"
        al.swap_sweep(model, data, out=out, **options)
        (stored,) = al.load_run(out)
        stored.samples()
        shutil.rmtree(out)
        al.swap_sweep(model, data, prompt="chat", **options)
        al.patch_sweep(model, pairs, progress=False, n_spot_checks=1, n_resamples=20)
        patching.get_act_patch_resid_pre(
            model, tokens, cache, lambda logits: logits[0, -1, 5] - logits[0, -1, 6]
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory, files and threads over many sweeps.")
    parser.add_argument("--sweeps", type=int, default=100, help="a multiple of 4")
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for state in live(Path(folder), args.sweeps, args.every):
            found.append(state)
            if not args.json:
                print(
                    f"{state['sweeps']:4} sweeps: {state['MB']:7.1f} MB,"
                    f" {state['files']} files, {state['threads']} threads",
                    flush=True,
                )
    if args.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
