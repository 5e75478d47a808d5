"""Errors as RFC 9457 problems; the one place that knows HTTP statuses."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException

from service.core import errors

STATUS: Final[Mapping[type[errors.DomainError], int]] = {
    errors.InvalidInput: 422,
    errors.NotFound: 404,
    errors.Forbidden: 403,
    errors.Unauthenticated: 401,
    errors.Conflict: 409,
    errors.PreconditionFailed: 412,
    errors.PreconditionRequired: 428,
    errors.Unavailable: 503,
}

_HTTP: Final = {
    400: ("BAD_REQUEST", "The request could not be read"),
    404: ("NOT_FOUND", "Not found"),
    405: ("METHOD_NOT_ALLOWED", "Method not allowed"),
    406: ("NOT_ACCEPTABLE", "Not acceptable"),
    413: ("BODY_TOO_LARGE", "The body is too large"),
    415: ("UNSUPPORTED_MEDIA_TYPE", "Unsupported media type"),
}
_TITLES: Final = {
    400: "The request could not be read",
    401: "A usable API key is needed",
    403: "The key may not do this",
    404: "Not found",
    409: "The present state forbids this",
    412: "The object has changed",
    422: "The request was read but is not valid",
    428: "If-Match is needed",
    500: "An error of ours",
    503: "Try again soon",
}
#: pydantic's error types → our codes; what is not listed is OUT_OF_RANGE.
_WRONG_TYPE_ENDINGS: Final = ("_type", "_parsing", "_from_float")
_CODES: Final = {
    "missing": "MISSING_FIELD",
    "extra_forbidden": "UNKNOWN_FIELD",
    "finite_number": "NON_FINITE_NUMBER",
    "inconsistent": "INCONSISTENT",
    "json_invalid": "WRONG_TYPE",
}
RETRY_AFTER_S: Final = 2


class BadRequest(HTTPException):
    """A request that cannot be read, or lacks what it needs before it can be."""

    def __init__(self, status: int, *, code: str, detail: str, pointer: str | None = None) -> None:
        super().__init__(status, detail=detail)
        self.code = code
        self.pointer = pointer


def install(app: FastAPI) -> None:
    """Answer every error of ``app`` with a problem."""
    app.add_exception_handler(errors.DomainError, _domain_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    for error in (OperationalError, InterfaceError, PoolTimeout):
        app.add_exception_handler(error, _database_error)
    app.add_exception_handler(Exception, _bug)


def problem(
    request: Request,
    *,
    status: int,
    code: str,
    detail: str,
    title: str | None = None,
    retryable: bool = False,
    problems: Sequence[Mapping[str, Any]] = (),
    extra: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """One problem answer."""
    body = {
        "type": f"/problems/{code.lower().replace('_', '-')}",
        "title": title or _TITLES.get(status, "The request failed"),
        "status": status,
        "detail": detail,
        "instance": request.url.path,
        "code": code,
        "request_id": request.scope.get("request_id", ""),
        "retryable": retryable,
        "errors": list(problems),
    }
    return JSONResponse(
        {**(extra or {}), **body},
        status_code=status,
        media_type="application/problem+json",
        headers=dict(headers or {}),
    )


def status_of(error: errors.DomainError) -> int:
    """The HTTP status of an expected failure, by its nearest listed ancestor."""
    return next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)


async def _domain_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, errors.DomainError)
    status = status_of(error)
    named: list[Mapping[str, Any]] = []
    if isinstance(error, errors.InvalidInput):
        named = [{"pointer": error.pointer, "code": error.code, "message": error.message}]
    headers: dict[str, str] = {}
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return problem(
        request,
        status=status,
        code=error.code,
        detail=error.message,
        retryable=error.retryable,
        problems=named,
        extra=error.fields,
        headers=headers,
    )


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    known = getattr(request.state, "known_fields", frozenset())
    named = [_named(e, body=error.body, known=known) for e in error.errors()]
    # A misspelt field is missing as well: the guess at what was meant comes first.
    named.sort(key=lambda found: found["code"] != "UNKNOWN_FIELD")
    first = named[0]
    where = first["pointer"] or first.get("parameter", "the body")
    return problem(
        request,
        status=422,
        code=first["code"],
        detail=f"{where}: {first['message']}",
        problems=named,
    )


def _named(error: Mapping[str, Any], *, body: Any, known: Iterable[str]) -> dict[str, Any]:
    place, *path = error["loc"]
    kind: str = error["type"]
    code = _CODES.get(kind) or (
        "WRONG_TYPE" if kind.endswith(_WRONG_TYPE_ENDINGS) else "OUT_OF_RANGE"
    )
    message = error["msg"]
    if code == "UNKNOWN_FIELD":
        message = f"There is no field {path[-1]!r} here."
        near = difflib.get_close_matches(str(path[-1]), list(known), n=1)
        if near:
            message += f" Did you mean {near[0]!r}?"
    if place == "body":
        return {"pointer": _pointer(path, body), "code": code, "message": message}
    name = str(path[-1]) if path else str(place)
    return {"pointer": "", "parameter": unquote(name), "code": code, "message": message}


def _pointer(path: Sequence[str | int], body: Any) -> str:
    """The JSON pointer of a pydantic location, less the union tags that it contains."""
    parts: list[str] = []
    at = body
    for index, step in enumerate(path):
        last = index == len(path) - 1
        found, inner = _descend(at, step)
        if found:
            at = inner
        elif not (last and isinstance(at, dict)) or step in (at.get("type"), at.get("sampler")):
            continue  # the name of a union's branch, not of a field
        parts.append(str(step).replace("~", "~0").replace("/", "~1"))
    return "".join(f"/{part}" for part in parts)


def _descend(at: Any, step: str | int) -> tuple[bool, Any]:
    if isinstance(at, dict) and step in at:
        return True, at[step]
    if isinstance(at, list) and isinstance(step, int) and step < len(at):
        return True, at[step]
    return False, None


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code, title = _HTTP.get(error.status_code, ("HTTP_ERROR", "The request failed"))
    problems: list[Mapping[str, Any]] = []
    if isinstance(error, BadRequest):
        code = error.code
        if error.pointer is not None:
            problems = [{"pointer": error.pointer, "code": code, "message": error.detail}]
    return problem(
        request,
        status=error.status_code,
        code=code,
        title=title,
        detail=str(error.detail),
        problems=problems,
        headers=error.headers,
    )


async def _database_error(request: Request, error: Exception) -> JSONResponse:
    structlog.get_logger().error("database_unavailable", error=type(error).__name__)
    return problem(
        request,
        status=503,
        code="UNAVAILABLE",
        detail="The database is away or busy; nothing was changed.",
        retryable=True,
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


async def _bug(request: Request, error: Exception) -> JSONResponse:
    structlog.get_logger().error("bug", exc_info=error)
    return problem(
        request,
        status=500,
        code="INTERNAL_ERROR",
        detail="This is a fault of the service; the request id finds it in the log.",
    )
