"""The worker's composition root: settings in, a Celery app with the training task out."""

import os
from typing import Any

from celery import Celery, signals

from service.queue import celery_app
from service.settings import Settings
from workers import tasks
from workers.process import die_with_parent


def make_worker_app(settings: Settings) -> Celery:
    """The Celery app of one worker process: prefork, one job at a time.

    Whoever kills the worker kills its pool child and the trainer with it; whoever ends it in
    peace (SIGTERM) has the running job stopped and settled first.
    """
    app = celery_app(settings.broker_url)
    # One message at a time leaves the broker: a busy worker hoards no job.
    app.conf.worker_disable_prefetch = True
    main = os.getpid()
    read, write = os.pipe()

    def child_begins(**_: Any) -> None:
        die_with_parent(main)
        os.close(write)

    def worker_stops(**_: Any) -> None:
        os.write(write, b"x")  # stays readable: every child's supervisor sees it

    signals.worker_process_init.connect(child_begins, weak=False)
    signals.worker_shutting_down.connect(worker_stops, weak=False)
    tasks.register(app, settings, wake_up=read)
    return app
