"""/v1/certificates: signed statements about supported checks."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from sqlalchemy.orm import Session

from service.api.deps import AnyKey, Caller, Parts, holds, parts_of
from service.api.lists import After, answer_list
from service.api.strict import StrictRoute
from service.core.certificate import as_object, parse_envelope, parse_statement
from service.db import tables
from service.operations import bundles, certificates
from service.operations.owned import get_owned, owned
from service.schemas.certificates import (
    Certificate,
    CertificateCreate,
    DsseEnvelope,
    RevocationRequest,
    Verification,
    VerifiedStep,
    VerifyRequest,
)
from service.schemas.lists import Limit, ListOf

router = APIRouter(prefix="/v1/certificates", tags=["Certificates"], route_class=StrictRoute)
ISSUE = holds("certificates:issue")


@router.post("", status_code=201, response_model=Certificate)
def issue_certificate(body: CertificateCreate, caller: Caller = ISSUE) -> Response:
    """Sign what a check has found to be supported."""
    return caller.write(
        lambda session: certificates.Shown(
            certificates.issue(
                session,
                caller.principal,
                check_id=body.check_id,
                valid_for_s=body.valid_for_s or certificates.DEFAULT_VALIDITY_S,
                supersedes=body.supersedes,
                signer=caller.parts.signer,
                sealer=caller.parts.sealer,
                issuer=str(caller.request.base_url).rstrip("/"),
            )
        ),
        shape=lambda shown: _shape(shown.row),
        dry_run=body.validate_only,
    )


@router.get("", response_model=ListOf[Certificate])
def list_certificates(caller: AnyKey, limit: Limit = 20, after: After = None) -> Response:
    """The tenant's certificates, newest first."""
    query = owned(caller.principal, tables.Certificate)
    return answer_list(caller, query, tables.Certificate, _shape, limit, after)


@router.post("/verify")
def verify_certificate(
    body: VerifyRequest, parts: Annotated[Parts, Depends(parts_of)]
) -> Verification:
    """Whether an envelope is a certificate of this service that holds now; no key needed."""
    with parts.database.read() as session:
        return _verification(session, body.envelope, parts=parts)


@router.get("/{certificate_id}", response_model=Certificate)
def get_certificate(certificate_id: str, caller: AnyKey) -> Response:
    """One certificate."""
    return caller.show(
        lambda session: certificates.Shown(
            get_owned(session, caller.principal, tables.Certificate, certificate_id)
        ),
        shape=lambda shown: _shape(shown.row),
    )


@router.get(
    "/{certificate_id}/bundle",
    response_class=Response,
    responses={200: {"content": {"application/zip": {}}}},
)
def get_bundle(certificate_id: str, caller: AnyKey) -> Response:
    """Everything that verifies the certificate offline, as a zip file."""
    found = caller.read(
        lambda session: bundles.gather(
            session,
            caller.principal,
            certificate_id=certificate_id,
            signer=caller.parts.signer,
        )
    )
    content = bundles.zipped(found, objects=caller.parts.objects)
    named = f'attachment; filename="{found.certificate_id}.zip"'
    return Response(content, media_type="application/zip", headers={"Content-Disposition": named})


@router.post("/{certificate_id}/revoke", response_model=Certificate)
def revoke_certificate(
    certificate_id: str, body: RevocationRequest, caller: Caller = ISSUE
) -> Response:
    """Say that a certificate does not hold; nothing of it is deleted."""
    return caller.write(
        lambda session: certificates.Shown(
            certificates.revoke(
                session, caller.principal, certificate_id=certificate_id, reason=body.reason
            )
        ),
        shape=lambda shown: _shape(shown.row),
        status=200,
        key_required=False,
    )


def _verification(session: Session, envelope: DsseEnvelope, *, parts: Parts) -> Verification:
    found = certificates.examine(
        session, envelope.model_dump_json().encode(), signer=parts.signer, now=datetime.now(UTC)
    )
    return Verification(
        valid=found.valid,
        certificate_id=found.certificate_id,
        state=found.state,
        steps=[
            VerifiedStep(number=s.number, name=s.name, result=s.result, detail=s.detail)
            for s in found.steps
        ],
    )


def _shape(row: tables.Certificate) -> Certificate:
    ending = row.ending
    envelope = parse_envelope(row.envelope.encode())
    statement: dict[str, Any] = as_object(parse_statement(envelope.payload), what="The statement")
    return Certificate(
        id=row.id,
        state=certificates.state_of(row, now=datetime.now(UTC)),
        check_id=row.check_id,
        subject_type=row.subject_type,
        subject_id=row.subject_id,
        envelope=DsseEnvelope.model_validate_json(row.envelope),
        statement=statement,
        signing_key_id=row.signing_key_id,
        created_at=row.created_at,
        expires_at=row.expires_at,
        ended_at=None if ending is None else ending.created_at,
        reason=None if ending is None else ending.reason,
        superseded_by=None if ending is None else ending.superseded_by,
    )
