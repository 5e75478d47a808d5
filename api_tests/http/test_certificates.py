"""Certificates over HTTP: issued on supported checks alone, revoked, superseded, verified."""

import base64
import json

import pytest
from sqlalchemy import text

from api_tests.http.test_checks import CLAIM, PARAMETERS, log
from api_tests.http.test_conventions import DATASET, problem
from api_tests.http.test_training_jobs import run, submit  # noqa: F401 - a fixture

JOB_CLAIM = {**CLAIM, "epsilon": 8.0}


@pytest.fixture
def dataset(api):
    return api.post("/v1/datasets", DATASET).json()["id"]


@pytest.fixture
def job_id(api, dataset, run):  # noqa: F811
    found = submit(api, dataset).json()["id"]
    run(found)
    return found


def check_of(api, job_id, **claim):
    subject = {"type": "training_job", "id": job_id}
    answer = api.post(
        "/v1/compliance-checks", {"claim": {**JOB_CLAIM, **claim}, "subject": subject}
    )
    assert answer.status_code == 201, answer.text
    return answer.json()


def issued(api, check_id, **fields):
    answer = api.post("/v1/certificates", {"check_id": check_id, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


@pytest.fixture
def certificate(api, job_id):
    return issued(api, check_of(api, job_id)["id"])


def test_a_supported_check_of_a_job_is_certified(api, job_id, certificate):
    assert certificate["state"] == "valid"
    statement = json.loads(base64.b64decode(certificate["envelope"]["payload"]))
    assert statement == certificate["statement"]
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    predicate = statement["predicate"]
    assert predicate["guarantee"]["epsilon"] == "8.0"
    assert predicate["guarantee"]["delta"] == "0.00001"
    assert predicate["claim"]["evidence_level"] == "logged"
    assert predicate["budget"]["overdrawn"] is False
    kinds = [entry["kind"] for entry in predicate["log"]["entries"]]
    assert kinds[:2] == ["account", "reserve"]
    assert kinds[-2:] == ["settle", "job"]
    names = {subject["name"] for subject in statement["subject"]}
    assert names == {"model.bin"}
    assert api.get(f"/v1/certificates/{certificate['id']}").json() == certificate
    job = api.get(f"/v1/training-jobs/{job_id}").json()
    assert job["result"]["certificate_id"] == certificate["id"]
    assert [c["id"] for c in api.get("/v1/certificates").json()["data"]] == [certificate["id"]]


def test_whoever_holds_a_certificate_may_ask_for_its_status(api, certificate):
    url = certificate["statement"]["predicate"]["issuer"]["status_url"]
    path = url.removeprefix("http://testserver")
    assert api.client.get(path).json()["state"] == "valid"
    api.post(f"/v1/certificates/{certificate['id']}/revoke", {"reason": "a test"})
    assert api.client.get(path).json()["state"] == "revoked"
    unknown = api.client.get("/v1/certificates/cert_none/status")
    problem(unknown, 404, "NOT_FOUND")


def test_the_spend_in_a_certificate_is_that_of_its_own_run(api, dataset, job_id):
    gaussian = {"type": "gaussian", "noise_multiplier": 4.0}
    check = check_of(api, job_id)
    now = api.get(f"/v1/datasets/{dataset}/budget").json()["spent"]["epsilon"]
    later = api.post("/v1/reservations", {"dataset_ids": [dataset], "mechanism": gaussian}).json()
    api.post(f"/v1/reservations/{later['id']}/settle", {})
    budget = issued(api, check["id"])["statement"]["predicate"]["budget"]
    assert (budget["spent_before"], budget["spent_after"]) == ("0", now)


def test_a_log_that_was_only_sent_along_is_not_certified(api):
    check = api.post("/v1/compliance-checks", {"claim": CLAIM, "subject": log(3)}).json()
    assert (check["verdict"], check["evidence_level"]) == ("supported", "declared")
    answer = api.post("/v1/certificates", {"check_id": check["id"]})
    problem(answer, 409, "SUBJECT_NOT_CERTIFIED")


def test_a_job_shows_no_certificate_before_there_is_one(api, job_id):
    assert api.get(f"/v1/training-jobs/{job_id}").json()["result"]["certificate_id"] is None


def test_what_is_not_supported_is_not_certified(api, job_id):
    refuted = check_of(api, job_id, epsilon=0.01)
    assert refuted["verdict"] == "refuted"
    answer = api.post("/v1/certificates", {"check_id": refuted["id"]})
    body = problem(answer, 409, "CHECK_NOT_SUPPORTED")
    assert body["verdict"] == "refuted"
    problem(api.post("/v1/certificates", {"check_id": "chk_none"}), 404, "NOT_FOUND")


def test_R25_a_check_of_sealed_data_is_not_certified(api, job_id):
    body = {
        "claim": JOB_CLAIM,
        "subject": {"type": "training_job", "id": job_id},
        "examine_sealed": True,
    }
    check = api.post("/v1/compliance-checks", body).json()
    assert check["visibility"] == "auditor"
    problem(api.post("/v1/certificates", {"check_id": check["id"]}), 409, "CHECK_SEALED")


def test_R26_a_reproducible_run_is_certified_as_declared_at_most(api, dataset, run):  # noqa: F811
    job_id = submit(api, dataset, seed_policy="reproducible", seed=7).json()["id"]
    run(job_id)
    predicate = issued(api, check_of(api, job_id)["id"])["statement"]["predicate"]
    assert predicate["claim"]["evidence_level"] == "declared"
    assert predicate["randomness"]["reproducible"] is True
    assert '"seed"' not in json.dumps(predicate)


def test_stated_parameters_are_certified_as_declared(api):
    check = api.post("/v1/compliance-checks", {"claim": CLAIM, "subject": PARAMETERS}).json()
    predicate = issued(api, check["id"])["statement"]["predicate"]
    assert predicate["claim"]["evidence_level"] == "declared"
    assert predicate["budget"] is None
    assert predicate["mechanisms"][0]["mechanism"] == PARAMETERS["mechanism"]


def test_a_check_is_certified_once_and_renewed_by_name(api, certificate):
    check_id = certificate["check_id"]
    again = api.post("/v1/certificates", {"check_id": check_id})
    assert problem(again, 409, "CERTIFICATE_EXISTS")["certificate_id"] == certificate["id"]
    renewed = issued(api, check_id, supersedes=certificate["id"], valid_for_s=60)
    old = api.get(f"/v1/certificates/{certificate['id']}").json()
    assert (old["state"], old["superseded_by"]) == ("superseded", renewed["id"])
    revoke = api.post(f"/v1/certificates/{certificate['id']}/revoke", {"reason": "x"})
    problem(revoke, 409, "CERTIFICATE_ENDED")


def test_a_revoked_certificate_says_so_everywhere(api, client, job_id, certificate):
    before = api.get(f"/v1/certificates/{certificate['id']}").headers["etag"]
    for _ in range(2):
        answer = api.post(f"/v1/certificates/{certificate['id']}/revoke", {"reason": "bad data"})
        assert answer.status_code == 200
        assert (answer.json()["state"], answer.json()["reason"]) == ("revoked", "bad data")
    shown = api.get(f"/v1/certificates/{certificate['id']}", **{"If-None-Match": before})
    assert shown.status_code == 200
    job = api.get(f"/v1/training-jobs/{job_id}").json()
    assert job["result"]["certificate_id"] is None
    verified = client.post("/v1/certificates/verify", json={"envelope": certificate["envelope"]})
    assert (verified.json()["valid"], verified.json()["state"]) == (False, "revoked")


def test_anybody_may_have_an_envelope_verified(client, certificate):
    answer = client.post("/v1/certificates/verify", json={"envelope": certificate["envelope"]})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["valid"] is True
    assert body["certificate_id"] == certificate["id"]
    assert [step["result"] for step in body["steps"]] == ["pass"] * 3


@pytest.mark.parametrize("part", ["payload", "signature", "keyid"])
def test_a_changed_envelope_is_refused(client, certificate, part):
    envelope = json.loads(json.dumps(certificate["envelope"]))
    signature = envelope["signatures"][0]
    if part == "payload":
        payload = base64.b64decode(envelope["payload"]).replace(
            b'"epsilon":"8.0"', b'"epsilon":"1.0"'
        )
        envelope["payload"] = base64.b64encode(payload).decode()
    elif part == "signature":
        signature["sig"] = base64.b64encode(bytes(64)).decode()
    else:
        signature["keyid"] = "0" * 64
    body = client.post("/v1/certificates/verify", json={"envelope": envelope}).json()
    assert (body["valid"], body["state"]) == (False, "unknown")


def test_validate_only_makes_every_check_and_no_certificate(api, job_id):
    check = check_of(api, job_id)
    size = api.get("/v1/log/proofs/consistency?from=0").json()["to_size"]
    answer = api.post("/v1/certificates", {"check_id": check["id"], "validate_only": True})
    assert answer.status_code == 200, answer.text
    assert answer.json()["id"] is None
    assert api.get("/v1/certificates").json()["data"] == []
    assert api.get("/v1/log/proofs/consistency?from=0").json()["to_size"] == size


def test_a_stranger_sees_no_certificate(stranger, certificate):
    problem(stranger.get(f"/v1/certificates/{certificate['id']}"), 404, "NOT_FOUND")
    problem(stranger.get(f"/v1/certificates/{certificate['id']}/bundle"), 404, "NOT_FOUND")
    refused = stranger.post("/v1/certificates", {"check_id": certificate["check_id"]})
    problem(refused, 403, "MISSING_SCOPE")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_check_looks_at_the_chain_of_chunks_and_at_the_merkle_log(api, job_id):
    whole = next(f for f in check_of(api, job_id)["findings"] if f["check"] == "log_whole")
    assert whole["result"] == "pass"
    assert "Merkle inclusion right" in whole["detail"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_leaf_that_was_rewritten_in_the_database_keeps_a_check_from_support(
    api, job_id, database
):
    before = check_of(api, job_id)
    with database.write() as session:
        session.execute(text("drop trigger log_entries_no_update"))
        session.execute(text("update log_entries set leaf = replace(leaf, 'poisson', 'shuffle')"))
    after = check_of(api, job_id)
    assert (before["verdict"], after["verdict"]) == ("supported", "undetermined")
    assert after["findings"][0]["check"] == "log_whole"
