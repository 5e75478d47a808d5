"""The Merkle log, signing keys and certificates."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

APPEND_ONLY = ("log_entries", "log_nodes", "certificates", "certificate_endings")


def upgrade() -> None:
    _log_tables()
    _certificate_tables()
    # The name of this log, for ever: a copy of the database that goes its own way is a fork.
    op.execute(
        sa.text(
            "INSERT INTO log_head (id, origin, size, peaks) VALUES (1, :origin, 0, '[]')"
        ).bindparams(origin=f"dpledger.log/{secrets.token_hex(8)}")
    )
    if op.get_bind().dialect.name == "sqlite":
        _sqlite_triggers()
    else:
        _postgresql_triggers()


def _log_tables() -> None:
    op.create_table(
        "log_head",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("peaks", sa.JSON(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_log_head_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_head")),
    )
    op.create_table(
        "log_entries",
        sa.Column("index", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("subject_id", sa.String(length=64), nullable=False),
        sa.Column("leaf", sa.Text(), nullable=False),
        sa.Column("leaf_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("index", name=op.f("pk_log_entries")),
    )
    op.create_index("ix_log_entries_subject_kind", "log_entries", ["subject_id", "kind"])
    op.create_table(
        "log_nodes",
        sa.Column("level", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("level", "position", name=op.f("pk_log_nodes")),
    )


def _certificate_tables() -> None:
    op.create_table(
        "signing_keys",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("public_key", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("retired_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revocation_reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signing_keys")),
    )
    op.create_table(
        "certificates",
        sa.Column("check_id", sa.String(length=40), nullable=False),
        sa.Column("subject_type", sa.String(length=16), nullable=False),
        sa.Column("subject_id", sa.String(length=40), nullable=True),
        sa.Column("signing_key_id", sa.String(length=64), nullable=False),
        sa.Column("envelope", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=40), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["check_id"],
            ["compliance_checks.id"],
            name=op.f("fk_certificates_check_id_compliance_checks"),
        ),
        sa.ForeignKeyConstraint(
            ["signing_key_id"],
            ["signing_keys.id"],
            name=op.f("fk_certificates_signing_key_id_signing_keys"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_certificates")),
    )
    for column in ("check_id", "subject_id", "tenant_id"):
        op.create_index(op.f(f"ix_certificates_{column}"), "certificates", [column])
    op.create_table(
        "certificate_endings",
        sa.Column("certificate_id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("superseded_by", sa.String(length=40), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=40), nullable=False),
        sa.CheckConstraint(
            "state in ('revoked','superseded')", name=op.f("ck_certificate_endings_state")
        ),
        sa.ForeignKeyConstraint(
            ["certificate_id"],
            ["certificates.id"],
            name=op.f("fk_certificate_endings_certificate_id_certificates"),
        ),
        sa.PrimaryKeyConstraint("certificate_id", name=op.f("pk_certificate_endings")),
    )


def _sqlite_triggers() -> None:
    for table in APPEND_ONLY:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
    op.execute(
        "CREATE TRIGGER log_head_grows BEFORE UPDATE ON log_head "
        "WHEN NEW.size <= OLD.size OR NEW.origin <> OLD.origin "
        "BEGIN SELECT RAISE(ABORT, 'log_head only grows'); END"
    )
    op.execute(
        "CREATE TRIGGER log_head_no_delete BEFORE DELETE ON log_head "
        "BEGIN SELECT RAISE(ABORT, 'log_head only grows'); END"
    )


def _postgresql_triggers() -> None:
    for table in (*APPEND_ONLY,):
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    op.execute(
        "CREATE FUNCTION refuse_shrinking() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'log_head only grows'; END $$"
    )
    op.execute(
        "CREATE TRIGGER log_head_grows BEFORE UPDATE ON log_head FOR EACH ROW "
        "WHEN (NEW.size <= OLD.size OR NEW.origin <> OLD.origin) "
        "EXECUTE FUNCTION refuse_shrinking()"
    )
    op.execute(
        "CREATE TRIGGER log_head_no_delete BEFORE DELETE OR TRUNCATE ON log_head "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_shrinking()"
    )
