"""Fixtures that all tests share: a migrated database, a gateway over it, its first key."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.db.migrations.run import migrate
from service.db.session import Database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A migrated, empty database."""
    made = Database(f"sqlite:///{tmp_path / 'dpledger.db'}")
    migrate(made)
    yield made
    made.close()
