"""The tests' own PostgreSQL server is fit to judge ours."""

import signal
import tempfile
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from api_tests.postgres import Postgres

pytestmark = pytest.mark.processes


def test_a_fresh_database_is_empty_and_durable(postgres_url):
    engine = sqlalchemy.create_engine(postgres_url)
    with engine.connect() as connection:
        assert sqlalchemy.inspect(connection).get_table_names() == []
        assert connection.scalar(sqlalchemy.text("SHOW server_encoding")) == "UTF8"
        assert connection.scalar(sqlalchemy.text("SHOW fsync")) == "on"
        assert connection.scalar(sqlalchemy.text("SHOW synchronous_commit")) == "on"
    engine.dispose()


def test_what_was_committed_survives_a_crash(postgres):
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
    postgres.stop(signal.SIGQUIT)
    postgres.start()
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as connection:
        assert connection.execute("SELECT one FROM kept").fetchall() == [(1,)]
        connection.execute("DROP TABLE kept")


def test_the_wheels_binaries_serve_where_the_machine_has_none(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as root:
        server = Postgres(Path(root), installed=Path(root))
        with server.fresh_database() as url:
            engine = sqlalchemy.create_engine(url)
            with engine.connect() as connection:
                assert connection.scalar(sqlalchemy.text("SELECT 1")) == 1
            engine.dispose()
        server.stop()
