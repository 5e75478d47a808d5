"""Accounting on the wire: questions about one mechanism, answers with both ends certified.

Every request carries examples that run as they are.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field

from service.core.events import Neighboring
from service.schemas.base import Interval, Wire
from service.schemas.mechanism import (
    AnyMechanism,
    Delta,
    Mechanism,
    MechanismWithoutNoise,
    MechanismWithoutSteps,
    from_core,
)

if TYPE_CHECKING:  # a client imports these models without the engine
    from service.core.accounting import answers, calibration

AccountantName = Literal["auto", "rdp", "prv", "pld", "gdp"]
CrossChecker = Literal["rdp", "prv", "pld", "gdp"]
MAX_EPSILON: Final = 1e6  # as large as a budget may be
TargetEpsilon = Annotated[float, Field(gt=0, le=MAX_EPSILON, examples=[2.0])]

_POISSON: Final[dict[str, Any]] = {
    "type": "dp_sgd",
    "sampler": "poisson",
    "sampling_rate": 0.01,
    "noise_multiplier": 1.1,
    "steps": 3000,
}
_SHUFFLE: Final[dict[str, Any]] = {
    "type": "dp_sgd",
    "sampler": "shuffle",
    "updates_per_epoch": 100,
    "epochs": 30,
    "noise_multiplier": 1.1,
}


def _examples(*bodies: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": list(bodies)})


def _without(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}


class _Question(Wire):
    neighboring: Neighboring = Field(
        default="add_or_remove_one",
        description="What one record more, less or other means; shown in the answer.",
    )
    accountant: AccountantName = Field(
        default="auto",
        description="auto: this engine, certified. rdp bounds from above; prv and pld ask other "
        "libraries; gdp is exact for Gaussian mechanisms and an estimate elsewhere.",
    )


class EpsilonRequest(_Question):
    """The least ε at a δ."""

    model_config = _examples(
        {"mechanism": _POISSON, "delta": 1e-5},
        {"mechanism": _SHUFFLE, "delta": 1e-5},
        {
            "mechanism": {
                "type": "compose",
                "parts": [_POISSON, {"type": "laplace", "noise_multiplier": 2.0, "count": 1}],
            },
            "delta": 1e-6,
            "neighboring": "replace_one",
        },
    )

    mechanism: Mechanism
    delta: Delta
    cross_checks: list[CrossChecker] = Field(
        default=["rdp", "gdp"],
        max_length=4,
        description="Who else is asked; prv and pld take about a second.",
    )


class DeltaRequest(_Question):
    """The least δ at an ε."""

    model_config = _examples({"mechanism": _POISSON, "epsilon": 2.0})

    mechanism: Mechanism
    epsilon: float = Field(ge=0, le=MAX_EPSILON, examples=[2.0])


class NoiseMultiplierRequest(_Question):
    """The least noise that keeps ε within a target."""

    model_config = _examples(
        {
            "mechanism": _without(_POISSON, "noise_multiplier"),
            "target_epsilon": 2.0,
            "delta": 1e-5,
        },
        {
            "mechanism": {
                "type": "dp_sgd",
                "sampler": "poisson",
                "schedule": [
                    {"steps": 500, "noise_multiplier": 1.5, "sampling_rate": 0.01},
                    {"steps": 500, "noise_multiplier": 1.0, "sampling_rate": 0.01},
                ],
            },
            "target_epsilon": 2.0,
            "delta": 1e-5,
        },
    )

    mechanism: MechanismWithoutNoise
    target_epsilon: TargetEpsilon
    delta: Delta


class StepsRequest(_Question):
    """The most steps that keep ε within a target."""

    model_config = _examples(
        {"mechanism": _without(_POISSON, "steps"), "target_epsilon": 2.0, "delta": 1e-5}
    )

    mechanism: MechanismWithoutSteps
    target_epsilon: TargetEpsilon
    delta: Delta


class Warned(Wire):
    """A warning: a stable code, what holds, what to do."""

    code: str
    message: str
    action: str | None = None


class CrossCheck(Wire):
    """What another accountant says to the same question; never the number to spend."""

    accountant: AccountantName
    epsilon: Interval | None = Field(description="null where that accountant has no answer.")
    certified: bool
    detail: str | None = None


class _Answer(Wire):
    estimate: float | None = Field(description="The middle, for plots; spend the upper end.")
    accountant: AccountantName
    certified: bool
    method: str = Field(description="What certifies the interval.")
    neighboring: Neighboring
    warnings: list[Warned]
    elapsed_ms: float


class EpsilonAnswer(_Answer):
    """ε at the δ that was asked for: ``epsilon.upper`` is the one to spend."""

    object: Literal["accounting.epsilon"] = "accounting.epsilon"
    epsilon: Interval
    delta: float
    cross_checks: list[CrossCheck]

    @classmethod
    def from_core(
        cls,
        answer: "answers.EpsilonAnswer",
        *,
        request: EpsilonRequest,
        cross_checks: Sequence[CrossCheck] = (),
        elapsed_ms: float,
    ) -> Self:
        """The wire form of the core's answer to ``request``."""
        return cls(
            epsilon=Interval.from_core(answer.epsilon),
            delta=request.delta,
            cross_checks=list(cross_checks),
            neighboring=request.neighboring,
            elapsed_ms=elapsed_ms,
            **_common(answer),
        )


class DeltaAnswer(_Answer):
    """δ at the ε that was asked for."""

    object: Literal["accounting.delta"] = "accounting.delta"
    delta: Interval
    epsilon: float

    @classmethod
    def from_core(
        cls, answer: "answers.DeltaAnswer", *, request: DeltaRequest, elapsed_ms: float
    ) -> Self:
        """The wire form of the core's answer to ``request``."""
        return cls(
            delta=Interval.from_core(answer.delta),
            epsilon=request.epsilon,
            neighboring=request.neighboring,
            elapsed_ms=elapsed_ms,
            **_common(answer),
        )


class Achieved(Wire):
    """What the answer reaches, certified after rounding."""

    epsilon: Interval


class NoiseMultiplierAnswer(Wire):
    """The noise multiplier, rounded up: its ε is within the target."""

    object: Literal["accounting.noise_multiplier"] = "accounting.noise_multiplier"
    noise_multiplier: float = Field(
        description="For a schedule, the factor by which its relative noise is multiplied."
    )
    achieved: Achieved
    mechanism: AnyMechanism = Field(description="The mechanism with this noise.")
    target_epsilon: float
    delta: float
    neighboring: Neighboring
    accountant: AccountantName
    elapsed_ms: float

    @classmethod
    def from_core(
        cls,
        found: "calibration.NoiseCalibration",
        *,
        request: NoiseMultiplierRequest,
        elapsed_ms: float,
    ) -> Self:
        """The wire form of a calibrated noise multiplier."""
        return cls(
            noise_multiplier=found.noise_multiplier,
            achieved=Achieved(epsilon=Interval.from_core(found.achieved)),
            mechanism=from_core(found.event),
            target_epsilon=request.target_epsilon,
            delta=request.delta,
            neighboring=request.neighboring,
            accountant=request.accountant,
            elapsed_ms=elapsed_ms,
        )


class StepsAnswer(Wire):
    """The largest number of steps whose certified ε is within the target."""

    object: Literal["accounting.steps"] = "accounting.steps"
    steps: int = Field(description="For shuffle and balls_in_bins the steps of whole epochs.")
    achieved: Achieved
    mechanism: AnyMechanism = Field(description="The mechanism with these steps.")
    target_epsilon: float
    delta: float
    neighboring: Neighboring
    accountant: AccountantName
    elapsed_ms: float

    @classmethod
    def from_core(
        cls,
        found: "calibration.StepCalibration",
        *,
        request: StepsRequest,
        elapsed_ms: float,
    ) -> Self:
        """The wire form of a calibrated number of steps."""
        return cls(
            steps=found.steps,
            achieved=Achieved(epsilon=Interval.from_core(found.achieved)),
            mechanism=from_core(found.event),
            target_epsilon=request.target_epsilon,
            delta=request.delta,
            neighboring=request.neighboring,
            accountant=request.accountant,
            elapsed_ms=elapsed_ms,
        )


class Accountant(Wire):
    """One way to compute ε, and where its numbers may be used."""

    object: Literal["accountant"] = "accountant"
    name: AccountantName
    version: str
    certified: bool
    bounds: Literal["both", "upper", "none"] = Field(
        description="Which ends of the interval it certifies."
    )
    valid_for: str = Field(description="Mechanisms and ranges, in words.")


class Accountants(Wire):
    """The accountants that can be asked here."""

    object: Literal["list"] = "list"
    data: list[Accountant]
    has_more: Literal[False] = False
    next_cursor: None = None


def _common(answer: "answers.EpsilonAnswer | answers.DeltaAnswer") -> dict[str, Any]:
    return {
        "estimate": answer.estimate,
        "accountant": answer.accountant,
        "certified": answer.certified,
        "method": answer.method,
        "warnings": [
            Warned(code=w.code, message=w.message, action=w.action) for w in answer.warnings
        ],
    }
