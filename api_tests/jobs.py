"""Training jobs for tests: a dataset with a budget, and queued jobs on it."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from sqlalchemy import select

from service.core.credentials import SCOPES, Principal
from service.db.session import Database
from service.db.tables import Account, Dataset, Job, LeaseGrant, Reservation
from service.operations import accounts, datasets, job_plans, jobs
from service.schemas.jobs import TrainingJobCreate

OWNER = Principal(key_id="key_owner", tenant_id="default", scopes=frozenset(SCOPES))
STRANGER = Principal(key_id="key_stranger", tenant_id="other", scopes=frozenset(SCOPES))

STEPS = 20
LEASE_STEPS = 5
MECHANISM = {
    "type": "dp_sgd",
    "sampler": "poisson",
    "sampling_rate": 0.5,
    "noise_multiplier": 8.0,
    "steps": STEPS,
}


class InlineCalculator:
    """Calculates here and now; what a pool of processes does is not the matter of these tests."""

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def close(self) -> None:
        """Nothing to stop."""


def add_dataset(database: Database, *, epsilon: str = "8.0") -> str:
    with database.write() as session:
        row = datasets.create_dataset(
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
            terms=accounts.make_terms(
                epsilon=Decimal(epsilon),
                delta=Decimal("1e-5"),
                neighboring="add_or_remove_one",
                privacy_unit="record",
                records_per_unit=1,
                composition="renyi",
                planned=None,
                orders=None,
                weights=None,
            ),
        )
        return row.id


def planned(database: Database, dataset_id: str, **changes: Any) -> job_plans.Plan:
    body = {
        "dataset_id": dataset_id,
        "training": {"model": "mlp"},
        "privacy": {"mechanism": MECHANISM, "max_grad_norm": 1.0},
        "limits": {"lease_steps": LEASE_STEPS},
        **changes,
    }
    with database.read() as session:
        facts = job_plans.facts_of(session.get_one(Dataset, dataset_id))
    return job_plans.plan(
        TrainingJobCreate.model_validate(body),
        dataset=facts,
        calculator=InlineCalculator(),  # pyright: ignore[reportArgumentType]
    )


def queued_job(
    database: Database,
    dataset_id: str,
    *,
    ring: Callable[[str], None] = lambda _: None,
    **changes: Any,
) -> str:
    plan = planned(database, dataset_id, **changes)
    with database.write() as session:
        return jobs.submit(session, OWNER, dataset_id=dataset_id, plan=plan, ring=ring).id


def job_of(database: Database, job_id: str) -> Job:
    with database.read() as session:
        row = session.get_one(Job, job_id)
        session.expunge(row)
        return row


def error_code(job: Job) -> str | None:
    return None if job.error is None else job.error["code"]


def reservation_of(database: Database, job_id: str) -> Reservation:
    with database.read() as session:
        row = session.get_one(Reservation, session.get_one(Job, job_id).reservation_id)
        session.expunge_all()
        return row


def balance(database: Database, dataset_id: str) -> tuple[list[Any], list[Any]]:
    """(posted, pending) of the dataset's account."""
    with database.read() as session:
        row = (
            session.scalars(select(Account).where(Account.dataset_id == dataset_id)).unique().one()
        )
        return list(row.posted), list(row.pending)


def granted_steps(database: Database, job_id: str) -> int:
    """Steps that were leased, counted from the grants themselves."""
    with database.read() as session:
        reservation_id = session.get_one(Job, job_id).reservation_id
        grants = session.scalars(
            select(LeaseGrant).where(LeaseGrant.reservation_id == reservation_id)
        )
        return sum(grant.end_step - grant.first_step for grant in grants)


def price(database: Database, dataset_id: str, steps: int) -> list[Any]:
    """What ``steps`` steps of the mechanism cost on the dataset's account, rounded up."""
    from service.core import ledger  # noqa: PLC0415
    from service.core.events import poisson  # noqa: PLC0415

    event = poisson(
        sampling_rate=MECHANISM["sampling_rate"],
        noise_multiplier=MECHANISM["noise_multiplier"],
        steps=steps,
    )
    with database.read() as session:
        row = (
            session.scalars(select(Account).where(Account.dataset_id == dataset_id)).unique().one()
        )
        return list(ledger.price(event, accounts.terms_of(row)))
