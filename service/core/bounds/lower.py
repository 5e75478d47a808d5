"""Lower bounds of the total variation: each is a test that somebody could run.

Whatever threshold a search finds, the test with it is a valid lower bound; only the values
have to be rounded down. t = 1/σ, T = M·E steps, MoG(m) = (1/M) Σ_j N(m t e_j, I).
"""

import math
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from typing import Final

import numpy as np
from scipy import special  # pyright: ignore[reportMissingTypeStubs]

from service.core.bounds.published import DOWN

MOST_SHIFT: Final = 100.0  # t beyond it is lowered to it: TV falls with σ, so that is safe
_TEST_MARGIN: Final = 1 - 1e-10  # relative rounding of a difference of normal tails
_COUNT_MARGIN: Final = 1e-9  # absolute rounding of two binomial tails
_MOST_TRIALS: Final = 1e8  # beyond it the margin of binomial tails is not known well enough
_DIGITS: Final = 200  # of the moments, whose differences cancel
_MOMENT_LEAST_SIGMA: Final = 0.05


def max_test(t: float, *, updates_per_epoch: int, high: float, low: float) -> float:
    """TV of MoG(high) against MoG(low), from below: one epoch, the largest coordinate.

    TV ≥ Φ(a)^{M−1} [Φ(a − low·t) − Φ(a − high·t)] for every a.

    Source: arXiv 2601.10237 for (1, 0); the same test for other distances.
    """
    t = min(t, MOST_SHIFT)
    rest = updates_per_epoch - 1

    def power(a: float) -> float:
        others = math.exp(rest * float(special.log_ndtr(a)))
        # Upper tails do not cancel where a is large.
        return others * (_tail(a - high * t) - _tail(a - low * t))

    return _best_threshold(power, high * t) * _TEST_MARGIN


def poisson_max_test(
    t: float, *, sampling_rate: float, steps: int, high: float, low: float
) -> float:
    """TV of Poisson sampling over all steps, from below, by the largest coordinate.

    TV ≥ [(1−q)Φ(a) + qΦ(a − low·t)]^T − [(1−q)Φ(a) + qΦ(a − high·t)]^T.
    """
    t = min(t, MOST_SHIFT)
    q = sampling_rate

    def power(a: float) -> float:
        keep_low = (1 - q) * _tail(-a) + q * _tail(low * t - a)
        gap = q * (_tail(a - high * t) - _tail(a - low * t))
        if keep_low <= 0 or gap <= 0:
            return 0.0
        share = min(gap / keep_low, 1 - 1e-15)
        miss_low = (1 - q) * _tail(a) + q * _tail(a - low * t)
        log_keep = math.log1p(-miss_low) if miss_low < 0.5 else math.log(keep_low)
        return -math.exp(steps * log_keep) * math.expm1(steps * math.log1p(-share))

    return _best_threshold(power, high * t) * _TEST_MARGIN


def count_test(t: float, *, updates_per_epoch: int, epochs: int, high: float, low: float) -> float:
    """TV of E independently redrawn epochs of MoG(high) against MoG(low), from below.

    Counts the epochs whose largest coordinate exceeds a: Bin(E, p₁) against Bin(E, p₀).
    """
    t = min(t, MOST_SHIFT)
    rest = updates_per_epoch - 1

    def hit(a: float, m: float) -> float:
        logs = rest * float(special.log_ndtr(a)) + float(special.log_ndtr(a - m * t))
        return -math.expm1(logs)

    return _binomial_test(lambda a: (hit(a, low), hit(a, high)), epochs, high * t)


def poisson_count_test(
    t: float, *, sampling_rate: float, steps: int, high: float, low: float
) -> float:
    """TV of Poisson sampling, from below, by the number of coordinates above a."""
    t = min(t, MOST_SHIFT)
    q = sampling_rate

    def hit(a: float, m: float) -> float:
        return (1 - q) * _tail(a) + q * _tail(a - m * t)

    return _binomial_test(lambda a: (hit(a, low), hit(a, high)), steps, high * t)


def sum_test(t: float, *, updates_per_epoch: int, epochs: int, distance: float) -> float:
    """TV of once-per-epoch sampling, from below, by the sum of all coordinates.

    The sum is N(E·m·t, M·E) whatever the allocation: TV ≥ 2Φ(d t √(E/M)/2) − 1.
    """
    shift = distance * t * math.sqrt(epochs / updates_per_epoch)
    return math.erf(shift / math.sqrt(8)) * DOWN


def moment_bound(t: float, *, draws: int, rounds: int) -> float:
    """TV of the sum-of-lognormals pair, from below, by Hölder: ½ (E X²)^{3/2} / (E X⁴)^{1/2}.

    X = L − 1 under N(0, I), L = Π over ``rounds`` of (1/n) Σ_{j≤n} Y_j (random allocation,
    n = ``draws``). Source: Ertan & van Dijk 2026, arXiv 2605.06259, Appendix C.4, extended
    to products.
    """
    if t > 1 / _MOMENT_LEAST_SIGMA:
        return 0.0
    with localcontext(_moment_context()):
        second, third, fourth = _lognormal_moments(t)
        n = Decimal(draws)
        squares = second / n
        cubes = third / n**2
        fourths = (fourth + 3 * (n - 1) * second**2) / n**3
        return _hoelder(squares, cubes, fourths, rounds)


def poisson_moment_bound(t: float, *, sampling_rate_inverse: int, steps: int) -> float:
    """As ``moment_bound`` for Poisson sampling, L = Π over all steps of 1 − q + qY_j."""
    if t > 1 / _MOMENT_LEAST_SIGMA:
        return 0.0
    with localcontext(_moment_context()):
        second, third, fourth = _lognormal_moments(t)
        q = 1 / Decimal(sampling_rate_inverse)
        return _hoelder(second * q**2, third * q**3, fourth * q**4, steps)


def _tail(x: float) -> float:
    return float(special.ndtr(-x))


def _best_threshold(power: Callable[[float], float], shift: float) -> float:
    """The largest value of ``power`` seen on a grid and twice refined around its best."""
    low, high = -9.0, max(9.0, shift + 9.0)
    best = 0.0
    for _ in range(4):
        points = [low + (high - low) * i / 80 for i in range(81)]
        values = [power(point) for point in points]
        index = max(range(81), key=values.__getitem__)
        best = max(best, values[index])
        low, high = points[max(index - 1, 0)], points[min(index + 1, 80)]
    return best


def _binomial_test(
    hits: Callable[[float], tuple[float, float]], trials: int, shift: float
) -> float:
    """The largest over a, k of P(Bin(n, p₁) ≥ k) − P(Bin(n, p₀) ≥ k)."""
    if trials > _MOST_TRIALS:
        return 0.0

    def power(a: float) -> float:
        p0, p1 = hits(a)
        if not 0 < p0 < p1 < 1:
            return 0.0
        # The likelihood ratio crosses 1 here; any k is valid, this one is best.
        misses = math.log1p(-p0) - math.log1p(-p1)
        k = math.ceil(trials * misses / (misses + math.log(p1 / p0)))
        k = min(max(k, 1), trials)
        tails = special.betainc(float(k), float(trials - k + 1), np.array([p0, p1]))
        return float(tails[1] - tails[0])

    return max(_best_threshold(power, shift) * _TEST_MARGIN - _COUNT_MARGIN, 0.0)


def _moment_context() -> Context:
    """Enough digits for the cancellation and the widest exponents there are."""
    return Context(prec=_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN)


def _lognormal_moments(t: float) -> tuple[Decimal, Decimal, Decimal]:
    """Central moments 2 to 4 of Y = exp(tX − t²/2)."""
    base = (Decimal(t) ** 2).exp()
    second = base - 1
    third = base**3 - 3 * base + 2
    fourth = base**6 - 4 * base**3 + 6 * base - 3
    return second, third, fourth


def _hoelder(squares: Decimal, cubes: Decimal, fourths: Decimal, rounds: int) -> float:
    """The bound from the moments of one round's factor − 1; ``rounds`` factors multiply."""
    raw2 = (1 + squares) ** rounds
    raw3 = (1 + 3 * squares + cubes) ** rounds
    raw4 = (1 + 6 * squares + 4 * cubes + fourths) ** rounds
    second = raw2 - 1
    fourth = raw4 - 4 * raw3 + 6 * raw2 - 3
    if fourth <= 0:
        return 0.0
    return float((second**3 / fourth).sqrt() / 2) * DOWN
