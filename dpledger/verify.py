"""Verification of certificates and of the log, without a server and without trust in one.

Reading files, the clock and Ed25519 are here; what is examined is in ``service.core.bundle``.
"""

import io
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpledger.errors import ClientError
from service.core import bundle, checkpoint, merkle
from service.core.accounting import epsilon_interval
from service.core.bundle import Step
from service.core.bundle_case import OLD_LIST, Policy
from service.core.certificate import PublicKey, parse_keys
from service.core.checkpoint import Checkpoint, Malformed
from service.core.merkle import Frontier

_MAX_FILES: Final = 200_000
_MAX_BYTES: Final = 2 * 2**30


def verify_bundle(
    data: bytes | Mapping[str, bytes],
    *,
    trusted_keys: Sequence[PublicKey] | None = None,
    now: datetime | None = None,
) -> tuple[Step, ...]:
    """Verify a certificate's bundle.

    Args:
        data: The zip file, or its files by their names.
        trusted_keys: The issuer's keys, from the issuer; None trusts nobody and says so.
        now: The time to judge validity at; the present one if None.

    Returns:
        Every numbered step with its outcome; the bundle is good if none failed.

    Raises:
        ClientError: The file is no zip file, or one that is too large.
    """
    policy = Policy(
        now=now or datetime.now(UTC),
        check_signature=verifies,
        epsilon_of=epsilon_interval,
        trusted_keys=trusted_keys,
    )
    files = _unzipped(data) if isinstance(data, bytes) else data
    return bundle.verify(files, policy=policy)


def read_bundle(path: Path) -> dict[str, bytes]:
    """The files of a bundle: of a zip file, or of the folder where it was unpacked.

    Raises:
        ClientError: No bundle, or one that is too large.
        OSError: It cannot be read.
    """
    if not path.is_dir():
        return _unzipped(path.read_bytes())
    found = {p.relative_to(path).as_posix(): p for p in path.rglob("*") if p.is_file()}
    _check_size(len(found), size=sum(file.stat().st_size for file in found.values()))
    return {name: file.read_bytes() for name, file in found.items()}


def certified(files: Mapping[str, bytes]) -> dict[str, Any] | None:
    """What the bundle's statement says, true or not; None if it cannot be read."""
    try:
        return bundle.certified(files)
    except Malformed:
        return None


def keys_of(text: bytes) -> tuple[PublicKey, ...]:
    """The keys of a key list.

    Raises:
        ClientError: No key list.
    """
    try:
        return parse_keys(text)
    except Malformed as error:
        raise ClientError(f"The key list cannot be read: {error.message}") from error


def opened(note: str, *, keys: Sequence[PublicKey], saved_list: bool = False) -> Checkpoint:
    """A checkpoint that one of the keys has signed.

    Args:
        note: The signed note.
        keys: Of the log.
        saved_list: The keys are from a list that may be older than the checkpoint.

    Raises:
        ClientError: It is not.
    """
    good = [key.public_key for key in keys if key.revoked_at is None]
    try:
        return checkpoint.open_checkpoint(note, public_keys=good, check_signature=verifies)
    except Malformed as error:
        hint = f" Or {OLD_LIST}." if saved_list else ""
        raise ClientError(f"The checkpoint does not verify: {error.message}{hint}") from error


def grown(frontier: Frontier, leaves: Iterable[dict[str, Any]], *, size: int) -> Frontier:
    """The tree with the service's leaves up to ``size`` added; each shown leaf is hashed again.

    Raises:
        ClientError: A leaf is not what its hash says, or not the next one.
    """
    for entry in leaves:
        if frontier.size == size:
            break
        if entry["index"] != frontier.size:
            raise ClientError(f"Leaf {frontier.size} should come next, not {entry['index']}.")
        found = bytes.fromhex(entry["leaf_sha256"])
        leaf = entry.get("leaf")
        if leaf is not None and merkle.leaf_hash(leaf.encode()) != found:
            raise ClientError(f"Leaf {entry['index']} is not what its hash says.")
        frontier, _ = merkle.append(frontier, found)
    return frontier


def consistent(old: Checkpoint, new: Checkpoint, *, hashes: Sequence[str]) -> bool:
    """True if the proof shows that the older log is the beginning of the newer one."""
    return old.origin == new.origin and merkle.verify_consistency(
        old.size,
        new=new.size,
        old_root=old.root,
        new_root=new.root,
        proof=[bytes.fromhex(text) for text in hashes],
    )


def verifies(public_key: bytes, /, *, signature: bytes, message: bytes) -> bool:
    """True if ``signature`` is the Ed25519 key's signature of ``message``."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _check_size(files: int, *, size: int) -> None:
    if files > _MAX_FILES or size > _MAX_BYTES:
        raise ClientError("The bundle is too large to be one.")


def _unzipped(data: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            _check_size(len(entries), size=sum(entry.file_size for entry in entries))
            names = [entry.filename for entry in entries]
            if len(names) != len(set(names)):
                raise ClientError("The bundle has two files of one name.")
            return {entry.filename: archive.read(entry) for entry in entries}
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise ClientError(f"The bundle is damaged: {error}") from error
