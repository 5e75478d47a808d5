"""Privacy profiles in closed form: Gaussian compositions and single steps.

With μ the distance between the two means in standard deviations and x = ε/μ − μ/2,

    δ(ε) = Φ(−x) − e^ε Φ(−x − μ) = ½ e^{−x²/2} [erfcx(x/√2) − erfcx((x + μ)/√2)],

because (x + μ)² − x² = 2ε. The second form never subtracts two tiny tails or multiplies by
e^ε, so δ keeps its digits down to 1e-300. Each interval carries the rounding margin that
its own cancellation calls for (docs/accounting.md, "Closed forms").
"""

import math
from dataclasses import dataclass

from service.core.accounting.arrays import erfcx, log_normal_cdf, normal_cdf
from service.core.interval import Interval

# erfcx of SciPy is good to about 1e-15 relative; doubled.
_SPECIAL_ERROR = 4e-15
_ROUNDING = 4 * 2.0**-53
_SQRT2 = math.sqrt(2)
_LEAST = 1e-300


def gaussian_delta(epsilon: float, *, mu: float) -> Interval:
    """δ(ε) of N(μ, 1) against N(0, 1), the tight profile of any Gaussian composition.

    Guarantees: contains the true value; relative width near 1e-14 except where μ or the
    exponent x²/2 is extreme.

    Args:
        epsilon: any real number.
        mu: > 0; √(Σ sensitivity²/σ²) for a composition.

    Source: Balle & Wang 2018, Theorem 8; composition adds μ².
    """
    first, second = _gaussian_terms(epsilon, mu=mu)
    x = epsilon / mu - mu / 2
    x_error = _ROUNDING * (abs(epsilon) / mu + mu / 2)
    # The common factor e^{−x²/2} moves by (|x| + 2) Δx; the bracket by its own rounding.
    error = (first + second) * _SPECIAL_ERROR
    error += abs(first - second) * (_ROUNDING * x * x + (abs(x) + 2) * x_error)
    return _clamped(first - second, error=error)


def _gaussian_terms(epsilon: float, *, mu: float) -> tuple[float, float]:
    """Φ(−x) and e^ε Φ(−x − μ), each with its relative digits."""
    x = epsilon / mu - mu / 2
    bell = 0.5 * math.exp(-x * x / 2)
    first = bell * float(erfcx(x / _SQRT2)) if x > -5 else float(normal_cdf(-x))
    if x + mu > -5:
        return first, bell * float(erfcx((x + mu) / _SQRT2))
    return first, math.exp(epsilon) * float(normal_cdf(-x - mu))


def gaussian_epsilon_guess(*, mu: float, delta: float) -> float:
    """A point near ε(δ) of the Gaussian profile, never negative."""
    tail = math.sqrt(2 * math.log(1 / delta)) if delta < 0.5 else 0.5
    return max(mu * mu / 2 + mu * tail, 0.0)


@dataclass(frozen=True, slots=True)
class GaussianProfile:
    """The profile of a Gaussian composition of total distance ``mu``."""

    mu: float

    def __call__(self, epsilon: float, /) -> Interval:
        """δ(ε) of N(μ, 1) against N(0, 1)."""
        return gaussian_delta(epsilon, mu=self.mu)


def subsampled_remove_delta(epsilon: float, *, rate: float, mu: float) -> Interval:
    """δ(ε) of (1−q)N(0,1) + qN(μ,1) against N(0,1), for ε ≥ 0.

    P − e^ε Q = q [N(μ) − e^{ε'} N(0)] with e^{ε'} = 1 + (e^ε − 1)/q.
    """
    return _scaled(gaussian_delta(_amplified(epsilon, rate=rate), mu=mu), rate)


def subsampled_add_delta(epsilon: float, *, rate: float, mu: float) -> Interval:
    """δ(ε) of N(0,1) against (1−q)N(0,1) + qN(μ,1), for ε ≥ 0.

    P − e^ε Q = c N(0) − e^ε q N(μ) with c = 1 − e^ε (1 − q): a Gaussian profile at
    log(e^ε q / c), by symmetry, and nothing at all once c ≤ 0.
    """
    # c = q − (e^ε − 1)(1 − q), written so that small ε and q keep their digits.
    c = rate - (math.expm1(epsilon) * (1 - rate) if epsilon < 700 else math.inf)
    if c <= _ROUNDING * rate:
        return Interval(0.0, 0.0 if c <= -_ROUNDING * rate else _ROUNDING * rate)
    c_error = _ROUNDING * (rate + abs(rate - c)) / c
    inner = gaussian_delta(epsilon + math.log(rate / c), mu=mu)
    # The inner ε moves by c_error, and δ falls with ε at the rate of its second term.
    slope = _gaussian_terms(epsilon + math.log(rate / c), mu=mu)[1]
    error = c_error * (2 * slope + inner.upper) + inner.width
    return _clamped(c * 0.5 * (inner.lower + inner.upper), error=c * error)


def subsampled_replace_delta(epsilon: float, *, rate: float, mu: float, cut: float) -> Interval:
    """δ(ε) of (1−q)N(0,1) + qN(μ,1) against (1−q)N(0,1) + qN(−μ,1).

    The best event is z > ``cut``, where the loss is ε; an error in ``cut`` enters squared.
    """
    log_tail = float(log_normal_cdf(-cut))
    # (1−q)(1 − e^ε) Φ(−cut); the event holds no more Q-mass than e^{−ε}.
    if epsilon < 1:
        plain = -(1 - rate) * math.expm1(epsilon) * math.exp(log_tail)
    else:
        plain = (1 - rate) * (math.exp(log_tail) - math.exp(min(epsilon + log_tail, 0.0)))
    hit = float(normal_cdf(mu - cut))
    missed = math.exp(min(epsilon + float(log_normal_cdf(-mu - cut)), 0.0))
    value = plain + rate * (hit - missed)
    size = abs(plain) + rate * (hit + missed)
    return _clamped(value, error=size * (_SPECIAL_ERROR * 8 + _ROUNDING * (cut * cut + epsilon)))


def _amplified(epsilon: float, *, rate: float) -> float:
    if epsilon > 30:
        return epsilon - math.log(rate) + math.log1p((rate - 1) * math.exp(-epsilon))
    return math.log1p(math.expm1(epsilon) / rate)


def _scaled(interval: Interval, factor: float) -> Interval:
    return Interval(
        interval.lower * factor * (1 - _SPECIAL_ERROR),
        interval.upper * factor * (1 + _SPECIAL_ERROR),
    )


def _clamped(value: float, *, error: float) -> Interval:
    # Never zero by underflow alone.
    upper = min(max(value + error, 0.0) + _LEAST, 1.0)
    return Interval(min(max(value - error, 0.0), upper), upper)
