"""Sizes of a model as plain numbers, for planning."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Streamed:
    """Costs of streaming.

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
        streamed: Costs of streaming; None for weights in memory.
        layers_together: Maximum number of layers on one device; 0 for all layers.
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
    streamed: Streamed | None = None
    layers_together: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers_together", self.layers_together or self.n_layers)

    @classmethod
    def of(
        cls, cfg: Any, streamed: Streamed | None = None, block_devices: Sequence[torch.device] = ()
    ) -> "Shape":
        """Read the sizes from TransformerLens's configuration of a model.

        Args:
            cfg: HookedTransformerConfig or TransformerBridgeConfig.
            streamed: Costs of streaming; None for weights in memory.
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
            layers_together=max(Counter(block_devices).values(), default=0),
        )

    @property
    def peak_weight_bytes(self) -> int:
        """Maximum bytes of weights that streaming keeps in memory; 0 without streaming."""
        return 0 if self.streamed is None else self.streamed.peak_bytes

    @property
    def item(self) -> int:
        """Bytes of one number of :attr:`dtype`."""
        return self.dtype.itemsize

    @property
    def block_flops(self) -> float:
        """Floating-point operations of a token in a block, without attention between tokens."""
        attention = 2 * self.d_model * (self.n_heads + self.n_kv_heads) * self.d_head
        return 2.0 * (attention + self.mlp_products * self.d_model * self.d_mlp)
