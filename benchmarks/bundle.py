"""A long run's bundle: its size, how long it takes to make and to verify, what logging costs.

    python benchmarks/bundle.py [--steps N]

The run is recorded as a worker records it, in chunks of 4,096 steps, into SQLite and a folder;
nothing is trained. Seconds are wall time and belong to the machine.
"""

import argparse
import platform
import tempfile
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from dpledger import verify
from service import log_chunks
from service.calculator import Calculator
from service.core import claims
from service.core.accounting import epsilon_interval
from service.core.credentials import SCOPES, Principal
from service.core.noise_log import StepRecord, Upload
from service.db.migrations.run import migrate
from service.db.session import Database
from service.db.tables import Dataset
from service.objects import FolderStore
from service.operations import (
    accounts,
    bundles,
    certificates,
    checks,
    datasets,
    evidence,
    job_plans,
    job_runs,
    jobs,
)
from service.schemas import checks as wire
from service.schemas.jobs import TrainingJobCreate
from service.sealing import FileSealer
from service.signing import FileSigner

OWNER = Principal(key_id="key_owner", tenant_id="default", scopes=frozenset(SCOPES))
CHUNK = 4096
RATE, SIGMA = 0.001, 1.1
CLAIM = claims.Claim(
    epsilon=50.0,
    delta=1e-5,
    neighboring="add_or_remove_one",
    privacy_unit="record",
    scope="single_job",
)


def main() -> None:
    """Print one figure a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        database = Database(f"sqlite:///{root / 'dpledger.db'}")
        migrate(database)
        vault = evidence.Vault(FolderStore(root / "objects"), FileSealer(root / "sealed.key"))
        signer = FileSigner(root / "signing.key")
        job_id = queued(database, steps)
        print(f"{steps} steps on {platform.machine()}")
        logging_s = recorded(database, vault, job_id, steps)
        print(f"logging: {logging_s / steps * 1e6:.1f} µs a step")
        certificate_id = certified(database, vault, signer, job_id)
        begin = time.perf_counter()
        with database.read() as session:
            found = bundles.gather(session, OWNER, certificate_id=certificate_id, signer=signer)
        data = bundles.zipped(found, objects=vault.objects)
        made_s = time.perf_counter() - begin
        log_bytes = sum(len(vault.objects.get(digest)) for digest in found.objects.values())
        print(f"released log: {log_bytes / 1e6:.2f} MB; bundle: {len(data) / 1e6:.2f} MB")
        print(f"making the bundle: {made_s:.2f} s")
        begin = time.perf_counter()
        outcome = verify.verify_bundle(data, trusted_keys=verify.keys_of(found.files["keys.json"]))
        print(f"verifying it: {time.perf_counter() - begin:.2f} s")
        assert {step.name for step in outcome if step.result != "pass"} == {"status_now"}, outcome
        database.close()


def queued(database: Database, steps: int) -> str:
    """A job on a dataset with room for it."""
    terms = accounts.make_terms(
        epsilon=Decimal(1000),
        delta=Decimal("1e-5"),
        neighboring="add_or_remove_one",
        privacy_unit="record",
        records_per_unit=1,
        composition="renyi",
        planned=None,
        orders=None,
        weights=None,
    )
    with database.write() as session:
        dataset_id = datasets.create_dataset(
            session,
            OWNER,
            name="digits",
            privacy_unit="record",
            max_records_per_unit=1,
            record_count=None,
            record_count_is_public=True,
            source="digits",
            fingerprint=None,
            allowed_sources=[],
            terms=terms,
        ).id
    mechanism: dict[str, Any] = {
        "type": "dp_sgd",
        "sampler": "poisson",
        "sampling_rate": RATE,
        "noise_multiplier": SIGMA,
        "steps": steps,
    }
    body = TrainingJobCreate.model_validate(
        {
            "dataset_id": dataset_id,
            "training": {"model": "mlp"},
            "privacy": {"mechanism": mechanism, "max_grad_norm": 1.0},
            "limits": {"lease_steps": CHUNK},
        }
    )
    with database.read() as session:
        facts = job_plans.facts_of(session.get_one(Dataset, dataset_id))
    calculator = Calculator(processes=1, timeout_s=60)
    plan = job_plans.plan(body, dataset=facts, calculator=calculator)
    calculator.close()
    with database.write() as session:
        job = jobs.submit(session, OWNER, dataset_id=dataset_id, plan=plan, ring=lambda _id: None)
        return job.id


def recorded(database: Database, vault: evidence.Vault, job_id: str, steps: int) -> float:
    """Record all steps and let the job succeed; gives the seconds that logging took."""
    with database.write() as session:
        row = job_runs.claim(session, job_id=job_id, worker="benchmark", lease_s=36_000)
        assert row is not None
        held = job_runs.Claim(job_id=job_id, token=row.fencing_token)
    with database.write() as session:
        job_runs.start_running(session, held, software={})
    taken_s = 0.0
    for first in range(0, steps, CHUNK):
        end = min(first + CHUNK, steps)
        with database.write() as session:
            job_runs.lease_steps(session, held, first_step=first, steps=end - first)
        uploads = [Upload(record=record(step)) for step in range(first, end)]
        begin = time.perf_counter()
        chunk = log_chunks.store(
            uploads, subject_id=job_id, objects=vault.objects, sealer=vault.sealer
        )
        with database.write() as session:
            job_runs.record_chunk(session, held, chunk)
        taken_s += time.perf_counter() - begin
    with database.write() as session:
        executed = job_runs.executed_so_far(session, job_runs.locked(session, job_id))
        assert executed is not None
        epsilon = {"lower": 0.0, "upper": 50.0, "delta": 1e-5, "neighboring": "add_or_remove_one"}
        job_runs.finish(
            session, held, job_runs.Outcome(executed=executed, epsilon=epsilon, metrics={})
        )
    return taken_s


def record(step: int) -> StepRecord:
    """The record of one step."""
    return StepRecord(
        step=step,
        noise_multiplier=SIGMA,
        max_grad_norm=1.0,
        sampler="poisson",
        sampling_rate=RATE,
        expected_batch_size=1.5,
    )


def certified(database: Database, vault: evidence.Vault, signer: FileSigner, job_id: str) -> str:
    """A certificate on a supported check of the job."""
    with database.read() as session:
        found = evidence.of_job(session, OWNER, job_id=job_id, vault=vault, sealed=False)
    report = checks.examine(CLAIM, found, epsilon_of=epsilon_interval, sealed=False)
    claim = wire.Claim.from_core(CLAIM)
    subject = wire.CheckedSubject(type="training_job", id=job_id)
    answer = wire.ComplianceCheck.from_core(
        report, check_id=None, claim=claim, subject=subject, created_at=datetime.now(UTC)
    )
    with database.write() as session:
        check = checks.store_check(
            session,
            OWNER,
            claim=claim.model_dump(mode="json"),
            subject=subject.model_dump(mode="json"),
            verdict=report.verdict,
            report=answer.model_dump(mode="json"),
        )
    with database.write() as session:
        return certificates.issue(
            session,
            OWNER,
            check_id=check.id,
            signer=signer,
            sealer=vault.sealer,
            issuer="http://localhost",
        ).id


if __name__ == "__main__":
    main()
