"""Database work of a supervisor: tried again while its lease on the job may still hold."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from service.core.errors import Conflict, Unavailable
from service.db.session import Database

T = TypeVar("T")

_PAUSE_S: Final = 0.25
_AWAY: Final = (Unavailable, OperationalError, InterfaceError, PoolTimeout)


class Lost(Exception):
    """The job is not ours any more, or we cannot know: stop, and change nothing."""


class Patience:
    """Short transactions that outlive a short absence of the database.

    An answer may be lost after the commit, so what is tried again must be idempotent.
    """

    def __init__(self, database: Database, patience_s: float) -> None:
        """Give up after ``patience_s`` seconds without the database: the lease has ended."""
        self._database = database
        self._patience_s = patience_s
        self._last_contact = time.monotonic()

    def read(self, work: Callable[[Session], T]) -> T | None:
        """One look, tried once: None if the database is away, for a short while yet.

        Raises:
            Lost: the lease is somebody else's, or the database was away for too long.
        """
        try:
            with self._database.read() as session:
                return self._done(work(session))
        except Conflict as error:
            raise _refused(error) from error
        except _AWAY as error:
            self._check_time(error)
            return None

    def write(self, work: Callable[[Session], T]) -> T:
        """One transaction, tried again while the lease may hold.

        Raises:
            Lost: the lease is somebody else's, or the database was away for too long.
            Conflict: what the transaction refuses.
        """
        while True:
            try:
                with self._database.write() as session:
                    result = work(session)
                return self._done(result)
            except Conflict as error:
                raise _refused(error) from error
            except _AWAY as error:
                self._check_time(error)
            time.sleep(_PAUSE_S)

    def _done(self, result: T) -> T:
        self._last_contact = time.monotonic()
        return result

    def _check_time(self, error: Exception) -> None:
        if time.monotonic() - self._last_contact > self._patience_s:
            raise Lost("the database was away for longer than the lease") from error


def _refused(error: Conflict) -> Exception:
    return Lost("the lease was fenced off") if error.code == "LEASE_FENCED" else error
