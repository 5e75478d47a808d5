"""Dominating pairs: one neighboring dataset against the other, one direction at a time.

A pair (P, Q) is known by its privacy loss L = log dP/dQ under P. All methods see it through
K(w) = log E_P[e^{wL}; L < ∞] on the line Re w = θ > 0, and through the mass at L = ∞.
Independent parts add their K; the losses of a composition add up.

Every pair here is tight for its mechanism: P and Q are outputs of two neighboring datasets,
and they dominate those of any others (docs/accounting.md, "Pairs", with the sources).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from service.core.accounting.arrays import Complexes
from service.core.accounting.poisson_pair import PoissonPair

_DIFFERENCE: Final = 1e-3


class ClosedFormPair(Protocol):
    """A pair whose K is elementary."""

    @property
    def infinite_mass(self) -> float:
        """P(L = ∞)."""
        ...

    def phase_rate(self, theta: float) -> float:
        """A bound of |L| in the bulk of the tilted law: how fast the phase of e^{itL} turns."""
        ...

    def log_moment(self, w: Complexes) -> Complexes:
        """K at complex ``w`` with Re w ≥ 0."""
        ...


@dataclass(frozen=True, slots=True)
class GaussianPair:
    """N(μ, 1) against N(0, 1), with μ² = ``mu_squared``; the loss is N(μ²/2, μ²)."""

    mu_squared: float
    infinite_mass: float = 0.0

    def phase_rate(self, theta: float) -> float:
        """The mean loss and ten standard deviations."""
        return self.mu_squared * (theta + 0.5) + 10 * math.sqrt(self.mu_squared)

    def log_moment(self, w: Complexes) -> Complexes:
        """K(w) = μ² w (w + 1) / 2."""
        return 0.5 * self.mu_squared * w * (w + 1)


@dataclass(frozen=True, slots=True)
class LaplacePair:
    """Lap(0, 1) against Lap(``epsilon``, 1): atoms at ±ε, a density between them."""

    epsilon: float
    infinite_mass: float = 0.0

    def phase_rate(self, theta: float) -> float:  # noqa: ARG002 - the same at every tilt
        """The loss never leaves [−ε, ε]."""
        return self.epsilon

    def log_moment(self, w: Complexes) -> Complexes:
        """K(w) = log[((w+1) e^{wε} + w e^{−(w+1)ε}) / (2w+1)] (Mironov 2017, Table II)."""
        ratio = w / (w + 1) * np.exp(-(2 * w + 1) * self.epsilon)
        return w * self.epsilon + np.log((w + 1) / (2 * w + 1)) + np.log1p(ratio)


@dataclass(frozen=True, slots=True)
class TwoPointPair:
    """The worst (ε, δ)-DP mechanism: mass δ at ∞, the rest on ±ε with odds e^ε to 1.

    With δ = 0 it is randomised response. Source: Kairouz, Oh & Viswanath 2015, Theorem 3.2.
    """

    epsilon: float
    infinite_mass: float = 0.0

    def phase_rate(self, theta: float) -> float:  # noqa: ARG002 - the same at every tilt
        """The finite losses are ±ε."""
        return self.epsilon

    def log_moment(self, w: Complexes) -> Complexes:
        """K(w) = log[(1−δ) (e^{wε} + e^{−(w+1)ε}) / (1 + e^{−ε})]."""
        share = math.log1p(-self.infinite_mass) - math.log1p(math.exp(-self.epsilon))
        return w * self.epsilon + share + np.log1p(np.exp(-(2 * w + 1) * self.epsilon))


@dataclass(frozen=True, slots=True)
class DiscreteGaussianPair:
    """The discrete Gaussian N_Z(0, σ²) against N_Z(s, σ²), s = ``shift`` a whole number.

    Source: Canonne, Kamath & Steinke 2020, Definition 1 and Theorem 7.
    """

    sigma: float
    shift: int
    infinite_mass: float = 0.0

    def phase_rate(self, theta: float) -> float:
        """The mean loss and ten standard deviations."""
        mu = self.shift / self.sigma
        return mu * mu * (theta + 0.5) + 10 * mu

    def log_moment(self, w: Complexes) -> Complexes:
        """K(w) = w(w+1)s²/2σ² + log Σ_x e^{−(x+ws)²/2σ²} − the same at w = 0.

        The losses lie on a lattice of step s/σ², so that K repeats itself along Im w, up to a
        sign of its moment. Within half a period of 0 nothing cancels, and the terms around
        the largest (31 of the sum, or for σ ≥ 1 seven of its Poisson transform) leave out less
        than e^{−100}.
        """
        return self._log_sum(w) - self._log_sum(np.zeros(1, np.complex128))[0]

    def _log_sum(self, w: Complexes) -> Complexes:
        s, sigma = self.shift, self.sigma
        period = 2 * math.pi * sigma**2 / s
        turns = np.rint(w.imag / period)
        w = w.real + 1j * (w.imag - turns * period)
        gauss = 0.5 * w * (w + 1) * (s / sigma) ** 2
        if sigma >= 1:
            k = np.arange(-3, 4)
            terms = 2j * math.pi * s * k * w[:, None] - 2 * (math.pi * sigma * k) ** 2
        else:
            centre = np.rint(-w.real * s)[:, None]
            x = centre + np.arange(-15, 16)
            terms = -((x + s * w[:, None]) ** 2) / (2 * sigma**2)
        exponents = gauss[:, None] + terms
        top = exponents.real.max(axis=1)
        total = top + np.log(np.exp(exponents - top[:, None]).sum(axis=1))
        # e^{iPL} = e^{iπ(s − 2x)} for a period P.
        return total + 1j * math.pi * s * turns


Pair = GaussianPair | DiscreteGaussianPair | LaplacePair | TwoPointPair | PoissonPair
Part = tuple[Pair, int]


def real_log_moment(pair: Pair, theta: float) -> float:
    """K(θ) at a real tilt θ ≥ 0."""
    if isinstance(pair, PoissonPair):
        return pair.cumulants(theta)[0]
    return float(pair.log_moment(np.array([complex(theta)]))[0].real)


def cumulants(parts: Sequence[Part], theta: float) -> tuple[float, float, float]:
    """K, K′ and K″ at a real tilt θ > 0, summed over the parts.

    K is exact up to rounding; the derivatives only steer the choice of θ.
    """
    total = np.zeros(3)
    for pair, count in parts:
        if isinstance(pair, PoissonPair):
            total += count * np.array(pair.cumulants(theta))
        elif isinstance(pair, GaussianPair):
            half = 0.5 * pair.mu_squared
            values = (half * theta * (theta + 1), half * (2 * theta + 1), 2 * half)
            total += count * np.array(values)
        else:
            step = _DIFFERENCE * theta
            left, middle, right = (
                real_log_moment(pair, x) for x in (theta - step, theta, theta + step)
            )
            slope, bend = (right - left) / (2 * step), (right - 2 * middle + left) / step**2
            total += count * np.array((middle, slope, max(bend, 0.0)))
    return float(total[0]), float(total[1]), float(total[2])


def infinite_mass(parts: Sequence[Part]) -> float:
    """P(L = ∞) of the composition: 1 − Π (1 − δ_i)^{n_i}."""
    return -math.expm1(sum(count * math.log1p(-pair.infinite_mass) for pair, count in parts))
