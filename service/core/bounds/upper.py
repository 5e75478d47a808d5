"""Upper bounds of the total variation, each with the samplers it is proven for.

The bounds of random allocation say nothing of fixed-size shuffling, where the other records
of a batch can betray the allocation: they are never used for it (R4, R5).
"""

import math
from typing import Final

from scipy import special  # pyright: ignore[reportMissingTypeStubs]

from service.core.accounting.rdp import epoch_shift
from service.core.bounds.published import UP, BoundedSampler
from service.core.errors import NotCertified
from service.core.events import EpochDpSgd, Neighboring

_EXP_LIMIT: Final = 700.0


def unamplified(
    noise_multiplier: float, *, epochs: int, sampler: BoundedSampler, neighboring: Neighboring
) -> float:
    """TV ≤ 2Φ(s√E/2) − 1: as if every record's batch were known.

    Shuffle and random allocation: one step of each epoch has the record (R4). Poisson: given
    the steps that have it, K of them, TV ≤ 2Φ(s√K/2) − 1, which is concave in K, and E is
    the mean of K (Jensen).
    """
    return math.erf(distance(sampler, neighboring) / noise_multiplier * math.sqrt(epochs / 8)) * UP


def distance(sampler: BoundedSampler, neighboring: Neighboring) -> float:
    """The unamplified shift of one participation, in units of the clipping norm (R4)."""
    if sampler == "poisson":
        return 2.0 if neighboring == "replace_one" else 1.0
    unit = EpochDpSgd(sampler=sampler, updates_per_epoch=1, epochs=1, noise_multiplier=1.0)
    return epoch_shift(unit, neighboring=neighboring)


def chi_square(t: float, *, updates_per_epoch: int, epochs: int, sampler: BoundedSampler) -> float:
    """TV ≤ √c/2 for c ≤ 1, c/(1+c) else, with c the χ² of the zero_out pair.

    Random allocation: 1 + c = (1 + b/M)^E; Poisson at q = 1/M: (1 + b q²)^{ME}; b = e^{t²}−1.
    Source: Ertan & van Dijk 2026, arXiv 2605.06259, Theorem 3.3; for Poisson the same
    inequality between TV and χ² with that pair's χ².
    """
    assert sampler != "shuffle", "no amplification is proven for shuffle"
    if t * t > _EXP_LIMIT:
        return 1.0
    b = math.expm1(t * t)
    m = updates_per_epoch
    if sampler == "poisson":
        exponent = m * epochs * math.log1p(b / m / m)
    else:
        exponent = epochs * math.log1p(b / m)
    if exponent > _EXP_LIMIT:
        return 1.0
    c = math.expm1(exponent) * UP
    return (math.sqrt(c) / 2 if c <= 1 else c / (1 + c)) * UP


def participation(*, updates_per_epoch: int, epochs: int) -> float:
    """TV ≤ 1 − (1−q)^{ME} for Poisson at q = 1/M: the chance that the record is used at all."""
    if updates_per_epoch == 1:
        return 1.0
    return -math.expm1(updates_per_epoch * epochs * math.log1p(-1 / updates_per_epoch)) * UP


def closed_form_noise(
    total_variation: float,
    *,
    updates_per_epoch: int,
    epochs: int,
    sampler: BoundedSampler,
    neighboring: Neighboring,
) -> float:
    """A σ at which TV ≤ ``total_variation``, in closed form, rounded up.

    Shuffle: the unamplified bound solved for σ. Random allocation and Poisson: the χ² bound
    solved for σ, at half the target under replace_one (triangle inequality).

    Raises:
        NotCertified: the target is too close to 0 for a σ below 10³⁰⁰.
    """
    if sampler == "shuffle":
        quantile = float(special.erfinv(total_variation * (1 - 1e-12))) * math.sqrt(8)
        sigma = distance(sampler, neighboring) * math.sqrt(epochs) / max(quantile, 1e-300)
        return _finite(sigma)
    target = total_variation / (2 if neighboring == "replace_one" else 1) * (1 - 1e-11)
    c = 4 * target * target if target <= 0.5 else target / (1 - target)
    m = updates_per_epoch
    if sampler == "poisson":
        b = m * (m * math.expm1(math.log1p(c) / (m * epochs)))
    else:
        b = m * math.expm1(math.log1p(c) / epochs)
    exponent = math.log1p(b)
    return _finite(1 / math.sqrt(exponent) if exponent > 0 else math.inf)


def _finite(sigma: float) -> float:
    if not sigma < 1e300:
        raise NotCertified("No noise multiplier is known for so small a κ.", pointer="/max_kappa")
    return sigma * UP
