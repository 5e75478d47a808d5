"""R25: nothing of the sealed stream is anywhere but in sealed bytes.

Values that can be recognised are planted in the sealed stream of a job and of a run, and then
looked for in everything the service says, logs or stores.
"""

import io
import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sqlalchemy import MetaData, select

from api_tests.jobs import LEASE_STEPS, STEPS, add_dataset, job_of, queued_job
from api_tests.runs import begin, completed, log, logged, records
from service.core.chunks import CHUNK_STEPS
from service.db.tables import NoiseChunk
from service.objects import FolderStore
from service.sealing import FileSealer
from service.settings import Settings
from workers.context import WorkerParts
from workers.supervisor import run_job

pytestmark = pytest.mark.processes

FAKE = Path(__file__).with_name("fake_trainer.py")
CLAIM = {
    "epsilon": 8.0,
    "delta": 1e-5,
    "neighboring": "add_or_remove_one",
    "privacy_unit": "record",
    "scope": "single_job",
}
# What the scripted trainer seals, and what is planted in the run.
BATCHES = [str(700 + step) for step in range(STEPS)]
JOB_SECRETS = ["realized_batch_size", "noise_norm", "2030-01-01", "40414243444546"]
NORM, SIZE, SEED, WORD, YEAR = 7.13579246801, 987654319, 40_414_243_444_546, "xyzzy-plugh", "2031"
RUN_SECRETS = ["7.13579246801", "987654319", "40414243444546", WORD, "2031-02-03", "plover"]


def planted(first, end, **changes):
    sealed = {
        "noise_norm": NORM,
        "realized_batch_size": SIZE,
        "seed": SEED,
        "plover": {"note": [WORD]},
    }
    return records(first, end, at=f"{YEAR}-02-03T04:05:06Z", sealed=sealed, **changes)


@pytest.fixture
def job_id(database, tmp_path):
    made = queued_job(database, add_dataset(database))
    parts = WorkerParts(
        settings=Settings(data_dir=tmp_path, lease_s=5.0, kill_grace_s=0.5),
        database=database,
        objects=FolderStore(tmp_path / "objects"),
        sealer=FileSealer(tmp_path / "sealed-log.key"),
        trainer=[sys.executable, str(FAKE), "honest"],
        name="test",
    )
    run_job(parts, made)
    assert job_of(database, made).state == "succeeded"
    return made


def database_text(database):
    """Every value of every row, as text; bytes as they lie there."""
    tables = MetaData()
    tables.reflect(database.engine)
    with database.read() as session:
        values = [
            value if isinstance(value, bytes) else json.dumps(value, default=str).encode()
            for table in tables.sorted_tables
            for row in session.execute(select(table))
            for value in row
        ]
    assert len(values) > 100
    return b"\n".join(values)


def object_bytes(tmp_path):
    """All objects as they lie there, and the content of those that are plain Parquet."""
    found = []
    for path in (tmp_path / "objects").rglob("??/*"):
        data = path.read_bytes()
        found.append(data)
        if data.startswith(b"PAR1"):
            table = pq.read_table(io.BytesIO(data))
            found.append(json.dumps(table.to_pydict()).encode())
    assert found
    return b"\n".join(found)


def checks_of(api, subject):
    body = {"claim": CLAIM, "subject": subject}
    return api.post("/v1/compliance-checks", body).content


def assert_without(secrets, where):
    for name, content in where.items():
        found = [secret for secret in secrets if secret.encode() in content]
        assert not found, (name, found)


def test_R25_a_job_s_secrets_are_in_sealed_bytes_alone(api, database, job_id, tmp_path, capfd):
    path = f"/v1/training-jobs/{job_id}"
    where = {
        "job": api.get(path).content,
        "jobs": api.get("/v1/training-jobs").content,
        "events": api.get(f"{path}/events", Accept="application/json").content,
        "noise log": api.get(f"{path}/noise-log").content,
        "trainer's log": api.get(f"{path}/logs").content,
        "artifacts": api.get(f"{path}/artifacts").content,
        "check": checks_of(api, {"type": "training_job", "id": job_id}),
        "checks": api.get("/v1/compliance-checks").content,
        "metrics": api.client.get("/metrics").content,
        "problem": api.get(f"{path}/sealed-log/x").content,
        "objects": object_bytes(tmp_path),
        "files": b"".join(p.read_bytes() for p in (tmp_path / "running").rglob("*")),
    }
    printed = capfd.readouterr()
    where["output"] = (printed.out + printed.err).encode()
    where["database"] = database_text(database)
    assert_without(JOB_SECRETS, where)
    sealed = api.get(f"{path}/sealed-log")
    lines = [json.loads(line) for line in sealed.text.splitlines()]
    assert [str(line["sealed"]["realized_batch_size"]) for line in lines] == BATCHES
    with database.read() as session:
        chunk = session.scalars(
            select(NoiseChunk).where(
                NoiseChunk.subject_id == job_id, NoiseChunk.end_step == LEASE_STEPS
            )
        ).one()
        digest = chunk.sealed_object or ""
    data = FolderStore(tmp_path / "objects").get(digest)
    opened = FileSealer(tmp_path / "sealed-log.key").open(data, place=f"{job_id}/0")
    assert pq.read_table(io.BytesIO(opened)).column("sealed.noise_norm").to_pylist() == [81.5] * 5


@pytest.mark.parametrize("ended", [False, True])
def test_R25_a_run_s_secrets_are_in_sealed_bytes_alone(api, database, tmp_path, capfd, ended):
    run = begin(api, leased=CHUNK_STEPS + 100)
    path = f"/v1/runs/{run['id']}"
    steps = f"{path}/steps"
    answers = [
        logged(api, run["id"], planted(0, CHUNK_STEPS + 50)),
        logged(api, run["id"], planted(CHUNK_STEPS, CHUNK_STEPS + 100)),
    ]
    good = json.dumps(planted(CHUNK_STEPS + 100, CHUNK_STEPS + 101)[0]).encode()
    ndjson = {"Content-Type": "application/x-ndjson"}
    where = {
        "answers": json.dumps(answers).encode(),
        "cut line": api.post_raw(steps, good[:-3], **ndjson).content,
        "huge": api.post_raw(steps, good.replace(b"7.135", b"1e997.135"), **ndjson).content,
        "double": api.post_raw(steps, good.replace(b'"seed"', b'"plover"'), **ndjson).content,
        "NaN": api.post_raw(steps, good.replace(b"987654319", b"NaN"), **ndjson).content,
        "gap": log(api, run["id"], planted(CHUNK_STEPS + 200, CHUNK_STEPS + 201)).content,
        "conflict": log(api, run["id"], planted(7, 8, max_grad_norm=2.0)).content,
        "json": api.post_raw(steps, good).content,
    }
    if ended:
        completed(api, run["id"])
        where["ended"] = api.post_raw(steps, good, **ndjson).content
    where |= {
        "run": api.get(path).content,
        "runs": api.get("/v1/runs").content,
        "noise log": api.get(f"{path}/noise-log").content,
        "check": checks_of(api, {"type": "run", "id": run["id"]}),
        "checks": api.get("/v1/compliance-checks").content,
        "budget": api.get(f"/v1/datasets/{run['dataset_id']}/budget/entries").content,
        "metrics": api.client.get("/metrics").content,
        "objects": object_bytes(tmp_path),
        "database": database_text(database),
        "files": b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()),
    }
    printed = capfd.readouterr()
    where["output"] = (printed.out + printed.err).encode()
    assert_without(RUN_SECRETS, where)
    sealed = api.get(f"{path}/sealed-log").text
    assert all(secret in sealed for secret in RUN_SECRETS)
    assert len(sealed.splitlines()) == CHUNK_STEPS + 100


def test_R25_an_auditor_s_check_stays_with_auditors(api, job_id):
    body = {"claim": CLAIM, "subject": {"type": "training_job", "id": job_id}}
    report = api.post("/v1/compliance-checks", {**body, "examine_sealed": True}).json()
    made = api.post("/v1/api-keys", {"name": "checks", "scopes": ["checks:write"]}).json()
    plain = type(api)(api.client, made["secret"])
    assert plain.get(f"/v1/compliance-checks/{report['id']}").status_code == 404
    assert report["id"] not in plain.get("/v1/compliance-checks").text
