"""Reading a request: JSON without surprises, with errors that name the place.

The standard parser accepts NaN, keeps the last of two equal keys, and turns 1e400 into
infinity. For numbers that bound privacy each of these is a wrong answer in waiting.
"""

import json
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from service.api.problems import BadRequest

_MAX_DEPTH: Final = 64
_MAX_DIGITS: Final = 400
_PARSE_DEPTH_MESSAGE: Final = f"JSON nested more than {_MAX_DEPTH} deep."


class StrictRoute(APIRoute):
    """A route whose JSON body is read by ``parse_json``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler; only routes with a JSON body are touched."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        known = _field_names(self.body_field)

        async def read_then_handle(request: Request) -> Response:
            _check_content_type(request)
            request.state.known_fields = known
            request._json = parse_json(await request.body())  # noqa: SLF001 - what json() caches
            return await handle(request)

        return read_then_handle


def parse_json(body: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        BadRequest: 400 for bytes that are not UTF-8 JSON, NaN, Infinity, numbers beyond a
            float, duplicate keys, unpaired surrogates, NUL characters or deep nesting.
    """
    try:
        value = json.loads(
            body.decode("utf-8"),
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_integer,
            object_pairs_hook=_unique,
        )
    except UnicodeDecodeError as error:
        raise _bad("BAD_JSON", f"The body is not UTF-8 (byte {error.start}).") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _bad("BAD_JSON", f"The body is not JSON: {error.msg} ({where}).") from error
    except RecursionError as error:
        raise _bad("BAD_JSON", _PARSE_DEPTH_MESSAGE) from error
    _refuse_marked(value, path=())
    return value


@dataclass(frozen=True, slots=True)
class _Refused:
    """Stands in a parsed value where something must be refused, until its place is known."""

    code: str
    detail: str
    key: str | None = None


def _bad(code: str, detail: str, pointer: str | None = None) -> BadRequest:
    return BadRequest(400, code=code, detail=detail, pointer=pointer)


def _refuse_constant(token: str) -> _Refused:
    return _Refused("NON_FINITE_NUMBER", f"{token} is not a JSON number.")


def _finite(token: str) -> float | _Refused:
    value = float(token)
    if math.isinf(value):
        return _Refused("NON_FINITE_NUMBER", f"{token[:40]} is too large for a number.")
    return value


def _integer(token: str) -> int | _Refused:
    if len(token) > _MAX_DIGITS:
        return _Refused("NON_FINITE_NUMBER", "A whole number has too many digits.")
    value = int(token)
    # Float fields would overflow; integer fields have smaller limits of their own.
    as_float = _finite(token) if abs(value) > 2**63 else None
    return as_float if isinstance(as_float, _Refused) else value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Refused:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                detail = f"The key {key!r} stands twice in one object."
                return _Refused("DUPLICATE_KEY", detail, key)
            seen.add(key)
    return result


def _refuse_marked(value: Any, *, path: tuple[str | int, ...]) -> None:
    """Refuse the first marked value or bad text, with the pointer to its place."""
    if len(path) > _MAX_DEPTH:
        raise _bad("BAD_JSON", _PARSE_DEPTH_MESSAGE)
    if isinstance(value, _Refused):
        place = path if value.key is None else (*path, value.key)
        raise _bad(value.code, value.detail, _pointer(place))
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
            detail = "A text holds a NUL or half a surrogate pair."
            raise _bad("BAD_TEXT", detail, _pointer(path))
    elif isinstance(value, dict):
        for key, item in value.items():
            _refuse_marked(key, path=path)
            _refuse_marked(item, path=(*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_marked(item, path=(*path, index))


def _pointer(path: tuple[str | int, ...]) -> str:
    parts = (str(step).replace("~", "~0").replace("/", "~1") for step in path)
    # What is not text at all cannot stand in the answer either.
    return "".join(f"/{part}" for part in parts).encode(errors="replace").decode()


def _check_content_type(request: Request) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given == "application/json" or (
        given.startswith("application/") and given.endswith("+json")
    ):
        return
    raise BadRequest(
        415,
        code="UNSUPPORTED_MEDIA_TYPE",
        detail=f"Got {given or 'no content type'}; send the header Content-Type: application/json.",
    )


def _field_names(field: Any) -> frozenset[str]:
    """All field names below a body, for "did you mean"."""
    schema = TypeAdapter(field.field_info.annotation).json_schema()
    names: set[str] = set()
    stack: list[Any] = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            properties = item.get("properties")
            if isinstance(properties, dict):
                names |= properties.keys()
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return frozenset(names)
