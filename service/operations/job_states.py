"""How a job changes: every move is checked, noted as an event, and charged at its end.

These functions want the job's row locked by their caller. What must hold:

* No state changes but through ``move``; a terminal state has been settled.
* The charge of an end is the larger of what was leased and what the log shows (R12); if it
  is in doubt whether a step ran, it is charged.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.core import replay
from service.core.credentials import Principal
from service.core.errors import NotFound
from service.core.events import Event
from service.core.jobs import TERMINAL, JobState, check_move
from service.db.ids import new_id
from service.db.tables import Job, JobEvent
from service.operations import log
from service.operations.logged_reservations import settle_log
from service.operations.noise_chunks import logged_runs


def locked(session: Session, job_id: str) -> Job:
    """The job's row, held until the end of the transaction.

    Raises:
        NotFound: there is no such job.
    """
    query = select(Job).where(Job.id == job_id).with_for_update(of=Job)
    row = session.scalars(query.execution_options(populate_existing=True)).one_or_none()
    if row is None:
        raise NotFound(f"There is no {job_id} here.")
    return row


def note(
    session: Session, job: Job, kind: str, data: Mapping[str, Any] | None = None, *, now: datetime
) -> None:
    """Append to the job's events, and make its row a new version."""
    job.last_event += 1
    job.version += 1
    session.add(
        JobEvent(
            job_id=job.id,
            sequence=job.last_event,
            id=new_id("evt"),
            type=kind,
            data=dict(data or {}),
            created_at=now,
        )
    )


def move(
    session: Session, job: Job, new: JobState, *, now: datetime, reason: str | None = None
) -> None:
    """Bring the job into another state that is not terminal; ``end`` does the others."""
    assert new not in TERMINAL, "a terminal state is settled: use end"
    _move(session, job, new, now=now, reason=reason)


def end(
    session: Session,
    job: Job,
    new: JobState,
    *,
    now: datetime,
    reason: str | None = None,
    error: Mapping[str, Any] | None = None,
    executed: Event | None = None,
) -> None:
    """Settle the job's reservation and bring the job into a terminal state, for ever.

    Args:
        session: the transaction.
        job: the locked row.
        new: the terminal state.
        now: the database's time.
        reason: what the state alone does not say.
        error: ``code`` and ``message`` of a failure.
        executed: the event that the whole log shows; None: read it from the chunks' runs.
    """
    assert new in TERMINAL
    _settle(session, job, executed if executed is not None else executed_so_far(session, job))
    job.finished_at = now
    job.lease_expires_at = None
    job.error = dict(error) if error is not None else None
    _move(session, job, new, now=now, reason=reason)
    note(session, job, "done", {"state": new, "error": job.error}, now=now)
    body = {
        "job_id": job.id,
        "dataset_id": job.dataset_id,
        "reservation_id": job.reservation_id,
        "state": new,
        "reason": reason,
        "steps": job.step,
        "total_steps": job.total_steps,
        "last_chunk": log.last_hash(session, subject_id=job.id, kind="chunk"),
    }
    log.append(session, "job", body, tenant_id=job.tenant_id, subject_id=job.id)


def executed_so_far(session: Session, job: Job) -> Event | None:
    """The event of the steps in the job's log; None if it has none."""
    runs = logged_runs(session, job.id)
    return replay.replay(runs) if runs else None


def acts_for(job: Job) -> Principal:
    """The job's own authority: that of the key which submitted it, over its reservation."""
    return Principal(
        key_id=job.created_by,
        tenant_id=job.tenant_id,
        scopes=frozenset({"reservations:write"}),
    )


def _move(session: Session, job: Job, new: JobState, *, now: datetime, reason: str | None) -> None:
    check_move(cast("JobState", job.state), new)
    job.state = new
    job.state_reason = reason
    note(session, job, "state", {"state": new, "reason": reason}, now=now)


def _settle(session: Session, job: Job, executed: Event | None) -> None:
    # The job's own token is what guards this: only its holder leases from the reservation.
    settle_log(session, acts_for(job), reservation_id=job.reservation_id, executed=executed)
