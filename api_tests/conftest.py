"""Fixtures that all tests share: a migrated database, a gateway over it, its first key."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url
from starlette.testclient import TestClient

from api_tests.parts import Api, RecordingQueue, SharedCalculator
from api_tests.postgres import Postgres, postgres, postgres_url  # noqa: F401 - fixtures
from service.api.deps import Parts
from service.app import serve_with
from service.db.migrations.run import migrate
from service.db.session import Database
from service.objects import FolderStore
from service.operations.keys import create_first_key
from service.sealing import FileSealer
from service.settings import Settings
from service.signing import FileSigner
from service.telemetry import configure_logging


@pytest.fixture(autouse=True, scope="session")
def logging_as_in_production() -> None:
    """One JSON line an event; in particular no values of variables in tracebacks."""
    configure_logging("info")


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "dpledger.db"
    made = Database(f"sqlite:///{path}", pool_size=1)
    migrate(made)
    made.close()
    return path


@pytest.fixture(scope="session")
def migrated_template(postgres: Postgres) -> Iterator[str]:  # noqa: F811
    """The name of a migrated PostgreSQL database to copy."""
    with postgres.fresh_database() as url:
        made = Database(url, pool_size=1)
        migrate(made)
        made.close()
        yield make_url(url).database or ""


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A migrated, empty database: each test that uses one runs on both kinds."""
    with contextlib.ExitStack() as stack:
        if request.param == "sqlite":
            path = tmp_path / "dpledger.db"
            shutil.copy(request.getfixturevalue("migrated_file"), path)
            url = f"sqlite:///{path}"
        else:
            server = request.getfixturevalue("postgres")
            template = request.getfixturevalue("migrated_template")
            url = stack.enter_context(server.fresh_database(template=template))
        made = Database(url, pool_size=70)
        yield made
        made.close()


@pytest.fixture(scope="session")
def calculator() -> Iterator[SharedCalculator]:
    """One pool of processes for all tests: they hold no state."""
    made = SharedCalculator(processes=1, timeout_s=60)
    yield made
    made.stop()


@pytest.fixture
def queue() -> RecordingQueue:
    """A queue that remembers what was announced."""
    return RecordingQueue()


@pytest.fixture
def client(
    database: Database, queue: RecordingQueue, calculator: SharedCalculator, tmp_path: Path
) -> Iterator[TestClient]:
    """A gateway over the database, in this process."""
    parts = Parts(
        settings=Settings(data_dir=tmp_path, allowed_hosts=["localhost", "testserver"]),
        database=database,
        queue=queue,
        objects=FolderStore(tmp_path / "objects"),
        sealer=FileSealer(tmp_path / "sealed-log.key"),
        signer=FileSigner(tmp_path / "signing.key"),
        calculator=calculator,
    )
    with TestClient(serve_with(parts), raise_server_exceptions=False) as made:
        yield made


@pytest.fixture
def api(client: TestClient, database: Database) -> Api:
    """The administrator of the first tenant."""
    with database.write() as session:
        token = create_first_key(session).token
    return Api(client, token)


@pytest.fixture
def stranger(api: Api) -> Api:
    """The administrator of another tenant."""
    scopes = ["datasets:read", "datasets:write", "budgets:write", "reservations:write"]
    scopes += ["jobs:read", "jobs:write", "runs:write", "checks:write", "keys:admin"]
    answer = api.post("/v1/api-keys", {"name": "other", "scopes": scopes, "tenant": "other"})
    assert answer.status_code == 201, answer.text
    return Api(api.client, answer.json()["secret"])
