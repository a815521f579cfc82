"""A Hugging Face model without its weights, through which one layer at a time is converted to a HookedTransformer's.

The converters (:mod:`anchorlens.models.weights`) get a model with a single layer, whose parameters are views of the files. Experts
are stored one by one and joined as transformers does.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformer_lens import HookedTransformerConfig
from transformers import AutoModelForCausalLM, Gemma3ForConditionalGeneration, PretrainedConfig, PreTrainedModel

from anchorlens.errors import CheckpointError, InputError
from anchorlens.models.hf import weight_files
from anchorlens.models.mapping import text_config
from anchorlens.models.weight_files import Shards
from anchorlens.models.weights import convert_weights, count_parameters, language_model

# Gemma 3's multimodal checkpoints have another order of names, GPT-NeoX's the former name of the head.
_RENAMED = (
    ("model.language_model.", "language_model.model."),
    ("lm_head.", "language_model.lm_head."),
    ("lm_head.", "embed_out."),
)
# Mixtral's router; and what transformers joins: parameter of all experts -> matrices of each, one below the other.
_ROUTER = (".mlp.gate.", ".block_sparse_moe.gate.")
_EXPERTS = {
    ".mlp.experts.gate_up_proj": (
        (".block_sparse_moe.experts.{}.w1.weight", ".block_sparse_moe.experts.{}.w3.weight"),
        (".mlp.experts.{}.gate_proj.weight", ".mlp.experts.{}.up_proj.weight"),
    ),
    ".mlp.experts.down_proj": ((".block_sparse_moe.experts.{}.w2.weight",), (".mlp.experts.{}.down_proj.weight",)),
}


class LayerLoader:
    """A checkpoint's Hugging Face model with parameters on ``meta``, and its safetensors files."""

    def __init__(self, directory: Path, config: PretrainedConfig, dtype: torch.dtype) -> None:
        files = weight_files(directory)
        if any(path.suffix != ".safetensors" for path in files):
            raise InputError(
                f"stream=True reads safetensors, and the weights in {directory} are {files[0].suffix} files. Load it once without "
                "stream and save it again with save_pretrained, or leave stream out."
            )
        self.model, self.files, self.dtype = make_empty_model(config, dtype), Shards(files), dtype
        self.n_params = count_parameters(self.model)
        own = {id(parameter) for parameter in language_model(self.model).parameters()}
        head: Any = self.model.get_output_embeddings()
        own |= {id(parameter) for parameter in head.parameters()}
        wanted = {key: parameter for key, parameter in self.model.named_parameters() if id(parameter) in own}
        name, layers = _layers(self.model, int(text_config(config).num_hidden_layers))
        self.layers, self.n_layers = layers, len(layers)
        found = _match_tensors(wanted, self.files, self.model, str(directory))
        # Parameter -> tensors in the files, of each layer by its name in the layer, and of the rest.
        self._of_layer: list[dict[str, tuple[str, ...]]] = [{} for _ in layers]
        self._of_ends: dict[str, str] = {}
        # The last norm: Gemma's converter makes ones of its shape in every layer.
        self._vectors: dict[str, Tensor] = {}
        for key, tensors in found.items():
            if key.startswith(f"{name}."):
                index, _, inner = key.removeprefix(f"{name}.").partition(".")
                self._of_layer[int(index)][inner] = tensors
            else:
                (self._of_ends[key],) = tensors

    @property
    def joined_bytes(self) -> int:
        """Bytes of the largest parameter that is joined of several tensors; 0 without."""
        first = self.layers[0]
        joined = [first.get_parameter(inner).numel() for inner, tensors in self._of_layer[0].items() if len(tensors) > 1]
        return max(joined, default=0) * self.dtype.itemsize

    def read_layer(self, layer: int) -> dict[str, list[Tensor]]:
        """Read a layer's weights by their names in the layer; of experts the matrices of all of them."""
        names = self._of_layer[layer]
        read = self.files.read(tensor for tensors in names.values() for tensor in tensors)
        return {inner: [read[tensor] for tensor in tensors] for inner, tensors in names.items()}

    def join(self, read: Mapping[str, Sequence[Tensor]], placed: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Join the result of :meth:`read_layer` to one tensor for each parameter, after each part was ``placed``."""
        whole: dict[str, Tensor] = {}
        for inner, parts in read.items():
            there = [placed(part) for part in parts]
            whole[inner] = there[0] if len(there) == 1 else torch.cat(there).view(self.layers[0].get_parameter(inner).shape)
        return whole

    def read_ends(self) -> dict[str, Tensor]:
        """Read embeddings, last norm and untied head, by their names in the model."""
        read = self.files.read(self._of_ends.values())
        return {key: read[tensor] for key, tensor in self._of_ends.items()}

    def layer_state(self, weights: Mapping[str, Tensor], cfg: HookedTransformerConfig) -> dict[str, Tensor]:
        """Convert one layer to TransformerLens's names in a block; after :meth:`shorten`, in one thread at a time."""
        with substitute_parameters(self.model, self._vectors), substitute_parameters(self.layers[0], weights):
            state = convert_weights(self.model, _of_depth(cfg, 1), str(cfg.device))
        return {name.removeprefix("blocks.0."): tensor for name, tensor in state.items() if name.startswith("blocks.0.")}

    def ends_state(self, weights: Mapping[str, Tensor], cfg: HookedTransformerConfig) -> dict[str, Tensor]:
        """Convert the parameters outside the layers to TransformerLens's names."""
        self._vectors = {name: tensor for name, tensor in weights.items() if tensor.ndim < 2}
        with self._with_ends(weights):
            state = convert_weights(self.model, _of_depth(cfg, 0), str(cfg.device))
        return {name: tensor for name, tensor in state.items() if not name.startswith("blocks.")}

    def shorten(self) -> None:
        """Keep the first layer only, as the place for each layer in turn."""
        del self.layers[1:]

    @contextmanager
    def _with_ends(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        with substitute_parameters(self.model, weights):
            head: Any = self.model.get_output_embeddings()
            tied, before = head.weight.is_meta, head.weight
            if tied:
                head.weight = self.model.get_input_embeddings().weight
            try:
                yield
            finally:
                if tied:
                    head.weight = before

    @contextmanager
    def all_weights(self) -> Iterator[None]:
        """Give the model all its weights on the CPU, each layer's while it runs; only before :meth:`shorten`."""

        def run(layer: nn.Module, index: int, *args: Any, **named: Any) -> Any:
            with substitute_parameters(layer, self.join(self.read_layer(index), lambda tensor: tensor.to(self.dtype))):
                return type(layer).forward(layer, *args, **named)

        for index, layer in enumerate(self.layers):
            layer.forward = partial(run, layer, index)
        try:
            with self._with_ends({name: tensor.to(self.dtype) for name, tensor in self.read_ends().items()}):
                yield
        finally:
            for layer in self.layers:
                del layer.forward


@contextmanager
def substitute_parameters(module: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Replace parameters of a module in a ``with`` block; buffers of these names are overwritten."""
    buffers = dict(module.named_buffers())
    before = {name: module.get_parameter(name) for name in weights if name not in buffers}
    for name in weights.keys() & buffers.keys():
        buffers[name].copy_(weights[name])
    try:
        for name in before:
            set_parameter(module, name, nn.Parameter(weights[name], requires_grad=False))
        yield
    finally:
        for name, parameter in before.items():
            set_parameter(module, name, parameter)


def set_parameter(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Replace one parameter of a module, by its full name."""
    owner, _, leaf = name.rpartition(".")
    module.get_submodule(owner)._parameters[leaf] = parameter


def _of_depth(cfg: HookedTransformerConfig, n_layers: int) -> HookedTransformerConfig:
    one = copy.copy(cfg)
    one.n_layers = n_layers
    return one


def make_empty_model(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Make the model as ``from_pretrained`` does, with real buffers and parameters on ``meta``."""
    with torch.random.fork_rng(devices=[]), init_empty_weights(include_buffers=False):
        if config.model_type == "gemma3":
            model: Any = Gemma3ForConditionalGeneration._from_config(config, dtype=dtype, attn_implementation="eager")
        else:
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    if text_config(config).tie_word_embeddings:
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
    return model.eval().requires_grad_(False)


def _layers(model: PreTrainedModel, n_layers: int) -> tuple[str, nn.ModuleList]:
    """Return the name of the language model's list of layers, which differs between families, and the list."""
    inside = language_model(model)
    layers = next(m for m in inside.modules() if isinstance(m, nn.ModuleList) and len(m) == n_layers)
    return next(name for name, module in model.named_modules() if module is layers), layers


def _match_tensors(
    wanted: Mapping[str, Tensor], files: Shards, model: PreTrainedModel, shown: str
) -> dict[str, tuple[str, ...]]:
    """Return parameter -> tensors in the files, whose names may have the base model's prefix, or lack it."""
    prefix = f"{model.base_model_prefix}."
    found: dict[str, tuple[str, ...]] = {}
    for key, parameter in wanted.items():
        names = [key, key.removeprefix(prefix), prefix + key]
        names += [theirs + key.removeprefix(ours) for ours, theirs in _RENAMED if key.startswith(ours)]
        names += [key.replace(*_ROUTER)]
        every = [(name,) for name in names] + _parts(key, parameter)
        tensors = next((some for some in every if all(one in files.shapes for one in some)), None)
        if tensors is None:
            raise InputError(
                f"{shown} cannot be streamed: its files hold no tensor {key!r}. Either its weights are unpacked when they are "
                "loaded (quantised ones), or weights are missing. Leave stream out."
            )
        shape = tuple(parameter.shape)
        if len(tensors) > 1:  # experts: each its share of the second axis
            shape = (shape[0] * shape[1] // len(tensors), *shape[2:])
        for name in tensors:
            if files.shapes[name] != shape:
                raise CheckpointError(
                    f"{name} has shape {files.shapes[name]}, the configuration says {shape}. Fetch {shown} again."
                )
        found[key] = tensors
    return found


def _parts(key: str, parameter: Tensor) -> list[tuple[str, ...]]:
    """Return the possible names of the tensors of a parameter of experts; none for other parameters."""
    ours = next((name for name in _EXPERTS if key.endswith(name)), None)
    if ours is None:
        return []
    layer = key.removesuffix(ours)
    return [
        tuple(layer + name.format(expert) for expert in range(len(parameter)) for name in names) for names in _EXPERTS[ours]
    ]
