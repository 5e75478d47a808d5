"""P- and Q-masses of a Poisson-subsampled Gaussian between levels of its loss."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import ndtr

from service.core.accounting.poisson_pair import Floats, PoissonPair

_UNIT: Final = 2.0**-53


@dataclass(frozen=True, slots=True)
class LossCells:
    """Masses of each cell, and how far rounding may have moved its log likelihood ratio."""

    p: Floats
    q: Floats
    loss_errors: Floats


def cell_masses(pair: PoissonPair, levels: Floats) -> LossCells:
    """The masses between consecutive loss levels, rising, the outer ones may be ±∞."""
    z = _noise_at(pair, -levels if pair.direction == "add" else levels)
    rate, shift = pair.sampling_rate, pair.shift
    plain, plain_error = _normal_cells(z)
    moved, moved_error = _normal_cells(z - shift)
    mixed = (1 - rate) * plain + rate * moved
    mixed_error = (1 - rate) * plain_error + rate * moved_error
    if pair.direction == "remove":
        p, q, dp, dq = mixed, plain, mixed_error, plain_error
    elif pair.direction == "add":
        p, q, dp, dq = plain, mixed, plain_error, mixed_error
    else:
        back, back_error = _normal_cells(z + shift)
        p, dp = mixed, mixed_error
        q = (1 - rate) * plain + rate * back
        dq = (1 - rate) * plain_error + rate * back_error
    errors = dp / np.maximum(p, 1e-300) + dq / np.maximum(q, 1e-300)
    return LossCells(p, q, np.minimum(errors, 1e3))


def _normal_cells(z: Floats) -> tuple[Floats, Floats]:
    """Standard normal masses between consecutive points, and their absolute errors."""
    tail, right = ndtr(-np.abs(z)), z > 0
    straddles = right[1:] != right[:-1]
    apart = np.abs(tail[1:] - tail[:-1])
    mass = np.where(straddles, 1 - tail[1:] - tail[:-1], apart)
    size = np.where(straddles, 1.0, np.maximum(tail[1:], tail[:-1]))
    return mass, 4 * _UNIT * size


def _noise_at(pair: PoissonPair, level: Floats) -> Floats:
    """Z with f(z) = level (or f(z) − f(−z) = level for replace), ∓∞ out of its range."""
    q, sigma = pair.sampling_rate, pair.noise_multiplier
    if pair.direction == "replace":
        return _symmetric_noise_at(pair, level)
    capped = np.clip(level, -700.0, 30.0)
    excess = np.maximum(np.expm1(capped) + q, 0.0) / q
    low = np.where(excess > 0, np.log(np.where(excess > 0, excess, 1.0)), -np.inf)
    # Where the level is far above, e^level − (1 − q) = e^level up to a factor.
    high = level - math.log(q) + np.log1p((q - 1) * np.exp(-np.maximum(level, 0.0)) * (level > 1))
    return sigma * np.where(level > 30, high, low) + 0.5 / sigma


def _symmetric_noise_at(pair: PoissonPair, level: Floats) -> Floats:
    q, sigma = pair.sampling_rate, pair.noise_multiplier
    distance = np.minimum(np.abs(level), 1e4)
    middle = (1 - q) * -np.expm1(-distance)
    log_scale = math.log(q) - 0.5 / sigma**2
    log_middle = np.log(np.maximum(middle, 1e-320))
    log_root = math.log(2) - 0.5 * distance + log_scale
    log_hypot = 0.5 * np.logaddexp(2 * log_middle, 2 * log_root)
    log_value = math.log(2) - distance + log_scale - np.logaddexp(log_middle, log_hypot)
    z = -np.sign(level) * sigma * log_value
    return np.where(np.isinf(level), level, z)


def loss_span(pair: PoissonPair, *, tail: float) -> tuple[float, float]:
    """Losses [low, high] that leave P-mass below ``tail`` above, and nothing below."""
    reach = math.sqrt(2 * math.log(max(1 / tail, 2.0)))
    least = math.log1p(-pair.sampling_rate)

    def mixture(z: float) -> float:
        return float(pair.log_mixture(np.array([z]))[0])

    if pair.direction == "add":
        return -mixture(reach), -least
    if pair.direction == "remove":
        return least, mixture(reach + pair.shift)
    top = mixture(reach + pair.shift) - mixture(-reach - pair.shift)
    return -top, top


def grid_offset(pair: PoissonPair, *, spacing: float) -> float:
    """An offset that puts the loss of the cell around z = 0 on the grid."""
    offset = float(pair.loss(np.array([0.0]))[0])
    for _ in range(4):
        cell = cell_masses(pair, np.array([offset - spacing / 2, offset + spacing / 2]))
        if cell.p[0] > 0 and cell.q[0] > 0:
            offset = math.log(cell.p[0] / cell.q[0])
    return offset
