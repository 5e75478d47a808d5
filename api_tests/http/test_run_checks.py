"""Runs that train elsewhere before an auditor: checks, sealed logs, expiry."""

import json
import time

import numpy as np
import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from api_tests.http.test_conventions import problem
from api_tests.http.test_runs import CHUNK, posted, price_of
from api_tests.jobs import balance
from api_tests.runs import (
    add_dataset,
    begin,
    complete,
    completed,
    lease,
    log,
    logged,
    read_log,
    record,
    records,
    reserve,
)
from service.db.tables import NoiseChunk, Reservation, Run, SealedRead
from workers.sweeper import sweep

CLAIM = {
    "epsilon": 3.0,
    "delta": 1e-5,
    "neighboring": "add_or_remove_one",
    "privacy_unit": "record",
    "scope": "single_job",
    "stop_rule": "fixed_steps",
    "tuning": "none",
}


def check(api, run_id, *, sealed=False, **claim):
    body = {
        "claim": CLAIM | claim,
        "subject": {"type": "run", "id": run_id},
        "examine_sealed": sealed,
    }
    answer = api.post("/v1/compliance-checks", body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def finding(report, name):
    """The finding; of several, the auditor's."""
    found = [f for f in report["findings"] if f["check"] == name]
    return max(found, key=lambda f: f["visibility"] == "auditor")


def measured(first, end, *, dimension=1000):
    draw = np.random.default_rng(7)
    batch = draw.binomial(60_000, 0.001, end)[first:]
    norm = 4.0 * np.sqrt(draw.chisquare(dimension, end))[first:]
    return [
        record(
            first + i,
            at=f"2030-01-01T00:{i // 60 % 60:02d}:{i % 60:02d}Z",
            sealed={
                "realized_batch_size": int(batch[i]),
                "noise_norm": float(norm[i]),
                "dimension": dimension,
            },
        )
        for i in range(end - first)
    ]


def sweep_now(database):
    sweep(database, ring=lambda _: None, redispatch_after_s=60)


def wait_for_expiry(database, run):
    with database.read() as session:
        expires_at = session.get_one(Reservation, run["reservation"]["id"]).expires_at
    while time.time() <= expires_at.timestamp() + 0.05:
        time.sleep(0.05)


def test_a_true_claim_about_a_complete_run_is_supported(api):
    run = begin(api, steps=1000, leased=1000)
    logged(api, run["id"], records(0, 1000))
    completed(api, run["id"])
    report = check(api, run["id"])
    assert report["verdict"] == "supported", report["findings"]
    assert report["subject"]["type"] == "run"
    assert report["subject"]["step_count"] == 1000
    assert finding(report, "log_whole")["result"] == "pass"


def test_a_run_that_is_still_open_supports_nothing_yet(api):
    run = begin(api, steps=1000, leased=1000)
    logged(api, run["id"], records(0, 1000))
    assert check(api, run["id"])["verdict"] != "supported"


def test_B19_a_run_with_more_steps_than_reserved_is_found(api):
    run = begin(api, steps=1000, leased=1000)
    logged(api, run["id"], records(0, 1003))
    completed(api, run["id"])
    report = check(api, run["id"])
    assert report["verdict"] != "supported"
    assert finding(report, "parameters_consistent")["result"] == "fail"
    assert "1003" in finding(report, "parameters_consistent")["detail"]


@pytest.mark.parametrize("step", [0, 500, 999])
def test_one_weak_step_is_found(api, step):
    run = begin(api, steps=1000, leased=1000)
    lines = records(0, 1000)
    lines[step]["noise_multiplier"] = 3.999
    logged(api, run["id"], lines)
    completed(api, run["id"])
    report = check(api, run["id"])
    assert finding(report, "parameters_consistent")["result"] == "fail"
    assert report["verdict"] != "supported"


def test_sealed_measures_of_a_run_are_examined_for_auditors_alone(api, stranger):
    run = begin(api, steps=6000, leased=6000)
    logged(api, run["id"], measured(0, 6000))
    completed(api, run["id"])
    report = check(api, run["id"], sealed=True)
    assert report["visibility"] == "auditor"
    assert finding(report, "noise_plausible")["result"] == "pass"
    assert finding(report, "sampler_as_claimed")["result"] == "pass"
    made = api.post("/v1/api-keys", {"name": "checks", "scopes": ["checks:write"]}).json()
    plain = type(api)(api.client, made["secret"])
    body = {"claim": CLAIM, "subject": {"type": "run", "id": run["id"]}, "examine_sealed": True}
    problem(plain.post("/v1/compliance-checks", body), 403, "MISSING_SCOPE")
    problem(
        stranger.post("/v1/compliance-checks", {**body, "examine_sealed": False}), 404, "NOT_FOUND"
    )


def test_noise_that_is_too_small_is_found_in_the_sealed_stream(api):
    run = begin(api, steps=2000, leased=2000)
    lines = measured(0, 2000)
    for line in lines:
        line["sealed"]["noise_norm"] *= 0.98
    logged(api, run["id"], lines)
    completed(api, run["id"])
    assert finding(check(api, run["id"], sealed=True), "noise_plausible")["result"] == "fail"


@pytest.mark.parametrize(
    "sealed",
    [
        {"noise_norm": 1e300, "dimension": 5, "realized_batch_size": 1e300},
        {"noise_norm": 10**300, "dimension": 0.5, "realized_batch_size": 10**40},
        {"noise_dimension": [1], "sampling_rate": "x", "at": 3},
    ],
)
def test_absurd_measures_are_an_answer_not_a_fault(api, sealed):
    run = begin(api, steps=50, leased=50)
    logged(api, run["id"], records(0, 50, sealed=sealed))
    completed(api, run["id"])
    check(api, run["id"], sealed=True)


def test_a_damaged_chunk_is_found(api, database, tmp_path):
    run = begin(api, steps=1000, leased=1000)
    logged(api, run["id"], records(0, 1000))
    completed(api, run["id"])
    with database.read() as session:
        digest = session.scalars(select(NoiseChunk.released_object)).one()
    path = tmp_path / "objects" / digest[:2] / digest[2:]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    report = check(api, run["id"])
    assert finding(report, "log_whole")["result"] == "fail"
    assert report["verdict"] != "supported"


def test_R25_the_sealed_log_is_read_by_auditors_and_each_reading_is_kept(api, database):
    run = begin(api)
    lines = measured(0, CHUNK + 30)
    logged(api, run["id"], lines[:CHUNK])
    logged(api, run["id"], lines[CHUNK:])
    for _ in range(2):
        answer = api.get(f"/v1/runs/{run['id']}/sealed-log")
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "no-store"
        assert [json.loads(line) for line in answer.text.splitlines()] == [
            {"step": line["step"], "at": line["at"], "sealed": line["sealed"]} for line in lines
        ]
    check(api, run["id"], sealed=True)
    with database.read() as session:
        reads = session.scalars(select(SealedRead).order_by(SealedRead.id)).all()
        assert [(r.subject_id, r.purpose, r.end_step) for r in reads] == [
            (run["id"], "sealed_log", CHUNK + 30),
            (run["id"], "sealed_log", CHUNK + 30),
            (run["id"], "compliance_check", CHUNK + 30),
        ]
        assert all(r.key_id.startswith("key_") for r in reads)
    with pytest.raises(DBAPIError, match="append-only"), database.write() as session:
        session.execute(text("delete from sealed_reads"))


def test_R25_what_cannot_be_recorded_is_not_read(api, database):
    run = begin(api)
    logged(api, run["id"], measured(0, 10))
    with database.write() as session:
        session.execute(text("alter table sealed_reads rename to away"))
    answer = api.get(f"/v1/runs/{run['id']}/sealed-log")
    assert answer.status_code >= 500
    assert "realized" not in answer.text


def test_R25_no_sealed_log_of_another_tenant_is_read_or_recorded(api, stranger, database):
    run = begin(api)
    logged(api, run["id"], measured(0, 10))
    scopes = {"name": "auditor", "scopes": ["audit:read"], "tenant": "third"}
    auditor = type(api)(api.client, api.post("/v1/api-keys", scopes).json()["secret"])
    problem(auditor.get(f"/v1/runs/{run['id']}/sealed-log"), 404, "NOT_FOUND")
    problem(stranger.get(f"/v1/runs/{run['id']}/sealed-log"), 403, "MISSING_SCOPE")
    with database.read() as session:
        assert session.scalars(select(SealedRead)).all() == []


# --- expiry -----------------------------------------------------------------------------


def test_R12_an_expired_run_is_abandoned_at_the_larger_of_lease_and_log(api, database):
    run = begin(api, leased=100, expires_in_s=1.0)
    lines = records(0, 300, sealed={"noise_norm": 2.5})
    logged(api, run["id"], lines)
    wait_for_expiry(database, run)
    problem(log(api, run["id"], records(300, 301)), 409, "RESERVATION_EXPIRED")
    problem(complete(api, run["id"]), 409, "RESERVATION_EXPIRED")
    sweep_now(database)
    ended = api.get(f"/v1/runs/{run['id']}").json()
    assert (ended["state"], ended["reservation"]["state"]) == ("abandoned", "expired")
    assert ended["executed"]["steps"] == 300
    spent, held, _ = posted(database, run["dataset_id"])
    assert spent == price_of(database, run["dataset_id"], lines)
    assert set(held) == {0}
    sweep_now(database)
    assert posted(database, run["dataset_id"])[0] == spent
    problem(log(api, run["id"], records(300, 301)), 409, "RUN_ENDED")
    assert read_log(api, run["id"]) == records(0, 300)
    assert len(api.get(f"/v1/runs/{run['id']}/sealed-log").text.splitlines()) == 300
    report = check(api, run["id"])
    assert finding(report, "log_whole")["result"] == "pass"
    assert report["verdict"] != "supported" or report["epsilon"]["upper"] <= 3.0


def test_an_expired_run_without_a_step_keeps_its_lease_charged(api, database):
    run = begin(api, leased=100, expires_in_s=0.5)
    wait_for_expiry(database, run)
    sweep_now(database)
    assert api.get(f"/v1/runs/{run['id']}").json()["state"] == "abandoned"
    spent, held = balance(database, run["dataset_id"])
    assert spent == price_of(database, run["dataset_id"], records(0, 100))
    assert set(held) == {0}


def test_a_sweep_leaves_runs_alone_that_are_alive(api, database):
    run = begin(api, leased=10)
    logged(api, run["id"], records(0, 5))
    sweep_now(database)
    assert api.get(f"/v1/runs/{run['id']}").json()["state"] == "open"


def test_logging_puts_the_expiry_off(api, database):
    run = begin(api)

    def expiry():
        with database.read() as session:
            return session.get_one(Reservation, run["reservation"]["id"]).expires_at

    before = expiry()
    logged(api, run["id"], records(0, 5))
    assert expiry() > before


def test_a_full_disk_acknowledges_nothing(api, tmp_path):
    run = begin(api)
    logged(api, run["id"], records(0, 10))
    blocked = tmp_path / "objects"
    blocked.rename(tmp_path / "aside")
    blocked.write_bytes(b"")  # no folder: nothing can be put below it
    problem(log(api, run["id"], records(10, CHUNK + 10)), 503, "UNAVAILABLE")
    blocked.unlink()
    (tmp_path / "aside").rename(blocked)
    assert api.get(f"/v1/runs/{run['id']}").json()["progress"]["step"] == 10
    assert logged(api, run["id"], records(10, CHUNK + 10))["accepted"] == CHUNK
    assert read_log(api, run["id"]) == records(0, CHUNK + 10)


def test_a_reservation_may_be_leased_while_its_run_is_logged(api, database):
    dataset_id = add_dataset(api)
    reservation_id = reserve(api, dataset_id)
    body = {"dataset_id": dataset_id, "reservation_id": reservation_id, "mechanism": None}
    body["mechanism"] = api.get(f"/v1/reservations/{reservation_id}").json()["mechanism"]
    run = api.post("/v1/runs", body).json()
    for start in range(0, 400, 100):
        lease(api, reservation_id, 100)
        logged(api, run["id"], records(start, start + 100))
    completed(api, run["id"], steps=400)
    spent, _, _ = posted(database, dataset_id)
    assert spent == price_of(database, dataset_id, records(0, 400))
    with database.read() as session:
        assert session.get_one(Run, run["id"]).state == "completed"
