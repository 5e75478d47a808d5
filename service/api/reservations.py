"""/v1/reservations: hold budget, lease steps of it, settle what ran."""

from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from service.api.deps import Caller, holds
from service.api.lists import After, answer_list
from service.api.strict import StrictRoute
from service.core import ledger
from service.core.errors import Conflict
from service.core.events import from_json
from service.db import tables
from service.operations import accounts, reservations, runs
from service.operations.owned import get_owned, owned
from service.schemas.lists import Limit, ListOf
from service.schemas.mechanism import from_core
from service.schemas.reservations import (
    Charge,
    Heartbeat,
    Lease,
    LeaseCreate,
    Reservation,
    ReservationCreate,
    Settlement,
)

router = APIRouter(prefix="/v1/reservations", tags=["Reservations"], route_class=StrictRoute)
WRITE = holds("reservations:write")
READ = holds("datasets:read")


@router.post("", status_code=201, response_model=Reservation)
def reserve(body: ReservationCreate, caller: Caller = WRITE) -> Response:
    """Hold budget on all the datasets, or on none."""
    event = body.mechanism.to_core(pointer="/mechanism")
    terms = caller.read(
        lambda session: reservations.terms_to_price(
            session, caller.principal, dataset_ids=body.dataset_ids
        )
    )
    prices = {one: ledger.price(event, one) for one in dict.fromkeys(terms)}
    return caller.write(
        lambda session: reservations.reserve(
            session,
            caller.principal,
            dataset_ids=body.dataset_ids,
            event=event,
            expires_in_s=body.expires_in_s,
            prices=prices,
        ),
        shape=shape_reservation,
        dry_run=body.validate_only,
    )


@router.get("", response_model=ListOf[Reservation])
def list_reservations(limit: Limit = 20, after: After = None, caller: Caller = READ) -> Response:
    """The tenant's reservations, newest first."""
    query = owned(caller.principal, tables.Reservation)
    return answer_list(caller, query, tables.Reservation, shape_reservation, limit, after)


@router.get("/{reservation_id}", response_model=Reservation)
def get_reservation(reservation_id: str, caller: Caller = READ) -> Response:
    """One reservation."""
    return caller.show(
        lambda s: get_owned(s, caller.principal, tables.Reservation, reservation_id),
        shape=shape_reservation,
    )


@router.post("/{reservation_id}/lease", response_model=Lease)
def lease(reservation_id: str, body: LeaseCreate, caller: Caller = WRITE) -> Response:
    """Take the next steps; they are charged now and for good."""
    return caller.write(
        lambda s: reservations.lease(
            s,
            caller.principal,
            reservation_id=_held_by_client(s, caller, reservation_id),
            steps=body.steps,
        ),
        shape=_shape_lease,
        status=200,
    )


@router.post("/{reservation_id}/heartbeat", response_model=Lease)
def heartbeat(reservation_id: str, body: Heartbeat, caller: Caller = WRITE) -> Response:
    """Keep the lease: put off its expiry."""
    return caller.write(
        lambda s: reservations.heartbeat(
            s,
            caller.principal,
            reservation_id=_held_by_client(s, caller, reservation_id),
            fencing_token=body.fencing_token,
        ),
        shape=_shape_lease,
        status=200,
        key_required=False,
    )


@router.post("/{reservation_id}/settle", response_model=Reservation)
def settle(reservation_id: str, body: Settlement, caller: Caller = WRITE) -> Response:
    """Post the larger of what was leased and what ran; the rest goes back."""
    executed = (
        body.executed.mechanism.to_core(pointer="/executed/mechanism") if body.executed else None
    )
    return caller.write(
        lambda s: reservations.settle(
            s,
            caller.principal,
            reservation_id=_ended_by_client(s, caller, reservation_id),
            fencing_token=body.fencing_token,
            executed=executed,
        ),
        shape=shape_reservation,
        status=200,
    )


@router.post("/{reservation_id}/release", response_model=Reservation)
def release(reservation_id: str, caller: Caller = WRITE) -> Response:
    """Give back what was never leased."""
    return caller.write(
        lambda s: reservations.release(
            s, caller.principal, reservation_id=_ended_by_client(s, caller, reservation_id)
        ),
        shape=shape_reservation,
        status=200,
    )


def _held_by_client(session: Session, caller: Caller, reservation_id: str) -> str:
    """The id, unless a training job holds the reservation: then its worker alone may move it."""
    row = get_owned(session, caller.principal, tables.Reservation, reservation_id)
    if row.expires_in_s is None:
        raise Conflict(
            "A training job holds this reservation; cancel the job instead.",
            code="RESERVATION_OF_JOB",
        )
    return reservation_id


def _ended_by_client(session: Session, caller: Caller, reservation_id: str) -> str:
    """The id, unless a job or an open run has the log that says what is charged."""
    _held_by_client(session, caller, reservation_id)
    if runs.has_open_run(session, reservation_id):
        raise Conflict(
            "A run logs what this reservation pays for; complete the run instead.",
            code="RESERVATION_OF_RUN",
        )
    return reservation_id


def shape_reservation(row: tables.Reservation) -> Reservation:
    """The wire form of a reservation; jobs show it too."""
    return Reservation(
        id=row.id,
        state=row.state,  # pyright: ignore[reportArgumentType]
        dataset_ids=[h.account.dataset_id for h in row.holdings],
        mechanism=from_core(from_json(row.mechanism)),
        total_steps=row.total_steps,
        leased_steps=row.leased_steps,
        charges=[_charge(h) for h in row.holdings],
        expires_at=row.expires_at,
        settled_at=row.settled_at,
        executed=None if row.executed is None else from_core(from_json(row.executed)),
        created_at=row.created_at,
    )


def _charge(holding: tables.HoldingRow) -> Charge:
    terms = accounts.terms_of(holding.account)
    epsilon = ledger.spent_epsilon(terms, tuple(holding.reserved))
    spent = ledger.spent_epsilon(terms, tuple(holding.posted))
    return Charge(
        dataset_id=holding.account.dataset_id,
        account_id=holding.account_id,
        epsilon=None if epsilon is None else format(epsilon, "f"),
        spent=None if spent is None else format(spent, "f"),
    )


def _shape_lease(granted: reservations.Granted) -> Lease:
    return Lease(
        reservation_id=granted.reservation.id,
        first_step=granted.grant.first_step,
        end_step=granted.grant.end_step,
        fencing_token=granted.grant.fencing_token,
        expires_at=granted.reservation.expires_at,
    )
