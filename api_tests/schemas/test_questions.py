"""Requests of accounting, bounds and checks: their examples run, their refusals name fields."""

import math
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from service.core.accounting import answers, calibration
from service.core.claims import Evidence
from service.core.compliance import check
from service.core.errors import InvalidInput
from service.core.interval import Interval
from service.schemas import accounting, bounds, checks
from service.schemas.noise_log import StepRecord, StepUpload, to_core

REQUESTS = [
    accounting.EpsilonRequest,
    accounting.DeltaRequest,
    accounting.NoiseMultiplierRequest,
    accounting.StepsRequest,
    bounds.SeparationRequest,
    bounds.MinimumNoiseRequest,
    checks.ComplianceCheckRequest,
]
GOOD = {
    model: model.model_config["json_schema_extra"]["examples"]  # type: ignore[index]
    for model in REQUESTS
}
CASES = [(model, example) for model, examples in GOOD.items() for example in examples]


@pytest.mark.parametrize(("model", "example"), CASES)
def test_every_example_is_accepted_and_shown_in_the_schema(model, example):
    request = model.model_validate(example)
    if hasattr(request, "mechanism"):
        request.mechanism.to_core()
    assert example in model.model_json_schema()["examples"]


def refusals(model, body):
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    return [
        (e["type"], "/" + "/".join(str(p) for p in e["loc"]))
        for e in caught.value.errors(include_url=False)
    ]


@pytest.mark.parametrize(
    ("model", "change", "expected"),
    [
        (accounting.EpsilonRequest, {"delta": 0}, ("greater_than_equal", "/delta")),
        (accounting.EpsilonRequest, {"delta": 1e-31}, ("greater_than_equal", "/delta")),
        (accounting.EpsilonRequest, {"delta": 1}, ("less_than", "/delta")),
        (accounting.EpsilonRequest, {"delta": "1e-5"}, ("float_type", "/delta")),
        (
            accounting.EpsilonRequest,
            {"neighboring": "add_remove"},
            ("literal_error", "/neighboring"),
        ),
        (accounting.EpsilonRequest, {"accountant": "clt"}, ("literal_error", "/accountant")),
        (accounting.EpsilonRequest, {"dleta": 1}, ("extra_forbidden", "/dleta")),
        (accounting.DeltaRequest, {"epsilon": -1}, ("greater_than_equal", "/epsilon")),
        (accounting.DeltaRequest, {"epsilon": math.inf}, ("finite_number", "/epsilon")),
        (
            accounting.NoiseMultiplierRequest,
            {"target_epsilon": 0},
            ("greater_than", "/target_epsilon"),
        ),
        (bounds.SeparationRequest, {"noise_multiplier": 0}, ("greater_than", "/noise_multiplier")),
        (bounds.SeparationRequest, {"sampler": "full_batch"}, ("literal_error", "/sampler")),
        (
            bounds.SeparationRequest,
            {"updates_per_epoch": 0},
            ("greater_than_equal", "/updates_per_epoch"),
        ),
        (bounds.MinimumNoiseRequest, {"max_kappa": 0.71}, ("less_than", "/max_kappa")),
        (
            checks.ComplianceCheckRequest,
            {"subject": {"type": "job"}},
            ("literal_error", "/subject/type"),
        ),
        (checks.ComplianceCheckRequest, {"subject": {"type": "run"}}, ("missing", "/subject/id")),
        (
            checks.ComplianceCheckRequest,
            {"claim": {"epsilon": "2"}},
            ("float_type", "/claim/epsilon"),
        ),
        (
            checks.ComplianceCheckRequest,
            {"claim": {"epsilon": True}},
            ("float_type", "/claim/epsilon"),
        ),
        (
            checks.ComplianceCheckRequest,
            {"subject": {"type": "log", "steps": []}},
            ("too_short", "/subject/steps"),
        ),
        (
            checks.ComplianceCheckRequest,
            {"subject": {"type": "parameters", "mechanism": {"type": "zcdp", "rho": 0}}},
            ("greater_than", "/subject/mechanism/rho"),
        ),
    ],
)
def test_a_refusal_names_its_kind_and_its_field(model, change, expected):
    assert refusals(model, GOOD[model][0] | change) == [expected]


def test_delta_goes_down_to_1e_30():
    body = GOOD[accounting.EpsilonRequest][0] | {"delta": 1e-30}
    assert accounting.EpsilonRequest.model_validate(body).delta == 1e-30


def test_a_claim_may_leave_everything_out_and_is_then_incomplete():
    body = GOOD[checks.ComplianceCheckRequest][0] | {"claim": {}}
    request = checks.ComplianceCheckRequest.model_validate(body)
    report = check(request.claim.to_core(), Evidence(subject="parameters"), epsilon_of=epsilon_of)
    assert report.verdict == "incomplete"


def epsilon_of(_event, **_options):
    return Interval(2.6, 2.675)


def test_a_claim_survives_the_core():
    claim = checks.Claim(epsilon=2, delta=1e-5, scope="single_job", tuning="none")
    assert checks.Claim.from_core(claim.to_core()) == claim


def test_a_report_becomes_a_compliance_check():
    request = checks.ComplianceCheckRequest.model_validate(GOOD[checks.ComplianceCheckRequest][0])
    assert isinstance(request.subject, checks.ParametersSubject)
    event = request.subject.mechanism.to_core(pointer="/subject/mechanism")
    report = check(
        request.claim.to_core(),
        Evidence(subject="parameters", declared=event),
        epsilon_of=epsilon_of,
    )
    answer = checks.ComplianceCheck.from_core(
        report,
        check_id="chk_1",
        claim=request.claim,
        subject=checks.CheckedSubject(type="parameters", mechanism=request.subject.mechanism),
        created_at=datetime(2026, 1, 2, tzinfo=UTC),
    )
    shown = answer.model_dump(mode="json")
    assert (shown["object"], shown["id"], shown["verdict"]) == (
        "compliance_check",
        "chk_1",
        "supported",
    )
    assert shown["epsilon"] == {"lower": 2.6, "upper": 2.675, "is_unbounded": False}
    assert shown["strongest_supported_claim"]["epsilon"] == 2.675
    assert len(shown["findings"]) == 11


def test_uploaded_steps_become_records_and_back():
    upload = StepUpload(
        step=0,
        noise_multiplier=1,
        max_grad_norm=1.0,
        sampler="poisson",
        sampling_rate=0.01,
        expected_batch_size=600,
        sealed={"realized_batch_size": 597},
    )
    (core,) = to_core([upload], pointer="/subject/steps")
    assert core.sealed == {"realized_batch_size": 597}
    assert StepRecord.from_core(core.record).model_dump() == {
        "step": 0,
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "sampler": "poisson",
        "sampling_rate": 0.01,
        "expected_batch_size": 600.0,
    }


def test_what_fields_of_a_step_make_impossible_together_is_raised_with_the_full_pointer():
    upload = StepUpload(
        step=0,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        sampler="shuffle",
        expected_batch_size=600,
        epoch=0,
    )
    with pytest.raises(InvalidInput) as caught:
        to_core([upload], pointer="/subject/steps")
    assert caught.value.pointer == "/subject/steps/0/updates_per_epoch"


def test_the_answers_of_the_core_become_answers_on_the_wire():
    request = accounting.EpsilonRequest.model_validate(GOOD[accounting.EpsilonRequest][1])
    found = answers.epsilon(
        request.mechanism.to_core(), delta=request.delta, neighboring=request.neighboring
    )
    shown = accounting.EpsilonAnswer.from_core(found, request=request, elapsed_ms=1.0).model_dump(
        mode="json"
    )
    assert shown["object"] == "accounting.epsilon"
    assert shown["epsilon"]["upper"] == found.epsilon.upper
    assert (shown["certified"], shown["neighboring"]) == (True, "add_or_remove_one")
    codes = {w["code"] for w in shown["warnings"]}
    assert "SHUFFLE_NOT_AMPLIFIED" in codes
    assert all(w["action"] for w in shown["warnings"])


def test_delta_at_an_epsilon_is_answered_the_same_way():
    request = accounting.DeltaRequest.model_validate(GOOD[accounting.DeltaRequest][0])
    found = answers.delta(
        request.mechanism.to_core(), epsilon=request.epsilon, neighboring=request.neighboring
    )
    shown = accounting.DeltaAnswer.from_core(found, request=request, elapsed_ms=1.0)
    assert shown.delta.upper == found.delta.upper
    assert shown.epsilon == 2.0


def test_calibrated_noise_is_shown_with_the_mechanism_it_makes():
    request = accounting.NoiseMultiplierRequest.model_validate(
        GOOD[accounting.NoiseMultiplierRequest][0]
    )
    found = calibration.noise_multiplier(
        request.mechanism.to_core(),
        target_epsilon=request.target_epsilon,
        delta=request.delta,
        neighboring=request.neighboring,
    )
    shown = accounting.NoiseMultiplierAnswer.from_core(found, request=request, elapsed_ms=1.0)
    assert shown.achieved.epsilon.upper is not None
    assert shown.achieved.epsilon.upper <= 2.0
    assert shown.mechanism.to_core() == found.event


def test_calibrated_steps_are_shown_with_the_mechanism_they_make():
    request = accounting.StepsRequest.model_validate(GOOD[accounting.StepsRequest][0])
    found = calibration.steps(
        request.mechanism.to_core(),
        target_epsilon=request.target_epsilon,
        delta=request.delta,
        neighboring=request.neighboring,
    )
    shown = accounting.StepsAnswer.from_core(found, request=request, elapsed_ms=1.0)
    assert shown.mechanism.to_core() == found.event
    assert shown.steps == found.steps > 0
