"""What every wire model shares: strict input, frozen values, the interval type."""

import math
from typing import Self

from pydantic import BaseModel, ConfigDict

from service.core.interval import Interval as CoreInterval


class Wire(BaseModel):
    """A wire model: unknown fields, NaN and values of another JSON type are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Interval(Wire):
    """``{"lower": x, "upper": y}``; an end without a finite bound is null and says so."""

    lower: float | None
    upper: float | None
    is_unbounded: bool = False

    @classmethod
    def from_core(cls, interval: CoreInterval) -> Self:
        """The wire form of a certified interval."""
        return cls(
            lower=None if math.isinf(interval.lower) else interval.lower,
            upper=None if interval.is_unbounded else interval.upper,
            is_unbounded=interval.is_unbounded,
        )
