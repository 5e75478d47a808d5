"""The least noise that meets a target, and the most steps that fit under it.

Both search for the edge of a certified predicate: "the upper end of ε is ≤ the target".
What is returned has been checked at the very digits returned; what lies just beyond has
been checked to fail, or is left out by monotonicity (docs/accounting.md, "Calibration").
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from typing import Final

from service.core.accounting.answers import Accountant, check_delta, epsilon
from service.core.errors import InvalidInput, NotCertified
from service.core.events import (
    MAX_NOISE_MULTIPLIER,
    MAX_STEPS,
    Composed,
    DiscreteGaussian,
    EpochDpSgd,
    Event,
    Gaussian,
    Laplace,
    Neighboring,
    Repeated,
    StepwiseDpSgd,
    prefix,
)
from service.core.interval import Interval

_DIGITS: Final = 6
_RELATIVE_GOAL: Final = 2e-7
_LEAST_FACTOR: Final = 1e-3
_MAX_QUERIES: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseCalibration:
    """A noise multiplier (for a template with relative noise: the common factor)."""

    noise_multiplier: float
    achieved: Interval
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCalibration:
    """A number of steps with the ε that they reach."""

    steps: int
    achieved: Interval
    event: Event


def scaled(event: Event, factor: float) -> Event:
    """``event`` with every noise multiplier times ``factor``.

    Statements that carry no noise multiplier (randomized_response, approximate_dp, zcdp)
    and the count noise of adaptive clipping stay as they are.
    """
    match event:
        case StepwiseDpSgd():
            segments = tuple(
                replace(s, noise_multiplier=s.noise_multiplier * factor) for s in event.schedule
            )
            return replace(event, schedule=segments)
        case EpochDpSgd() | Gaussian() | Laplace() | DiscreteGaussian():
            return replace(event, noise_multiplier=event.noise_multiplier * factor)
        case Composed():
            return Composed(parts=tuple(scaled(part, factor) for part in event.parts))
        case Repeated():
            return replace(event, of=scaled(event.of, factor))
        case _:
            return event


def noise_multiplier(
    template: Event,
    *,
    target_epsilon: float,
    delta: float,
    neighboring: Neighboring,
    accountant: Accountant = "auto",
) -> NoiseCalibration:
    """The least noise factor, rounded up to six digits, that certifies ``target_epsilon``.

    Guarantees: the upper end of ε of the returned event is ≤ ``target_epsilon``, checked
    after rounding. One unit in the sixth digit less was not certified.

    Args:
        template: an event whose noise multipliers are 1, or relative to one another (R23).
        target_epsilon: > 0.
        delta: in [1e-30, 1).
        neighboring: the relation of the claim.
        accountant: whose upper end must meet the target; ``gdp`` only where it is exact.

    Raises:
        InvalidInput: the target cannot be met by any noise up to the limit.
        NotCertified: the accountant certifies nothing here.
    """
    check_delta(delta)
    check_target(target_epsilon)
    largest = _largest_noise(template)
    if largest <= 0:
        raise InvalidInput("The mechanism has no noise to calibrate.", pointer="/mechanism")
    ceiling = MAX_NOISE_MULTIPLIER / largest

    def achieved(factor: float) -> Interval:
        answer = epsilon(
            scaled(template, factor), delta=delta, neighboring=neighboring, accountant=accountant
        )
        if not answer.certified:
            raise NotCertified("This accountant only estimates ε here.", pointer="/accountant")
        return answer.epsilon

    def gap(log_factor: float) -> float:
        upper = achieved(math.exp(log_factor)).upper
        if upper <= 0:
            return -math.inf
        return math.log(upper / target_epsilon) if upper < math.inf else math.inf

    factor = math.exp(_edge(gap, ceiling=math.log(ceiling)))
    rounded = _round_up(factor)
    while achieved(min(rounded, ceiling)).upper > target_epsilon:
        if rounded >= ceiling:
            raise InvalidInput(
                f"No noise multiplier up to {MAX_NOISE_MULTIPLIER:g} reaches the target.",
                pointer="/target_epsilon",
                code="TARGET_UNREACHABLE",
            )
        rounded = _round_up(rounded * (1 + 10.0**-_DIGITS))
    rounded = min(rounded, ceiling)
    return NoiseCalibration(
        noise_multiplier=rounded,
        achieved=achieved(rounded),
        event=scaled(template, rounded),
    )


def steps(
    template: StepwiseDpSgd | EpochDpSgd,
    *,
    target_epsilon: float,
    delta: float,
    neighboring: Neighboring,
    accountant: Accountant = "auto",
) -> StepCalibration:
    """The largest number of steps of ``template`` whose certified ε meets the target.

    Epoch samplers count whole epochs (R12). A template of one segment stands for as many
    steps as fit; of a longer schedule at most its own steps are taken.

    Raises:
        InvalidInput: not even one step (or epoch) fits.
    """
    check_delta(delta)
    check_target(target_epsilon)
    longest, unit = _stretched(template)

    def achieved(units: int) -> Interval:
        event = prefix(longest, units * unit)
        return epsilon(event, delta=delta, neighboring=neighboring, accountant=accountant).epsilon

    def fits(units: int) -> bool:
        return achieved(units).upper <= target_epsilon

    if not fits(1):
        raise InvalidInput(
            "Not even one step fits under the target.",
            pointer="/target_epsilon",
            code="TARGET_UNREACHABLE",
        )
    count = _largest_that(fits, limit=longest.steps // unit)
    return StepCalibration(
        steps=count * unit, achieved=achieved(count), event=prefix(longest, count * unit)
    )


def check_target(value: float) -> None:
    """Refuse a target ε that is not a finite number above 0."""
    if not 0 < value < math.inf:
        raise InvalidInput("target_epsilon is a finite number above 0.", pointer="/target_epsilon")


def _stretched(template: StepwiseDpSgd | EpochDpSgd) -> tuple[StepwiseDpSgd | EpochDpSgd, int]:
    """The template at its longest, and the steps of one unit of choice."""
    if isinstance(template, EpochDpSgd):
        unit = template.updates_per_epoch
        return replace(template, epochs=MAX_STEPS // unit), unit
    if len(template.schedule) == 1:
        return replace(template, schedule=(replace(template.schedule[0], steps=MAX_STEPS),)), 1
    return template, 1


def _largest_that(fits: Callable[[int], bool], *, limit: int) -> int:
    """The largest n ≤ limit that fits, given that 1 does: doubling, then bisection."""
    low, high = 1, 2
    while high <= limit and fits(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _largest_noise(event: Event) -> float:
    match event:
        case StepwiseDpSgd():
            return max(s.noise_multiplier for s in event.schedule)
        case EpochDpSgd() | Gaussian() | Laplace() | DiscreteGaussian():
            return event.noise_multiplier
        case Composed():
            return max((_largest_noise(part) for part in event.parts), default=0.0)
        case Repeated():
            return _largest_noise(event.of)
        case _:
            return 0.0


def _edge(gap: Callable[[float], float], *, ceiling: float) -> float:
    """The least log factor with gap ≤ 0, to 2e-7: bracket by steps, then regula falsi."""
    position, step = 0.0, 0.5
    value = gap(min(position, ceiling))
    low = high = None
    queries = 0
    while (low is None or high is None) and queries < _MAX_QUERIES:
        queries += 1
        if value > 0:
            low = (position, value)
            if position >= ceiling:
                return ceiling
        else:
            high = (position, value)
            if position <= math.log(_LEAST_FACTOR):
                return position
        if low is not None and high is not None:
            break
        # ε falls about like 1/σ or faster, so that a gap of g asks for a move of at most g.
        move = min(max(abs(value), 0.02), step) if math.isfinite(value) else step
        position = min(position + move, ceiling) if high is None else position - move
        position = max(position, math.log(_LEAST_FACTOR))
        step *= 1.6
        value = gap(position)
    assert low is not None and high is not None, "the search ends with a bracket"  # noqa: PT018
    return _narrowed(gap, low=low, high=high, queries=queries)


def _narrowed(
    gap: Callable[[float], float],
    *,
    low: tuple[float, float],
    high: tuple[float, float],
    queries: int,
) -> float:
    """Illinois between a point that misses and one that meets; returns one that meets."""
    low_gap, high_gap = low[1], high[1]
    left, right = low[0], high[0]
    while right - left > _RELATIVE_GOAL and queries < _MAX_QUERIES:
        queries += 1
        middle = 0.5 * (left + right)
        if math.isfinite(low_gap) and math.isfinite(high_gap):
            middle = left + (right - left) * low_gap / (low_gap - high_gap)
            # Aim a little to the safe side, so that the bracket closes from both ends.
            middle = min(max(middle + 0.4 * _RELATIVE_GOAL, left + 1e-9), right - 1e-9)
        if not left < middle < right:
            break
        value = gap(middle)
        if value > 0:
            left, low_gap, high_gap = middle, value, 0.5 * high_gap
        else:
            right, high_gap, low_gap = middle, value, 0.5 * low_gap
    return right


def _round_up(value: float) -> float:
    """The least number of six significant digits that is not below ``value``."""
    return float(Context(prec=_DIGITS, rounding=ROUND_CEILING).create_decimal(Decimal(value)))
