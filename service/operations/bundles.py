"""Bundles: everything that verifies one certificate offline, in one zip file.

The rows are read in a short session; the chunks' objects are read afterwards.
"""

import base64
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.core import bundle_case as names
from service.core import checkpoint
from service.core.canonical import canonical
from service.core.certificate import (
    PublicKey,
    pae,
    parse_envelope,
    parse_statement,
    pem,
)
from service.core.checkpoint import parse_checkpoint
from service.core.credentials import Principal
from service.db.tables import Certificate, LogEntry
from service.objects import ObjectStore
from service.operations import log, signing_keys
from service.operations.noise_chunks import chunks_of
from service.operations.owned import get_owned
from service.signing import Signer

_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)  # a bundle's bytes depend on its content alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The files of a bundle, and the objects that are yet to be read."""

    certificate_id: str
    files: Mapping[str, bytes]
    objects: Mapping[str, str]


def gather(
    session: Session, principal: Principal, *, certificate_id: str, signer: Signer
) -> Bundle:
    """All that the bundle of a certificate holds, under the log's present checkpoint.

    Raises:
        NotFound: no such certificate.
    """
    row = get_owned(session, principal, Certificate, certificate_id)
    envelope = parse_envelope(row.envelope.encode())
    predicate: dict[str, Any] = parse_statement(envelope.payload)["predicate"]
    stated = predicate["log"]
    named = [entry["index"] for entry in stated["entries"]]
    leaves = _leaves(session, row, named)
    point = log.head(session).checkpoint
    note = log.signed_checkpoint(point, signer=signer)
    old = parse_checkpoint(stated["checkpoint"])
    _, hashes = log.consistency_proof(session, old=old.size, new=point.size)
    keys = signing_keys.known(session, signer)
    files = {
        names.ENVELOPE: row.envelope.encode(),
        names.PAE: pae(envelope.payload),
        names.SIGNATURE: envelope.signature,
        names.CHECKPOINT: note.encode(),
        names.CONSISTENCY: canonical(
            {"from": old.size, "to": point.size, "hashes": [h.hex() for h in hashes]}
        ),
        names.KEYS: json.dumps(key_list(keys, origin=point.origin), indent=1).encode(),
        names.GUIDE: _guide(row.id, key_id=row.signing_key_id, leaf=leaves[-1].index),
        **{names.key_name(key.key_id): pem(key.public_key) for key in keys},
    }
    for leaf in leaves:
        _, path = log.inclusion_proof(session, index=leaf.index, size=point.size)
        files[names.leaf_name(leaf.index)] = leaf.leaf.encode()
        proof = checkpoint.tlog_proof(leaf.index, hashes=path, note=note)
        files[names.proof_name(leaf.index)] = proof.encode()
    objects: dict[str, str] = {}
    if stated["chunks"] and row.subject_id is not None:
        for chunk in chunks_of(session, row.subject_id):
            place = (chunk.first_step, chunk.end_step)
            files[names.runs_name(*place)] = canonical(chunk.summary)
            objects[names.parquet_name(*place)] = chunk.released_object
    return Bundle(certificate_id=row.id, files=files, objects=objects)


def zipped(bundle: Bundle, *, objects: ObjectStore) -> bytes:
    """The bundle as a zip file.

    Raises:
        OSError: a chunk is missing or damaged.
    """
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, data in sorted(bundle.files.items()):
            _write(archive, name, data, method=zipfile.ZIP_DEFLATED)
        for name, digest in sorted(bundle.objects.items()):
            _write(archive, name, objects.get(digest), method=zipfile.ZIP_STORED)
    return sink.getvalue()


def key_list(keys: Sequence[PublicKey], *, origin: str) -> dict[str, Any]:
    """The list of an installation's public keys, as it is published and bundled."""
    return {
        "object": "key_list",
        "origin": origin,
        "keys": [
            {
                "key_id": key.key_id,
                "algorithm": "ed25519",
                "public_key": base64.b64encode(key.public_key).decode(),
                "verifier_key": checkpoint.verifier_key(origin, key.public_key),
                "state": _state(key),
                "created_at": _time(key.created_at),
                "retired_at": _time(key.retired_at),
                "revoked_at": _time(key.revoked_at),
            }
            for key in keys
        ],
    }


def _leaves(session: Session, row: Certificate, named: Sequence[int]) -> list[LogEntry]:
    """The leaves that the certificate names, and those about itself, which come last."""
    found: dict[int, LogEntry] = {}
    for start in range(0, len(named), 500):
        some = named[start : start + 500]
        query = select(LogEntry).where(
            LogEntry.index.in_(some), LogEntry.tenant_id == row.tenant_id
        )
        found |= {entry.index: entry for entry in session.scalars(query)}
    own = log.entries_about(session, tenant_id=row.tenant_id, subject_ids=[row.id])
    return [*(found[index] for index in named), *own]


def _guide(certificate_id: str, *, key_id: str, leaf: int) -> bytes:
    """VERIFY.md, with the names of this bundle's files in its commands."""
    text = resources.files("service").joinpath("VERIFY.md").read_text(encoding="utf-8")
    for word, value in (
        ("@CERTIFICATE@", certificate_id),
        ("@KEY@", key_id),
        ("@LEAF@", str(leaf)),
    ):
        text = text.replace(word, value)
    return text.encode()


def _write(archive: zipfile.ZipFile, name: str, data: bytes, *, method: int) -> None:
    entry = zipfile.ZipInfo(name, date_time=_LONG_AGO)
    entry.compress_type = method
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data)


def _state(key: PublicKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "active" if key.retired_at is None else "retired"


def _time(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat().replace("+00:00", "Z")
