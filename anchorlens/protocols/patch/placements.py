"""Placements of a patch sweep: what is patched in a pair, and which cells hold by construction."""

from collections.abc import Sequence
from typing import TypeAlias

from anchorlens.engine.patches import window_layers
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.protocols.pair_sweep.donor_pairs import Pair, Placement
from anchorlens.protocols.patch.spec import Patch

PatchPair: TypeAlias = Pair[TokenizedPrompt]

PAIRED = "paired"
"""Named positions of both prompts that are paired, in order."""
OTHER_PAIR, NORM_MATCHED = "other_pair", "norm_matched"
ALL = "all"
# Sites that act on later positions through the attention of the same layer.
_BEFORE_ATTENTION = ("resid_pre", "k", "v")


def make_placements(
    spec: Patch, target: TokenizedPrompt, source: TokenizedPrompt, heads: int, control: str = "none", label: str = ""
) -> tuple[Placement, ...]:
    """Return the placements of a pair.

    Args:
        spec: Arguments of the sweep.
        target: Patched prompt, with the positions :data:`PAIRED`.
        source: Prompt whose activations are patched in; its own :data:`PAIRED` are those of ``target``, in order.
        heads: Number of heads of the site.
        control: Control that the placements belong to.
        label: Label of the random directions; empty for none. The place is added to it.
    """
    to, by = target.positions[PAIRED], source.positions[PAIRED]

    def make(anchor: str, target: Sequence[int], source: Sequence[int], head: int | None = None) -> Placement:
        return Placement(anchor, control, tuple(target), tuple(source), f"{label}:{anchor}" if label else "", head)

    if spec.by == "layer":
        return (make(ALL, to, by),)
    if spec.by == "head":
        return tuple(make(f"head:{head}", to, by, head) for head in range(heads))
    if spec.by == "segment":
        of, places = dict(zip(to, by, strict=True)), segments_of(target)
        paired = {name: [t for t in where if t in of] for name, where in places.items()}
        return tuple(make(name, where, [of[t] for t in where]) for name, where in paired.items() if where)
    if spec.by == "head_position":
        return tuple(make(f"pos:{t} head:{h}", (t,), (s,), h) for t, s in zip(to, by, strict=True) for h in range(heads))
    return tuple(make(f"pos:{t}", (t,), (s,)) for t, s in zip(to, by, strict=True))


def segments_of(prompt: TokenizedPrompt) -> dict[str, tuple[int, ...]]:
    """Return the named segments of a prompt."""
    own = ("last", PAIRED, READS)
    return {name: tuple(where) for name, where in prompt.positions.items() if not name.startswith("pos:") and name not in own}


READS = "metric_reads"
"""Named positions that a metric function reads."""


def anchor_order(anchors: Sequence[str]) -> list[str]:
    """Sort anchors by position, then head; segments keep their order."""
    first = {anchor: i for i, anchor in enumerate(dict.fromkeys(anchors))}

    def key(anchor: str) -> tuple[int, int, int]:
        numbers = dict(part.split(":") for part in anchor.split(" ") if part.startswith(("pos:", "head:")))
        position, head = (int(numbers[name]) if name in numbers else -1 for name in ("pos", "head"))
        return (position, head, 0) if numbers else (0, 0, first[anchor])

    return sorted(first, key=key)


UNCHANGED, SOURCE = "unchanged", "source"
"""Values that follow by construction: that before the patch, and that of the source's own run."""


def values_by_construction(
    spec: Patch, pair: PatchPair, place: Placement, layers: Sequence[int], n_layers: int, reads: Sequence[int]
) -> dict[int, str]:
    """Return the layers at which the value of a place follows by construction, with :data:`UNCHANGED` or :data:`SOURCE`.

    - Both prompts have the same tokens up to the last patched position: the patch changes nothing at any layer.
    - The stream into block 0 is patched at equal tokens: nothing changes. At all tokens that differ: the source's run results.
    - Behind the last attention only the positions that are read act. If the final stream is patched at all of them, the source's
      run results.
    """
    target, source = pair.target.ids, pair.source.ids if pair.source is not None else ()
    places = list(zip(place.target, place.source, strict=True))
    in_place, patched = all(t == s for t, s in places), {*place.target}
    alike = next((i for i, (a, b) in enumerate(zip(target, source, strict=False)) if a != b), min(len(target), len(source)))
    if in_place and max(patched) < alike:
        return dict.fromkeys(layers, UNCHANGED)
    differ = {p for p, (a, b) in enumerate(zip(target, source, strict=False)) if a != b}
    equal = in_place and not differ & patched
    whole = place.control == "none" and in_place and len(target) == len(source) and differ <= patched
    fixed: dict[int, str] = {}
    for layer in layers:
        changed = window_layers(layer, spec.window, n_layers)
        is_embedding = spec.site == "resid_pre" and 0 in changed
        is_last = spec.site == "resid_post" and n_layers - 1 in changed
        is_behind = changed.start == n_layers - 1 and spec.site not in _BEFORE_ATTENTION
        if (is_embedding and whole) or (is_last and place.control == "none" and {*reads} <= patched):
            fixed[layer] = SOURCE
        elif (is_embedding and equal and changed == range(1)) or (is_behind and not patched & {*reads}):
            fixed[layer] = UNCHANGED
    return fixed
