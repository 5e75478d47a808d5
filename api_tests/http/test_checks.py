"""Compliance checks over HTTP: a false claim is an answer, never an error."""

import pytest

from api_tests.http.test_conventions import problem
from api_tests.http.test_reservations import STEPS

CLAIM = {
    "epsilon": 2.68,
    "delta": 1e-5,
    "neighboring": "add_or_remove_one",
    "privacy_unit": "record",
    "scope": "single_job",
}
PARAMETERS = {"type": "parameters", "mechanism": STEPS}
SHUFFLED = {
    "type": "dp_sgd",
    "sampler": "shuffle",
    "updates_per_epoch": 100,
    "epochs": 30,
    "noise_multiplier": 1.1,
}


def log(steps=300, **changes):
    record = {
        "noise_multiplier": 1.1,
        "max_grad_norm": 1.0,
        "sampling_rate": 0.01,
        "sampler": "poisson",
        "expected_batch_size": 600,
    }
    return {"type": "log", "steps": [{"step": i, **record, **changes} for i in range(steps)]}


def check(api, subject, **claim):
    answer = api.post("/v1/compliance-checks", {"claim": {**CLAIM, **claim}, "subject": subject})
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_true_claim_is_supported(api):
    body = check(api, PARAMETERS)
    assert body["verdict"] == "supported"
    assert body["evidence_level"] == "declared"
    assert body["epsilon"]["lower"] <= 2.6755 <= body["epsilon"]["upper"] + 1e-4
    assert body["not_examined"]


def test_a_false_claim_is_refuted_with_what_would_be_true(api):
    body = check(api, PARAMETERS, epsilon=2.67)
    assert body["verdict"] == "refuted"
    strongest = body["strongest_supported_claim"]
    assert 2.67547 < strongest["epsilon"] < 2.6756
    assert check(api, PARAMETERS, epsilon=strongest["epsilon"])["verdict"] == "supported"


@pytest.mark.parametrize("field", ["epsilon", "delta", "neighboring", "privacy_unit", "scope"])
def test_R17_a_claim_that_leaves_something_out_is_incomplete(api, field):
    claim = {k: v for k, v in CLAIM.items() if k != field}
    answer = api.post("/v1/compliance-checks", {"claim": claim, "subject": PARAMETERS})
    assert answer.json()["verdict"] == "incomplete"


def test_R4_a_shuffled_run_claimed_at_the_poisson_number_is_refuted(api):
    subject = {"type": "parameters", "mechanism": SHUFFLED}
    for neighboring in ("add_or_remove_one", "zero_out", "replace_one"):
        body = check(api, subject, epsilon=2.7, neighboring=neighboring)
        assert body["verdict"] == "refuted", neighboring
        assert body["epsilon"]["lower"] > 2.7
    claimed = check(api, subject, epsilon=1000.0, sampler="poisson")
    assert claimed["verdict"] == "refuted"


def test_R20_a_claim_about_the_final_model_is_not_refuted_by_all_updates(api):
    body = check(api, PARAMETERS, epsilon=1.0, release="final_model")
    assert body["verdict"] == "undetermined"


def test_a_log_is_replayed_against_the_claim(api):
    assert check(api, log(), epsilon=1.2)["verdict"] == "supported"
    assert check(api, log(), epsilon=0.3)["verdict"] == "refuted"


def test_one_weaker_step_in_a_log_is_found(api):
    forged = log()
    forged["steps"][150]["noise_multiplier"] = 0.2
    honest, found = check(api, log(), epsilon=1.2), check(api, forged, epsilon=1.2)
    assert honest["verdict"] == "supported"
    assert found["verdict"] == "refuted"


def test_a_log_with_a_gap_certifies_nothing(api):
    cut = log()
    del cut["steps"][10]
    body = check(api, cut, epsilon=100.0)
    assert body["verdict"] == "undetermined"
    assert body["findings"][0]["check"] == "log_whole"


def test_a_check_is_kept_as_it_was(api, stranger):
    made = check(api, PARAMETERS)
    again = api.get(f"/v1/compliance-checks/{made['id']}")
    assert again.json() == made
    problem(stranger.get(f"/v1/compliance-checks/{made['id']}"), 404, "NOT_FOUND")
    assert [c["id"] for c in api.get("/v1/compliance-checks").json()["data"]] == [made["id"]]


def test_a_job_that_does_not_exist_cannot_be_checked(api):
    body = {"claim": CLAIM, "subject": {"type": "training_job", "id": "job_none"}}
    problem(api.post("/v1/compliance-checks", body), 404, "NOT_FOUND")


@pytest.mark.parametrize("numbers", [(0, 2), (5, 6), (1, 0), (0, 0)])
def test_a_log_with_a_gap_bounds_nothing_from_above(api, numbers):
    steps = [{**log(1)["steps"][0], "step": number} for number in numbers]
    body = check(api, {"type": "log", "steps": steps})
    assert body["verdict"] == "undetermined"
    assert body["epsilon"]["is_unbounded"] is True
    assert body["strongest_supported_claim"] is None


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-30])
def test_a_log_with_a_rate_near_nothing_has_a_verdict(api, rate):
    body = check(api, log(3, sampling_rate=rate))
    assert body["verdict"] == "supported"
