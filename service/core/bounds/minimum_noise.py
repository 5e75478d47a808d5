"""The least noise for a target separation, certified from the upper bounds."""

import math
from dataclasses import dataclass, replace
from typing import Final

from service.core.bounds import lower
from service.core.bounds.published import LARGEST_KAPPA, BoundedSampler, threshold
from service.core.bounds.separation import (
    Run,
    closed_upper_lines,
    least_upper,
    pair_bracket,
    upper_lines,
)
from service.core.bounds.upper import closed_form_noise
from service.core.errors import InvalidInput, NotCertified
from service.core.events import MAX_NOISE_MULTIPLIER, Neighboring

TICKS: Final = 1_000_000  # σ is answered in steps of 10⁻⁶, rounded up


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumNoise:
    """How much noise a target needs.

    ``published_threshold`` is where the published lower bound ends; it certifies no upper
    bound. ``noise_multiplier`` and ``closed_form`` are certified for ``max_kappa`` and None
    without it.
    """

    published_threshold: float | None
    noise_multiplier: float | None
    closed_form: float | None


def minimum_noise(
    *,
    updates_per_epoch: int,
    epochs: int = 1,
    sampler: BoundedSampler,
    neighboring: Neighboring = "zero_out",
    max_kappa: float | None = None,
) -> MinimumNoise:
    """The published threshold, and the least σ at which κ ≤ ``max_kappa`` is certified.

    Guarantees: κ.upper at ``noise_multiplier`` is at most ``max_kappa``; rounded up.

    Args:
        updates_per_epoch: M in [1, 10⁹]; Poisson sampling has the rate 1/M.
        epochs: E in [1, 10⁶].
        sampler: shuffle, balls_in_bins or poisson.
        neighboring: the relation.
        max_kappa: the target, in (0, 1/√2); κ is never larger than 1/√2.

    Raises:
        InvalidInput: a value out of range.
        NotCertified: no σ up to 10⁴ is enough.
    """
    run = Run(
        noise_multiplier=1.0,
        updates_per_epoch=updates_per_epoch,
        epochs=epochs,
        sampler=sampler,
        neighboring=neighboring,
    )
    published = threshold(updates_per_epoch)
    if max_kappa is None:
        return MinimumNoise(published_threshold=published, noise_multiplier=None, closed_form=None)
    if not 0 < max_kappa < LARGEST_KAPPA:
        raise InvalidInput("max_kappa lies in (0, 1/√2).", pointer="/max_kappa")
    closed = closed_form_noise(
        max_kappa * math.sqrt(2) * (1 - 1e-12),
        updates_per_epoch=updates_per_epoch,
        epochs=epochs,
        sampler=sampler,
        neighboring=neighboring,
    )
    ticks = _least_ticks(run, max_kappa)
    return MinimumNoise(
        published_threshold=published, noise_multiplier=ticks / TICKS, closed_form=closed
    )


def _least_ticks(run: Run, max_kappa: float) -> int:
    """The least σ in ticks that is certified; the bounds fall with σ."""

    def is_enough(ticks: int) -> bool:
        candidate = replace(run, noise_multiplier=ticks / TICKS)
        # Most candidates are decided by closed forms, from above or from below.
        if least_upper(closed_upper_lines(candidate)) <= max_kappa:
            return True
        if run.sampler != "balls_in_bins" or run.epochs > 1 or _is_beaten(candidate, max_kappa):
            return False
        return least_upper(upper_lines(candidate, pair_bracket(candidate))) <= max_kappa

    low, high = 1, int(MAX_NOISE_MULTIPLIER) * TICKS
    if not is_enough(high):
        raise NotCertified(
            f"No noise multiplier up to {MAX_NOISE_MULTIPLIER:g} is certified for this κ.",
            pointer="/max_kappa",
        )
    while low < high:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle + 1
    return high


def _is_beaten(run: Run, max_kappa: float) -> bool:
    """True if a test of balls_in_bins already separates by more than ``max_kappa``."""
    low = -1.0 if run.neighboring == "replace_one" else 0.0
    m = run.updates_per_epoch
    largest = lower.max_test(run.t, updates_per_epoch=m, high=1.0, low=low)
    total = lower.sum_test(run.t, updates_per_epoch=m, epochs=1, distance=1.0 - low)
    return max(largest, total) * LARGEST_KAPPA > max_kappa
