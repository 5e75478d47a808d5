"""Certificates on the wire."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from service.core.bundle import Result, StepName
from service.schemas.base import Wire

Reason = Annotated[str, Field(min_length=1, max_length=500)]


class CertificateCreate(Wire):
    """What to certify: a check that was supported."""

    check_id: Annotated[str, Field(min_length=1, max_length=64)]
    valid_for_s: Annotated[
        float | None, Field(gt=0, le=10 * 365 * 86_400, description="Default: 365 days.")
    ] = None
    supersedes: Annotated[
        str | None, Field(max_length=64, description="The certificate that this one replaces.")
    ] = None
    validate_only: bool = False


class RevocationRequest(Wire):
    """Why a certificate does not hold."""

    reason: Reason


class DsseSignature(Wire):
    """One signature of an envelope."""

    keyid: str
    sig: str


class DsseEnvelope(Wire):
    """A DSSE envelope over an in-toto Statement v1."""

    payload: str = Field(description="base64 of the canonical JSON of the statement.")
    payloadType: Literal["application/vnd.in-toto+json"]  # noqa: N815 - DSSE's own name
    signatures: Annotated[list[DsseSignature], Field(min_length=1, max_length=8)]


class Certificate(Wire):
    """A certificate, and what has become of it."""

    object: Literal["certificate"] = "certificate"
    id: str | None = Field(description="null if validate_only.")
    state: Literal["valid", "expired", "revoked", "superseded"]
    check_id: str
    subject_type: str
    subject_id: str | None
    envelope: DsseEnvelope
    statement: dict[str, Any] = Field(description="The payload, read for you.")
    signing_key_id: str
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    reason: str | None
    superseded_by: str | None


class VerifyRequest(Wire):
    """An envelope to verify with this service's keys."""

    envelope: DsseEnvelope


class VerifiedStep(Wire):
    """The outcome of one numbered step."""

    number: int
    name: StepName
    result: Result
    detail: str


class Verification(Wire):
    """Whether an envelope is a certificate of this service that holds now."""

    object: Literal["certificate_verification"] = "certificate_verification"
    valid: bool
    certificate_id: str | None
    state: Literal["valid", "expired", "revoked", "superseded", "unknown"]
    steps: list[VerifiedStep]
