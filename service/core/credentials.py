"""API keys: their format, their scopes, and who a request comes from.

A token reads ``dpl_<key ulid>_<secret>``. The id finds the row, the secret is compared by
its SHA-256 in constant time. The secret has 256 random bits, so a fast hash is enough:
there is nothing to guess from.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final

from service.core.errors import Forbidden

SCOPES: Final = (
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
)
#: May create keys for other tenants; given to the first key of an installation only.
TENANTS_ADMIN: Final = "tenants:admin"

_TOKEN = re.compile(r"dpl_([0-9A-HJKMNP-TV-Z]{26})_([A-Za-z0-9_-]{43})\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks: one API key of one tenant."""

    key_id: str
    tenant_id: str
    scopes: frozenset[str]

    def require(self, scope: str) -> None:
        """Raise ``Forbidden`` unless the key holds ``scope``."""
        if scope not in self.scopes:
            raise Forbidden(f"This key lacks the scope {scope}.", fields={"required_scope": scope})


def format_token(*, key_id: str, secret: str) -> str:
    """The token that is shown once, at the creation of a key."""
    return f"dpl_{key_id.removeprefix('key_')}_{secret}"


def parse_token(token: str) -> tuple[str, str] | None:
    """(key id, secret) of a well-formed token, else None."""
    match = _TOKEN.match(token)
    return (f"key_{match[1]}", match[2]) if match else None


def hash_secret(secret: str) -> str:
    """The hex SHA-256 that is stored in place of the secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def secret_matches(secret: str, *, stored_hash: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(hash_secret(secret), stored_hash)
