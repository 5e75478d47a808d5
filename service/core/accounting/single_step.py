"""Profiles of a single step of each pair, in closed form."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from service.core.accounting.closed_form import (
    gaussian_delta,
    subsampled_add_delta,
    subsampled_remove_delta,
    subsampled_replace_delta,
)
from service.core.accounting.pairs import (
    DiscreteGaussianPair,
    GaussianPair,
    LaplacePair,
    Pair,
    TwoPointPair,
)
from service.core.accounting.poisson_pair import PoissonPair
from service.core.interval import Interval

_MARGIN = 1e-14


@dataclass(frozen=True, slots=True)
class SingleStepProfile:
    """The certified profile of one release."""

    pair: Pair

    def __call__(self, epsilon: float, /) -> Interval:
        """δ(ε) for ε ≥ 0."""
        match self.pair:
            case GaussianPair():
                return gaussian_delta(epsilon, mu=math.sqrt(self.pair.mu_squared))
            case PoissonPair():
                return _poisson(self.pair, epsilon)
            case LaplacePair():
                return _laplace(self.pair, epsilon)
            case TwoPointPair():
                return _two_point(self.pair, epsilon)
            case DiscreteGaussianPair():
                return _discrete_gaussian(self.pair, epsilon)

    def guess(self, delta: float) -> float:
        """A point near ε(δ) from which to start."""
        if isinstance(self.pair, LaplacePair | TwoPointPair):
            return self.pair.epsilon
        if isinstance(self.pair, PoissonPair):
            mu, delta = self.pair.shift, min(delta / self.pair.sampling_rate, 0.99)
            mu *= 2 if self.pair.direction == "replace" else 1
        else:
            mu = self._mu()
        return mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))

    def _mu(self) -> float:
        if isinstance(self.pair, DiscreteGaussianPair):
            return self.pair.shift / self.pair.sigma
        assert isinstance(self.pair, GaussianPair)
        return math.sqrt(self.pair.mu_squared)


def _around(value: float, *, relative: float) -> Interval:
    value = max(value, 0.0)
    return Interval(value * (1 - relative), min(value * (1 + relative), 1.0))


def _poisson(pair: PoissonPair, epsilon: float) -> Interval:
    rate, mu = pair.sampling_rate, pair.shift
    if pair.direction == "remove":
        return subsampled_remove_delta(epsilon, rate=rate, mu=mu)
    if pair.direction == "add":
        return subsampled_add_delta(epsilon, rate=rate, mu=mu)
    return subsampled_replace_delta(epsilon, rate=rate, mu=mu, cut=_where_loss_is(pair, epsilon))


def _where_loss_is(pair: PoissonPair, epsilon: float) -> float:
    """Z with f(z) − f(−z) = ε: a quadratic in e^{z/σ}.

    With E = e^{−z/σ}, k = e^{−1/2σ²} and e = e^{−ε}: q k E² + (1−q)(1−e) E − e q k = 0 at
    the mirrored point, solved without cancellation.
    """
    q, sigma = pair.sampling_rate, pair.noise_multiplier
    middle = (1 - q) * -math.expm1(-epsilon)
    log_scale = math.log(q) - 0.5 / sigma**2
    # log of 2 e q k / (middle + √(middle² + 4 e (qk)²)), by logarithms: k may underflow.
    log_root = 0.5 * (2 * math.log(2) - epsilon + 2 * log_scale)
    log_middle = math.log(middle) if middle > 0 else -math.inf
    log_hypot = 0.5 * float(np.logaddexp(2 * log_middle, 2 * log_root))
    log_value = math.log(2) - epsilon + log_scale - float(np.logaddexp(log_middle, log_hypot))
    return -sigma * log_value


def _laplace(pair: LaplacePair, epsilon: float) -> Interval:
    """1 − e^{(ε − ε₀)/2} below ε₀, else 0."""
    gap = pair.epsilon - epsilon
    error = _MARGIN * (pair.epsilon + epsilon)
    low, high = max(gap - error, 0.0), max(gap + error, 0.0)
    return Interval(-math.expm1(-low / 2) * (1 - _MARGIN), min(-math.expm1(-high / 2) + 0.0, 1.0))


def _two_point(pair: TwoPointPair, epsilon: float) -> Interval:
    """δ₀ + (1 − δ₀)(e^{ε₀} − e^ε)₊/(1 + e^{ε₀})."""
    gap = pair.epsilon - epsilon
    error = _MARGIN * (pair.epsilon + epsilon)
    share = (1 - pair.infinite_mass) * float(expit(pair.epsilon))
    low = share * -math.expm1(-max(gap - error, 0.0)) * (1 - _MARGIN)
    high = share * -math.expm1(-max(gap + error, 0.0)) * (1 + _MARGIN)
    return Interval(pair.infinite_mass + low * (1 - _MARGIN), min(pair.infinite_mass + high, 1.0))


def _discrete_gaussian(pair: DiscreteGaussianPair, epsilon: float) -> Interval:
    """Σ_x p(x) (1 − e^{ε − L(x)})₊ over the losses above ε, by direct summation."""
    s, sigma = pair.shift, pair.sigma
    # L(x) = (s² − 2sx)/2σ² is falling; losses above ε are at x < last.
    last = math.floor((s - 2 * sigma**2 * epsilon / s) / 2)
    x = np.arange(last - math.ceil(12 * sigma) - 2, last + 1, dtype=np.float64)
    gain = np.maximum(-np.expm1(np.minimum(epsilon - (s * s - 2 * s * x) / (2 * sigma**2), 0.0)), 0)
    reach = math.ceil(12 * sigma) + 1
    all_x = np.arange(-reach, reach + 1, dtype=np.float64)
    total = float(np.exp(-(all_x**2) / (2 * sigma**2)).sum())
    kept = x[np.abs(x) <= 38.5 * sigma] if sigma > 0 else x
    gain = gain[np.abs(x) <= 38.5 * sigma]
    value = float((np.exp(-(kept**2) / (2 * sigma**2)) * gain).sum()) / total
    # Left out: x beyond 12σ below the last loss or beyond 38.5σ, under e^{−72} of the rest.
    return _around(value, relative=1e-11)
