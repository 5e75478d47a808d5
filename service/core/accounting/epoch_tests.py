"""Lower bounds of ε for batches drawn an epoch at a time: the test on the largest update.

Of the M releases of one epoch, projected on the direction of the record, take the largest.
Where it is above a threshold a, the record is likelier in. Any threshold proves

    ε ≥ log[(P(max > a) − δ) / Q(max > a)],

and the complement proves the same with P and Q exchanged; the best threshold is reported.
The pairs (arXiv 2601.10237, and MoG(2) against MoG(1) derived here from it): with t = 1/σ, one
of M coordinates moves by s_P t under P and by s_Q t under Q, if the record takes part at all.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from service.core.accounting.arrays import Floats, log_normal_cdf, normal_cdf
from service.core.accounting.composition import charged_noise
from service.core.events import EpochDpSgd, Neighboring

_MARGIN: Final = 1e-12
_POINTS: Final = 4001


@dataclass(frozen=True, slots=True)
class _Pair:
    """``plain`` unmoved coordinates and one moved by s_P or s_Q, with probability p."""

    plain: int
    probability: float
    shift_p: float
    shift_q: float


def epoch_epsilon_lower(event: EpochDpSgd, *, delta: float, neighboring: Neighboring) -> float:
    """A certified lower bound of ε(δ) for one epoch, hence for any number of epochs."""
    values = [_best(pair, event, delta=delta) for pair in _pairs(event, neighboring)]
    return max(min(values), 0.0)


def epoch_delta_lower(event: EpochDpSgd, *, epsilon: float, neighboring: Neighboring) -> float:
    """A certified lower bound of δ(ε) for one epoch."""
    values: list[float] = []
    for pair in _pairs(event, neighboring):
        over_p, over_q, under_p, under_q = _masses(pair, event)
        growth = math.exp(min(epsilon, 700.0))
        one = over_p * (1 - _MARGIN) - growth * over_q * (1 + _MARGIN)
        other = under_q * (1 - _MARGIN) - growth * under_p * (1 + _MARGIN)
        values.append(float(max(one.max(), other.max())))
    return max(min(values), 0.0)


def _pairs(event: EpochDpSgd, neighboring: Neighboring) -> list[_Pair]:
    """The pair that is known, or all that are possible (the least bound counts)."""
    m = event.updates_per_epoch
    if event.sampler == "balls_in_bins":
        return [_Pair(m - 1, 1.0, 1.0, -1.0 if neighboring == "replace_one" else 0.0)]
    shift_q = 1.0 if neighboring == "zero_out" else 0.0
    # Dropped: the record is in with probability MB/n > M/(M+1), whichever it is; the value of a
    # test only rises with that probability.
    dropped = _Pair(m - 1, m / (m + 1), 2.0, shift_q)
    kept = _Pair(m - 1, 1.0, 2.0, shift_q)
    if neighboring == "add_or_remove_one":
        # Looking at the M − 1 full batches only, it is in one of them with at least (M−1)/M.
        kept = _Pair(m - 2, (m - 1) / m, 2.0, 0.0) if m > 1 else _Pair(0, 1.0, 1.0, 0.0)
    if event.remainder is None:
        return [dropped, kept]
    return [dropped if event.remainder == "dropped" else kept]


def _best(pair: _Pair, event: EpochDpSgd, *, delta: float) -> float:
    over_p, over_q, under_p, under_q = _masses(pair, event)
    return max(_best_ratio(over_p, over_q, delta=delta), _best_ratio(under_q, under_p, delta=delta))


def _best_ratio(likelier: Floats, other: Floats, *, delta: float) -> float:
    left = likelier * (1 - _MARGIN) - delta
    usable = (left > 0) & (other > 1e-300)
    if not usable.any():
        return 0.0
    best = float(np.log(left[usable] / other[usable]).max())
    return best - _MARGIN * (2 + abs(best))


def _masses(pair: _Pair, event: EpochDpSgd) -> tuple[Floats, Floats, Floats, Floats]:
    """P and Q of max > a, then of max ≤ a, on a grid of thresholds a."""
    sigma = charged_noise(event.noise_multiplier, event.count_noise_stddev)
    t = 1 / sigma
    top = math.sqrt(2 * math.log(pair.plain + 2)) + 2
    thresholds = np.linspace(-10 - t, max(top, pair.shift_p * t) + 38, _POINTS)
    # Extra points where the moved coordinate decides.
    centre = pair.shift_p * t
    thresholds = np.unique(
        np.concatenate((thresholds, np.linspace(centre - 10, centre + 10, _POINTS)))
    )
    log_p = _log_under(pair, thresholds, shift=pair.shift_p * t)
    log_q = _log_under(pair, thresholds, shift=pair.shift_q * t)
    return -np.expm1(log_p), -np.expm1(log_q), np.exp(log_p), np.exp(log_q)


def _log_under(pair: _Pair, thresholds: Floats, *, shift: float) -> Floats:
    """Log P(max ≤ a), with every digit of its complement."""
    p, moved = pair.probability, thresholds - shift
    over_moved = p * normal_cdf(-moved) + (1 - p) * normal_cdf(-thresholds)
    under_moved = p * normal_cdf(moved) + (1 - p) * normal_cdf(thresholds)
    log_moved = np.where(
        over_moved < 0.5,
        np.log1p(-np.minimum(over_moved, 0.5)),
        np.log(np.maximum(under_moved, 1e-300)),
    )
    return np.maximum(pair.plain * log_normal_cdf(thresholds) + log_moved, -700.0)
