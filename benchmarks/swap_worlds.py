"""Simulated changes of swaps: worlds without an effect in which few rows, their shares or their
scales make bands fail, and effects of several shapes (``null_rates_swap.py --kinds``).

Of a world without an effect the curve and each null have the same mean over the population. Nulls
are drawn apart, both from the null's distribution. Where a share q of the rows falls in the nulls
alone, a sample of n rows lacks them with probability (1 - q)^n: so many claims are its limit.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], tuple[Array, Array, Array]]
"""Generator and number of questions -> curve and both nulls, each [anchor row layer]."""

N_ANCHORS, N_LAYERS = 2, 30
HOLDS = range(10, 20)
"""Layers of the first anchor at which an effect holds."""
ONE_LAYER = range(15, 16)


def smooth(rng: np.random.Generator, *shape: int, rho: float = 0.8) -> Array:
    """Draw unit normal noise with correlation ``rho`` between neighbours along the last axis."""
    steps = rng.normal(size=shape)
    out = np.empty(shape)
    out[..., 0] = steps[..., 0]
    for layer in range(1, shape[-1]):
        out[..., layer] = rho * out[..., layer - 1] + np.sqrt(1 - rho**2) * steps[..., layer]
    return out


def _arm(rng: np.random.Generator, n: int, rho: float = 0.8) -> Array:
    return smooth(rng, N_ANCHORS, n, N_LAYERS, rho=rho)


def _few_rows(rng: np.random.Generator, n: int, share: float) -> Array:
    """Draw which rows fall at all layers, 1 or 0 [row 1]."""
    return (rng.random(n) < share).astype(np.float64)[:, None]


def _falls(rng: np.random.Generator, n: int, share: float) -> Array:
    """Draw an arm in which some rows are at -100 at all layers."""
    return np.where(_few_rows(rng, n, share) > 0, -100.0, _arm(rng, n))


def _both_fall(rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
    one, two, three = (_falls(rng, n, 0.03) for _ in range(3))
    return one, two, three


def _curve_falls(rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
    return _falls(rng, n, 0.03), _arm(rng, n) - 3, _arm(rng, n) - 3


def _nulls_fall(share: float) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
        return _arm(rng, n) - 100 * share, _falls(rng, n, share), _falls(rng, n, share)

    return draw


def _huge_rows(rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
    scale = 1 + 9 * _few_rows(rng, n, 0.05)
    curve = np.clip(3 * scale * _arm(rng, n, 0.95), -100, 100)
    one, two = (np.clip(3 * _arm(rng, n, 0.95), -100, 100) for _ in range(2))
    return curve, one, two


def _subgroups(share: float, here: float, elsewhere: float) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
        level = np.where(_few_rows(rng, n, share) > 0, here, elsewhere)
        one, two = (3 * _arm(rng, n) - 20 for _ in range(2))
        return level + 3 * _arm(rng, n) - 20, one, two

    return draw


def _flips(rate: float) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
        one, two, three = (-100.0 * (_arm(rng, n) < stats.norm.ppf(rate)) for _ in range(3))
        return one, two, three

    return draw


def _zeros(rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
    moves = _few_rows(rng, n, 0.2) * (np.arange(N_LAYERS) % 3 == 0)
    one, two, three = (20 * moves * _arm(rng, n) for _ in range(3))
    return one, two, three


def _alike(rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
    shared = 30 * _arm(rng, n) - 40
    one, two, three = (shared + 0.35 * _arm(rng, n) for _ in range(3))
    return one, two, three


def _scales(rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
    one, two, three = (np.geomspace(0.05, 30, N_LAYERS) * _arm(rng, n) - 20 for _ in range(3))
    return one, two, three


def _skewed_scales(rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
    scale = np.geomspace(0.05, 30, N_LAYERS)
    curve = -scale * stats.expon.ppf(stats.norm.cdf(_arm(rng, n)))
    one, two = (-scale + 0.1 * scale * _arm(rng, n) for _ in range(2))
    return curve, one, two


def _low_p(rng: np.random.Generator, n: int) -> Array:
    """Draw P before in percent: most are near 0, some near 100, [row 1]."""
    return 100 * rng.beta(0.25, 0.6, n)[:, None]


def _p_is_lost(rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
    p = _low_p(rng, n)
    one, two = (-0.4 * p + 0.3 * _arm(rng, n) for _ in range(2))
    return -p * (_arm(rng, n) < stats.norm.ppf(0.4)), one, two


def _p_falls(rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
    p = _low_p(rng, n)
    one, two, three = (-p * stats.norm.cdf(_arm(rng, n)) ** 2 for _ in range(3))
    return one, two, three


def _lognormal(rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
    falls = np.minimum(5 * np.exp(1.2 * _arm(rng, n)), 100)
    # Mean of min(5 exp(1.2 z), 100) over the normal z, by numerical integration.
    at = np.linspace(-8, 8, 20_001)
    mean = np.trapezoid(np.minimum(5 * np.exp(1.2 * at), 100) * stats.norm.pdf(at), at)
    is_skewed = np.arange(N_LAYERS) % 2 == 0
    curve = np.where(is_skewed, -falls, _arm(rng, n))
    one, two = (np.where(is_skewed, -mean, 0.0) + _arm(rng, n) for _ in range(2))
    return curve, one, two


NULLS: Mapping[str, Draw] = {
    "3 % at -100 in all arms": _both_fall,
    "3 % at -100 in the curve": _curve_falls,
    "3 % at -100 in the nulls": _nulls_fall(0.03),
    "10 % at -100 in the nulls": _nulls_fall(0.1),
    "5 % of rows ten times as large": _huge_rows,
    "subgroups +20 and -20": _subgroups(0.5, 20.0, -20.0),
    "subgroups -40 and +10 (1:4)": _subgroups(0.2, -40.0, 10.0),
    "flips rate 0.02": _flips(0.02),
    "flips rate 0.2": _flips(0.2),
    "most cells 0": _zeros,
    "arms nearly equal": _alike,
    "scales 0.05 to 30": _scales,
    "skewed scales 0.05 to 30": _skewed_scales,
    "P before low and all lost in 40 %": _p_is_lost,
    "P before low and arms alike": _p_falls,
    "lognormal": _lognormal,
}
"""Worlds without an effect."""


def _effect(size: float, share: float, sd: float) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
        one, two, three = (sd * _arm(rng, n) for _ in range(3))
        one[0][:, HOLDS] += size * _few_rows(rng, n, share)
        return one, two, three

    return draw


def _effect_on_p(share: float, part: float) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
        one, two, three = (0.3 * _arm(rng, n) for _ in range(3))
        one[0][:, HOLDS] -= part * _low_p(rng, n) * _few_rows(rng, n, share)
        return one, two, three

    return draw


def _one_layer(rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
    one, two, three = (10 * _arm(rng, n) for _ in range(3))
    one[0][:, ONE_LAYER] -= 10
    return one, two, three


EFFECTS: Mapping[str, Draw] = {
    "-20 in half (sd 10)": _effect(-20.0, 0.5, 10.0),
    "-20 in half (sd 3)": _effect(-20.0, 0.5, 3.0),
    "-20 in half and all else 0": _effect(-20.0, 0.5, 0.0),
    "-8 in all (sd 10)": _effect(-8.0, 1.0, 10.0),
    "-3 in all (sd 3)": _effect(-3.0, 1.0, 3.0),
    "-60 in 15 % (sd 1)": _effect(-60.0, 0.15, 1.0),
    "-60 in 30 % (sd 1)": _effect(-60.0, 0.3, 1.0),
    "all of P in half": _effect_on_p(0.5, 1.0),
    "half of P in all": _effect_on_p(1.0, 0.5),
    "-10 at one layer (sd 10)": _one_layer,
}
"""Effects at :data:`HOLDS` of the first anchor, or at one of these layers."""


def draw_world(name: str, questions: int, seed: int) -> Array:
    """Draw one sweep of :data:`NULLS` or :data:`EFFECTS`, [anchor control question layer]."""
    rng = np.random.default_rng([seed, questions, *name.encode()])
    made = {**NULLS, **EFFECTS}[name](rng, questions)
    return np.stack(made, axis=1)
