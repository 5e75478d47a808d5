"""Runs that train elsewhere: begin on a reservation, log, and end at what the log shows.

Locks are taken in one order: the run, then its reservation, then the accounts.

A log records what happened. Weaker noise, another sampler or more steps than were leased are
stored as they are, charged at their true cost when the run ends (R12, R13), and judged by the
compliance checks; none of them is a reason to refuse a record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from service import log_chunks
from service.core import ledger, replay
from service.core.credentials import Principal
from service.core.errors import Conflict, InvalidInput, NotFound
from service.core.events import NOTHING, Event, to_json
from service.db.ids import new_id
from service.db.session import database_now
from service.db.tables import Dataset, Reservation, Run
from service.log_chunks import StoredChunk
from service.operations.accounts import terms_of
from service.operations.logged_reservations import expire_at_log, hold_for_run, settle_log
from service.operations.noise_chunks import logged_runs
from service.operations.owned import get_owned
from service.operations.reservations import OPEN
from service.operations.run_logs import Outrun, append_chunks, check_open, tail_of
from service.operations.vault import Vault


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A run that is ready to end.

    Args:
        run_id: the run.
        next_step: the log's next step when this was prepared.
        last_chunk: the tail of the log, stored as a chunk; None if there is none.
        executed: the event that the log shows; None for a log without a step.
        terms: of every account that the run's reservation holds budget on.
    """

    run_id: str
    next_step: int
    last_chunk: StoredChunk | None
    executed: Event | None
    terms: Sequence[ledger.AccountTerms]


def create_run(
    session: Session,
    principal: Principal,
    *,
    dataset_id: str,
    reservation_id: str,
    mechanism: Event,
    software: Mapping[str, Any] | None,
) -> Run:
    """Begin a run that is charged to an open reservation on the dataset.

    Args:
        session: the transaction.
        principal: who asks.
        dataset_id: the data it trains on.
        reservation_id: what pays; no other run may have it.
        mechanism: what the run says it will do; it may differ from what was reserved.
        software: what trains, in the caller's words.

    Raises:
        NotFound: no such dataset or reservation.
        Conflict: RESERVATION_HAS_RUN; RESERVATION_OF_JOB, RESERVATION_EXPIRED, ALREADY_SETTLED.
        InvalidInput: the reservation is not on the dataset; the mechanism has no steps.
    """
    dataset = get_owned(session, principal, Dataset, dataset_id)
    reservation = hold_for_run(
        session, principal, reservation_id=reservation_id, dataset_id=dataset.id
    )
    query = select(Run.id).where(Run.reservation_id == reservation.id)
    if session.scalar(query) is not None:
        raise Conflict("Another run is charged to this reservation.", code="RESERVATION_HAS_RUN")
    try:
        replay.step_count(mechanism)
    except ValueError as error:
        raise InvalidInput(
            "A run logs steps of dp_sgd; settle other mechanisms with their reservation.",
            pointer="/mechanism",
            code="UNSUPPORTED",
        ) from error
    run = Run(
        id=new_id("run"),
        tenant_id=principal.tenant_id,
        created_at=database_now(session),
        created_by=principal.key_id,
        version=1,
        dataset_id=dataset.id,
        reservation_id=reservation.id,
        mechanism=to_json(mechanism),
        software=None if software is None else dict(software),
        state="open",
        next_step=0,
        head=None,
        ended_at=None,
    )
    session.add(run)
    session.flush()
    return run


def has_open_run(session: Session, reservation_id: str) -> bool:
    """Whether a run is still logging what this reservation pays for."""
    query = select(Run.id).where(Run.reservation_id == reservation_id, Run.state == "open")
    return session.scalar(query) is not None


def prepare_end(
    session: Session, principal: Principal, *, run_id: str, vault: Vault
) -> Ending | None:
    """Store the rest of the log as a chunk, and replay the log; None if the run has ended.

    Raises:
        NotFound: no such run.
        Outrun: the log grew while it was read.
        OSError: the store did not take the chunk.
    """
    run = get_owned(session, principal, Run, run_id)
    if run.state != "open":
        return None
    tail = tail_of(session, run)
    reservation = session.get_one(Reservation, run.reservation_id)
    uploads = tail.uploads(vault, run_id=run.id)
    return Ending(
        run_id=run.id,
        next_step=run.next_step,
        last_chunk=log_chunks.store(
            uploads, subject_id=run.id, objects=vault.objects, sealer=vault.sealer
        )
        if uploads
        else None,
        executed=_executed([*logged_runs(session, run.id), *tail.runs]),
        terms=[terms_of(holding.account) for holding in reservation.holdings],
    )


def prices_of(
    event: Event | None, terms: Sequence[ledger.AccountTerms]
) -> dict[ledger.AccountTerms, ledger.Amounts]:
    """What a logged event costs in each account; slow, so call it outside of transactions.

    Guarantees: there is always a price. What an account's composition cannot carry (Poisson
    sampling in a zCDP account) costs all of it: it ran, and nothing finite is certified.
    """
    found: dict[ledger.AccountTerms, ledger.Amounts] = {}
    for one in dict.fromkeys(terms):
        try:
            found[one] = ledger.price(NOTHING if event is None else event, one)
        except InvalidInput:
            found[one] = (None,) * one.dimensions
    return found


def complete(
    session: Session,
    principal: Principal,
    *,
    run_id: str,
    ending: Ending | None,
    prices: Mapping[ledger.AccountTerms, ledger.Amounts],
    steps: int | None,
) -> Run:
    """Seal the log and settle the reservation at the larger of what was leased and logged.

    Args:
        session: the transaction.
        principal: who asks.
        run_id: the run.
        ending: what ``prepare_end`` gave.
        prices: of ``ending.executed``, from ``prices_of``.
        steps: how many steps the caller believes to have logged; None: whatever is there.

    Raises:
        Outrun: the log grew since the end was prepared.
        Conflict: RUN_ENDED; LOG_INCOMPLETE, the log has another number of steps;
            RESERVATION_EXPIRED.
    """
    run = get_owned(session, principal, Run, run_id, lock=True)
    check_open(run)
    if ending is None or run.next_step != ending.next_step:
        raise Outrun("An upload was recorded at the same time; try again.")
    if steps is not None and steps != run.next_step:
        raise Conflict(
            f"The log has {run.next_step} steps, not {steps}.",
            code="LOG_INCOMPLETE",
            fields={"expected_step": run.next_step},
        )
    now = database_now(session)
    append_chunks(session, run, [ending.last_chunk] if ending.last_chunk else [], now=now)
    settle_log(
        session,
        principal,
        reservation_id=run.reservation_id,
        executed=ending.executed,
        prices=prices,
    )
    _end(session, run, "completed")
    return run


def overdue_runs(session: Session, *, limit: int = 100) -> Sequence[str]:
    """Open runs whose reservation has expired, or was closed by other hands."""
    query = (
        select(Run.id)
        .join(Reservation, Reservation.id == Run.reservation_id)
        .where(
            Run.state == "open",
            or_(Reservation.state.not_in(OPEN), Reservation.expires_at < database_now(session)),
        )
        .order_by(Run.id)
        .limit(limit)
    )
    return session.scalars(query).all()


def abandon(session: Session, *, run_id: str) -> bool:
    """End an overdue run: its reservation expires at the larger of its leases and its log.

    The tail of the log stays where it is, encrypted, and is read from there.

    Returns:
        False if the run is not overdue after all.
    """
    query = select(Run).where(Run.id == run_id).with_for_update(of=Run)
    run = session.scalars(query.execution_options(populate_existing=True)).one_or_none()
    if run is None:
        raise NotFound(f"There is no {run_id} here.")
    if run.state != "open":
        return False
    owner = Principal(key_id=run.created_by, tenant_id=run.tenant_id, scopes=frozenset())
    executed = _executed([*logged_runs(session, run.id), *tail_of(session, run).runs])
    reservation = session.get_one(Reservation, run.reservation_id)
    terms = [terms_of(holding.account) for holding in reservation.holdings]
    expired = expire_at_log(
        session,
        owner,
        reservation_id=run.reservation_id,
        executed=NOTHING if executed is None else executed,
        prices=prices_of(executed, terms),
    )
    if expired:
        _end(session, run, "abandoned")
    return expired


def _executed(found: Sequence[replay.Run]) -> Event | None:
    return replay.replay(found) if found else None


def _end(session: Session, run: Run, state: str) -> None:
    now = database_now(session)
    run.state, run.ended_at = state, now
    run.version += 1
    session.flush()
