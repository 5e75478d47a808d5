"""What a route is given: the service's parts, and a caller that reads and writes.

``Caller.write`` is the one shape of every change: one transaction that holds the
idempotency record, the effect and the rendered answer, committed before the answer leaves.
It runs inside one call on one thread, so that no request ever waits for a thread while it
holds the database's write lock.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Protocol, TypeVar

from fastapi import Depends, Request, Response
from pydantic import BaseModel
from sqlalchemy.orm import Session

from service.api.problems import BadRequest
from service.calculator import Calculator
from service.core.credentials import Principal
from service.core.errors import PreconditionFailed, PreconditionRequired
from service.db.session import Database
from service.objects import ObjectStore
from service.operations import idempotency, keys
from service.operations.reservations import BudgetRefused
from service.queue import JobQueue
from service.sealing import Sealer
from service.settings import Settings
from service.signing import Signer

_MAX_KEY: Final = 255

T = TypeVar("T")


class Versioned(Protocol):
    """A row that can be shown: it has an id and a version."""

    @property
    def id(self) -> Any:
        """The row's id."""
        ...

    @property
    def version(self) -> Any:
        """Counts the row's changes; becomes the ETag."""
        ...


R = TypeVar("R", bound=Versioned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a running gateway, made by ``service.app``, passed to every route."""

    settings: Settings
    database: Database
    queue: JobQueue
    objects: ObjectStore
    sealer: Sealer
    signer: Signer
    calculator: Calculator


def parts_of(request: Request) -> Parts:
    """The parts that the running app was made with."""
    return request.app.state.parts


@dataclass(frozen=True, slots=True)
class Caller:
    """One authenticated request."""

    request: Request
    parts: Parts
    principal: Principal

    def read(self, work: Callable[[Session], T]) -> T:
        """Run ``work`` in a short session that changes nothing."""
        with self.parts.database.read() as session:
            return work(session)

    def show(self, find: Callable[[Session], R], *, shape: Callable[[R], BaseModel]) -> Response:
        """Answer one row with its ETag; 304 if the client has this version already."""
        with self.parts.database.read() as session:
            row = find(session)
            body, etag = shape(row).model_dump_json(), _etag(row)
        if etag in self.request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers={"ETag": etag})
        return _json(body, status=200, headers={"ETag": etag})

    def answer(self, model: BaseModel, *, version: int) -> Response:
        """Answer a computed view of a row of this version."""
        return _json(model.model_dump_json(), status=200, headers={"ETag": f'"{version}"'})

    def write(
        self,
        work: Callable[[Session], R],
        *,
        shape: Callable[[R], BaseModel],
        status: int = 201,
        replay: Callable[[R], BaseModel] | None = None,
        dry_run: bool = False,
        key_required: bool = True,
    ) -> Response:
        """Make one change, once per ``Idempotency-Key``, and answer what it made.

        Args:
            work: the transaction script; gives the row to show.
            shape: the row's wire form, taken inside the transaction.
            status: 201 adds ``Location``.
            replay: what is stored and answered again, if it is less than ``shape`` shows.
            dry_run: make every check, change nothing, answer 200 without ids.
            key_required: refuse the request if it has no ``Idempotency-Key``.
        """
        key = self._idempotency_key(required=key_required and not dry_run)
        try:
            return self._written(
                work, shape=shape, replay=replay or shape, status=status, dry_run=dry_run, key=key
            )
        except BudgetRefused as refused:  # its transaction is over, the account is free again
            refused.suggest()
            raise

    def check_version(self, row: Versioned, *, required: bool) -> None:
        """Compare ``If-Match`` with the row's version."""
        given = self.request.headers.get("if-match")
        if given is None:
            if required:
                raise PreconditionRequired("Send If-Match with the ETag that you last saw.")
            return
        if given != "*" and _etag(row) not in [part.strip() for part in given.split(",")]:
            raise PreconditionFailed("The object has changed since you read it; read it again.")

    def _written(
        self,
        work: Callable[[Session], R],
        *,
        shape: Callable[[R], BaseModel],
        replay: Callable[[R], BaseModel],
        status: int,
        dry_run: bool,
        key: str | None,
    ) -> Response:
        with self.parts.database.write(keep=not dry_run) as session:
            if key is not None and not dry_run:
                earlier = idempotency.claim(
                    session, self.principal, key=key, request_hash=self._request_hash()
                )
                if earlier is not None:
                    headers = {**earlier.headers, "Idempotency-Replayed": "true"}
                    return _json(earlier.body, status=earlier.status, headers=headers)
            row = work(session)
            session.flush()
            if dry_run:
                return _json(_without_ids(replay(row)), status=200, headers={})
            body, headers = shape(row).model_dump_json(), {"ETag": _etag(row)}
            if status == 201:  # noqa: PLR2004 - Created
                headers["Location"] = f"{self.request.url.path}/{row.id}"
            if key is not None:
                kept = body if replay is shape else replay(row).model_dump_json()
                answer = idempotency.Answer(status=status, headers=headers, body=kept)
                idempotency.store(session, self.principal, key=key, answer=answer)
        return _json(body, status=status, headers=headers)

    def _idempotency_key(self, *, required: bool) -> str | None:
        key = self.request.headers.get("idempotency-key")
        if key is None and required:
            raise BadRequest(
                400,
                code="IDEMPOTENCY_KEY_REQUIRED",
                detail="Send an Idempotency-Key header, a text that is new for each new request.",
            )
        if key is not None and not (
            0 < len(key) <= _MAX_KEY and key.isascii() and key.isprintable()
        ):
            raise BadRequest(
                400,
                code="IDEMPOTENCY_KEY_INVALID",
                detail=f"Idempotency-Key is 1 to {_MAX_KEY} printable ASCII characters.",
            )
        return key

    def _request_hash(self) -> str:
        parsed = getattr(self.request, "_json", None)
        text = json.dumps(
            [self.request.method, self.request.url.path, parsed], sort_keys=True, allow_nan=False
        )
        return hashlib.sha256(text.encode()).hexdigest()


def authenticated(request: Request, parts: Annotated[Parts, Depends(parts_of)]) -> Caller:
    """The caller of a request with a good key, whatever its scopes."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    with parts.database.read() as session:
        principal = keys.authenticate(
            session,
            token=token.strip() if scheme.lower() == "bearer" else "",
            now=datetime.now(UTC),
        )
    return Caller(request, parts, principal)


AnyKey = Annotated[Caller, Depends(authenticated)]


def holds(scope: str) -> Any:
    """A dependency: the caller, whose key must hold ``scope``."""

    def check(caller: AnyKey) -> Caller:
        caller.principal.require(scope)
        return caller

    return Depends(check)


def _etag(row: Versioned) -> str:
    return f'"{row.version}"'


def _json(body: str, *, status: int, headers: Mapping[str, str]) -> Response:
    return Response(body, status_code=status, media_type="application/json", headers=dict(headers))


def _without_ids(model: BaseModel) -> str:
    """The answer of a dry run: what would be, without the ids of what is not."""

    def blank(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: None if k in ("id", "account_id") else blank(v) for k, v in value.items()}
        return value

    return json.dumps(blank(model.model_dump(mode="json")), allow_nan=False)
