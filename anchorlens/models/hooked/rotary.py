"""Rotary tables of a HookedTransformer, recomputed from its configuration."""

from typing import Any

from transformer_lens import HookedTransformer


def rotary_gap(model: HookedTransformer) -> float | None:
    """Return the largest difference of the layers' rotary tables from those of the configuration;
    None without such tables.

    Dynamic scaling changes the tables while the model runs, so they are not compared.
    """
    cfg = model.cfg
    gaps: list[float] = []
    if cfg.positional_embedding_type != "rotary" or getattr(cfg, "use_dynamic_ntk_rope", False):
        return None
    for block in model.blocks:
        attn: Any = block.attn
        tables = attn.rotary_sin, attn.rotary_cos
        is_local = attn.attn_type == "local" and cfg.rotary_base_local is not None
        base = cfg.rotary_base_local if is_local else cfg.rotary_base
        fresh = attn.calculate_sin_cos_rotary(
            cfg.rotary_dim, len(tables[0]), base=base, dtype=cfg.dtype
        )
        for own, expected in zip(tables, fresh, strict=True):
            gap = own.float().cpu() - expected.float().cpu()
            gaps.append(float(gap.abs().max()))
    return max(gaps, default=None)
