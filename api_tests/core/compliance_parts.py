"""A claim, the evidence for it, and a stand-in for accounting: shared by the compliance tests."""

import dataclasses
import math

from service.core.claims import (
    AccountFacts,
    Claim,
    Evidence,
    LedgerFacts,
    LogFacts,
)
from service.core.compliance import check
from service.core.events import (
    Composed,
    EpochDpSgd,
    Event,
    Repeated,
    StepwiseDpSgd,
    poisson,
)
from service.core.interval import Interval
from service.core.noise_log import StepRecord
from service.core.replay import certain_part, replay

PLAN = poisson(sampling_rate=0.01, noise_multiplier=1.0, steps=100)
SHUFFLED = EpochDpSgd(sampler="shuffle", updates_per_epoch=100, epochs=1, noise_multiplier=1.0)
RECORD = StepRecord(
    step=0,
    noise_multiplier=1.0,
    max_grad_norm=1.0,
    sampler="poisson",
    sampling_rate=0.01,
    expected_batch_size=100.0,
)


def size(event):
    """A stand-in for accounting: monotone in every parameter, dearer without amplification."""
    match event:
        case StepwiseDpSgd():
            return sum(
                s.steps * (s.sampling_rate / s.noise_multiplier) ** 2 for s in event.schedule
            )
        case EpochDpSgd():
            return event.epochs / event.noise_multiplier**2
        case Composed():
            return sum(size(part) for part in event.parts)
        case Repeated():
            return event.times * size(event.of)
        case _:
            return event.count / event.noise_multiplier**2


def epsilon_of(event, *, delta, neighboring):
    factor = 20 * (2 if neighboring == "replace_one" else 1) * math.sqrt(-math.log(delta) / 10)
    exact = factor * math.sqrt(size(event))
    return Interval(0.99 * exact, 1.01 * exact)


def upper(event, delta=1e-5):
    return epsilon_of(event, delta=delta, neighboring="add_or_remove_one").upper


def lower(event, delta=1e-5):
    return epsilon_of(event, delta=delta, neighboring="add_or_remove_one").lower


def a_claim(epsilon=None, **changes):
    base = Claim(
        epsilon=upper(PLAN) + 0.01 if epsilon is None else epsilon,
        delta=1e-5,
        neighboring="add_or_remove_one",
        privacy_unit="record",
        scope="single_job",
    )
    return dataclasses.replace(base, **changes)


def log_of(steps=100, **changes):
    return [dataclasses.replace(RECORD, step=i, **changes) for i in range(steps)]


def a_run(log=None, **changes):
    rows = log_of() if log is None else log
    base = Evidence(
        subject="run",
        reserved=PLAN,
        replayed=replay(rows),
        certain=certain_part(rows),
        log=LogFacts(
            steps=len(rows),
            contiguous=True,
            digests_match=True,
            chained=True,
            included=True,
            sealed=True,
        ),
        ledger=LedgerFacts(reserved_steps=100, leased_steps=len(rows), settled_steps=len(rows)),
        account=AccountFacts(
            epsilon=8.0,
            delta=1e-5,
            neighboring="add_or_remove_one",
            privacy_unit="record",
            state="open",
        ),
        ending="completed",
        privacy_unit="record",
        record_count=10_000,
        record_count_is_public=True,
        expected_batch_size=100.0,
        dataset_matches=True,
        signatures_valid=True,
    )
    return dataclasses.replace(base, **changes)


def stated(event: Event = PLAN, **changes):
    return dataclasses.replace(Evidence(subject="parameters", declared=event), **changes)


def judge(claim=None, evidence=None, **options):
    return check(claim or a_claim(), evidence or a_run(), epsilon_of=epsilon_of, **options)


def finding(report, number):
    return next(f for f in report.findings if f.number == number)
