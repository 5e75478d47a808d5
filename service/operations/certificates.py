"""Certificates: issue one on a supported check, revoke it, find it.

A certificate is written once and signed once; what becomes of it is a row and a leaf beside
it. It rests on public evidence alone (R25): a check of sealed data can support none, for its
outcome would show.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.core import certificate
from service.core.bundle import Step, StepName
from service.core.certificate import (
    Envelope,
    Subject,
    as_time,
    key_fault,
    parse_envelope,
    parse_statement,
    signer_of,
)
from service.core.checkpoint import Malformed
from service.core.credentials import Principal
from service.core.errors import Conflict, NotFound
from service.core.jobs import TERMINAL
from service.db.ids import is_id, new_id
from service.db.tables import Certificate, CertificateEnding, ComplianceCheck, Job
from service.operations import log, predicates, signing_keys
from service.operations.accounts import lock_accounts_by_id
from service.operations.checks import get_check
from service.operations.owned import get_owned, owned
from service.operations.predicates import Issue
from service.sealing import Sealer
from service.signing import Signer, verifies

DEFAULT_VALIDITY_S: Final = 365 * 86_400
State = Literal["valid", "expired", "revoked", "superseded"]


@dataclass(frozen=True, slots=True)
class Shown:
    """A certificate as it is now; its version counts what has become of it."""

    row: Certificate

    @property
    def id(self) -> str:
        """The certificate's id."""
        return self.row.id

    @property
    def version(self) -> str:
        """Another one once it has ended or expired."""
        return state_of(self.row, now=datetime.now(UTC))


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What there is to say about an envelope."""

    valid: bool
    certificate_id: str | None
    state: State | Literal["unknown"]
    steps: tuple[Step, ...]


def issue(
    session: Session,
    principal: Principal,
    *,
    check_id: str,
    valid_for_s: float = DEFAULT_VALIDITY_S,
    supersedes: str | None = None,
    signer: Signer,
    sealer: Sealer,
    issuer: str,
) -> Certificate:
    """Certify what a check has found to be supported.

    Args:
        session: the transaction.
        principal: who asks.
        check_id: the check.
        valid_for_s: how long it shall be valid.
        supersedes: an older certificate that this one takes the place of.
        signer: signs the statement and the checkpoint in it.
        sealer: commits to the dataset's fingerprint.
        issuer: the address of this service.

    Raises:
        NotFound: no such check or certificate.
        Conflict: SUBJECT_NOT_CERTIFIED; CHECK_NOT_SUPPORTED; CHECK_SEALED; NOT_SETTLED;
            ACCOUNT_OVERDRAWN; LOG_INCOMPLETE; CERTIFICATE_EXISTS; CERTIFICATE_ENDED;
            SIGNING_KEY_REVOKED.
    """
    check = get_check(session, principal, check_id=check_id)
    _check_verdict(check)
    old = None
    if supersedes is not None:
        old = get_owned(session, principal, Certificate, supersedes)
        _check_valid(old)
    _check_first(session, principal, check, supersedes=supersedes)
    now = datetime.now(UTC).replace(microsecond=0)
    key_id = signing_keys.register(session, signer.public_key())
    case = Issue(
        certificate_id=new_id("cert"),
        key_id=key_id,
        issuer=issuer,
        issued_at=now,
        valid_until=now + timedelta(seconds=valid_for_s),
        checkpoint=log.signed_checkpoint(log.head(session).checkpoint, signer=signer),
        origin=log.head(session).origin,
        supersedes=supersedes,
    )
    subjects, predicate = _stated(session, principal, check, case=case, sealer=sealer)
    payload = certificate.statement(subjects, predicate=predicate)
    signed = signer.sign(certificate.pae(payload))
    if signed.key_id != key_id:
        raise Conflict("The signing key was rotated meanwhile; try again.", code="CONFLICT")
    envelope = Envelope(payload=payload, key_id=key_id, signature=signed.signature)
    row = _store(session, principal, check, case=case, envelope=envelope)
    if old is not None:
        _end(session, principal, old, state="superseded", reason=None, superseded_by=row.id)
    return row


def revoke(
    session: Session, principal: Principal, *, certificate_id: str, reason: str
) -> Certificate:
    """Say that a certificate does not hold; revoking it again changes nothing.

    Raises:
        NotFound: no such certificate.
        Conflict: CERTIFICATE_ENDED, it was superseded.
    """
    row = get_owned(session, principal, Certificate, certificate_id, lock=True)
    if row.ending is not None and row.ending.state == "revoked":
        return row
    _check_valid(row)
    _end(session, principal, row, state="revoked", reason=reason, superseded_by=None)
    return row


def state_of(row: Certificate, *, now: datetime) -> State:
    """What a certificate is at a time."""
    if row.ending is not None:
        return cast("State", row.ending.state)
    return "valid" if now <= row.expires_at else "expired"


def status(session: Session, certificate_id: str, *, now: datetime) -> State:
    """What a certificate of any tenant is now: its id is known to whoever holds it.

    Raises:
        NotFound: there is no such certificate.
    """
    row = session.get(Certificate, certificate_id) if is_id(certificate_id) else None
    if row is None:
        raise NotFound(f"There is no {certificate_id!r} here.")
    return state_of(row, now=now)


def examine(session: Session, envelope: bytes, *, signer: Signer, now: datetime) -> Examined:
    """Whether an envelope is a certificate of this installation that holds now.

    Args:
        session: a read.
        envelope: its JSON.
        signer: whose keys count.
        now: the present time.
    """
    steps: list[Step] = []
    certificate_id, state = None, "unknown"
    todo: tuple[tuple[int, StepName, Callable[[], str]], ...] = (
        (2, "envelope", lambda: _readable(envelope)),
        (3, "signature", lambda: _signed(session, envelope, signer=signer)),
        (5, "validity", lambda: _standing(session, envelope, now=now)),
    )
    for number, name, step in todo:
        try:
            detail, result = step(), "pass"
        except Malformed as error:
            detail, result = error.message, "fail"
        steps.append(Step(number=number, name=name, result=result, detail=detail))
        if result == "fail":
            break
    row = _row_of(session, envelope)
    if row is not None:
        certificate_id, state = row.id, state_of(row, now=now)
    good = len(steps) == 3 and all(step.result == "pass" for step in steps)  # noqa: PLR2004
    return Examined(valid=good, certificate_id=certificate_id, state=state, steps=tuple(steps))


def of_job(session: Session, job: Job) -> str | None:
    """The newest valid certificate about the job; None if there is none."""
    query = (
        select(Certificate.id)
        .outerjoin(CertificateEnding)
        .where(
            Certificate.subject_id == job.id,
            Certificate.tenant_id == job.tenant_id,
            CertificateEnding.certificate_id.is_(None),
        )
        .order_by(Certificate.id.desc())
        .limit(1)
    )
    return session.scalars(query).one_or_none()


def _readable(envelope: bytes) -> str:
    parse_statement(parse_envelope(envelope).payload)
    return "A DSSE envelope over a privacy certificate."


def _signed(session: Session, envelope: bytes, *, signer: Signer) -> str:
    parsed = parse_envelope(envelope)
    keys = signing_keys.known(session, signer)
    key = signer_of(parsed, keys=keys, check_signature=verifies)
    issuer = parse_statement(parsed.payload)["predicate"]["issuer"]
    fault = key_fault(key, at=as_time(issuer["issued_at"]))
    if fault is not None:
        raise Malformed(fault)
    return f"Signed here, by the key {key.key_id}."


def _standing(session: Session, envelope: bytes, *, now: datetime) -> str:
    row = _row_of(session, envelope)
    if row is None:
        raise Malformed("This installation has no such certificate.")
    state = state_of(row, now=now)
    if state != "valid":
        raise Malformed(f"It is {state}.")
    return f"Valid until {row.expires_at.isoformat()}."


def _row_of(session: Session, envelope: bytes) -> Certificate | None:
    """The certificate that this very envelope is; None if there is none."""
    try:
        parsed = parse_envelope(envelope)
        named = parse_statement(parsed.payload)["predicate"]["certificate_id"]
    except Malformed:
        return None
    row = session.get(Certificate, named) if isinstance(named, str) else None
    return row if row is not None and row.envelope == parsed.text else None


def _store(
    session: Session,
    principal: Principal,
    check: ComplianceCheck,
    *,
    case: Issue,
    envelope: Envelope,
) -> Certificate:
    row = Certificate(
        id=case.certificate_id,
        tenant_id=principal.tenant_id,
        created_at=case.issued_at,
        created_by=principal.key_id,
        version=1,
        check_id=check.id,
        subject_type=check.subject["type"],
        subject_id=check.subject.get("id"),
        signing_key_id=case.key_id,
        envelope=envelope.text,
        expires_at=case.valid_until,
        ending=None,
    )
    session.add(row)
    session.flush()
    body = {
        "certificate_id": row.id,
        "check_id": check.id,
        "envelope_sha256": hashlib.sha256(row.envelope.encode()).hexdigest(),
        "signing_key_id": case.key_id,
        "supersedes": case.supersedes,
        "by": principal.key_id,
    }
    log.append(session, "certificate", body, tenant_id=row.tenant_id, subject_id=row.id)
    return row


def _check_verdict(check: ComplianceCheck) -> None:
    if check.subject["type"] not in ("training_job", "parameters"):
        raise Conflict(
            "Only training jobs and stated parameters are certified: a log that was sent along is "
            "not kept, and a run that trained elsewhere has no leaves in the log.",
            code="SUBJECT_NOT_CERTIFIED",
        )
    if check.report["visibility"] != "public":
        raise Conflict(
            "This check examined sealed data: a certificate would tell its outcome. Make the "
            "check without examine_sealed.",
            code="CHECK_SEALED",
        )
    if check.verdict != "supported":
        raise Conflict(
            f"The check is {check.verdict}; only a supported claim is certified.",
            code="CHECK_NOT_SUPPORTED",
            fields={"verdict": check.verdict},
        )


def _check_first(
    session: Session, principal: Principal, check: ComplianceCheck, *, supersedes: str | None
) -> None:
    query = owned(principal, Certificate).where(Certificate.check_id == check.id)
    for row in session.scalars(query).unique():
        if row.ending is None and row.id != supersedes:
            raise Conflict(
                f"{row.id} certifies this check already; name it in supersedes to renew it.",
                code="CERTIFICATE_EXISTS",
                fields={"certificate_id": row.id},
            )


def _check_valid(row: Certificate) -> None:
    if row.ending is not None:
        raise Conflict(
            f"{row.id} is {row.ending.state}.",
            code="CERTIFICATE_ENDED",
            fields={"state": row.ending.state},
        )


def _stated(
    session: Session, principal: Principal, check: ComplianceCheck, *, case: Issue, sealer: Sealer
) -> tuple[tuple[Subject, ...], predicates.Predicate]:
    if check.subject["type"] != "training_job":
        return predicates.of_statement(check, case=case)
    job = get_owned(session, principal, Job, check.subject["id"])
    if job.state not in TERMINAL:
        raise Conflict("The job is not settled yet.", code="NOT_SETTLED")
    (account,) = lock_accounts_by_id(session, predicates.accounts_of(session, job))
    if account.state == "overdrawn":
        raise Conflict(
            "The dataset's budget is overdrawn: nothing is certified on it.",
            code="ACCOUNT_OVERDRAWN",
            fields={"dataset_id": account.dataset_id, "account_id": account.id},
        )
    return predicates.of_job(session, check, job, account, case=case, sealer=sealer)


def _end(
    session: Session,
    principal: Principal,
    row: Certificate,
    *,
    state: str,
    reason: str | None,
    superseded_by: str | None,
) -> None:
    row.ending = CertificateEnding(
        certificate_id=row.id,
        state=state,
        reason=reason,
        superseded_by=superseded_by,
        created_at=datetime.now(UTC),
        created_by=principal.key_id,
    )
    session.flush()
    body = {
        "certificate_id": row.id,
        "state": state,
        "reason": reason,
        "superseded_by": superseded_by,
        "by": principal.key_id,
    }
    log.append(session, "revoke", body, tenant_id=row.tenant_id, subject_id=row.id)
