"""Compliance checks on the wire: a claim about a subject, and the verdict on it."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field

from service.core import claims
from service.core.events import Neighboring, Sampler
from service.schemas.base import Interval, Wire
from service.schemas.mechanism import AnyMechanism, Delta, Mechanism
from service.schemas.noise_log import StepUpload
from service.schemas.refusals import WITHOUT_TAGS

MAX_LOG_STEPS: Final = 100_000
Slug = Annotated[str, Field(min_length=1, max_length=64)]


class Claim(Wire):
    """What is claimed. A required field that is left out makes the verdict ``incomplete``."""

    epsilon: Annotated[float | None, Field(ge=0, examples=[2.68])] = None
    delta: Delta | None = None
    neighboring: Neighboring | None = None
    privacy_unit: Slug | None = Field(default=None, examples=["record"])
    scope: claims.Scope | None = None
    sampler: Sampler | None = Field(default=None, description="Else taken from the record.")
    stop_rule: Slug | None = Field(
        default=None,
        description="fixed_steps, fixed_epochs or fixed_interruption; anything else is claimed "
        "at T_max.",
    )
    tuning: Slug | None = Field(
        default=None, description="none, public_data, all_charged or random_law."
    )
    release: claims.Release = "all_updates"

    def to_core(self) -> claims.Claim:
        """The claim as the core judges it."""
        return claims.Claim(
            epsilon=None if self.epsilon is None else float(self.epsilon),
            delta=None if self.delta is None else float(self.delta),
            neighboring=self.neighboring,
            privacy_unit=self.privacy_unit,
            scope=self.scope,
            sampler=self.sampler,
            stop_rule=self.stop_rule,
            tuning=self.tuning,
            release=self.release,
        )

    @classmethod
    def from_core(cls, claim: claims.Claim) -> Self:
        """The wire form of a claim."""
        return cls(
            epsilon=claim.epsilon,
            delta=claim.delta,
            neighboring=claim.neighboring,
            privacy_unit=claim.privacy_unit,
            scope=claim.scope,
            sampler=claim.sampler,
            stop_rule=claim.stop_rule,
            tuning=claim.tuning,
            release=claim.release,
        )


class TrainingJobSubject(Wire):
    """A job that trained here."""

    type: Literal["training_job"]
    id: str


class RunSubject(Wire):
    """A run that trained elsewhere and logged here."""

    type: Literal["run"]
    id: str


class LogSubject(Wire):
    """A log that comes with the question; ``mechanism`` is what was planned, if known."""

    type: Literal["log"]
    steps: list[StepUpload] = Field(min_length=1, max_length=MAX_LOG_STEPS)
    mechanism: Mechanism | None = None


class ParametersSubject(Wire):
    """Stated parameters: the verdict is on the mechanism, not on any run."""

    type: Literal["parameters"]
    mechanism: Mechanism


Subject = Annotated[
    TrainingJobSubject | RunSubject | LogSubject | ParametersSubject,
    Field(discriminator="type"),
    WITHOUT_TAGS,
]

_CLAIM: Final[dict[str, Any]] = {
    "epsilon": 2.68,
    "delta": 1e-5,
    "neighboring": "add_or_remove_one",
    "privacy_unit": "record",
    "scope": "single_job",
}


class ComplianceCheckRequest(Wire):
    """A claim and what it is about."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "claim": _CLAIM | {"sampler": "poisson"},
                    "subject": {
                        "type": "parameters",
                        "mechanism": {
                            "type": "dp_sgd",
                            "sampler": "poisson",
                            "sampling_rate": 0.01,
                            "noise_multiplier": 1.1,
                            "steps": 3000,
                        },
                    },
                },
                {
                    "claim": _CLAIM,
                    "subject": {
                        "type": "log",
                        "steps": [
                            {
                                "step": 0,
                                "noise_multiplier": 1.1,
                                "max_grad_norm": 1.0,
                                "sampling_rate": 0.01,
                                "sampler": "poisson",
                                "expected_batch_size": 600,
                            }
                        ],
                    },
                },
            ]
        }
    )

    claim: Claim
    subject: Subject
    examine_sealed: bool = Field(
        default=False,
        description="Test the sealed stream too; needs audit:read, and the answer is then sealed.",
    )
    validate_only: bool = False


class Finding(Wire):
    """The outcome of one numbered check."""

    number: int
    check: claims.CheckName
    result: claims.Result
    detail: str
    visibility: claims.Visibility = Field(
        description="auditor: a test on sealed data; the outcome stays with the auditor."
    )

    @classmethod
    def from_core(cls, finding: claims.Finding) -> Self:
        """The wire form of a finding."""
        return cls(
            number=finding.number,
            check=finding.check,
            result=finding.result,
            detail=finding.detail,
            visibility=finding.visibility,
        )


class CheckedSubject(Wire):
    """What was checked; an uploaded log by its length and digest."""

    type: claims.SubjectKind
    id: str | None = None
    mechanism: AnyMechanism | None = None
    step_count: int | None = None
    sha256: str | None = None


class ComplianceCheck(Wire):
    """The verdict on a claim, with everything it rests on."""

    object: Literal["compliance_check"] = "compliance_check"
    id: str | None = Field(description="null if validate_only.")
    verdict: claims.Verdict
    epsilon: Interval
    findings: list[Finding]
    strongest_supported_claim: Claim | None
    remedy: str
    evidence_level: claims.EvidenceLevel
    not_examined: list[str]
    claim: Claim
    subject: CheckedSubject
    visibility: claims.Visibility
    created_at: datetime

    @classmethod
    def from_core(
        cls,
        report: claims.Report,
        *,
        check_id: str | None,
        claim: Claim,
        subject: CheckedSubject,
        created_at: datetime,
    ) -> Self:
        """The wire form of a report."""
        strongest = report.strongest_supported_claim
        return cls(
            id=check_id,
            verdict=report.verdict,
            epsilon=Interval.from_core(report.epsilon),
            findings=[Finding.from_core(f) for f in report.findings],
            strongest_supported_claim=None if strongest is None else Claim.from_core(strongest),
            remedy=report.remedy,
            evidence_level=report.evidence_level,
            not_examined=list(report.not_examined),
            claim=claim,
            subject=subject,
            visibility=report.visibility,
            created_at=created_at,
        )
