"""Verdicts follow the privacy rules, each rule by name."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_tests.core.compliance_parts import (
    PLAN,
    SHUFFLED,
    a_claim,
    a_run,
    finding,
    judge,
    log_of,
    lower,
    stated,
    upper,
)
from service.core.claims import (
    AuditFacts,
    Evidence,
    LogFacts,
)
from service.core.compliance import check, rounded
from service.core.errors import InvalidInput, NotCertified
from service.core.events import (
    Composed,
    Gaussian,
    Repeated,
    poisson,
)
from service.core.interval import Interval
from service.core.replay import certain_part, replay

# --- R20: the four verdicts ------------------------------------------------------------------


def test_R20_a_true_claim_with_whole_evidence_is_supported():
    report = judge()
    assert report.verdict == "supported"
    assert report.epsilon == Interval(lower(PLAN), upper(PLAN))
    assert [f.number for f in report.findings] == list(range(1, 12))
    assert report.evidence_level == "logged"


def test_R20_the_upper_end_itself_is_supported_and_just_below_is_not():
    assert judge(a_claim(upper(PLAN))).verdict == "supported"
    assert judge(a_claim(math.nextafter(upper(PLAN), 0))).verdict == "undetermined"


def test_R20_a_claim_below_the_lower_end_is_refuted():
    report = judge(a_claim(lower(PLAN) * 0.99))
    assert report.verdict == "refuted"
    assert report.findings[0].check == "epsilon_recomputed"
    assert report.findings[0].result == "fail"


def test_R20_the_lower_end_is_rounded_down_before_it_refutes():
    assert judge(a_claim(rounded(lower(PLAN), up=False))).verdict == "undetermined"


def test_R20_a_claim_between_the_ends_is_undetermined():
    assert judge(a_claim((lower(PLAN) + upper(PLAN)) / 2)).verdict == "undetermined"


@pytest.mark.parametrize("name", ["epsilon", "delta", "neighboring", "privacy_unit", "scope"])
def test_R17_a_claim_that_leaves_out_a_required_field_is_incomplete(name):
    report = judge(dataclasses.replace(a_claim(), **{name: None}))
    assert report.verdict == "incomplete"
    assert report.findings[0].check == "claim_complete"
    assert name in report.findings[0].detail
    assert name in report.remedy


def test_R17_nothing_is_computed_from_a_delta_or_relation_that_is_not_stated():
    for name in ("delta", "neighboring"):
        report = judge(dataclasses.replace(a_claim(), **{name: None}))
        assert report.epsilon == Interval(0.0, math.inf)
        assert report.strongest_supported_claim is None


def test_R17_the_least_epsilon_is_told_when_epsilon_alone_is_missing():
    report = judge(dataclasses.replace(a_claim(), epsilon=None))
    assert report.strongest_supported_claim is not None
    assert report.strongest_supported_claim.epsilon == rounded(upper(PLAN), up=True)


def test_R17_another_privacy_unit_is_never_supported():
    report = judge(a_claim(privacy_unit="user"))
    assert report.verdict == "undetermined"
    assert report.findings[0].number == 1


def test_R20_a_lower_bound_on_all_updates_does_not_refute_the_final_model():
    report = judge(a_claim(lower(PLAN) / 2, release="final_model"))
    assert report.verdict == "undetermined"
    assert "final model" in finding(report, 6).detail


def test_R20_the_upper_end_supports_the_final_model_too():
    assert judge(a_claim(release="final_model")).verdict == "supported"


def test_R20_another_sampler_than_claimed_is_refuted_whatever_the_epsilon():
    report = judge(a_claim(1e6, sampler="poisson"), stated(SHUFFLED))
    assert report.verdict == "refuted"
    assert finding(report, 4).result == "fail"
    strongest = report.strongest_supported_claim
    assert strongest is not None
    assert strongest.sampler == "shuffle"
    assert judge(strongest, stated(SHUFFLED)).verdict == "supported"


def test_R4_a_shuffled_run_claimed_at_the_epsilon_of_poisson_is_refuted_with_the_number():
    report = judge(a_claim(upper(PLAN)), stated(SHUFFLED))
    assert report.verdict == "refuted"
    assert report.epsilon.lower == lower(SHUFFLED)
    assert f"{rounded(lower(SHUFFLED), up=False):.6g}" in finding(report, 6).detail
    assert f"{rounded(upper(SHUFFLED), up=True):.6g}" in report.remedy


def test_R20_what_cannot_be_certified_is_undetermined():
    for refusal in (NotCertified("too small"), InvalidInput("no bound", pointer="/neighboring")):

        def refuses(_event, *, refusal=refusal, **_options):
            raise refusal

        report = check(a_claim(), a_run(), epsilon_of=refuses)
        assert report.verdict == "undetermined"
        assert refusal.message in finding(report, 6).detail
        assert report.epsilon == Interval(0.0, math.inf)


def test_R20_no_noise_is_refuted_at_any_epsilon():
    def unbounded(_event, **_options):
        return Interval(math.inf, math.inf)

    report = check(a_claim(1e300), stated(), epsilon_of=unbounded)
    assert report.verdict == "refuted"
    assert report.strongest_supported_claim is None


@given(
    claimed=st.floats(0.01, 50),
    steps=st.integers(1, 300),
    sigma=st.floats(0.5, 5),
)
def test_R20_supported_and_refuted_rest_on_certified_ends(claimed, steps, sigma):
    event = poisson(sampling_rate=0.01, noise_multiplier=sigma, steps=steps)
    report = judge(a_claim(claimed), stated(event))
    if report.verdict == "supported":
        assert upper(event) <= claimed
    elif report.verdict == "refuted":
        assert lower(event) > claimed
    else:
        assert report.verdict == "undetermined"
        assert rounded(lower(event), up=False) <= claimed < upper(event)


@given(
    claimed=st.floats(0.01, 50),
    steps=st.integers(1, 300),
    sampler=st.sampled_from([None, "poisson"]),
)
def test_the_strongest_supported_claim_is_supported_and_no_smaller_one(claimed, steps, sampler):
    event = poisson(sampling_rate=0.01, noise_multiplier=1.0, steps=steps)
    strongest = judge(a_claim(claimed, sampler=sampler), stated(event)).strongest_supported_claim
    assert strongest is not None
    assert strongest.epsilon is not None
    assert judge(strongest, stated(event)).verdict == "supported"
    smaller = dataclasses.replace(strongest, epsilon=strongest.epsilon * (1 - 2e-5))
    assert judge(smaller, stated(event)).verdict != "supported"


# --- R18: stop rules ------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["cancelled", "failed", "deadline", "unknown", "completed"])
def test_R18_a_run_that_stopped_early_is_claimed_at_t_max(ending):
    half = log_of(50)
    early = a_run(half, ending=ending)
    assert judge(a_claim(upper(replay(half))), early).verdict == "undetermined"
    report = judge(a_claim(upper(PLAN)), early)
    assert report.verdict == "supported"
    assert report.epsilon.upper == upper(PLAN)
    assert report.epsilon.lower == lower(replay(half))
    assert "T_max" in finding(report, 6).detail


def test_R18_a_stop_fixed_beforehand_is_claimed_at_its_own_steps():
    half = log_of(50)
    report = judge(a_claim(upper(replay(half))), a_run(half, ending="fixed_interruption"))
    assert report.verdict == "supported"


def test_R18_a_claim_cannot_declare_a_crash_to_have_been_planned():
    report = judge(a_claim(stop_rule="fixed_steps"), a_run(log_of(50), ending="failed"))
    assert report.verdict == "undetermined"
    assert report.findings[0].number == 9


def test_R18_a_stop_on_raw_private_validation_is_not_covered():
    assert judge(a_claim(stop_rule="private_validation")).verdict == "undetermined"


def test_R18_a_log_with_an_open_end_needs_its_t_max():
    rows = log_of()
    log = Evidence(
        subject="log",
        replayed=replay(rows),
        certain=certain_part(rows),
        log=LogFacts(steps=100, contiguous=True),
    )
    assert judge(a_claim(stop_rule="output_dependent"), log).verdict == "undetermined"
    assert judge(a_claim(stop_rule="fixed_steps"), log).verdict == "supported"
    assert judge(a_claim(), log).evidence_level == "declared"


def test_R18_a_log_shorter_than_its_plan_is_claimed_at_the_plan():
    half = log_of(50)
    log = Evidence(
        subject="log",
        reserved=PLAN,
        replayed=replay(half),
        certain=certain_part(half),
        log=LogFacts(steps=50, contiguous=True),
    )
    for rule in (None, "output_dependent", "fixed_steps"):
        report = judge(a_claim(upper(replay(half)), stop_rule=rule), log)
        assert report.verdict == "undetermined"
        assert report.epsilon.upper == upper(PLAN)
    planned_stop = a_claim(upper(replay(half)), stop_rule="fixed_interruption")
    assert judge(planned_stop, log).verdict == "supported"


@pytest.mark.parametrize(
    ("claimed", "recorded"),
    [
        ({"stop_rule": "fixed_steps"}, {"stop_rule": "private_validation"}),
        ({"tuning": "none"}, {"tuning": "best_of_k"}),
        ({"tuning": "best_of_k"}, {"tuning": "none"}),
    ],
)
def test_R17_the_claimants_word_never_outweighs_the_record(claimed, recorded):
    report = judge(a_claim(**claimed), a_run(**recorded))
    assert (report.verdict, report.findings[0].number) == ("undetermined", 9)


def test_a_run_that_is_still_open_is_undetermined():
    assert judge(evidence=a_run(log_of(50), ending="open")).verdict == "undetermined"
    assert (
        judge(evidence=Evidence(subject="training_job", reserved=PLAN, ending="open")).verdict
        == "undetermined"
    )


def test_what_was_reserved_but_never_ran_has_no_lower_bound():
    queued = Evidence(subject="training_job", reserved=PLAN, ending="cancelled")
    report = judge(a_claim(0.001), queued)
    assert (report.verdict, report.epsilon.lower) == ("undetermined", 0.0)


# --- R19: tuning ----------------------------------------------------------------------------


def test_R19_the_best_of_several_runs_is_not_one_run():
    for claim, evidence in (
        (a_claim(tuning="best_of_k"), a_run()),
        (a_claim(), a_run(tuning="sweep")),
        (a_claim(tuning="none"), a_run(tuning="sweep")),
    ):
        report = judge(claim, evidence)
        assert report.verdict == "undetermined"
        assert report.findings[0].number == 9


def test_R19_public_data_may_choose():
    assert judge(a_claim(tuning="public_data")).verdict == "supported"


def test_a_sweep_claim_without_a_recorded_sweep_is_undetermined():
    report = judge(a_claim(100.0, scope="sweep"))
    assert report.verdict == "undetermined"
    assert "sweep" in finding(report, 6).detail


def test_a_sweep_claim_pays_for_all_that_the_sweep_may_run():
    sweep = Repeated(of=PLAN, times=4)
    evidence = a_run(sweep=sweep)
    assert judge(a_claim(upper(sweep), scope="sweep"), evidence).verdict == "supported"
    assert judge(a_claim(upper(PLAN), scope="sweep"), evidence).verdict == "undetermined"


# --- the lifetime of a dataset: caps only ---------------------------------------------------


def test_R10_a_lifetime_claim_rests_on_the_cap():
    assert judge(a_claim(8.0, scope="dataset_lifetime")).verdict == "supported"
    report = judge(a_claim(7.9, scope="dataset_lifetime"))
    assert report.verdict == "undetermined"
    assert report.strongest_supported_claim is not None
    assert report.strongest_supported_claim.epsilon == 8.0
    assert judge(a_claim(lower(PLAN) / 2, scope="dataset_lifetime")).verdict == "refuted"


@pytest.mark.parametrize(
    "change",
    [
        {"state": "overdrawn"},
        {"delta": 1e-4},
        {"neighboring": "replace_one"},
        {"privacy_unit": "user"},
        None,
    ],
)
def test_R7_a_cap_promises_nothing_beyond_its_own_words(change):
    run = a_run()
    assert run.account is not None
    account = None if change is None else dataclasses.replace(run.account, **change)
    report = judge(a_claim(8.0, scope="dataset_lifetime"), a_run(account=account))
    assert report.verdict == "undetermined"
    assert report.epsilon.is_unbounded


def test_R13_an_overdrawn_account_stops_single_claims_too():
    run = a_run()
    assert run.account is not None
    overdrawn = a_run(account=dataclasses.replace(run.account, state="overdrawn"))
    report = judge(evidence=overdrawn)
    assert report.verdict == "undetermined"
    assert report.findings[0].number == 8


# --- separation and audits ------------------------------------------------------------------


def test_a_separation_that_excludes_the_claim_refutes_it():
    kappa = Interval(0.5, 0.6)
    evidence = stated(separation=kappa)
    assert judge(a_claim(1.7), evidence).verdict == "refuted"
    assert finding(judge(a_claim(1.7), evidence), 7).result == "fail"
    assert judge(a_claim(1.7, release="final_model"), evidence).verdict == "undetermined"
    assert finding(judge(a_claim(100.0), evidence), 7).result == "pass"


def test_a_separation_of_one_over_root_eight_excludes_what_is_below_the_log_of_three():
    evidence = stated(separation=Interval(1 / math.sqrt(8), 0.6))
    just_below, just_above = math.log(3) - 1e-4, math.log(3) + 1e-4
    assert finding(judge(a_claim(just_below), evidence), 7).result == "fail"
    assert finding(judge(a_claim(just_above), evidence), 7).result == "pass"


def test_R21_an_audit_against_the_claim_blocks_it_and_silence_is_no_proof():
    audit = AuditFacts(
        audit_id="aud_1",
        epsilon_lower=50.0,
        delta=1e-5,
        confidence=0.99,
        valid_for_any_mechanism=True,
    )
    assert judge(evidence=a_run(audits=(audit,))).verdict == "undetermined"
    weak = dataclasses.replace(audit, valid_for_any_mechanism=False)
    report = judge(evidence=a_run(audits=(weak,)))
    assert report.verdict == "supported"
    assert finding(report, 11).result == "inconclusive"


@given(st.floats(1e-9, 1e9))
def test_rounding_goes_the_way_it_says(value):
    assert rounded(value, up=False) <= value <= rounded(value, up=True)
    assert rounded(value, up=True) <= value * (1 + 1.1e-5)


@pytest.mark.parametrize(
    "event",
    [
        Gaussian(noise_multiplier=5.0),
        Composed(parts=(PLAN, Repeated(of=Gaussian(noise_multiplier=9.0), times=3))),
    ],
)
def test_a_claim_may_be_about_any_mechanism(event):
    report = judge(a_claim(upper(event)), stated(event))
    assert report.verdict == "supported"
    drawn = "poisson" in finding(report, 4).detail
    assert drawn == isinstance(event, Composed)


def test_several_samplers_are_none_that_a_claim_could_name():
    both = Composed(parts=(PLAN, SHUFFLED))
    report = judge(a_claim(100.0, sampler="poisson"), stated(both))
    assert report.verdict == "refuted"
    assert report.strongest_supported_claim is not None
    assert report.strongest_supported_claim.sampler is None


def test_a_claim_about_nothing_known_is_undetermined():
    report = judge(a_claim(100.0), Evidence(subject="parameters"))
    assert report.verdict == "undetermined"
    assert "mechanism" in report.remedy
