"""Select the tokens whose attention is cut in a row: the source, and as many other tokens for the
placebo.
"""

import random
from bisect import bisect
from collections.abc import Iterable, Mapping

from anchorlens.constants import LATER, draw_label
from anchorlens.protocols.probe_sweep.variants import Variant
from anchorlens.questions.edges import parse_edges
from anchorlens.questions.example import Span
from anchorlens.questions.prompts import render_prompt
from anchorlens.questions.spans.entities import find_names
from anchorlens.questions.tokens import RowTokenizer, TokenRow, overlapping
from anchorlens.statistics.pathways import RANDOM, SIZE_MATCHED

BEFORE = "random_before"
AFTER = "random_after"
CONTROLS = ("none", RANDOM, SIZE_MATCHED, BEFORE, AFTER)
# Controls that share a pass if they cut the same positions.
_SAME_AS = {SIZE_MATCHED: "none", BEFORE: RANDOM, AFTER: RANDOM}


def cut_positions(
    row: TokenRow,
    edges: str,
    seed: int,
    *,
    placebos: bool,
    sides: bool = False,
    named: Iterable[int] = (),
) -> dict[str, tuple[int, ...]]:
    """Return control -> cut positions of a row.

    Placebo tokens are drawn from the question tokens outside E_Q and the target. Position 0 and
    ``named`` positions are excluded: a subject that the span rules missed must not be in the
    placebo.

    Args:
        row: Input of the cut.
        edges: Attention edges, ``source -> target``.
        seed: Random seed of the placebo tokens.
        placebos: Whether to draw placebo tokens.
        sides: Whether to also cut the placebo tokens before and after the source separately.
        named: Positions to exclude, see :func:`entity_positions`.

    Returns:
        ``none``: positions of the source; ``random_tokens``: as many other question tokens;
        ``size_matched``: as many tokens of the source as ``random_tokens`` has; ``random_before``
        and ``random_after`` (if ``sides``): ``random_tokens`` before the first source token, and
        the others. Only ``none`` if the question has no other token; empty if the edges cut
        nothing.
    """
    source, target = parse_edges(edges)
    source_positions = row.positions[source]
    target_positions = cut_targets(row, edges)
    if target_positions is None:
        readers = set(range(len(row.ids))) - set(source_positions)
    else:
        readers = set(target_positions)
    if not source_positions or max(readers, default=-1) <= min(source_positions):
        return {}
    cuts = {"none": source_positions}
    # The placebo excludes all of E_Q, even if only a part of it is cut.
    taken = {
        0,
        *source_positions,
        *row.positions["exact_question"],
        *(target_positions or ()),
        *named,
    }
    others = sorted(p for p in row.positions["question_rest"] if p not in taken)
    if target_positions is not None:
        # Later tokens cannot reach the target.
        last = max(target_positions)
        others = [p for p in others if p < last]
        source_positions = tuple(p for p in source_positions if p < last)
    if placebos and others:
        rng = random.Random(f"{seed}:placebo:{row.id}:{draw_label(source)} -> {draw_label(target)}")
        n = min(len(source_positions), len(others))
        drawn = tuple(sorted(rng.sample(others, n)))
        cuts[RANDOM] = drawn
        if n == len(source_positions):
            cuts[SIZE_MATCHED] = source_positions
        else:
            cuts[SIZE_MATCHED] = tuple(sorted(rng.sample(sorted(source_positions), n)))
        if sides:
            cuts |= _split_at(min(source_positions), drawn)
    return cuts


def _split_at(source: int, drawn: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the placebo tokens before and after the source; those after it have already attended
    to it.
    """
    before = bisect(drawn, source)
    sides: dict[str, tuple[int, ...]] = {}
    if before:
        sides[BEFORE] = drawn[:before]
    if drawn[before:]:
        sides[AFTER] = drawn[before:]
    return sides


def cut_targets(row: TokenRow, edges: str) -> tuple[int, ...] | None:
    """Return the positions that no longer attend to the source; None for all later positions."""
    target = parse_edges(edges)[1]
    return None if target == LATER else row.positions[target]


def cut_variants(positions: Mapping[str, tuple[int, ...]]) -> tuple[Variant, ...]:
    """Return one variant for each distinct cut of a row; controls with the same cut share a
    variant.
    """
    controls: dict[str, list[str]] = {}
    for name in CONTROLS:
        if name not in positions:
            continue
        shared = _SAME_AS.get(name, name)
        is_same = positions.get(shared) == positions[name]
        controls.setdefault(shared if is_same else name, []).append(name)
    variants: list[Variant] = []
    for first, names in controls.items():
        variants.append(Variant(controls=tuple(names), positions=positions[first]))
    return tuple(variants)


def entity_positions(row: TokenRow, tokenizer: RowTokenizer) -> tuple[int, ...]:
    """Return the positions of names, numbers and quotations in the question, which placebos
    exclude.
    """
    start = render_prompt(tokenizer.prompt, row.question, tokenizer.tokenizer).question_start
    offsets = tokenizer.encode(row.text)[1]
    positions: set[int] = set()
    for span in find_names(row.question):
        in_prompt = Span(span.start + start, span.end + start)
        positions.update(overlapping(offsets, in_prompt))
    return tuple(sorted(positions))
