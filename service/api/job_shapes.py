"""Rows of jobs in their wire form."""

from datetime import UTC, datetime
from typing import cast

from sqlalchemy.orm import object_session

from service.core.jobs import TERMINAL, JobState
from service.db import tables
from service.operations import certificates
from service.schemas import jobs as wire


def job(row: tables.Job) -> wire.TrainingJob:
    """A job as its owner sees it; wants the row's session open."""
    request = row.request
    return wire.TrainingJob(
        id=row.id,
        dataset_id=row.dataset_id,
        state=cast("JobState", row.state),
        state_reason=row.state_reason,
        reservation=_reservation(row),
        forecast=wire.Forecast.model_validate(request["forecast"]),
        training=wire.Training.model_validate(request["training"]),
        privacy=wire.Privacy.model_validate(request["privacy"]),
        limits=wire.Limits.model_validate(request["limits"]),
        seed_policy=request["seed_policy"],
        metadata=request["metadata"],
        progress=_progress(row),
        result=_result(row),
        error=None if row.error is None else wire.JobError.model_validate(row.error),
        software=row.software,
        created_at=row.created_at,
        cancel_requested_at=row.cancel_requested_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def event(row: tables.JobEvent) -> wire.JobEvent:
    """One event of a job."""
    return wire.JobEvent(
        id=row.id,
        sequence=row.sequence,
        type=row.type,
        data=row.data,
        created_at=row.created_at,
    )


def artifact(row: tables.Artifact) -> wire.Artifact:
    """One file of a job."""
    return wire.Artifact(
        name=row.name,
        size_bytes=row.size,
        sha256=row.object,
        media_type=row.media_type,
        url=f"/v1/training-jobs/{row.job_id}/artifacts/{row.name}",
        created_at=row.created_at,
    )


def _reservation(row: tables.Job) -> wire.HeldBudget:
    session = object_session(row)
    assert session is not None, "shaped inside its session"
    held = session.get_one(tables.Reservation, row.reservation_id)
    return wire.HeldBudget(
        id=held.id,
        state=held.state,
        total_steps=held.total_steps,
        leased_steps=held.leased_steps,
    )


def _progress(row: tables.Job) -> wire.Progress:
    eta_s = None
    if row.started_at is not None and row.step > 0 and row.state not in TERMINAL:
        elapsed_s = (datetime.now(UTC) - row.started_at).total_seconds()
        eta_s = max(0.0, elapsed_s) / row.step * (row.total_steps - row.step)
    return wire.Progress(
        step=row.step,
        total_steps=row.total_steps,
        fraction=row.step / row.total_steps,
        eta_s=eta_s,
    )


def _result(row: tables.Job) -> wire.Result | None:
    if row.epsilon is None:
        return None
    session = object_session(row)
    assert session is not None, "shaped inside its session"
    return wire.Result(
        metrics=row.metrics or {},
        epsilon=wire.ResultEpsilon.model_validate(row.epsilon),
        certificate_id=certificates.of_job(session, row),
    )
