"""What nobody else does: ring again, and end what its worker has left.

Safe to run in many processes at once: each step locks the row and looks again. A job that has
leased a step is never run again (a second run would be a second spend); one that has not goes
back to the queue.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from service.core.jobs import TERMINAL
from service.db.session import database_now
from service.db.tables import Job, Reservation
from service.operations.job_states import end, locked, move

#: A job that took so many workers down before its first step is not given another.
MAX_CLAIMS: Final = 5
_HELD: Final = ("starting", "running", "cancelling")


def jobs_to_announce(
    session: Session, *, redispatch_after_s: float, limit: int = 100
) -> Sequence[str]:
    """Queued jobs that nobody took since they were announced, or that never were; oldest first."""
    long_ago = database_now(session) - timedelta(seconds=redispatch_after_s)
    never = Job.dispatched_at.is_(None) & (Job.state_reason.is_distinct_from("DISPATCH_PENDING"))
    query = (
        select(Job.id)
        .where(
            Job.state == "queued",
            or_(
                never,
                Job.dispatched_at.is_(None) & (Job.created_at < long_ago),
                Job.dispatched_at < long_ago,
            ),
        )
        .order_by(Job.id)
        .limit(limit)
    )
    return session.scalars(query).all()


def lost_jobs(session: Session, *, limit: int = 100) -> Sequence[str]:
    """Jobs whose worker has been silent for longer than its lease."""
    query = (
        select(Job.id)
        .where(Job.state.in_(_HELD), Job.lease_expires_at < database_now(session))
        .order_by(Job.id)
        .limit(limit)
    )
    return session.scalars(query).all()


def reap(session: Session, *, job_id: str) -> str | None:
    """End or requeue one lost job; gives its new state, None if it is not lost after all."""
    job = locked(session, job_id)
    now = database_now(session)
    if job.state in TERMINAL or job.state == "queued" or not _silent(job, now):
        return None
    job.fencing_token += 1  # from here on the old worker is refused, should it wake up
    reservation = session.get_one(Reservation, job.reservation_id, populate_existing=True)
    if job.state == "cancelling":
        end(session, job, "cancelled", now=now, reason="WORKER_LOST")
    elif (
        job.state == "starting"
        and reservation.leased_steps == 0
        and job.step == 0
        and job.fencing_token < 2 * MAX_CLAIMS
    ):
        job.lease_expires_at = None
        job.worker = None
        job.dispatched_at = None
        move(session, job, "queued", now=now, reason="WORKER_LOST")
    else:
        error = {
            "code": "WORKER_LOST",
            "message": "The worker was lost; every step that it had leased is charged.",
        }
        end(session, job, "failed", now=now, reason="WORKER_LOST", error=error)
    return job.state


def _silent(job: Job, now: datetime) -> bool:
    return job.lease_expires_at is not None and job.lease_expires_at < now
