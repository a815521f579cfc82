"""Small fast tokenizers, trained here on a few sentences: byte-level and sentencepiece-like, with
and without BOS.
"""

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXT = [
    "Q: What is the capital of France?\nA: Paris",
    "Q: Who is the author of War and Peace?\nA: Leo Tolstoy",
    "In what city was Zoë born? São Paulo, 東京 and Kraków, naïve café",
] * 4
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@cache
def small_tokenizer(kind: str, *, bos: bool, chat: bool = False) -> PreTrainedTokenizerFast:
    """``byte`` (byte-level BPE) or ``metaspace`` (sentencepiece-like with byte fallback)."""
    special = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
    if kind == "byte":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=420, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        raw_bytes = [f"<0x{i:02X}>" for i in range(256)]
        trainer = trainers.BpeTrainer(
            vocab_size=480, special_tokens=["<unk>", *special, *raw_bytes], show_progress=False
        )
    tokenizer.train_from_iterator(TEXT, trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = CHAT if chat else None
    return fast


def without_bos() -> PreTrainedTokenizerFast:
    """Tokenizer that names no BOS token."""
    return PreTrainedTokenizerFast(
        tokenizer_object=small_tokenizer("byte", bos=False).backend_tokenizer
    )
