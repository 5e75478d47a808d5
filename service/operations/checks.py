"""Compliance checks: examine a subject, then store the verdict once and for ever."""

import dataclasses
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from service.core.claims import Claim, EpsilonOf, Evidence, Report
from service.core.compliance import check
from service.core.credentials import Principal
from service.core.errors import NotFound
from service.db.ids import new_id
from service.db.tables import ComplianceCheck
from service.operations.evidence import AUDIT_SCOPE, separation_of
from service.operations.owned import get_owned


def examine(claim: Claim, evidence: Evidence, *, epsilon_of: EpsilonOf, sealed: bool) -> Report:
    """Judge the claim; slow accounting happens here, outside of any transaction."""
    ran = evidence.certain if evidence.replayed is not None else evidence.declared
    known = dataclasses.replace(
        evidence, separation=separation_of(ran, neighboring=claim.neighboring)
    )
    return check(claim, known, epsilon_of=epsilon_of, auditor=sealed)


def store_check(
    session: Session,
    principal: Principal,
    *,
    claim: dict[str, Any],
    subject: dict[str, Any],
    verdict: str,
    report: dict[str, Any],
) -> ComplianceCheck:
    """Keep a check; it never changes afterwards."""
    row = ComplianceCheck(
        id=new_id("chk"),
        tenant_id=principal.tenant_id,
        created_at=datetime.now(UTC),
        created_by=principal.key_id,
        version=1,
        claim=claim,
        subject=subject,
        verdict=verdict,
        report=report,
    )
    session.add(row)
    session.flush()
    return row


def get_check(session: Session, principal: Principal, *, check_id: str) -> ComplianceCheck:
    """One check; a sealed one does not exist for a key without ``audit:read`` (R25).

    Raises:
        NotFound: no such check for this key.
    """
    row = get_owned(session, principal, ComplianceCheck, check_id)
    if row.report["visibility"] == "auditor" and AUDIT_SCOPE not in principal.scopes:
        raise NotFound(f"There is no {check_id!r} here.")
    return row
