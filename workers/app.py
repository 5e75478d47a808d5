"""The worker's composition root: settings in, a Celery app with the training task out."""

import os
import sys
import threading
from typing import Any, Final

from celery import Celery, signals

from service.lifeline import die_with_parent
from service.queue import celery_app
from service.settings import Settings
from workers import tasks
from workers.busy import Busy

#: A running job is stopped and settled well within this time.
_SETTLED_WITHIN_S: Final = 10.0


def make_worker_app(settings: Settings) -> Celery:
    """The Celery app of one worker process: prefork, one job at a time.

    Whoever kills the worker kills its pool child and the trainer with it; whoever ends it in
    peace (SIGTERM) has the running job stopped and settled first.
    """
    app = celery_app(settings.broker_url)
    # One message at a time leaves the broker: a busy worker hoards no job.
    app.conf.worker_disable_prefetch = True
    app.conf.broker_connection_max_retries = None  # a worker waits for its broker for ever
    app.conf.worker_redirect_stdouts = False  # our log lines are JSON already
    main = os.getpid()
    read, write = os.pipe()
    busy = Busy(settings.data_dir / "running" / f"worker-{main}.lock")

    def child_begins(**_: Any) -> None:
        die_with_parent(main)
        os.close(write)

    def worker_stops(**_: Any) -> None:
        os.write(write, b"x")  # stays readable: the supervisor sees it, and takes no other job
        threading.Thread(target=_leave_when_settled, args=(busy,), daemon=True).start()

    signals.worker_process_init.connect(child_begins, weak=False)
    signals.worker_shutting_down.connect(worker_stops, weak=False)
    tasks.register(app, settings, wake_up=read, busy=busy)
    return app


def _leave_when_settled(busy: Busy) -> None:
    """Exit once no job runs: the pool's own farewell takes seconds and has nothing to say.

    A message that is lost by this is sent again by the sweeper.
    """
    busy.wait_until_free(timeout_s=_SETTLED_WITHIN_S)
    busy.remove()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
