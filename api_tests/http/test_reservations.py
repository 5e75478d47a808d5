"""Reservations over HTTP: all or none, charged when leased, never refunded once spent."""

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from api_tests.http.test_conventions import problem
from service.core import ledger
from service.core.credentials import Principal
from service.core.events import Gaussian
from service.db import tables
from service.operations import reservations

STEPS = {
    "type": "dp_sgd",
    "sampler": "poisson",
    "sampling_rate": 0.01,
    "noise_multiplier": 1.1,
    "steps": 3000,
}
GAUSSIAN = {"type": "gaussian", "noise_multiplier": 4.0, "count": 1}
BUDGET = {"epsilon": "8.0", "delta": "1e-5", "neighboring": "add_or_remove_one"}


def dataset(api, *, budget=BUDGET, **fields):
    body = {"name": "people", "privacy_unit": "record", "record_count": 60_000, "budget": budget}
    answer = api.post("/v1/datasets", {**body, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def budget_of(api, dataset_id):
    return api.get(f"/v1/datasets/{dataset_id}/budget").json()


def reserve(api, *dataset_ids, mechanism=STEPS, **fields):
    body = {"dataset_ids": list(dataset_ids), "mechanism": mechanism, **fields}
    return api.post("/v1/reservations", body)


def entries(api, dataset_id):
    return api.get(f"/v1/datasets/{dataset_id}/budget/entries?limit=100").json()["data"]


def test_a_reservation_holds_budget_and_a_release_gives_it_all_back(api):
    ds = dataset(api)
    made = reserve(api, ds)
    assert made.status_code == 201, made.text
    body = made.json()
    assert body["state"] == "pending"
    assert body["total_steps"] == 3000
    held = budget_of(api, ds)
    assert Decimal(held["spent"]["epsilon"]) == 0
    assert Decimal(held["reserved"]["epsilon"]) > Decimal("2.9")
    freed = api.post(f"/v1/reservations/{body['id']}/release")
    assert freed.json()["state"] == "released"
    assert Decimal(budget_of(api, ds)["reserved"]["epsilon"]) == 0


def test_R12_what_is_leased_stays_spent_whether_it_ran_or_not(api):
    ds = dataset(api)
    res = reserve(api, ds).json()["id"]
    lease = api.post(f"/v1/reservations/{res}/lease", {"steps": 1000}).json()
    assert (lease["first_step"], lease["end_step"]) == (0, 1000)
    spent = Decimal(budget_of(api, ds)["spent"]["epsilon"])
    assert spent > 0
    api.post(f"/v1/reservations/{res}/release")
    after = budget_of(api, ds)
    assert Decimal(after["spent"]["epsilon"]) == spent
    assert Decimal(after["reserved"]["epsilon"]) == 0


def test_leases_follow_each_other_and_their_charges_sum_to_the_whole(api):
    ds = dataset(api)
    res = reserve(api, ds).json()["id"]
    reserved = [int(v) for v in entries(api, ds)[0]["pending_change"]]
    for first in (0, 1000, 2000):
        lease = api.post(f"/v1/reservations/{res}/lease", {"steps": 1000}).json()
        assert lease["first_step"] == first
    posted = [
        [int(v) for v in e["posted_change"]] for e in entries(api, ds) if e["kind"] == "lease"
    ]
    assert [sum(column) for column in zip(*posted, strict=True)] == reserved
    more = api.post(f"/v1/reservations/{res}/lease", {"steps": 1})
    problem(more, 409, "LEASE_EXCEEDS_RESERVATION")
    token = lease["fencing_token"]
    done = api.post(f"/v1/reservations/{res}/settle", {"fencing_token": token}).json()
    assert done["state"] == "settled"
    total = [[int(v) for v in e["posted_change"]] for e in entries(api, ds)]
    assert [sum(column) for column in zip(*total, strict=True)] == reserved


def test_an_old_fencing_token_is_refused(api):
    res = reserve(api, dataset(api)).json()["id"]
    old = api.post(f"/v1/reservations/{res}/lease", {"steps": 10}).json()["fencing_token"]
    new = api.post(f"/v1/reservations/{res}/lease", {"steps": 10}).json()["fencing_token"]
    problem(
        api.post(f"/v1/reservations/{res}/heartbeat", {"fencing_token": old}), 409, "LEASE_FENCED"
    )
    problem(api.post(f"/v1/reservations/{res}/settle", {"fencing_token": old}), 409, "LEASE_FENCED")
    beat = api.post(f"/v1/reservations/{res}/heartbeat", {"fencing_token": new})
    assert beat.status_code == 200, beat.text


def test_a_settlement_is_final(api):
    res = reserve(api, dataset(api), mechanism=GAUSSIAN).json()["id"]
    assert api.post(f"/v1/reservations/{res}/settle", {}).json()["state"] == "settled"
    problem(api.post(f"/v1/reservations/{res}/settle", {}), 409, "ALREADY_SETTLED")
    problem(api.post(f"/v1/reservations/{res}/release"), 409, "ALREADY_SETTLED")
    problem(api.post(f"/v1/reservations/{res}/lease", {"steps": 1}), 409, "ALREADY_SETTLED")


def test_R13_more_than_was_reserved_is_charged_and_marks_the_account(api):
    ds = dataset(api, budget={**BUDGET, "epsilon": "3.5"})
    res = reserve(api, ds).json()["id"]
    weaker = {**STEPS, "noise_multiplier": 0.7}
    done = api.post(f"/v1/reservations/{res}/settle", {"executed": {"mechanism": weaker}})
    assert done.status_code == 200, done.text
    after = budget_of(api, ds)
    assert after["state"] == "overdrawn"
    assert Decimal(after["spent"]["epsilon"]) > 8
    refused = reserve(api, ds, mechanism=GAUSSIAN)
    assert problem(refused, 409, "PRIVACY_BUDGET_EXCEEDED")["state"] == "overdrawn"


def test_a_reservation_over_the_cap_changes_nothing_and_says_what_would_fit(api):
    ds = dataset(api)
    before = budget_of(api, ds)
    body = problem(
        reserve(api, ds, mechanism={**STEPS, "steps": 300_000}), 409, "PRIVACY_BUDGET_EXCEEDED"
    )
    assert body["dataset_id"] == ds
    assert Decimal(body["requested"]) == Decimal(body["available"]) + Decimal(body["shortfall"])
    assert budget_of(api, ds) == before
    assert entries(api, ds) == []
    for suggestion in body["suggestions"]:
        fitting = {**STEPS, "steps": 300_000, suggestion["change"]: suggestion["to"]}
        quote = reserve(api, ds, mechanism=fitting, validate_only=True)
        assert quote.status_code == 200, quote.text
        assert quote.json()["id"] is None
    assert {s["change"] for s in body["suggestions"]} == {"noise_multiplier", "steps"}
    assert entries(api, ds) == []


def test_several_datasets_are_debited_all_or_none(api):
    rich, poor = dataset(api), dataset(api, budget={**BUDGET, "epsilon": "1.0"})
    body = problem(reserve(api, rich, poor), 409, "PRIVACY_BUDGET_EXCEEDED")
    assert body["dataset_id"] == poor
    assert entries(api, rich) == entries(api, poor) == []
    assert reserve(api, rich, dataset(api)).status_code == 201
    problem(reserve(api, rich, rich), 422, "INCONSISTENT")


def test_a_foreign_dataset_cannot_be_charged(api, stranger):
    mine = dataset(api)
    problem(reserve(stranger, mine), 404, "NOT_FOUND")
    res = reserve(api, mine).json()["id"]
    for verb, body in (("lease", {"steps": 1}), ("settle", {}), ("release", None)):
        problem(stranger.post(f"/v1/reservations/{res}/{verb}", body), 404, "NOT_FOUND")


def test_noise_of_zero_is_never_reserved(api):
    body = problem(
        reserve(api, dataset(api), mechanism={**STEPS, "noise_multiplier": 0}), 422, "OUT_OF_RANGE"
    )
    assert body["errors"][0]["pointer"] == "/mechanism/noise_multiplier"


def test_a_unit_of_many_records_pays_for_all_of_them(api):
    one = dataset(api)
    many = dataset(api, max_records_per_unit=2)
    reserve(api, one, mechanism=GAUSSIAN)
    reserve(api, many, mechanism=GAUSSIAN)
    paid = [int(e["pending_change"][3]) for e in (entries(api, one)[0], entries(api, many)[0])]
    assert abs(paid[1] - 4 * paid[0]) <= 4


def test_fits_tells_how_many_more_runs_like_the_last(api):
    ds = dataset(api)
    assert budget_of(api, ds)["fits"] is None
    reserve(api, ds, mechanism=GAUSSIAN)
    fits = budget_of(api, ds)["fits"]
    again = {"type": "repeat", "of": GAUSSIAN, "times": fits}
    assert reserve(api, ds, mechanism=again, validate_only=True).status_code == 200
    one_more = {"type": "repeat", "of": GAUSSIAN, "times": fits + 1}
    problem(
        reserve(api, ds, mechanism=one_more, validate_only=True), 409, "PRIVACY_BUDGET_EXCEEDED"
    )


def test_ten_tenths_fit_a_pure_budget_exactly(api):
    ds = dataset(
        api, budget={"epsilon": "1.0", "neighboring": "replace_one", "composition": "pure"}
    )
    tenth = {"type": "approximate_dp", "epsilon": 0.1, "delta": 0}
    for _ in range(10):
        assert reserve(api, ds, mechanism=tenth).status_code == 201
    problem(reserve(api, ds, mechanism=tenth), 409, "PRIVACY_BUDGET_EXCEEDED")
    tiny = {"type": "approximate_dp", "epsilon": 5e-324, "delta": 0}
    problem(reserve(api, ds, mechanism=tiny), 409, "PRIVACY_BUDGET_EXCEEDED")


def test_64_threads_reserve_exactly_what_fits(api):
    ds = dataset(
        api, budget={"epsilon": "1.0", "neighboring": "replace_one", "composition": "pure"}
    )
    unit = {"type": "approximate_dp", "epsilon": 0.01, "delta": 0}

    def one(number):
        body = {"dataset_ids": [ds], "mechanism": unit}
        return api.post("/v1/reservations", body, key=f"thread-{number}").status_code

    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(one, range(128)))
    assert answers.count(201) == 100
    assert answers.count(409) == 28
    assert budget_of(api, ds)["reserved"]["epsilon"] == "1.000000"
    assert len(api.get(f"/v1/datasets/{ds}/budget/entries?limit=100").json()["data"]) == 100


def test_a_failed_commit_answers_a_problem_and_stores_nothing(api, database):
    ds = dataset(api)

    def fail(_connection):
        raise OperationalError("COMMIT", {}, Exception("disk full"))

    sqlalchemy_event.listen(database.engine, "commit", fail)
    answer = reserve(api, ds)
    sqlalchemy_event.remove(database.engine, "commit", fail)
    body = problem(answer, 503, "UNAVAILABLE")
    assert body["retryable"] is True
    assert answer.headers["retry-after"]
    assert entries(api, ds) == []
    assert api.get("/v1/reservations").json()["data"] == []


@pytest.mark.parametrize("copies", [8])
def test_equal_requests_at_once_have_one_effect(api, copies):
    ds = dataset(api)
    body = {"dataset_ids": [ds], "mechanism": GAUSSIAN}
    with ThreadPoolExecutor(copies) as pool:
        answers = list(
            pool.map(lambda _: api.post("/v1/reservations", body, key="same"), range(copies))
        )
    assert {a.status_code for a in answers} == {201}
    assert len({a.content for a in answers}) == 1
    assert len(entries(api, ds)) == 1


def test_a_price_known_beforehand_is_the_price_under_the_lock(api, database):
    ids = [dataset(api), dataset(api)]
    event = Gaussian(noise_multiplier=20.0, count=3)
    with database.read() as session:
        row = session.scalars(select(tables.ApiKey)).first()
        principal = Principal(key_id=row.id, tenant_id=row.tenant_id, scopes=frozenset(row.scopes))
        terms = reservations.terms_to_price(session, principal, dataset_ids=ids)
    prices = {one: ledger.price(event, one) for one in terms}
    held = []
    for known in (prices, {}):
        with database.write() as session:
            made = reservations.reserve(
                session,
                principal,
                dataset_ids=ids,
                event=event,
                expires_in_s=60.0,
                prices=known,
            )
            held.append(sorted((h.account_id, tuple(h.reserved)) for h in made.holdings))
    assert held[0] == held[1]
    assert len(held[0]) == 2
