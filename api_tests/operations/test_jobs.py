"""Training jobs as transactions: what is reserved, claimed, leased, recorded and settled."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from api_tests.jobs import (
    LEASE_STEPS,
    MECHANISM,
    OWNER,
    STEPS,
    STRANGER,
    add_dataset,
    balance,
    error_code,
    granted_steps,
    job_of,
    planned,
    price,
    queued_job,
    reservation_of,
)
from service.core import replay
from service.core.errors import BudgetExceeded, Conflict, NotFound
from service.core.noise_log import StepRecord
from service.db.session import database_now
from service.db.tables import Job, JobEvent
from service.log_chunks import StoredChunk
from service.operations import job_runs, job_sweep, jobs, reservations
from service.operations.job_runs import Claim, Outcome


@pytest.fixture
def dataset(database):
    return add_dataset(database)


@pytest.fixture
def job_id(database, dataset):
    return queued_job(database, dataset)


def claimed(database, job_id):
    with database.write() as session:
        job = job_runs.claim(session, job_id=job_id, worker="test", lease_s=30)
        assert job is not None
        return Claim(job_id=job.id, token=job.fencing_token)


def started(database, job_id):
    held = claimed(database, job_id)
    with database.write() as session:
        job_runs.start_running(session, held, software={})
    return held


def lease(database, held, first_step, steps=LEASE_STEPS):
    with database.write() as session:
        return job_runs.lease_steps(session, held, first_step=first_step, steps=steps)


def chunk(first_step, end_step, *, noise_multiplier=MECHANISM["noise_multiplier"]):
    record = {
        "steps": end_step - first_step,
        "step": first_step,
        "noise_multiplier": noise_multiplier,
        "max_grad_norm": 1.0,
        "sampler": "poisson",
        "sampling_rate": MECHANISM["sampling_rate"],
        "expected_batch_size": 718.5,
    }
    return StoredChunk(
        first_step=first_step,
        end_step=end_step,
        released_object=f"{first_step:032x}{end_step:032x}",
        sealed_object=None,
        summary=[record],
    )


def record(database, held, first_step, end_step, **changes):
    with database.write() as session:
        return job_runs.record_chunk(session, held, chunk(first_step, end_step, **changes))


def run_all_steps(database, held):
    for first in range(0, STEPS, LEASE_STEPS):
        lease(database, held, first)
        record(database, held, first, first + LEASE_STEPS)


def outcome(steps=STEPS):
    summary = dict(chunk(0, steps).summary[0])
    run = replay.Run(first_step=0, steps=summary.pop("steps"), record=StepRecord(**summary))
    epsilon = {"lower": 0.1, "upper": 1.0, "delta": 1e-5, "neighboring": "add_or_remove_one"}
    return Outcome(executed=replay.replay([run]), epsilon=epsilon, metrics={"test_accuracy": 0.9})


def lose_the_worker(database, job_id):
    with database.write() as session:
        row = session.get_one(Job, job_id)
        row.lease_expires_at = database_now(session).replace(year=2020)


def events(database, job_id):
    with database.read() as session:
        rows = session.scalars(
            select(JobEvent).where(JobEvent.job_id == job_id).order_by(JobEvent.sequence)
        )
        return [(row.sequence, row.type, row.data.get("state")) for row in rows]


def reap(database, job_id):
    with database.write() as session:
        return job_sweep.reap(session, job_id=job_id)


def test_a_submitted_job_holds_its_worst_case_and_is_announced_after_the_commit(database, dataset):
    rung = []
    job_id = queued_job(database, dataset, ring=rung.append)
    job = job_of(database, job_id)
    assert (job.state, job.state_reason) == ("queued", "DISPATCH_PENDING")
    assert rung == [job_id]
    assert balance(database, dataset)[1] == price(database, dataset, STEPS)


def test_a_job_over_the_budget_is_refused_and_leaves_nothing(database):
    dataset = add_dataset(database, epsilon="0.01")
    rung = []
    with pytest.raises(BudgetExceeded):
        queued_job(database, dataset, ring=rung.append)
    assert rung == []
    assert not any(balance(database, dataset)[1])
    with database.read() as session:
        assert session.scalars(select(Job)).all() == []


def test_a_dry_run_of_a_submission_changes_nothing_and_rings_nobody(database, dataset):
    rung = []
    plan = planned(database, dataset)
    with database.write(keep=False) as session:
        jobs.submit(session, OWNER, dataset_id=dataset, plan=plan, ring=rung.append)
    assert rung == []
    assert not any(balance(database, dataset)[1])


def test_a_foreign_tenant_finds_no_dataset_and_no_job(database, dataset, job_id):
    plan = planned(database, dataset)
    with pytest.raises(NotFound), database.write() as session:
        jobs.submit(session, STRANGER, dataset_id=dataset, plan=plan, ring=print)
    with pytest.raises(NotFound), database.write() as session:
        jobs.cancel(session, STRANGER, job_id=job_id)


def test_only_one_of_many_deliveries_claims_a_job(database, job_id):
    claimed(database, job_id)
    for _ in range(3):
        with database.write() as session:
            assert job_runs.claim(session, job_id=job_id, worker="other", lease_s=30) is None
    assert job_of(database, job_id).fencing_token == 1


def test_of_many_claims_at_once_one_wins(database, job_id):
    def claim(name):
        with database.write() as session:
            job = job_runs.claim(session, job_id=job_id, worker=name, lease_s=30)
            return job is not None

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claim, [f"worker {i}" for i in range(8)])) == 1


def test_a_message_for_an_unknown_job_claims_nothing(database):
    with database.write() as session:
        assert job_runs.claim(session, job_id="job_unknown", worker="x", lease_s=30) is None


def test_R12_a_step_is_charged_when_it_is_leased(database, dataset, job_id):
    held = started(database, job_id)
    assert lease(database, held, 0) == LEASE_STEPS
    assert balance(database, dataset)[0] == price(database, dataset, LEASE_STEPS)


def test_a_lease_whose_answer_was_lost_is_not_charged_twice(database, job_id):
    held = started(database, job_id)
    assert lease(database, held, 0) == lease(database, held, 0) == LEASE_STEPS
    assert granted_steps(database, job_id) == LEASE_STEPS


def test_no_lease_skips_a_step(database, job_id):
    held = started(database, job_id)
    with pytest.raises(Conflict, match="in order"):
        lease(database, held, 1)


def test_no_lease_goes_past_the_last_step(database, job_id):
    held = started(database, job_id)
    assert lease(database, held, 0, steps=STEPS + 100) == STEPS


def test_a_chunk_whose_answer_was_lost_is_recorded_once(database, job_id):
    held = started(database, job_id)
    lease(database, held, 0)
    assert record(database, held, 0, 5) == record(database, held, 0, 5) == 5
    assert job_of(database, job_id).step == 5


@pytest.mark.parametrize(("first", "end"), [(0, 4), (3, 8), (6, 8)])
def test_a_chunk_that_does_not_follow_the_last_one_is_refused(database, job_id, first, end):
    held = started(database, job_id)
    lease(database, held, 0)
    record(database, held, 0, 5)
    with pytest.raises(Conflict) as refused:
        record(database, held, first, end)
    assert refused.value.code == "SEQUENCE_GAP"
    assert job_of(database, job_id).step == 5


def test_a_whole_run_is_settled_at_its_price_and_succeeds(database, dataset, job_id):
    held = started(database, job_id)
    run_all_steps(database, held)
    with database.write() as session:
        job_runs.finish(session, held, outcome())
    job = job_of(database, job_id)
    assert job.state == "succeeded"
    assert job.finished_at is not None
    posted, pending = balance(database, dataset)
    assert posted == price(database, dataset, STEPS)
    assert not any(pending)
    assert reservation_of(database, job_id).state == "settled"
    assert events(database, job_id)[-2:] == [(8, "state", "succeeded"), (9, "done", "succeeded")]


def test_a_run_with_steps_missing_from_its_log_does_not_succeed(database, job_id):
    held = started(database, job_id)
    lease(database, held, 0)
    record(database, held, 0, 5)
    with pytest.raises(Conflict) as refused, database.write() as session:
        job_runs.finish(session, held, outcome(5))
    assert refused.value.code == "LOG_INCOMPLETE"
    assert job_of(database, job_id).state == "running"


def test_a_log_other_than_the_one_replayed_does_not_succeed(database, job_id):
    held = started(database, job_id)
    for first in range(0, STEPS, LEASE_STEPS):
        lease(database, held, first)
        noise = 7.0 if first == 5 else 8.0
        record(database, held, first, first + LEASE_STEPS, noise_multiplier=noise)
    with pytest.raises(Conflict) as refused, database.write() as session:
        job_runs.finish(session, held, outcome())
    assert refused.value.code == "LOG_INCOMPLETE"


def test_R12_a_failed_run_pays_for_all_that_was_leased_and_for_no_more(database, dataset, job_id):
    held = started(database, job_id)
    lease(database, held, 0)
    record(database, held, 0, 5)
    lease(database, held, 5)
    with database.write() as session:
        job_runs.fail(session, held, code="TRAINER_DIED", message="It died.")
    job = job_of(database, job_id)
    assert (job.state, error_code(job)) == ("failed", "TRAINER_DIED")
    posted, pending = balance(database, dataset)
    assert posted == price(database, dataset, 10)
    assert not any(pending)


def test_R13_steps_that_ran_without_a_lease_are_charged(database, dataset, job_id):
    held = started(database, job_id)
    lease(database, held, 0)
    record(database, held, 0, 8)
    with database.write() as session:
        job_runs.fail(session, held, code="OVER_RUN", message="It ran on.")
    assert balance(database, dataset)[0] == price(database, dataset, 8)


def test_a_run_that_failed_before_its_first_lease_costs_nothing(database, dataset, job_id):
    held = claimed(database, job_id)
    with database.write() as session:
        job_runs.fail(session, held, code="TRAINER_DIED", message="It died.")
    assert not any(balance(database, dataset)[0])
    assert not any(balance(database, dataset)[1])
    assert reservation_of(database, job_id).state == "released"


def test_cancelling_a_queued_job_ends_it_at_once_and_gives_all_back(database, dataset, job_id):
    with database.write() as session:
        jobs.cancel(session, OWNER, job_id=job_id)
    assert job_of(database, job_id).state == "cancelled"
    assert not any(balance(database, dataset)[1])
    with database.write() as session:  # a message that comes late
        assert job_runs.claim(session, job_id=job_id, worker="late", lease_s=30) is None


def test_cancelling_a_running_job_waits_for_its_trainer(database, dataset, job_id):
    held = started(database, job_id)
    lease(database, held, 0)
    with database.write() as session:
        jobs.cancel(session, OWNER, job_id=job_id)
    assert job_of(database, job_id).state == "cancelling"
    with database.read() as session:
        assert job_runs.cancel_requested(session, held)
    with pytest.raises(Conflict) as refused:
        lease(database, held, 5)
    assert refused.value.code == "CANCEL_REQUESTED"
    with database.write() as session:
        job_runs.cancelled(session, held, forced=True)
    job = job_of(database, job_id)
    assert (job.state, job.state_reason) == ("cancelled", "FORCED")
    assert balance(database, dataset)[0] == price(database, dataset, 5)


def test_cancelling_twice_changes_nothing_the_second_time(database, job_id):
    started(database, job_id)
    for _ in range(2):
        with database.write() as session:
            jobs.cancel(session, OWNER, job_id=job_id)
    states = [state for _, kind, state in events(database, job_id) if kind == "state"]
    assert states == ["queued", "starting", "running", "cancelling"]


def test_a_run_that_was_over_when_the_cancel_came_may_succeed(database, job_id):
    held = started(database, job_id)
    run_all_steps(database, held)
    with database.write() as session:
        jobs.cancel(session, OWNER, job_id=job_id)
    with database.write() as session:
        job_runs.finish(session, held, outcome())
    assert job_of(database, job_id).state == "succeeded"


def test_a_job_that_has_ended_is_neither_cancelled_nor_changed(database, job_id):
    held = started(database, job_id)
    with database.write() as session:
        job_runs.fail(session, held, code="X", message="x")
    with pytest.raises(Conflict) as refused, database.write() as session:
        jobs.cancel(session, OWNER, job_id=job_id)
    assert refused.value.code == "INVALID_STATE"
    with pytest.raises(Conflict) as refused, database.write() as session:
        job_runs.cancelled(session, held, forced=False)
    assert refused.value.code == "LEASE_FENCED"
    with pytest.raises(DBAPIError), database.write() as session:
        session.execute(text("update jobs set state = 'running', finished_at = null"))


def test_a_worker_that_slept_through_its_lease_changes_nothing(database, dataset, job_id):
    held = started(database, job_id)
    lease(database, held, 0)
    lose_the_worker(database, job_id)
    assert reap(database, job_id) == "failed"
    before = (balance(database, dataset), events(database, job_id))
    late = [
        lambda s: job_runs.renew(s, held, lease_s=30),
        lambda s: job_runs.start_running(s, held, software={}),
        lambda s: job_runs.lease_steps(s, held, first_step=5, steps=5),
        lambda s: job_runs.record_chunk(s, held, chunk(0, 5)),
        lambda s: job_runs.finish(s, held, outcome()),
        lambda s: job_runs.fail(s, held, code="X", message="x"),
        lambda s: job_runs.cancelled(s, held, forced=False),
        lambda s: job_runs.cancel_requested(s, held),
    ]
    for act in late:
        with pytest.raises(Conflict) as refused, database.write() as session:
            act(session)
        assert refused.value.code == "LEASE_FENCED"
    assert (balance(database, dataset), events(database, job_id)) == before


def test_R12_a_lost_run_is_charged_for_its_lease_and_never_run_again(database, dataset, job_id):
    held = started(database, job_id)
    lease(database, held, 0)
    record(database, held, 0, 5)
    lease(database, held, 5)
    lose_the_worker(database, job_id)
    assert reap(database, job_id) == "failed"
    job = job_of(database, job_id)
    assert error_code(job) == "WORKER_LOST"
    assert balance(database, dataset)[0] == price(database, dataset, 10)
    assert reap(database, job_id) is None


def test_a_lost_claim_that_touched_no_data_goes_back_to_the_queue(database, dataset, job_id):
    old = claimed(database, job_id)
    lose_the_worker(database, job_id)
    assert reap(database, job_id) == "queued"
    assert balance(database, dataset)[1] == price(database, dataset, STEPS)
    with database.read() as session:
        assert job_sweep.jobs_to_announce(session, redispatch_after_s=30) == [job_id]
    new = claimed(database, job_id)
    assert new.token > old.token
    with pytest.raises(Conflict), database.write() as session:
        job_runs.start_running(session, old, software={})


def test_a_job_that_takes_every_worker_down_ends(database, job_id):
    states = []
    while not states or states[-1] == "queued":
        claimed(database, job_id)
        lose_the_worker(database, job_id)
        states.append(reap(database, job_id))
    assert states == ["queued"] * (job_sweep.MAX_CLAIMS - 1) + ["failed"]


def test_a_lost_job_that_was_to_be_cancelled_is_cancelled(database, dataset, job_id):
    held = started(database, job_id)
    lease(database, held, 0)
    with database.write() as session:
        jobs.cancel(session, OWNER, job_id=job_id)
    lose_the_worker(database, job_id)
    assert reap(database, job_id) == "cancelled"
    assert balance(database, dataset)[0] == price(database, dataset, 5)


def test_a_job_whose_worker_is_alive_is_left_alone(database, job_id):
    held = started(database, job_id)
    lose_the_worker(database, job_id)
    with database.write() as session:
        job_runs.renew(session, held, lease_s=30)
    assert reap(database, job_id) is None
    with database.read() as session:
        assert job_sweep.lost_jobs(session) == []


def test_a_queued_job_is_announced_again_only_when_it_has_waited(database, job_id):
    def waiting(after_s):
        with database.read() as session:
            return list(job_sweep.jobs_to_announce(session, redispatch_after_s=after_s))

    assert waiting(3600) == []
    assert waiting(-1) == [job_id]
    with database.write() as session:
        jobs.mark_dispatched(session, job_id=job_id, now=database_now(session))
    assert job_of(database, job_id).state_reason is None
    assert waiting(3600) == []
    claimed(database, job_id)
    assert waiting(-1) == []


def test_a_reservation_that_its_owner_closed_ends_the_job_without_a_second_charge(
    database, dataset, job_id
):
    held = started(database, job_id)
    lease(database, held, 0)
    with database.write() as session:
        reservations.release(session, OWNER, reservation_id=reservation_of(database, job_id).id)
    with pytest.raises(Conflict):
        lease(database, held, 5)
    with database.write() as session:
        job_runs.fail(session, held, code="ALREADY_SETTLED", message="Closed.")
    assert balance(database, dataset)[0] == price(database, dataset, 5)


def test_events_are_numbered_without_gaps_and_read_from_any_point(database, job_id):
    held = started(database, job_id)
    lease(database, held, 0)
    record(database, held, 0, 5)
    numbers = [number for number, _, _ in events(database, job_id)]
    assert numbers == list(range(1, len(numbers) + 1))
    with database.read() as session:
        _, rows = jobs.events_after(session, OWNER, job_id=job_id, after=2, limit=10)
        assert [row.sequence for row in rows] == numbers[2:]


def test_artifacts_stay_inside_until_the_charge_is_final(database, job_id):
    started(database, job_id)
    with pytest.raises(Conflict) as refused, database.read() as session:
        jobs.artifacts_of(session, OWNER, job_id=job_id)
    assert refused.value.code == "NOT_SETTLED"
