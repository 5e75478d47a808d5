"""Certified intervals: the only form in which ε, δ, σ, κ and their kin leave the core."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed interval [lower, upper] that contains the true value.

    ``upper`` may be ``math.inf``: the quantity is then unbounded. ``lower`` may be
    ``math.inf`` too, when the quantity is known to be unbounded (no noise at all).
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if math.isnan(self.lower) or math.isnan(self.upper) or self.lower > self.upper:
            raise ArithmeticError(f"not an interval: [{self.lower!r}, {self.upper!r}]")

    @property
    def is_unbounded(self) -> bool:
        """True if no finite upper end is known."""
        return math.isinf(self.upper)

    @property
    def width(self) -> float:
        """The upper end less the lower, infinite if the interval is unbounded."""
        return math.inf if self.is_unbounded else self.upper - self.lower

    def contains(self, value: float) -> bool:
        """True if ``lower ≤ value ≤ upper``."""
        return self.lower <= value <= self.upper
