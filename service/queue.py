"""The queue only rings the bell: a message carries a job's id, and may be lost.

The database owns the jobs. A publication that fails changes nothing: the job stays queued
with the reason DISPATCH_PENDING, and the sweeper rings again.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog
from celery import Celery
from kombu.exceptions import OperationalError

TRAIN_TASK: Final = "workers.train"
TRAINING_QUEUE: Final = "training"
_SOCKET_TIMEOUT_S: Final = 5


class JobQueue(Protocol):
    """Announces queued jobs to the workers."""

    def ring(self, job_id: str) -> None:
        """Announce a job soon; never blocks, never raises."""
        ...

    def close(self) -> None:
        """Stop announcing."""
        ...


def celery_app(broker_url: str) -> Celery:
    """The Celery application that gateway, sweeper and workers share."""
    app = Celery("dpledger", broker=broker_url, set_as_current=False)
    timeouts = {"socket_timeout": _SOCKET_TIMEOUT_S, "socket_connect_timeout": _SOCKET_TIMEOUT_S}
    app.conf.update(
        task_ignore_result=True,
        task_acks_late=False,
        task_reject_on_worker_lost=False,
        task_default_queue=TRAINING_QUEUE,
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=1,
        worker_concurrency=1,
        worker_pool="prefork",
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": 3600, **timeouts},
        broker_connection_timeout=_SOCKET_TIMEOUT_S,
        enable_utc=True,
    )
    return app


class CeleryQueue:
    """Publishes from a thread of its own, so that a hanging broker hangs no request."""

    def __init__(self, app: Celery, *, published: Callable[[str], Any]) -> None:
        """Announce through ``app``; ``published`` is told each job that was announced."""
        self._app = app
        self._published = published
        self._waiting: queue.Queue[str | None] = queue.Queue(maxsize=10_000)
        self._thread = threading.Thread(target=self._publish_all, name="bell", daemon=True)
        self._thread.start()

    def ring(self, job_id: str) -> None:
        """Announce a job soon; a full queue drops it, and the sweeper finds it."""
        try:
            self._waiting.put_nowait(job_id)
        except queue.Full:
            structlog.get_logger().warning("bell_overflow", job_id=job_id)

    def close(self) -> None:
        """Stop after what is being published now."""
        self._waiting.put(None)
        self._thread.join(timeout=1)

    def _publish_all(self) -> None:
        while (job_id := self._waiting.get()) is not None:
            try:
                publish(self._app, job_id)
                self._published(job_id)
            except Exception:  # noqa: BLE001 - a thread's edge: the sweeper rings again
                structlog.get_logger().warning("bell_failed", job_id=job_id)


def publish(app: Celery, job_id: str) -> None:
    """Announce one job now.

    Raises:
        OperationalError: the broker did not take the message.
    """
    app.send_task(TRAIN_TASK, args=[job_id], queue=TRAINING_QUEUE, retry=False)


__all__ = ["CeleryQueue", "JobQueue", "OperationalError", "celery_app", "publish"]
