"""Which positions of two prompts are paired: by a list, position by position, by segments, or by
common beginning and end.
"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlens.prompts.dataset import RowDropped
from anchorlens.prompts.pairs import align_positions


def spans(*pairs):
    return [(range(*a), range(*b)) for a, b in pairs]


@pytest.mark.parametrize(
    ("clean", "corrupted", "segments", "paired"),
    [
        # Equal lengths: position by position, whatever the tokens and segments are.
        ("abc", "xyz", (), [(0, 0), (1, 1), (2, 2)]),
        ("abc", "xyz", spans(((0, 1), (1, 2))), [(0, 0), (1, 1), (2, 2)]),
        # Common beginning and end.
        ("abXcd", "abXYZcd", (), [(0, 0), (1, 1), (2, 2), (3, 5), (4, 6)]),
        ("abXcd", "abYZQcd", (), [(0, 0), (1, 1), (3, 5), (4, 6)]),
        ("ab", "abc", (), [(0, 0), (1, 1)]),
        ("bc", "abc", (), [(0, 1), (1, 2)]),
        # Repeated tokens: the beginning comes first, and no position is used twice.
        ("aaa", "aa", (), [(0, 0), (1, 1)]),
        ("abab", "ab", (), [(0, 0), (1, 1)]),
        # Segments of equal length pair inside, although their tokens differ; the text around pairs
        # by its ends.
        ("aPQbc", "aRSbbc", spans(((1, 3), (1, 3))), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 5)]),
        # Segments of unequal length do not.
        ("aPbc", "aRSbc", spans(((1, 2), (1, 3))), [(0, 0), (2, 3), (3, 4)]),
        # Text between two segments.
        (
            "PxyQ",
            "RxzyQ",
            spans(((0, 1), (0, 1)), ((3, 4), (4, 5))),
            [(0, 0), (1, 1), (2, 3), (3, 4)],
        ),
        # Segments in another order: only the text before the first and after the last is paired
        # beside them.
        (
            "aPxQb",
            "aQxxPb",
            spans(((1, 2), (4, 5)), ((3, 4), (1, 2))),
            [(0, 0), (1, 4), (3, 1), (4, 5)],
        ),
    ],
)
def test_positions_pair_by_rule(clean, corrupted, segments, paired):
    ids = [[ord(one) for one in text] for text in (clean, corrupted)]
    assert list(align_positions(*ids, segments)) == paired


def test_an_explicit_list_comes_first():
    assert align_positions([1, 2], [1, 2], explicit=((1, 0), (0, 1))) == ((0, 1), (1, 0))


@pytest.mark.parametrize(
    ("explicit", "said"),
    [
        (((0, 2),), "corrupted position 2"),
        (((-1, 0),), "clean position -1"),
        (((0, 0), (0, 1)), "clean position 0 occurs twice"),
    ],
)
def test_an_explicit_list_names_each_position_once(explicit, said):
    with pytest.raises(RowDropped, match=said) as caught:
        align_positions([1, 2], [1, 2], explicit=explicit)
    assert caught.value.reason == "bad_alignment"


def test_prompts_without_a_common_token_at_the_ends_have_no_pair():
    with pytest.raises(RowDropped) as caught:
        align_positions([1, 2], [3, 2, 4])
    assert caught.value.reason == "no_paired_position"


@st.composite
def prompts(draw):
    """Two prompts of few different tokens, and segments of both in the same order that do not
    overlap.
    """
    ids = [draw(st.lists(st.integers(0, 2), min_size=1, max_size=12)) for _ in range(2)]
    n = draw(st.integers(0, 2))
    cuts = [
        sorted(draw(st.lists(st.integers(0, len(one)), min_size=2 * n, max_size=2 * n)))
        for one in ids
    ]
    ranges = [[range(a, b) for a, b in zip(one[::2], one[1::2], strict=True)] for one in cuts]
    both = [(a, b) for a, b in zip(*ranges, strict=True) if len(a) and len(b)]
    return (*ids, both)


@given(prompts())
def test_a_pairing_is_monotone_symmetric_and_pairs_equal_tokens_outside_segments(case):
    clean, corrupted, segments = case
    swapped = [(b, a) for a, b in segments]
    try:
        pairs = align_positions(clean, corrupted, segments)
    except RowDropped:
        with pytest.raises(RowDropped):
            align_positions(corrupted, clean, swapped)
        return
    assert align_positions(corrupted, clean, swapped) == tuple((b, a) for a, b in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(pairs))
    if len(clean) == len(corrupted):
        assert pairs == tuple((p, p) for p in range(len(clean)))
        return
    inside = {pair for a, b in segments for pair in zip(a, b, strict=False) if len(a) == len(b)}
    assert inside <= set(pairs)
    assert all(clean[a] == corrupted[b] for a, b in set(pairs) - inside)
    if not segments:
        start = next(
            (i for i, (a, b) in enumerate(zip(clean, corrupted, strict=False)) if a != b),
            min(len(clean), len(corrupted)),
        )
        assert set(pairs) >= {(p, p) for p in range(start)}
