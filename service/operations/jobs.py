"""Training jobs as transactions: submit, claim, lease, record, finish, cancel."""

from datetime import datetime

from sqlalchemy import update
from sqlalchemy.orm import Session

from service.db.tables import Job


def mark_dispatched(session: Session, *, job_id: str, now: datetime) -> None:
    """Note that the job was announced; one that has started meanwhile stays as it is."""
    session.execute(
        update(Job)
        .where(Job.id == job_id, Job.state == "queued")
        .values(dispatched_at=now, state_reason=None)
    )
