"""Statements, envelopes and key lists: what is accepted, and that nothing changed ever is."""

import base64
import hashlib
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from service.core import certificate
from service.core.canonical import canonical
from service.core.certificate import SECTIONS, Envelope, PublicKey, Subject
from service.core.checkpoint import Malformed
from service.signing import verifies

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
KEY_ID = hashlib.sha256(PUBLIC).hexdigest()
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LISTED = (PublicKey(key_id=KEY_ID, public_key=PUBLIC, created_at=NOON),)
PREDICATE = {name: {} for name in SECTIONS} | {"certificate_id": "cert_1"}
STATEMENT = certificate.statement([Subject(name="model", sha256="0" * 64)], predicate=PREDICATE)


def envelope(payload=STATEMENT):
    signature = KEY.sign(certificate.pae(payload))
    return Envelope(payload=payload, key_id=KEY_ID, signature=signature)


def accepted(text):
    parsed = certificate.parse_envelope(text)
    certificate.parse_statement(parsed.payload)
    return certificate.signer_of(parsed, keys=LISTED, check_signature=verifies)


def test_the_encoding_that_is_signed_is_the_one_of_dsse():
    # The example of the DSSE protocol, with our payload type.
    kind = certificate.PAYLOAD_TYPE
    assert certificate.pae(b"hello world") == (f"DSSEv1 {len(kind)} {kind} 11 hello world".encode())


def test_a_signed_statement_is_accepted_and_reads_back():
    text = envelope().text.encode()
    assert accepted(text).key_id == KEY_ID
    assert certificate.parse_envelope(text) == envelope()
    found = certificate.parse_statement(STATEMENT)
    assert found["predicate"] == PREDICATE
    assert found["subject"] == [{"name": "model", "digest": {"sha256": "0" * 64}}]


@given(at=st.integers(0, len(envelope().text.encode()) - 1), bit=st.integers(0, 7))
def test_an_envelope_with_one_changed_bit_is_refused(at, bit):
    changed = bytearray(envelope().text.encode())
    changed[at] ^= 1 << bit
    with pytest.raises(Malformed):
        accepted(bytes(changed))


@given(cut=st.integers(0, len(envelope().text.encode()) - 1))
def test_a_truncated_envelope_is_refused(cut):
    with pytest.raises(Malformed):
        accepted(envelope().text.encode()[:cut])


@pytest.mark.parametrize(
    "change",
    [
        {"payloadType": "text/plain"},
        {"signatures": []},
        {"signatures": None},
        {"signatures": [1]},
        {"payload": "!"},
        {"payload": None},
    ],
)
def test_what_is_no_envelope_is_refused(change):
    data = json.loads(envelope().text) | change
    with pytest.raises(Malformed):
        certificate.parse_envelope(canonical(data))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"\xff",
        STATEMENT + b" ",
        STATEMENT.replace(b"Statement/v1", b"Statement/v2"),
        STATEMENT.replace(b"privacy-certificate", b"other"),
        STATEMENT.replace(b'"trust":{},', b""),
        STATEMENT.replace(b'"trust":{},', b'"trust":{},"trust":{},'),
        b"[" * 100_000,
    ],
)
def test_what_is_no_statement_is_refused(payload):
    with pytest.raises(Malformed):
        certificate.parse_statement(payload)


def test_a_key_counts_only_for_its_time():
    key = LISTED[0]
    assert certificate.key_fault(key, at=NOON) is None
    assert "older" in (certificate.key_fault(key, at=NOON - timedelta(days=1)) or "")
    retired = PublicKey(
        key_id=KEY_ID, public_key=PUBLIC, created_at=NOON, retired_at=NOON + timedelta(days=1)
    )
    assert certificate.key_fault(retired, at=NOON) is None
    assert "retired" in (certificate.key_fault(retired, at=NOON + timedelta(days=2)) or "")
    revoked = PublicKey(key_id=KEY_ID, public_key=PUBLIC, created_at=NOON, revoked_at=NOON)
    assert "revoked" in (certificate.key_fault(revoked, at=NOON) or "")


def listed(**changes):
    key = {
        "key_id": KEY_ID,
        "public_key": base64.b64encode(PUBLIC).decode(),
        "created_at": "2026-01-01T12:00:00Z",
        "retired_at": None,
        "revoked_at": None,
    }
    return canonical({"keys": [key | changes]})


def test_a_key_list_reads_back():
    assert certificate.parse_keys(listed()) == LISTED


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b"[]",
        b'{"keys":[1]}',
        listed(key_id="0" * 64),
        listed(public_key="AAAA"),
        listed(created_at="yesterday"),
        listed(created_at="2026-01-01T12:00:00"),
        listed(created_at=None),
        listed(revoked_at="x"),
    ],
)
def test_what_is_no_key_list_is_refused(text):
    with pytest.raises(Malformed):
        certificate.parse_keys(text)


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_as_a_string_reads_back_equal_and_has_no_exponent(value):
    text = certificate.plain(value)
    assert text is not None
    assert float(text) == value
    assert "e" not in text.lower()


def test_a_decimal_keeps_its_digits_and_nothing_stays_nothing():
    assert certificate.plain(Decimal("1E-5")) == "0.00001"
    assert certificate.plain(None) is None
