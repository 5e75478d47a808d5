"""A job in the hands of a worker: claim, lease, record, finish.

Each function is one short transaction of the supervisor. A claim gives the job a new fencing
token; whoever comes with an older one is refused and changes nothing, so that a worker that
slept through its lease cannot charge, log or finish anything.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import CursorResult, select, update
from sqlalchemy.orm import Session

from service.core.chunks import canonical_records, parameters, runs_of
from service.core.errors import Conflict
from service.core.events import Event
from service.core.jobs import TERMINAL
from service.db.session import database_now
from service.db.tables import Artifact, Job, NoiseChunk, Reservation
from service.log_chunks import StoredChunk
from service.operations import log, reservations
from service.operations.job_states import (
    acts_for,
    end,
    executed_so_far,
    locked,
    move,
    note,
)
from service.operations.noise_chunks import append_chunk, last_chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to run a job: its id and the token that fences off everybody else."""

    job_id: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """A file of the job that the object store holds."""

    name: str
    object: str
    size: int
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run that did all its steps has to show.

    Args:
        executed: the event replayed from the whole log.
        epsilon: its certified ε on the wire's form, with δ and neighboring.
        metrics: figures on public data.
        files: artifacts and the trainer's log.
    """

    executed: Event
    epsilon: Mapping[str, Any]
    metrics: Mapping[str, Any]
    files: Sequence[KeptFile] = field(default=())


def claim(session: Session, *, job_id: str, worker: str, lease_s: float) -> Job | None:
    """Take a queued job, by compare-and-set; None if it is not queued (any more)."""
    now = database_now(session)
    taken = session.execute(
        update(Job)
        .where(Job.id == job_id, Job.state == "queued")
        .values(fencing_token=Job.fencing_token + 1)
    )
    assert isinstance(taken, CursorResult)
    if taken.rowcount != 1:
        return None
    job = locked(session, job_id)
    job.worker = worker
    job.lease_expires_at = now + timedelta(seconds=lease_s)
    move(session, job, "starting", now=now)
    return job


def is_held(session: Session, *, job_id: str, token: int) -> bool:
    """Whether the claim with this token is the job's newest, and the job goes on."""
    job = session.get(Job, job_id)
    return job is not None and job.fencing_token == token and job.state not in TERMINAL


def renew(session: Session, held: Claim, *, lease_s: float) -> None:
    """Say that the worker is alive.

    Raises:
        Conflict: LEASE_FENCED.
    """
    job = _held(session, held)
    job.lease_expires_at = database_now(session) + timedelta(seconds=lease_s)


def cancel_requested(session: Session, held: Claim) -> bool:
    """Whether the job's owner wants it to stop; a read, for a session without a lock.

    Raises:
        Conflict: LEASE_FENCED.
    """
    query = select(Job.state, Job.fencing_token, Job.cancel_requested_at)
    state, token, cancelled_at = session.execute(query.where(Job.id == held.job_id)).one()
    _check_token(held, state=state, token=token)
    return cancelled_at is not None


def start_running(session: Session, held: Claim, *, software: Mapping[str, Any]) -> None:
    """The trainer is up: note what it is; a job that is being cancelled stays so."""
    job = _held(session, held)
    now = database_now(session)
    job.software = dict(software)
    job.started_at = now
    if job.state == "starting":
        move(session, job, "running", now=now)


def lease_steps(session: Session, held: Claim, *, first_step: int, steps: int) -> int:
    """Charge the next ``steps`` steps; gives the end (exclusive) of what may be run.

    Asked again for the same first step, it gives what was granted: the answer was lost.

    Raises:
        Conflict: LEASE_FENCED; or what the ledger refuses.
    """
    job = _held(session, held)
    if job.cancel_requested_at is not None:
        raise Conflict("The job is being cancelled.", code="CANCEL_REQUESTED")
    reservation = session.get_one(Reservation, job.reservation_id, populate_existing=True)
    if reservation.leased_steps > first_step:
        return min(reservation.leased_steps, first_step + steps)
    if reservation.leased_steps < first_step:
        raise Conflict("Steps are leased in order.", code="SEQUENCE_GAP")
    granted = reservations.lease(
        session,
        acts_for(job),
        reservation_id=job.reservation_id,
        steps=min(steps, job.total_steps - first_step),
    )
    job.version += 1
    return granted.grant.end_step


def record_chunk(session: Session, held: Claim, chunk: StoredChunk) -> int:
    """Append a stored chunk to the job's log; gives the next step.

    The same chunk again changes nothing: the answer was lost.

    Raises:
        Conflict: LEASE_FENCED; SEQUENCE_GAP, it does not follow the chunk before it.
    """
    job = _held(session, held)
    last = last_chunk(session, job.id)
    if last is not None and _is(last, chunk):
        return job.step
    if chunk.first_step != job.step:
        raise Conflict(
            f"Step {job.step} comes next.", code="SEQUENCE_GAP", fields={"expected_step": job.step}
        )
    # Times of steps are sealed; what everybody sees is one coarse time for each chunk (R25).
    now = database_now(session).replace(microsecond=0)
    append_chunk(session, chunk, subject_id=job.id, last=last, now=now)
    _log_chunk(session, job, chunk)
    job.step = chunk.end_step
    note(session, job, "progress", {"step": job.step, "total_steps": job.total_steps}, now=now)
    return job.step


def finish(session: Session, held: Claim, outcome: Outcome) -> None:
    """Settle a complete run, keep what it made, and let the job succeed.

    Raises:
        Conflict: LEASE_FENCED; LOG_INCOMPLETE, the log does not show every step, or is not the
            log that was replayed.
    """
    job = _held(session, held)
    if job.step != job.total_steps or executed_so_far(session, job) != outcome.executed:
        raise Conflict("The log does not show the run that ended.", code="LOG_INCOMPLETE")
    job.metrics = dict(outcome.metrics)
    job.epsilon = dict(outcome.epsilon)
    _keep(session, job, outcome.files)
    end(session, job, "succeeded", now=database_now(session), executed=outcome.executed)


def fail(
    session: Session, held: Claim, *, code: str, message: str, files: Sequence[KeptFile] = ()
) -> None:
    """Charge what was leased or logged, and let the job fail.

    Raises:
        Conflict: LEASE_FENCED.
    """
    job = _held(session, held)
    _keep(session, job, files)
    error = {"code": code, "message": message}
    end(session, job, "failed", now=database_now(session), reason=code, error=error)


def cancelled(
    session: Session, held: Claim, *, forced: bool, files: Sequence[KeptFile] = ()
) -> None:
    """The trainer is gone: charge what was leased or logged, and call the job cancelled.

    Args:
        session: the transaction.
        held: the claim.
        forced: the trainer did not stop by itself and was killed.
        files: what is left of it.

    Raises:
        Conflict: LEASE_FENCED.
    """
    job = _held(session, held)
    _keep(session, job, files)
    reason = "FORCED" if forced else "CANCEL_REQUESTED"
    end(session, job, "cancelled", now=database_now(session), reason=reason)


def _held(session: Session, held: Claim) -> Job:
    job = locked(session, held.job_id)
    _check_token(held, state=job.state, token=job.fencing_token)
    return job


def _is(row: NoiseChunk, chunk: StoredChunk) -> bool:
    return (row.first_step, row.end_step, row.released_object) == (
        chunk.first_step,
        chunk.end_step,
        chunk.released_object,
    )


def _log_chunk(session: Session, job: Job, chunk: StoredChunk) -> None:
    """Leave a leaf about the chunk: the digest of its public records, and the leaf before it."""
    found = runs_of(chunk.summary)
    body = {
        "job_id": job.id,
        "first_step": chunk.first_step,
        "end_step": chunk.end_step,
        "sha256": hashlib.sha256(canonical_records(found)).hexdigest(),
        "parquet_sha256": chunk.released_object,
        "previous": log.last_hash(session, subject_id=job.id, kind="chunk"),
        "summary": parameters(found),
    }
    log.append(session, "chunk", body, tenant_id=job.tenant_id, subject_id=job.id)


def _check_token(held: Claim, *, state: str, token: int) -> None:
    if token != held.token or state in TERMINAL or state == "queued":
        raise Conflict("Another holds this job now, or it has ended.", code="LEASE_FENCED")


def _keep(session: Session, job: Job, files: Sequence[KeptFile]) -> None:
    now = database_now(session)
    session.add_all(
        Artifact(
            job_id=job.id,
            name=file.name,
            object=file.object,
            size=file.size,
            media_type=file.media_type,
            created_at=now,
        )
        for file in files
    )
