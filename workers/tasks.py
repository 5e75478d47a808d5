"""The one task: a message is a hint that carries an id."""

import structlog
from celery import Celery

from service.queue import TRAIN_TASK
from service.settings import Settings
from workers.context import open_parts
from workers.supervisor import run_job


def register(app: Celery, settings: Settings, *, wake_up: int | None) -> None:
    """Give ``app`` the training task."""

    def train(job_id: str) -> None:
        """Run one job; a message that was lost, late or repeated does no harm."""
        try:
            with open_parts(settings) as parts:
                run_job(parts, job_id, wake_up=wake_up)
        except Exception:  # noqa: BLE001 - the edge of the process
            # The edge of the process. The trainer is dead, the lease runs out, and the
            # sweeper charges what was leased.
            structlog.get_logger().exception("supervisor_failed", job_id=job_id)

    app.task(train, name=TRAIN_TASK, shared=False)
