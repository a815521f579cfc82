"""The cone engine on random batches of every kind of configuration; many more by ``python -m
tests.engine.fuzz``.
"""

import random

import pytest

from tests.engine.configurations import CONFIGS
from tests.engine.fuzz import KINDS, numbered
from tests.tiers import choose_cases

CASES = {"swaps": 2, "cuts": 1}
# One of these each, in turn.
OTHERS = ("together", "jointly", "cells", "in_a_row")
# A change that counts as one.
CHANGED = 1e-2


@pytest.mark.parametrize("name", CONFIGS)
def test_fixed_cases_equal_the_reference_engine(name):
    contrasts = []
    for kind, n_cases in {**CASES, OTHERS[list(CONFIGS).index(name) % len(OTHERS)]: 1}.items():
        for case in range(n_cases):
            one = numbered(kind, name, case)
            assert one.off <= 1, (kind, case)
            contrasts.append(one.effect)
    assert sum(effect > CHANGED for effect in contrasts) >= 1, contrasts


def check_cases(kind, first):
    """Two cases of every model; a failure names its case: ``numbered(kind, name, case)`` runs it
    again.
    """
    contrasts = []
    for name in CONFIGS:
        for case in range(first, first + 2):
            one = numbered(kind, name, case)
            assert one.off <= 1, (kind, name, case)
            contrasts.append(one.effect)
    assert sum(effect > CHANGED for effect in contrasts) > len(contrasts) / 4


@pytest.mark.parametrize("kind", choose_cases((), KINDS, slow=("swaps",)))
def test_other_cases_equal_the_reference_engine(kind):
    check_cases(kind, 10**6)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_new_cases_at_every_run_equal_the_reference_engine(kind):
    check_cases(kind, random.SystemRandom().randrange(10**6, 10**9))
