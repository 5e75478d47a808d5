"""API keys on the wire."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

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


class ApiKeyCreate(Wire):
    """A new key; it can do no more than the key that creates it."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=20)]
    expires_at: Annotated[datetime | None, Field(strict=False)] = None
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
