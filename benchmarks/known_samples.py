"""How many questions of the embedded samples a model answers correctly, under greedy decoding with the ``qa`` prompt.

    python benchmarks/known_samples.py path/to/SmolLM2-135M-Instruct
    python benchmarks/known_samples.py path/to/checkpoint --gguf-file model.gguf --shots 4

It stands on transformers alone, so that it can be held against the package's own way of finding known questions. Right: a gold
alias occurs in the first line of the output as whole words, case and punctuation aside. Two stricter counts stand beside it:
``direct``, the output begins with the alias (a small or absent article aside), and, for HotpotQA's comparisons, ``both orders``, the
pairs of which the model finds the right side whichever is named first, the wrong one not being named before it.
"""

import argparse
import json
import random
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from anchorlens.questions.example import normalise

SETS = ("popqa", "triviaqa", "hotpotqa", "nq")


@dataclass(frozen=True)
class Row:
    """One question, its gold aliases, and the kind under which it is counted."""

    question: str
    answers: tuple[str, ...]
    kind: str


def read_rows(name: str) -> list[Row]:
    """The rows of one embedded sample."""
    text = resources.files("anchorlens.questions").joinpath("samples").joinpath(f"{name}.jsonl").read_text(encoding="utf8")
    return [read_row(json.loads(line)) for line in text.splitlines()]


def read_row(raw: dict[str, Any]) -> Row:
    """One row of any of the four schemas."""
    if "prop" in raw:
        return Row(raw["question"], tuple(json.loads(raw["possible_answers"])), raw["prop"])
    answer = raw["answer"]
    if isinstance(answer, dict):
        return Row(raw["question"], (answer["value"], *answer["aliases"]), "all")
    return Row(raw["question"], (answer,) if isinstance(answer, str) else tuple(answer), raw.get("type", "all"))


def prompt(question: str, shots: list[Row]) -> str:
    """The ``qa`` prompt, after answered questions of the same form."""
    return "".join(f"Q: {s.question}\nA: {s.answers[0]}\n\n" for s in shots) + f"Q: {question}\nA:"


def first_lines(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: list[str], batch_size: int, new_tokens: int
) -> list[str]:
    """The first line of each greedy output. Prompts of like length share a batch, padded on the left."""
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    lines = [""] * len(prompts)
    for start in range(0, len(order), batch_size):
        picked = order[start : start + batch_size]
        batch = tokenizer([prompts[i] for i in picked], return_tensors="pt", padding=True)
        ids, mask = torch.as_tensor(batch["input_ids"]), torch.as_tensor(batch["attention_mask"])
        with torch.inference_mode():
            out = model.generate(  # pyright: ignore[reportCallIssue]
                input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=new_tokens
            )
        for i, text in zip(picked, tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True), strict=True):
            lines[i] = text.split("\n")[0]
    return lines


def place(text: str, answers: tuple[str, ...]) -> int | None:
    """Where the first gold alias begins in the normalised text; None where there is none."""
    padded = f" {normalise(text)} "
    found = [padded.find(f" {normalise(answer)} ") for answer in answers]
    return min((at for at in found if at >= 0), default=None)


def is_direct(text: str, answers: tuple[str, ...]) -> bool:
    """Whether the output begins with a gold alias, an article aside."""
    plain = normalise(text)
    for article in ("the ", "a ", "an "):
        plain = plain.removeprefix(article)
    return place(plain, answers) == 0


def both_orders(rows: list[Row], lines: list[str]) -> tuple[int, int]:
    """Comparisons that are answered rightly in both orders, and all that stand there in both."""
    right: dict[frozenset[str], list[bool]] = {}
    for row, line in zip(rows, lines, strict=True):
        if row.kind == "comparison":
            first, second = row.question.rstrip("?").rsplit(", ", 1)[1].split(" or ", 1)
            other = first if place(second, row.answers) is not None else second
            gold, wrong = place(line, row.answers), place(line, (other, other.split(" ", 1)[-1]))
            key = frozenset({first, second, row.question.split(",")[0]})
            right.setdefault(key, []).append(gold is not None and (wrong is None or gold < wrong))
    return sum(len(v) == 2 and all(v) for v in right.values()), sum(len(v) == 2 for v in right.values())


def main() -> None:
    """Print one line per set, then known and all rows of each kind."""
    parser = argparse.ArgumentParser(description="Known questions of the embedded samples.")
    parser.add_argument("model", help="local directory or hub name of a causal language model")
    parser.add_argument("--gguf-file", help="name of a GGUF file inside it")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--shots", type=int, default=0, help="answered questions before each; these rows are not counted")
    parser.add_argument("--seed", type=int, default=0, help="draws the shots")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=12)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model, gguf_file=args.gguf_file)
    model = AutoModelForCausalLM.from_pretrained(args.model, gguf_file=args.gguf_file, dtype=torch.float32).eval()
    for name in args.sets:
        rows = read_rows(name)
        shots = random.Random(f"{args.seed}:shots").sample(rows, args.shots)
        rows = [row for row in rows if row not in shots]
        prompts = [prompt(row.question, shots) for row in rows]
        lines = first_lines(model, tokenizer, prompts, args.batch_size, args.new_tokens)
        known = [place(line, row.answers) is not None for row, line in zip(rows, lines, strict=True)]
        direct = sum(is_direct(line, row.answers) for row, line in zip(rows, lines, strict=True))
        print(f"{name}: {len(rows)} rows, {sum(known)} known, {direct} of them direct; {args.shots} shots")
        total, hits = Counter(row.kind for row in rows), Counter(row.kind for row, hit in zip(rows, known, strict=True) if hit)
        print("  " + ", ".join(f"{kind} {hits[kind]}/{n}" for kind, n in total.items()))
        if any(row.kind == "comparison" for row in rows):
            print("  comparisons right in both orders: {} of {} pairs".format(*both_orders(rows, lines)))


if __name__ == "__main__":
    main()
