"""The log of a run that trains elsewhere: batches in, chunks of 4,096 steps out.

An upload is prepared outside of any transaction (its records read, its full chunks written to
the object store) and then recorded in one short one, which refuses it if the log has grown in
between. An acknowledged record is either in a chunk or in a batch of the tail, and moves from
one to the other in the transaction that records the chunk.

Chunks begin at multiples of 4,096, and the head is the link of the last one, or of the tail as
it would be sealed now. So the head depends on the records alone, not on how they were cut into
uploads: whoever has the records can compute it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service import log_chunks
from service.core import noise_log, replay
from service.core.chunks import CHUNK_STEPS, leaf, runs_of, seal
from service.core.credentials import Principal
from service.core.errors import Conflict
from service.core.noise_log import StepRecord, Upload
from service.db.session import database_now
from service.db.tables import NoiseChunk, Run, RunBatch
from service.log_chunks import StoredChunk
from service.operations.logged_reservations import keep_alive
from service.operations.noise_chunks import append_chunk, chunks_of, last_chunk
from service.operations.owned import get_owned
from service.operations.vault import Vault

#: A tail of more batches than this becomes one: uploads of a single step stay cheap.
_MAX_BATCHES: Final = 32


class Outrun(Conflict):
    """The log has grown since the upload was prepared: prepare it again."""

    code = "LOG_BUSY"
    retryable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The acknowledged records that are in no chunk yet, consecutive, fewer than 4,096.

    Args:
        next_step: the first step that the log does not have.
        batches: rows, in order.
        previous: the link of the newest chunk.
    """

    next_step: int
    batches: Sequence[RunBatch]
    previous: str | None

    @property
    def runs(self) -> tuple[replay.Run, ...]:
        """Its runs of equal steps."""
        return replay.merged(run for batch in self.batches for run in runs_of(batch.summary))

    def uploads(self, vault: Vault, *, run_id: str) -> list[Upload]:
        """Its records with their sealed parts, which are decrypted for it."""
        return [
            upload
            for batch in self.batches
            for upload in log_chunks.unhide(
                batch.sealed,
                tuple(replay.expanded(runs_of(batch.summary))),
                subject_id=run_id,
                sealer=vault.sealer,
            )
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """An upload that is ready to be recorded.

    Args:
        run_id: whose log grows.
        base_step: the log's next step when this was prepared.
        next_step: its next step once this is recorded.
        accepted, duplicates: how many records are new, and how many were there.
        chunks: full chunks, their objects stored.
        batch: the new records after the last full chunk; None if there are none.
        replaces_tail: the chunks or the batch hold all records of the tail so far.
        head: the head of the log then.
    """

    run_id: str
    base_step: int
    next_step: int
    accepted: int
    duplicates: int
    chunks: tuple[StoredChunk, ...] = ()
    batch: RunBatch | None = None
    replaces_tail: bool = False
    head: str | None = None


def prepare(
    session: Session,
    principal: Principal,
    *,
    run_id: str,
    uploads: Sequence[Upload],
    vault: Vault,
) -> Growth:
    """Compare an upload with the log, and store the chunks that it fills.

    Args:
        session: for reading.
        principal: whose run it is.
        run_id: the run.
        uploads: at least one record.
        vault: where chunks go.

    Raises:
        Outrun: the log grew while it was read.
        SequenceGap: a step is left out.
        Conflict: STEP_ALREADY_RECORDED, RUN_ENDED.
        OSError: the store did not take a chunk; nothing is acknowledged.
    """
    run = get_owned(session, principal, Run, run_id)
    tail = tail_of(session, run)
    last_step = uploads[-1].record.step
    accepted = noise_log.accept(
        uploads,
        next_step=run.next_step,
        stored=_stored(session, run, tail, first=uploads[0].record.step, last=last_step),
    )
    if not accepted.fresh:
        return Growth(
            run_id=run.id,
            base_step=run.next_step,
            next_step=run.next_step,
            accepted=0,
            duplicates=accepted.duplicates,
            head=run.head,
        )
    check_open(run)
    return _grown(run, tail, accepted, vault=vault)


def record(session: Session, principal: Principal, growth: Growth) -> Run:
    """Append what was prepared, and put off the expiry of the run's reservation.

    Raises:
        Outrun: the log has grown since.
        Conflict: RUN_ENDED, RESERVATION_EXPIRED.
    """
    run = get_owned(session, principal, Run, growth.run_id, lock=True)
    check_open(run)
    if run.next_step != growth.base_step:
        raise Outrun("Another upload was recorded first; send this one again.")
    keep_alive(session, principal, reservation_id=run.reservation_id)
    append_chunks(session, run, growth.chunks, now=database_now(session))
    if growth.replaces_tail:
        session.execute(delete(RunBatch).where(RunBatch.run_id == run.id))
    if growth.batch is not None:
        session.add(growth.batch)
    run.next_step = growth.next_step
    run.head = growth.head
    run.version += 1
    session.flush()
    return run


def append_chunks(
    session: Session, run: Run, stored: Sequence[StoredChunk], *, now: datetime
) -> None:
    """Record chunks, the first of which holds the whole tail: the tail's batches go."""
    if not stored:
        return
    last = last_chunk(session, run.id)
    for chunk in stored:
        last = append_chunk(session, chunk, subject_id=run.id, last=last, now=now)
    session.execute(delete(RunBatch).where(RunBatch.run_id == run.id))


def check_open(run: Run) -> None:
    """Refuse what would change a run that has ended.

    Raises:
        Conflict: RUN_ENDED.
    """
    if run.state != "open":
        raise Conflict(
            f"The run is {run.state}: its log is closed.",
            code="RUN_ENDED",
            fields={"state": run.state},
        )


def tail_of(session: Session, run: Run) -> Tail:
    """The tail of the run's log.

    Raises:
        Outrun: an upload was recorded while it was read.
    """
    query = select(RunBatch).where(RunBatch.run_id == run.id).order_by(RunBatch.first_step)
    batches = session.scalars(query.execution_options(populate_existing=True)).all()
    last = last_chunk(session, run.id)
    step = 0 if last is None else last.end_step
    for batch in batches:
        if batch.first_step != step:
            raise Outrun("The log grew while it was read; try again.")
        step = batch.end_step
    if step != run.next_step:
        raise Outrun("The log grew while it was read; try again.")
    return Tail(next_step=step, batches=batches, previous=None if last is None else last.link)


def released_of(
    session: Session, principal: Principal, *, run_id: str
) -> tuple[list[str], tuple[replay.Run, ...]]:
    """The releasable log: the objects of its chunks, and the runs of its tail."""
    run = get_owned(session, principal, Run, run_id)
    tail = tail_of(session, run)
    return [chunk.released_object for chunk in chunks_of(session, run.id)], tail.runs


def sealed_parts(session: Session, subject_id: str) -> list[log_chunks.SealedPart]:
    """Where the sealed stream of a job or run lies, in the order of its steps."""
    chunks = [
        log_chunks.SealedPart(
            first_step=chunk.first_step, end_step=chunk.end_step, object=chunk.sealed_object
        )
        for chunk in chunks_of(session, subject_id)
    ]
    query = select(RunBatch).where(RunBatch.run_id == subject_id).order_by(RunBatch.first_step)
    tail = [
        log_chunks.SealedPart(
            first_step=batch.first_step, end_step=batch.end_step, object=None, blob=batch.sealed
        )
        for batch in session.scalars(query)
    ]
    return [*chunks, *tail]


def _grown(run: Run, tail: Tail, accepted: noise_log.Accepted, *, vault: Vault) -> Growth:
    fresh = accepted.fresh
    base = tail.next_step - sum(batch.end_step - batch.first_step for batch in tail.batches)
    chunks: list[StoredChunk] = []
    previous, rest = tail.previous, list(fresh)
    replaces_tail = accepted.next_step - base >= CHUNK_STEPS or len(tail.batches) >= _MAX_BATCHES
    if replaces_tail:
        rest = [*tail.uploads(vault, run_id=run.id), *fresh]
    while len(rest) >= CHUNK_STEPS:
        stored = log_chunks.store(
            rest[:CHUNK_STEPS], subject_id=run.id, objects=vault.objects, sealer=vault.sealer
        )
        previous = stored.link_after(previous)
        chunks.append(stored)
        rest = rest[CHUNK_STEPS:]
    batch = _batch(run.id, rest, vault=vault) if rest else None
    parts = [] if batch is None else list(runs_of(batch.summary))
    if not replaces_tail:
        parts = [*tail.runs, *parts]
    head = seal(replay.merged(parts), previous=previous).link if parts else previous
    return Growth(
        run_id=run.id,
        base_step=tail.next_step,
        next_step=accepted.next_step,
        accepted=len(fresh),
        duplicates=accepted.duplicates,
        chunks=tuple(chunks),
        batch=batch,
        replaces_tail=replaces_tail,
        head=head,
    )


def _batch(run_id: str, uploads: Sequence[Upload], *, vault: Vault) -> RunBatch:
    chunk = seal([upload.record for upload in uploads], previous=None)
    summary: list[dict[str, Any]] = leaf(chunk)["summary"]
    return RunBatch(
        run_id=run_id,
        first_step=chunk.first_step,
        end_step=chunk.end_step,
        summary=summary,
        sealed=log_chunks.hide(uploads, subject_id=run_id, sealer=vault.sealer),
    )


def _stored(
    session: Session, run: Run, tail: Tail, *, first: int, last: int
) -> tuple[StepRecord, ...]:
    """The records of the log in the steps from ``first`` to ``last``."""
    if first >= run.next_step:
        return ()
    query = (
        select(NoiseChunk)
        .where(
            NoiseChunk.subject_id == run.id,
            NoiseChunk.end_step > first,
            NoiseChunk.first_step <= last,
        )
        .order_by(NoiseChunk.sequence)
    )
    found = [part for chunk in session.scalars(query) for part in runs_of(chunk.summary)]
    wanted = replay.between([*found, *tail.runs], first_step=first, end_step=last + 1)
    return tuple(replay.expanded(wanted))
