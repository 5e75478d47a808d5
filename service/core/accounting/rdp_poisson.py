"""Rényi divergence of one step of the Poisson-subsampled Gaussian, always from above.

The pairs, with noise N(0, σ²) and t = 1/σ, x standard normal, Y± = exp(±tx − t²/2):

- add_or_remove_one and zero_out: P = (1−q)N(0) + qN(1) against Q = N(0). The direction P‖Q
  is the larger at every order (Mironov, Talwar & Zhang 2019, arXiv 1908.10530, Theorem 5).
- replace_one: P = (1−q)N(0) + qN(+1) against Q = (1−q)N(0) + qN(−1), the opposite records.
  That this pair is the worst replacement is derived in docs/accounting.md ("Pairs"), not peer
  reviewed; dp_accounting composes the same pair.
  Both directions are equal by the symmetry x → −x.

Everything rests on A(α) = E_Q[(P/Q)^α], D_α = ln A / (α−1). A − 1 is summed or integrated as
a whole of non-negative parts, so it keeps its relative precision where A is 1 + 10⁻³⁰.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special  # pyright: ignore[reportMissingTypeStubs]

# Below LEAST_RATE and above MOST_RATE the rate is rounded up: D_α rises with q (a lower rate
# is a mixture with a pair of equal laws, and D_α is jointly quasi-convex).
LEAST_RATE: Final = 1e-20
MOST_RATE: Final = 1 - 1e-6
LEAST_ORDER: Final = 1.01  # below it D_α ≤ D_1.01: Rényi divergence rises with α
MAX_SUMMED_ORDER: Final = 1_000_000  # binomial sums beyond it take too long
MAX_INTEGRATED_ORDER: Final = 64.0  # above it neighbouring whole orders are near enough
MAX_NODES: Final = 1_000_000
LOG_OVERFLOW: Final = 700.0  # exp of more overflows a double
QUADRATURE_MARGIN: Final = 1e-9  # relative, on A − 1: rounding of ≤ 10⁶ non-negative terms
SUM_MARGIN: Final = 1e-11  # relative, on A − 1: rounding of the binomial sum


def step_divergence(
    alpha: float, *, sampling_rate: float, noise_multiplier: float, replace: bool
) -> float:
    """An upper bound of D_α of one step, the larger of both directions of the pair.

    Guarantees: at least the true divergence; ``inf`` instead of an overflow; never more than
    the divergence of the unsampled Gaussian mixture bound (see ``_mixture_log_moment``).

    Args:
        alpha: order, above 1.
        sampling_rate: q in (0, 1].
        noise_multiplier: σ > 0, over the norm of one record's clipped contribution.
        replace: True for replace_one, False for add_or_remove_one and zero_out.

    Source: Mironov, Talwar & Zhang 2019, Section 3.3 (whole orders); trapezoid rule with the
        error bound of Trefethen & Weideman 2014, Theorem 5.1 (other orders).
    """
    q = max(sampling_rate, LEAST_RATE)
    t = 1.0 / noise_multiplier
    shift = 2.0 * t if replace else t
    if q > MOST_RATE:
        return alpha * shift * shift / 2 * (1 + 1e-14)
    order = max(alpha, LEAST_ORDER)
    mixture = _mixture_log_moment(order, q, shift)
    if replace:
        log_moment = _integrated_log_moment(order, q, t, crude=mixture, replace=True)
    elif order > MAX_SUMMED_ORDER:
        log_moment = mixture
    elif order == math.floor(order):
        log_moment = _summed_log_moment(int(order), q, t)
    else:
        # ln A is convex in α, so the chord between whole orders lies above it.
        below = math.floor(order)
        part = order - below
        chord = (1 - part) * _summed_log_moment(below, q, t)
        chord = (chord + part * _summed_log_moment(below + 1, q, t)) * (1 + 1e-14)
        log_moment = chord
        if order < MAX_INTEGRATED_ORDER:
            log_moment = _integrated_log_moment(order, q, t, crude=chord, replace=False)
    return min(log_moment, mixture) / (order - 1) * (1 + 1e-14)


def _mixture_log_moment(alpha: float, q: float, shift: float) -> float:
    """Ln A ≤ ln(1 − q + q e^{α(α−1)s²/2}), because P^α Q^{1−α} is jointly convex in (P, Q)."""
    exponent = alpha * (alpha - 1) * shift * shift / 2
    if exponent > LOG_OVERFLOW:
        log_moment = exponent + math.log(q) + (1 - q) / q * math.exp(-exponent)
        return max(log_moment * (1 + 1e-13), 0.0) if math.isfinite(log_moment) else math.inf
    return math.log1p(q * math.expm1(exponent)) * (1 + 1e-13)


def _summed_log_moment(alpha: int, q: float, t: float) -> float:
    """Ln A at a whole order: A − 1 = Σ_{k≥2} C(α,k) (1−q)^{α−k} q^k (e^{k(k−1)t²/2} − 1)."""
    if alpha == 1:
        return 0.0
    k = np.arange(2, alpha + 1, dtype=np.float64)
    exponent = k * (k - 1) * (t * t / 2)
    # ln(e^x − 1) = x + ln(1 − e^−x), exact for small and for large x.
    growth = exponent + np.log(-np.expm1(-exponent))
    binomial = (
        special.gammaln(alpha + 1.0) - special.gammaln(k + 1) - special.gammaln(alpha - k + 1)
    )
    rate = (alpha - k) * math.log1p(-q) + k * math.log(q)
    terms = binomial + rate + growth
    # Each logarithm carries a rounding error of a few ulp of its largest part.
    largest = float(np.max(np.abs(growth))) + alpha * abs(math.log(q)) + math.lgamma(alpha + 1.0)
    margin = SUM_MARGIN + 1e-15 * largest
    return _log1p_exp(_log_sum_exp(terms) + margin)


def _integrated_log_moment(
    alpha: float, q: float, t: float, *, crude: float, replace: bool
) -> float:
    """Ln A at any order by the trapezoid rule, plus its proven errors; ``crude`` ≥ ln A.

    With p = 1−q+qY₊ and r = 1−q+qY₋ (r = 1 unless ``replace``), E r = E p = 1, so
    A − 1 = E[r h(p/r − 1)], h(v) = (1+v)^α − 1 − αv ≥ 0.

    Discretisation (Trefethen & Weideman, Theorem 5.1): in the strip |Im x| ≤ a = θσ, θ < π/2,
    |p| ≤ p(Re x) and |r| ≥ r(Re x) cos θ, hence the integral of |f| along any line is at most
    e^{a²/2} [(cos θ)^{1−α} A + 1 + 2α] and the error at most twice that over e^{2πa/h} − 1.

    Truncation at B = R + αt: for x > B, p^α ≤ 2^α (1 + (qY₊)^α) and r ≥ 1−q, while
    A ≥ E[(qY₊)^α; x > 0] ≥ ½ q^α e^{α(α−1)t²/2}; together at most
    2^α (1−q)^{1−α} Q(R) (1 + 2A). For x < −B, h ≤ α: at most α Q(R).

    With h and R chosen so that both factors stay below e^−99, the integral I = A − 1 obeys
    I ≤ sum + 2e^−99 (1 + I + 1 + 2α), which is solved for I.
    """
    theta = min(1.0, 6.0 * t, math.sqrt(60.0 / alpha))
    a = theta / t
    if a < 1e-9:
        return crude
    h = 2 * math.pi * a / (100.0 + a * a / 2 - (alpha - 1) * math.log(math.cos(theta)))
    excess = (alpha + 2) * math.log(2) - ((alpha - 1) * math.log1p(-q) if replace else 0.0)
    reach = math.sqrt(2 * (100.0 + excess)) + alpha * t  # Q(R) ≤ e^{−R²/2}
    if 2 * reach / h > MAX_NODES:
        return crude
    n = math.ceil(reach / h)
    x = h * np.arange(-n, n + 1, dtype=np.float64)
    weights = _log_integrand(x, alpha, q, t, replace=replace) - x * x / 2
    log_sum = _log_sum_exp(weights) + math.log(h / math.sqrt(2 * math.pi))
    if math.isnan(log_sum):
        return crude
    log_sum += QUADRATURE_MARGIN + 1e-15 * (2 * alpha * t * reach + reach * reach)
    log_errors = math.log(2 * (2 + 2 * alpha)) - 99.0
    return min(_log1p_exp(float(np.logaddexp(log_sum, log_errors))) + 1e-40, crude)


def _log_integrand(
    x: NDArray[np.float64], alpha: float, q: float, t: float, *, replace: bool
) -> NDArray[np.float64]:
    """Ln[r h(p/r − 1)] at each x, with −inf where the value underflows."""
    up = t * x - t * t / 2
    log_p = np.logaddexp(math.log1p(-q), math.log(q) + up)
    if replace:
        down = -t * x - t * t / 2
        log_r = np.logaddexp(math.log1p(-q), math.log(q) + down)
    else:
        log_r = np.zeros_like(x)
    ratio = log_p - log_r
    with np.errstate(over="ignore", divide="ignore", invalid="ignore", under="ignore"):
        # v = p/r − 1 from differences that do not cancel.
        v = q * np.expm1(up)
        if replace:
            # Y₊ − Y₋ over r in one exponent, which is small wherever Y₋ is large.
            fall = -np.expm1(-2 * t * np.abs(x))
            v = q * np.sign(x) * np.exp(t * np.abs(x) - t * t / 2 - log_r) * fall
        small = np.abs(alpha * v) < 0.1
        safe = np.where(small, v, 0.0)
        high = ratio > 0.0
        positive = np.where(high, ratio, 1.0)
        negative = np.where(high, 0.0, ratio)
        large = alpha * positive + np.log1p(
            (alpha - 1) * np.exp(-alpha * positive) - alpha * np.exp((1 - alpha) * positive)
        )
        low = np.log(np.expm1(alpha * negative) - alpha * np.expm1(negative))
        near = np.log(_binomial_rest(safe, alpha))
    return log_r + np.where(small, near, np.where(high, large, low))


def _binomial_rest(v: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """(1+v)^α − 1 − αv for |αv| < 0.1 by its series, to a relative 1e-14."""
    total = np.zeros_like(v)
    # Horner from the 16th power down: what is left out is below 0.1^15 of the first term.
    for k in range(16, 2, -1):
        total = (total + 1.0) * v * ((alpha - k + 1) / k)
    return (total + 1.0) * v * v * (alpha * (alpha - 1) / 2)


def _log_sum_exp(values: NDArray[np.float64]) -> float:
    """The logarithm of Σ e^value, infinite if the largest value is."""
    largest = float(np.max(values))
    if math.isinf(largest):
        return largest
    return largest + math.log(float(np.sum(np.exp(values - largest))))


def _log1p_exp(y: float) -> float:
    """ln(1 + e^y), rounded up by a few ulp."""
    return float(np.logaddexp(0.0, y)) * (1 + 1e-14)
