"""The mechanism JSON: what accounting, reservations, jobs, runs and checks are told.

``Mechanism`` describes a whole mechanism. ``NoisyMechanism`` refuses one that releases
anything without noise: only accounting answers for that ("unbounded"). The questions "how much
noise" and "how many steps" leave that field out: ``MechanismWithoutNoise`` and
``MechanismWithoutSteps`` become template events of scale 1.0, or of one step.

Every limit of the core is checked here with the path of the field; what the core refuses all
the same is raised again with the full JSON pointer.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, model_validator

from service.core import events
from service.core.errors import InvalidInput
from service.core.events import MAX_DEPTH, MAX_NOISE_MULTIPLIER, MAX_PARTS, MAX_SEGMENTS, MAX_STEPS
from service.schemas.base import Wire
from service.schemas.refusals import WITHOUT_TAGS, joined, refusal

#: One record of as many as a dataset may have. Asked of what comes in, not of what is shown:
#: an old row must stay readable.
_MIN_SAMPLING_RATE: Final = 1e-15
NoiseMultiplier = Annotated[
    float,
    Field(
        ge=0,
        le=MAX_NOISE_MULTIPLIER,
        description="Noise scale over the sensitivity of the released value "
        "(standard deviation for Gaussian noise, b for Laplace).",
        examples=[1.1],
    ),
]
Count = Annotated[int, Field(ge=1, le=MAX_STEPS)]
SamplingRate = Annotated[
    float,
    Field(
        gt=0,
        le=1,
        description="Chance of a record to join a step, in [1e-15, 1].",
        examples=[0.01],
    ),
]
_LENGTH: Final = Field(min_length=1, max_length=MAX_SEGMENTS)
Positive = Annotated[float, Field(gt=0)]
Delta = Annotated[
    float,
    Field(ge=1e-30, lt=1, description="In (0, 1), down to 1e-30.", examples=[1e-5]),
]


def _absent(description: str | None = None) -> Any:
    """An optional field that stays absent in answers."""
    return Field(default=None, exclude_if=lambda value: value is None, description=description)


class AdaptiveClipping(Wire):
    """Private quantile clipping: the noise of the count that moves the threshold."""

    count_noise_stddev: float = Field(
        gt=0, description="Standard deviation, in counts, of the noise on the count."
    )


class Segment(Wire):
    """``steps`` equal steps of a schedule."""

    steps: Count
    noise_multiplier: NoiseMultiplier
    sampling_rate: SamplingRate | None = _absent("Required for poisson; 1 for full_batch.")


class RelativeSegment(Wire):
    """``steps`` equal steps whose noise is a multiple of the one asked for."""

    steps: Count
    noise_multiplier: NoiseMultiplier = Field(
        default=1.0, gt=0, description="Relative to the noise_multiplier that is asked for."
    )
    sampling_rate: SamplingRate | None = _absent()


class _DpSgdFields(Wire):
    type: Literal["dp_sgd"]
    sampler: events.Sampler
    sampling_rate: SamplingRate | None = _absent()
    updates_per_epoch: Count | None = _absent("Steps in one epoch, for shuffle and balls_in_bins.")
    remainder: Literal["dropped", "kept"] | None = _absent(
        "What a shuffled run does with the last, short batch of an epoch; "
        "if it is not said, the worse of the two is charged."
    )
    adaptive_clipping: AdaptiveClipping | None = _absent()

    def require(self, *names: str) -> None:
        """Refuse if a field that this sampler needs is absent."""
        for name in names:
            if getattr(self, name) is None:
                raise refusal("missing", name, reason=f"{self.sampler} needs {name}.")

    def forbid(self, *names: str, why: str) -> None:
        """Refuse if a field that has no meaning here is present."""
        for name in names:
            value = getattr(self, name, None)
            if value is not None:
                raise refusal("inconsistent", name, reason=why, value=value)

    def check_sampler(self, *, length: str, schedule: bool) -> None:
        """Refuse fields of another sampler; ``length`` names the field of the run's length."""
        if self.sampler in ("shuffle", "balls_in_bins"):
            self.forbid(
                "sampling_rate",
                "steps",
                "schedule",
                why=f"{self.sampler} takes updates_per_epoch and epochs instead: "
                "each record joins one step per epoch.",
            )
            self.require("updates_per_epoch")
            return
        self.forbid(
            "updates_per_epoch",
            "epochs",
            "remainder",
            why=f"{self.sampler} takes steps: its steps are independent of each other.",
        )
        if schedule:
            self.forbid(
                "sampling_rate",
                length,
                "noise_multiplier",
                why="A schedule stands in place of the flat fields: give one or the other.",
            )
        elif self.sampler == "poisson":
            self.require("sampling_rate")
        elif self.sampling_rate not in (None, 1):
            raise refusal(
                "inconsistent",
                "sampling_rate",
                reason="full_batch uses every record in every step: leave it out, or 1.",
                value=self.sampling_rate,
            )

    def epochal(self, *, epochs: int, noise_multiplier: float) -> events.EpochDpSgd:
        """The event of a sampler that works an epoch at a time."""
        assert self.updates_per_epoch is not None
        assert self.sampler in ("shuffle", "balls_in_bins")
        return events.EpochDpSgd(
            sampler=self.sampler,
            updates_per_epoch=self.updates_per_epoch,
            epochs=epochs,
            noise_multiplier=noise_multiplier,
            remainder=self.remainder,
            count_noise_stddev=self._count_noise,
        )

    def stepwise(self, *segments: events.Segment) -> events.StepwiseDpSgd:
        """The event of a sampler whose steps are independent."""
        assert self.sampler in ("poisson", "full_batch")
        return events.StepwiseDpSgd(
            sampler=self.sampler, schedule=segments, count_noise_stddev=self._count_noise
        )

    def segment(self, *, steps: int, noise_multiplier: float) -> events.Segment:
        """The one segment of the flat fields."""
        return events.Segment(
            steps=steps,
            noise_multiplier=noise_multiplier,
            sampling_rate=_rate(self.sampling_rate, "/sampling_rate"),
        )

    @property
    def _count_noise(self) -> float | None:
        return None if self.adaptive_clipping is None else self.adaptive_clipping.count_noise_stddev


class DpSgd(_DpSgdFields):
    """DP-SGD. ``poisson`` and ``full_batch`` take steps, the others epochs."""

    noise_multiplier: NoiseMultiplier | None = _absent()
    steps: Count | None = _absent()
    epochs: Count | None = _absent()
    schedule: Annotated[list[Segment], _LENGTH] | None = _absent()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.check_sampler(length="steps", schedule=self.schedule is not None)
        if self.schedule is not None:
            _check_schedule(self.sampler, self.schedule)
            return self
        self.require("noise_multiplier")
        if self.sampler in ("poisson", "full_batch"):
            self.require("steps")
        else:
            self.require("epochs")
            _check_epochs(self.updates_per_epoch, self.epochs)
        return self

    def to_core(self, *, pointer: str = "/mechanism") -> events.Event:
        """The event; what the core refuses is raised at ``pointer``."""
        with _at(pointer):
            if self.schedule is not None:
                return self.stepwise(*_segments(self.schedule))
            assert self.noise_multiplier is not None
            noise = float(self.noise_multiplier)
            if self.epochs is not None:
                return self.epochal(epochs=self.epochs, noise_multiplier=noise)
            assert self.steps is not None
            return self.stepwise(self.segment(steps=self.steps, noise_multiplier=noise))


class DpSgdWithoutNoise(_DpSgdFields):
    """DP-SGD whose noise is asked for; a schedule gives the noise of its parts relatively."""

    steps: Count | None = _absent()
    epochs: Count | None = _absent()
    schedule: Annotated[list[RelativeSegment], _LENGTH] | None = _absent()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.check_sampler(length="steps", schedule=self.schedule is not None)
        if self.schedule is not None:
            _check_schedule(self.sampler, self.schedule)
        elif self.sampler in ("poisson", "full_batch"):
            self.require("steps")
        else:
            self.require("epochs")
            _check_epochs(self.updates_per_epoch, self.epochs)
        return self

    def to_core(self, *, pointer: str = "/mechanism") -> events.DpSgd:
        """The template event at noise multiplier 1.0."""
        with _at(pointer):
            if self.schedule is not None:
                return self.stepwise(*_segments(self.schedule))
            if self.epochs is not None:
                return self.epochal(epochs=self.epochs, noise_multiplier=1.0)
            assert self.steps is not None
            return self.stepwise(self.segment(steps=self.steps, noise_multiplier=1.0))


class DpSgdWithoutSteps(_DpSgdFields):
    """DP-SGD whose length is asked for: steps, or whole epochs."""

    noise_multiplier: NoiseMultiplier

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.check_sampler(length="steps", schedule=False)
        return self

    def to_core(self, *, pointer: str = "/mechanism") -> events.DpSgd:
        """The template event of one step, or of one epoch."""
        noise = float(self.noise_multiplier)
        with _at(pointer):
            if self.sampler in ("shuffle", "balls_in_bins"):
                return self.epochal(epochs=1, noise_multiplier=noise)
            return self.stepwise(self.segment(steps=1, noise_multiplier=noise))


_ADDITIVE: Final = {
    "gaussian": events.Gaussian,
    "laplace": events.Laplace,
    "discrete_gaussian": events.DiscreteGaussian,
}
Additive = events.Gaussian | events.Laplace | events.DiscreteGaussian


class AdditiveNoise(Wire):
    """``count`` releases of sensitivity 1 with noise of one scale."""

    type: Literal["gaussian", "laplace", "discrete_gaussian"]
    noise_multiplier: NoiseMultiplier
    count: Count = 1

    def to_core(self, *, pointer: str = "/mechanism") -> events.Event:
        """The event; what the core refuses is raised at ``pointer``."""
        with _at(pointer):
            return _ADDITIVE[self.type](
                noise_multiplier=float(self.noise_multiplier), count=self.count
            )


class AdditiveNoiseWithoutNoise(Wire):
    """``count`` releases whose noise is asked for."""

    type: Literal["gaussian", "laplace", "discrete_gaussian"]
    count: Count = 1

    def to_core(self, *, pointer: str = "/mechanism") -> Additive:
        """The template event at noise multiplier 1.0."""
        with _at(pointer):
            return _ADDITIVE[self.type](noise_multiplier=1.0, count=self.count)


class RandomizedResponse(Wire):
    """``count`` answers of randomised response with odds e^epsilon."""

    type: Literal["randomized_response"]
    epsilon: Positive
    count: Count = 1

    def to_core(self, *, pointer: str = "/mechanism") -> events.Event:
        """The event; what the core refuses is raised at ``pointer``."""
        with _at(pointer):
            return events.RandomizedResponse(epsilon=float(self.epsilon), count=self.count)


class ApproximateDp(Wire):
    """``count`` spends of another system that states no more than (epsilon, delta)."""

    type: Literal["approximate_dp"]
    epsilon: Positive
    delta: float = Field(ge=0, lt=1)
    count: Count = 1

    def to_core(self, *, pointer: str = "/mechanism") -> events.Event:
        """The event; what the core refuses is raised at ``pointer``."""
        with _at(pointer):
            return events.ApproximateDp(
                epsilon=float(self.epsilon), delta=float(self.delta), count=self.count
            )


class Zcdp(Wire):
    """``count`` spends of another system that states rho-zCDP."""

    type: Literal["zcdp"]
    rho: Positive
    count: Count = 1

    def to_core(self, *, pointer: str = "/mechanism") -> events.Event:
        """The event; what the core refuses is raised at ``pointer``."""
        with _at(pointer):
            return events.Zcdp(rho=float(self.rho), count=self.count)


class Compose(Wire):
    """All parts, one after the other."""

    type: Literal["compose"]
    parts: list["AnyMechanism"] = Field(max_length=MAX_PARTS)

    def to_core(self, *, pointer: str = "/mechanism") -> events.Event:
        """The event; what the core refuses is raised at ``pointer``."""
        parts = tuple(
            part.to_core(pointer=joined(pointer, ("parts", i))) for i, part in enumerate(self.parts)
        )
        with _at(pointer):
            return events.Composed(parts=parts)


class Repeat(Wire):
    """The same mechanism ``times`` times with fresh randomness."""

    type: Literal["repeat"]
    of: "AnyMechanism"
    times: Count

    def to_core(self, *, pointer: str = "/mechanism") -> events.Event:
        """The event; what the core refuses is raised at ``pointer``."""
        of = self.of.to_core(pointer=joined(pointer, ("of",)))
        with _at(pointer):
            return events.Repeated(of=of, times=self.times)


def _not_too_deep(value: Any) -> Any:
    """Refuse deep nesting before anything recurses into it."""
    level: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    for _ in range(MAX_DEPTH):
        level = [inner for path, item in level for inner in _children(path, item)]
        if not level:
            return value
    raise refusal("out_of_range", *level[0][0], reason=f"Nested deeper than {MAX_DEPTH} levels.")


def _has_noise(mechanism: "AnyMechanism") -> "AnyMechanism":
    """Refuse a mechanism that releases something without noise."""
    stack: list[tuple[tuple[str | int, ...], AnyMechanism]] = [((), mechanism)]
    while stack:
        path, item = stack.pop()
        match item:
            case Compose():
                stack += [((*path, "parts", i), part) for i, part in enumerate(item.parts)]
            case Repeat():
                stack.append(((*path, "of"), item.of))
            case DpSgd(schedule=list() as schedule):
                for i, segment in enumerate(schedule):
                    _check_noise((*path, "schedule", i), segment.noise_multiplier)
            case DpSgd() | AdditiveNoise():
                _check_noise(path, item.noise_multiplier)
            case _:
                pass
    return mechanism


AnyMechanism = Annotated[
    DpSgd | AdditiveNoise | RandomizedResponse | ApproximateDp | Zcdp | Compose | Repeat,
    Field(discriminator="type"),
    WITHOUT_TAGS,
]
Mechanism = Annotated[AnyMechanism, BeforeValidator(_not_too_deep)]
NoisyMechanism = Annotated[Mechanism, AfterValidator(_has_noise)]
MechanismWithoutNoise = Annotated[
    DpSgdWithoutNoise | AdditiveNoiseWithoutNoise, Field(discriminator="type"), WITHOUT_TAGS
]
MechanismWithoutSteps = DpSgdWithoutSteps
Compose.model_rebuild()
Repeat.model_rebuild()
_ADAPTER: Final[TypeAdapter[Any]] = TypeAdapter(AnyMechanism)


def from_core(event: events.Event) -> AnyMechanism:
    """The wire form of an event; ``to_core`` gives the equal event back."""
    return cast("AnyMechanism", _ADAPTER.validate_python(events.to_json(event)))


@contextmanager
def _at(pointer: str) -> Generator[None]:
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(
            error.message, pointer=pointer + error.pointer, code=error.code
        ) from error


def _segments(schedule: list[Segment] | list[RelativeSegment]) -> tuple[events.Segment, ...]:
    return tuple(
        events.Segment(
            steps=s.steps,
            noise_multiplier=float(s.noise_multiplier),
            sampling_rate=_rate(s.sampling_rate, f"/schedule/{i}/sampling_rate"),
        )
        for i, s in enumerate(schedule)
    )


def _rate(sampling_rate: float | None, pointer: str) -> float:
    if sampling_rate is None:
        return 1.0
    if sampling_rate < _MIN_SAMPLING_RATE:
        raise InvalidInput(f"A sampling rate is at least {_MIN_SAMPLING_RATE:g}.", pointer=pointer)
    return float(sampling_rate)


def _check_schedule(
    sampler: events.Sampler, schedule: list[Segment] | list[RelativeSegment]
) -> None:
    if sum(s.steps for s in schedule) > MAX_STEPS:
        raise refusal("out_of_range", "schedule", reason=f"At most {MAX_STEPS} steps in all.")
    for i, segment in enumerate(schedule):
        path = ("schedule", i, "sampling_rate")
        if sampler == "poisson" and segment.sampling_rate is None:
            raise refusal("missing", *path, reason="poisson needs sampling_rate.")
        if sampler == "full_batch" and segment.sampling_rate not in (None, 1):
            raise refusal(
                "inconsistent",
                *path,
                reason="full_batch uses every record in every step: leave it out, or 1.",
                value=segment.sampling_rate,
            )


def _check_epochs(updates_per_epoch: int | None, epochs: int | None) -> None:
    assert updates_per_epoch is not None
    assert epochs is not None
    if updates_per_epoch * epochs > MAX_STEPS:
        raise refusal(
            "out_of_range",
            "epochs",
            reason=f"At most {MAX_STEPS} steps in all: updates_per_epoch times epochs.",
            value=epochs,
        )


def _check_noise(path: tuple[str | int, ...], noise_multiplier: float | None) -> None:
    if noise_multiplier is not None and noise_multiplier <= 0:
        raise refusal(
            "out_of_range",
            *path,
            "noise_multiplier",
            reason="noise_multiplier is above 0: without noise nothing is private.",
            value=noise_multiplier,
        )


def _children(path: tuple[str | int, ...], item: Any) -> list[tuple[tuple[str | int, ...], Any]]:
    if not isinstance(item, dict):
        return []
    fields = cast("dict[str, Any]", item)
    found: list[tuple[tuple[str | int, ...], Any]] = []
    parts = fields.get("parts")
    if isinstance(parts, list):
        found += [((*path, "parts", i), p) for i, p in enumerate(cast("list[Any]", parts))]
    if "of" in fields:
        found.append(((*path, "of"), fields["of"]))
    return found
