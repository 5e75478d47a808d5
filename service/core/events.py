"""Privacy events: what was done to the data, as immutable values.

An event is data, never code: the accounting reads it, the ledger stores it, the noise log
replays into it. Its JSON form is the wire's mechanism JSON. The meaning of a stored event
never changes; a new meaning is a new ``type`` or a new field.

σ (``noise_multiplier``) is the noise scale over the sensitivity of the released value: for
DP-SGD over ``max_grad_norm``, the L2 norm of ONE record's clipped contribution to the SUM.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from service.core.errors import InvalidInput

Neighboring = Literal["add_or_remove_one", "replace_one", "zero_out"]
Sampler = Literal["poisson", "balls_in_bins", "shuffle", "full_batch"]

MAX_STEPS: Final = 1_000_000_000
MAX_PARTS: Final = 10_000
MAX_SEGMENTS: Final = 100_000
MAX_NOISE_MULTIPLIER: Final = 1e4
MAX_DEPTH: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """``steps`` equal DP-SGD steps: one (σ, q) pair of a schedule."""

    steps: int
    noise_multiplier: float
    sampling_rate: float

    def __post_init__(self) -> None:
        _check_count("steps", self.steps)
        _check_noise(self.noise_multiplier)
        _check_unit("sampling_rate", self.sampling_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepwiseDpSgd:
    """DP-SGD whose steps are independent: ``poisson``, or ``full_batch`` (every rate is 1).

    ``count_noise_stddev`` is σ_b of private adaptive clipping (R22); each segment's
    ``noise_multiplier`` is then the gradient's own.
    """

    sampler: Literal["poisson", "full_batch"]
    schedule: tuple[Segment, ...]
    count_noise_stddev: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.schedule) <= MAX_SEGMENTS:
            raise InvalidInput(f"A schedule has 1 to {MAX_SEGMENTS} segments.", pointer="/schedule")
        if self.steps > MAX_STEPS:
            raise InvalidInput(f"At most {MAX_STEPS} steps in all.", pointer="/schedule")
        if self.sampler == "full_batch" and any(s.sampling_rate != 1 for s in self.schedule):
            raise InvalidInput(
                "full_batch uses every record in every step: sampling_rate is 1.",
                pointer="/sampling_rate",
                code="INCONSISTENT",
            )
        _check_count_noise(self.count_noise_stddev)

    @property
    def steps(self) -> int:
        """The number of noised releases."""
        return sum(s.steps for s in self.schedule)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochDpSgd:
    """DP-SGD whose batches are drawn an epoch at a time: ``shuffle`` or ``balls_in_bins``.

    Each record takes part in exactly one of ``updates_per_epoch`` steps of every epoch, or in
    none where the remainder is dropped. ``remainder`` says what a shuffled run does with the
    last, short batch; from above it matters only under add_or_remove_one (R4). None: not known,
    the worse of the two is charged, and the lesser of the two bounds from below.
    """

    sampler: Literal["shuffle", "balls_in_bins"]
    updates_per_epoch: int
    epochs: int
    noise_multiplier: float
    remainder: Literal["dropped", "kept"] | None = None
    count_noise_stddev: float | None = None

    def __post_init__(self) -> None:
        _check_count("updates_per_epoch", self.updates_per_epoch)
        _check_count("epochs", self.epochs)
        _check_noise(self.noise_multiplier)
        if self.steps > MAX_STEPS:
            raise InvalidInput(f"At most {MAX_STEPS} steps in all.", pointer="/epochs")
        _check_count_noise(self.count_noise_stddev)

    @property
    def steps(self) -> int:
        """The number of noised releases in all epochs together."""
        return self.updates_per_epoch * self.epochs


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian:
    """``count`` Gaussian releases of L2 sensitivity 1 with standard deviation σ."""

    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)
        _check_count("count", self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Laplace:
    """``count`` Laplace releases of L1 sensitivity 1 with scale b = ``noise_multiplier``."""

    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)
        _check_count("count", self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussian:
    """``count`` discrete Gaussian releases of integers of sensitivity 1 with parameter σ."""

    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)
        _check_count("count", self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomizedResponse:
    """``count`` answers, each pure ``epsilon``-DP with two outcomes of odds e^±ε."""

    epsilon: float
    count: int = 1

    def __post_init__(self) -> None:
        _check_positive("epsilon", self.epsilon)
        _check_count("count", self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproximateDp:
    """``count`` spends of another system that states no more than (ε, δ)."""

    epsilon: float
    delta: float
    count: int = 1

    def __post_init__(self) -> None:
        _check_positive("epsilon", self.epsilon)
        if not 0 <= self.delta < 1:
            raise InvalidInput("delta lies in [0, 1).", pointer="/delta")
        _check_count("count", self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Zcdp:
    """``count`` spends of another system that states ``rho``-zCDP."""

    rho: float
    count: int = 1

    def __post_init__(self) -> None:
        _check_positive("rho", self.rho)
        _check_count("count", self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """All ``parts``, in order; no parts is the event that touches no data."""

    parts: tuple["Event", ...]

    def __post_init__(self) -> None:
        if len(self.parts) > MAX_PARTS:
            raise InvalidInput(f"At most {MAX_PARTS} parts.", pointer="/parts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The event ``of``, ``times`` times with fresh randomness."""

    of: "Event"
    times: int

    def __post_init__(self) -> None:
        _check_count("times", self.times)


Event = (
    StepwiseDpSgd
    | EpochDpSgd
    | Gaussian
    | Laplace
    | DiscreteGaussian
    | RandomizedResponse
    | ApproximateDp
    | Zcdp
    | Composed
    | Repeated
)
DpSgd = StepwiseDpSgd | EpochDpSgd
NOTHING: Final = Composed(parts=())


def poisson(*, sampling_rate: float, noise_multiplier: float, steps: int) -> StepwiseDpSgd:
    """DP-SGD with Poisson sampling at one rate and one noise multiplier."""
    segment = Segment(steps=steps, noise_multiplier=noise_multiplier, sampling_rate=sampling_rate)
    return StepwiseDpSgd(sampler="poisson", schedule=(segment,))


def prefix(event: DpSgd, steps: int) -> Event:
    """The event of the first ``steps`` steps of ``event``.

    Guarantees: monotone in ``steps``; an epoch that has begun counts whole, because the
    allocation of records to its steps is hidden state (R12).

    Args:
        event: a DP-SGD event.
        steps: 0 ≤ steps ≤ event.steps.
    """
    assert 0 <= steps <= event.steps, (steps, event.steps)
    if steps == 0:
        return NOTHING
    if isinstance(event, EpochDpSgd):
        return EpochDpSgd(
            sampler=event.sampler,
            updates_per_epoch=event.updates_per_epoch,
            epochs=-(-steps // event.updates_per_epoch),
            noise_multiplier=event.noise_multiplier,
            remainder=event.remainder,
            count_noise_stddev=event.count_noise_stddev,
        )
    kept: list[Segment] = []
    for segment in event.schedule:
        if steps == 0:
            break
        taken = min(steps, segment.steps)
        kept.append(
            Segment(
                steps=taken,
                noise_multiplier=segment.noise_multiplier,
                sampling_rate=segment.sampling_rate,
            )
        )
        steps -= taken
    return StepwiseDpSgd(
        sampler=event.sampler, schedule=tuple(kept), count_noise_stddev=event.count_noise_stddev
    )


def for_unit(event: Event, *, records: int) -> Event:
    """The event as it looks to a privacy unit of up to ``records`` records.

    Guarantees: whoever holds ``records`` records loses no more by ``event`` than the holder
    of one record loses by the answer: an upper event, never a basis of lower bounds. Spends
    that other systems state (``approximate_dp``, ``zcdp``) are taken as stated for the unit.
    For ``discrete_gaussian`` this holds of Rényi and zCDP prices alone.

    Source: ``records`` records move a sum by up to ``records`` clip norms, so σ falls by that
        factor. Under Poisson sampling at least one of them is drawn with probability
        1 − (1 − q)^records; by joint convexity the case that all are drawn together
        dominates every mixture of fewer.
    """
    assert records >= 1, records
    if records == 1:
        return event
    match event:
        case StepwiseDpSgd():
            return replace(
                event,
                schedule=tuple(_segment_for_unit(s, records) for s in event.schedule),
                count_noise_stddev=_divided(event.count_noise_stddev, records),
            )
        case EpochDpSgd():
            return replace(
                event,
                noise_multiplier=event.noise_multiplier / records,
                count_noise_stddev=_divided(event.count_noise_stddev, records),
            )
        case Gaussian() | Laplace() | DiscreteGaussian():
            return replace(event, noise_multiplier=event.noise_multiplier / records)
        case RandomizedResponse():
            return replace(event, count=event.count * records)
        case Composed():
            return Composed(parts=tuple(for_unit(part, records=records) for part in event.parts))
        case Repeated():
            return Repeated(of=for_unit(event.of, records=records), times=event.times)
        case ApproximateDp() | Zcdp():
            return event


def part_count(event: Event) -> int:
    """How many mechanisms the event lists: what its accounting takes time for."""
    match event:
        case StepwiseDpSgd():
            return len(event.schedule)
        case Composed():
            return sum(part_count(part) for part in event.parts)
        case Repeated():
            return part_count(event.of)
        case _:
            return 1


def merge_segments(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Equal neighbours joined into one: the shortest schedule with the same steps."""
    merged: list[Segment] = []
    for segment in segments:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.noise_multiplier == segment.noise_multiplier
            and last.sampling_rate == segment.sampling_rate
        ):
            merged[-1] = Segment(
                steps=last.steps + segment.steps,
                noise_multiplier=last.noise_multiplier,
                sampling_rate=last.sampling_rate,
            )
        else:
            merged.append(segment)
    return tuple(merged)


def to_json(event: Event) -> dict[str, Any]:
    """The mechanism JSON of an event; ``from_json`` gives the equal event back."""
    match event:
        case StepwiseDpSgd():
            return _stepwise_to_json(event)
        case EpochDpSgd():
            out: dict[str, Any] = {
                "type": "dp_sgd",
                "sampler": event.sampler,
                "updates_per_epoch": event.updates_per_epoch,
                "epochs": event.epochs,
                "noise_multiplier": event.noise_multiplier,
            }
            if event.remainder is not None:
                out["remainder"] = event.remainder
            return out | _adaptive_clipping(event.count_noise_stddev)
        case Gaussian() | Laplace() | DiscreteGaussian():
            return {
                "type": _NOISE_TYPES[type(event)],
                "noise_multiplier": event.noise_multiplier,
                "count": event.count,
            }
        case RandomizedResponse():
            return {"type": "randomized_response", "epsilon": event.epsilon, "count": event.count}
        case ApproximateDp():
            return {
                "type": "approximate_dp",
                "epsilon": event.epsilon,
                "delta": event.delta,
                "count": event.count,
            }
        case Zcdp():
            return {"type": "zcdp", "rho": event.rho, "count": event.count}
        case Composed():
            return {"type": "compose", "parts": [to_json(p) for p in event.parts]}
        case Repeated():
            return {"type": "repeat", "of": to_json(event.of), "times": event.times}


def from_json(data: Mapping[str, Any]) -> Event:
    """The event of a *stored* mechanism JSON (the wire's input is checked by schemas/)."""
    fields = {name: value for name, value in data.items() if name != "type"}
    match data["type"]:
        case "dp_sgd":
            return _dp_sgd_from_json(fields)
        case "compose":
            return Composed(parts=tuple(from_json(part) for part in fields["parts"]))
        case "repeat":
            return Repeated(of=from_json(fields["of"]), times=fields["times"])
        case kind if kind in _FLAT_TYPES:
            return _FLAT_TYPES[kind](**fields)
        case kind:
            raise InvalidInput(f"Unknown mechanism type {kind!r}.", pointer="/type")


_NOISE_TYPES: Final = {
    Gaussian: "gaussian",
    Laplace: "laplace",
    DiscreteGaussian: "discrete_gaussian",
}
_FLAT_TYPES: Final = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "discrete_gaussian": DiscreteGaussian,
    "randomized_response": RandomizedResponse,
    "approximate_dp": ApproximateDp,
    "zcdp": Zcdp,
}


def _stepwise_to_json(event: StepwiseDpSgd) -> dict[str, Any]:
    out: dict[str, Any] = {"type": "dp_sgd", "sampler": event.sampler}
    segments = [
        {
            "steps": s.steps,
            "noise_multiplier": s.noise_multiplier,
            "sampling_rate": s.sampling_rate,
        }
        for s in event.schedule
    ]
    out |= segments[0] if len(segments) == 1 else {"schedule": segments}
    return out | _adaptive_clipping(event.count_noise_stddev)


def _segment_for_unit(segment: Segment, records: int) -> Segment:
    # −expm1(m·log1p(−q)) is 1 − (1−q)^m without cancellation, nudged up against rounding.
    if segment.sampling_rate < 1:
        drawn = -math.expm1(records * math.log1p(-segment.sampling_rate)) * (1 + 1e-12)
    else:
        drawn = 1.0
    return Segment(
        steps=segment.steps,
        noise_multiplier=segment.noise_multiplier / records,
        sampling_rate=min(drawn, 1.0),
    )


def _divided(value: float | None, records: int) -> float | None:
    return None if value is None else value / records


def _adaptive_clipping(count_noise_stddev: float | None) -> dict[str, Any]:
    if count_noise_stddev is None:
        return {}
    return {"adaptive_clipping": {"count_noise_stddev": count_noise_stddev}}


def _dp_sgd_from_json(data: Mapping[str, Any]) -> DpSgd:
    count_noise = data.get("adaptive_clipping", {}).get("count_noise_stddev")
    if data["sampler"] in ("shuffle", "balls_in_bins"):
        return EpochDpSgd(
            sampler=data["sampler"],
            updates_per_epoch=data["updates_per_epoch"],
            epochs=data["epochs"],
            noise_multiplier=data["noise_multiplier"],
            remainder=data.get("remainder"),
            count_noise_stddev=count_noise,
        )
    segments = data.get("schedule") or [
        {
            "steps": data["steps"],
            "noise_multiplier": data["noise_multiplier"],
            "sampling_rate": data.get("sampling_rate", 1.0),
        }
    ]
    return StepwiseDpSgd(
        sampler=data["sampler"],
        schedule=tuple(Segment(**s) for s in segments),
        count_noise_stddev=count_noise,
    )


def _check_count(name: str, value: int) -> None:
    if not 1 <= value <= MAX_STEPS:
        raise InvalidInput(f"{name} is a whole number from 1 to {MAX_STEPS}.", pointer=f"/{name}")


def _check_noise(value: float) -> None:
    # Zero is an honest description of a release without noise: accounting answers
    # "unbounded", the ledger and the jobs refuse it.
    if not 0 <= value <= MAX_NOISE_MULTIPLIER:
        raise InvalidInput(
            f"noise_multiplier lies in [0, {MAX_NOISE_MULTIPLIER:g}].", pointer="/noise_multiplier"
        )


def _check_unit(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise InvalidInput(f"{name} lies in (0, 1].", pointer=f"/{name}")


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise InvalidInput(f"{name} is a finite number above 0.", pointer=f"/{name}")


def _check_count_noise(value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise InvalidInput(
            "count_noise_stddev is a finite number above 0.",
            pointer="/adaptive_clipping/count_noise_stddev",
        )
