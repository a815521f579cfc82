"""Upper limits of what an audit missed hold for any population."""

import numpy as np
import pytest

from anchorlens.statistics.audits import Audit, most_with_property


def test_an_audit_of_everything_knows_the_number():
    assert most_with_property([Audit(30, 30, 4)]) == 4
    assert most_with_property([Audit(30, 30, 4), Audit(9, 9, 1)]) == 5


def test_a_limit_is_the_hypergeometric_one():
    from scipy.stats import hypergeom

    limit = most_with_property([Audit(1000, 200, 3)])
    assert hypergeom.cdf(3, 1000, limit, 200) >= 0.05 > hypergeom.cdf(3, 1000, limit + 1, 200)


def test_more_draws_and_less_confidence_give_lower_limits():
    wide = most_with_property([Audit(1000, 100, 0)])
    assert most_with_property([Audit(1000, 300, 0)]) < wide
    assert most_with_property([Audit(1000, 100, 0)], 0.8) < wide
    assert most_with_property([Audit(1000, 100, 2)]) > wide


@pytest.mark.parametrize("hidden", [(0, 0), (6, 0), (0, 25), (40, 300), (1, 1)])
def test_the_limit_holds_in_95_of_100_draws(hidden):
    """400 audits of two strata of 200 and 3,000 edges, of which some have the property; the lower
    end of the interval of 400 repeats at 95 % is 92 %.
    """
    rng = np.random.default_rng(sum(hidden))
    holds = 0
    for _ in range(400):
        found = [
            rng.hypergeometric(n, size - n, 50) if n else 0
            for n, size in zip(hidden, (200, 3000), strict=True)
        ]
        audits = [Audit(200, 50, int(found[0])), Audit(3000, 50, int(found[1]))]
        holds += most_with_property(audits) >= sum(hidden)
    assert holds / 400 >= 0.92
