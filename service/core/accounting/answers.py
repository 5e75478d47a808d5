"""The questions that the service answers: ε at a δ, δ at an ε.

Every answer is an interval with the method that certifies it, the accountant that was
asked, and notices: what a careful reader would want to be told before using the number.
"""

import math
from dataclasses import dataclass
from typing import Literal

from service.core.accounting.certify import Certified, certified_delta, certified_epsilon
from service.core.accounting.composition import Composition, compose
from service.core.accounting.epoch_tests import epoch_delta_lower, epoch_epsilon_lower
from service.core.accounting.notices import Notice, notices_for
from service.core.errors import InvalidInput, NotCertified
from service.core.events import Event, Neighboring
from service.core.interval import Interval

Accountant = Literal["auto", "rdp", "prv", "pld", "gdp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonAnswer:
    """ε at a given δ. ``epsilon.upper`` is the one to spend."""

    epsilon: Interval
    estimate: float | None
    accountant: Accountant
    certified: bool
    method: str
    warnings: tuple[Notice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaAnswer:
    """δ at a given ε. ``delta.upper`` is the one to spend."""

    delta: Interval
    estimate: float | None
    accountant: Accountant
    certified: bool
    method: str
    warnings: tuple[Notice, ...]


def epsilon(
    event: Event, *, delta: float, neighboring: Neighboring, accountant: Accountant = "auto"
) -> EpsilonAnswer:
    """The least ε for which ``event`` is (ε, δ)-DP under ``neighboring``.

    Guarantees: the interval contains the true value of the worst case over neighboring
    datasets and outputs; both directions of every pair are counted. It is never negative.
    Only ``accountant="gdp"`` may be uncertified: then ``certified`` is False.

    Args:
        event: what was done; parameters fixed beforehand (R2).
        delta: in [1e-30, 1).
        neighboring: add_or_remove_one, replace_one or zero_out.
        accountant: ``auto`` is this engine; ``rdp`` bounds from above; ``prv`` and ``pld``
            ask two other libraries; ``gdp`` is exact for Gaussian events, else an estimate.

    Raises:
        InvalidInput: a parameter out of range.
        NotCertified: no certified bound exists within the limits.
    """
    check_delta(delta)
    composition = compose(event, neighboring=neighboring)
    warnings = notices_for(composition, neighboring=neighboring)
    if accountant != "auto":
        return _epsilon_by(
            accountant, event, delta=delta, neighboring=neighboring, warnings=warnings
        )
    found = _certified_epsilon(event, composition, delta=delta, neighboring=neighboring)
    interval = found.interval
    if interval.upper == 0:
        warnings += (Notice.DELTA_EXCEEDS_TOTAL_VARIATION,)
    if composition.is_tight and _is_wide(interval):
        warnings += (Notice.WIDE_BRACKET,)
    return EpsilonAnswer(
        epsilon=interval,
        estimate=None if interval.is_unbounded else 0.5 * (interval.lower + interval.upper),
        accountant="auto",
        certified=True,
        method=found.method,
        warnings=warnings,
    )


def epsilon_interval(event: Event, *, delta: float, neighboring: Neighboring) -> Interval:
    """The certified interval alone: what budgets, forecasts and verdicts rest on."""
    return epsilon(event, delta=delta, neighboring=neighboring).epsilon


def delta(
    event: Event, *, epsilon: float, neighboring: Neighboring, accountant: Accountant = "auto"
) -> DeltaAnswer:
    """The least δ for which ``event`` is (ε, δ)-DP under ``neighboring``.

    Guarantees and arguments as for ``epsilon``.
    """
    if not 0 <= epsilon < math.inf:
        raise InvalidInput("epsilon is a finite number, 0 or above.", pointer="/epsilon")
    composition = compose(event, neighboring=neighboring)
    warnings = notices_for(composition, neighboring=neighboring)
    if accountant != "auto":
        return _delta_by(
            accountant, event, epsilon=epsilon, neighboring=neighboring, warnings=warnings
        )
    found = _certified_delta(event, composition, epsilon=epsilon, neighboring=neighboring)
    return DeltaAnswer(
        delta=found.interval,
        estimate=0.5 * (found.interval.lower + found.interval.upper),
        accountant="auto",
        certified=True,
        method=found.method,
        warnings=warnings,
    )


def check_delta(value: float) -> None:
    """Refuse a δ outside [1e-30, 1)."""
    if not 1e-30 <= value < 1:
        raise InvalidInput("delta lies in [1e-30, 1).", pointer="/delta")


def _is_wide(interval: Interval) -> bool:
    return interval.width > 0.02 * interval.upper + 1e-3


# ------------------------------------------------------------------------ own engine


def _certified_epsilon(
    event: Event, composition: Composition, *, delta: float, neighboring: Neighboring
) -> Certified:
    upper, lower, method = 0.0, 0.0, "closed form"
    if composition.has_zcdp:
        from service.core.accounting import rdp  # noqa: PLC0415

        upper, method = rdp.epsilon_upper(event, delta=delta, neighboring=neighboring), "rdp"
    for direction in composition.tight:
        if not composition.has_zcdp:
            above = certified_epsilon(
                composition.upper_parts(direction),
                delta=delta,
                unnoised=composition.unnoised,
                known=lower,
            )
            if above.interval.upper >= upper:
                upper, method = above.interval.upper, above.method
            if composition.is_tight:
                lower = max(lower, above.interval.lower)
        if not composition.is_tight:
            below = certified_epsilon(
                composition.lower_parts(direction), delta=delta, unnoised=composition.unnoised
            )
            lower = max(lower, below.interval.lower)
    for part in composition.epoch_parts:
        lower = max(lower, epoch_epsilon_lower(part, delta=delta, neighboring=neighboring))
        method = "unamplified Gaussian above, max test below"
    if composition.has_tiny_noise:
        lower = 0.0
    return Certified(_ordered(lower, upper), method)


def _certified_delta(
    event: Event, composition: Composition, *, epsilon: float, neighboring: Neighboring
) -> Certified:
    upper, lower, method = 0.0, 0.0, "closed form"
    if composition.has_zcdp:
        from service.core.accounting import rdp  # noqa: PLC0415

        upper, method = rdp.delta_upper(event, epsilon=epsilon, neighboring=neighboring), "rdp"
    for direction in composition.tight:
        if not composition.has_zcdp:
            above = certified_delta(
                composition.upper_parts(direction), epsilon=epsilon, unnoised=composition.unnoised
            )
            if above.interval.upper >= upper:
                upper, method = above.interval.upper, above.method
            if composition.is_tight:
                lower = max(lower, above.interval.lower)
        if not composition.is_tight:
            below = certified_delta(
                composition.lower_parts(direction), epsilon=epsilon, unnoised=composition.unnoised
            )
            lower = max(lower, below.interval.lower)
    for part in composition.epoch_parts:
        lower = max(lower, epoch_delta_lower(part, epsilon=epsilon, neighboring=neighboring))
        method = "unamplified Gaussian above, max test below"
    if composition.has_tiny_noise:
        lower = 0.0
    return Certified(_ordered(lower, upper), method)


def _ordered(lower: float, upper: float) -> Interval:
    # Two certified bounds of one number; they may cross by the last digit alone.
    if math.isfinite(upper):
        assert lower <= upper * (1 + 1e-9) + 1e-12, (lower, upper)
    return Interval(min(lower, upper), upper)


# ------------------------------------------------------------------------ other accountants


def _epsilon_by(
    accountant: Accountant,
    event: Event,
    *,
    delta: float,
    neighboring: Neighboring,
    warnings: tuple[Notice, ...],
) -> EpsilonAnswer:
    from service.core.accounting import gdp, peers, rdp  # noqa: PLC0415

    estimate: float | None = None
    certified = True
    match accountant:
        case "rdp":
            interval = Interval(0.0, rdp.epsilon_upper(event, delta=delta, neighboring=neighboring))
        case "prv":
            interval = peers.prv_epsilon(event, delta=delta, neighboring=neighboring)
        case "pld":
            interval = peers.pld_epsilon(event, delta=delta, neighboring=neighboring)
        case _:
            exact, estimate = gdp.epsilon_estimate(event, delta=delta, neighboring=neighboring)
            certified = exact is not None
            interval = exact if exact is not None else Interval(0.0, math.inf)
            if not certified:
                warnings += (Notice.CLT_NOT_ADMISSIBLE,)
    if estimate is None and not interval.is_unbounded:
        estimate = interval.upper if accountant == "rdp" else None
    return EpsilonAnswer(
        epsilon=interval,
        estimate=estimate,
        accountant=accountant,
        certified=certified,
        method=accountant,
        warnings=warnings,
    )


def _delta_by(
    accountant: Accountant,
    event: Event,
    *,
    epsilon: float,
    neighboring: Neighboring,
    warnings: tuple[Notice, ...],
) -> DeltaAnswer:
    from service.core.accounting import peers, rdp  # noqa: PLC0415

    match accountant:
        case "rdp":
            upper = rdp.delta_upper(event, epsilon=epsilon, neighboring=neighboring)
            interval = Interval(0.0, min(upper, 1.0))
        case "prv":
            interval = peers.prv_delta(event, epsilon=epsilon, neighboring=neighboring)
        case "pld":
            interval = peers.pld_delta(event, epsilon=epsilon, neighboring=neighboring)
        case _:
            raise NotCertified("gdp answers ε at a δ only.", pointer="/accountant")
    return DeltaAnswer(
        delta=interval,
        estimate=None,
        accountant=accountant,
        certified=True,
        method=accountant,
        warnings=warnings,
    )
