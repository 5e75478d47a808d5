"""/v1/compliance-checks: is the claimed (ε, δ) true of this run?"""

import hashlib
from datetime import UTC, datetime

from fastapi import APIRouter, Response

from service.api.deps import Caller, holds
from service.api.lists import After, answer_list
from service.api.strict import StrictRoute
from service.core.accounting import epsilon_interval
from service.core.chunks import canonical_records
from service.core.claims import Evidence
from service.core.events import Event, Neighboring
from service.core.interval import Interval
from service.db import tables
from service.operations import checks, evidence, sealed_reads
from service.operations.owned import owned
from service.operations.vault import Vault
from service.schemas.checks import (
    CheckedSubject,
    ComplianceCheck,
    ComplianceCheckRequest,
    LogSubject,
    ParametersSubject,
    RunSubject,
    Subject,
    TrainingJobSubject,
)
from service.schemas.lists import Limit, ListOf
from service.schemas.noise_log import to_core

router = APIRouter(
    prefix="/v1/compliance-checks", tags=["Compliance checks"], route_class=StrictRoute
)
WRITE = holds("checks:write")


@router.post("", status_code=201, response_model=ComplianceCheck)
def create_check(body: ComplianceCheckRequest, caller: Caller = WRITE) -> Response:
    """Judge a claim. A false claim is an answer, never an error."""
    gathered, subject = _gather(body.subject, caller, sealed=body.examine_sealed)

    def epsilon_of(event: Event, /, *, delta: float, neighboring: Neighboring) -> Interval:
        run = caller.parts.calculator.run
        return run(epsilon_interval, event, delta=delta, neighboring=neighboring)

    report = checks.examine(
        body.claim.to_core(), gathered, epsilon_of=epsilon_of, sealed=body.examine_sealed
    )
    answer = ComplianceCheck.from_core(
        report, check_id=None, claim=body.claim, subject=subject, created_at=datetime.now(UTC)
    )
    return caller.write(
        lambda session: checks.store_check(
            session,
            caller.principal,
            claim=body.claim.model_dump(mode="json"),
            subject=subject.model_dump(mode="json"),
            verdict=report.verdict,
            report=answer.model_dump(mode="json"),
        ),
        shape=_shape,
        dry_run=body.validate_only,
        key_required=False,
    )


@router.get("", response_model=ListOf[ComplianceCheck])
def list_checks(limit: Limit = 20, after: After = None, caller: Caller = WRITE) -> Response:
    """The tenant's checks, newest first; those of sealed data for auditors alone."""
    query = owned(caller.principal, tables.ComplianceCheck)
    if evidence.AUDIT_SCOPE not in caller.principal.scopes:
        query = query.where(tables.ComplianceCheck.report["visibility"].as_string() == "public")
    return answer_list(caller, query, tables.ComplianceCheck, _shape, limit, after)


@router.get("/{check_id}", response_model=ComplianceCheck)
def get_check(check_id: str, caller: Caller = WRITE) -> Response:
    """One check."""
    return caller.show(
        lambda session: checks.get_check(session, caller.principal, check_id=check_id),
        shape=_shape,
    )


def _gather(subject: Subject, caller: Caller, *, sealed: bool) -> tuple[Evidence, CheckedSubject]:
    match subject:
        case TrainingJobSubject():
            vault = _vault(caller, tables.Job, subject.id, sealed=sealed)
            found = caller.read(
                lambda session: evidence.of_job(
                    session, caller.principal, job_id=subject.id, vault=vault, sealed=sealed
                )
            )
            return found, CheckedSubject(
                type="training_job", id=subject.id, step_count=found.log.steps if found.log else 0
            )
        case LogSubject():
            uploads = to_core(subject.steps, pointer="/subject/steps")
            planned = (
                None
                if subject.mechanism is None
                else subject.mechanism.to_core(pointer="/subject/mechanism")
            )
            return evidence.of_log(uploads, planned=planned), CheckedSubject(
                type="log",
                mechanism=subject.mechanism,
                step_count=len(uploads),
                sha256=hashlib.sha256(canonical_records([u.record for u in uploads])).hexdigest(),
            )
        case ParametersSubject():
            event = subject.mechanism.to_core(pointer="/subject/mechanism")
            return evidence.of_parameters(event), CheckedSubject(
                type="parameters", mechanism=subject.mechanism
            )
        case RunSubject():
            vault = _vault(caller, tables.Run, subject.id, sealed=sealed)
            found = caller.read(
                lambda session: evidence.of_run(
                    session, caller.principal, run_id=subject.id, vault=vault, sealed=sealed
                )
            )
            return found, CheckedSubject(
                type="run", id=subject.id, step_count=found.log.steps if found.log else 0
            )


def _vault(
    caller: Caller, subject: type[tables.Job] | type[tables.Run], subject_id: str, *, sealed: bool
) -> Vault:
    """Where the log lies; if it is to be opened, that is put on record first."""
    if sealed:
        with caller.parts.database.write() as session:
            sealed_reads.record_read(
                session,
                caller.principal,
                subject=subject,
                subject_id=subject_id,
                purpose="compliance_check",
            )
    return Vault(caller.parts.objects, caller.parts.sealer)


def _shape(row: tables.ComplianceCheck) -> ComplianceCheck:
    return ComplianceCheck.model_validate({**row.report, "id": row.id}, strict=False)
