"""The words of a compliance check: a claim, the evidence about it, the report.

A claim is what somebody says about a subject. Evidence is what the service knows about it:
facts gathered by the caller, so that judging them stays a pure function. ``None`` in a claim
means "not stated", in evidence "not known"; neither is ever filled by a guess (R17).
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from service.core.events import Event, Neighboring, Sampler
from service.core.interval import Interval

Scope = Literal["single_job", "sweep", "dataset_lifetime"]
Release = Literal["all_updates", "final_model"]
SubjectKind = Literal["training_job", "run", "log", "parameters"]
Verdict = Literal["supported", "refuted", "undetermined", "incomplete"]
Result = Literal["pass", "fail", "not_examined", "inconclusive"]
Visibility = Literal["public", "auditor"]
EvidenceLevel = Literal["declared", "logged", "replayed", "attested"]
CheckName = Literal[
    "claim_complete",
    "log_whole",
    "parameters_consistent",
    "sampler_as_claimed",
    "noise_plausible",
    "epsilon_recomputed",
    "separation",
    "ledger",
    "tuning_and_stop_rule",
    "signatures",
    "empirical_audits",
]
Ending = Literal[
    "completed", "fixed_interruption", "cancelled", "failed", "deadline", "open", "unknown"
]
AccountState = Literal["open", "overdrawn", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement about a subject; ε, δ, relation, unit and scope must be stated (R17).

    Args:
        epsilon: claimed ε ≥ 0.
        delta: claimed δ in (0, 1).
        neighboring: the neighboring relation.
        privacy_unit: a slug, compared exactly with the dataset's.
        scope: what the claim is about.
        sampler: how batches were drawn, if the claim says so.
        stop_rule: why the run ended where it did; ``fixed_steps`` and its kin
            (``FIXED_STOP_RULES``) mean fixed beforehand.
        tuning: how the hyper-parameters were chosen.
        release: who sees what: every noised update, or the last model only.
    """

    epsilon: float | None
    delta: float | None
    neighboring: Neighboring | None
    privacy_unit: str | None
    scope: Scope | None
    sampler: Sampler | None = None
    stop_rule: str | None = None
    tuning: str | None = None
    release: Release = "all_updates"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """What was found when the log was read.

    Args:
        steps: records read.
        contiguous: every step from 0 on, once.
        digests_match: the records are those that were sealed; None if nothing is sealed.
        chained: each chunk follows the one before it; None if nothing is sealed.
        included: the chunks are in the Merkle log; None if that was not looked at.
        sealed: the log is closed: nothing can be appended any more.
        fault: the first fault, in words.
    """

    steps: int
    contiguous: bool
    digests_match: bool | None = None
    chained: bool | None = None
    included: bool | None = None
    sealed: bool | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """Steps by the ledger, and what happened to the account since.

    Args:
        reserved_steps: steps the reservation covers.
        leased_steps: steps handed out, every grant counted in full; None without leases.
        settled_steps: steps charged in the end; None while the reservation is open.
        adjustments: entries of the account made by hand.
    """

    reserved_steps: int
    leased_steps: int | None = None
    settled_steps: int | None = None
    adjustments: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountFacts:
    """What the dataset's account promises: a cap, fixed at its creation (R7).

    Args:
        epsilon: the cap ε; with successors, the loosest lifetime guarantee.
        delta: the δ of that guarantee.
        neighboring, privacy_unit: what the guarantee is about.
        state: overdrawn accounts promise nothing.
    """

    epsilon: float
    delta: float
    neighboring: Neighboring
    privacy_unit: str
    state: AccountState


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFacts:
    """A finished empirical audit: ε ≥ ``epsilon_lower`` at ``confidence`` and ``delta``.

    ``valid_for_any_mechanism`` is False for tests that suppose independent canaries: those
    have convicted honest mechanisms and never fail a claim.
    """

    audit_id: str
    epsilon_lower: float
    delta: float
    confidence: float
    valid_for_any_mechanism: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedMeasures:
    """Sealed columns of a log, for auditors alone (R25); a column not measured is None.

    Args:
        realized_batch_size: of shape (steps,), beside ``sampling_rate``.
        sampling_rate: the recorded q, of shape (steps,).
        noise_norm: of shape (steps,), beside ``noise_stddev``.
        noise_stddev: the recorded σ·C, of shape (steps,).
        dimension: coordinates of the noised sum.
        clock_forward: times never go back.
        shared_with: other runs that show the very same measures.
    """

    realized_batch_size: NDArray[np.int64] | None = None
    sampling_rate: NDArray[np.float64] | None = None
    noise_norm: NDArray[np.float64] | None = None
    noise_stddev: NDArray[np.float64] | None = None
    dimension: int | None = None
    clock_forward: bool | None = None
    shared_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known about the subject of a claim.

    Args:
        subject: what kind of thing it is.
        declared: the mechanism as somebody states it (``parameters``).
        reserved: the mechanism the subject was reserved for: its T is T_max (R18).
        replayed: ``replay`` of the log; None without a log.
        certain: ``certain_part`` of the log.
        log, ledger, account: facts, None where there is no such thing.
        ending: how a job or run ended.
        sweep: everything the sweep of this subject may run, composed; None without a sweep.
        privacy_unit: the dataset's.
        record_count: the dataset's n.
        record_count_is_public: whether n may be known.
        expected_batch_size: the largest normaliser recorded.
        dataset_matches: the run's data are those of the account, by fingerprint.
        stop_rule, tuning: what the subject's own record says.
        reproducible: the seed was fixed: the noise can be drawn again by whoever knows it.
        noise_regenerated: an auditor drew the committed noise again and found it equal.
        attested: trusted hardware attests the run.
        signatures_valid: of the log's leaves and checkpoint.
        separation: κ of the run under the claim's relation, for the sampler that ran.
        audits: finished empirical audits.
        sealed: sealed columns; only ever given for an auditor's check.
    """

    subject: SubjectKind
    declared: Event | None = None
    reserved: Event | None = None
    replayed: Event | None = None
    certain: Event | None = None
    log: LogFacts | None = None
    ledger: LedgerFacts | None = None
    account: AccountFacts | None = None
    ending: Ending | None = None
    sweep: Event | None = None
    privacy_unit: str | None = None
    record_count: int | None = None
    record_count_is_public: bool | None = None
    expected_batch_size: float | None = None
    dataset_matches: bool | None = None
    stop_rule: str | None = None
    tuning: str | None = None
    reproducible: bool = False
    noise_regenerated: bool = False
    attested: bool = False
    signatures_valid: bool | None = None
    separation: Interval | None = None
    audits: tuple[AuditFacts, ...] = ()
    sealed: SealedMeasures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one numbered check.

    Args:
        number: 1 to 11, as in docs.
        check: its name.
        result: what came out.
        detail: one or two sentences.
        visibility: ``auditor`` for outcomes of tests on sealed data (R25).
        effect: ``blocks`` keeps a claim from being supported, ``refutes`` proves it false.
    """

    number: int
    check: CheckName
    result: Result
    detail: str
    visibility: Visibility = "public"
    effect: Literal["none", "blocks", "refutes"] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The answer to a claim.

    Args:
        verdict: for the reader of this report; an auditor's counts sealed findings too.
        public_verdict: what follows from public findings alone: certificates rest on it.
        epsilon: certified interval at the claim's δ, relation and scope; [0, ∞) if the claim
            does not say enough to compute one.
        findings: failed ones first, then by number.
        strongest_supported_claim: the least ε, rounded up, that would be supported with all
            else equal; None if nothing would be.
        remedy: what would make the claim true, in words.
        evidence_level: how much the evidence is worth.
        not_examined: what nobody looked at.
        visibility: ``auditor`` if sealed data were examined: the whole report is then sealed.
    """

    verdict: Verdict
    public_verdict: Verdict
    epsilon: Interval
    findings: tuple[Finding, ...]
    strongest_supported_claim: Claim | None
    remedy: str
    evidence_level: EvidenceLevel
    not_examined: tuple[str, ...]
    visibility: Visibility


class EpsilonOf(Protocol):
    """Certified ε of an event; raises NotCertified or InvalidInput where there is none."""

    def __call__(self, event: Event, /, *, delta: float, neighboring: Neighboring) -> Interval:
        """The interval that holds the true ε."""
        ...
