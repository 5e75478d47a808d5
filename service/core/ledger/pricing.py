"""Prices: what an event costs in an account, in whole units rounded against the spender (R8)."""

import math
from fractions import Fraction
from typing import Final

from service.core.accounting.rdp import rdp
from service.core.errors import InvalidInput
from service.core.events import (
    ApproximateDp,
    Composed,
    DiscreteGaussian,
    DpSgd,
    EpochDpSgd,
    Event,
    Gaussian,
    Laplace,
    Neighboring,
    RandomizedResponse,
    Repeated,
    StepwiseDpSgd,
    Zcdp,
    for_unit,
    prefix,
)
from service.core.ledger.amounts import Amounts, ceiling, subtract
from service.core.ledger.terms import AccountTerms

# Squared distances over C² (R4): √5 for a kept or unknown ragged batch.
_SQUARED_DISTANCE_UNKNOWN: Final = 5


def price(event: Event, terms: AccountTerms) -> Amounts:
    """What ``event`` costs under ``terms``, per dimension.

    Guarantees: rounded up; per order the larger of both directions of every neighboring
    pair; at least one unit for any event that touches data; None where it overflows. Depends
    on the event alone, never on the balance.

    Raises:
        InvalidInput: the composition of the terms cannot carry the event.
        NotCertified: a part states δ > 0 in a Rényi account.
    """
    event = for_unit(event, records=terms.records_per_unit)
    match terms.composition:
        case "renyi":
            values = rdp(event, orders=terms.orders, neighboring=terms.neighboring)
            amounts = tuple(None if math.isinf(v) else ceiling(Fraction(v)) for v in values)
        case "zcdp":
            amounts = _exact(_rho(event, terms.neighboring))
        case "pure":
            amounts = _exact(_pure_epsilon(event, terms.neighboring))
    if not _touches_data(event):
        return amounts
    return tuple(None if amount is None else max(amount, 1) for amount in amounts)


def price_range(
    event: DpSgd, terms: AccountTerms, *, first: int, end: int, again: bool = False
) -> Amounts:
    """What the steps [first, end) of ``event`` cost, as a part of the whole.

    Guarantees: a difference of cumulative ceilings, so the prices of consecutive ranges sum
    to the price of the whole, to the unit. An epoch of shuffle or balls_in_bins is paid
    whole by the range that begins it (R12).

    Args:
        event: the reserved DP-SGD event.
        terms: the account's terms.
        first: 0 ≤ first ≤ end.
        end: exclusive, at most event.steps.
        again: the range covers steps that were leased before. Their noise is drawn again, so
            every epoch that the range touches is paid whole once more.
    """
    assert 0 <= first <= end <= event.steps, (first, end, event.steps)
    if again and isinstance(event, EpochDpSgd):
        first -= first % event.updates_per_epoch
    whole = price(prefix(event, end), terms)
    return subtract(whole, price(prefix(event, first), terms))


def _exact(value: Fraction | None) -> Amounts:
    return (None if value is None else ceiling(value),)


def _touches_data(event: Event) -> bool:
    match event:
        case Composed():
            return any(_touches_data(part) for part in event.parts)
        case Repeated():
            return _touches_data(event.of)
        case _:
            return True


def _decimal(value: float) -> Fraction:
    """The number as it was written: 0.1 is one tenth, not the nearest binary fraction."""
    return Fraction(repr(value))


def _rho(event: Event, neighboring: Neighboring) -> Fraction | None:
    """ρ of the event, exact; None without noise."""
    squared = 4 if neighboring == "replace_one" else 1
    match event:
        case Composed():
            return _sum([_rho(part, neighboring) for part in event.parts])
        case Repeated():
            return _times(_rho(event.of, neighboring), event.times)
        case Zcdp():
            return event.count * _decimal(event.rho)
        case Gaussian() | DiscreteGaussian():
            return _times(_gaussian_rho(event.noise_multiplier, None, squared), event.count)
        case StepwiseDpSgd():
            if any(segment.sampling_rate != 1 for segment in event.schedule):
                raise _unfit("Subsampled noise has no useful zCDP bound; use a Rényi account.")
            return _sum(
                [
                    _times(
                        _gaussian_rho(s.noise_multiplier, event.count_noise_stddev, squared),
                        s.steps,
                    )
                    for s in event.schedule
                ]
            )
        case EpochDpSgd():
            squared = _epoch_squared_distance(event, neighboring)
            rho = _gaussian_rho(event.noise_multiplier, event.count_noise_stddev, squared)
            return _times(rho, event.epochs)
        case Laplace() | RandomizedResponse() | ApproximateDp():
            raise _unfit("A zCDP account takes Gaussian noise and zCDP statements only.")


def _gaussian_rho(
    noise_multiplier: float, count_noise_stddev: float | None, squared_distance: int
) -> Fraction | None:
    """ρ = s²/(2z²) with z⁻² = σ⁻² + (2σ_b)⁻² (R22)."""
    if noise_multiplier <= 0:
        return None
    precision = 1 / _decimal(noise_multiplier) ** 2
    if count_noise_stddev is not None:
        precision += 1 / (4 * _decimal(count_noise_stddev) ** 2)
    return squared_distance * precision / 2


def _epoch_squared_distance(event: EpochDpSgd, neighboring: Neighboring) -> int:
    """The square of the shift of ``rdp.epoch_shift`` in units of σ, exact (R4)."""
    if neighboring == "replace_one":
        return 4
    if event.sampler == "balls_in_bins" or neighboring == "zero_out":
        return 1
    return 4 if event.remainder == "dropped" else _SQUARED_DISTANCE_UNKNOWN


def _pure_epsilon(event: Event, neighboring: Neighboring) -> Fraction | None:
    """ε of the event, exact; None without noise."""
    match event:
        case Composed():
            return _sum([_pure_epsilon(part, neighboring) for part in event.parts])
        case Repeated():
            return _times(_pure_epsilon(event.of, neighboring), event.times)
        case Laplace():
            if event.noise_multiplier <= 0:
                return None
            distance = 2 if neighboring == "replace_one" else 1
            return event.count * distance / _decimal(event.noise_multiplier)
        case RandomizedResponse():
            return event.count * _decimal(event.epsilon)
        case ApproximateDp() if event.delta <= 0:
            return event.count * _decimal(event.epsilon)
        case _:
            raise _unfit("A pure account takes Laplace noise, randomised response and pure ε.")


def _times(value: Fraction | None, count: int) -> Fraction | None:
    return None if value is None else value * count


def _sum(values: list[Fraction | None]) -> Fraction | None:
    live = [value for value in values if value is not None]
    return sum(live, Fraction(0)) if len(live) == len(values) else None


def _unfit(message: str) -> InvalidInput:
    return InvalidInput(message, pointer="/mechanism", code="INCONSISTENT")
