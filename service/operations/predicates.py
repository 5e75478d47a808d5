"""What a certificate says: the sections of its predicate, gathered from rows.

Only what is public goes in (R25): configuration, ledger, the releasable log, public findings.
The dataset's fingerprint goes in as a commitment under a sealed key.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service import __version__
from service.core import ledger
from service.core.canonical import canonical
from service.core.certificate import UNPROTECTED, Subject, plain
from service.core.compliance import NEVER_EXAMINED
from service.core.errors import Conflict
from service.core.jobs import TrainingSpec
from service.db.tables import (
    Account,
    Artifact,
    ComplianceCheck,
    HoldingRow,
    Job,
    LedgerEntry,
    LogEntry,
    Reservation,
)
from service.operations import log
from service.operations.accounts import terms_of
from service.operations.jobs import LOG_NAME
from service.operations.noise_chunks import chunks_of
from service.sealing import Sealer

Predicate = dict[str, Any]

_NAMED: Final = frozenset(
    {"account", "reserve", "lease", "settle", "release", "expire", "chunk", "job"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """The circumstances of one issuing."""

    certificate_id: str
    key_id: str
    issuer: str
    issued_at: datetime
    valid_until: datetime
    checkpoint: str
    origin: str
    supersedes: str | None


def of_job(
    session: Session,
    check: ComplianceCheck,
    job: Job,
    account: Account,
    *,
    case: Issue,
    sealer: Sealer,
) -> tuple[tuple[Subject, ...], Predicate]:
    """Subjects and predicate of a certificate about a settled job and its locked account.

    Raises:
        Conflict: LOG_INCOMPLETE, the Merkle log does not hold the whole run.
    """
    spec = TrainingSpec.from_json(job.spec)
    reservation = session.get_one(Reservation, job.reservation_id)
    about = [job.id, reservation.id, account.id]
    leaves = [
        entry
        for entry in log.entries_about(session, tenant_id=job.tenant_id, subject_ids=about)
        if entry.kind in _NAMED
    ]
    chunks = [_chunk(entry) for entry in leaves if entry.kind == "chunk"]
    recorded = [(c.first_step, c.end_step, c.released_object) for c in chunks_of(session, job.id)]
    if recorded != [(c["first_step"], c["end_step"], c["parquet_sha256"]) for c in chunks]:
        raise Conflict(
            "The log does not hold every chunk of this run: it cannot be shown to others.",
            code="LOG_INCOMPLETE",
        )
    mechanism: dict[str, Any] = {
        "mechanism": reservation.executed or reservation.mechanism,
        "max_grad_norm": plain(spec.max_grad_norm),
        "expected_batch_size": plain(spec.expected_batch_size),
        "normaliser": "expected_batch",
        "accumulation": 1,
        "steps_max": reservation.total_steps,
        "steps_leased": reservation.leased_steps,
        "steps_logged": job.step,
        "library": "dpledger.trainer",
        "software": job.software,
        "advisories": [],
    }
    common = _common(check, case=case)
    return _artifacts(session, job), {
        **common,
        "guarantee": {
            **common["guarantee"],
            "max_records_per_unit": account.dataset.max_records_per_unit,
            "record_count_is_public": account.dataset.record_count_is_public,
        },
        "mechanisms": [mechanism],
        "stop": {"rule": check.claim["stop_rule"] or "fixed_steps", "state": job.state},
        "randomness": _randomness(spec),
        "trust": {
            "model": "central",
            "actors": "the trainer sees the data; auditors see the sealed stream",
        },
        "dataset": _dataset(account, sealer=sealer),
        "budget": _budget(session, account, reservation),
        "log": {
            "origin": case.origin,
            "checkpoint": case.checkpoint,
            "entries": [
                {"index": e.index, "kind": e.kind, "leaf_sha256": e.leaf_hash} for e in leaves
            ],
            "chunks": chunks,
        },
    }


def of_statement(check: ComplianceCheck, *, case: Issue) -> tuple[tuple[Subject, ...], Predicate]:
    """Subjects and predicate of a certificate about stated parameters or a log sent along."""
    subject = check.subject
    mechanism: dict[str, Any] | None = subject.get("mechanism")
    data = canonical({"mechanism": mechanism, "type": subject["type"]})
    digest = subject.get("sha256") or hashlib.sha256(data).hexdigest()
    stated = mechanism if subject["type"] == "parameters" else None
    return (Subject(name=subject["type"], sha256=digest),), {
        **_common(check, case=case),
        "mechanisms": [{"mechanism": stated, "steps_logged": subject.get("step_count")}],
        "stop": {"rule": check.claim["stop_rule"], "state": None},
        "randomness": None,
        "trust": None,
        "dataset": None,
        "budget": None,
        "log": {
            "origin": case.origin,
            "checkpoint": case.checkpoint,
            "entries": [],
            "chunks": [],
        },
    }


def accounts_of(session: Session, job: Job) -> Sequence[str]:
    """The account that pays for the job."""
    query = select(HoldingRow.account_id).where(HoldingRow.reservation_id == job.reservation_id)
    return session.scalars(query).all()


def _common(check: ComplianceCheck, *, case: Issue) -> Predicate:
    claim, report = check.claim, check.report
    ends: Mapping[str, Any] = report["epsilon"]
    return {
        "certificate_id": case.certificate_id,
        "check_id": check.id,
        "claim": {
            "scope": claim["scope"],
            "sampler": claim["sampler"],
            "release": claim["release"],
            "evidence_level": report["evidence_level"],
            "theorem": "account cap"
            if claim["scope"] == "dataset_lifetime"
            else "certified PLD, fixed parameters",
        },
        "guarantee": {
            "definition": "approx",
            "epsilon": plain(claim["epsilon"]),
            "delta": plain(claim["delta"]),
            "neighboring": claim["neighboring"],
            "privacy_unit": claim["privacy_unit"],
            "max_records_per_unit": None,
            "record_count_is_public": None,
        },
        "accounting": {
            "method": "certified bracket of the privacy loss distribution",
            "implementation": "dpledger",
            "version": __version__,
            "epsilon": {"lower": plain(ends["lower"]), "upper": plain(ends["upper"])},
            "recomputed_by": ["dpledger"],
        },
        "tuning": {"status": claim["tuning"] or "not_stated"},
        "unprotected": list(UNPROTECTED),
        "findings": [
            {name: finding[name] for name in ("number", "check", "result", "detail")}
            for finding in report["findings"]
            if finding["visibility"] == "public"
        ],
        "not_examined": report["not_examined"] or list(NEVER_EXAMINED),
        "issuer": {
            "id": case.issuer,
            "key_id": case.key_id,
            "issued_at": _time(case.issued_at),
            "valid_until": _time(case.valid_until),
            "status_url": f"{case.issuer}/v1/certificates/{case.certificate_id}/status",
            "supersedes": case.supersedes,
        },
    }


def _chunk(entry: LogEntry) -> dict[str, Any]:
    body = log.body_of(entry)
    return {name: body[name] for name in ("first_step", "end_step", "sha256", "parquet_sha256")}


def _artifacts(session: Session, job: Job) -> tuple[Subject, ...]:
    """The files that the job left; a job without any is its own subject."""
    rows = session.scalars(
        select(Artifact).where(Artifact.job_id == job.id, Artifact.name != LOG_NAME)
    )
    found = tuple(Subject(name=row.name, sha256=row.object) for row in rows)
    return found or (Subject(name=job.id, sha256=hashlib.sha256(job.id.encode()).hexdigest()),)


def _randomness(spec: TrainingSpec) -> dict[str, Any]:
    fixed = spec.seed_policy == "reproducible"
    return {
        "kind": spec.seed_policy,
        "reproducible": fixed,
        "generator": "a cryptographic keystream, from operating-system entropy"
        if not fixed
        else "a cryptographic keystream, from a seed that its owner knows",
        "seed_custody": "the owner of the job" if fixed else "discarded by the trainer",
        "float_safety": "not examined",
    }


def _dataset(account: Account, *, sealer: Sealer) -> dict[str, Any]:
    dataset = account.dataset
    known = dataset.fingerprint
    return {
        "dataset_id": dataset.id,
        "fingerprint_commitment": None
        if known is None
        else sealer.commitment(known.encode(), place=dataset.id),
        "commitment_scheme": "HMAC-SHA256 under a sealed 256-bit key of the dataset's own",
    }


def _budget(session: Session, account: Account, reservation: Reservation) -> dict[str, Any]:
    terms = terms_of(account)
    first, last = _entries_between(session, account, reservation)
    adjustments = session.scalar(
        select(func.count())
        .select_from(LedgerEntry)
        .where(LedgerEntry.account_id == account.id, LedgerEntry.kind == "adjust")
    )
    return {
        "account_id": account.id,
        "reservation_id": reservation.id,
        "cap": {"epsilon": account.epsilon, "delta": account.delta},
        "spent_before": plain(ledger.spent_epsilon(terms, _posted(session, account, first - 1))),
        "spent_after": plain(ledger.spent_epsilon(terms, _posted(session, account, last))),
        "renewal": "new_block",
        "adjustments": adjustments or 0,
        "overdrawn": account.state == "overdrawn",
    }


def _entries_between(
    session: Session, account: Account, reservation: Reservation
) -> tuple[int, int]:
    """The sequence numbers of the reservation's first and last entry on the account."""
    query = select(func.min(LedgerEntry.sequence), func.max(LedgerEntry.sequence)).where(
        LedgerEntry.account_id == account.id, LedgerEntry.reservation_id == reservation.id
    )
    first, last = session.execute(query).one()
    return first, last


def _posted(session: Session, account: Account, sequence: int) -> ledger.Amounts:
    """What the account had posted after its entry of this number: whenever it is asked."""
    query = select(LedgerEntry.posted_change).where(
        LedgerEntry.account_id == account.id, LedgerEntry.sequence <= sequence
    )
    total = ledger.opening_balance(terms_of(account)).posted
    for change in session.scalars(query):
        total = ledger.add(total, tuple(change))
    return total


def _time(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")
