"""The sweeper: rings again for forgotten jobs, ends lost ones, expires reservations.

Any number of sweepers may run. A round that fails is logged and the next one goes on: nothing
here is urgent, and everything is looked at again.
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.core.errors import DomainError
from service.db.session import Database
from service.operations import job_sweep, reservations, runs
from service.operations.jobs import mark_dispatched
from service.queue import OperationalError, celery_app, publish
from service.settings import Settings


def sweep_until(stop: threading.Event, settings: Settings) -> None:
    """Sweep every ``settings.sweep_every_s`` seconds until ``stop`` is set."""
    database = Database(settings.database_url, pool_size=2)
    app = celery_app(settings.broker_url)
    log = structlog.get_logger()
    try:
        while not stop.wait(settings.sweep_every_s):
            try:
                sweep(
                    database,
                    ring=lambda job_id: publish(app, job_id),
                    redispatch_after_s=settings.redispatch_after_s,
                )
            except (SQLAlchemyError, DomainError) as error:
                log.warning("sweep_failed", error=type(error).__name__)
    finally:
        database.close()


def sweep(database: Database, *, ring: Callable[[str], None], redispatch_after_s: float) -> None:
    """One round.

    Args:
        database: short transactions only.
        ring: announces a job now; an ``OperationalError`` leaves the rest for the next round.
        redispatch_after_s: how old an announcement must be to be made again.
    """
    _end_lost_jobs(database)
    _end_overdue_runs(database)
    with database.write() as session:
        reservations.expire_overdue(session)
    with database.read() as session:
        waiting = job_sweep.jobs_to_announce(session, redispatch_after_s=redispatch_after_s)
    for job_id in waiting:
        try:
            ring(job_id)
        except OperationalError:
            structlog.get_logger().warning("broker_away")
            return
        with database.write() as session:
            mark_dispatched(session, job_id=job_id, now=datetime.now(UTC))


def _end_lost_jobs(database: Database) -> None:
    log = structlog.get_logger()
    with database.read() as session:
        lost = job_sweep.lost_jobs(session)
    for job_id in lost:
        try:
            with database.write() as session:
                state = job_sweep.reap(session, job_id=job_id)
        except DomainError as error:  # one job that cannot be settled holds up no other
            log.exception("reap_failed", job_id=job_id, code=error.code)
            continue
        if state is not None:
            log.warning("job_lost", job_id=job_id, state=state)


def _end_overdue_runs(database: Database) -> None:
    log = structlog.get_logger()
    with database.read() as session:
        overdue = runs.overdue_runs(session)
    for run_id in overdue:
        try:
            with database.write() as session:
                ended = runs.abandon(session, run_id=run_id)
        except DomainError as error:  # one run that cannot be charged holds up no other
            log.exception("abandon_failed", run_id=run_id, code=error.code)
            continue
        if ended:
            log.warning("run_abandoned", run_id=run_id)
