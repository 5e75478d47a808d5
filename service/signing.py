"""Signing with Ed25519: a protocol for key services, and a key file for embedded installations.

What is signed names its key by the SHA-256 of the public key. A retired key's public half is
kept in the database (operations/signing_keys.py): what it signed can be verified for ever.
"""

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_SEED_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A signature, and the raw public key that verifies it."""

    public_key: bytes
    signature: bytes

    @property
    def key_id(self) -> str:
        """The key's name."""
        return key_id_of(self.public_key)


class Signer(Protocol):
    """Signs with the newest key of an installation; a KMS or HSM fits behind it."""

    def public_key(self) -> bytes:
        """The raw Ed25519 public key that signs now."""
        ...

    def sign(self, message: bytes) -> Signed:
        """Sign; the answer says with which key, for it may have been rotated meanwhile."""
        ...


class FileSigner:
    """A ``Signer`` whose key lies in a file that only its owner may read."""

    def __init__(self, key_file: Path) -> None:
        """Use the key of ``key_file``; it is made at its first use."""
        self._file = key_file

    def public_key(self) -> bytes:
        """The raw public key."""
        return self._key().public_key().public_bytes_raw()

    def sign(self, message: bytes) -> Signed:
        """Sign with the key that is in the file now: a rotation needs no restart."""
        key = self._key()
        return Signed(public_key=key.public_key().public_bytes_raw(), signature=key.sign(message))

    def rotate(self) -> bytes:
        """Put a fresh key into the place of the old one; gives the new public key."""
        beside = _written_beside(self._file)
        beside.replace(self._file)
        return self.public_key()

    def _key(self) -> Ed25519PrivateKey:
        if not self._file.exists():
            beside = _written_beside(self._file)
            try:
                os.link(beside, self._file)  # of two processes that start at once one key wins
            except FileExistsError:
                pass
            finally:
                beside.unlink()
        seed = self._file.read_bytes()
        if len(seed) != _SEED_BYTES:
            raise OSError(f"{self._file} is not an Ed25519 seed of {_SEED_BYTES} bytes")
        return Ed25519PrivateKey.from_private_bytes(seed)


def key_id_of(public_key: bytes) -> str:
    """The name of a key: the hex SHA-256 of its 32 raw bytes."""
    return hashlib.sha256(public_key).hexdigest()


def verifies(public_key: bytes, /, *, signature: bytes, message: bytes) -> bool:
    """True if ``signature`` is the Ed25519 key's signature of ``message``."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _written_beside(target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(secrets.token_bytes(_SEED_BYTES))
        file.flush()
        os.fsync(file.fileno())
    return beside
