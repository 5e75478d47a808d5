"""Certificates: an in-toto Statement about a privacy guarantee, in a DSSE envelope.

The bytes that are signed are made once (RFC 8785) and kept; whoever verifies never serialises
again. Numbers that bound privacy are decimal strings, so that no reader's float rounds them.

Source: in-toto Attestation Framework, Statement v1; DSSE v1 (secure-systems-lab/dsse).
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, cast

from service.core.canonical import canonical
from service.core.checkpoint import CheckSignature, Malformed

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://dpledger.dev/privacy-certificate/v1"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
_ED25519_PREFIX: Final = bytes.fromhex("302a300506032b6570032100")
SECTIONS: Final = (
    "accounting",
    "budget",
    "certificate_id",
    "check_id",
    "claim",
    "dataset",
    "findings",
    "guarantee",
    "issuer",
    "log",
    "mechanisms",
    "not_examined",
    "randomness",
    "stop",
    "trust",
    "tuning",
    "unprotected",
)
UNPROTECTED: Final = (
    "the model's architecture and hyper-parameters",
    "metrics, which are of public test data",
    "the number of steps and the coarse time of each chunk of the log",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a certificate is about: something named, by its SHA-256."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A DSSE envelope with one signature.

    Args:
        payload: the bytes that it carries.
        key_id: the key that is said to have signed.
        signature: over ``pae(payload)``.
    """

    payload: bytes
    key_id: str
    signature: bytes

    @property
    def text(self) -> str:
        """The envelope as JSON."""
        return canonical(
            {
                "payload": base64.b64encode(self.payload).decode(),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [
                    {"keyid": self.key_id, "sig": base64.b64encode(self.signature).decode()}
                ],
            }
        ).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """One key of an issuer's list.

    Args:
        key_id: hex SHA-256 of ``public_key``.
        public_key: 32 raw Ed25519 bytes.
        created_at: signatures before it are not the key's.
        retired_at: it signs nothing new from then on; what it signed stays good.
        revoked_at: nothing that it ever signed counts any more.
    """

    key_id: str
    public_key: bytes
    created_at: datetime
    retired_at: datetime | None = None
    revoked_at: datetime | None = None


def pae(payload: bytes) -> bytes:
    """What is signed for a payload: DSSE's pre-authentication encoding."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def statement(subjects: Sequence[Subject], *, predicate: Mapping[str, Any]) -> bytes:
    """The canonical bytes of the statement; every section of the predicate must be there."""
    assert subjects
    assert sorted(predicate) == sorted(SECTIONS), set(predicate) ^ set(SECTIONS)
    return canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": s.name, "digest": {"sha256": s.sha256}} for s in subjects],
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        }
    )


def parse_envelope(text: bytes) -> Envelope:
    """The envelope of a JSON text.

    Raises:
        Malformed: no DSSE envelope with one signature and the payload type of in-toto.
    """
    data = as_object(_json(text, what="The envelope"), what="The envelope")
    signatures = data.get("signatures")
    if data.get("payloadType") != PAYLOAD_TYPE:
        raise Malformed(f"The payload type is not {PAYLOAD_TYPE}.")
    if not isinstance(signatures, list) or len(cast("list[Any]", signatures)) != 1:
        raise Malformed("A certificate has one signature.")
    first = as_object(cast("list[Any]", signatures)[0], what="A signature")
    return Envelope(
        payload=_bytes(data.get("payload")),
        key_id=str(first.get("keyid", "")),
        signature=_bytes(first.get("sig")),
    )


def parse_statement(payload: bytes) -> dict[str, Any]:
    """The statement of a payload.

    Raises:
        Malformed: not canonical JSON, or not a statement with this predicate.
    """
    found = as_object(canonical_json(payload, what="The statement"), what="The statement")
    if found.get("_type") != STATEMENT_TYPE:
        raise Malformed("The payload is no in-toto Statement v1.")
    if found.get("predicateType") != PREDICATE_TYPE:
        raise Malformed("The statement is no privacy certificate.")
    predicate = as_object(found.get("predicate"), what="The predicate")
    missing = sorted(set(SECTIONS) - set(predicate))
    if missing:
        raise Malformed(f"The certificate lacks {', '.join(missing)}.")
    return found


def parse_keys(text: bytes) -> tuple[PublicKey, ...]:
    """The keys of a key list.

    Raises:
        Malformed: not a key list, or a key that is not named by its own digest.
    """
    data = as_object(_json(text, what="The key list"), what="The key list")
    listed = data.get("keys")
    if not isinstance(listed, list):
        raise Malformed("The key list has no keys.")
    found: list[PublicKey] = []
    for item in cast("list[Any]", listed):
        entry = as_object(item, what="A key")
        public = _bytes(entry.get("public_key"))
        if len(public) != 32 or hashlib.sha256(public).hexdigest() != entry.get("key_id"):
            raise Malformed("A key is not named by its digest.")
        found.append(
            PublicKey(
                key_id=entry["key_id"],
                public_key=public,
                created_at=as_time(entry.get("created_at")),
                retired_at=_time_or_none(entry.get("retired_at")),
                revoked_at=_time_or_none(entry.get("revoked_at")),
            )
        )
    return tuple(found)


def signer_of(
    envelope: Envelope, *, keys: Sequence[PublicKey], check_signature: CheckSignature
) -> PublicKey:
    """The key of the list that signed the envelope.

    Raises:
        Malformed: no key of that name, or its signature does not verify.
    """
    named = [key for key in keys if key.key_id == envelope.key_id]
    if not named:
        raise Malformed(f"The key {envelope.key_id} is not on the list.")
    if not check_signature(
        named[0].public_key, signature=envelope.signature, message=pae(envelope.payload)
    ):
        raise Malformed("The signature does not verify: the certificate was changed.")
    return named[0]


def key_fault(key: PublicKey, *, at: datetime) -> str | None:
    """Why what the key signed at that time does not count; None if it does."""
    if key.revoked_at is not None:
        return f"The key was revoked at {key.revoked_at.isoformat()}."
    if at < key.created_at.replace(microsecond=0):
        return "The certificate is older than the key that signed it."
    if key.retired_at is not None and at > key.retired_at:
        return f"The key was retired at {key.retired_at.isoformat()}, before it signed."
    return None


def pem(public_key: bytes) -> bytes:
    """An Ed25519 public key as openssl reads it: a fixed prefix and the 32 bytes (RFC 8410)."""
    encoded = base64.b64encode(_ED25519_PREFIX + public_key)
    return b"-----BEGIN PUBLIC KEY-----\n" + encoded + b"\n-----END PUBLIC KEY-----\n"


def plain(value: float | Decimal | None) -> str | None:
    """A number as a decimal string in plain notation that reads back equal; None stays."""
    if value is None:
        return None
    return format(value if isinstance(value, Decimal) else Decimal(repr(float(value))), "f")


def canonical_json(data: bytes, *, what: str) -> Any:
    """The value of canonical JSON.

    Raises:
        Malformed: anything else; a repeated name or a changed byte is not canonical either.
    """
    value = _json(data, what=what)
    if canonical(value) != data:
        raise Malformed(f"{what} is not canonical JSON.")
    return value


def as_object(value: Any, *, what: str) -> dict[str, Any]:
    """The value, which must be a JSON object."""
    if not isinstance(value, dict):
        raise Malformed(f"{what} is a JSON object.")
    return cast("dict[str, Any]", value)


def as_time(value: Any) -> datetime:
    """An RFC 3339 time with its offset."""
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError as error:
        raise Malformed("A time is RFC 3339.") from error
    if found.tzinfo is None:
        raise Malformed("A time says its offset.")
    return found


def _time_or_none(value: Any) -> datetime | None:
    return None if value is None else as_time(value)


def _json(data: bytes, *, what: str) -> Any:
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError) as error:  # also of bytes that are no UTF-8
        raise Malformed(f"{what} is no JSON.") from error


def _bytes(value: Any) -> bytes:
    try:
        data = base64.b64decode(str(value), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Malformed("This is not base64.") from error
    if base64.b64encode(data).decode() != value:  # one text for each value
        raise Malformed("This is not canonical base64.")
    return data
