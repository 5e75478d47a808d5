"""Balances, admission and reservations: pure functions from amounts to amounts (R9–R13).

Every function returns the new value and the entry to append; none changes anything. The
balance of an account is the sum of its entries, and what is posted never falls.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final, Literal

from service.core.events import (
    MAX_NOISE_MULTIPLIER,
    MAX_STEPS,
    DiscreteGaussian,
    EpochDpSgd,
    Event,
    Gaussian,
    Laplace,
    StepwiseDpSgd,
    prefix,
)
from service.core.ledger.amounts import (
    Amounts,
    add,
    largest,
    nothing_of,
    subtract,
    to_decimal,
)
from service.core.ledger.pricing import price
from service.core.ledger.terms import AccountTerms

EntryKind = Literal["reserve", "lease", "settle", "release", "expire", "adjust"]
SIGMA_DIGITS: Final = 4  # a suggested σ has this many decimals, rounded up


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What an account has posted for good, and what reservations hold besides."""

    posted: Amounts
    pending: Amounts

    @property
    def committed(self) -> Amounts:
        """Posted and pending together: what admission compares with the caps."""
        return add(self.posted, self.pending)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the journal: what is added to posted and taken to or from pending.

    ``posted`` is never negative. ``pending_freed`` is what pending loses, ``pending`` what it
    gains. ``overruns`` tells that more was posted than the reservation still held: the
    account is then overdrawn, whatever its caps say (R13).
    """

    kind: EntryKind
    posted: Amounts
    pending: Amounts
    pending_freed: Amounts
    overruns: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One reservation's share of one account.

    ``leased`` is the sum of the prices of all lease grants, ``posted`` what was posted for
    the reservation so far, ``pending`` what it still holds.
    """

    reserved: Amounts
    pending: Amounts
    leased: Amounts
    posted: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a charge does not fit, at the dimension that comes nearest to admitting it.

    ``requested = available + shortfall``, exact. ``order`` is the Rényi order, if it is one.
    All three are None if no dimension is alive: no charge of this kind can ever fit.
    """

    order: float | None
    requested: Decimal | None
    available: Decimal | None
    shortfall: Decimal | None


def opening_balance(terms: AccountTerms) -> Balance:
    """The balance of an account without entries."""
    zero = (0,) * terms.dimensions
    return Balance(posted=zero, pending=zero)


def apply(balance: Balance, entry: Entry) -> Balance:
    """The balance after ``entry``."""
    pending = subtract(add(balance.pending, entry.pending), entry.pending_freed)
    return Balance(posted=add(balance.posted, entry.posted), pending=pending)


def admits(caps: Amounts, balance: Balance, charge: Amounts) -> bool:
    """True if the charge keeps R9: some order stays within its cap.

    Guarantees: depends on amounts only, never on outputs; a refusal changes nothing.
    """
    return _within(caps, add(balance.committed, charge))


def is_overdrawn(caps: Amounts, posted: Amounts) -> bool:
    """True if what is posted passes the cap at every order (R13)."""
    return not _within(caps, posted)


def refusal(terms: AccountTerms, caps: Amounts, balance: Balance, charge: Amounts) -> Refusal:
    """The figures of a refused charge; call it only if ``admits`` is False."""
    nearest: tuple[int, int, int] | None = None  # shortfall, available, index
    for index, (cap, used, asked) in enumerate(zip(caps, balance.committed, charge, strict=True)):
        if cap is None or used is None or asked is None:
            continue
        available = max(cap - used, 0)
        shortfall = asked - available
        assert shortfall > 0, "the charge fits"
        if nearest is None or shortfall < nearest[0]:
            nearest = (shortfall, available, index)
    if nearest is None:
        return Refusal(order=None, requested=None, available=None, shortfall=None)
    shortfall, available, index = nearest
    return Refusal(
        order=terms.orders[index] if terms.orders else None,
        requested=to_decimal(shortfall + available),
        available=to_decimal(available),
        shortfall=to_decimal(shortfall),
    )


def fits(caps: Amounts, balance: Balance, charge: Amounts) -> int:
    """How many charges like this one fit besides what is committed; at most 10⁹."""
    most = 0
    for cap, used, asked in zip(caps, balance.committed, charge, strict=True):
        if cap is None or used is None or asked is None or used > cap:
            continue
        most = max(most, (cap - used) // asked if asked > 0 else MAX_STEPS)
    return min(most, MAX_STEPS)


def reserve(charge: Amounts) -> tuple[Holding, Entry]:
    """Hold ``charge``; the caller has checked ``admits`` for every account it touches."""
    zero = nothing_of(charge)
    holding = Holding(reserved=charge, pending=charge, leased=zero, posted=zero)
    return holding, Entry(kind="reserve", posted=zero, pending=charge, pending_freed=zero)


def lease(holding: Holding, charge: Amounts) -> tuple[Holding, Entry]:
    """Post the full price of a lease grant at once, before any of its noise is drawn (R12).

    Guarantees: a second grant over the same steps is posted again; what the reservation no
    longer holds is posted all the same and marked as an over-run (R13).
    """
    freed, overruns = _freed(holding.pending, charge)
    after = replace(
        holding,
        pending=subtract(holding.pending, freed),
        leased=add(holding.leased, charge),
        posted=add(holding.posted, charge),
    )
    return after, _entry("lease", charge, freed, overruns=overruns)


def settle(holding: Holding, logged: Amounts) -> tuple[Holding, Entry]:
    """Close the reservation at the larger of its leases and its log (R12).

    Guarantees: per order, the reservation has posted max(leased, logged) in the end; nothing
    posted is taken back; what was never leased returns.
    """
    charge = tuple(
        _rest(target, posted)
        for target, posted in zip(largest(holding.leased, logged), holding.posted, strict=True)
    )
    _, overruns = _freed(holding.pending, charge)
    after = replace(
        holding, pending=nothing_of(holding.pending), posted=add(holding.posted, charge)
    )
    return after, _entry("settle", charge, holding.pending, overruns=overruns)


def release(
    holding: Holding, *, kind: Literal["release", "expire"] = "release"
) -> tuple[Holding, Entry]:
    """Give back what was never leased; what was leased stays posted."""
    after = replace(holding, pending=nothing_of(holding.pending))
    return after, _entry(kind, nothing_of(holding.pending), holding.pending)


def suggest(
    event: Event, caps: Amounts, balance: Balance, terms: AccountTerms
) -> tuple[float | None, int | None]:
    """A noise multiplier and a number of steps with which a refused event would fit.

    Guarantees: each of the two, changed alone, is admitted now.

    Returns:
        The least such σ rounded up to four decimals, and the most steps (releases, whole
        epochs); None where no change of that kind helps or makes sense.
    """

    def fits_now(candidate: Event) -> bool:
        return admits(caps, balance, price(candidate, terms))

    return _suggest_noise(event, fits_now), _suggest_steps(event, fits_now)


def _within(caps: Amounts, amounts: Amounts) -> bool:
    return any(
        cap is not None and amount is not None and amount <= cap
        for cap, amount in zip(caps, amounts, strict=True)
    )


def _entry(kind: EntryKind, posted: Amounts, freed: Amounts, *, overruns: bool = False) -> Entry:
    return Entry(
        kind=kind,
        posted=posted,
        pending=nothing_of(posted),
        pending_freed=freed,
        overruns=overruns,
    )


def _freed(pending: Amounts, charge: Amounts) -> tuple[Amounts, bool]:
    """How much of ``pending`` pays for ``charge``, and whether it is too little anywhere."""
    freed: list[int | None] = []
    overruns = False
    for held, asked in zip(pending, charge, strict=True):
        if held is None or asked is None:
            # A dead dimension stays dead: what it held is neither given back nor compared.
            freed.append(held)
            overruns = overruns or (asked is None and held is not None)
            continue
        freed.append(min(held, asked))
        overruns = overruns or asked > held
    return tuple(freed), overruns


def _rest(target: int | None, posted: int | None) -> int | None:
    if posted is None:
        return 0
    return None if target is None else max(target - posted, 0)


def _suggest_noise(event: Event, fits_now: Callable[[Event], bool]) -> float | None:
    scale = 10**SIGMA_DIGITS

    def at(ticks: int) -> Event | None:
        sigma = ticks / scale
        match event:
            case Gaussian() | Laplace() | DiscreteGaussian() | EpochDpSgd():
                return replace(event, noise_multiplier=sigma)
            case StepwiseDpSgd(schedule=(segment,)):
                return replace(event, schedule=(replace(segment, noise_multiplier=sigma),))
            case _:
                return None

    def is_enough(ticks: int) -> bool:
        candidate = at(ticks)
        return candidate is not None and fits_now(candidate)

    least = _least(is_enough, 1, int(MAX_NOISE_MULTIPLIER) * scale)
    return None if least is None else least / scale


def _suggest_steps(event: Event, fits_now: Callable[[Event], bool]) -> int | None:
    size, most = 1, 0

    def at(count: int) -> Event:
        match event:
            case Gaussian() | Laplace() | DiscreteGaussian():
                return replace(event, count=count)
            case StepwiseDpSgd() | EpochDpSgd():
                return prefix(event, count * size)
            case _:
                raise AssertionError(event)

    match event:
        case Gaussian() | Laplace() | DiscreteGaussian():
            most = event.count
        case StepwiseDpSgd():
            most = event.steps
        case EpochDpSgd():
            size, most = event.updates_per_epoch, event.epochs
        case _:
            return None
    too_many = _least(lambda count: not fits_now(at(count)), 1, most)
    fitting = most if too_many is None else too_many - 1
    return fitting * size if fitting >= 1 else None


def _least(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """The least number in [low, high] at which a monotone condition holds."""
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return high
