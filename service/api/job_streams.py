"""Waiting for a job: server-sent events and long polls.

Asynchronous, so that a waiting client costs no thread; each look at the database is a short
session of its own, and none is open while waiting. Everything ends when the server stops.
"""

import json
import time
from collections.abc import AsyncIterator
from typing import Final

import anyio
import anyio.to_thread
from sqlalchemy.orm import Session

from service.api import job_shapes
from service.api.deps import Caller
from service.core.jobs import TERMINAL
from service.db.tables import Job
from service.operations import jobs
from service.operations.owned import get_owned
from service.schemas.jobs import JobEvent

COMMENT_EVERY_S: Final = 15.0
_LOOK_EVERY_S: Final = 0.4
_PAGE: Final = 500


async def server_sent_events(caller: Caller, *, job_id: str, after: int) -> AsyncIterator[str]:
    """The job's events after that sequence number, as they happen, up to ``done``."""
    yield "retry: 2000\n\n"
    quiet_since = time.monotonic()
    while not stopping(caller):
        events, ended = await anyio.to_thread.run_sync(_look, caller, job_id, after)
        for event in events:
            after = event.sequence
            yield _frame(event)
        if ended:
            return
        if events:
            quiet_since = time.monotonic()
            continue
        if time.monotonic() - quiet_since >= COMMENT_EVERY_S:
            quiet_since = time.monotonic()
            yield ": still here\n\n"
        await anyio.sleep(_LOOK_EVERY_S)


async def until_ended(caller: Caller, *, job_id: str, timeout_s: float) -> None:
    """Return when the job has ended, the time is over, or the server stops."""
    end = time.monotonic() + timeout_s
    while not await anyio.to_thread.run_sync(_has_ended, caller, job_id):
        left = end - time.monotonic()
        if left <= 0 or stopping(caller):
            return
        await anyio.sleep(min(left, _LOOK_EVERY_S))


def stopping(caller: Caller) -> bool:
    """True once the server has been told to stop."""
    return caller.request.app.state.stopping.is_set()


def _look(caller: Caller, job_id: str, after: int) -> tuple[list[JobEvent], bool]:
    def look(session: Session) -> tuple[list[JobEvent], bool]:
        job, rows = jobs.events_after(
            session, caller.principal, job_id=job_id, after=after, limit=_PAGE
        )
        last = rows[-1].sequence if rows else after
        return [job_shapes.event(row) for row in rows], (
            job.state in TERMINAL and last >= job.last_event
        )

    return caller.read(look)


def _has_ended(caller: Caller, job_id: str) -> bool:
    return caller.read(
        lambda session: get_owned(session, caller.principal, Job, job_id).state in TERMINAL
    )


def _frame(event: JobEvent) -> str:
    data = json.dumps({**event.data, "created_at": event.created_at.isoformat()}, allow_nan=False)
    return f"id: {event.sequence}\nevent: {event.type}\ndata: {data}\n\n"
