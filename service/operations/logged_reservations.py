"""Reservations whose log the service has: a job's or a run's log says what is charged (R12)."""

from collections.abc import Mapping
from types import MappingProxyType

from sqlalchemy.orm import Session

from service.core import ledger
from service.core.credentials import Principal
from service.core.errors import Conflict, InvalidInput
from service.core.events import Event
from service.db.session import database_now
from service.db.tables import Reservation
from service.operations.owned import get_owned
from service.operations.reservations import (
    OPEN,
    close,
    lock_open,
    post_executed,
    put_off_expiry,
    release,
    settle,
)


def settle_log(
    session: Session,
    principal: Principal,
    *,
    reservation_id: str,
    executed: Event | None,
    prices: Mapping[ledger.AccountTerms, ledger.Amounts] = MappingProxyType({}),
) -> None:
    """Close the reservation of a job or a run at what its log shows, whoever leased last.

    A reservation that its owner has closed stays as it is.

    Args:
        executed: the event replayed from the log; None for a log without a step.
        prices: of ``executed``, as far as they are known.
    """
    row = get_owned(session, principal, Reservation, reservation_id, lock=True)
    if row.state not in OPEN:
        return
    if executed is None and row.leased_steps == 0:
        release(session, principal, reservation_id=row.id)
        return
    settle(
        session,
        principal,
        reservation_id=row.id,
        fencing_token=row.fencing_token if row.leased_steps else None,
        executed=executed,
        prices=prices,
    )


def hold_for_run(
    session: Session, principal: Principal, *, reservation_id: str, dataset_id: str
) -> Reservation:
    """The open reservation, locked, that a run on this dataset is to be charged to.

    Raises:
        NotFound: no such reservation.
        Conflict: RESERVATION_OF_JOB, RESERVATION_EXPIRED, ALREADY_SETTLED.
        InvalidInput: it holds nothing on the dataset.
    """
    row = lock_open(session, principal, reservation_id)
    if row.expires_in_s is None:
        raise Conflict("A training job holds this reservation.", code="RESERVATION_OF_JOB")
    if dataset_id not in [holding.account.dataset_id for holding in row.holdings]:
        raise InvalidInput(
            "The reservation holds nothing on this dataset.",
            pointer="/dataset_id",
            code="INCONSISTENT",
        )
    return row


def keep_alive(session: Session, principal: Principal, *, reservation_id: str) -> Reservation:
    """Put off the expiry: whoever logs steps is alive.

    Raises:
        Conflict: RESERVATION_EXPIRED, ALREADY_SETTLED.
    """
    row = lock_open(session, principal, reservation_id)
    put_off_expiry(session, row)
    row.version += 1
    return row


def expire_at_log(
    session: Session,
    principal: Principal,
    *,
    reservation_id: str,
    executed: Event,
    prices: Mapping[ledger.AccountTerms, ledger.Amounts],
) -> bool:
    """Expire an overdue reservation at the larger of its leases and the log of its run (R12).

    Returns:
        False if it is not overdue (any more).
    """
    row = get_owned(session, principal, Reservation, reservation_id, lock=True)
    overdue = row.expires_at is not None and row.expires_at <= database_now(session)
    if row.state not in OPEN or not overdue:
        return row.state not in OPEN
    post_executed(session, row, executed, prices, by="sweeper")
    close(row, "expired")
    return True
