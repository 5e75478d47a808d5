"""Bounds on the wire: how far a run's trade-off curve lies from random guessing.

The common input describes one DP-SGD run by its updates per epoch, whatever the sampler;
Poisson sampling means ``sampling_rate = 1 / updates_per_epoch``.
"""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from service.core.events import MAX_NOISE_MULTIPLIER, MAX_STEPS, Neighboring
from service.schemas.base import Interval, Wire

BoundSampler = Literal["shuffle", "balls_in_bins", "poisson"]
LARGEST_KAPPA: Final = 0.7071067811865475  # below 1/√2, the separation of no privacy at all


class _Run(Wire):
    updates_per_epoch: int = Field(ge=1, le=MAX_STEPS, description="M, steps in one epoch.")
    epochs: int = Field(default=1, ge=1, le=MAX_STEPS)
    sampler: BoundSampler
    neighboring: Neighboring = "zero_out"


class SeparationRequest(_Run):
    """The separation κ of a run: the largest distance of its trade-off curve from α + β = 1."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"noise_multiplier": 0.2, "updates_per_epoch": 10000, "sampler": "shuffle"},
                {
                    "noise_multiplier": 1.0,
                    "updates_per_epoch": 100,
                    "epochs": 10,
                    "sampler": "balls_in_bins",
                },
                {"noise_multiplier": 1.0, "updates_per_epoch": 100, "sampler": "poisson"},
            ]
        }
    )

    noise_multiplier: float = Field(gt=0, le=MAX_NOISE_MULTIPLIER)
    delta: float = Field(
        default=1e-5, ge=0, lt=1, description="Where implied_epsilon_floor is taken."
    )


class Warned(Wire):
    """A remark that belongs to the answer."""

    code: str
    message: str


class PublishedBound(Wire):
    """What the published theorem says; above its threshold it says nothing."""

    sigma_threshold: float | None = Field(description="1/√(2 ln M); null for M = 1.")
    kappa_floor: float | None
    verdict: Literal["below", "silent", "not_applicable"]
    source: str


class Bound(Wire):
    """One side of the bracket and what it rests on."""

    side: Literal["lower", "upper"]
    value: float
    method: str
    proven_for: list[BoundSampler] = Field(description="The samplers that it is proven for.")
    source: str


class SeparationAnswer(Wire):
    """κ and what follows from it, for an adversary who sees every update."""

    object: Literal["bounds.separation"] = "bounds.separation"
    kappa: Interval
    total_variation: Interval = Field(description="√2 κ: the membership advantage.")
    published_bound: PublishedBound
    bounds: list[Bound]
    implied_epsilon_floor: float = Field(description="The least ε that κ leaves room for at delta.")
    delta: float
    noise_multiplier: float
    updates_per_epoch: int
    epochs: int
    sampler: BoundSampler
    neighboring: Neighboring
    warnings: list[Warned]
    elapsed_ms: float


class MinimumNoiseRequest(_Run):
    """The least noise for a given separation, and the published threshold."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"updates_per_epoch": 10000, "sampler": "shuffle"},
                {"updates_per_epoch": 100, "sampler": "balls_in_bins", "max_kappa": 0.1},
            ]
        }
    )

    max_kappa: Annotated[float | None, Field(gt=0, lt=LARGEST_KAPPA)] = None


class MinimumNoiseAnswer(Wire):
    """The noise multiplier, rounded up, at which κ is certified to be small enough."""

    object: Literal["bounds.minimum_noise"] = "bounds.minimum_noise"
    published_threshold: float | None = Field(description="1/√(2 ln M); null for M = 1.")
    max_kappa: float | None
    noise_multiplier: float | None = Field(description="null without max_kappa.")
    kappa: Interval | None = Field(description="κ at noise_multiplier.")
    closed_form: float | None = Field(description="A sufficient noise in closed form, if known.")
    method: str | None = None
    source: str | None = None
    updates_per_epoch: int
    epochs: int
    sampler: BoundSampler
    neighboring: Neighboring
    elapsed_ms: float
