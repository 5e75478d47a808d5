"""Limits before any route: a request id, the size of bodies, the Host header.

Pure ASGI: Starlette's ``BaseHTTPMiddleware`` costs most of the throughput and hides
disconnects from streams.
"""

from collections.abc import Sequence
from typing import Final

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problems import BadRequest, problem
from service.db.ids import new_id

_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)


class Limits:
    """Gives each request an id, checks its Host and bounds its body."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, allowed_hosts: Sequence[str]) -> None:
        """Guard ``app``."""
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._hosts = frozenset(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        scope["request_id"] = new_id("req")
        structlog.contextvars.bind_contextvars(request_id=scope["request_id"])

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *_HEADERS,
                    (b"x-request-id", scope["request_id"].encode()),
                ]
            await send(message)

        refusal = self._refusal(request)
        if refusal is not None:
            status, code, detail = refusal
            answer = problem(request, status=status, code=code, detail=detail)
            await answer(scope, receive, send_with_headers)
            return
        await self._app(scope, self._bounded(receive), send_with_headers)

    def _refusal(self, request: Request) -> tuple[int, str, str] | None:
        host = request.headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if "*" not in self._hosts and name not in self._hosts:
            return 400, "HOST_NOT_ALLOWED", "This Host header is not on the allow-list."
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._max_body_bytes:
            return 413, "BODY_TOO_LARGE", f"A body has at most {self._max_body_bytes} bytes."
        return None

    def _bounded(self, receive: Receive) -> Receive:
        seen = 0

        async def bounded() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_body_bytes:  # a chunked body that did not say its length
                raise BadRequest(
                    413,
                    code="BODY_TOO_LARGE",
                    detail=f"A body has at most {self._max_body_bytes} bytes.",
                )
            return message

        return bounded
