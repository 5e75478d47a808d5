"""The database itself: transactions, append-only tables, migrations."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError

from service.db.migrations.run import at_head, migrate
from service.db.session import after_commit
from service.db.tables import ApiKey, Base, ComplianceCheck
from service.operations.keys import create_first_key


def test_the_migrations_make_exactly_the_tables_that_the_code_describes(database):
    made = inspect(database.engine)
    assert set(made.get_table_names()) - {"alembic_version"} == set(Base.metadata.tables)
    for name, table in Base.metadata.tables.items():
        assert {c["name"] for c in made.get_columns(name)} == {c.name for c in table.columns}


def test_migrating_again_changes_nothing(database):
    migrate(database)
    with database.read() as session:
        assert at_head(session.connection())


@pytest.mark.parametrize("verb", ["update {} set verdict = 'supported'", "delete from {}"])
def test_an_append_only_table_refuses_change(database, verb):
    with database.write() as session:
        session.add(
            ComplianceCheck(
                id="chk_1",
                tenant_id="t",
                created_at=datetime.now(UTC),
                created_by="key_1",
                version=1,
                claim={},
                subject={},
                verdict="refuted",
                report={},
            )
        )
    with pytest.raises(DBAPIError, match="append-only"), database.write() as session:
        session.execute(text(verb.format("compliance_checks")))


def test_what_follows_a_commit_does_not_follow_a_rollback(database):
    rung: list[str] = []
    with database.write(keep=False) as session:
        after_commit(session, lambda: rung.append("lost"))
    with database.write() as session:
        after_commit(session, lambda: rung.append("kept"))
        assert rung == []
    assert rung == ["kept"]


def test_an_error_inside_a_transaction_stores_nothing(database):
    def fail_half_way():
        with database.write() as session:
            create_first_key(session)
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    with database.read() as session:
        assert session.query(ApiKey).count() == 0
