"""The gateway's composition root: settings in, parts made, routes mounted."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import anyio.to_thread
from fastapi import FastAPI

from service import __version__
from service.api import (
    accounting,
    bounds,
    certificates,
    checks,
    datasets,
    health,
    keys,
    limits,
    log,
    openapi,
    problem_pages,
    problems,
    reservations,
    runs,
    training_jobs,
)
from service.api.deps import Parts
from service.calculator import Calculator
from service.db.session import Database
from service.metrics import Measured, Metrics
from service.objects import FolderStore
from service.operations.jobs import mark_dispatched
from service.queue import CeleryQueue, celery_app
from service.sealing import FileSealer
from service.settings import Settings
from service.signing import FileSigner

_ROUTES: Final = (
    health,
    keys,
    datasets,
    reservations,
    accounting,
    bounds,
    checks,
    runs,
    certificates,
    log,
    training_jobs,
    problem_pages,
)


def make_app(settings: Settings) -> FastAPI:
    """The gateway that these settings describe."""
    return serve_with(make_parts(settings))


def make_parts(settings: Settings) -> Parts:
    """The real parts; tests hand their own to ``serve_with``."""
    database = Database(settings.database_url, pool_size=settings.request_threads + 5)

    def published(job_id: str) -> None:
        with database.write() as session:
            mark_dispatched(session, job_id=job_id, now=datetime.now(UTC))

    return Parts(
        settings=settings,
        database=database,
        queue=CeleryQueue(celery_app(settings.broker_url), published=published),
        objects=FolderStore(settings.data_dir / "objects"),
        sealer=FileSealer(settings.data_dir / "sealed-log.key"),
        signer=FileSigner(settings.data_dir / "signing.key"),
        calculator=Calculator(
            processes=settings.calculation_processes, timeout_s=settings.calculation_timeout_s
        ),
    )


def serve_with(parts: Parts) -> FastAPI:
    """The gateway over ``parts``, which it closes when it stops."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        # The pool of connections is larger than the number of threads, so no thread that
        # holds one ever waits for another.
        threads = anyio.to_thread.current_default_thread_limiter()
        threads.total_tokens = parts.settings.request_threads
        yield
        parts.queue.close()
        parts.calculator.close()
        parts.database.close()

    app = FastAPI(
        title="dpledger",
        version=__version__,
        description="Budgets, certified accounting, training and audit for differential privacy.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.parts = parts
    app.state.stopping = threading.Event()  # set when the server begins to stop: ends streams
    problems.install(app)
    for module in _ROUTES:
        app.include_router(module.router)
    openapi.install(app)
    app.state.metrics = Metrics(parts.database)
    app.add_middleware(Measured, metrics=app.state.metrics)
    app.add_middleware(
        limits.Limits,
        max_body_bytes=parts.settings.max_body_bytes,
        allowed_hosts=parts.settings.allowed_hosts,
    )
    return app
