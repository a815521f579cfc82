"""Checks of the tokenizer: BOS and padding."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from anchorlens.diagnosis.case import Case, count_faults, not_applicable
from anchorlens.diagnosis.model_check import WARNING, ModelCheck
from anchorlens.errors import InputError
from anchorlens.models.card import adds_bos, with_bos
from anchorlens.prompts.chat_template import Clock, render_chat

_TEXT = "The capital of France is"
_LONGER = "Q: What is the capital of France?\nA: The capital of France is"
# For templates that write the date; a fixed one, so that a check gives the same result on every
# day.
_ANY_DAY = datetime(2026, 1, 1)


def check_bos(case: Case) -> ModelCheck:
    """Count BOS at the start of tokenized texts, also of a text and of a chat template that begin
    with BOS.
    """
    tokenizer = case.adapter.tokenizer
    model = case.adapter.model
    if tokenizer is None:
        return not_applicable("the model has no tokenizer")
    bos = tokenizer.bos_token_id
    if not isinstance(bos, int):
        return not_applicable("the tokenizer has no BOS token")

    def leading(ids: Sequence[int]) -> int:
        return next((n for n, token in enumerate(ids) if token != bos), len(ids))

    def encode(text: str) -> int:
        out = tokenizer(text, add_special_tokens=False, verbose=False)
        ids: list[int] = list(out["input_ids"])  # pyright: ignore[reportArgumentType]
        return leading(with_bos(tokenizer, ids, add_bos))

    add_bos = adds_bos(tokenizer)
    counts = {
        "the tokenizer": leading(tokenizer(_TEXT)["input_ids"]),  # pyright: ignore
        "model.to_tokens": leading(model.to_tokens(_TEXT)[0].tolist()),
        "a text without BOS": encode(_TEXT),
        "a text with BOS": encode(f"{tokenizer.bos_token}{_TEXT}"),
    }
    if tokenizer.chat_template:
        try:
            chat = render_chat(
                tokenizer, [("user", _TEXT)], Clock(_ANY_DAY), add_generation_prompt=False
            )
            counts["the chat template"] = encode(chat)
        except InputError:
            pass  # a template may refuse a single message of the user
    faults = [f"{name}: BOS {n} times" for name, n in counts.items() if n > 1]
    found = count_faults(
        faults, f"BOS {'once' if add_bos else 'not added; once where the text has it'}"
    )
    if not faults and counts["model.to_tokens"] != counts["the tokenizer"]:
        detail = (
            f"BOS by model.to_tokens: {counts['model.to_tokens']} times; by the tokenizer:"
            f" {counts['the tokenizer']} times"
        )
        return replace(found, status=WARNING, detail=f"{detail}, as in anchorlens")
    return found


def check_padding(case: Case) -> ModelCheck:
    """Check that the tokenizer and ``model.to_tokens`` pad on the right."""
    tokenizer = case.adapter.tokenizer
    model = case.adapter.model
    if tokenizer is None:
        return not_applicable("the model has no tokenizer")
    side = tokenizer.padding_side
    faults = [] if side == "right" else [f"padding_side={side!r}"]
    if not faults and tokenizer.pad_token is not None:
        alone = model.to_tokens(_TEXT)[0]
        together = model.to_tokens([_LONGER, _TEXT])[1]
        if together[: len(alone)].tolist() != alone.tolist():
            faults.append("model.to_tokens moves a row when it pads it")
    return count_faults(faults, f"padding_side={side!r}")
