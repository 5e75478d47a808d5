"""Certified accounting of privacy events."""

from service.core.accounting.answers import (
    Accountant,
    DeltaAnswer,
    EpsilonAnswer,
    delta,
    epsilon,
    epsilon_interval,
)
from service.core.accounting.calibration import noise_multiplier, scaled, steps
from service.core.accounting.notices import Notice

__all__ = [
    "Accountant",
    "DeltaAnswer",
    "EpsilonAnswer",
    "Notice",
    "delta",
    "epsilon",
    "epsilon_interval",
    "noise_multiplier",
    "scaled",
    "steps",
]
