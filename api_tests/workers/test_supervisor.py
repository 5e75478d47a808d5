"""The supervisor with real processes and scripted trainers: whatever they do, it is charged."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import select

from api_tests.jobs import (
    LEASE_STEPS,
    OWNER,
    STEPS,
    add_dataset,
    balance,
    error_code,
    granted_steps,
    job_of,
    price,
    queued_job,
)
from service import log_chunks
from service.db.tables import Artifact, Job
from service.objects import FolderStore
from service.operations import job_sweep, jobs
from service.operations.noise_chunks import chunks_of
from service.sealing import FileSealer
from service.settings import Settings
from workers.context import WorkerParts
from workers.supervisor import run_job

pytestmark = pytest.mark.processes

FAKE = Path(__file__).with_name("fake_trainer.py")


@pytest.fixture
def dataset(database):
    return add_dataset(database)


@pytest.fixture
def worker(database, tmp_path):
    def make(mode, *, objects=None, **settings):
        chosen = {"lease_s": 5.0, "kill_grace_s": 0.5, **settings}
        return WorkerParts(
            settings=Settings(data_dir=tmp_path, **chosen),
            database=database,
            objects=objects or FolderStore(tmp_path / "objects"),
            sealer=FileSealer(tmp_path / "sealed-log.key"),
            trainer=[sys.executable, str(FAKE), mode],
            name="test",
        )

    return make


def run(worker, database, dataset, mode, **changes):
    job_id = queued_job(database, dataset, **changes)
    run_job(worker(mode), job_id)
    return job_of(database, job_id)


def in_background(parts, job_id, **options):
    thread = threading.Thread(target=run_job, args=(parts, job_id), kwargs=options)
    thread.start()
    return thread


def wait_until(true, *, within_s=20):
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def trainers(tmp_path):
    """Process ids of trainers of this test that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(tmp_path).encode() in command and b"fake_trainer" in command:
                found.append(int(entry.name))
    return found


def charged(database, dataset):
    posted, pending = balance(database, dataset)
    assert not any(pending), "a job that has ended holds nothing"
    return posted


def test_an_honest_run_succeeds_and_leaves_its_files(worker, database, dataset, tmp_path):
    job = run(worker, database, dataset, "honest")
    assert (job.state, job.step, job.error) == ("succeeded", STEPS, None)
    assert job.metrics == {"test_accuracy": 0.9}
    assert job.epsilon is not None
    assert job.epsilon["upper"] == job.request["forecast"]["epsilon"]["upper"]
    assert charged(database, dataset) == price(database, dataset, STEPS)
    with database.read() as session:
        names = {a.name: a.object for a in jobs.artifacts_of(session, OWNER, job_id=job.id)}
    store = FolderStore(tmp_path / "objects")
    assert store.get(names["model.bin"]) == b"weights"
    assert b"fake trainer, honest" in store.get(names["trainer.log"])
    assert list((tmp_path / "running").iterdir()) == []


def test_R25_what_is_sealed_is_readable_with_the_key_alone(worker, database, dataset, tmp_path):
    job = run(worker, database, dataset, "honest")
    store = FolderStore(tmp_path / "objects")
    with database.read() as session:
        chunks = chunks_of(session, job.id)
        session.expunge_all()
    first = chunks[0]
    assert first.sealed_object is not None
    released = list(log_chunks.lines(store, [c.released_object for c in chunks]))
    assert [line["step"] for line in released] == list(range(STEPS))
    assert {name for line in released for name in line} == {
        "step",
        "noise_multiplier",
        "max_grad_norm",
        "sampler",
        "sampling_rate",
        "expected_batch_size",
    }
    rows = log_chunks.sealed_lines(
        store,
        first.sealed_object,
        subject_id=job.id,
        first_step=0,
        sealer=FileSealer(tmp_path / "sealed-log.key"),
    )
    assert [row["sealed.realized_batch_size"] for row in rows] == [700 + i for i in range(5)]
    assert rows[0]["at"].startswith("2030-01-01")
    everything = b"".join(p.read_bytes() for p in (tmp_path / "objects").rglob("*") if p.is_file())
    assert b"realized" not in everything
    assert b"2030-01-01" not in everything
    assert (tmp_path / "sealed-log.key").stat().st_mode & 0o077 == 0
    with pytest.raises(OSError, match="damaged"):
        log_chunks.sealed_lines(
            store,
            first.sealed_object,
            subject_id=job.id,
            first_step=5,
            sealer=FileSealer(tmp_path / "sealed-log.key"),
        )


@pytest.mark.parametrize(
    ("mode", "code", "paid_steps"),
    [
        ("dies", "TRAINER_DIED", 5),
        ("dies_recorded", "TRAINER_DIED", 10),
        ("over_run", "OVER_RUN", 6),
        ("gap", "TRAINER_PROTOCOL", 5),
        ("short", "LOG_INCOMPLETE", 5),
        ("noise", "TRAINER_PROTOCOL", 0),
        ("nan", "TRAINER_PROTOCOL", STEPS),
        ("liar", "TRAINER_PROTOCOL", STEPS),
        ("asks_itself", "OUT_OF_MEMORY", 0),
    ],
)
def test_a_trainer_that_misbehaves_fails_its_job_and_pays_what_it_leased(
    worker, database, dataset, tmp_path, mode, code, paid_steps
):
    job = run(worker, database, dataset, mode)
    assert (job.state, error_code(job)) == ("failed", code)
    paid = price(database, dataset, paid_steps) if paid_steps else [0] * 13
    assert charged(database, dataset) == paid
    assert trainers(tmp_path) == []


def test_R6_weaker_noise_than_planned_is_stored_charged_as_it_ran_and_fails(
    worker, database, dataset
):
    job = run(worker, database, dataset, "weak")
    assert (job.state, error_code(job)) == ("failed", "LOG_DEVIATES")
    assert job.step == LEASE_STEPS
    posted, planned = charged(database, dataset), price(database, dataset, LEASE_STEPS)
    assert all(a > b for a, b in zip(posted, planned, strict=True))


def test_a_trainer_that_cannot_be_started_fails_its_job_for_free(worker, database, dataset):
    job_id = queued_job(database, dataset)
    parts = worker("honest")
    broken = WorkerParts(
        settings=parts.settings,
        database=parts.database,
        objects=parts.objects,
        sealer=parts.sealer,
        trainer=["/nonexistent/trainer"],
        name="test",
    )
    run_job(broken, job_id)
    assert error_code(job_of(database, job_id)) == "TRAINER_NOT_STARTED"
    assert not any(charged(database, dataset))


def test_a_message_that_comes_three_times_runs_its_job_once(worker, database, dataset):
    job_id = queued_job(database, dataset)
    parts = worker("honest")
    threads = [in_background(parts, job_id) for _ in range(3)]
    for thread in threads:
        thread.join()
    run_job(parts, job_id)
    assert job_of(database, job_id).state == "succeeded"
    assert granted_steps(database, job_id) == STEPS
    assert charged(database, dataset) == price(database, dataset, STEPS)


def test_a_deadline_ends_a_job_and_charges_its_lease(worker, database, dataset):
    begun = time.monotonic()
    job = run(worker, database, dataset, "silent", limits={"max_runtime_s": 1.0})
    assert (job.state, error_code(job)) == ("failed", "DEADLINE_EXCEEDED")
    assert time.monotonic() - begun >= 1
    assert not any(charged(database, dataset))


def test_a_cancelled_job_stops_between_steps_and_says_so_when_it_is_gone(
    worker, database, dataset, tmp_path
):
    job_id = queued_job(database, dataset)
    thread = in_background(worker("slow", kill_grace_s=10.0), job_id)
    wait_until(lambda: granted_steps(database, job_id) >= LEASE_STEPS)
    with database.write() as session:
        assert jobs.cancel(session, OWNER, job_id=job_id).state == "cancelling"
    thread.join()
    job = job_of(database, job_id)
    assert (job.state, job.state_reason) == ("cancelled", "CANCEL_REQUESTED")
    assert trainers(tmp_path) == []
    assert charged(database, dataset) == price(database, dataset, granted_steps(database, job_id))


def test_a_trainer_that_ignores_the_cancel_is_killed(worker, database, dataset, tmp_path):
    job_id = queued_job(database, dataset)
    thread = in_background(worker("deaf"), job_id)
    wait_until(lambda: granted_steps(database, job_id) >= LEASE_STEPS)
    with database.write() as session:
        jobs.cancel(session, OWNER, job_id=job_id)
    thread.join()
    job = job_of(database, job_id)
    assert (job.state, job.state_reason) == ("cancelled", "FORCED")
    assert trainers(tmp_path) == []
    assert charged(database, dataset) == price(database, dataset, LEASE_STEPS)


def test_a_worker_that_is_to_stop_ends_its_job_within_five_seconds(
    worker, database, dataset, tmp_path
):
    read, write = os.pipe()
    job_id = queued_job(database, dataset)
    thread = in_background(worker("deaf", kill_grace_s=60.0), job_id, wake_up=read)
    wait_until(lambda: granted_steps(database, job_id) >= LEASE_STEPS)
    os.write(write, b"x")
    thread.join(timeout=30)
    assert not thread.is_alive()
    job = job_of(database, job_id)
    assert (job.state, error_code(job)) == ("failed", "WORKER_STOPPED")
    assert trainers(tmp_path) == []
    assert charged(database, dataset) == price(database, dataset, LEASE_STEPS)
    os.close(read)
    os.close(write)


def test_a_job_that_was_taken_away_is_stopped_and_left_alone(worker, database, dataset, tmp_path):
    job_id = queued_job(database, dataset)
    thread = in_background(worker("deaf"), job_id)
    wait_until(lambda: granted_steps(database, job_id) >= LEASE_STEPS)
    with database.write() as session:
        row = session.get_one(Job, job_id)
        row.lease_expires_at = row.created_at.replace(year=2020)
    with database.write() as session:
        assert job_sweep.reap(session, job_id=job_id) == "failed"
    thread.join()
    assert error_code(job_of(database, job_id)) == "WORKER_LOST"
    assert trainers(tmp_path) == []
    assert charged(database, dataset) == price(database, dataset, LEASE_STEPS)


def test_a_lease_is_renewed_while_a_long_step_runs(worker, database, dataset):
    read, write = os.pipe()
    job_id = queued_job(database, dataset)
    thread = in_background(worker("deaf", lease_s=1.0), job_id, wake_up=read)
    wait_until(lambda: granted_steps(database, job_id) >= LEASE_STEPS)
    for _ in range(10):
        time.sleep(0.2)
        with database.read() as session:
            assert job_sweep.lost_jobs(session) == []
    os.write(write, b"x")
    thread.join()
    os.close(read)
    os.close(write)


class FullStore(FolderStore):
    """A store whose disk is full after some objects."""

    def __init__(self, root, *, room):
        super().__init__(root)
        self.room = room

    def put(self, data):
        self.room -= 1
        if self.room < 0:
            raise OSError(28, "No space left on device")
        return super().put(data)


def test_a_chunk_that_cannot_be_stored_ends_the_job_and_charges_its_lease(
    worker, database, dataset, tmp_path
):
    job_id = queued_job(database, dataset)
    run_job(worker("honest", objects=FullStore(tmp_path / "full", room=3)), job_id)
    job = job_of(database, job_id)
    assert (job.state, error_code(job)) == ("failed", "LOG_STORAGE_FAILED")
    assert job.step == LEASE_STEPS
    assert charged(database, dataset) == price(database, dataset, 2 * LEASE_STEPS)
    with database.read() as session:
        assert session.scalars(select(Artifact)).all() == []


def test_a_trainer_gets_none_of_our_settings(worker, database, dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("DPLEDGER_DATABASE_URL", "postgresql://user:secret@db/dpledger")
    job_id = queued_job(database, dataset)
    read, write = os.pipe()
    thread = in_background(worker("deaf"), job_id, wake_up=read)
    wait_until(lambda: granted_steps(database, job_id) >= LEASE_STEPS)
    (pid,) = trainers(tmp_path)
    assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert os.getsid(pid) == pid
    os.write(write, b"x")
    thread.join()
    os.close(read)
    os.close(write)


def test_a_killed_supervisor_takes_its_trainer_along(database, dataset, tmp_path):
    job_id = queued_job(database, dataset)
    script = f"""
import sys
from pathlib import Path
from service.db.session import Database
from service.objects import FolderStore
from service.sealing import FileSealer
from service.settings import Settings
from workers.context import WorkerParts
from workers.supervisor import run_job
root = Path({str(tmp_path)!r})
run_job(WorkerParts(settings=Settings(data_dir=root, lease_s=1.0),
    database=Database({str(database.engine.url)!r}), objects=FolderStore(root / "objects"),
    sealer=FileSealer(root / "sealed-log.key"),
    trainer=[sys.executable, {str(FAKE)!r}, "deaf"], name="killed"), {job_id!r})
"""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", script], dict(os.environ))
    wait_until(lambda: granted_steps(database, job_id) >= LEASE_STEPS)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_until(lambda: trainers(tmp_path) == [], within_s=30)

    def lost():
        with database.read() as session:
            return list(job_sweep.lost_jobs(session)) == [job_id]

    wait_until(lost, within_s=30)
    with database.write() as session:
        assert job_sweep.reap(session, job_id=job_id) == "failed"
    assert charged(database, dataset) == price(database, dataset, LEASE_STEPS)


def test_the_worker_loads_neither_torch_nor_opacus():
    code = (
        "import sys, workers.app, workers.sweeper; "
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'opacus')])"
    )
    read, write = os.pipe()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", code],
        dict(os.environ),
        file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)],
    )
    os.waitpid(pid, 0)
    os.close(write)
    with os.fdopen(read) as output:
        assert json.loads(output.read()) == []
