"""A certified bracket of one epoch of random allocation from its characteristic function.

Under N(0, I) the likelihood ratio is 1 + Z/M with Z = Σ_{j≤M} W_j of i.i.d. W, E W = 0, and
TV = E|Z|/(2M). Write c for a half period and d = π/c. The triangle wave of period 2c that
equals |x| on [−c, c] is (4/(πd)) Σ_{k odd} (1 − cos(kdx))/k², lies below |x|, and misses it
by at most 2(|x| − c)₊ ≤ 2·(27/256)·x⁴/c³. Hence, with φ the characteristic function of W,

    S = (2/(πdM)) Σ_{k odd ≤ K} (1 − Re φ(kd)^M)/k²  ≤  TV  ≤  S + R + (27/256)·E Z⁴/(M c³),

where R bounds the terms beyond K. The pairs: W = Y − 1 for zero_out and add_or_remove_one,
W = Y₊ − Y₋ for replace_one, with Y± = exp(±tX − t²/2). Derived here; the half without the
fourth moment is von Bahr & Esseen's.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from service.core.interval import Interval

MOST_SHIFT: Final = 4.0  # beyond it the fourth moment makes the bracket useless
TERMS: Final = 2500  # odd multiples of d that are summed
_DECAY: Final = 38.0  # the trapezoid rule's error is 2e^−38 < 1e-16
_REACH: Final = 9.5  # normal tails beyond it, times e^{y²/2} ≤ e^4.5, are below 1e-18
_ROUNDING: Final = 1e-14  # of φ, an order of magnitude above both and what doubles lose


def allocation_bracket(t: float, *, updates_per_epoch: int, replace: bool) -> Interval | None:
    """TV of one epoch of balls_in_bins; None where the bracket would say nothing.

    Guarantees: contains the exact TV of the dominating pair; within 0.3 % of it for σ ≥ 0.8
    and M ≥ 100.

    Args:
        t: 1/σ.
        updates_per_epoch: M ≥ 2.
        replace: True for the pair of replace_one.
    """
    if t > MOST_SHIFT or updates_per_epoch < 2:
        return None
    m = updates_per_epoch
    variance, fourth = _moments(t, replace=replace)
    second_z = m * variance
    fourth_z = m * fourth + 3 * m * (m - 1) * variance * variance
    half_period = _half_period(second_z, fourth_z)
    d = math.pi / half_period
    k = np.arange(1, 2 * TERMS, 2, dtype=np.float64)
    phi = _characteristic(k * d, t, replace=replace)
    errors = _ROUNDING * (1 + k * d * math.sqrt(variance))
    # Where φ underflows, so does its power: any tiny number stands for it.
    logs = np.log(np.where(np.abs(phi) < 1e-300, 1e-300, phi))
    power = np.real(np.exp(m * logs))
    # |a^M − b^M| ≤ M |a − b| max(|a|, |b|)^{M−1}, and both are at most 1 + error.
    error = np.minimum(m * errors * np.exp(m * errors), 2.0) + 1e-12
    factor = 2 / (math.pi * d * m)
    value = factor * float(np.sum((1 - power) / k**2))
    slack = factor * float(np.sum(error / k**2)) + value * 1e-12
    # 1/k² ≤ ½∫ dx/x² over [k−1, k+1], so the terms from 2·TERMS + 1 on sum to 1/(4·TERMS).
    rest = factor * 2 / (4 * TERMS)
    overshoot = 27 / 256 * fourth_z / (m * half_period**3)
    return Interval(
        max(value - slack, 0.0), min((value + slack + rest + overshoot) * (1 + 1e-12), 1.0)
    )


def _moments(t: float, *, replace: bool) -> tuple[float, float]:
    """E W² and E W⁴, rounded up."""
    s = t * t
    if replace:
        # E Y₊^a Y₋^b = exp(((a − b)² − (a + b)) s/2).
        variance = 4 * math.sinh(s)
        # 2e^{6s} − 8 + 6e^{−2s}; for small s by e^x − 1 − x ≤ x²/2 · max(1, e^x).
        fourth = 2 * math.exp(6 * s) - 8 + 6 * math.exp(-2 * s)
        if s < 0.01:
            fourth = s * s * (36 * math.exp(6 * s) + 12)
    else:
        b = math.expm1(s)
        variance = b
        # e^{6s} − 4e^{3s} + 6e^s − 3 in powers of b, which are all positive.
        fourth = b * b * (3 + b * (16 + b * (15 + b * (6 + b))))
    return variance * (1 + 1e-13), fourth * (1 + 1e-9)


def _half_period(second_z: float, fourth_z: float) -> float:
    """The c that balances the terms left out (∝ c) and the overshoot (∝ c⁻³)."""
    # d/dc of c/(π² TERMS) + (27/256)·E Z⁴/c³ is 0.
    balanced = (3 * 27 / 256 * fourth_z * math.pi**2 * TERMS) ** 0.25
    return max(balanced, 4 * math.sqrt(second_z))


def _characteristic(s: NDArray[np.float64], t: float, *, replace: bool) -> NDArray[np.complex128]:
    """φ_W(s) for s > 0 by the trapezoid rule on the line Im x = y.

    For 0 ≤ t·Im x ≤ π, Im W ≥ 0, so |e^{isW}| ≤ 1 on the strip 0 ≤ Im x ≤ 2y, 2ty ≤ π, and
    the integral of |f| on each of its lines is at most e^{2y²}. The error is then at most
    2e^{2y²}/(e^{2πy/h} − 1) (Trefethen & Weideman 2014, Theorem 5.1).
    """
    y = min(math.pi / (2 * t), 3.0)
    h = 2 * math.pi * y / (_DECAY + 2 * y * y)
    n = math.ceil(_REACH / h)
    x = h * np.arange(-n, n + 1, dtype=np.float64) + 1j * y
    weights = h / math.sqrt(2 * math.pi) * np.exp(-x * x / 2)
    values = np.expm1(t * x - t * t / 2)
    if replace:
        values = 2 * math.exp(-t * t / 2) * np.sinh(t * x)
    phi = np.empty(s.shape, dtype=np.complex128)
    with np.errstate(under="ignore"):
        for part in np.array_split(np.arange(s.size), 10):
            phi[part] = np.exp(1j * np.outer(s[part], values)) @ weights
    return phi
