"""Reservations: reserve on all accounts or none, lease steps, settle, give back (R11–R13).

Locks are taken in one order everywhere: the reservation first, then its accounts by id.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, Literal

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from service.core import ledger
from service.core.credentials import Principal
from service.core.errors import BudgetExceeded, Conflict
from service.core.events import (
    NOTHING,
    DpSgd,
    EpochDpSgd,
    Event,
    StepwiseDpSgd,
    from_json,
    to_json,
)
from service.db.ids import new_id
from service.db.session import database_now
from service.db.tables import Account, HoldingRow, LeaseGrant, Reservation, Run
from service.operations.accounts import (
    account_of,
    balance_of,
    lock_accounts,
    lock_accounts_by_id,
    post,
    terms_of,
)
from service.operations.owned import get_owned

OPEN: Final = ("pending", "leased")


class BudgetRefused(BudgetExceeded):
    """A reservation that did not fit, with what it takes to say what would."""

    def __init__(
        self, message: str, *, fields: dict[str, Any], account: Account, event: Event
    ) -> None:
        """Remember terms and balance as they are now; the row may be gone when it is asked."""
        super().__init__(message, fields={**fields, "suggestions": []})
        self._event, self._terms, self._balance = event, terms_of(account), balance_of(account)

    def suggest(self) -> None:
        """Add what would fit. It takes a search, so ask once the account's lock is free."""
        caps = ledger.caps(self._terms)
        sigma, steps = ledger.suggest(self._event, caps, self._balance, self._terms)
        changes = (("noise_multiplier", sigma), ("steps", steps))
        self.fields["suggestions"] = [{"change": n, "to": v} for n, v in changes if v is not None]


@dataclass(frozen=True, slots=True)
class Granted:
    """A lease grant together with the reservation that it belongs to."""

    reservation: Reservation
    grant: LeaseGrant

    @property
    def id(self) -> str:
        """The reservation's id."""
        return self.reservation.id

    @property
    def version(self) -> int:
        """The reservation's version."""
        return self.reservation.version


def reserve(
    session: Session,
    principal: Principal,
    *,
    dataset_ids: Sequence[str],
    event: Event,
    expires_in_s: float | None,
    prices: Mapping[ledger.AccountTerms, ledger.Amounts] = MappingProxyType({}),
) -> Reservation:
    """Hold the full price of ``event`` on every dataset's account, or on none.

    Args:
        prices: of ``event``, as far as they are known; the rest is computed under the lock.
        expires_in_s: seconds until the reservation expires, put off by each lease and each
            heartbeat; None if its owner (a job) has a lease of its own.

    Raises:
        BudgetExceeded: an account has not enough left, is overdrawn or closed; nothing changed.
        NotFound: a dataset is unknown, or another tenant's.
    """
    accounts = lock_accounts(session, principal, dataset_ids=dataset_ids)
    charges = {account.id: _price(event, terms_of(account), prices) for account in accounts}
    for account in accounts:
        _check_room(account, event, charges[account.id])
    now = database_now(session)
    row = Reservation(
        id=new_id("res"),
        tenant_id=principal.tenant_id,
        created_at=datetime.now(UTC),
        created_by=principal.key_id,
        version=1,
        mechanism=to_json(event),
        total_steps=_steps_of(event),
        leased_steps=0,
        state="pending",
        fencing_token=0,
        expires_in_s=expires_in_s,
        expires_at=None if expires_in_s is None else now + timedelta(seconds=expires_in_s),
        executed=None,
        settled_at=None,
    )
    session.add(row)
    session.flush()
    for account in accounts:
        holding, entry = ledger.reserve(charges[account.id])
        row.holdings.append(_new_row(account, holding))
        post(session, account, entry, reservation_id=row.id, event=event, by=principal.key_id)
    session.flush()
    return row


def terms_to_price(
    session: Session, principal: Principal, *, dataset_ids: Sequence[str]
) -> list[ledger.AccountTerms]:
    """The terms under which a reservation on these datasets is priced.

    A price depends on terms alone, so it is computed before the transaction: on SQLite a
    long price under the write lock would keep every other writer waiting.

    Raises:
        NotFound: a dataset is unknown, or another tenant's.
    """
    return [terms_of(account_of(session, principal, dataset_id=d)) for d in dataset_ids]


def lease(session: Session, principal: Principal, *, reservation_id: str, steps: int) -> Granted:
    """Hand out the next ``steps`` steps and post their full price at once (R12).

    The new fencing token makes every older one useless.

    Raises:
        Conflict: RESERVATION_EXPIRED, ALREADY_SETTLED, LEASE_EXCEEDS_RESERVATION.
    """
    row = lock_open(session, principal, reservation_id)
    first, end = row.leased_steps, row.leased_steps + steps
    if end > row.total_steps:
        raise Conflict(
            f"The reservation has {row.total_steps - first} steps left.",
            code="LEASE_EXCEEDS_RESERVATION",
            fields={"steps_left": row.total_steps - first},
        )
    event = from_json(row.mechanism)
    for account, holding_row in _holdings(session, row):
        charge = _price_of_range(event, terms_of(account), first=first, end=end)
        holding, entry = ledger.lease(_holding(holding_row), charge)
        _store(holding_row, holding)
        post(
            session,
            account,
            entry,
            reservation_id=row.id,
            event=None,
            by=principal.key_id,
            steps=range(first, end),
        )
    row.state = "leased"
    row.leased_steps = end
    row.fencing_token += 1
    put_off_expiry(session, row)
    row.version += 1
    grant = LeaseGrant(
        reservation_id=row.id,
        fencing_token=row.fencing_token,
        first_step=first,
        end_step=end,
        created_at=datetime.now(UTC),
    )
    session.add(grant)
    session.flush()
    return Granted(row, grant)


def heartbeat(
    session: Session, principal: Principal, *, reservation_id: str, fencing_token: int
) -> Granted:
    """Put off the expiry of a lease.

    Raises:
        Conflict: LEASE_FENCED, another lease was given since; or the reservation has ended.
    """
    row = lock_open(session, principal, reservation_id)
    _check_token(row, fencing_token)
    put_off_expiry(session, row)
    row.version += 1
    return Granted(row, session.get_one(LeaseGrant, (row.id, fencing_token)))


def settle(
    session: Session,
    principal: Principal,
    *,
    reservation_id: str,
    fencing_token: int | None,
    executed: Event | None,
    prices: Mapping[ledger.AccountTerms, ledger.Amounts] = MappingProxyType({}),
) -> Reservation:
    """Close the reservation: post, per order, the larger of its leases and what ran.

    Args:
        fencing_token: of the newest lease; None if nothing was leased.
        executed: what ran; None means exactly what was leased, or all of a mechanism that
            has no steps to lease.
        prices: of ``executed``, as far as they are known.

    Raises:
        Conflict: RESERVATION_EXPIRED, ALREADY_SETTLED, LEASE_FENCED.
    """
    row = lock_open(session, principal, reservation_id)
    if row.state == "leased":
        _check_token(row, fencing_token)
    event = from_json(row.mechanism)
    if executed is None:
        executed = NOTHING if row.state == "leased" or _has_steps(event) else event
    post_executed(session, row, executed, prices, by=principal.key_id)
    close(row, "settled")
    session.flush()
    return row


def release(session: Session, principal: Principal, *, reservation_id: str) -> Reservation:
    """Give back what was never leased; what was leased stays posted.

    Raises:
        Conflict: the reservation has ended already.
    """
    row = lock_open(session, principal, reservation_id)
    _give_back(session, row, kind="release", by=principal.key_id)
    close(row, "settled" if row.leased_steps else "released")
    session.flush()
    return row


def expire_overdue(session: Session, *, limit: int = 100) -> int:
    """Expire reservations whose time has passed: leased steps stay charged (R12).

    Returns:
        How many expired.
    """
    overdue = (
        select(Reservation)
        .where(
            Reservation.state.in_(OPEN),
            Reservation.expires_at < database_now(session),
            ~exists().where(Run.reservation_id == Reservation.id),  # a run ends with its log
        )
        .order_by(Reservation.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    rows = session.scalars(overdue).all()
    for row in rows:
        _give_back(session, row, kind="expire", by="sweeper")
        close(row, "expired")
    return len(rows)


def _price(
    event: Event,
    terms: ledger.AccountTerms,
    prices: Mapping[ledger.AccountTerms, ledger.Amounts],
) -> ledger.Amounts:
    known = prices.get(terms)
    return ledger.price(event, terms) if known is None else known


def post_executed(
    session: Session,
    row: Reservation,
    executed: Event,
    prices: Mapping[ledger.AccountTerms, ledger.Amounts],
    *,
    by: str,
) -> None:
    """Post, per order, the larger of the leases and ``executed``; wants the row locked."""
    for account, holding_row in _holdings(session, row):
        logged = _price(executed, terms_of(account), prices)
        holding, entry = ledger.settle(_holding(holding_row), logged)
        _store(holding_row, holding)
        post(session, account, entry, reservation_id=row.id, event=executed, by=by)
    row.executed = to_json(executed)


def _check_room(account: Account, event: Event, charge: ledger.Amounts) -> None:
    terms, balance = terms_of(account), balance_of(account)
    caps = ledger.caps(terms)
    place = {"dataset_id": account.dataset_id, "account_id": account.id}
    if account.state != "open":
        raise BudgetExceeded(
            f"The budget of {account.dataset_id} is {account.state}.",
            fields={**place, "state": account.state, "suggestions": []},
        )
    if ledger.admits(caps, balance, charge):
        return
    figures = ledger.refusal(terms, caps, balance, charge)
    plain = {
        name: None if value is None else format(value, "f")
        for name, value in (
            ("requested", figures.requested),
            ("available", figures.available),
            ("shortfall", figures.shortfall),
        )
    }
    raise BudgetRefused(
        f"The budget of {account.dataset_id} has no room for this: it would pass the cap at "
        "every order of the account. Nothing was charged.",
        fields={**place, **plain, "order": figures.order},
        account=account,
        event=event,
    )


def lock_open(session: Session, principal: Principal, reservation_id: str) -> Reservation:
    """The reservation, locked until the end of the transaction, if it can still change.

    Raises:
        Conflict: RESERVATION_EXPIRED, ALREADY_SETTLED.
        NotFound: no such reservation.
    """
    row = get_owned(session, principal, Reservation, reservation_id, lock=True)
    overdue = row.expires_at is not None and row.expires_at <= database_now(session)
    if row.state == "expired" or (row.state in OPEN and overdue):
        raise Conflict(
            "The reservation has expired; what was leased stays charged.",
            code="RESERVATION_EXPIRED",
        )
    if row.state not in OPEN:
        raise Conflict(
            f"The reservation is {row.state} and does not change any more.", code="ALREADY_SETTLED"
        )
    return row


def _check_token(row: Reservation, fencing_token: int | None) -> None:
    if fencing_token != row.fencing_token:
        raise Conflict(
            "This fencing token is not the newest: another lease was given since.",
            code="LEASE_FENCED",
        )


def put_off_expiry(session: Session, row: Reservation) -> None:
    """Whoever holds the locked reservation is alive: begin its time anew."""
    if row.expires_in_s is not None:
        row.expires_at = database_now(session) + timedelta(seconds=row.expires_in_s)


def _give_back(
    session: Session, row: Reservation, *, kind: Literal["release", "expire"], by: str
) -> None:
    for account, holding_row in _holdings(session, row):
        holding, entry = ledger.release(_holding(holding_row), kind=kind)
        _store(holding_row, holding)
        post(session, account, entry, reservation_id=row.id, event=None, by=by)


def close(row: Reservation, state: str) -> None:
    """Give the locked reservation its last state."""
    row.state = state
    row.settled_at = datetime.now(UTC)
    row.version += 1


def _holdings(session: Session, row: Reservation) -> list[tuple[Account, HoldingRow]]:
    by_account = {holding.account_id: holding for holding in row.holdings}
    accounts = lock_accounts_by_id(session, list(by_account))
    assert len(accounts) == len(by_account), "a holding without its account"
    return [(account, by_account[account.id]) for account in accounts]


def _holding(row: HoldingRow) -> ledger.Holding:
    return ledger.Holding(
        reserved=tuple(row.reserved),
        pending=tuple(row.pending),
        leased=tuple(row.leased),
        posted=tuple(row.posted),
    )


def _store(row: HoldingRow, holding: ledger.Holding) -> None:
    row.pending = list(holding.pending)
    row.leased = list(holding.leased)
    row.posted = list(holding.posted)


def _new_row(account: Account, holding: ledger.Holding) -> HoldingRow:
    return HoldingRow(
        account_id=account.id,
        account=account,
        reserved=list(holding.reserved),
        pending=list(holding.pending),
        leased=list(holding.leased),
        posted=list(holding.posted),
    )


def _has_steps(event: Event) -> bool:
    return isinstance(event, StepwiseDpSgd | EpochDpSgd)


def _steps_of(event: Event) -> int:
    """Steps that can be leased one by one; anything but DP-SGD is leased whole, as one."""
    return event.steps if isinstance(event, StepwiseDpSgd | EpochDpSgd) else 1


def _price_of_range(
    event: Event, terms: ledger.AccountTerms, *, first: int, end: int
) -> ledger.Amounts:
    if isinstance(event, StepwiseDpSgd | EpochDpSgd):
        stepped: DpSgd = event
        return ledger.price_range(stepped, terms, first=first, end=end)
    return ledger.price(event, terms)
