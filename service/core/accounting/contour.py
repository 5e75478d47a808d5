"""δ(ε) as a contour integral of the exact moment generating function.

For θ > 0 and independent parts with K(w) = Σ n_i K_i(w),

    δ(ε) = (1/2πi) ∫_{Re w = θ} e^{K(w) − wε} / (w (w + 1)) dw,

a Bromwich integral of (1 − e^{ε−L})₊. It is summed by the trapezoid rule with step Δ, and
every K of a subsampled step by the trapezoid rule in noise space. Five errors, each bounded:

1. *Aliasing*: the sum is Σ_k e^{θkD} δ(ε + kD) with D = 2π/Δ, by Poisson's formula. All
   terms are ≥ 0, so the sum is never too small; the others are bounded by Chernoff.
2. *Truncation* at |t| = T: by the decay of the transform (tilted_cells.decay).
3. *Quadrature* in noise space: 2N/(e^{2πa/h} − 1), N the integral on the lines ±ia.
4. *Thinning*: what the cut takes away, once, with its count.
5. *Rounding*: a count of operations times 2⁻⁵³ times the size of the terms.

docs/accounting.md derives them. Source of the quadrature bound: Trefethen & Weideman 2014,
Theorem 5.1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from service.core.accounting.arrays import Complexes, Floats
from service.core.accounting.pairs import ClosedFormPair, GaussianPair, Part, infinite_mass
from service.core.accounting.poisson_pair import PoissonPair
from service.core.accounting.tilted_cells import (
    Decay,
    TiltedCells,
    decay,
    strip_integral,
    tilted_cells,
)
from service.core.accounting.tilting import Tilt
from service.core.errors import NotCertified
from service.core.interval import Interval

_UNIT: Final = 2.0**-53
_ALIASING_GOAL: Final = 1e-12
# Errors of truncation relative to δ that are asked for, and the frequencies spent on them.
_TRUNCATION_LADDER: Final = ((1e-10, 1 << 10), (1e-8, 1 << 13), (1e-6, 1 << 14), (1e-4, 1 << 16))
_QUADRATURE_GOAL: Final = 1e-14
_MAX_WORK: Final = 60_000_000
_DECAY_RATIO: Final = 1.4
_DECAY_STEPS: Final = 32


@dataclass(frozen=True, slots=True)
class ContourProfile:
    """A certified profile, sharp around the ε for which its tilt was chosen."""

    tilt: Tilt
    frequencies: Floats
    kernel: Complexes
    step: float
    relative_error: float
    surplus: float
    infinite: float

    def __call__(self, epsilon: float, /) -> Interval:
        """The certified interval of δ(ε); [0, 1] where the tilt says nothing."""
        exponent = self.tilt.moment - self.tilt.theta * epsilon
        if exponent > 300:
            return Interval(0.0, 1.0)
        lead = math.exp(exponent)
        turn = np.exp(-1j * epsilon * self.frequencies)
        value = lead * self.step / math.pi * float((self.kernel * turn).sum().real)
        phase_error = _UNIT * 4 * float(self.frequencies[-1]) * epsilon
        scale = lead * self.step / math.pi * float(np.abs(self.kernel).sum())
        error = lead * self.relative_error
        error += scale * (phase_error + 16 * _UNIT * (2 + abs(exponent) + self.tilt.moment))
        folded = self.tilt.folded_mass(epsilon, period=2 * math.pi / self.step)
        lower = max(value - error - folded, 0.0) + self.infinite * (1 - 1e-14)
        upper = max(value + error, 0.0) + self.surplus + self.infinite * (1 + 1e-14)
        upper = min(upper, 1.0)
        return Interval(float(min(lower, upper)), float(upper))


def contour_profile(parts: Sequence[Part], *, tilt: Tilt) -> ContourProfile:
    """The profile of a composition around the tilt's saddle point.

    Args:
        parts: pairs with counts; Poisson pairs may carry a cut.
        tilt: from ``tilting``, for the same parts.

    Raises:
        NotCertified: the sum would be larger than the fixed limits of work allow.
    """
    step = 2 * math.pi / _period(tilt)
    cells = {
        pair: tilted_cells(pair, theta=tilt.theta, moment=pair.cumulants(tilt.theta)[0])
        for pair, _ in parts
        if isinstance(pair, PoissonPair)
    }
    tail = _TruncationBound(parts, {pair: decay(c) for pair, c in cells.items()}, step=step)
    lead = tilt.moment - tilt.theta * tilt.epsilon - tilt.log_delta
    last, truncation = _truncation(tail, tilt=tilt, lead=lead)
    frequencies = step * np.arange(math.ceil(last / step) + 1)
    moment, log_transform, error = 0.0, np.zeros(len(frequencies), np.complex128), 0.0
    for pair, count in parts:
        if isinstance(pair, PoissonPair):
            one = _poisson_transform(cells[pair], frequencies, count=count, lead=lead)
        else:
            one = _elementary_transform(pair, frequencies, theta=tilt.theta)
        moment += count * one.moment
        log_transform += count * one.log_transform
        error += count * one.error
    w = tilt.theta + 1j * frequencies
    weight = 1 / (w * (w + 1))
    weight[0] *= 0.5
    kernel = np.exp(log_transform) * weight
    if not (np.isfinite(kernel).all() and math.isfinite(moment) and math.isfinite(error)):
        raise NotCertified("The transform is beyond the range of doubles.")
    # |a^n − b^n| ≤ n |a − b| for |a|, |b| ≤ 1, and all other factors are at most 1.
    spread = step / math.pi * float(np.abs(weight).sum())
    return ContourProfile(
        tilt=_with_moment(tilt, moment),
        frequencies=frequencies,
        kernel=kernel,
        step=step,
        relative_error=truncation + 1.01 * error * spread,
        surplus=sum(n * p.dropped_mass for p, n in parts if isinstance(p, PoissonPair)),
        infinite=infinite_mass(parts),
    )


def _with_moment(tilt: Tilt, moment: float) -> Tilt:
    return Tilt(
        theta=tilt.theta,
        moment=moment,
        variance=tilt.variance,
        epsilon=tilt.epsilon,
        log_delta=tilt.log_delta,
        thetas=tilt.thetas,
        moments=tilt.moments,
    )


def _period(tilt: Tilt) -> float:
    """The least D for which aliasing is 1e-12 of δ, on either side."""
    out = tilt.quiet_period(_ALIASING_GOAL)
    if out <= 0:
        raise NotCertified("No period of the contour sum fits this tilt.")
    return 1.05 * out


# ------------------------------------------------------------------------ truncation


@dataclass(frozen=True, slots=True)
class _TruncationBound:
    """(1/π) Σ_{t_j > T} Δ |Π φ_i(t_j)^{n_i}| / t_j², bounded on geometric pieces."""

    parts: Sequence[Part]
    decays: dict[PoissonPair, Decay]
    step: float

    def beyond(self, last: float) -> float:
        """The bound for T = ``last``."""
        knots = last * _DECAY_RATIO ** np.arange(_DECAY_STEPS + 1)
        low, high = knots[:-1], knots[1:]
        log_bound = np.zeros(_DECAY_STEPS)
        for pair, count in self.parts:
            if isinstance(pair, PoissonPair):
                log_bound += count * self.decays[pair].log_bound(low, high)
            elif isinstance(pair, GaussianPair):
                log_bound -= 0.5 * count * pair.mu_squared * low**2
        share = 1 / low - 1 / high + self.step / low**2
        total = float((np.exp(np.maximum(log_bound, -700.0)) * share).sum())
        # Beyond the last knot only what falls with t for good is used: here just |φ| ≤ 1,
        # or the bound by parts, which is monotone.
        rest = 0.0
        for pair, count in self.parts:
            if isinstance(pair, PoissonPair):
                d = self.decays[pair]
                value = float((d.excluded + d.variation / knots[-1]).min())
                rest += count * math.log(min(value, 1.0))
            elif isinstance(pair, GaussianPair):
                rest -= 0.5 * count * pair.mu_squared * knots[-1] ** 2
        total += math.exp(max(rest, -700.0)) / knots[-1]
        return total / math.pi


def _truncation(tail: _TruncationBound, *, tilt: Tilt, lead: float) -> tuple[float, float]:
    """T and the bound of what lies beyond, relative to e^{K − θε}.

    ``lead`` is log(e^{K − θε}/δ): how much larger the terms are than their sum.
    """
    last = math.sqrt(2 * (23 + max(lead, 0.0)) / (tilt.variance + 1e-300))
    last = min(max(last, 8 * tail.step), tail.step * _TRUNCATION_LADDER[0][1])
    bound = tail.beyond(last)
    for share, frequencies in _TRUNCATION_LADDER:
        goal, limit = math.log(share) - lead, tail.step * frequencies
        while math.log(max(bound, 1e-300)) > goal and last < limit:
            last = min(last * 1.25, limit)
            bound = tail.beyond(last)
        if math.log(max(bound, 1e-300)) <= goal:
            break
    return last, bound


# ------------------------------------------------------------------------ transforms


@dataclass(frozen=True, slots=True)
class _Transform:
    """K(θ), log φ(t) on the grid, and a bound of the absolute error of φ."""

    moment: float
    log_transform: Complexes
    error: float


def _elementary_transform(pair: ClosedFormPair, frequencies: Floats, *, theta: float) -> _Transform:
    values = pair.log_moment(theta + 1j * frequencies)
    moment = float(values[0].real)
    rate = pair.phase_rate(theta)
    error = 8 * _UNIT * (4 + theta * rate + float(frequencies[-1]) * rate)
    return _Transform(moment, values - moment, error)


def _poisson_transform(
    cells: TiltedCells, frequencies: Floats, *, count: int, lead: float
) -> _Transform:
    """The transform of one tilted step by the trapezoid rule in noise space."""
    pair, theta = cells.pair, cells.theta
    goal = math.log(_QUADRATURE_GOAL / count) - max(lead, 0.0)
    last = float(frequencies[-1])
    spacing, log_error = _spacing(cells, frequency=last, goal=goal)
    low, high = pair.window(theta)
    nodes = math.ceil((high - low) / spacing) + 1
    if nodes * len(frequencies) > _MAX_WORK:
        raise NotCertified("The contour sum would be too large.")
    z = low + spacing * np.arange(nodes)
    log_p, moment = pair.normalised(z, spacing=spacing, theta=theta)
    p, loss = np.exp(log_p), pair.loss(z)
    mean = float(p @ loss)
    values = _nonuniform_transform(
        p, loss - mean, step=float(frequencies[1]), size=len(frequencies)
    )
    size = np.abs(values)
    log_values = np.log(np.where(size < 1e-150, 1e-150, values))
    centred = np.abs(loss - mean)
    detail = 4 + np.abs(pair.log_tilted(z, theta=theta)) + last * centred
    rounding = 4 * _UNIT * (float(p @ detail) + math.log2(nodes))
    # Mills: beyond a window the density falls at least like e^{−9|z|}.
    outside = float(p[0] + p[-1]) * (1 + 1 / (9 * spacing))
    error = 2 * math.exp(min(log_error, 0.0)) + rounding + 2 * outside
    return _Transform(moment, log_values + 1j * mean * frequencies, error)


def _spacing(cells: TiltedCells, *, frequency: float, goal: float) -> tuple[float, float]:
    """The largest node spacing whose quadrature error is certified to meet the goal.

    The error 2N/(e^{2πa/h} − 1) meets e^goal for h = 2πa/(log 2N − goal + log 2).
    """
    sigma = cells.pair.noise_multiplier
    ceiling = 6.0 if math.isinf(cells.pair.cut) else 1.6
    best = 0.0
    for share in (1.4, 0.7, 0.35, 0.15):
        height = min(share * sigma, share * ceiling / 1.4)
        log_integral = strip_integral(cells, height=height, frequency=frequency)
        best = max(best, 2 * math.pi * height / (max(log_integral, 0.0) + 1.4 - goal))
    return min(best, 0.3), goal


def _nonuniform_transform(p: Floats, x: Floats, *, step: float, size: int) -> Complexes:
    """Σ_k p_k e^{i j Δ x_k} for j < size, as a product of baby and giant steps."""
    baby = math.ceil(math.sqrt(size))
    giant = -(-size // baby)
    small = np.exp(1j * step * np.arange(baby)[:, None] * x)
    large = np.exp(1j * step * baby * np.arange(giant)[:, None] * x) * p
    return np.asarray(large @ small.T, np.complex128).ravel()[:size]
