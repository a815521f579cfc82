"""Convert a checkpoint to a HookedTransformer layer by layer, through a Hugging Face model without
weights.

The converters (:mod:`anchorlens.models.hooked.weights`) get a model of one layer, whose parameters
are views of the files. Experts that are stored separately are concatenated as in transformers.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens import HookedTransformerConfig
from transformers import PretrainedConfig, PreTrainedModel

from anchorlens.errors import CheckpointError, InputError
from anchorlens.models.hf import weight_files
from anchorlens.models.hf_model import (
    count_parameters,
    language_model,
    make_empty_model,
    text_config,
)
from anchorlens.models.hooked.weight_files import WeightFiles
from anchorlens.models.hooked.weights import convert_weights

# (name in transformers, name in the files): Gemma 3's multimodal checkpoints, and GPT-NeoX's head.
_RENAMED = (
    ("model.language_model.", "language_model.model."),
    ("lm_head.", "language_model.lm_head."),
    ("lm_head.", "embed_out."),
)
# Mixtral's router; parameter of all experts -> names of the matrices of one expert, which are
# concatenated.
_ROUTER = (".mlp.gate.", ".block_sparse_moe.gate.")
_EXPERTS = {
    ".mlp.experts.gate_up_proj": (
        (".block_sparse_moe.experts.{}.w1.weight", ".block_sparse_moe.experts.{}.w3.weight"),
        (".mlp.experts.{}.gate_proj.weight", ".mlp.experts.{}.up_proj.weight"),
    ),
    ".mlp.experts.down_proj": (
        (".block_sparse_moe.experts.{}.w2.weight",),
        (".mlp.experts.{}.down_proj.weight",),
    ),
}


class LayerLoader:
    """Reader of a checkpoint's layers: its Hugging Face model with parameters on ``meta``, and its
    safetensors files.
    """

    def __init__(self, directory: Path, config: PretrainedConfig, dtype: torch.dtype) -> None:
        files = weight_files(directory)
        if any(path.suffix != ".safetensors" for path in files):
            raise InputError(
                f"stream=True: reads safetensors, but the weights in {directory} are"
                f" {files[0].suffix} files. Load the model once without stream and save it again"
                " with save_pretrained, or leave stream out.",
                argument="stream",
            )
        self.model = make_empty_model(config, dtype)
        self.files = WeightFiles(files)
        self.dtype = dtype
        self.n_params = count_parameters(self.model)
        head: Any = self.model.get_output_embeddings()
        parts = (*language_model(self.model).parameters(), *head.parameters())
        wanted_ids = set(map(id, parts))
        named = self.model.named_parameters()
        wanted = {key: parameter for key, parameter in named if id(parameter) in wanted_ids}
        name, layers = _layers(self.model, int(text_config(config).num_hidden_layers))
        self.layers = layers
        self.n_layers = len(layers)
        tensors_of = _match_tensors(wanted, self.files, self.model, str(directory))
        # Parameter -> tensors in the files: for each layer, by name in the layer; and outside the
        # layers.
        self._of_layer: list[dict[str, tuple[str, ...]]] = [{} for _ in layers]
        self._of_ends: dict[str, str] = {}
        # The final norm, whose shape Gemma's converter needs in every layer.
        self._vectors: dict[str, Tensor] = {}
        for key, tensors in tensors_of.items():
            if key.startswith(f"{name}."):
                index, _, inner = key.removeprefix(f"{name}.").partition(".")
                self._of_layer[int(index)][inner] = tensors
            else:
                (self._of_ends[key],) = tensors

    @property
    def joined_bytes(self) -> int:
        """Bytes of the largest parameter that is concatenated from several tensors; 0 if there is
        none.
        """
        largest = 0
        for inner, tensors in self._of_layer[0].items():
            if len(tensors) > 1:
                largest = max(largest, self.layers[0].get_parameter(inner).numel())
        return largest * self.dtype.itemsize

    def read_layer(self, layer: int) -> dict[str, list[Tensor]]:
        """Return the tensors of a layer by name in the layer.

        The matrices of experts have several tensors, other parameters have one.
        """
        names = self._of_layer[layer]
        read = self.files.read(chain.from_iterable(names.values()))
        by_name: dict[str, list[Tensor]] = {}
        for inner, stored in names.items():
            own = [read[name] for name in stored]
            by_name[inner] = own
        return by_name

    def join(
        self, read: Mapping[str, Sequence[Tensor]], move: Callable[[Tensor], Tensor]
    ) -> dict[str, Tensor]:
        """Concatenate the result of :meth:`read_layer` to one tensor per parameter, after ``move``
        of each part.
        """
        whole: dict[str, Tensor] = {}
        for inner, parts in read.items():
            moved = [move(part) for part in parts]
            if len(moved) == 1:
                whole[inner] = moved[0]
            else:
                shape = self.layers[0].get_parameter(inner).shape
                whole[inner] = torch.cat(moved).view(shape)
        return whole

    def read_ends(self) -> dict[str, Tensor]:
        """Return name in the model -> tensor of embeddings, final norm and untied head."""
        read = self.files.read(self._of_ends.values())
        return {key: read[tensor] for key, tensor in self._of_ends.items()}

    def layer_state(
        self, weights: Mapping[str, Tensor], cfg: HookedTransformerConfig
    ) -> dict[str, Tensor]:
        """Convert one layer to TransformerLens's names in a block; only after :meth:`shorten`, and
        not thread-safe.
        """
        with (
            substitute_parameters(self.model, self._vectors),
            substitute_parameters(self.layers[0], weights),
        ):
            state = convert_weights(self.model, _of_depth(cfg, 1), str(cfg.device))
        prefix = "blocks.0."
        inside = {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
        return {name.removeprefix(prefix): tensor for name, tensor in inside.items()}

    def ends_state(
        self, weights: Mapping[str, Tensor], cfg: HookedTransformerConfig
    ) -> dict[str, Tensor]:
        """Convert the parameters outside the layers to TransformerLens's names."""
        self._vectors = {name: tensor for name, tensor in weights.items() if tensor.ndim < 2}
        with self._with_ends(weights):
            state = convert_weights(self.model, _of_depth(cfg, 0), str(cfg.device))
        return {name: tensor for name, tensor in state.items() if not name.startswith("blocks.")}

    def shorten(self) -> None:
        """Remove all layers of the model but the first, into which each layer is loaded in turn."""
        del self.layers[1:]

    @contextmanager
    def _with_ends(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        with substitute_parameters(self.model, weights):
            head: Any = self.model.get_output_embeddings()
            tied = head.weight.is_meta
            before = head.weight
            if tied:
                head.weight = self.model.get_input_embeddings().weight
            try:
                yield
            finally:
                if tied:
                    head.weight = before

    @contextmanager
    def all_weights(self) -> Iterator[None]:
        """Load the weights on the CPU in a ``with`` statement, each layer's while it runs; only
        before :meth:`shorten`.
        """

        def run(layer: nn.Module, index: int, *args: Any, **named: Any) -> Any:
            read = self.join(self.read_layer(index), lambda tensor: tensor.to(self.dtype))
            with substitute_parameters(layer, read):
                return type(layer).forward(layer, *args, **named)

        for index, layer in enumerate(self.layers):
            layer.forward = partial(run, layer, index)
        try:
            ends = {name: tensor.to(self.dtype) for name, tensor in self.read_ends().items()}
            with self._with_ends(ends):
                yield
        finally:
            for layer in self.layers:
                del layer.forward


@contextmanager
def substitute_parameters(module: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Replace parameters of a module during a ``with`` statement; buffers with these names are
    overwritten.
    """
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
    """Set a parameter of a module by its full name."""
    owner, _, leaf = name.rpartition(".")
    module.get_submodule(owner)._parameters[leaf] = parameter


def _of_depth(cfg: HookedTransformerConfig, n_layers: int) -> HookedTransformerConfig:
    changed = copy.copy(cfg)
    changed.n_layers = n_layers
    return changed


def _layers(model: PreTrainedModel, n_layers: int) -> tuple[str, nn.ModuleList]:
    """Return the name and the list of the language model's layers."""
    inside = language_model(model)
    lists = (module for module in inside.modules() if isinstance(module, nn.ModuleList))
    layers = next(module for module in lists if len(module) == n_layers)
    return next(name for name, module in model.named_modules() if module is layers), layers


def _match_tensors(
    wanted: Mapping[str, Tensor], files: WeightFiles, model: PreTrainedModel, shown: str
) -> dict[str, tuple[str, ...]]:
    """Return parameter -> names of its tensors in the files, with or without the base model's
    prefix; check their shapes.
    """
    prefix = f"{model.base_model_prefix}."
    tensors_of: dict[str, tuple[str, ...]] = {}
    for key, parameter in wanted.items():
        names = [key, key.removeprefix(prefix), prefix + key]
        for ours, theirs in _RENAMED:
            if key.startswith(ours):
                names.append(theirs + key.removeprefix(ours))
        names.append(key.replace(*_ROUTER))
        candidates = [(name,) for name in names] + _parts(key, parameter)
        tensors = next((each for each in candidates if set(each) <= files.shapes.keys()), None)
        if tensors is None:
            raise InputError(
                f"stream=True: the files of {shown} hold no tensor {key!r}. Quantised weights"
                " cannot be streamed, or weights are missing. Leave stream out.",
                argument="stream",
            )
        shape = tuple(parameter.shape)
        if len(tensors) > 1:  # experts: each has a part of the second axis
            shape = (shape[0] * shape[1] // len(tensors), *shape[2:])
        for name in tensors:
            if files.shapes[name] != shape:
                raise CheckpointError(
                    f"{name} has shape {files.shapes[name]}, the configuration says {shape}."
                    f" Fetch {shown} again."
                )
        tensors_of[key] = tensors
    return tensors_of


def _parts(key: str, parameter: Tensor) -> list[tuple[str, ...]]:
    """Return the possible tensor names of a parameter of experts; [] for other parameters."""
    ours = next((name for name in _EXPERTS if key.endswith(name)), None)
    if ours is None:
        return []
    layer = key.removesuffix(ours)
    parts: list[tuple[str, ...]] = []
    for names in _EXPERTS[ours]:
        tensors: list[str] = []
        for expert in range(len(parameter)):
            tensors += [layer + name.format(expert) for name in names]
        parts.append(tuple(tensors))
    return parts
