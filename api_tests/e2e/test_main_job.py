"""The main path and its faults with real processes: nothing here is faked."""

import contextlib
import os
import shutil
import signal
import sqlite3
import tempfile
import time
from pathlib import Path

import pytest
from celery import Celery
from sqlalchemy import select

from api_tests.e2e.installation import Installation, installed, wait_until
from api_tests.jobs import granted_steps
from service.core import ledger
from service.core.events import Event, from_json
from service.core.replay import replay
from service.db.session import Database
from service.db.tables import Account, HoldingRow, Job
from service.operations.accounts import terms_of
from service.operations.job_states import executed_so_far
from service.queue import celery_app, publish

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

#: Long enough to be interrupted, cheap enough to be repeated.
LONG = {
    "type": "dp_sgd",
    "sampler": "poisson",
    "sampling_rate": 0.5,
    "noise_multiplier": 400.0,
    "steps": 20_000,
}
SHORT = {**LONG, "steps": 20}


@pytest.fixture(scope="module")
def site():
    # A short path: a unix socket's address holds about a hundred bytes.
    root = Path(tempfile.mkdtemp(prefix="dpl"))
    try:
        with installed(root) as made:
            yield made
    finally:
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def dataset(site: Installation):
    body = {
        "name": "digits",
        "privacy_unit": "record",
        "source": "digits",
        "budget": {"epsilon": "20.0", "delta": "1e-5", "neighboring": "add_or_remove_one"},
    }
    with site.client() as client:
        answer = client.post("/v1/datasets", json=body, headers={"Idempotency-Key": "dataset"})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


@pytest.fixture(scope="module")
def database(site: Installation):
    made = Database(f"sqlite:///{site.data / 'dpledger.db'}", pool_size=2)
    yield made
    made.close()


@pytest.fixture
def broker(site: Installation) -> Celery:
    return celery_app(site.environment["DPLEDGER_BROKER_URL"])


def stop_between_transactions(pid: int, site: Installation) -> None:
    """Stop a process while it holds no lock: SQLite has one, and its holder stops everybody."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        with contextlib.closing(
            sqlite3.connect(site.data / "dpledger.db", timeout=2, isolation_level=None)
        ) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE").close()
            except sqlite3.OperationalError:
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.05)
            else:
                connection.execute("ROLLBACK").close()
                return


def submit(site, dataset, *, mechanism=None, **fields):
    privacy = {"target_epsilon": 3.0, "delta": 1e-5, "max_grad_norm": 1.0}
    if mechanism is not None:
        privacy = {"mechanism": mechanism, "max_grad_norm": 1.0}
    body = {"dataset_id": dataset, "training": {"model": "mlp"}, "privacy": privacy, **fields}
    with site.client() as client:
        answer = client.post(
            "/v1/training-jobs", json=body, headers={"Idempotency-Key": str(time.monotonic_ns())}
        )
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def get(site, job_id, path=""):
    with site.client() as client:
        return client.get(f"/v1/training-jobs/{job_id}{path}")


def until_ended(site, job_id, *, within_s=120):
    def ended():
        job = get(site, job_id, "/wait?timeout_s=5").json()
        return job if job["state"] in ("succeeded", "failed", "cancelled") else None

    return wait_until(ended, within_s=within_s)


def until_recording(site, job_id):
    wait_until(lambda: get(site, job_id).json()["progress"]["step"] > 0)


def check_the_charge(database, job_id):
    """Charged at least what ran, at most what was leased; nothing is left held."""
    with database.read() as session:
        job = session.get_one(Job, job_id)
        executed = executed_so_far(session, job)
        holding = session.scalars(
            select(HoldingRow).where(HoldingRow.reservation_id == job.reservation_id)
        ).one()
        terms = terms_of(session.get_one(Account, holding.account_id))
        planned = from_json(job.spec["mechanism"])
        posted = list(holding.posted)
        assert not any(holding.pending)
        ran = _price(executed, terms)
    leased = _price(_prefix(planned, granted_steps(database, job_id)), terms)
    assert all(low <= paid <= high for low, paid, high in zip(ran, posted, leased, strict=True))


def _price(event: Event | None, terms):
    return list(ledger.price(event if event is not None else replay([]), terms))


def _prefix(planned, steps):
    from service.core.events import prefix  # noqa: PLC0415

    return prefix(planned, steps)


def test_a_job_trains_digits_and_settles(site, dataset, database):
    job_id = submit(site, dataset)
    job = until_ended(site, job_id)
    assert job["state"] == "succeeded", job
    assert job["result"]["metrics"]["test_accuracy"] > 0.8
    assert job["result"]["epsilon"]["upper"] <= 3.0
    assert job["reservation"]["state"] == "settled"
    check_the_charge(database, job_id)
    log = get(site, job_id, "/noise-log")
    assert len(log.text.splitlines()) == job["progress"]["total_steps"]
    (model,) = [
        a
        for a in get(site, job_id, "/artifacts").json()["data"]
        if a["name"] == "model.safetensors"
    ]
    content = get(site, job_id, "/artifacts/model.safetensors").content
    assert len(content) == model["size_bytes"]
    stream = get(site, job_id, "/events").text
    assert stream.rstrip().splitlines()[-2] == "event: done"


def test_a_killed_trainer_fails_its_job_and_the_lease_stays_charged(site, dataset, database):
    job_id = submit(site, dataset, mechanism=LONG, limits={"lease_steps": 50})
    until_recording(site, job_id)
    (trainer,) = site.pids("workers.trainer", job_id)
    os.kill(trainer, signal.SIGKILL)
    job = until_ended(site, job_id)
    assert (job["state"], job["error"]["code"]) == ("failed", "TRAINER_DIED")
    check_the_charge(database, job_id)


def test_a_killed_worker_takes_its_trainer_along_and_the_sweeper_settles(site, dataset, database):
    job_id = submit(site, dataset, mechanism=LONG, limits={"lease_steps": 50})
    until_recording(site, job_id)
    site.end("worker", signal.SIGKILL)
    wait_until(lambda: site.pids("workers.trainer") == [], within_s=30)
    job = until_ended(site, job_id)
    assert (job["state"], job["error"]["code"]) == ("failed", "WORKER_LOST")
    check_the_charge(database, job_id)
    site.start("worker")


def test_a_running_job_is_cancelled_when_its_trainer_is_gone(site, dataset, database):
    job_id = submit(site, dataset, mechanism=LONG, limits={"lease_steps": 50})
    until_recording(site, job_id)
    with site.client() as client:
        answer = client.post(f"/v1/training-jobs/{job_id}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelling")
    job = until_ended(site, job_id, within_s=60)
    assert job["state"] == "cancelled"
    assert site.pids("workers.trainer", job_id) == []
    check_the_charge(database, job_id)


def test_a_supervisor_that_sleeps_through_its_lease_changes_nothing_when_it_wakes(
    site, dataset, database
):
    job_id = submit(site, dataset, mechanism=LONG, limits={"lease_steps": 50})
    until_recording(site, job_id)
    (supervisor,) = site.children("worker")
    stop_between_transactions(supervisor, site)
    try:
        job = until_ended(site, job_id)
        assert (job["state"], job["error"]["code"]) == ("failed", "WORKER_LOST")
    finally:
        os.kill(supervisor, signal.SIGCONT)
    wait_until(lambda: site.pids("workers.trainer", job_id) == [], within_s=60)
    assert get(site, job_id).json() == job
    check_the_charge(database, job_id)


def test_a_worker_that_is_stopped_settles_its_job_first(site, dataset, database):
    job_id = submit(site, dataset, mechanism=LONG, limits={"lease_steps": 50})
    until_recording(site, job_id)
    site.end("worker", signal.SIGTERM)
    job = get(site, job_id).json()
    assert (job["state"], job["error"]["code"]) == ("failed", "WORKER_STOPPED")
    check_the_charge(database, job_id)
    site.start("worker")


def test_a_message_that_is_delivered_three_times_runs_its_job_once(site, dataset, database, broker):
    job_id = submit(site, dataset, mechanism=SHORT)
    for _ in range(3):
        publish(broker, job_id)
    assert until_ended(site, job_id)["state"] == "succeeded"
    publish(broker, job_id)
    assert until_ended(site, submit(site, dataset, mechanism=SHORT))["state"] == "succeeded"
    assert granted_steps(database, job_id) == SHORT["steps"]
    check_the_charge(database, job_id)


def test_a_broker_that_is_away_or_loses_everything_loses_no_job(site, dataset, database):
    site.end("broker", signal.SIGKILL)
    begun = time.monotonic()
    job_id = submit(site, dataset, mechanism=SHORT)
    assert time.monotonic() - begun < 20, "submitting waits for no broker"
    job = get(site, job_id).json()
    assert (job["state"], job["state_reason"]) == ("queued", "DISPATCH_PENDING")
    site.start("broker")  # an empty one
    assert until_ended(site, job_id)["state"] == "succeeded"
    check_the_charge(database, job_id)


def test_a_broker_that_dies_under_a_running_job_does_not_disturb_it(site, dataset, database):
    job_id = submit(site, dataset, mechanism={**LONG, "steps": 2000}, limits={"lease_steps": 50})
    until_recording(site, job_id)
    site.end("broker", signal.SIGKILL)
    site.start("broker")
    assert until_ended(site, job_id)["state"] == "succeeded"
    assert granted_steps(database, job_id) == 2000
    check_the_charge(database, job_id)
    assert until_ended(site, submit(site, dataset, mechanism=SHORT))["state"] == "succeeded"
