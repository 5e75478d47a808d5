"""API keys on the wire."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field

from service.schemas.base import Wire

Scope = Literal[
    "datasets:read",
    "datasets:write",
    "budgets:write",
    "reservations:write",
    "jobs:read",
    "jobs:write",
    "runs:write",
    "checks:write",
    "certificates:issue",
    "audit:read",
    "keys:admin",
]


def _timestamp(value: object) -> object:
    """Refuse what is no RFC 3339 text: a bare number would be read as a Unix time."""
    if value is None or (isinstance(value, str) and "T" in value.upper()):
        return value
    raise ValueError("a time is a text such as 2030-01-01T00:00:00Z")


def _in_utc(value: datetime | None) -> datetime | None:
    try:
        return None if value is None else value.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("the time lies outside of the years 1 to 9999") from error


Timestamp = Annotated[
    AwareDatetime | None,
    Field(strict=False, description="RFC 3339, with its offset from UTC."),
    BeforeValidator(_timestamp),
    AfterValidator(_in_utc),
]


class ApiKeyCreate(Wire):
    """A new key; it can do no more than the key that creates it."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=20)]
    expires_at: Timestamp = None
    tenant: Annotated[
        str | None,
        Field(
            pattern=r"^[a-z0-9][a-z0-9-]{0,62}$",
            description="Another tenant; needs the installation's first key.",
        ),
    ] = None
    validate_only: bool = False


class ApiKey(Wire):
    """A key without its secret."""

    object: Literal["api_key"] = "api_key"
    id: str
    name: str
    tenant: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    secret: Annotated[
        str | None, Field(description="The token; only in the answer that makes it.")
    ] = None
