"""API keys: create, list, rotate, revoke, and find out who asks."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from service.core.credentials import (
    SCOPES,
    TENANTS_ADMIN,
    Principal,
    format_token,
    hash_secret,
    parse_token,
    secret_matches,
)
from service.core.errors import Conflict, Forbidden, InvalidInput, Unauthenticated
from service.db.ids import new_id
from service.db.tables import ApiKey
from service.operations import log
from service.operations.owned import get_owned

#: The tenant of an installation's first key.
FIRST_TENANT = "default"


@dataclass(frozen=True, slots=True)
class FreshKey:
    """A key together with its token, which exists only in this answer."""

    row: ApiKey
    token: str

    @property
    def id(self) -> str:
        """The key's id."""
        return self.row.id

    @property
    def version(self) -> int:
        """The key's version."""
        return self.row.version


def authenticate(session: Session, *, token: str, now: datetime) -> Principal:
    """Who holds ``token``.

    Raises:
        Unauthenticated: no token, a malformed or unknown one, one that has ended.
    """
    if not token:
        raise Unauthenticated("Send the header Authorization: Bearer dpl_….")
    parsed = parse_token(token)
    row = session.get(ApiKey, parsed[0]) if parsed else None
    if parsed is None or row is None or not secret_matches(parsed[1], stored_hash=row.secret_hash):
        raise Unauthenticated("This API key is not known.")
    if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
        raise Unauthenticated("This API key has ended.", code="KEY_ENDED")
    return Principal(key_id=row.id, tenant_id=row.tenant_id, scopes=frozenset(row.scopes))


def create_first_key(session: Session) -> FreshKey:
    """The administrator's key of a new installation: every scope, and other tenants' keys."""
    return _add(
        session,
        name="administrator",
        tenant_id=FIRST_TENANT,
        scopes=[*SCOPES, TENANTS_ADMIN],
        expires_at=None,
        created_by="bootstrap",
    )


def create_key(
    session: Session,
    principal: Principal,
    *,
    name: str,
    scopes: Iterable[str],
    expires_at: datetime | None,
    tenant: str | None = None,
) -> FreshKey:
    """Create a key that can do no more than the key that creates it.

    Raises:
        Forbidden: a scope that the creator lacks, or another tenant without tenants:admin.
        InvalidInput: an end that has passed.
    """
    wanted = sorted(set(scopes))
    if tenant is not None and tenant != principal.tenant_id:
        principal.require(TENANTS_ADMIN)
    _require_all(principal, wanted)
    if expires_at is not None and expires_at <= datetime.now(UTC):
        raise InvalidInput("expires_at lies in the past.", pointer="/expires_at")
    return _add(
        session,
        name=name,
        tenant_id=tenant or principal.tenant_id,
        scopes=wanted,
        expires_at=expires_at,
        created_by=principal.key_id,
    )


def rotate_key(session: Session, principal: Principal, *, key_id: str) -> FreshKey:
    """Give the key a new secret; the old one ends at once.

    Raises:
        Forbidden: the key holds a scope that the caller lacks; its secret would give it.
        Conflict: the key is revoked.
    """
    row = get_owned(session, principal, ApiKey, key_id, lock=True)
    _require_all(principal, row.scopes)
    if row.revoked_at is not None:
        raise Conflict("This key is revoked; create a new one.", code="KEY_ENDED")
    secret = secrets.token_urlsafe(32)
    row.secret_hash = hash_secret(secret)
    row.version += 1
    _log(session, row, action="rotated", by=principal.key_id)
    return FreshKey(row, format_token(key_id=row.id, secret=secret))


def revoke_key(session: Session, principal: Principal, *, key_id: str) -> ApiKey:
    """End the key for ever; revoking it again changes nothing."""
    row = get_owned(session, principal, ApiKey, key_id, lock=True)
    if row.revoked_at is None:
        row.revoked_at = datetime.now(UTC)
        row.version += 1
        _log(session, row, action="revoked", by=principal.key_id)
    return row


def _require_all(principal: Principal, scopes: Iterable[str]) -> None:
    for scope in scopes:
        if scope not in principal.scopes:
            raise Forbidden(
                f"A key cannot give {scope}, which it lacks.", fields={"required_scope": scope}
            )


def _add(
    session: Session,
    *,
    name: str,
    tenant_id: str,
    scopes: list[str],
    expires_at: datetime | None,
    created_by: str,
) -> FreshKey:
    secret = secrets.token_urlsafe(32)
    row = ApiKey(
        id=new_id("key"),
        tenant_id=tenant_id,
        created_at=datetime.now(UTC),
        created_by=created_by,
        version=1,
        name=name,
        scopes=scopes,
        secret_hash=hash_secret(secret),
        expires_at=expires_at,
        revoked_at=None,
    )
    session.add(row)
    _log(session, row, action="created", by=created_by)
    return FreshKey(row, format_token(key_id=row.id, secret=secret))


def _log(session: Session, row: ApiKey, *, action: str, by: str) -> None:
    """Leave a leaf about the key; nothing of its secret, not even the hash."""
    body = {"action": action, "key_id": row.id, "scopes": row.scopes, "by": by}
    log.append(session, "api_key", body, tenant_id=row.tenant_id, subject_id=row.id)
