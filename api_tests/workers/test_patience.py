"""A supervisor's database work: tried again while its lease may hold, and no longer."""

from contextlib import contextmanager

import pytest

from service.core.errors import Conflict, Unavailable
from workers.patience import Lost, Patience


class Flaky:
    """A database that is away for the first few transactions, or whose answer is lost."""

    def __init__(self, *, away):
        self.away = away
        self.tries = 0

    @contextmanager
    def write(self):
        self.tries += 1
        if self.tries <= self.away:
            raise Unavailable("away")
        yield "session"

    read = write


def patient(database, patience_s=30.0):
    return Patience(database, patience_s)


def test_a_transaction_is_tried_again_until_the_database_is_back():
    database = Flaky(away=2)
    assert patient(database, 30.0).write(lambda session: session) == "session"
    assert database.tries == 3


def test_a_look_is_tried_once():
    database = Flaky(away=1)
    assert patient(database, 30.0).read(lambda session: session) is None
    assert database.tries == 1


@pytest.mark.parametrize("way", ["read", "write"])
def test_a_database_that_is_away_for_longer_than_the_lease_loses_the_job(way):
    with pytest.raises(Lost):
        getattr(patient(Flaky(away=10**9), -1.0), way)(lambda session: session)


@pytest.mark.parametrize("way", ["read", "write"])
def test_a_fenced_lease_loses_the_job_at_once(way):
    def refuse(_):
        raise Conflict("Another holds it.", code="LEASE_FENCED")

    with pytest.raises(Lost):
        getattr(patient(Flaky(away=0), 30.0), way)(refuse)


def test_any_other_refusal_is_handed_on():
    def refuse(_):
        raise Conflict("No.", code="ALREADY_SETTLED")

    with pytest.raises(Conflict) as refused:
        patient(Flaky(away=0), 30.0).write(refuse)
    assert refused.value.code == "ALREADY_SETTLED"
