"""Figures for Prometheus: requests as they pass, jobs and budgets counted at each scrape.

One registry per gateway, none global. No figure names a tenant, a dataset or an amount: what
is behind ``/metrics`` may be read by whoever runs the machines.
"""

import time
from collections.abc import Iterable
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.db.session import Database
from service.db.tables import Account, Job, Reservation, Run

_COUNTED: Final = (
    ("jobs", Job),
    ("reservations", Reservation),
    ("accounts", Account),
    ("runs", Run),
)


class Metrics:
    """The figures of one gateway."""

    def __init__(self, database: Database) -> None:
        """Count rows of ``database`` when asked."""
        self._registry = CollectorRegistry()
        self._registry.register(_Rows(database))
        self._requests = Counter(
            "dpledger_requests",
            "Requests answered, by route, method and status.",
            ["route", "method", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "dpledger_request_seconds",
            "Seconds from a request's head to the head of its answer.",
            ["route"],
            registry=self._registry,
        )

    def note(self, scope: Scope, *, status: int, seconds: float) -> None:
        """Count one answer under its route's template, never under its path."""
        route = getattr(scope.get("route"), "path", "none")
        self._requests.labels(route, scope["method"], str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)


class Measured:
    """Counts the requests that pass; pure ASGI, so that streams stay streams."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        """Measure ``app``."""
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                seconds = time.perf_counter() - start
                self._metrics.note(scope, status=message["status"], seconds=seconds)
            await send(message)

        await self._app(scope, receive, noted)


class _Rows(Collector):
    """Rows by state, counted at the scrape: equal whichever gateway is asked."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def collect(self) -> Iterable[Any]:
        with self._database.read() as session:
            for name, table in _COUNTED:
                family = GaugeMetricFamily(
                    f"dpledger_{name}", f"{name}, by state.", labels=["state"]
                )
                counts = session.execute(
                    select(table.state, func.count()).group_by(table.state).order_by(table.state)
                )
                for state, count in counts:
                    family.add_metric([state], count)
                yield family
