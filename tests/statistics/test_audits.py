"""Upper limits of what an audit missed hold for any population."""

import numpy as np
import pytest

from anchorlens.statistics.audits import Audit, audit_screen, most_with_property


def test_an_audit_of_everything_knows_the_number():
    assert most_with_property([Audit(30, 30, 4)]) == 4
    assert most_with_property([Audit(30, 30, 4), Audit(9, 9, 1)]) == 5


def test_a_stratum_that_is_known_does_not_widen_the_limit_of_the_other():
    part = Audit(1000, 200, 3)
    assert most_with_property([part, Audit(30, 30, 4)]) == most_with_property([part]) + 4
    assert most_with_property([Audit(30, 0, 0), part]) == most_with_property([part]) + 30
    assert most_with_property([]) == 0


def test_a_limit_is_the_hypergeometric_one():
    from scipy.stats import hypergeom

    limit = most_with_property([Audit(1000, 200, 3)])
    assert hypergeom.cdf(3, 1000, limit, 200) >= 0.05 > hypergeom.cdf(3, 1000, limit + 1, 200)


def test_the_limit_of_two_strata_is_that_of_their_estimate():
    """Against the definition, by all divisions of all numbers, with scipy's distribution."""
    from scipy.stats import hypergeom

    sizes, drawn = (11, 30), (5, 7)
    weights = [size / n for size, n in zip(sizes, drawn, strict=True)]
    pmf = [
        hypergeom.pmf(np.arange(n + 1)[:, None], size, np.arange(size + 1), n)
        for size, n in zip(sizes, drawn, strict=True)
    ]
    estimates = np.add.outer(np.arange(6) * weights[0], np.arange(8) * weights[1])
    limits = np.zeros((6, 8), dtype=int)
    for found in np.ndindex(6, 8):
        below = estimates <= estimates[found] + 1e-9
        for numbers in np.ndindex(12, 31):
            least = all(n >= x for n, x in zip(numbers, found, strict=True))
            free = zip(sizes, drawn, numbers, found, strict=True)
            most = all(size - n >= own - x for size, own, n, x in free)
            both = np.outer(pmf[0][:, numbers[0]], pmf[1][:, numbers[1]])
            if least and most and both[below].sum() >= 0.05:
                limits[found] = max(limits[found], sum(numbers))
        strata = [Audit(*one) for one in zip(sizes, drawn, found, strict=True)]
        assert most_with_property(strata) == most_with_property(strata[::-1]) == limits[found]
    # So the limit holds with 95 % or more for each population.
    for numbers in np.ndindex(12, 31):
        both = np.outer(pmf[0][:, numbers[0]], pmf[1][:, numbers[1]])
        assert both[limits >= sum(numbers)].sum() >= 0.95 - 1e-9


def test_nothing_found_in_two_strata_allows_what_all_draws_miss_with_5_percent():
    limit = most_with_property([Audit(400, 100, 0), Audit(5000, 100, 0)])
    # As in one stratum of 5,000: the other one would be found sooner.
    assert limit == most_with_property([Audit(5000, 100, 0)])


def test_more_draws_and_less_confidence_give_lower_limits():
    wide = most_with_property([Audit(1000, 100, 0)])
    assert most_with_property([Audit(1000, 300, 0)]) < wide
    assert most_with_property([Audit(1000, 100, 0)], 0.8) < wide
    assert most_with_property([Audit(1000, 100, 2)]) > wide


@pytest.mark.slow
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


def screen(values, scores, **options):
    """Screen of known values, and the items that were measured."""
    asked = []

    def measure(items):
        asked.extend(items)
        return {item: values[item] for item in items}

    return audit_screen(scores, measure, **options), asked


def test_candidates_have_the_largest_sizes_of_scores_and_the_rest_is_drawn_in_two_strata():
    scores = {f"e{i}": (-1) ** i * float(i) for i in range(100)}
    found, asked = screen(scores, scores, top=4, audit=10, seed=1)
    assert found.candidates == ("e99", "e98", "e97", "e96")
    assert set(found.strata[0]) == {f"e{i}" for i in range(80, 96)}
    assert set(found.strata[1]) == {f"e{i}" for i in range(80)}
    assert [len(own) for own in found.drawn] == [5, 5]
    assert sorted(asked) == sorted({*found.candidates, *found.drawn[0], *found.drawn[1]})
    assert found.cut == 97.5
    assert found.missed_at_most == most_with_property(found.audits)
    other, _ = screen(scores, scores, top=4, audit=10, seed=2)
    assert other.drawn != found.drawn and other.candidates == found.candidates


@pytest.mark.parametrize(("audit", "drawn"), [(1, 1), (2, 2), (96, 96), (500, 96)])
def test_no_more_is_drawn_than_was_asked_for(audit, drawn):
    scores = {f"e{i}": float(i) for i in range(100)}
    found, _ = screen(scores, scores, top=4, audit=audit)
    assert sum(one.drawn for one in found.audits) == drawn
    if drawn == 96:
        assert found.missed_at_most == 0


def test_a_screen_of_few_items_misses_nothing():
    found, _ = screen({"a": 1.0, "b": 2.0}, {"a": 0.0, "b": 0.0}, top=5, audit=5)
    assert found.candidates == ("a", "b") and found.missed_at_most == 0


def test_a_value_equal_to_the_cut_counts():
    values = dict.fromkeys("abcdef", 1.0)
    found, _ = screen(values, values, top=1, audit=5)
    assert found.missed_at_most == 5
