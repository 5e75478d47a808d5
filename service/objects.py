"""Content-addressed storage of artifacts, log chunks and job logs."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

_BLOCK: Final = 2**20


class ObjectStore(Protocol):
    """Objects are bytes named by their SHA-256; they are written once and never changed."""

    def put(self, data: bytes) -> str:
        """Store ``data`` durably and give its hex SHA-256."""
        ...

    def get(self, digest: str) -> bytes:
        """The bytes of an object; their digest is checked."""
        ...

    def stream(self, digest: str) -> Iterator[bytes]:
        """The bytes of an object in blocks."""
        ...


class FolderStore:
    """Objects as files below one folder, ``ab/cdef…``."""

    def __init__(self, root: Path) -> None:
        """Keep objects below ``root``, which is made if need be."""
        self._root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def put(self, data: bytes) -> str:
        """Write beside the final name, flush to disk, then rename: never half an object."""
        digest = hashlib.sha256(data).hexdigest()
        target = self._path(digest)
        if target.exists():
            return digest
        target.parent.mkdir(exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(target)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)
        return digest

    def get(self, digest: str) -> bytes:
        """Read an object and check that it is what its name says."""
        data = self._path(digest).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise OSError(f"object {digest} is damaged")
        return data

    def stream(self, digest: str) -> Iterator[bytes]:
        """Read an object in blocks of a mebibyte."""
        with self._path(digest).open("rb") as file:
            while block := file.read(_BLOCK):
                yield block

    def _path(self, digest: str) -> Path:
        assert len(digest) == 64, "a hex SHA-256"  # noqa: PLR2004
        return self._root / digest[:2] / digest[2:]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
