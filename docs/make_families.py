"""Write docs/families.md: support for every architecture that TransformerLens 3.9 registers for
HookedTransformer.

    # the column of transformer-lens 4, into docs/families_tl4.json
    .venv-tl4/bin/python docs/make_families.py --bridges
    # the page, with transformer-lens 3.9
    python docs/make_families.py

The script builds a small model of each with random weights and the features of its family
(tests/models/tiny.py), loads it with ``load_model`` and compares it with Hugging Face's model. For
an unsupported architecture it records the error. `make test` fails if the page lacks an
architecture; its slow tier fails if a row differs from the output of this script.
"""

import inspect
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from anchorlens.engine.choose_engine import choose_engine  # noqa: E402
from anchorlens.errors import AnchorlensError  # noqa: E402
from anchorlens.models.load import adapt, load_model  # noqa: E402
from anchorlens.models.source import check_model  # noqa: E402
from tests.models.tiny import FAMILIES, FURTHER_FAMILIES, random_model  # noqa: E402
from tests.tokenizers_small import small_tokenizer  # noqa: E402

if TYPE_CHECKING:
    from anchorlens.models.adapter import LensModel

PAGE = Path(__file__).with_name("families.md")
BRIDGES = Path(__file__).with_name("families_tl4.json")
"""Cells of the column for transformer-lens 4, and its version."""
TINY = FAMILIES | FURTHER_FAMILIES
# Longer than five windows of the small models, and than the original lengths of their scaled ropes.
TOKENS = torch.randint(8, 400, (2, 40), generator=torch.Generator().manual_seed(3))


@dataclass(frozen=True)
class Row:
    """One architecture.

    Attributes:
        architecture: Name in TransformerLens.
        example: Name of a model of this architecture.
        tiny: Small checkpoint that represents it; None if it is not loaded by name.
        own: Fields of a HookedTransformer that TransformerLens trained; it has no Hugging Face
            model.
        config: Makes the config.json of an unsupported model.
    """

    architecture: str
    example: str
    tiny: str | None = None
    own: dict[str, Any] | None = None
    config: Callable[[], PretrainedConfig | dict[str, object]] | None = None


def _mapped(kind: str, example: str, tiny: str | None = None) -> Row:
    return Row(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind], example, tiny or kind)


def _own_code(kind: str, name: str) -> Callable[[], dict[str, object]]:
    return lambda: {
        "model_type": kind,
        "architectures": [name],
        "auto_map": {"AutoModelForCausalLM": f"modeling.{name}"},
    }


ROWS = (
    _mapped("llama", "meta-llama/Llama-3.1-8B"),
    _mapped("mistral", "mistralai/Mistral-7B-v0.1"),
    _mapped("qwen2", "Qwen/Qwen2.5-7B"),
    _mapped("qwen3", "Qwen/Qwen3-8B"),
    _mapped("gemma", "google/gemma-2b"),
    _mapped("gemma2", "google/gemma-2-2b"),
    _mapped("gemma3_text", "google/gemma-3-1b-pt", "gemma3"),
    Row("Gemma3ForConditionalGeneration", "google/gemma-3-4b-pt", "gemma3_multimodal"),
    _mapped("gpt2", "gpt2"),
    _mapped("gpt_neox", "EleutherAI/pythia-1.4b", "neox"),
    _mapped("gptj", "EleutherAI/gpt-j-6B"),
    _mapped("gpt_neo", "EleutherAI/gpt-neo-125M"),
    _mapped("opt", "facebook/opt-125m"),
    _mapped("bloom", "bigscience/bloom-560m"),
    _mapped("phi", "microsoft/phi-2"),
    _mapped("phi3", "microsoft/Phi-3-mini-4k-instruct"),
    _mapped("apertus", "swiss-ai/Apertus-8B-2509"),
    _mapped("mixtral", "mistralai/Mixtral-8x7B-v0.1"),
    _mapped("olmo", "allenai/OLMo-1B-hf"),
    _mapped("olmo2", "allenai/OLMo-2-0425-1B"),
    _mapped("olmo3", "allenai/Olmo-3-1025-7B"),
    _mapped("olmoe", "allenai/OLMoE-1B-7B-0924"),
    _mapped("gpt_oss", "openai/gpt-oss-20b"),
    Row("neel", "NeelNanda/Attn_Only_2L512W_C4_Code", own={"attn_only": True}),
    Row("neel", "NeelNanda/SoLU_1L512W_C4_Code", own={"act_fn": "solu_ln", "d_mlp": 80}),
    Row(
        "neel",
        "ArthurConmy/redwood_attn_2l",
        own={"attn_only": True, "positional_embedding_type": "shortformer"},
    ),
    Row(
        "neel-solu-old",
        "NeelNanda/SoLU_6L_v13_old",
        own={"act_fn": "solu_ln", "d_mlp": 80, "normalization_type": "LNPre"},
    ),
    Row(
        "mingpt",
        "Baidicoot/Othello-GPT-Transformer-Lens",
        own={"act_fn": "gelu", "d_mlp": 80, "normalization_type": "LNPre"},
    ),
    Row(
        "GPT2LMHeadCustomModel",
        "bigcode/santacoder",
        config=_own_code("gpt2", "GPT2LMHeadCustomModel"),
    ),
    Row("QWenLMHeadModel", "Qwen/Qwen-1_8B", config=_own_code("qwen", "QWenLMHeadModel")),
    Row("BertForMaskedLM", "google-bert/bert-base-cased", config=transformers.BertConfig),
    Row("T5ForConditionalGeneration", "google-t5/t5-small", config=transformers.T5Config),
    Row("HubertModel", "facebook/hubert-base-ls960", config=transformers.HubertConfig),
    Row("HubertForCTC", "facebook/hubert-base-ls960", config=transformers.HubertConfig),
    Row("Wav2Vec2Model", "facebook/wav2vec2-base", config=transformers.Wav2Vec2Config),
    Row("Wav2Vec2ForPreTraining", "facebook/wav2vec2-base", config=transformers.Wav2Vec2Config),
)

HEAD = """\
# Families

<!-- written by docs/make_families.py; do not edit -->

`al.load_model` loads the model families below from the hub by name, from a directory that `save_pretrained` wrote, or from a live
Hugging Face model with its tokenizer. A fine-tuned model therefore loads like its base model. For HookedTransformer, anchorlens
maps each family itself (`anchorlens/models/hooked/mapping.py`) and does not use TransformerLens's loader. Every field of the
configuration is mapped, known to change no number, or refused by name. At each load the log-probabilities are compared with
Hugging Face's.

The table has every architecture that TransformerLens {version} registers for HookedTransformer. TransformerBridge has many more: of
those, `load_model` loads the causal language models that have a class in transformers. The rows are made from **small models with
random weights** and the features of the family: windows shorter than the row, scaled rope, grouped queries, soft caps, experts.
The columns are:

- *parity*: the largest difference of a log-probability from Hugging Face's model, in nats, over two rows of 40 tokens and the whole
  vocabulary, in float32.
- *engine*: the engine that measures a sweep ([engine.md](engine.md)): the cone engine, or the reference engine with the reason.
- *loads*, *parity* and *engine* are those of HookedTransformer, with transformer-lens {version}.
- *bridge, {version}* and *bridge, {newest}*: the engine of a TransformerBridge with that version of transformer-lens
  (`load_model(..., backend="bridge")`). All that load have a parity below 1e-3.

Tests compare the two engines for each architecture that loads by name, and for attention-only and SoLU models. SmolLM2 is the only
model that is tested with its published weights.

"""

TAIL = """
*as a live model*: weights that TransformerLens trained. They have no Hugging Face model, so there is no parity, and the name is
refused. Load such a model with `HookedTransformer.from_pretrained` and pass it to `load_model`. The row is made from a small
HookedTransformer of that kind.

*no*: `load_model` raises an `UnsupportedModelError` ([errors.md](errors.md)). The code is not in transformers, or the model is not a
causal language model.

gpt-oss is published with its experts in four bits (MXFP4); they are unpacked when they are read. `.gguf` files are supported for
these families: {gguf}.

These variants are refused by name, because a HookedTransformer or its converter does not support them:

- rope of a type other than `default`, `linear`, `llama3` or `yarn` (for example `longrope`, as in Phi-3 with 128k tokens);
- OPT with norms after its blocks or a narrower embedding (opt-350m);
- grouped queries in Phi 1 to 2 and OLMo 1;
- norms of queries and keys in Phi;
- biases in Llama's MLP;
- quantised weights other than the above.

Families without a row (Falcon, MPT, Cohere, Granite, Qwen 3 MoE, Llama 4, ...) are not mapped onto HookedTransformer. Many of them
load as a bridge. The cone engine or the reference engine then measures a swap; a knockout is refused where hooks of the bridge
cannot change the attention, and in recurrent layers.
"""


def registered() -> set[str]:
    """Return the architectures that TransformerLens registers for HookedTransformer, from the
    source of its loader.
    """
    from transformer_lens import loading_from_pretrained

    source = inspect.getsource(loading_from_pretrained)
    named = set(re.findall(r'architecture == "([\w-]+)"', source))
    # The architecture of the models that TransformerLens trained is a default there.
    return named | set(re.findall(r'"architecture", "([\w-]+)" if', source))


def page() -> str:
    """Return the whole page."""
    from anchorlens.models.gguf_audit import ARCHITECTURES as GGUF

    other = json.loads(BRIDGES.read_text(encoding="utf8"))
    here, newest = version("transformer-lens"), other["version"]
    names = (
        "architecture",
        "for example",
        "loads",
        "parity",
        "engine",
        f"bridge, {here}",
        f"bridge, {newest}",
    )
    lines = ["| " + " | ".join(names) + " |", "| --- " * len(names) + "|"]
    lines += [
        line(row, bridges, theirs)
        for row, bridges, theirs in zip(ROWS, bridge_cells(), other["bridges"], strict=True)
    ]
    gguf = ", ".join(GGUF[:-1]) + f" and {GGUF[-1]}"
    return (
        HEAD.format(version=here, newest=newest) + "\n".join(lines) + "\n" + TAIL.format(gguf=gguf)
    )


def line(row: Row, *bridges: str) -> str:
    """Return one row of the table."""
    return "| " + " | ".join([row.architecture, f"`{row.example}`", *outcome(row), *bridges]) + " |"


def bridge_cells() -> list[str]:
    """Return the cell of each row for bridges of the installed version."""
    return [bridge_cell(row) for row in ROWS]


def bridge_cell(row: Row) -> str:
    """Return the engine of a bridge, or why there is none; "" for models without a Hugging Face
    model.
    """
    if row.tiny is None:
        return ""
    try:
        model = load_model(
            random_model(TINY[row.tiny]()),
            device="cpu",
            tokenizer=small_tokenizer("byte", bos=False),
            backend="bridge",
        )
    except AnchorlensError as error:
        return f"no: {error}"
    return engine_of(model)


def outcome(row: Row) -> tuple[str, str, str]:
    """Return whether it loads (or why not), parity, and engine."""
    if row.config is not None:
        return f"no: {refusal(row.config())}", "", ""
    if row.own is not None:
        try:
            check_model(row.example)
        except AnchorlensError:
            return "as a live model", "", engine_of(hooked(row.architecture, row.own))
        raise AssertionError(f"{row.example} loads by name: its row says that it does not")
    assert row.tiny is not None
    live = random_model(TINY[row.tiny]())
    assert type(live).__name__ == row.architecture
    model = load_model(
        live, device="cpu", tokenizer=small_tokenizer("byte", bos=False), backend="hooked"
    )
    with torch.no_grad():
        gap = (
            (model(TOKENS).log_softmax(-1) - live(input_ids=TOKENS).logits.log_softmax(-1))
            .abs()
            .max()
        )
    return "yes", f"{float(gap):.0e}", engine_of(model)


def refusal(config: "PretrainedConfig | dict[str, object]") -> str:
    """Return the error message of check_model for a directory with this configuration."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model"
        path.mkdir()
        if isinstance(config, dict):
            (path / "config.json").write_text(json.dumps(config), encoding="utf8")
        else:
            config.save_pretrained(path)
        try:
            check_model(path)
        except AnchorlensError as error:
            return re.split(r"\. |; ", str(error).removeprefix("model: "))[0]
    raise AssertionError(f"{config} is not refused: its row says that it is")


def hooked(architecture: str, fields: dict[str, Any]) -> "LensModel":
    """Make a small live HookedTransformer with these fields."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    sizes: dict[str, Any] = {
        "n_layers": 3,
        "d_model": 48,
        "n_heads": 4,
        "d_head": 12,
        "n_ctx": 64,
        "d_vocab": 420,
        "seed": 0,
    }
    sizes |= {"act_fn": "gelu", "original_architecture": architecture} | fields
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer", DeprecationWarning)
        return load_model(
            HookedTransformer(HookedTransformerConfig(**sizes)),
            tokenizer=small_tokenizer("byte", bos=False),
        )


def engine_of(model: "LensModel") -> str:
    """Return the engine of a sweep of this model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = choose_engine(adapt(model), "cone", TOKENS[0].tolist())
    return engine.name + (f": {engine.reason}" if engine.reason else "")


if __name__ == "__main__" and sys.argv[1:] == ["--bridges"]:
    cells = {"version": version("transformer-lens"), "bridges": bridge_cells()}
    BRIDGES.write_text(json.dumps(cells, indent=1) + "\n", encoding="utf8")
elif __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf8")
