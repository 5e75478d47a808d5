"""The installation's signing keys: which there are, which were retired, which were revoked.

The private half of the newest key is behind a ``Signer``; the database keeps every public
half, so that what an older key signed can be verified for ever. Changes are leaves of the log.
"""

import base64
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.core.certificate import PublicKey
from service.core.errors import Conflict, NotFound
from service.db.session import insert_unless_present
from service.db.tables import SigningKey
from service.operations import log
from service.signing import FileSigner, Signer, key_id_of

#: Leaves about signing keys belong to the installation, not to a tenant.
INSTALLATION = "installation"


def register(session: Session, public_key: bytes) -> str:
    """Keep the public key that signs now, and retire the one before it; gives its name.

    Raises:
        Conflict: SIGNING_KEY_REVOKED, it was revoked: rotate it first.
    """
    row = _keep(session, public_key)
    if row.revoked_at is not None:
        raise Conflict("The signing key was revoked; rotate it.", code="SIGNING_KEY_REVOKED")
    return row.id


def rotate(session: Session, signer: FileSigner) -> str:
    """Make a new key, and retire the old one; gives the new one's name.

    The old key is kept first: what it has signed must stay verifiable.
    """
    _keep(session, signer.public_key())
    return register(session, signer.rotate())


def revoke(session: Session, *, key_id: str, reason: str) -> None:
    """Say that nothing a key ever signed counts any more; again changes nothing.

    Raises:
        NotFound: no such key.
    """
    row = session.get(SigningKey, key_id)
    if row is None:
        raise NotFound(f"There is no signing key {key_id!r} here.")
    if row.revoked_at is None:
        row.revoked_at = datetime.now(UTC)
        row.retired_at = row.retired_at or row.revoked_at
        row.revocation_reason = reason
        _log(session, row.id, action="revoked")


def known(session: Session, signer: Signer) -> tuple[PublicKey, ...]:
    """Every key, oldest first; also the present one, if it has not signed a certificate yet."""
    rows = session.scalars(select(SigningKey).order_by(SigningKey.created_at, SigningKey.id)).all()
    found = [
        PublicKey(
            key_id=row.id,
            public_key=base64.b64decode(row.public_key),
            created_at=row.created_at,
            retired_at=row.retired_at,
            revoked_at=row.revoked_at,
        )
        for row in rows
    ]
    present = signer.public_key()
    if key_id_of(present) not in {key.key_id for key in found}:
        found.append(
            PublicKey(key_id=key_id_of(present), public_key=present, created_at=datetime.now(UTC))
        )
    return tuple(found)


def _keep(session: Session, public_key: bytes) -> SigningKey:
    key_id = key_id_of(public_key)
    now = datetime.now(UTC)
    fresh = insert_unless_present(
        session,
        SigningKey,
        id=key_id,
        public_key=base64.b64encode(public_key).decode(),
        created_at=now,
    )
    if fresh:
        for row in session.scalars(
            select(SigningKey).where(SigningKey.id != key_id, SigningKey.retired_at.is_(None))
        ):
            row.retired_at = now
            _log(session, row.id, action="retired")
        _log(session, key_id, action="created")
    return session.get_one(SigningKey, key_id)


def _log(session: Session, key_id: str, *, action: str) -> None:
    body = {"action": action, "key_id": key_id}
    log.append(session, "signing_key", body, tenant_id=INSTALLATION, subject_id=key_id)
