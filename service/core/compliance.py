"""Compliance checks: a claim and the evidence about it in, a verdict out.

The verdict follows R20:

* ``incomplete``: a required field of the claim is not stated;
* ``refuted``: the certified lower end, rounded down, is above the claim (for the release
  scope ``all_updates``), or the record contradicts it: another sampler, weaker steps;
* ``supported``: the certified upper end is at most the claim and no check failed;
* ``undetermined``: anything else. If the log itself is not whole, nothing is certified on
  it, in either direction.

Outcomes of tests on sealed data appear only in a check made for an auditor, whose whole report
is then sealed; ``public_verdict`` never depends on them (R25).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Final

from service.core import findings
from service.core.claims import (
    Claim,
    EpsilonOf,
    Evidence,
    EvidenceLevel,
    Finding,
    Report,
    Verdict,
)
from service.core.errors import InvalidInput
from service.core.events import NOTHING, Event
from service.core.interval import Interval

DIGITS: Final = 6  # significant digits of a rounded ε
UNKNOWN: Final = Interval(0.0, math.inf)
NEVER_EXAMINED: Final = (
    "that the noise was drawn as recorded, from a cryptographic generator",
    "that every record's contribution was clipped as recorded",
    "choices made outside of the record, such as hyper-parameters",
    "floating-point and timing side channels of the trainer",
)


def check(
    claim: Claim, evidence: Evidence, *, epsilon_of: EpsilonOf, auditor: bool = False
) -> Report:
    """Judge a claim by the evidence.

    Guarantees: ``supported`` and ``refuted`` rest on certified ends of the interval, at the
    claim's own δ and relation, for the sampler that ran (R4). Sealed measures are looked at
    only if ``auditor`` is true.

    Args:
        claim: what is claimed.
        evidence: what is known.
        epsilon_of: certified accounting; what it refuses is reported, never guessed.
        auditor: the reader may see sealed outcomes (scope ``audit:read``).

    Returns:
        The report; it is sealed if ``auditor`` is true and there were sealed measures.

    Source: R17 to R21 of the privacy rules.
    """
    priced = _price(claim, evidence, epsilon_of)
    found = [
        findings.claim_complete(claim, evidence),
        findings.log_whole(evidence),
        findings.parameters_consistent(claim, evidence),
        findings.normaliser_public(claim, evidence, event=priced.event),
        findings.sampler_as_claimed(claim, event=_ran(evidence)),
        findings.noise_plausible(evidence),
        _epsilon_recomputed(claim, priced),
        findings.separation(claim, evidence),
        findings.ledger(evidence),
        findings.tuning_and_stop_rule(claim, evidence),
        findings.signatures(evidence),
        findings.empirical_audits(claim, evidence),
    ]
    public = [finding for finding in found if finding is not None]
    sealed = findings.sealed_findings(evidence, event=_ran(evidence)) if auditor else ()
    everything = [*public, *sealed]
    strongest = _strongest(claim, everything, priced, ran=_ran(evidence))
    return Report(
        verdict=_verdict(claim, everything),
        public_verdict=_verdict(claim, public),
        epsilon=priced.interval,
        findings=_ordered(everything),
        strongest_supported_claim=strongest,
        remedy=_remedy(claim, everything, priced, strongest),
        evidence_level=_level(evidence, everything),
        not_examined=(
            *(f"{f.check}: {f.detail}" for f in everything if f.result == "not_examined"),
            *NEVER_EXAMINED,
        ),
        visibility="auditor" if sealed else "public",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Priced:
    """The interval of a claim's scope, what it is that of, and why it is not narrower."""

    interval: Interval
    event: Event | None
    basis: str


def _price(claim: Claim, evidence: Evidence, epsilon_of: EpsilonOf) -> _Priced:
    ran = _ran(evidence)
    if claim.delta is None or claim.neighboring is None or ran is None:
        what = "δ and the relation" if ran is not None else "a mechanism or a log"
        return _Priced(interval=UNKNOWN, event=ran, basis=f"Nothing to compute without {what}.")
    refusals: list[str] = []

    def interval(event: Event) -> Interval:
        assert claim.delta is not None
        assert claim.neighboring is not None
        try:
            return epsilon_of(event, delta=claim.delta, neighboring=claim.neighboring)
        except InvalidInput as error:  # NotCertified, or a relation the event has no bound for
            refusals.append(error.message)
            return UNKNOWN

    known = _certain(evidence)
    whole = interval(ran)
    lower = whole.lower if known == ran else interval(known).lower
    match claim.scope:
        case "dataset_lifetime":
            upper, basis = _lifetime(claim, evidence)
        case "sweep" if evidence.sweep is None:
            upper, basis = math.inf, "No sweep is on record: what all its runs cost is not known."
        case "sweep":
            assert evidence.sweep is not None
            upper, basis = interval(evidence.sweep).upper, "All that the sweep may run."
        case _:
            upper, basis = _job(claim, evidence, whole.upper, interval)
    if refusals:
        basis = f"{basis} Not certified: {refusals[0]}"
    if lower > upper:
        # A cap below what one run certainly costs is no guarantee at all.
        upper = math.inf
    return _Priced(interval=Interval(lower, upper), event=ran, basis=basis)


def _job(
    claim: Claim, evidence: Evidence, executed: float, interval: Callable[[Event], Interval]
) -> tuple[float, str]:
    """What bounds the ε of the job alone, given that of the steps as logged."""
    if evidence.log is not None and not evidence.log.contiguous:
        return math.inf, "Steps are missing from the log: what they cost is not known."
    if findings.stopped_early(claim, evidence):
        assert evidence.reserved is not None
        upper = max(executed, interval(evidence.reserved).upper)
        return upper, "T_max as reserved: the stop was not fixed beforehand."
    return executed, "The steps as executed."


def _ran(evidence: Evidence) -> Event | None:
    """What was done, at what it costs; without a log, what was declared or reserved."""
    if evidence.replayed is not None:
        return evidence.replayed
    return evidence.declared if evidence.declared is not None else evidence.reserved


def _certain(evidence: Evidence) -> Event:
    """What was certainly done: a lower bound may rest on it."""
    if evidence.replayed is not None:
        return NOTHING if evidence.certain is None else evidence.certain
    if evidence.subject == "parameters" and evidence.declared is not None:
        return evidence.declared  # the claim is about the mechanism itself
    return NOTHING


def _lifetime(claim: Claim, evidence: Evidence) -> tuple[float, str]:
    """A ledger promises caps only (R7, R10)."""
    account = evidence.account
    if account is None:
        return math.inf, "No account is on record: nothing caps the dataset."
    assert claim.delta is not None
    if account.state == "overdrawn":
        return math.inf, "The account is overdrawn: its cap is no promise any more."
    if account.neighboring != claim.neighboring:
        return math.inf, f"The account's cap is about {account.neighboring}."
    if claim.privacy_unit is not None and account.privacy_unit != claim.privacy_unit:
        return math.inf, f"The account's cap is about the unit {account.privacy_unit!r}."
    if claim.delta < account.delta:
        return math.inf, f"The account's cap holds at δ = {account.delta:g}, not below."
    return account.epsilon, f"The account's cap, at δ = {account.delta:g}."


def _epsilon_recomputed(claim: Claim, priced: _Priced) -> Finding:
    """(6) The interval against the claim."""
    interval = priced.interval
    shown = f"ε lies in [{_shown(interval.lower, up=False)}, {_shown(interval.upper, up=True)}]"
    if claim.epsilon is None or interval == UNKNOWN:
        return Finding(
            number=6, check="epsilon_recomputed", result="inconclusive", detail=priced.basis
        )
    if rounded(interval.lower, up=False) > claim.epsilon:
        if claim.release == "all_updates":
            return Finding(
                number=6,
                check="epsilon_recomputed",
                result="fail",
                effect="refutes",
                detail=f"{shown}, above the claimed {claim.epsilon:g}. {priced.basis}",
            )
        return Finding(
            number=6,
            check="epsilon_recomputed",
            result="inconclusive",
            detail=f"{shown} for whoever sees all updates; the claim of {claim.epsilon:g} is "
            f"about the final model alone, for which no lower bound is known. {priced.basis}",
        )
    within = interval.upper <= claim.epsilon
    return Finding(
        number=6,
        check="epsilon_recomputed",
        result="pass" if within else "inconclusive",
        detail=f"{shown}, {'within' if within else 'neither below nor above'} the claimed "
        f"{claim.epsilon:g}. {priced.basis}",
    )


def _verdict(claim: Claim, found: Sequence[Finding]) -> Verdict:
    if findings.missing_fields(claim):
        return "incomplete"
    if any(f.number == 2 and f.effect == "blocks" for f in found):
        return "undetermined"  # a log that is not whole certifies nothing
    if any(f.effect == "refutes" for f in found):
        return "refuted"
    if any(f.effect == "blocks" for f in found):
        return "undetermined"
    within = any(f.check == "epsilon_recomputed" and f.result == "pass" for f in found)
    return "supported" if within else "undetermined"


def _strongest(
    claim: Claim, found: Sequence[Finding], priced: _Priced, *, ran: Event | None
) -> Claim | None:
    """The claim with the least ε that this evidence supports, all else as claimed."""
    # The claim itself can be put right for these: its ε, its sampler, its missing ε.
    numeric = ("epsilon_recomputed", "separation", "sampler_as_claimed")
    fatal = [
        f
        for f in found
        if f.effect != "none" and (f.check not in numeric or f.visibility == "auditor")
    ]
    missing = set(findings.missing_fields(claim)) - {"epsilon"}
    if fatal or missing or priced.interval.is_unbounded:
        return None
    ran_samplers = findings.samplers(ran)
    sampler = claim.sampler
    if sampler is not None and ran_samplers != {sampler}:
        sampler = next(iter(ran_samplers)) if len(ran_samplers) == 1 else None
    return dataclasses.replace(
        claim, epsilon=rounded(priced.interval.upper, up=True), sampler=sampler
    )


def _remedy(
    claim: Claim, found: Sequence[Finding], priced: _Priced, strongest: Claim | None
) -> str:
    missing = findings.missing_fields(claim)
    if missing:
        return f"State {', '.join(missing)}."
    blocking = [f for f in found if f.effect != "none" and f.check != "epsilon_recomputed"]
    if strongest is None:
        if blocking:
            return f"No ε is supported while this stands: {blocking[0].detail}"
        return f"No finite ε is certified. {priced.basis}"
    assert strongest.epsilon is not None
    assert claim.epsilon is not None
    if strongest.epsilon <= claim.epsilon and not blocking:
        return f"Nothing: the evidence supports ε = {strongest.epsilon:g} already."
    sampler = f" for sampler {strongest.sampler}" if strongest.sampler != claim.sampler else ""
    return f"Claim ε = {strongest.epsilon:g} or more{sampler}, with all else as it is."


def _level(evidence: Evidence, found: Sequence[Finding]) -> EvidenceLevel:
    whole = all(f.result == "pass" for f in found if f.check == "log_whole")
    # A log that was only sent along is its sender's word, however consistent.
    sent_along = evidence.subject == "log"
    if evidence.log is None or not whole or sent_along or evidence.reproducible:  # R26
        return "declared"
    if evidence.attested:
        return "attested"
    return "replayed" if evidence.noise_regenerated else "logged"


def _ordered(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Failed ones first (R20), then by number."""
    return tuple(sorted(found, key=lambda f: (f.result != "fail", f.number)))


def rounded(value: float, *, up: bool) -> float:
    """``value`` at six significant digits, rounded in one direction.

    Guarantees: up gives at least, down at most ``value``; infinity stays.
    """
    if math.isinf(value):
        return value
    context = Context(prec=DIGITS, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    return float(context.create_decimal(Decimal(value)))


def _shown(value: float, *, up: bool) -> str:
    return "∞" if math.isinf(value) else f"{rounded(value, up=up):.6g}"
