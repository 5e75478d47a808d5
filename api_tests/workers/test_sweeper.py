"""The sweeper: what was forgotten is announced again, what was lost is ended."""

import pytest
from kombu.exceptions import OperationalError

from api_tests.jobs import add_dataset, balance, job_of, queued_job
from service.db.session import database_now
from service.db.tables import Job
from service.operations import job_runs
from workers.sweeper import sweep


@pytest.fixture
def dataset(database):
    return add_dataset(database)


def lose(database, job_id):
    with database.write() as session:
        assert job_runs.claim(session, job_id=job_id, worker="lost", lease_s=30) is not None
    with database.write() as session:
        row = session.get_one(Job, job_id)
        row.lease_expires_at = database_now(session).replace(year=2020)


def test_jobs_are_announced_again_and_marked(database, dataset):
    ids = [queued_job(database, dataset) for _ in range(3)]
    rung = []
    sweep(database, ring=rung.append, redispatch_after_s=-1)
    assert rung == ids
    assert {job_of(database, job_id).state_reason for job_id in ids} == {None}
    sweep(database, ring=rung.append, redispatch_after_s=3600)
    assert rung == ids


def test_a_broker_that_is_away_stops_the_round_and_marks_nothing(database, dataset):
    ids = [queued_job(database, dataset) for _ in range(2)]
    tried = []

    def ring(job_id):
        tried.append(job_id)
        raise OperationalError("away")

    sweep(database, ring=ring, redispatch_after_s=-1)
    assert tried == ids[:1]
    assert {job_of(database, job_id).state_reason for job_id in ids} == {"DISPATCH_PENDING"}


def test_a_lost_claim_is_queued_and_announced_in_the_same_round(database, dataset):
    job_id = queued_job(database, dataset)
    lose(database, job_id)
    rung = []
    sweep(database, ring=rung.append, redispatch_after_s=3600)
    assert rung == [job_id]
    assert job_of(database, job_id).state == "queued"


def test_a_round_with_nothing_to_do_changes_nothing(database, dataset):
    before = balance(database, dataset)
    sweep(database, ring=print, redispatch_after_s=-1)
    assert balance(database, dataset) == before
