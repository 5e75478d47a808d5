"""From a composition of pairs to certified δ(ε) and ε(δ): which method answers when.

1. nothing, or Gaussian only, or a single release: closed form;
2. the contour integral, sharp wherever the composition smooths the loss enough;
3. where it does not (few steps of a tiny rate, thin tails): the grid sandwich;
4. Chernoff from above and one part alone from below, which always exist.

All are certified, so that their intersection is.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from service.core.accounting.closed_form import GaussianProfile, gaussian_epsilon_guess
from service.core.accounting.contour import contour_profile
from service.core.accounting.grouping import MAX_DISTINCT, grouped
from service.core.accounting.pairs import (
    GaussianPair,
    LaplacePair,
    Part,
    TwoPointPair,
    infinite_mass,
)
from service.core.accounting.poisson_pair import PoissonPair
from service.core.accounting.profile import Profile, invert
from service.core.accounting.sandwich import sandwich_profile
from service.core.accounting.single_step import SingleStepProfile
from service.core.accounting.tilting import Tilt, tilt_for_delta, tilt_for_epsilon
from service.core.errors import NotCertified
from service.core.interval import Interval

# A bracket this narrow needs no second opinion.
_SHARP_RELATIVE: Final = 1e-4
_SHARP_ABSOLUTE: Final = 1e-6
_DROPPED_SHARE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Certified:
    """An interval with the method that certified it."""

    interval: Interval
    method: str


def certified_epsilon(
    parts: Sequence[Part], *, delta: float, unnoised: float = 0.0, known: float = 0.0
) -> Certified:
    """The certified interval of ε(δ) for one direction of a composition.

    Args:
        parts: pairs with counts, none twice.
        delta: in (0, 1).
        unnoised: further P-mass at L = ∞, independent of the parts.
        known: a lower bound of what is asked from another direction; below it, a coarse
            answer is enough.
    """
    mass = infinite_mass(parts)
    infinite = mass + unnoised - mass * unnoised
    if infinite > delta * (1 + 1e-12):
        return Certified(Interval(math.inf, math.inf), "mass at infinite loss")
    if unnoised > 0:
        return _with_unnoised(parts, delta=delta, unnoised=unnoised)
    simple = _closed_form(parts)
    if simple is not None:
        profile, guess = simple
        found = invert(profile, delta=delta, guess=guess(delta))
        # Where only the mass at infinity is left, δ(ε) is flat and its edge is known.
        upper = min(found.upper, _pure(parts)) if infinite <= delta else found.upper
        return Certified(Interval(min(found.lower, upper), upper), "closed form")
    if infinite >= delta:
        return Certified(Interval(0.0, math.inf), "mass at infinite loss")
    if len(parts) > MAX_DISTINCT:
        lower, upper = (
            certified_epsilon(grouped(parts, pessimistic=side), delta=delta, known=known)
            for side in (False, True)
        )
        return _joined(lower, upper)
    return _numeric_epsilon(parts, delta=delta, infinite=infinite, known=known)


def certified_delta(parts: Sequence[Part], *, epsilon: float, unnoised: float = 0.0) -> Certified:
    """The certified interval of δ(ε) for one direction of a composition."""
    simple = _closed_form(parts)
    if simple is not None:
        out = Certified(simple[0](epsilon), "closed form")
    elif len(parts) > MAX_DISTINCT:
        out = _joined(
            certified_delta(grouped(parts, pessimistic=False), epsilon=epsilon),
            certified_delta(grouped(parts, pessimistic=True), epsilon=epsilon),
        )
    else:
        out = _numeric_delta(parts, epsilon=epsilon)
    if unnoised <= 0:
        return out
    # A record caught without noise is lost; otherwise the rest decides (from above).
    upper = min(unnoised + (1 - unnoised) * out.interval.upper, 1.0)
    return Certified(Interval(min(unnoised, upper), upper), out.method)


def _joined(lower: Certified, upper: Certified) -> Certified:
    low, high = lower.interval.lower, upper.interval.upper
    return Certified(Interval(min(low, high), high), f"{upper.method} of grouped steps")


def _with_unnoised(parts: Sequence[Part], *, delta: float, unnoised: float) -> Certified:
    """ε where some steps have no noise, but rarely enough for δ.

    Without a hit such a step has a loss of at most −log(1 − q) in either direction, which
    the hits' mass bounds: −log(1 − ``unnoised``) in all.
    """
    rest = (delta - unnoised) / (1 - unnoised)
    if rest <= 0:
        return Certified(Interval(0.0, math.inf), "mass at infinite loss")
    inner = certified_epsilon(parts, delta=rest)
    upper = inner.interval.upper - math.log1p(-unnoised) * (1 + 1e-12)
    return Certified(Interval(0.0, upper), inner.method)


def _closed_form(
    parts: Sequence[Part],
) -> tuple[Profile, Callable[[float], float]] | None:
    if not parts:
        return _nothing, lambda _: 0.0
    if len(parts) > 1:
        return None
    pair, count = parts[0]
    if isinstance(pair, GaussianPair):
        mu = math.sqrt(pair.mu_squared * count)
        return GaussianProfile(mu), lambda delta: gaussian_epsilon_guess(mu=mu, delta=delta)
    if count == 1:
        profile = SingleStepProfile(pair)
        return profile, profile.guess
    return None


def _nothing(_: float, /) -> Interval:
    return Interval(0.0, 0.0)


def _numeric_epsilon(
    parts: Sequence[Part], *, delta: float, infinite: float, known: float
) -> Certified:
    finite_delta = delta - infinite
    thinned = _thinned(parts, delta=finite_delta)
    surplus = _surplus(thinned)
    tilt = tilt_for_delta(thinned, delta=finite_delta - surplus)
    upper = min(tilt.chernoff_epsilon((finite_delta - surplus) * (1 - 1e-12)), _pure(parts))
    if upper <= known:
        return Certified(Interval(0.0, upper), "chernoff")
    bounds = Interval(min(_one_part_epsilon(parts, delta=delta), upper), upper)
    method = "chernoff"
    for name, build in _numeric_methods(
        thinned, tilt, whole=lambda: _whole(parts, tilt_for_delta(parts, delta=finite_delta))
    ):
        try:
            found = invert(build(), delta=delta, guess=min(tilt.epsilon, upper))
        except NotCertified:
            continue
        bounds = _intersection(bounds, found)
        method = name
        if _is_sharp(bounds):
            break
    return Certified(bounds, method)


def _numeric_delta(parts: Sequence[Part], *, epsilon: float) -> Certified:
    infinite = infinite_mass(parts)
    tilt = tilt_for_epsilon(parts, epsilon=epsilon)
    size = max(math.exp(max(min(tilt.log_delta, 0.0), -690.0)), 1e-290)
    thinned = _thinned(parts, delta=size)
    surplus = _surplus(thinned)
    if surplus > 0:
        tilt = tilt_for_epsilon(thinned, epsilon=epsilon)
    upper = min(tilt.chernoff_delta(epsilon) + surplus + infinite * (1 + 1e-14), 1.0)
    lower = max(SingleStepProfile(pair)(epsilon).lower for pair, _ in parts)
    bounds, method = Interval(min(lower, upper), upper), "chernoff"
    for name, build in _numeric_methods(
        thinned, tilt, whole=lambda: _whole(parts, tilt_for_epsilon(parts, epsilon=epsilon))
    ):
        try:
            found = build()(epsilon)
        except NotCertified:
            continue
        bounds = _intersection(bounds, found)
        method = name
        if bounds.width <= 1e-4 * bounds.upper:
            break
    return Certified(bounds, method)


def _numeric_methods(
    thinned: Sequence[Part], tilt: Tilt, *, whole: Callable[[], Profile]
) -> list[tuple[str, Callable[[], Profile]]]:
    return [("contour", lambda: contour_profile(thinned, tilt=tilt)), ("sandwich", whole)]


def _whole(parts: Sequence[Part], tilt: Tilt) -> Profile:
    """The sandwich of the pairs without cuts, around their own saddle point."""
    return sandwich_profile(parts, tilt=tilt)


def _thinned(parts: Sequence[Part], *, delta: float) -> list[Part]:
    share = _DROPPED_SHARE * delta / len(parts)
    return [
        (pair.with_cut(share / count) if isinstance(pair, PoissonPair) else pair, count)
        for pair, count in parts
    ]


def _surplus(parts: Sequence[Part]) -> float:
    return sum(n * p.dropped_mass for p, n in parts if isinstance(p, PoissonPair))


def _pure(parts: Sequence[Part]) -> float:
    """Σ n ε where every finite loss is bounded by ε: basic composition.

    In the direction add the loss is −f(z) ≤ −log(1 − q).
    """
    total = 0.0
    for pair, count in parts:
        if isinstance(pair, LaplacePair | TwoPointPair):
            total += count * pair.epsilon
        elif isinstance(pair, PoissonPair) and pair.direction == "add":
            total -= count * math.log1p(-pair.sampling_rate)
        else:
            return math.inf
    return total * (1 + 1e-12)


def _one_part_epsilon(parts: Sequence[Part], *, delta: float) -> float:
    best = 0.0
    for pair, _ in parts:
        profile = SingleStepProfile(pair)
        try:
            best = max(best, invert(profile, delta=delta, guess=profile.guess(delta)).lower)
        except NotCertified:
            continue
    return best


def _intersection(one: Interval, other: Interval) -> Interval:
    lower, upper = max(one.lower, other.lower), min(one.upper, other.upper)
    # Two certified intervals meet; ends may cross by the last digit alone.
    assert lower <= upper * (1 + 1e-9) + 1e-12, (one, other)
    return Interval(min(lower, upper), max(lower, upper))


def _is_sharp(bounds: Interval) -> bool:
    return bounds.width <= max(_SHARP_RELATIVE * bounds.upper, _SHARP_ABSOLUTE)
