"""The one task: a message is a hint that carries an id."""

import select

import structlog
from celery import Celery

from service.queue import TRAIN_TASK
from service.settings import Settings
from workers.busy import Busy
from workers.context import open_parts
from workers.supervisor import run_job


def register(app: Celery, settings: Settings, *, wake_up: int, busy: Busy) -> None:
    """Give ``app`` the training task."""

    def train(job_id: str) -> None:
        """Run one job; a message that was lost, late or repeated does no harm."""
        try:
            with busy.held(), open_parts(settings) as parts:
                if select.select([wake_up], [], [], 0)[0]:
                    return  # the worker is to stop: somebody else takes the job
                run_job(parts, job_id, wake_up=wake_up)
        except Exception:  # noqa: BLE001 - the edge of the process
            # The edge of the process. The trainer is dead, the lease runs out, and the
            # sweeper charges what was leased.
            structlog.get_logger().exception("supervisor_failed", job_id=job_id)

    app.task(train, name=TRAIN_TASK, shared=False)
