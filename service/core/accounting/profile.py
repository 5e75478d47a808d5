"""Certified privacy profiles, and the one way in which ε is read off them.

A *profile* maps ε to an interval that contains δ(ε) = sup over events A of
P(A) − e^ε Q(A). Every method of this package ends in one. ε at a given δ is then certified
by evaluation alone: a point where the upper end is ≤ δ bounds ε from above, a point where
the lower end is > δ bounds it from below. How the points were found does not matter.
"""

import math
from collections.abc import Callable
from typing import Final, Protocol

from service.core.errors import NotCertified
from service.core.interval import Interval

MAX_EPSILON: Final = 1e12
_MARGIN: Final = 1.05


class Profile(Protocol):
    """ε ↦ [lower, upper] of δ(ε), for real ε ≥ 0."""

    def __call__(self, epsilon: float, /) -> Interval:
        """The interval at ``epsilon``."""
        ...


def invert(profile: Profile, *, delta: float, guess: float) -> Interval:
    """The certified interval of ε(δ) = inf{ε ≥ 0: δ(ε) ≤ δ}.

    Args:
        profile: a certified profile of a pair (or of a pair dominating it).
        delta: in (0, 1).
        guess: any ε ≥ 0, better near the answer.

    Raises:
        NotCertified: no ε ≤ 1e12 has a certified δ(ε) ≤ δ.
    """
    at_zero = profile(0.0)
    if at_zero.upper <= delta:
        return Interval(0.0, 0.0)
    estimate = _root(profile, delta=delta, guess=guess, ceiling_at_zero=at_zero.lower > delta)
    upper = _certified_upper(profile, delta=delta, start=estimate)
    lower = _certified_lower(profile, delta=delta, start=min(estimate, upper))
    return Interval(float(min(lower, upper)), float(upper))


def _middle(profile: Profile, epsilon: float) -> float:
    bounds = profile(epsilon)
    return 0.5 * (bounds.lower + bounds.upper)


def _root(profile: Profile, *, delta: float, guess: float, ceiling_at_zero: bool) -> float:
    """An ε where the middle of the profile is about δ: bracket, then regula falsi in log δ."""

    def gap(epsilon: float) -> float:
        return math.log(max(_middle(profile, epsilon), 1e-320) / delta)

    low, low_gap = 0.0, (math.inf if ceiling_at_zero else gap(0.0))
    if low_gap <= 0:
        return 0.0
    high = max(guess, 1e-9)
    high_gap = gap(high)
    while high_gap > 0:
        low, low_gap = high, high_gap
        high *= 1.25 if high_gap < 1 else 2.0
        if high > MAX_EPSILON:
            raise NotCertified("ε is above 1e12: nothing useful can be certified.")
        high_gap = gap(high)
    if math.isinf(low_gap):
        low, low_gap = _climb_down(gap, high=high)
    return _illinois(gap, low=low, low_gap=low_gap, high=high, high_gap=high_gap)


def _climb_down(gap: Callable[[float], float], *, high: float) -> tuple[float, float]:
    """A point below ``high`` with a positive gap; 0 if there is none nearby."""
    step = 0.02
    while step < 1:
        candidate = high * (1 - step)
        value = gap(candidate)
        if value > 0:
            return candidate, value
        step *= 2
    return 0.0, gap(0.0)


def _illinois(
    gap: Callable[[float], float], *, low: float, low_gap: float, high: float, high_gap: float
) -> float:
    for _ in range(100):
        if high - low <= 2e-15 * high:
            break
        middle = low + (high - low) * low_gap / (low_gap - high_gap)
        if not low < middle < high:
            middle = 0.5 * (low + high)
        value = gap(middle)
        if abs(value) < 2e-14:
            return middle
        if value > 0:
            low, low_gap, high_gap = middle, value, 0.5 * high_gap
        else:
            high, high_gap, low_gap = middle, value, 0.5 * low_gap
    return 0.5 * (low + high)


def _certified_upper(profile: Profile, *, delta: float, start: float) -> float:
    """The least point found with δ(ε).upper ≤ δ, stepping up from ``start``."""
    step = _first_step(profile, start=start)
    point = failing = start
    for _ in range(200):
        if profile(point).upper <= delta:
            return _closest(
                lambda x: profile(x).upper <= delta, good=point, bad=failing, enough=step
            )
        failing, point = point, start + step
        step *= 2
        if point > MAX_EPSILON:
            break
    raise NotCertified("The upper end of ε could not be certified.")


def _certified_lower(profile: Profile, *, delta: float, start: float) -> float:
    """The largest point found with δ(ε).lower > δ, stepping down from ``start``; 0 if none."""
    step = _first_step(profile, start=start)
    point = failing = start
    while point > 0:
        if profile(point).lower > delta:
            return _closest(
                lambda x: profile(x).lower > delta, good=point, bad=failing, enough=step
            )
        failing, point = point, start - step
        step *= 2
    return 0.0


def _closest(holds: Callable[[float], bool], *, good: float, bad: float, enough: float) -> float:
    """A point where ``holds``, nearer to ``bad``, if the doubled steps have grown wide."""
    limit = max(1e-7 * good, 1e-9)
    if enough <= 4 * limit:
        return good
    while abs(good - bad) > limit:
        middle = 0.5 * (good + bad)
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good


def _first_step(profile: Profile, *, start: float) -> float:
    """The step that the profile's own width calls for: half width over slope, plus margin."""
    bounds = profile(start)
    half_width = 0.5 * (bounds.upper - bounds.lower)
    distance = max(1e-6 * start, 1e-9)
    slope = abs(_middle(profile, start + distance) - _middle(profile, start)) / distance
    floor = 4e-16 * start + 1e-15
    return max(_MARGIN * half_width / slope, floor) if slope > 0 else floor
