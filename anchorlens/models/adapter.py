"""Adapter: all that the other packages use of a model, with its sizes (:class:`Shape`) and the
model classes of TransformerLens.

HookedTransformer exists in TransformerLens 3.9, TransformerBridge in 3.9 and 4.x.
:func:`anchorlens.models.load.adapt` makes the adapter of either.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import torch
from jaxtyping import Float, Int
from packaging.version import Version
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from anchorlens.constants import BACKENDS, HEAD_SITES, SITES
from anchorlens.errors import InputError, did_you_mean
from anchorlens.fingerprint import call_user_function, callable_name, fingerprint
from anchorlens.models.blocks import Blocks
from anchorlens.models.parity import Reference
from anchorlens.models.read import Read
from anchorlens.typing import Stream

# Attribute of a streamed model and of its blocks that holds the loader of their weights.
STREAM = "anchorlens_stream"


def check_version(installed: str) -> None:
    """Raise InputError if a version of TransformerLens is not supported."""
    if not Version("3.9") <= Version(installed) < Version("5"):
        raise InputError(
            f"transformer-lens {installed} is installed; anchorlens works with 3.9 and 4.x. "
            "Install one: pip install 'transformer-lens>=3.9,<5'."
        )


TRANSFORMER_LENS = version("transformer-lens")
check_version(TRANSFORMER_LENS)
# HookedTransformer was removed in 4.0.
HAS_HOOKED = Version(TRANSFORMER_LENS) < Version("4")

# After the check of its version.
from transformer_lens.model_bridge import TransformerBridge  # noqa: E402

if TYPE_CHECKING or HAS_HOOKED:
    from transformer_lens import HookedTransformer

    LensModel: TypeAlias = HookedTransformer | TransformerBridge
else:
    LensModel = TransformerBridge


def is_hooked(model: object) -> "TypeGuard[HookedTransformer]":
    """Return whether a model is a HookedTransformer."""
    return HAS_HOOKED and isinstance(model, HookedTransformer)


def is_bridge(model: object) -> TypeGuard[TransformerBridge]:
    """Return whether a model is a TransformerBridge."""
    return isinstance(model, TransformerBridge)


def is_lens_model(model: object) -> TypeGuard[LensModel]:
    """Return whether a model is a HookedTransformer or a TransformerBridge."""
    return is_hooked(model) or is_bridge(model)


def unwrap_model(model: Any) -> Any:
    """Return the original of a model that torch.compile wrapped; any other object unchanged.

    A compiled model computes what its original does; hooks are attached to the original.
    """
    return getattr(model, "_orig_mod", model) if isinstance(model, nn.Module) else model


def pick_backend(backend: Any) -> str:
    """Return ``hooked`` or ``bridge``; if None, ``hooked`` where TransformerLens has it.

    Raise InputError for others.
    """
    if backend is None:
        return "hooked" if HAS_HOOKED else "bridge"
    if backend not in BACKENDS:
        raise InputError(
            f"backend={backend!r}: unknown. {did_you_mean(str(backend), BACKENDS)}",
            argument="backend",
        )
    if backend == "hooked" and not HAS_HOOKED:
        raise InputError(
            f"backend='hooked': transformer-lens {TRANSFORMER_LENS} has no HookedTransformer. Leave"
            " backend out, or install 'transformer-lens>=3.9,<4'.",
            argument="backend",
        )
    return str(backend)


def stream_of(model: nn.Module) -> Any:
    """Return the loader of a streamed model; None if its weights are in memory."""
    return getattr(model, STREAM, None)


def act_name(name: str, layer: int) -> str:
    """Return the hook name of TransformerLens's short name of an activation, such as ``resid_pre``
    or ``z``.
    """
    from transformer_lens.utilities.components_utils import get_act_name

    return get_act_name(name, layer)


def patching_result_class() -> Any:
    """Return TransformerLens 4's class of patching results; None with 3.9."""
    import transformer_lens.patching

    return getattr(transformer_lens.patching, "PatchingResult", None)


SITE_HOOKS = {name: f"blocks.{{layer}}.hook_{name}" for name in SITES}
# Sites with a head axis: [example pos head d_head], ``pattern`` [example head query key].
HEAD_SITE_HOOKS = {name: f"blocks.{{layer}}.attn.hook_{name}" for name in HEAD_SITES}

# Where torch keeps the hooks of a module.
HOOK_LISTS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

# Name of a hook point, and the function of (value, hook point) that is applied to its value.
Hook: TypeAlias = tuple[str, Callable[[Tensor, Any], Tensor]]

# (rows of the last call that go on, their last tokens or None at first) -> the likeliest next token
# of each of these rows.
NextTokens: TypeAlias = Callable[[list[int], Int[Tensor, "row"] | None], Int[Tensor, "row"]]

# A named site, or a function from a layer to the name of a hook that carries [example pos d_model].
SiteLike: TypeAlias = "str | Callable[[int], str]"
ReadSite: TypeAlias = tuple[SiteLike, int]
"""Site and layer of the states that are read."""


def site_name(site: SiteLike) -> str:
    """Return the name of a site in outputs; raise InputError if it is neither a string nor a
    function.
    """
    if isinstance(site, str) or callable(site):
        return site if isinstance(site, str) else callable_name(site)
    raise InputError(
        f"site={site!r}: not a site. Give one of {', '.join(SITES)}, or layer -> hook name.",
        argument="site",
    )


@dataclass(frozen=True)
class StreamingCost:
    """Cost of reading weights from files while a model runs.

    Attributes:
        read_bytes: Bytes of weights that a pass through all layers reads, in the model's dtype.
        peak_bytes: Maximum bytes of weights in memory at once.
        rate: Bytes read per second so far, with conversion.
    """

    read_bytes: int
    peak_bytes: int
    rate: float


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a model.

    Attributes:
        n_layers: Number of layers L; layers are 0 .. L-1.
        d_model: Width of the residual stream.
        n_heads: Number of query heads.
        n_kv_heads: Number of key and value heads.
        d_head: Width of a head.
        d_mlp: Inner width of an MLP; 0 if blocks have none.
        mlp_products: Matrix products per token in an MLP, each d_model by d_mlp, with gates and
            chosen experts.
        d_vocab: Size of the output vocabulary.
        n_ctx: Maximum number of positions of a row.
        dtype: Data type of weights and streams.
        streamed: Cost of streaming; None for weights in memory.
        max_layers_per_device: Maximum number of layers on one device; 0 for all layers.
    """

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_mlp: int
    mlp_products: int
    d_vocab: int
    n_ctx: int
    dtype: torch.dtype
    streamed: StreamingCost | None = None
    max_layers_per_device: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "max_layers_per_device", self.max_layers_per_device or self.n_layers
        )

    @classmethod
    def of(
        cls,
        cfg: Any,
        streamed: StreamingCost | None = None,
        block_devices: Sequence[torch.device] = (),
    ) -> "Shape":
        """Read the sizes from TransformerLens's configuration of a model.

        Args:
            cfg: HookedTransformerConfig or TransformerBridgeConfig.
            streamed: Cost of streaming; None for weights in memory.
            block_devices: Device of each block; empty for one device.
        """
        experts = 1
        if getattr(cfg, "num_experts", None):
            experts = int(getattr(cfg, "experts_per_token", None) or 1)
        return cls(
            n_layers=int(cfg.n_layers),
            d_model=int(cfg.d_model),
            n_heads=int(cfg.n_heads),
            n_kv_heads=int(cfg.n_key_value_heads or cfg.n_heads),
            d_head=int(cfg.d_head),
            d_mlp=0 if getattr(cfg, "attn_only", False) else int(cfg.d_mlp or 4 * cfg.d_model),
            mlp_products=experts * (3 if cfg.gated_mlp else 2),
            d_vocab=int(
                cfg.d_vocab_out if (getattr(cfg, "d_vocab_out", None) or 0) > 0 else cfg.d_vocab
            ),
            n_ctx=int(cfg.n_ctx),
            dtype=cfg.dtype,
            streamed=streamed,
            max_layers_per_device=max(Counter(block_devices).values(), default=0),
        )

    @property
    def peak_weight_bytes(self) -> int:
        """Maximum bytes of weights that streaming keeps in memory; 0 without streaming."""
        return 0 if self.streamed is None else self.streamed.peak_bytes

    @property
    def is_half(self) -> bool:
        """Whether the model computes in half precision."""
        return self.dtype in (torch.bfloat16, torch.float16)

    @property
    def number_bytes(self) -> int:
        """Bytes of one number of :attr:`dtype`."""
        return self.dtype.itemsize

    @property
    def block_flops(self) -> float:
        """Floating-point operations of a token in a block, without attention between tokens."""
        attention = 2 * self.d_model * (self.n_heads + self.n_kv_heads) * self.d_head
        return 2.0 * (attention + self.mlp_products * self.d_model * self.d_mlp)


class Adapter(ABC):
    """Model with the operations that the engines use.

    Attributes:
        backend: ``hooked`` or ``bridge``.
        model: The model of TransformerLens.
        shape: Sizes of the model.
        read: Final norm and unembedding of rows.
        n_layers: Number of layers L.
        d_model: Width of the residual stream.
        device: Device of the embedding.
        devices: Distinct devices in layer order.
        has_prefix_cache: Whether :meth:`prefix_cache` can be used.
        norms_heads_together: Whether a norm of queries or keys is over all heads, so that a change
            of one changes all.
    """

    backend: str
    model: LensModel
    shape: Shape
    read: Read
    device: torch.device
    devices: tuple[torch.device, ...]
    has_prefix_cache: bool = True
    norms_heads_together: bool = False

    @property
    def n_layers(self) -> int:
        return self.shape.n_layers

    @property
    def d_model(self) -> int:
        return self.shape.d_model

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        return self.model.tokenizer

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites that every block of the model has (parallel blocks have no
        ``resid_mid``).
        """
        hooks = self.model.hook_dict
        found: list[str] = []
        for name, hook in SITE_HOOKS.items():
            # Blocks without an MLP have the hook of its output, but it never fires.
            fires = name != "mlp_out" or self.shape.d_mlp
            if fires and all(hook.format(layer=i) in hooks for i in range(self.n_layers)):
                found.append(name)
        return tuple(found)

    def hook_name(self, site: SiteLike, layer: int) -> str:
        """Return the name of the hook that carries ``site`` of a layer, [example pos d_model];
        raise InputError if there is none.

        Activations of :data:`HEAD_SITES` have a head axis.
        """
        if isinstance(site, str):
            if site == "pattern":
                return self.attention_hook(layer, site)
            if site in HEAD_SITES:
                head_hook = HEAD_SITE_HOOKS[site].format(layer=layer)
                if head_hook in self.model.hook_dict:
                    return head_hook
            if site not in self.sites:
                hint = "" if site in SITES else " " + did_you_mean(site, (*SITES, *HEAD_SITES))
                raise InputError(
                    f"site={site!r}: not in this model. Known: {', '.join(self.sites)}.{hint}",
                    argument="site",
                )
            return SITE_HOOKS[site].format(layer=layer)
        site_name(site)
        name = call_user_function("site", site, layer=layer)
        if not isinstance(name, str) or name not in self.model.hook_dict:
            raise InputError(
                f"site: returned the hook name {name!r}, which this model does not have. Return the"
                " name of a hook that carries [example pos d_model], such as"
                " f'blocks.{layer}.hook_resid_pre'.",
                argument="site",
            )
        return name

    def n_heads(self, site: SiteLike) -> int:
        """Return the number of heads of a site; 1 for sites without a head axis.

        Of ``k`` and ``v`` it is that of key/value heads, or of query heads with
        ``ungroup_grouped_query_attention``.
        """
        if site in ("k", "v"):
            is_ungrouped = getattr(self.model.cfg, "ungroup_grouped_query_attention", False)
            return self.shape.n_heads if is_ungrouped else self.shape.n_kv_heads
        return self.shape.n_heads if isinstance(site, str) and site in HEAD_SITES else 1

    def attention_hook(self, layer: int, name: str) -> str:
        """Return the hook of a layer's ``attn_scores`` or ``pattern``, [example head query key];
        InputError if none.
        """
        return f"blocks.{layer}.attn.hook_{name}"

    @property
    @abstractmethod
    def embedding(self) -> Float[Tensor, "token d_model"]:
        """Token embeddings of the vocabulary."""

    @abstractmethod
    def embed(
        self, ids: Int[Tensor, "token"], positions: Int[Tensor, "token"]
    ) -> Float[Tensor, "token d_model"]:
        """Compute the residual stream before block 0."""

    @abstractmethod
    def forward(
        self,
        ids: Int[Tensor, "example pos"],
        mask: Int[Tensor, "example pos"],
        hooks: Sequence[Hook] = (),
        cache: Any = None,
        *,
        with_graph: bool = False,
    ) -> Stream:
        """Run TransformerLens's forward pass over all blocks and return the final residual stream.

        Args:
            ids: Right-padded rows.
            mask: 1 for tokens, 0 for padding.
            hooks: Hooks of the pass.
            cache: Result of :meth:`prefix_cache`, whose tokens come first; valid for one call.
            with_graph: Whether operations are recorded for a backward pass.
        """

    @abstractmethod
    def prefix_cache(self, ids: Int[Tensor, "pos"], n_rows: int) -> Any:
        """Run a prefix that ``n_rows`` rows share and return its keys and values, for
        :meth:`forward`.
        """

    @abstractmethod
    def whole(
        self, ids: Int[Tensor, "pos"]
    ) -> tuple[Float[Tensor, "pos d_model"], Float[Tensor, "pos d_vocab"]]:
        """Run TransformerLens's forward pass over one row and return its final residual stream and
        logits.
        """

    @abstractmethod
    def generation_prefix(self, ids: Int[Tensor, "pos"]) -> Any:
        """Run tokens that all prompts share, possibly none, for :meth:`decoder`."""

    @abstractmethod
    def decoder(self, prompts: Sequence[Sequence[int]], prefix: Any) -> NextTokens:
        """Return the function that computes the likeliest next token of each row.

        ``prefix`` is the result of :meth:`generation_prefix`.
        """

    @property
    @abstractmethod
    def windows(self) -> frozenset[int | None]:
        """Numbers of keys that queries attend to in the blocks (:attr:`Block.window`)."""

    @abstractmethod
    def blocks(self) -> Blocks:
        """Return the token-wise parts of the blocks, for the cone engine."""

    @abstractmethod
    def find_unsupported_feature(self) -> str | None:
        """Return the feature of the model that the cone engine does not support; None if there is
        none.
        """

    @abstractmethod
    def find_user_hook(self) -> str | None:
        """Describe a user's hook, or a module that replaces a hook point, that the cone engine
        would skip; None if none.
        """

    @abstractmethod
    def list_user_hooks(self) -> Iterator[tuple[str, Any]]:
        """Yield the name of each module with a user's hook, and the function that runs there."""

    @abstractmethod
    def reference(self) -> Reference | str:
        """Run a new Hugging Face model with the same weights, to compare this one with it.

        The result is the reason as a text if there is no such model.
        """

    @abstractmethod
    def rotary_gap(self) -> float | None:
        """Return the largest difference of the rotary tables from those of the configuration; None
        without such tables.
        """


def hook_fingerprints(adapter: "Adapter") -> dict[str, str]:
    """Return the fingerprints of a user's hooks by module, because they change the numbers of the
    model as its weights do.
    """
    found: dict[str, list[str]] = {}
    for name, hook in adapter.list_user_hooks():
        # TransformerLens wraps the function in one that holds its hook point.
        names = getattr(getattr(hook, "__code__", None), "co_freevars", ())
        if "hook" in names:
            hook = hook.__closure__[names.index("hook")].cell_contents
        found.setdefault(name, []).append(fingerprint(hook))
    return {name: " ".join(own) for name, own in found.items()}
