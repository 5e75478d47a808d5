"""Encryption at rest of what only an auditor may see (R25).

AES-256-GCM under one random key, kept in a file beside the data and never in the database:
a copy of the database or of the objects alone tells nothing. What a sealed object belongs to
is authenticated with it, so that one cannot be put in the place of another.
"""

import hmac
import os
import secrets
from pathlib import Path
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_VERSION: Final = b"DPSEAL1\n"
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


class Sealer(Protocol):
    """Seals and opens bytes that belong to a named place."""

    def seal(self, data: bytes, *, place: str) -> bytes:
        """The ciphertext of ``data``; another one each time."""
        ...

    def open(self, sealed: bytes, *, place: str) -> bytes:
        """The data that was sealed for ``place``."""
        ...

    def commitment(self, data: bytes, *, place: str) -> str:
        """A hiding commitment to ``data`` as hex, under a key of the place's own."""
        ...


class FileSealer:
    """A ``Sealer`` whose key lies in a file that only its owner may read."""

    def __init__(self, key_file: Path) -> None:
        """Read the key, or make it at the first use of an installation.

        Raises:
            OSError: the file is not a key.
        """
        key = _read_or_create(key_file)
        self._cipher = AESGCM(key)
        self._commitments = hmac.digest(key, b"dpledger commitments v1", "sha256")

    def seal(self, data: bytes, *, place: str) -> bytes:
        """Encrypt under a fresh random nonce: 2^32 objects under one key stay safe."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, data, _VERSION + place.encode())

    def open(self, sealed: bytes, *, place: str) -> bytes:
        """Decrypt, and check that nothing was changed or moved.

        Raises:
            OSError: damaged, sealed for another place, or under another key.
        """
        head = len(_VERSION) + _NONCE_BYTES
        nonce = sealed[len(_VERSION) : head]
        if not sealed.startswith(_VERSION) or len(nonce) != _NONCE_BYTES:
            raise OSError(f"the sealed object of {place} is damaged")
        try:
            return self._cipher.decrypt(nonce, sealed[head:], _VERSION + place.encode())
        except InvalidTag as error:
            raise OSError(f"the sealed object of {place} is damaged") from error

    def commitment(self, data: bytes, *, place: str) -> str:
        """HMAC-SHA256 under the place's key, which an auditor can be shown without the others.

        Whoever holds all records but one can hash both candidates; without the key, that
        tells nothing (R25).
        """
        own = hmac.digest(self._commitments, place.encode(), "sha256")
        return hmac.digest(own, data, "sha256").hex()


def _read_or_create(key_file: Path) -> bytes:
    key_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not key_file.exists():
        _create(key_file)
    key = key_file.read_bytes()
    if len(key) != _KEY_BYTES:
        raise OSError(f"{key_file} is not a key of {_KEY_BYTES} bytes")
    return key


def _create(key_file: Path) -> None:
    """Write beside, then link: of two processes that start at once one key wins, whole."""
    beside = key_file.with_name(f".{key_file.name}.{secrets.token_hex(8)}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(beside, key_file)
        except FileExistsError:
            return
    finally:
        beside.unlink()
