"""Forged logs and sealed measures are found, by those who may see them."""

import dataclasses

import numpy as np
import pytest

from api_tests.core.compliance_parts import (
    SHUFFLED,
    a_claim,
    a_run,
    finding,
    judge,
    log_of,
    stated,
)
from service.core.claims import (
    LedgerFacts,
    SealedMeasures,
)
from service.core.events import (
    Gaussian,
    poisson,
)

# --- forgeries ------------------------------------------------------------------------------


def test_less_noise_on_one_step_is_refuted():
    log = log_of()
    log[42] = dataclasses.replace(log[42], noise_multiplier=0.999999)
    report = judge(evidence=a_run(log))
    assert report.verdict == "refuted"
    assert "step 42" in finding(report, 3).detail
    assert report.strongest_supported_claim is None


@pytest.mark.parametrize(
    "log",
    [
        log_of(101),
        log_of(sampling_rate=0.0101),
        log_of(sampler="shuffle", epoch=0, updates_per_epoch=100),
        log_of(count_noise_stddev=1.0),
    ],
)
def test_weaker_steps_than_reserved_are_refuted(log):
    report = judge(a_claim(1e4), a_run(log, ledger=None))
    assert report.verdict == "refuted"
    assert report.findings[0].number == 3


def test_weaker_steps_leave_the_cap_of_the_dataset_undecided_not_false():
    report = judge(a_claim(8.0, scope="dataset_lifetime"), a_run(log_of(101), ledger=None))
    assert report.verdict == "undetermined"


@pytest.mark.parametrize(
    "change",
    [
        {"contiguous": False},
        {"digests_match": False},
        {"chained": False},
        {"included": False},
        {"fault": "Chunk 3 is not the one sealed."},
    ],
)
def test_R20_a_log_that_is_not_whole_is_undetermined_and_comes_first(change):
    run = a_run()
    assert run.log is not None
    broken = dataclasses.replace(run, log=dataclasses.replace(run.log, **change))
    for epsilon in (100.0, 0.001):
        report = judge(a_claim(epsilon), broken)
        assert report.verdict == "undetermined"
        assert report.findings[0].number == 2
        assert report.evidence_level == "declared"
        assert report.strongest_supported_claim is None


def test_another_dataset_is_found():
    report = judge(evidence=a_run(dataset_matches=False))
    assert (report.verdict, report.findings[0].number) == ("undetermined", 3)


def test_a_bad_signature_is_found():
    report = judge(evidence=a_run(signatures_valid=False))
    assert (report.verdict, report.findings[0].number) == ("undetermined", 10)


@pytest.mark.parametrize(
    "facts",
    [
        LedgerFacts(reserved_steps=100, leased_steps=100, settled_steps=99),
        LedgerFacts(reserved_steps=100, leased_steps=None, settled_steps=50),
        LedgerFacts(reserved_steps=90, leased_steps=100, settled_steps=100),
    ],
)
def test_what_was_not_charged_is_found(facts):
    report = judge(evidence=a_run(ledger=facts))
    assert (report.verdict, report.findings[0].number) == ("undetermined", 8)


def test_R6_a_normaliser_made_from_a_private_count_is_found():
    private = a_run(record_count_is_public=False)
    report = judge(evidence=private)
    assert report.verdict == "undetermined"
    assert "N_NOT_PROTECTED" in report.findings[0].detail
    assert judge(evidence=dataclasses.replace(private, expected_batch_size=120.0)).verdict == (
        "supported"
    )


@pytest.mark.parametrize("batch", [99.0, 99.5, 100.0])
def test_R6_a_private_count_is_found_in_a_batch_size_however_it_was_rounded(batch):
    private = a_run(record_count=9_960, record_count_is_public=False, expected_batch_size=batch)
    assert judge(evidence=private).verdict == "undetermined"


def test_a_reservation_that_is_not_made_of_steps_cannot_vouch_for_a_run():
    report = judge(a_claim(100.0), a_run(reserved=Gaussian(noise_multiplier=1.0), ledger=None))
    assert report.verdict == "undetermined"


# --- R25, R26: sealed data and seeds --------------------------------------------------------


def measured(*, sizes=None, norms=None, steps=400):
    rng = np.random.default_rng(0)
    rows = log_of(steps)
    plan = poisson(sampling_rate=0.01, noise_multiplier=1.0, steps=steps)
    return a_run(
        rows,
        reserved=plan,
        ledger=None,
        sealed=SealedMeasures(
            realized_batch_size=rng.binomial(10_000, 0.01, steps) if sizes is None else sizes,
            sampling_rate=np.full(steps, 0.01),
            noise_norm=np.sqrt(rng.chisquare(1000, steps)) if norms is None else norms,
            noise_stddev=np.ones(steps),
            dimension=1000,
            clock_forward=True,
        ),
    )


def test_an_honest_log_passes_the_auditors_tests():
    report = judge(a_claim(100.0), measured(), auditor=True)
    assert report.verdict == "supported"
    assert report.visibility == "auditor"
    assert {f.number for f in report.findings if f.visibility == "auditor"} == {2, 4, 5}


@pytest.mark.parametrize(
    ("evidence", "number"),
    [
        (measured(sizes=np.full(400, 100)), 4),
        (measured(sizes=np.random.default_rng(1).binomial(10_000, 0.02, 400)), 4),
        (measured(norms=0.99 * np.sqrt(np.random.default_rng(2).chisquare(1000, 400))), 5),
    ],
)
def test_a_forged_sealed_measure_is_seen_by_an_auditor_alone(evidence, number):
    sealed = judge(a_claim(100.0), evidence, auditor=True)
    assert (sealed.verdict, sealed.findings[0].number) == ("undetermined", number)
    assert sealed.public_verdict == "supported"
    open_report = judge(a_claim(100.0), evidence)
    assert open_report.verdict == "supported"
    assert open_report.visibility == "public"


@pytest.mark.parametrize("change", [{"clock_forward": False}, {"shared_with": ("run_2",)}])
def test_a_clock_that_goes_back_and_a_log_of_two_runs_are_seen_by_an_auditor(change):
    honest = measured()
    assert honest.sealed is not None
    forged = dataclasses.replace(honest, sealed=dataclasses.replace(honest.sealed, **change))
    report = judge(a_claim(100.0), forged, auditor=True)
    assert (report.verdict, report.findings[0].number) == ("undetermined", 2)
    assert judge(a_claim(100.0), forged).verdict == "supported"


def test_R25_a_public_report_does_not_depend_on_sealed_measures():
    forged = measured(sizes=np.full(400, 7))
    assert judge(a_claim(), forged) == judge(a_claim(), measured())


def test_R26_a_reproducible_run_is_worth_no_more_than_declared():
    assert judge(evidence=a_run(reproducible=True, attested=True)).evidence_level == "declared"


def test_the_evidence_level_follows_the_evidence():
    assert judge(evidence=stated()).evidence_level == "declared"
    assert judge(evidence=a_run(noise_regenerated=True)).evidence_level == "replayed"
    assert judge(evidence=a_run(attested=True)).evidence_level == "attested"


def test_R6_a_shuffled_batch_size_made_from_a_private_count_is_found_too():
    private = stated(
        SHUFFLED, record_count=10_000, record_count_is_public=False, expected_batch_size=100.0
    )
    assert judge(a_claim(100.0), private).verdict == "undetermined"
    assert judge(a_claim(100.0, neighboring="zero_out"), private).verdict == "supported"


def test_sealed_measures_of_no_steps_decide_nothing():
    empty = SealedMeasures(
        realized_batch_size=np.zeros(0, dtype=np.int64),
        sampling_rate=np.zeros(0),
        noise_norm=np.zeros(0),
        noise_stddev=np.zeros(0),
        dimension=3,
    )
    assert judge(evidence=a_run(sealed=empty), auditor=True).verdict == "supported"
