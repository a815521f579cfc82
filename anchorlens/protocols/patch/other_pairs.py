"""Other pairs of a patch sweep, for the controls ``other_pair`` and ``norm_matched`` (METHOD
4b).
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.protocols.patch.metric_reading import Answers
from anchorlens.protocols.patch.placements import NORM_MATCHED, OTHER_PAIR, PAIRED, PatchPair
from anchorlens.protocols.patch.spec import PairSpecification

DirectionPair: TypeAlias = tuple[TokenizedPrompt, TokenizedPrompt]
"""Two prompts whose difference is a direction."""


def pair_direction_id(base_id: str, side: int) -> str:
    """Return the id of a prompt of a direction: ``base~a``."""
    return f"{base_id}~{'ab'[side]}"


def _without_answer(source: TokenizedPrompt, base_id: str, side: int) -> TokenizedPrompt:
    """Return a prompt of a direction, without the tokens of its own pair's answer."""
    n_prompt = source.positions["last"][0] + 1
    return replace(source, id=pair_direction_id(base_id, side), ids=source.ids[:n_prompt])


@dataclass(frozen=True)
class OtherPairs:
    """Draws other pairs for the controls of a sweep.

    Another pair is of another group, has as many prompt tokens, other tokens and another answer,
    and the template of the pair where that is known.

    Attributes:
        spec: Arguments of the sweep.
        pairs: Measured pairs.
        answers: Pair id -> tokens of the answer and of the wrong answer.
    """

    spec: PairSpecification
    pairs: Sequence[PatchPair]
    answers: Mapping[str, Answers]
    _uses: dict[str, Counter[str]] = field(
        default_factory=lambda: {OTHER_PAIR: Counter(), NORM_MATCHED: Counter()},
        init=False,
        repr=False,
        compare=False,
    )

    def pick_partner(self, pair: PatchPair) -> TokenizedPrompt | None:
        """Draw the source of another pair, one that serves the fewest earlier draws; None if there
        is none.

        Pairs that share a partner are not independent: of n pairs that all fit each other, each
        serves about once.
        """
        answer = self.answers[pair.base.id].answer
        fits = [source for source, theirs in self._others(pair) if not answer or theirs != answer]
        if not fits:
            return None
        random.Random(f"{self.spec.seed}:{OTHER_PAIR}:{pair.base.id}").shuffle(fits)
        uses = self._uses[OTHER_PAIR]
        chosen = min(fits, key=lambda source: uses[source.id])
        uses[chosen.id] += 1
        return chosen

    def pick_directions(self, pair: PatchPair) -> DirectionPair | None:
        """Draw the sources of two other pairs whose answers are none of the pair's own, those that
        serve the fewest earlier draws first; None if there are fewer than two.
        """
        own = pair.source
        assert own is not None  # every pair has two prompts
        answers = self.answers[pair.base.id]
        known = {answer for answer in (answers.answer, answers.wrong) if answer}
        fits: list[TokenizedPrompt] = []
        for source, theirs in self._others(pair):
            if theirs not in known and source.positions[PAIRED] == own.positions[PAIRED]:
                fits.append(source)
        rng = random.Random(f"{self.spec.seed}:{NORM_MATCHED}:{pair.base.id}:directions")
        rng.shuffle(fits)
        uses = self._uses[NORM_MATCHED]
        fits.sort(key=lambda source: uses[source.id])
        chosen: list[TokenizedPrompt] = []
        groups: set[str] = set()
        for source in fits:
            if source.group not in groups and len(chosen) < 2:
                chosen.append(source)
                groups.add(source.group)
        if len(chosen) < 2:
            return None
        uses.update(source.id for source in chosen)
        first, second = chosen
        return _without_answer(first, pair.base.id, 0), _without_answer(second, pair.base.id, 1)

    def _others(self, pair: PatchPair) -> list[tuple[TokenizedPrompt, tuple[int, ...]]]:
        """Return the sources of other groups with as many prompt tokens and other tokens, of the
        same template where it is known, with their answers.
        """
        own = pair.source
        assert own is not None  # every pair has two prompts
        found: list[tuple[TokenizedPrompt, tuple[int, ...]]] = []
        for other in self.pairs:
            source = other.source
            if source is None or other.base.group == pair.base.group:
                continue
            same_template = not pair.base.cluster or other.base.cluster == pair.base.cluster
            same_length = source.positions["last"] == own.positions["last"]
            if same_template and same_length and source.ids != own.ids:
                found.append((source, self.answers[other.base.id].answer))
        return found
