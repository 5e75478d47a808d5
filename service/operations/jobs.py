"""Training jobs as their owners see them: submit, cancel, and what to read of them."""

from collections.abc import Callable, Sequence
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.core.credentials import Principal
from service.core.errors import Conflict, NotFound
from service.core.jobs import TERMINAL
from service.db.ids import new_id
from service.db.session import after_commit, database_now
from service.db.tables import Artifact, Dataset, Job, JobEvent
from service.operations import reservations
from service.operations.job_plans import Plan
from service.operations.job_states import end, move, note
from service.operations.owned import get_owned

#: The name under which a job's log (the trainer's stderr) is kept among its artifacts.
LOG_NAME = "trainer.log"


def submit(
    session: Session,
    principal: Principal,
    *,
    dataset_id: str,
    plan: Plan,
    ring: Callable[[str], None],
) -> Job:
    """Reserve the worst case of ``plan`` and queue a job for it.

    Args:
        session: the transaction.
        principal: who asks.
        dataset_id: whose budget pays.
        plan: the complete settings, made before the transaction.
        ring: announces the job once the transaction is durable; must not raise.

    Raises:
        BudgetExceeded: the worst case does not fit; nothing was changed.
        NotFound: no such dataset.
    """
    dataset = get_owned(session, principal, Dataset, dataset_id)
    reservation = reservations.reserve(
        session,
        principal,
        dataset_ids=[dataset.id],
        event=plan.spec.mechanism,
        expires_in_s=None,  # the job ends it, whatever happens
    )
    now = database_now(session)
    job = Job(
        id=new_id("job"),
        tenant_id=principal.tenant_id,
        created_at=now,
        created_by=principal.key_id,
        version=0,
        dataset_id=dataset.id,
        reservation_id=reservation.id,
        request=plan.request,
        spec=plan.spec.to_json(),
        state="queued",
        state_reason="DISPATCH_PENDING",
        total_steps=plan.spec.total_steps,
        step=0,
        fencing_token=0,
        last_event=0,
    )
    session.add(job)
    session.flush()
    note(session, job, "state", {"state": "queued", "reason": None}, now=now)
    after_commit(session, lambda: ring(job.id))
    return job


def cancel(session: Session, principal: Principal, *, job_id: str) -> Job:
    """End a queued job at once; ask the worker of a started one to stop it.

    Asking again while the job is being stopped changes nothing.

    Raises:
        Conflict: INVALID_STATE, the job has ended.
    """
    job = get_owned(session, principal, Job, job_id, lock=True)
    if job.state in TERMINAL:
        raise Conflict(
            f"The job has ended: it is {job.state}.",
            code="INVALID_STATE",
            fields={"state": job.state},
        )
    now = database_now(session)
    if job.state == "queued":
        job.cancel_requested_at = now
        end(session, job, "cancelled", now=now, reason="CANCELLED_BEFORE_START")
    elif job.state != "cancelling":
        job.cancel_requested_at = now
        move(session, job, "cancelling", now=now, reason="CANCEL_REQUESTED")
    return job


def events_after(
    session: Session, principal: Principal, *, job_id: str, after: int, limit: int
) -> tuple[Job, Sequence[JobEvent]]:
    """The job, and its events later than the sequence number ``after``, oldest first."""
    job = get_owned(session, principal, Job, job_id)
    query = (
        select(JobEvent)
        .where(JobEvent.job_id == job.id, JobEvent.sequence > after)
        .order_by(JobEvent.sequence)
        .limit(limit)
    )
    return job, session.scalars(query).all()


def artifacts_of(session: Session, principal: Principal, *, job_id: str) -> Sequence[Artifact]:
    """What a finished job left, by name.

    Raises:
        Conflict: NOT_SETTLED, nothing leaves a job before its charge is final.
    """
    job = get_owned(session, principal, Job, job_id)
    if job.state not in TERMINAL:
        raise Conflict(
            "Artifacts can be read once the job has ended and is settled.",
            code="NOT_SETTLED",
            fields={"state": job.state},
        )
    query = select(Artifact).where(Artifact.job_id == job.id).order_by(Artifact.name)
    return session.scalars(query).all()


def artifact_of(session: Session, principal: Principal, *, job_id: str, name: str) -> Artifact:
    """One of ``artifacts_of``.

    Raises:
        Conflict: NOT_SETTLED.
        NotFound: no artifact of this name.
    """
    for artifact in artifacts_of(session, principal, job_id=job_id):
        if artifact.name == name:
            return artifact
    raise NotFound(f"{job_id} left no artifact of this name.")


def log_of(session: Session, principal: Principal, *, job_id: str) -> tuple[str | None, int]:
    """The object that holds the job's log (None until the job has ended), and its newest claim."""
    job = get_owned(session, principal, Job, job_id)
    kept = session.get(Artifact, (job.id, LOG_NAME))
    return (None if kept is None else kept.object), job.fencing_token


def mark_dispatched(session: Session, *, job_id: str, now: datetime) -> None:
    """Note that the job was announced; one that has started meanwhile stays as it is."""
    session.execute(
        update(Job)
        .where(Job.id == job_id, Job.state == "queued")
        .values(dispatched_at=now, state_reason=None, version=Job.version + 1)
    )
