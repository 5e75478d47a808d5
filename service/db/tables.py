"""All tables. Every row of tenant data carries its tenant; amounts are integer vectors.

Append-only tables (``ledger_entries``, ``lease_grants``, ``job_events``, ``noise_chunks``,
``sealed_reads``, ``log_entries``, ``log_nodes``, ``certificates``, …) have triggers, made by the
migrations, that refuse UPDATE and DELETE; ``log_head`` has one that lets it grow only.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.types import TypeDecorator

JSONObject = dict[str, Any]
Vector = list[int | None]


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time; SQLite, which has no such type, stores it without the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - the base names it
        """Refuse naive times, convert the rest to UTC."""
        if value is None:
            return None
        assert value.tzinfo is not None, "naive time"
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - the base names it
        """Give the zone back."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Common naming of constraints, so that migrations can name them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own protocol
        datetime: UtcDateTime,
        JSONObject: JSON,
        Vector: JSON,
        list[str]: JSON,
        list[float]: JSON,
        list[int | None]: JSON,
        list[JSONObject]: JSON,
        int: BigInteger,
        str: Text,
    }


class Owned:
    """What every tenant's row has: an id, its tenant, its time and its version (ETag)."""

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(64), index=True)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(40))
    version: Mapped[int] = mapped_column(default=1)


class ApiKey(Owned, Base):
    """A key: the hash of its secret, its scopes, its end."""

    __tablename__ = "api_keys"

    name: Mapped[str]
    scopes: Mapped[list[str]]
    secret_hash: Mapped[str] = mapped_column(String(64))
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class IdempotentAnswer(Base):
    """The answer to a request that had an effect, stored in the same transaction."""

    __tablename__ = "idempotent_answers"

    tenant_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    request_hash: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]
    status: Mapped[int | None]
    headers: Mapped[JSONObject | None]
    body: Mapped[str | None]


class Dataset(Owned, Base):
    """Personal data that owns budgets; the data itself never comes here."""

    __tablename__ = "datasets"
    __table_args__ = (
        UniqueConstraint("tenant_id", "fingerprint"),
        CheckConstraint("max_records_per_unit >= 1", name="unit_bound"),
        CheckConstraint("record_count >= 1", name="record_count"),
    )

    name: Mapped[str]
    privacy_unit: Mapped[str]
    max_records_per_unit: Mapped[int]
    record_count: Mapped[int]
    record_count_is_public: Mapped[bool]
    source: Mapped[str | None]
    fingerprint: Mapped[str | None] = mapped_column(String(128))
    updated_at: Mapped[datetime]

    accounts: Mapped[list["Account"]] = relationship(
        back_populates="dataset", order_by="Account.id", lazy="selectin"
    )


class Account(Owned, Base):
    """One budget of one dataset: fixed terms (R7), and the running sums of its entries."""

    __tablename__ = "accounts"
    __table_args__ = (CheckConstraint("state in ('open','overdrawn','closed')", name="state"),)

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), index=True)
    epsilon: Mapped[str] = mapped_column(String(40))
    delta: Mapped[str] = mapped_column(String(40))
    neighboring: Mapped[str] = mapped_column(String(24))
    composition: Mapped[str] = mapped_column(String(8))
    orders: Mapped[list[float]]
    weights: Mapped[list[str]]
    posted: Mapped[Vector]
    pending: Mapped[Vector]
    state: Mapped[str] = mapped_column(String(12), default="open")
    last_sequence: Mapped[int] = mapped_column(default=0)

    dataset: Mapped[Dataset] = relationship(back_populates="accounts", lazy="joined")


class LedgerEntry(Base):
    """An append-only posting; the balance of an account is the sum of its entries."""

    __tablename__ = "ledger_entries"
    __table_args__ = (UniqueConstraint("account_id", "sequence"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(64), index=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    sequence: Mapped[int]
    reservation_id: Mapped[str | None] = mapped_column(String(40), index=True)
    kind: Mapped[str] = mapped_column(String(16))
    posted_change: Mapped[Vector]
    pending_change: Mapped[Vector]
    mechanism: Mapped[JSONObject | None]
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(40))


class Reservation(Owned, Base):
    """A claim on one or more budgets, all or none."""

    __tablename__ = "reservations"
    __table_args__ = (
        CheckConstraint(
            "state in ('pending','leased','settled','released','expired')", name="state"
        ),
        CheckConstraint("leased_steps >= 0 and leased_steps <= total_steps", name="steps"),
    )

    mechanism: Mapped[JSONObject]
    total_steps: Mapped[int]
    leased_steps: Mapped[int] = mapped_column(default=0)
    state: Mapped[str] = mapped_column(String(12), default="pending")
    fencing_token: Mapped[int] = mapped_column(default=0)
    expires_in_s: Mapped[float | None]
    expires_at: Mapped[datetime | None] = mapped_column(index=True)
    executed: Mapped[JSONObject | None]
    settled_at: Mapped[datetime | None]

    holdings: Mapped[list["HoldingRow"]] = relationship(
        order_by="HoldingRow.account_id", lazy="selectin"
    )


class HoldingRow(Base):
    """What one reservation holds on one account, leased of it, and posted so far."""

    __tablename__ = "holdings"

    reservation_id: Mapped[str] = mapped_column(ForeignKey("reservations.id"), primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    reserved: Mapped[Vector]
    pending: Mapped[Vector]
    leased: Mapped[Vector]
    posted: Mapped[Vector]

    account: Mapped[Account] = relationship(lazy="joined")


class LeaseGrant(Base):
    """A step range handed out, charged for its full length (R12)."""

    __tablename__ = "lease_grants"

    reservation_id: Mapped[str] = mapped_column(ForeignKey("reservations.id"), primary_key=True)
    fencing_token: Mapped[int] = mapped_column(primary_key=True)
    first_step: Mapped[int]
    end_step: Mapped[int]
    created_at: Mapped[datetime]


class Job(Owned, Base):
    """A training job; the database, not the queue, says what becomes of it."""

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(
            "state in ('queued','starting','running','cancelling',"
            "'succeeded','failed','cancelled')",
            name="state",
        ),
        CheckConstraint(
            "(state in ('succeeded','failed','cancelled')) = (finished_at is not null)",
            name="terminal_has_an_end",
        ),
        Index("ix_jobs_state_lease", "state", "lease_expires_at"),
    )

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), index=True)
    reservation_id: Mapped[str] = mapped_column(ForeignKey("reservations.id"))
    request: Mapped[JSONObject]
    spec: Mapped[JSONObject]
    state: Mapped[str] = mapped_column(String(12), default="queued")
    state_reason: Mapped[str | None] = mapped_column(String(40))
    dispatched_at: Mapped[datetime | None]
    cancel_requested_at: Mapped[datetime | None]
    fencing_token: Mapped[int] = mapped_column(default=0)
    lease_expires_at: Mapped[datetime | None]
    worker: Mapped[str | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    step: Mapped[int] = mapped_column(default=0)
    total_steps: Mapped[int]
    last_event: Mapped[int] = mapped_column(default=0)
    software: Mapped[JSONObject | None]
    metrics: Mapped[JSONObject | None]
    epsilon: Mapped[JSONObject | None]
    error: Mapped[JSONObject | None]


class JobEvent(Base):
    """What happened to a job, in order; SSE reads from here."""

    __tablename__ = "job_events"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(String(40), unique=True)
    type: Mapped[str] = mapped_column(String(24))
    data: Mapped[JSONObject]
    created_at: Mapped[datetime]


class NoiseChunk(Base):
    """A stored range of the noise log: the digests of its two objects and what they hold."""

    __tablename__ = "noise_chunks"
    __table_args__ = (CheckConstraint("first_step < end_step", name="range"),)

    subject_id: Mapped[str] = mapped_column(String(40), primary_key=True)  # a job or a run
    sequence: Mapped[int] = mapped_column(primary_key=True)
    first_step: Mapped[int]
    end_step: Mapped[int]
    released_object: Mapped[str] = mapped_column(String(64))
    sealed_object: Mapped[str | None] = mapped_column(String(64))
    summary: Mapped[list[JSONObject]]
    link: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]


class Run(Owned, Base):
    """A run that trains elsewhere: what it says it does, and how far its log has come."""

    __tablename__ = "runs"
    __table_args__ = (
        CheckConstraint("state in ('open','completed','abandoned')", name="state"),
        CheckConstraint("(state = 'open') = (ended_at is null)", name="ended_has_an_end"),
        UniqueConstraint("reservation_id"),
    )

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), index=True)
    reservation_id: Mapped[str] = mapped_column(ForeignKey("reservations.id"))
    mechanism: Mapped[JSONObject]
    software: Mapped[JSONObject | None]
    state: Mapped[str] = mapped_column(String(12), default="open", index=True)
    next_step: Mapped[int] = mapped_column(default=0)
    head: Mapped[str | None] = mapped_column(String(64))
    ended_at: Mapped[datetime | None]


class RunBatch(Base):
    """Acknowledged records of a run that do not fill a chunk yet; gone once a chunk has them."""

    __tablename__ = "run_batches"
    __table_args__ = (CheckConstraint("first_step < end_step", name="range"),)

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    first_step: Mapped[int] = mapped_column(primary_key=True)
    end_step: Mapped[int]
    summary: Mapped[list[JSONObject]]
    sealed: Mapped[bytes | None] = mapped_column(LargeBinary)


class SealedRead(Base):
    """Who read which sealed log, when, and what for: written before the reading."""

    __tablename__ = "sealed_reads"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(64), index=True)
    key_id: Mapped[str] = mapped_column(String(40))
    subject_id: Mapped[str] = mapped_column(String(40), index=True)
    purpose: Mapped[str] = mapped_column(String(24))
    end_step: Mapped[int]
    created_at: Mapped[datetime]


class Artifact(Base):
    """A file that a finished job left, kept in the object store by its digest."""

    __tablename__ = "artifacts"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    object: Mapped[str] = mapped_column(String(64))
    size: Mapped[int]
    media_type: Mapped[str] = mapped_column(String(100))
    created_at: Mapped[datetime]


class ComplianceCheck(Owned, Base):
    """A claim, what was examined, and the verdict; written once."""

    __tablename__ = "compliance_checks"

    claim: Mapped[JSONObject]
    subject: Mapped[JSONObject]
    verdict: Mapped[str] = mapped_column(String(16))
    report: Mapped[JSONObject]


class LogHead(Base):
    """The one row that orders the Merkle log: its origin, its size, its frontier."""

    __tablename__ = "log_head"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    origin: Mapped[str]
    size: Mapped[int]
    peaks: Mapped[list[str]]


class LogEntry(Base):
    """A leaf of the Merkle log, as it was hashed; who else may read it is its tenant alone."""

    __tablename__ = "log_entries"
    __table_args__ = (Index("ix_log_entries_subject_kind", "subject_id", "kind"),)

    index: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    tenant_id: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(16))
    subject_id: Mapped[str] = mapped_column(String(64))
    leaf: Mapped[str]
    leaf_hash: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]


class LogNode(Base):
    """The root of a complete subtree of the Merkle log with more than one leaf."""

    __tablename__ = "log_nodes"

    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    hash: Mapped[str] = mapped_column(String(64))


class SigningKey(Base):
    """The public half of a key that signs or has signed for this installation."""

    __tablename__ = "signing_keys"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    public_key: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]
    retired_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    revocation_reason: Mapped[str | None]


class Certificate(Owned, Base):
    """A signed certificate, kept as it was sent; what became of it is a row of its own."""

    __tablename__ = "certificates"

    check_id: Mapped[str] = mapped_column(ForeignKey("compliance_checks.id"), index=True)
    subject_type: Mapped[str] = mapped_column(String(16))
    subject_id: Mapped[str | None] = mapped_column(String(40), index=True)
    signing_key_id: Mapped[str] = mapped_column(ForeignKey("signing_keys.id"))
    envelope: Mapped[str]
    expires_at: Mapped[datetime]

    ending: Mapped["CertificateEnding | None"] = relationship(lazy="joined")


class CertificateEnding(Base):
    """Why a certificate is not valid any more; at most one for each."""

    __tablename__ = "certificate_endings"
    __table_args__ = (CheckConstraint("state in ('revoked','superseded')", name="state"),)

    certificate_id: Mapped[str] = mapped_column(ForeignKey("certificates.id"), primary_key=True)
    state: Mapped[str] = mapped_column(String(12))
    reason: Mapped[str | None]
    superseded_by: Mapped[str | None] = mapped_column(String(40))
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(40))
