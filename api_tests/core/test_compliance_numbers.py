"""Verdicts with true accounting: the figures that users will meet."""

import dataclasses

import pytest

from service.core.accounting.answers import epsilon
from service.core.claims import Claim, Evidence
from service.core.compliance import check
from service.core.events import EpochDpSgd, Gaussian, poisson

POISSON = poisson(sampling_rate=0.01, noise_multiplier=1.1, steps=3000)
SHUFFLED = EpochDpSgd(sampler="shuffle", updates_per_epoch=100, epochs=30, noise_multiplier=1.1)


def epsilon_of(event, /, *, delta, neighboring):
    return epsilon(event, delta=delta, neighboring=neighboring).epsilon


def judge(event, claimed, **changes):
    claim = Claim(
        epsilon=claimed,
        delta=1e-5,
        neighboring="add_or_remove_one",
        privacy_unit="record",
        scope="single_job",
    )
    return check(
        dataclasses.replace(claim, **changes),
        Evidence(subject="parameters", declared=event),
        epsilon_of=epsilon_of,
    )


@pytest.mark.parametrize(
    ("claimed", "verdict"),
    # True value 2.675476 (design figure 2.6755); the CLT approximation says 2.5412.
    [(2.6755, "supported"), (2.67548, "supported"), (2.6754, "refuted"), (2.5412, "refuted")],
)
def test_poisson_claims_are_decided_to_the_fifth_digit(claimed, verdict):
    assert judge(POISSON, claimed).verdict == verdict


def test_the_relation_of_the_claim_is_the_one_accounted():
    assert judge(POISSON, 2.6755, neighboring="replace_one").verdict == "refuted"
    assert judge(POISSON, 4.6118, neighboring="replace_one").verdict == "supported"


def test_R4_a_shuffled_run_at_the_poisson_number_is_refuted_by_its_own_lower_bound():
    report = judge(SHUFFLED, 2.6755, neighboring="zero_out")
    assert report.verdict == "refuted"
    assert 2.6755 < report.epsilon.lower <= report.epsilon.upper == pytest.approx(32.91, abs=0.01)
    assert judge(SHUFFLED, 32.92, neighboring="zero_out").verdict == "supported"
    assert judge(SHUFFLED, 20.0, neighboring="zero_out").verdict == "undetermined"


def test_no_noise_at_all_is_refuted():
    report = judge(Gaussian(noise_multiplier=0.0), 1e6)
    assert report.verdict == "refuted"
    assert report.epsilon.is_unbounded
