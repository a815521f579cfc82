"""Direct path patching: what one head writes, patched into the input of one later head alone.

The functions have the names, signatures and results of ``transformer_lens.patching`` 4.3, and run
with every supported version. The clean-minus-corrupted write of the source head, at every position,
is added to the stream that the queries, keys or values of one later head read. The norm of that
head's input is recomputed, and so is everything behind the head. Every other part reads the
corrupted write of the source head. METHOD 4b calls this an edge with ``between="direct"`` and
``downstream="flow"``.

Method:
    A changed input acts through the head's queries, keys or values only. One forward pass with
    hooks gives these of all layers (:mod:`~anchorlens.engine.edges.hooked_inputs`). Each pair of
    heads is then a patch of one head's queries, keys or values, which
    :mod:`~anchorlens.measure.grid` measures.

Scope:
    Keys and values of grouped queries are those of key/value heads, so their results have one
    column per key/value head. TransformerLens 4.3 refuses them. Where a norm follows attention, as
    in Gemma 2 and 3, a head writes its share of the normed output, at the norm's scale in the run
    of each cache. TransformerLens 4.3 refuses these models too.
"""

from collections.abc import Mapping, Sequence
from itertools import product

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from anchorlens.display import as_int, short_repr
from anchorlens.engine.edges.graph import ATTENTION_INPUTS
from anchorlens.engine.edges.hooked_inputs import HookedInputs
from anchorlens.errors import InputError, ShapeError
from anchorlens.measure.grid_cells import Cache, NotMeasured, read_activation
from anchorlens.models.adapter import HEAD_SITE_HOOKS, LensModel, is_bridge
from anchorlens.models.bridge.blocks import recurrent_parts
from anchorlens.models.load import adapt
from anchorlens.patching.generic import (
    Metric,
    check_call,
    hold_model,
    make_vector_metric,
    measure_cells,
)
from anchorlens.patching.setters import layer_head_vector_patch_setter


def get_act_patch_direct_path(
    model: LensModel,
    corrupted_tokens: Tensor,
    clean_cache: Cache,
    corrupted_cache: Cache,
    patching_metric: Metric,
    src_layer: int,
    src_head: int,
    component: str = "q",
    verbose: bool = True,
) -> Float[Tensor, "layer head"]:
    """Patch what one head writes into the queries, keys or values of each later head alone.

    Args:
        model: HookedTransformer or TransformerBridge.
        corrupted_tokens: Tokens of the run that is patched, [batch pos].
        clean_cache: Activations of the clean run by hook name, with ``z`` of the source layer.
        corrupted_cache: Activations of the corrupted run, with the same ``z``.
        patching_metric: Function from logits [batch pos d_vocab] to a scalar tensor.
        src_layer: Layer of the source head.
        src_head: The source head.
        component: Patched input of later heads: ``q``, ``k`` or ``v``.
        verbose: Whether to show a progress bar where full forward passes are run.

    Returns:
        The metric with the path into each head patched, [layer head]; 0 up to the source layer,
        where there is no path. With ``k`` and ``v``, heads are key/value heads.

    Raises:
        InputError: If an argument is unknown, a cache lacks ``z``, a block from the source layer on
            has no attention or a recurrent part beside it, or a bridge is in training mode.
        ShapeError: If a cache has another shape than the tokens, or the metric returns no scalar.

    Examples:
        >>> _, clean = model.run_with_cache(clean_tokens)  # doctest: +SKIP
        >>> _, corrupted = model.run_with_cache(corrupted_tokens)  # doctest: +SKIP
        >>> grid = patching.get_act_patch_direct_path(  # doctest: +SKIP
        ...     model, corrupted_tokens, clean, corrupted, metric, src_layer=3, src_head=1
        ... )  # [layer head]
    """
    model = check_call(model, corrupted_tokens)
    with hold_model(model):
        paths = _DirectPaths(
            model=model,
            tokens=corrupted_tokens,
            caches=(clean_cache, corrupted_cache),
            metric=patching_metric,
            component=component,
            first=_check_index("src_layer", src_layer, range(int(model.cfg.n_layers))),
        )
        n_heads = paths.n_sources
        head = _check_index("src_head", src_head, range(-n_heads, n_heads)) % n_heads
        label = f"Direct path patch ({src_layer},{src_head}) -> * [{component}]"
        (inputs,) = paths.read_inputs(src_layer, [head])
        return paths.measure(inputs, label=label, is_silent=not verbose)


def get_act_patch_direct_path_all_sources(
    model: LensModel,
    corrupted_tokens: Tensor,
    clean_cache: Cache,
    corrupted_cache: Cache,
    patching_metric: Metric,
    component: str = "q",
    verbose: bool = True,
) -> Float[Tensor, "layer head to_layer to_head"]:
    """Patch what each head writes into the queries, keys or values of each later head alone.

    Arguments and errors are those of :func:`get_act_patch_direct_path`; ``verbose``: whether to
    show a progress bar over source heads.

    Returns:
        The metric with the path from each head into each head patched, [layer head to_layer
        to_head]; 0 where the second layer is not above the first.

    Examples:
        >>> grid = patching.get_act_patch_direct_path_all_sources(  # doctest: +SKIP
        ...     model, corrupted_tokens, clean, corrupted, metric, component="k"
        ... )
        >>> into = grid[3, 1, 5, 0]  # from a3.h1 to a5.h0  # doctest: +SKIP
    """
    model = check_call(model, corrupted_tokens)
    with hold_model(model):
        paths = _DirectPaths(
            model=model,
            tokens=corrupted_tokens,
            caches=(clean_cache, corrupted_cache),
            metric=patching_metric,
            component=component,
            first=0,
        )
        label = f"Direct path patch, all sources [{component}]"
        found: list[Tensor] = []
        n_layers = int(model.cfg.n_layers)
        with tqdm(total=n_layers * paths.n_sources, desc=label, disable=not verbose) as bar:
            for layer in range(n_layers):
                heads = range(paths.n_sources)
                for inputs in paths.read_inputs(layer, heads):
                    found.append(paths.measure(inputs, is_silent=True))
                    bar.update()
        return rearrange(
            torch.stack(found),
            "(layer head) to_layer to_head -> layer head to_layer to_head",
            layer=n_layers,
        )


class _DirectPaths:
    """Direct paths into the queries, keys or values of later heads.

    Args:
        model: The model.
        tokens: Corrupted tokens.
        caches: Activations of the clean and of the corrupted run.
        metric: Function from logits to a scalar tensor.
        component: ``q``, ``k`` or ``v``.
        first: Lowest layer of a source head.

    Attributes:
        n_sources: Number of source heads of a layer.
    """

    def __init__(
        self,
        *,
        model: LensModel,
        tokens: Tensor,
        caches: tuple[Cache, Cache],
        metric: Metric,
        component: str,
        first: int,
    ) -> None:
        if component not in ATTENTION_INPUTS:
            raise InputError(
                f"component={component!r}: unknown. Give one of {', '.join(ATTENTION_INPUTS)}.",
                argument="component",
            )
        self._model = model
        self._adapter = adapt(model)
        self._tokens = tokens
        self._caches = caches
        self._component = component
        self._metrics = {"metric": metric}
        self._metric = make_vector_metric(self._metrics, None)
        self.n_sources = self._adapter.shape.n_heads
        self._check_model(first)
        layers = range(first + 1, self._adapter.n_layers)
        self._inputs = HookedInputs(self._adapter, tokens, component, layers)

    def _check_model(self, first: int) -> None:
        """Raise InputError if a block has more or less than attention heads, or if dropout would
        act.
        """
        hooks = self._model.hook_dict
        for layer in range(first, self._adapter.n_layers):
            names = [HEAD_SITE_HOOKS[site].format(layer=layer) for site in ("z", *ATTENTION_INPUTS)]
            recurrent: list[str] = []
            if is_bridge(self._model):
                recurrent = recurrent_parts(self._model.blocks[layer])
            if recurrent or not hooks.keys() >= {*names}:
                found = f"has a recurrent part ({recurrent[0]})" if recurrent else "has no heads"
                raise InputError(
                    f"model: block {layer} {found}. Direct paths need attention heads, and nothing"
                    f" beside them but an MLP, in every block from layer {first} on.",
                    argument="model",
                )
        original = getattr(self._model, "original_model", None)
        if is_bridge(self._model) and original is not None and original.training:
            raise InputError(
                "model: in training mode, in which dropout changes the numbers. Call model.eval().",
                argument="model",
            )

    def read_inputs(
        self, layer: int, heads: Sequence[int]
    ) -> list[dict[int, Float[Tensor, "batch pos head d_head"]]]:
        """Return the patched queries, keys or values of each later layer, for each source head."""
        later = range(layer + 1, self._adapter.n_layers)
        if not later:
            return [{} for _ in heads]
        change = self._write(layer, 0) - self._write(layer, 1)
        some = rearrange(change[:, :, list(heads)], "batch pos head d -> head batch pos d")
        changes = some.expand(-1, len(self._tokens), -1, -1)
        found = self._inputs.with_changes(changes, later)
        by_head: list[dict[int, Tensor]] = []
        for i in range(len(heads)):
            own = {later_layer: values[i] for later_layer, values in found.items()}
            by_head.append(own)
        return by_head

    def _write(self, layer: int, number: int) -> Float[Tensor, "batch pos head d_model"]:
        """Return what each head of a layer adds to the stream, from the clean cache (0) or the
        corrupted one (1).

        Raises:
            InputError: If the cache lacks the heads' outputs.
            ShapeError: If it has another shape than the tokens.
        """
        name = ("clean_cache", "corrupted_cache")[number]
        adapter = self._adapter
        try:
            z = read_activation(adapter, self._caches[number], "z", layer, name)
        except NotMeasured as why:
            raise InputError(f"{name}: {why}. Give tensors.", argument=name) from why
        n_rows, n_pos = self._tokens.shape
        if z.shape[1] != n_pos or len(z) not in (1, n_rows):
            raise ShapeError(
                f"{name}: z of layer {layer} has the shape {tuple(z.shape)}, but the corrupted"
                f" tokens are [batch pos] = {(n_rows, n_pos)}. Cache prompts of this length.",
                argument=name,
            )
        with torch.no_grad(), adapter.blocks().load(layer) as block:
            tokens = rearrange(z, "batch pos head d -> (batch pos) head d")
            shares = block.head_shares(tokens.to(block.device))
        # Granite scales what attention adds to the stream.
        scale = float(getattr(self._model.blocks[layer], "residual_contribution_scale", 1.0))
        flat = "(batch pos) head d_model -> batch pos head d_model"
        return scale * rearrange(shares, flat, pos=n_pos).to(adapter.device)

    def measure(
        self,
        inputs: Mapping[int, Float[Tensor, "batch pos head d_head"]],
        *,
        label: str | None = None,
        is_silent: bool,
    ) -> Float[Tensor, "layer head"]:
        """Return the metric with the queries, keys or values of each head patched; 0 in layers
        without any.

        Args:
            inputs: Patched queries, keys or values by layer.
            label: Label of the progress bar.
            is_silent: Whether no progress bar is shown.
        """
        adapter = self._adapter
        component = self._component
        n_heads = adapter.n_heads(component)
        cells = list(product(inputs, range(n_heads)))
        values = measure_cells(
            model=self._model,
            tokens=self._tokens,
            cache={adapter.hook_name(component, layer): one for layer, one in inputs.items()},
            metrics=self._metrics,
            metric=self._metric,
            setter=layer_head_vector_patch_setter,
            name=component,
            indices=cells,
            label=label,
            is_silent=is_silent,
        )
        out = torch.zeros(adapter.n_layers, n_heads, device="cpu")
        for cell, value in zip(cells, values, strict=True):
            out[cell] = value[0]
        return out.to(self._model.cfg.device)


def _check_index(name: str, value: object, valid: range) -> int:
    """Return an index as a number; raise InputError if it is none of ``valid``."""
    number = as_int(value)
    if number is None or number not in valid:
        raise InputError(
            f"{name}={short_repr(value)}: not in the model. Give a number from {valid[0]} to"
            f" {valid[-1]}.",
            argument=name,
        )
    return number
