"""The choice of the tilt θ, and Chernoff bounds as its by-product.

The tilt moves the law of the loss so that its bulk lies where δ(ε) is decided; then δ is a
number of ordinary size times e^{K(θ) − θε}, and nothing drowns in rounding (R3). Any θ > 0
gives a correct answer; a good one gives a sharp answer, so heuristics are allowed here.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from service.core.accounting.pairs import Part, cumulants, real_log_moment
from service.core.accounting.poisson_pair import PoissonPair

_RATIOS: Final = (0.2, 0.4, 0.6, 0.8, 1.25, 1.6, 2.5, 5.0)
_LOG_TILT: Final = (-14.0, 16.0)
# K is summed to 1e-15 relative; in bounds that are far from tight it gets this much more.
_MOMENT_SLACK: Final = 1e-9
_MAX_NODES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Tilt:
    """A tilt with the saddle-point estimates that led to it.

    ``thetas`` and ``moments`` are other tilts with their K, for bounds on what lies far
    from the bulk; the first is θ = 0 with K = 0.
    """

    theta: float
    moment: float
    variance: float
    epsilon: float
    log_delta: float
    thetas: NDArray[np.float64]
    moments: NDArray[np.float64]

    def chernoff_epsilon(self, delta: float) -> float:
        """A certified ε with finite-loss δ(ε) ≤ ``delta``.

        E[(1 − e^{ε−L})₊] ≤ e^{K − θε} θ^θ/(1+θ)^{1+θ}, since (1 − e^{−x})₊ e^{−θx} has
        that maximum (Canonne, Kamath & Steinke 2020, Proposition 12).
        """
        theta, moment = self.thetas[1:], self.moments[1:]
        shape = theta * np.log(theta / (1 + theta)) - np.log1p(theta)
        best = float(((moment + shape - math.log(delta)) / theta).min())
        return max(best * (1 + 1e-12) + 1e-15, 0.0)

    def chernoff_delta(self, epsilon: float) -> float:
        """A certified upper bound of the finite-loss δ at ``epsilon``."""
        theta, moment = self.thetas[1:], self.moments[1:]
        shape = theta * np.log(theta / (1 + theta)) - np.log1p(theta)
        exponent = float((moment + shape - theta * epsilon).min())
        return min(math.exp(min(exponent, 0.0)) * (1 + 1e-12) if exponent < 0 else 1.0, 1.0)


def tilt_for_delta(parts: Sequence[Part], *, delta: float) -> Tilt:
    """The tilt whose saddle point lies where δ(ε) ≈ ``delta``."""
    return _search(parts, lambda saddle: saddle.log_delta - math.log(delta))


def tilt_for_epsilon(parts: Sequence[Part], *, epsilon: float) -> Tilt:
    """The tilt whose saddle point lies at ``epsilon``."""

    def gap(saddle: "_Saddle") -> float:
        return (epsilon - saddle.epsilon) * saddle.theta

    return _search(parts, gap)


@dataclass(frozen=True, slots=True)
class _Saddle:
    theta: float
    moment: float
    variance: float
    epsilon: float
    log_delta: float


def _saddle(parts: Sequence[Part], theta: float) -> _Saddle:
    """Steepest descent of e^{K(w) − wε} / (w(w+1)): ε and log δ as functions of θ."""
    moment, mean, variance = cumulants(parts, theta)
    epsilon = mean - 1 / theta - 1 / (theta + 1)
    curvature = variance + theta**-2 + (theta + 1) ** -2
    log_delta = moment - theta * epsilon - math.log(theta * (theta + 1))
    log_delta -= 0.5 * math.log(2 * math.pi * curvature)
    return _Saddle(theta, moment, variance, epsilon, log_delta)


def _search(parts: Sequence[Part], gap: Callable[[_Saddle], float]) -> Tilt:
    """Find θ with gap ≈ 0; the gap is positive for θ too small."""
    seen: dict[float, _Saddle] = {}

    def at(log_theta: float) -> _Saddle:
        saddle = _saddle(parts, math.exp(log_theta))
        seen[log_theta] = saddle
        return saddle

    position, low, high = _start(parts), _LOG_TILT[0], min(_LOG_TILT[1], _largest_tilt(parts))
    ceiling = high
    step = 1.0
    found_low = found_high = False
    for _ in range(40):
        value = gap(at(position))
        if abs(value) < 0.3:
            break
        if value > 0:
            low, found_low = position, True
        else:
            high, found_high = position, True
        if found_low and found_high:
            position = 0.5 * (low + high)
        else:
            position = position + step if value > 0 else position - step
            step *= 1.5
        if not _LOG_TILT[0] <= position <= ceiling or high - low < 1e-3:
            break
    while seen[_nearest(seen, position)].epsilon < 0 and position < ceiling:
        position += 0.3
        at(position)
    return _tilt(parts, seen, chosen=seen[_nearest(seen, position)])


def _nearest(seen: dict[float, _Saddle], position: float) -> float:
    return min(seen, key=lambda x: abs(x - position))


def _largest_tilt(parts: Sequence[Part]) -> float:
    """Log of the largest θ whose noise window still has a bearable number of nodes."""
    widths = [
        _MAX_NODES * pair.noise_multiplier * min(0.35, 0.4 * pair.noise_multiplier) / 2
        for pair, _ in parts
        if isinstance(pair, PoissonPair)
    ]
    return math.log(min(widths, default=math.inf))


def _start(parts: Sequence[Part]) -> float:
    ceiling = _largest_tilt(parts) - 1
    variance = cumulants(parts, math.exp(min(0.0, ceiling)))[2]
    start = math.log(min(max(5 / math.sqrt(max(variance, 1e-12)), 0.02), 1e5))
    return min(start, ceiling)


def _tilt(parts: Sequence[Part], seen: dict[float, _Saddle], *, chosen: _Saddle) -> Tilt:
    table = {0.0: 0.0} | {saddle.theta: saddle.moment for saddle in seen.values()}
    for ratio in _RATIOS:
        theta = chosen.theta * ratio
        table[theta] = sum(count * real_log_moment(pair, theta) for pair, count in parts)
    thetas = np.array(sorted(table))
    moments = np.array([table[x] * (1 + _MOMENT_SLACK) for x in thetas])
    return Tilt(
        theta=chosen.theta,
        moment=chosen.moment,
        variance=chosen.variance,
        epsilon=max(chosen.epsilon, 0.0),
        log_delta=chosen.log_delta,
        thetas=thetas,
        moments=moments,
    )
