"""Separation κ and the least noise for it: published statements and certified bounds."""

from service.core.bounds.minimum_noise import MinimumNoise, minimum_noise
from service.core.bounds.published import (
    BoundedSampler,
    PublishedBound,
    published_curve,
    threshold,
)
from service.core.bounds.separation import (
    BoundLine,
    Separation,
    Warn,
    epsilon_floor,
    separation,
)

__all__ = [
    "BoundLine",
    "BoundedSampler",
    "MinimumNoise",
    "PublishedBound",
    "Separation",
    "Warn",
    "epsilon_floor",
    "minimum_noise",
    "published_curve",
    "separation",
    "threshold",
]
