"""The stored chunks of a noise log, whoever it belongs to: a training job or a run."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.core import replay
from service.core.chunks import runs_of
from service.db.tables import NoiseChunk
from service.log_chunks import StoredChunk


def append_chunk(
    session: Session,
    stored: StoredChunk,
    *,
    subject_id: str,
    last: NoiseChunk | None,
    now: datetime,
) -> NoiseChunk:
    """Make a stored chunk the next one of its log; its link covers the one before it.

    Args:
        session: the transaction; the subject's row is locked.
        stored: the chunk, its objects in the store.
        subject_id: the job or run.
        last: the newest chunk so far.
        now: when; kept coarse, because times of steps are sealed (R25).
    """
    row = NoiseChunk(
        subject_id=subject_id,
        sequence=1 if last is None else last.sequence + 1,
        first_step=stored.first_step,
        end_step=stored.end_step,
        released_object=stored.released_object,
        sealed_object=stored.sealed_object,
        summary=[dict(run) for run in stored.summary],
        link=stored.link_after(None if last is None else last.link),
        created_at=now.replace(microsecond=0),
    )
    session.add(row)
    session.flush()
    return row


def chunks_of(session: Session, subject_id: str) -> Sequence[NoiseChunk]:
    """The chunks of the log of a job or run, in order."""
    query = select(NoiseChunk).where(NoiseChunk.subject_id == subject_id)
    return session.scalars(query.order_by(NoiseChunk.sequence)).all()


def last_chunk(session: Session, subject_id: str) -> NoiseChunk | None:
    """The newest chunk of the log."""
    query = select(NoiseChunk).where(NoiseChunk.subject_id == subject_id)
    return session.scalars(query.order_by(NoiseChunk.sequence.desc()).limit(1)).one_or_none()


def logged_runs(session: Session, subject_id: str) -> list[replay.Run]:
    """The runs of equal steps in the chunks of the log."""
    return [run for chunk in chunks_of(session, subject_id) for run in runs_of(chunk.summary)]
