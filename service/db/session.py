"""Database sessions: the only place that begins and commits transactions.

A write is one transaction, begun with the write lock on SQLite, and committed before its
caller can see an answer. What must happen after a commit (ringing the queue) is registered
with ``after_commit`` and is dropped if the transaction rolls back. What must be the last thing
in a transaction (the lock that every writer wants) is registered with ``before_commit``.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Connection, create_engine, event, func, inspect, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.orm import Session

from service.core.errors import Unavailable

_BUSY_TIMEOUT_S: Final = 30
_AFTER_COMMIT: Final = "after_commit"
_BEFORE_COMMIT: Final = "before_commit"
_AWAY: Final = (OperationalError, InterfaceError)
_WRITE: Final = {"dpledger_write": True}


class Database:
    """One database, PostgreSQL or SQLite, behind ``read()`` and ``write()``."""

    def __init__(self, url: str, *, pool_size: int = 50) -> None:
        """Open a pool of at most ``pool_size`` connections (at least one a request thread)."""
        self.engine = _engine(url, pool_size=pool_size)
        # SQLite lets one writer in; the rest poll with growing sleeps and starve. Threads of
        # one process therefore queue here, and only processes meet at the file's lock.
        self._writer = threading.Lock() if self.engine.dialect.name == "sqlite" else None

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A short session that changes nothing."""
        with Session(self.engine, expire_on_commit=False) as session:
            yield session
            session.rollback()

    @contextmanager
    def write(self, *, keep: bool = True) -> Iterator[Session]:
        """One transaction: committed at the end of the block, rolled back on any error.

        Args:
            keep: False rolls back at the end, for a dry run that makes every check.

        Raises:
            Unavailable: the database did not take the transaction; nothing was stored.
        """
        with self._turn(), Session(self.engine.execution_options(**_WRITE)) as session:
            session.expire_on_commit = False
            try:
                yield session
                if not keep:
                    session.rollback()
                    return
                for last in session.info.pop(_BEFORE_COMMIT, []):
                    last()
                session.commit()
            except DBAPIError as error:
                session.rollback()
                if not isinstance(error, _AWAY):
                    raise
                raise Unavailable("The database did not take the change; try again.") from error
            hooks: list[Callable[[], None]] = session.info.pop(_AFTER_COMMIT, [])
        for hook in hooks:
            hook()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._writer is None:
            yield
            return
        if not self._writer.acquire(timeout=_BUSY_TIMEOUT_S):
            raise Unavailable("The database is busy; try again.")
        try:
            yield
        finally:
            self._writer.release()

    def close(self) -> None:
        """Close all pooled connections."""
        self.engine.dispose()


def after_commit(session: Session, hook: Callable[[], None]) -> None:
    """Run ``hook`` once the transaction of ``session`` is durable; never if it rolls back."""
    session.info.setdefault(_AFTER_COMMIT, []).append(hook)


def before_commit(session: Session, last: Callable[[], None]) -> None:
    """Run ``last`` inside the transaction of ``session``, after everything else in it.

    It does not run if the transaction is to be rolled back, nor for a dry run.
    """
    session.info.setdefault(_BEFORE_COMMIT, []).append(last)


def database_now(session: Session) -> datetime:
    """The database's clock, the one clock that leases of many machines agree on."""
    if session.get_bind().dialect.name == "sqlite":
        return datetime.now(UTC)
    return session.execute(select(func.clock_timestamp())).scalar_one().astimezone(UTC)


def _engine(url: str, *, pool_size: int) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        engine = create_engine(
            parsed,
            pool_size=pool_size,
            max_overflow=0,
            hide_parameters=True,  # errors are logged; what they were about stays out
            connect_args={"timeout": _BUSY_TIMEOUT_S, "check_same_thread": False},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    keepalive = {  # a cut network is noticed in seconds, not hours
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
        "connect_timeout": 10,
        # A process that is stopped inside a transaction (SIGSTOP, a frozen machine) keeps its
        # locks; after this long the server takes them away, and nobody waits for ever.
        "options": "-c idle_in_transaction_session_timeout=60s -c lock_timeout=30s",
    }
    return create_engine(
        parsed,
        pool_size=pool_size,
        max_overflow=0,
        pool_pre_ping=True,
        hide_parameters=True,
        connect_args=keepalive,
    )


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves, see _begin_sqlite
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        f"busy_timeout={_BUSY_TIMEOUT_S * 1000}",
    ):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    # A write takes the lock at once: a read that turns into a write later fails at random.
    write = connection.get_execution_options().get("dpledger_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def insert_unless_present(session: Session, table: type[Any], **values: Any) -> bool:
    """Insert a row; False if its key is taken (after waiting for the taker to commit)."""
    name = session.get_bind().dialect.name
    build = sqlite.insert if name == "sqlite" else postgresql.insert
    insert = build(table).values(**values).on_conflict_do_nothing()
    keys = inspect(table).primary_key
    return session.execute(insert.returning(*keys)).first() is not None
