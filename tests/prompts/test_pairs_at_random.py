"""Random rows: each one is a pair, a dropped row with a known reason, or one of our errors."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anchorlens.errors import InputError
from anchorlens.prompts.dataset import PAIR_FIXES, RowDropped
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.prompts.pairs import content_of
from anchorlens.prompts.tokenize_pairs import PairTokenizer
from tests.tokenizers_small import small_tokenizer

GOOD = st.text(st.sampled_from("ab é東 \n,[1]"), min_size=1, max_size=8)
BAD = st.text(st.sampled_from("a \x00\ud800"), max_size=2) | st.just("<s><s>a")
IDS = st.lists(st.integers(0, 419), min_size=1, max_size=5)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | BAD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(BAD, inner, max_size=2),
    max_leaves=5,
)
PLACES = st.lists(st.lists(st.integers(-1, 6), min_size=2, max_size=2), max_size=3)


@st.composite
def rows(draw):
    """A row whose prompts share their ends and a segment, with up to one cell of any kind."""
    kind = draw(st.sampled_from([GOOD, GOOD, IDS]))
    start, clean, corrupted, end = (draw(kind) for _ in range(4))
    row = {"clean": start + clean + end, "corrupted": start + corrupted + end}
    row |= {name: draw(kind) for name in ("answer", "wrong") if draw(st.booleans())}
    row |= {"segments": {"x": [clean, corrupted], "y": end}} if draw(st.booleans()) else {}
    row |= {"alignment": draw(PLACES)} if draw(st.integers(0, 3)) == 0 else {}
    columns = ("clean", "corrupted", "answer", "wrong", "id", "group", "segments", "alignment")
    return row | (
        {draw(st.sampled_from(columns)): draw(ANY | GOOD | IDS)}
        if draw(st.integers(0, 2)) == 0
        else {}
    )


KINDS = st.sampled_from([("byte", False), ("byte", True), ("metaspace", True)])


@pytest.mark.slow
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(rows(), min_size=1, max_size=4), KINDS)
def test_a_row_is_a_pair_or_has_a_reason(rows, kind):
    try:
        data = load_pairs(rows)
    except InputError as why:
        assert why.arguments == ("source",)
        return
    assert len(data) + len(data.dropped) == len(rows)
    content = [*map(content_of, data.pairs), *map(vars, data.dropped)]
    json.dumps(content, ensure_ascii=False).encode("utf8")
    assert {row.reason for row in data.dropped} <= {*PAIR_FIXES}
    tokenizer = PairTokenizer(small_tokenizer(kind[0], bos=kind[1]), kind[1], 32, 420)
    for pair in data.pairs:
        try:
            one = tokenizer.tokenize(pair)
        except RowDropped as why:
            assert why.reason in PAIR_FIXES or why.reason.endswith("_token")
            continue
        positions = [{*range(len(prompt.ids))} for prompt in (one.clean, one.corrupted)]
        for side in (0, 1):
            paired, unpaired = [both[side] for both in one.alignment], one.unpaired[side]
            assert sorted([*paired, *unpaired]) == sorted(positions[side])
        for prompt, own in zip((one.clean, one.corrupted), positions, strict=True):
            assert {*pair.segments} <= {*prompt.positions} and set().union(
                *prompt.positions.values()
            ) == own
        assert not (pair.answer and pair.wrong) or one.answer != one.wrong
        assert (pair.answer is None) == (one.answer == ()) and (pair.wrong is None) == (
            one.wrong == ()
        )
