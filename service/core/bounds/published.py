"""The published statements on how much noise shuffled and Poisson DP-SGD need.

arXiv 2601.10237 (CCS 2026): with σ ≤ 1/√(2 ln M) the separation κ stays above a constant.
*Above* the threshold the theorem says nothing, which is not a certificate. κ = TV/√2 is the
largest distance of a trade-off curve from the line α + β = 1; at most 1/√2.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

from scipy import special  # pyright: ignore[reportMissingTypeStubs]

from service.core.events import Neighboring

BoundedSampler = Literal["shuffle", "balls_in_bins", "poisson"]
Verdict = Literal["below", "silent", "not_applicable"]

SOURCE: Final = "arXiv 2601.10237 (CCS 2026)"
LARGEST_KAPPA: Final = 1 / math.sqrt(2)
DOWN: Final = 1 - 1e-12  # covers the rounding of a closed form, downwards
UP: Final = 1 + 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBound:
    """What the published theorem says of one run.

    ``below``: σ is at most ``sigma_threshold``, so κ ≥ ``kappa_floor``. ``silent``: σ is
    above it and nothing follows. ``not_applicable``: M = 1, or another pair of neighbors.
    """

    sigma_threshold: float | None
    kappa_floor: float | None
    verdict: Verdict
    source: str = SOURCE


def threshold(updates_per_epoch: int) -> float | None:
    """σ_th = 1/√(2 ln M), nearest; None for M = 1, where the theorem has no statement.

    Args:
        updates_per_epoch: M, the updates per epoch: not epochs, rounds or total steps.
    """
    if updates_per_epoch < 2:
        return None
    return 1 / math.sqrt(2 * math.log(updates_per_epoch))


def floor_below_threshold(updates_per_epoch: int) -> float:
    """(1/√8)(1 − 1/√(4π ln M)), the printed floor of κ for σ ≤ σ_th, rounded down.

    It holds for every M ≥ 2: proven from 20 on, checked number by number to 2·10⁶.
    """
    log_m = math.log(updates_per_epoch)
    return (1 - 1 / math.sqrt(4 * math.pi * log_m)) / math.sqrt(8) * DOWN


def published_bound(
    *,
    noise_multiplier: float,
    updates_per_epoch: int,
    sampler: BoundedSampler,
    neighboring: Neighboring,
) -> PublishedBound:
    """The theorem's verdict on one run, of any number of epochs (κ only rises with them).

    Poisson sampling at rate 1/M keeps a share 1 − 1/e of the floor (its Poisson theorem).
    Random allocation has the theorem's own pair, (1/M)Σ N(e_j/σ, I) against N(0, I).
    """
    sigma_threshold = threshold(updates_per_epoch)
    covered = neighboring == "zero_out" or (
        neighboring == "add_or_remove_one" and sampler != "shuffle"
    )
    if sigma_threshold is None or not covered:
        return PublishedBound(
            sigma_threshold=sigma_threshold, kappa_floor=None, verdict="not_applicable"
        )
    if noise_multiplier > sigma_threshold:
        return PublishedBound(sigma_threshold=sigma_threshold, kappa_floor=None, verdict="silent")
    share = (1 - math.exp(-1)) * DOWN if sampler == "poisson" else 1.0
    floor = floor_below_threshold(updates_per_epoch) * share
    return PublishedBound(sigma_threshold=sigma_threshold, kappa_floor=floor, verdict="below")


def derived_shuffle_floor(*, noise_multiplier: float, updates_per_epoch: int) -> float | None:
    """A floor of κ for fixed-size shuffling under zero_out with σ ≤ √(2/ln M); else None.

    Derived here, not peer reviewed: the theorem's proof for the pair MoG(2) against MoG(1)
    with the test threshold at twice the distance,
    κ ≥ (1/√8)(1 − 1/√(4π ln M))(2Φ(√(ln M / 2)) − 1).
    """
    if updates_per_epoch < 2:
        return None
    log_m = math.log(updates_per_epoch)
    if noise_multiplier > math.sqrt(2 / log_m):
        return None
    central = math.erf(math.sqrt(log_m / 2) / math.sqrt(2))
    return floor_below_threshold(updates_per_epoch) * central * DOWN


def published_curve(alpha: float, *, noise_multiplier: float, updates_per_epoch: int) -> float:
    """The published curve f_sub(α) = (1−α)^{(M−1)/M} Φ(Φ⁻¹((1−α)^{1/M}) − 1/σ), nearest.

    An upper bound of the trade-off function: the errors of the test on the largest noised
    coordinate.
    """
    if alpha >= 1:
        return 0.0
    log_root = math.log1p(-alpha) / updates_per_epoch
    # Φ⁻¹ of a number close to 1 through its complement.
    quantile = -float(special.ndtri(-math.expm1(log_root))) if alpha > 0 else math.inf
    hit = float(special.ndtr(quantile - 1 / noise_multiplier))
    return math.exp(log_root * (updates_per_epoch - 1)) * hit
