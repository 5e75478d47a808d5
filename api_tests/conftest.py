"""Fixtures that all tests share: a migrated database, a gateway over it, its first key."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from api_tests.parts import Api, RecordingQueue
from api_tests.postgres import postgres, postgres_url  # noqa: F401 - fixtures
from service.api.deps import Parts
from service.app import serve_with
from service.calculator import Calculator
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


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A migrated, empty database: each test that uses one runs on both kinds."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'dpledger.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    made = Database(url, pool_size=70)
    migrate(made)
    yield made
    made.close()


@pytest.fixture
def queue() -> RecordingQueue:
    """A queue that remembers what was announced."""
    return RecordingQueue()


@pytest.fixture
def client(database: Database, queue: RecordingQueue, tmp_path: Path) -> Iterator[TestClient]:
    """A gateway over the database, in this process."""
    parts = Parts(
        settings=Settings(data_dir=tmp_path),
        database=database,
        queue=queue,
        objects=FolderStore(tmp_path / "objects"),
        sealer=FileSealer(tmp_path / "sealed-log.key"),
        signer=FileSigner(tmp_path / "signing.key"),
        calculator=Calculator(processes=1, timeout_s=60),
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
    scopes += ["jobs:read", "jobs:write", "checks:write", "keys:admin"]
    answer = api.post("/v1/api-keys", {"name": "other", "scopes": scopes, "tenant": "other"})
    assert answer.status_code == 201, answer.text
    return Api(api.client, answer.json()["secret"])
