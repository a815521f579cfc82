"""Compare batched generation of answers with Hugging Face's ``generate``, one question at a time:
speed and equal texts.

Questions of the embedded PopQA sample, on the packaged model, with the prompts ``qa`` and
``fewshot(4)``. Both decode greedily with a key-value cache and stop at the end of the first line,
at an end token, or after 16 tokens. Rounds alternate between the two; medians are printed.
"""

import argparse
import statistics
import time
from typing import Any

import torch
import transformers

import anchorlens as al
from anchorlens.models.checkpoint import DEMO, fetch_packaged_model
from anchorlens.models.load import adapt
from anchorlens.probing.model_answers import generate_answers
from anchorlens.questions.prompts import make_prompt
from anchorlens.questions.tokens import RowTokenizer

MAX_NEW_TOKENS = 16


class FirstLine(transformers.StoppingCriteria):
    """Stops at the end of the first non-empty line."""

    def __init__(self, tokenizer: Any, prompt_length: int) -> None:
        self.tokenizer, self.prompt_length = tokenizer, prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:  # noqa: ARG002
        text = self.tokenizer.decode(input_ids[0, self.prompt_length :], skip_special_tokens=True)
        return torch.tensor(["\n" in text.lstrip()])


def one_by_one(model: Any, tokenizer: Any, prompts: list[list[int]]) -> list[str]:
    """Generate answers with Hugging Face's ``generate``, one question at a time."""
    texts = []
    for ids in prompts:
        given = torch.tensor([ids])
        out = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
            stopping_criteria=[FirstLine(tokenizer, len(ids))],
        )
        texts.append(tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True))
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--batch-size", type=int, help="rows per batch (default: chosen by the package)"
    )
    parser.add_argument(
        "--attention",
        default="sdpa",
        choices=("sdpa", "eager"),
        help="attention of the Hugging Face model",
    )
    args = parser.parse_args()
    adapter = adapt(al.load_model(DEMO.name, device="cpu"))
    hf = transformers.AutoModelForCausalLM.from_pretrained(
        fetch_packaged_model(DEMO), dtype=torch.float32, attn_implementation=args.attention
    ).eval()
    data = al.load_qa("popqa-sample", limit=args.questions)
    print(
        f"{len(data.examples)} questions, {torch.get_num_threads()} threads, Hugging Face"
        f" {args.attention}"
    )
    for name in ("qa", "fewshot(4)"):
        tokenizer = RowTokenizer(
            adapter.model.tokenizer, make_prompt(name, data.examples, data.pool, 0)
        )
        prompts = [tokenizer.prompt_ids(example.question) for example in data.examples]
        theirs, ours, seconds = [], [], ([], [])
        for _ in range(args.rounds):
            started = time.process_time()
            theirs = one_by_one(hf, tokenizer.tokenizer, prompts)
            between = time.process_time()
            answers = generate_answers(
                adapter,
                data.examples,
                tokenizer,
                max_new_tokens=MAX_NEW_TOKENS,
                batch_size=args.batch_size,
            )
            seconds[0].append(between - started)
            seconds[1].append(time.process_time() - between)
            ours = [text for _, text in answers]
        alone, batched = (
            f"{statistics.median(each):.2f} ({min(each):.2f}–{max(each):.2f})" for each in seconds
        )
        ratio = statistics.median(one / other for one, other in zip(*seconds, strict=True))
        same = sum(a == b for a, b in zip(theirs, ours, strict=True))
        print(
            f"{name:10s} one by one {alone}, in batches {batched} CPU s: {ratio:.1f} times as fast;"
            f" {same} of {len(prompts)} texts the same"
        )


if __name__ == "__main__":
    main()
