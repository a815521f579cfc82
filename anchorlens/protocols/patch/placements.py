"""Placements of a patch sweep: what is patched in a pair, and which cells hold by construction."""

from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias

from anchorlens.constants import ALL_PLACES
from anchorlens.engine.patches import common_prefix, window_layers
from anchorlens.errors import InputError
from anchorlens.measure.patched_pairs import DirectionPrompt, Pair, Placement
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.protocols.patch.spec import PairSpecification, Patch

PatchPair: TypeAlias = Pair[TokenizedPrompt]

PAIRED = "paired"
"""Named positions of both prompts that are paired, in order."""
OTHER_PAIR = "other_pair"
NORM_MATCHED = "norm_matched"
ALL = ALL_PLACES
REST = "rest"
"""Place of the paired positions in no segment, behind the first different token."""
# Sites that act on later positions through the attention of the same layer.
_BEFORE_ATTENTION = ("resid_pre", "k", "v")


def make_placements(
    spec: PairSpecification,
    target: TokenizedPrompt,
    source: TokenizedPrompt,
    heads: int,
    control: str = "none",
    label: str = "",
    towards: tuple[TokenizedPrompt, TokenizedPrompt] | None = None,
) -> tuple[Placement, ...]:
    """Return the placements of a pair.

    Args:
        spec: Arguments of the sweep.
        target: Patched prompt, with the positions :data:`PAIRED`.
        source: Prompt whose activations are patched in; its own :data:`PAIRED` are those of
            ``target``, in order.
        heads: Number of heads of the site.
        control: Control that the placements belong to.
        label: Label of the random directions; empty for none. The place is added to it.
        towards: Two other prompts with the paired positions of ``source``, whose difference is the
            direction. If None, it is Gaussian.
    """
    to = target.positions[PAIRED]
    by = source.positions[PAIRED]

    def make(
        anchor: str, target: Sequence[int], source: Sequence[int], head: int | None = None
    ) -> Placement:
        both = None
        if towards is not None:
            first, second = (DirectionPrompt(one, tuple(source)) for one in towards)
            both = (first, second)
        return Placement(
            anchor,
            control,
            tuple(target),
            tuple(source),
            direction_label=f"{label}:{anchor}" if label else "",
            towards=both,
            head=head,
        )

    if spec.by in ("layer", ALL):
        return (make(ALL, to, by),)
    if spec.by == "head":
        return tuple(make(f"head:{head}", to, by, head) for head in range(heads))
    if spec.by == "segment":
        source_of = dict(zip(to, by, strict=True))
        segments: list[Placement] = []
        for name, where in segments_of(target).items():
            paired = [t for t in where if t in source_of]
            if paired:
                segments.append(make(name, paired, [source_of[t] for t in paired]))
        if segments and spec.has_rest:
            rest = _rest_of(target, source)
            if rest:
                segments.append(make(REST, rest, [source_of[t] for t in rest]))
        return tuple(segments)
    places: list[Placement] = []
    for t, s in zip(to, by, strict=True):
        if spec.by == "position":
            places.append(make(f"pos:{t}", (t,), (s,)))
        else:
            places += [make(f"pos:{t} head:{h}", (t,), (s,), h) for h in range(heads)]
    return tuple(places)


def _rest_of(target: TokenizedPrompt, source: TokenizedPrompt) -> tuple[int, ...]:
    """Return the paired positions of the target that are in no segment, from the first different
    token on: before it all activations are equal.
    """
    named = segments_of(target)
    if REST in named:
        raise InputError(
            f"segments: {REST!r} is the place of the positions in no segment. Give yours another"
            " name.",
            argument="segments",
        )
    inside = set(chain.from_iterable(named.values()))
    rows = [target.ids, source.ids]
    first = common_prefix(rows, min(map(len, rows)))
    return tuple(t for t in target.positions[PAIRED] if t >= first and t not in inside)


def anchors_of(pairs: Sequence[PatchPair]) -> tuple[str, ...]:
    """Return the distinct anchors of the placements of some pairs, in order."""
    anchors: dict[str, None] = {}
    for pair in pairs:
        anchors |= dict.fromkeys(place.anchor for place in pair.placements)
    return tuple(anchors)


def segments_of(prompt: TokenizedPrompt) -> dict[str, tuple[int, ...]]:
    """Return the named segments of a prompt."""
    own = ("last", PAIRED, READS)
    segments: dict[str, tuple[int, ...]] = {}
    for name, where in prompt.positions.items():
        if not name.startswith("pos:") and name not in own:
            segments[name] = tuple(where)
    return segments


READS = "metric_reads"
"""Named positions that a metric function reads."""


def anchor_order(anchors: Sequence[str]) -> list[str]:
    """Sort anchors by position, then head; segments keep their order."""
    first = {anchor: i for i, anchor in enumerate(dict.fromkeys(anchors))}

    def key(anchor: str) -> tuple[int, int, int]:
        numbers: dict[str, int] = {}
        for part in anchor.split(" "):
            if part.startswith(("pos:", "head:")):
                name, number = part.split(":")
                numbers[name] = int(number)
        if not numbers:
            return 0, 0, first[anchor]
        return numbers.get("pos", -1), numbers.get("head", -1), 0

    return sorted(first, key=key)


UNCHANGED = "unchanged"
"""Value by construction: that before the patch."""
SOURCE = "source"
"""Value by construction: that of the source's own run."""


def values_by_construction(
    spec: Patch,
    pair: PatchPair,
    place: Placement,
    layers: Sequence[int],
    n_layers: int,
    reads: Sequence[int],
) -> dict[int, str]:
    """Return the layers at which the value of a place follows by construction, with
    :data:`UNCHANGED` or :data:`SOURCE`.

    - Both prompts have the same tokens up to the last patched position: the patch changes nothing
      at any layer.
    - The stream into block 0 is patched at equal tokens: nothing changes. At all tokens that
      differ: the source's run results.
    - Behind the last attention only the positions that are read act. If the final stream is patched
      at all of them, the source's run results.
    """
    target = pair.target.ids
    source = pair.source.ids if pair.source is not None else ()
    patched = set(place.target_positions)
    read = set(reads)
    is_own = place.control == "none"
    in_place = all(
        t == s for t, s in zip(place.target_positions, place.source_positions, strict=True)
    )
    differ = {p for p, (a, b) in enumerate(zip(target, source, strict=False)) if a != b}
    n_alike = min(differ, default=min(len(target), len(source)))
    if in_place and max(patched) < n_alike:
        return dict.fromkeys(layers, UNCHANGED)
    all_equal = in_place and not differ & patched
    differences_patched = in_place and len(target) == len(source) and differ <= patched
    fixed: dict[int, str] = {}
    for layer in layers:
        changed = window_layers(layer, spec.window, n_layers)
        is_embedding = spec.site == "resid_pre" and 0 in changed
        is_last = spec.site == "resid_post" and n_layers - 1 in changed
        is_behind = changed.start == n_layers - 1 and spec.site not in _BEFORE_ATTENTION
        is_source = (is_embedding and differences_patched) or (is_last and read <= patched)
        has_no_effect = is_embedding and all_equal and changed == range(1)
        if is_own and is_source:
            fixed[layer] = SOURCE
        elif has_no_effect or (is_behind and not patched & read):
            fixed[layer] = UNCHANGED
    return fixed
