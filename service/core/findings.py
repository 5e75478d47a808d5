"""The numbered checks of evidence, one function each: facts in, a finding out.

Numbers and order follow the report: (1) claim, (2) log, (3) parameters, (4) sampler, (5)
noise, (7) separation, (8) ledger, (9) tuning and stop rule, (10) signatures, (11) audits.
Step (6), the recomputed ε against the claim, is in ``compliance``.
"""

import math
from collections.abc import Sequence
from typing import Final

from service.core.bounds import epsilon_floor
from service.core.claims import Claim, Evidence, Finding, LogFacts, SealedMeasures
from service.core.events import (
    Composed,
    EpochDpSgd,
    Event,
    Repeated,
    Sampler,
    StepwiseDpSgd,
)
from service.core.log_statistics import ALPHA, Outcome, batch_sizes, noise_norms
from service.core.replay import departure, step_count

REQUIRED: Final = ("epsilon", "delta", "neighboring", "privacy_unit", "scope")
FIXED_STOP_RULES: Final = frozenset(
    {"fixed_steps", "fixed_epochs", "fixed_t", "fixed_T", "fixed_interruption"}
)
UNCOVERED_STOP_RULES: Final = frozenset({"private_validation", "raw_validation"})
# R19: what a way of choosing hyper-parameters leaves true, by scope.
ALLOWED_TUNING: Final = {
    "single_job": frozenset({"none", "public_data"}),
    "sweep": frozenset({"none", "public_data", "all_charged", "random_law"}),
    "dataset_lifetime": frozenset({"none", "public_data", "all_charged"}),
}


def claim_complete(claim: Claim, evidence: Evidence) -> Finding:
    """(1) Is everything stated that must be, and is it about this dataset's unit?"""
    missing = missing_fields(claim)
    if missing:
        return Finding(
            number=1,
            check="claim_complete",
            result="fail",
            detail=f"The claim does not state {', '.join(missing)}; nothing is guessed.",
        )
    if evidence.privacy_unit is None:
        detail = f"Complete. The unit {claim.privacy_unit!r} is the claimant's word."
    elif evidence.privacy_unit != claim.privacy_unit:
        return Finding(
            number=1,
            check="claim_complete",
            result="fail",
            effect="blocks",
            detail=f"The claim is about the unit {claim.privacy_unit!r}, the dataset's account "
            f"about {evidence.privacy_unit!r}.",
        )
    else:
        detail = "Complete, and about the dataset's own privacy unit."
    return Finding(number=1, check="claim_complete", result="pass", detail=detail)


def missing_fields(claim: Claim) -> tuple[str, ...]:
    """The names of the required fields that the claim does not state."""
    return tuple(name for name in REQUIRED if getattr(claim, name) is None)


def log_whole(evidence: Evidence) -> Finding:
    """(2) Is the log contiguous, as sealed, chained, and in the Merkle log?"""
    log = evidence.log
    fault = None if log is None else _log_fault(log)
    if fault is not None:
        return Finding(number=2, check="log_whole", result="fail", effect="blocks", detail=fault)
    if evidence.ending == "open":
        return Finding(
            number=2,
            check="log_whole",
            result="inconclusive",
            effect="blocks",
            detail=f"The run is still open; {log.steps if log else 0} steps so far.",
        )
    if log is None:
        detail = "No log: what follows rests on stated parameters."
        return Finding(number=2, check="log_whole", result="not_examined", detail=detail)
    seen = [f"{log.steps} contiguous steps"]
    for good, words in (
        (log.digests_match, "chunk digests"),
        (log.chained, "the chain of chunks"),
        (log.included, "Merkle inclusion"),
    ):
        seen.append(f"{words} {'right' if good else 'not examined'}")
    return Finding(number=2, check="log_whole", result="pass", detail="; ".join(seen) + ".")


def parameters_consistent(claim: Claim, evidence: Evidence) -> Finding:
    """(3) Did the run keep to its reservation, on the dataset of its account?"""

    def fails(detail: str, *, refutes: bool = False) -> Finding:
        return Finding(
            number=3,
            check="parameters_consistent",
            result="fail",
            effect="refutes" if refutes else "blocks",
            detail=detail,
        )

    if evidence.dataset_matches is False:
        return fails("The run's data are not those of the account it was charged to.")
    if evidence.replayed is None or evidence.reserved is None:
        return Finding(
            number=3,
            check="parameters_consistent",
            result="not_examined",
            detail="There is no log and reservation to compare with each other.",
        )
    try:
        found = departure(evidence.replayed, planned=evidence.reserved)
    except ValueError as error:
        return Finding(
            number=3,
            check="parameters_consistent",
            result="inconclusive",
            effect="blocks",
            detail=f"The log cannot be compared with the reservation: {error}.",
        )
    if found is not None:
        # A certified contradiction (R20): the log itself shows weaker steps than were declared.
        # What a cap promises the whole dataset stands all the same: they were charged (R12).
        return fails(
            f"Weaker than reserved. {found.detail}", refutes=claim.scope != "dataset_lifetime"
        )
    return Finding(
        number=3,
        check="parameters_consistent",
        result="pass",
        detail="Every step is at least as private as reserved.",
    )


def normaliser_public(claim: Claim, evidence: Evidence, *, event: Event | None) -> Finding | None:
    """(3) Under add_or_remove_one a normaliser made from a private n is a release (R6)."""
    private_n = evidence.record_count_is_public is False and evidence.record_count is not None
    if not private_n or claim.neighboring != "add_or_remove_one":
        return None
    batch, n = evidence.expected_batch_size, evidence.record_count
    rates = _rates(event)
    # Within 1 of q·n: rounded to nearest, down or up.
    if batch is None or n is None or not any(abs(batch - q * n) < 1 for q in rates):
        return None
    return Finding(
        number=3,
        check="parameters_consistent",
        result="fail",
        effect="blocks",
        detail="N_NOT_PROTECTED: n is private, but the expected batch size follows from it; "
        "under add_or_remove_one it is a release that nothing accounts for.",
    )


def sampler_as_claimed(claim: Claim, *, event: Event | None) -> Finding:
    """(4) Is the sampler that ran the one the claim speaks of?"""
    ran = samplers(event)
    if not ran:
        detail = "The mechanism draws no batches."
        return Finding(number=4, check="sampler_as_claimed", result="not_examined", detail=detail)
    shown = " and ".join(sorted(ran))
    if claim.sampler is not None and ran != {claim.sampler}:
        return Finding(
            number=4,
            check="sampler_as_claimed",
            result="fail",
            effect="refutes",
            detail=f"The claim says {claim.sampler}; the record says {shown}. What holds for "
            "one sampler does not hold for another.",
        )
    source = "as claimed" if claim.sampler else "taken from the record"
    return Finding(
        number=4,
        check="sampler_as_claimed",
        result="pass",
        detail=f"Sampler {shown}, {source}. Whether batches were truly drawn so is tested on "
        "sealed batch sizes, for auditors.",
    )


def samplers(event: Event | None) -> set[Sampler]:
    """The samplers of all DP-SGD steps in an event."""
    found: set[Sampler] = set()
    stack = [] if event is None else [event]
    while stack:
        item = stack.pop()
        match item:
            case StepwiseDpSgd() | EpochDpSgd():
                found.add(item.sampler)
            case Composed():
                stack += item.parts
            case Repeated():
                stack.append(item.of)
            case _:
                pass
    return found


def sealed_findings(evidence: Evidence, *, event: Event | None) -> tuple[Finding, ...]:
    """(2), (4) and (5) on sealed measures: for auditors alone."""
    sealed = evidence.sealed
    if sealed is None:
        return ()
    found: list[Finding] = []
    fault = _sealed_fault(sealed)
    if fault is not None or sealed.clock_forward is not None:
        found.append(
            Finding(
                number=2,
                check="log_whole",
                result="pass" if fault is None else "fail",
                effect="none" if fault is None else "blocks",
                visibility="auditor",
                detail=fault or "Times go forward.",
            )
        )
    sizes, rates, n = sealed.realized_batch_size, sealed.sampling_rate, evidence.record_count
    # Binomial draws are what Poisson sampling promises; other samplers promise other sizes.
    poisson = samplers(event) == {"poisson"}
    if poisson and sizes is not None and len(sizes) and rates is not None and n is not None:
        outcomes = batch_sizes(sizes, sampling_rate=rates, record_count=n)
        found.append(_statistical(4, "sampler_as_claimed", outcomes))
    norms, scale, d = sealed.noise_norm, sealed.noise_stddev, sealed.dimension
    noised = scale is not None and bool((scale > 0).all())
    if noised and norms is not None and len(norms) and scale is not None and d is not None:
        outcomes = noise_norms(norms, noise_stddev=scale, dimension=d)
        found.append(_statistical(5, "noise_plausible", outcomes))
    return tuple(found)


def noise_plausible(evidence: Evidence) -> Finding:
    """(5) What the public record says about the noise."""
    if evidence.noise_regenerated:
        return Finding(
            number=5,
            check="noise_plausible",
            result="pass",
            detail="An auditor drew the committed noise again and found it equal.",
        )
    if evidence.reproducible:
        detail = (
            "The seed was fixed: whoever knows it can take the noise off. The evidence counts "
            "as declared, whatever the log shows."
        )
    else:
        detail = "Tests of sealed noise norms are for auditors; their outcome stays sealed."
    return Finding(number=5, check="noise_plausible", result="not_examined", detail=detail)


def separation(claim: Claim, evidence: Evidence) -> Finding:
    """(7) Does the separation κ of the run leave room for the claimed ε?

    Source: TV = √2 κ and (ε, δ)-DP imply TV ≤ (e^ε − 1 + 2δ)/(e^ε + 1) (bounds: claim floor).
    """
    kappa = evidence.separation
    if kappa is None or claim.epsilon is None or claim.delta is None:
        detail = "The separation was not computed for this mechanism and relation."
        return Finding(number=7, check="separation", result="not_examined", detail=detail)
    tv = math.sqrt(2) * kappa.lower * (1 - 1e-15)  # κ = TV/√2; the root is rounded down
    floor = epsilon_floor(tv, delta=claim.delta)
    if floor > claim.epsilon:
        refutes = claim.release == "all_updates"
        return Finding(
            number=7,
            check="separation",
            result="fail" if refutes else "inconclusive",
            effect="refutes" if refutes else "none",
            detail=f"κ ≥ {kappa.lower:.5f} alone excludes every ε below {floor:.5f}.",
        )
    return Finding(
        number=7,
        check="separation",
        result="pass",
        detail=f"κ ≥ {kappa.lower:.5f} allows the claim: it excludes ε below {floor:.5f}.",
    )


def ledger(evidence: Evidence) -> Finding:
    """(8) Was everything that ran charged, within the reservation and the account?"""
    facts, account, log = evidence.ledger, evidence.account, evidence.log
    if facts is None:
        detail = "No reservation belongs to this subject."
        return Finding(number=8, check="ledger", result="not_examined", detail=detail)
    faults: list[str] = []
    settled, logged = facts.settled_steps, log.steps if log else 0
    least = max(facts.leased_steps or 0, logged)
    if settled is not None and settled < least:
        faults.append(f"{least} steps were leased or logged, only {settled} charged")
    if max(least, settled or 0) > facts.reserved_steps:
        faults.append(f"{max(least, settled or 0)} steps, {facts.reserved_steps} were reserved")
    if account is not None and account.state == "overdrawn":
        faults.append("the account is overdrawn: it promises nothing any more")
    if faults:
        return Finding(
            number=8,
            check="ledger",
            result="fail",
            effect="blocks",
            detail=_sentence(faults),
        )
    charged = "not settled yet" if settled is None else f"{settled} charged"
    return Finding(
        number=8,
        check="ledger",
        result="pass",
        detail=f"{facts.reserved_steps} steps reserved, {charged}, {logged} logged; "
        f"{facts.adjustments} adjustments of the account.",
    )


def stopped_early(claim: Claim, evidence: Evidence) -> bool:
    """True if steps ended before T_max for a cause that was not fixed beforehand (R18).

    A log that comes with a plan has no ending on record: fewer steps than planned are an early
    stop unless the claim says that the interruption was fixed.
    """
    if evidence.subject == "parameters" or evidence.reserved is None:
        return False
    if evidence.subject == "log":
        if "fixed_interruption" in (claim.stop_rule, evidence.stop_rule):
            return False
    elif evidence.ending == "fixed_interruption":
        return False
    elif evidence.ending != "completed":
        return True
    if evidence.replayed is None:
        return True
    try:
        return step_count(evidence.replayed) < step_count(evidence.reserved)
    except ValueError:
        return True


def tuning_and_stop_rule(claim: Claim, evidence: Evidence) -> Finding:
    """(9) Does what chose the run, and what ended it, leave the claim true (R18, R19)?"""

    def fails(detail: str) -> Finding:
        return Finding(
            number=9,
            check="tuning_and_stop_rule",
            result="fail",
            effect="blocks",
            detail=detail,
        )

    # The claimant's word never outweighs the subject's own record: both must be covered.
    stop_rules = {rule for rule in (claim.stop_rule, evidence.stop_rule) if rule is not None}
    tuning = [word for word in (evidence.tuning, claim.tuning) if word is not None]
    uncovered = [w for w in tuning if claim.scope and w not in ALLOWED_TUNING[claim.scope]]
    if uncovered:
        return fails(
            f"Tuning {uncovered[0]!r} is not covered by scope {claim.scope}: the best of several "
            "runs is not one run. Claim the sweep, with every run charged."
        )
    if stop_rules & UNCOVERED_STOP_RULES:
        return fails("A stop chosen on raw private validation data is a release of its own.")
    early = stopped_early(claim, evidence)
    ended_otherwise = evidence.subject != "log" and evidence.ending != "completed"
    if early and ended_otherwise and claim.stop_rule in FIXED_STOP_RULES:
        return fails(
            f"The claim says {claim.stop_rule}; the record says that the run ended "
            f"{evidence.ending or 'for an unknown cause'}."
        )
    open_ends = sorted(stop_rules - FIXED_STOP_RULES)
    if evidence.subject == "log" and evidence.reserved is None and open_ends:
        return fails(f"Stop rule {open_ends[0]!r}: the claim is that of T_max, not known here.")
    if early:
        ending = "ended before T_max for a cause not fixed beforehand: claimed at T_max"
    elif evidence.subject == "log" and evidence.reserved is None:
        ending = "no plan is on record: that the steps logged were fixed beforehand is the claim's"
    else:
        ending = "the steps accounted are all that were planned"
    chosen = tuning[0] if tuning else "none on record; a choice among runs was not looked for"
    return Finding(
        number=9,
        check="tuning_and_stop_rule",
        result="pass",
        detail=_sentence([ending, f"tuning: {chosen}"]),
    )


def signatures(evidence: Evidence) -> Finding:
    """(10) Are the signatures of the log's leaves and checkpoint good?"""
    match evidence.signatures_valid:
        case None:
            detail, result, effect = "No signed checkpoint was given.", "not_examined", "none"
        case True:
            detail, result, effect = "Leaves and checkpoint are signed.", "pass", "none"
        case False:
            detail, result, effect = "A signature does not verify.", "fail", "blocks"
    return Finding(number=10, check="signatures", result=result, effect=effect, detail=detail)


def empirical_audits(claim: Claim, evidence: Evidence) -> Finding:
    """(11) Does a finished audit speak against the claim (R21)?"""
    if not evidence.audits:
        detail = "No empirical audit of this subject."
        return Finding(number=11, check="empirical_audits", result="not_examined", detail=detail)
    against = [
        audit
        for audit in evidence.audits
        if claim.epsilon is not None
        and claim.delta is not None
        and audit.valid_for_any_mechanism
        and audit.delta >= claim.delta
        and audit.epsilon_lower > claim.epsilon
    ]
    if against:
        worst = max(against, key=lambda audit: audit.epsilon_lower)
        return Finding(
            number=11,
            check="empirical_audits",
            result="fail",
            effect="blocks",
            detail=f"{worst.audit_id}: ε ≥ {worst.epsilon_lower:.4f} at confidence "
            f"{worst.confidence:g}.",
        )
    return Finding(
        number=11,
        check="empirical_audits",
        result="inconclusive",
        detail=f"{len(evidence.audits)} audits found no violation; that is no proof.",
    )


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _log_fault(log: LogFacts) -> str | None:
    if log.fault is not None:
        return log.fault
    if not log.contiguous:
        return "Steps are missing from the log, or come twice."
    if log.digests_match is False:
        return "The records are not those that were sealed."
    if log.chained is False:
        return "The chunks do not follow each other."
    if log.included is False:
        return "A chunk is not in the Merkle log."
    return None


def _sealed_fault(sealed: SealedMeasures) -> str | None:
    if sealed.clock_forward is False:
        return "The clock goes back within the log."
    if sealed.shared_with:
        return f"The same measures belong to {', '.join(sealed.shared_with)}: one log, two runs."
    return None


def _rates(event: Event | None) -> set[float]:
    found: set[float] = set()
    stack = [] if event is None else [event]
    while stack:
        item = stack.pop()
        match item:
            case StepwiseDpSgd():
                found.update(s.sampling_rate for s in item.schedule)
            case EpochDpSgd():
                found.add(1 / item.updates_per_epoch)
            case Composed():
                stack += item.parts
            case Repeated():
                stack.append(item.of)
            case _:
                pass
    return found


def _statistical(number: int, check: str, outcomes: Sequence[Outcome]) -> Finding:
    assert check in ("sampler_as_claimed", "noise_plausible")
    misfits = [outcome for outcome in outcomes if not outcome.fits]
    shown = misfits or outcomes
    detail = "; ".join(f"{o.name}: {o.detail}" for o in shown)
    return Finding(
        number=number,
        check=check,
        result="fail" if misfits else "pass",
        effect="blocks" if misfits else "none",
        visibility="auditor",
        detail=f"{detail} (an honest run is flagged with probability {ALPHA:g}).",
    )
