"""Whether the pool child runs a job: a file lock, which the kernel drops with its holder."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_POLL_S: Final = 0.05


class Busy:
    """A lock between a worker and its pool child."""

    def __init__(self, path: Path) -> None:
        """Use the file at ``path``; each worker has its own."""
        self._path = path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock for the length of a job."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Opened anew, so that the lock is this process's own and not shared through a fork.
        with self._path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def wait_until_free(self, *, timeout_s: float) -> None:
        """Return when nobody holds the lock, or the time is over."""
        if not self._path.exists():
            return
        deadline = time.monotonic() + timeout_s
        with self._path.open("w") as file:
            while time.monotonic() < deadline:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(_POLL_S)
                else:
                    return

    def remove(self) -> None:
        """Leave no file behind."""
        self._path.unlink(missing_ok=True)
