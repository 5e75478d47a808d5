"""Runs that train elsewhere: uploads, retries, heads, endings, charges."""

import io
import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from api_tests.http.test_conventions import problem
from api_tests.runs import (
    MECHANISM,
    STEPS,
    add_dataset,
    begin,
    complete,
    completed,
    lease,
    log,
    logged,
    ndjson,
    read_log,
    record,
    records,
    reserve,
)
from service.core import chunks, ledger, noise_log, replay
from service.core.events import poisson
from service.db.tables import Account, NoiseChunk, RunBatch
from service.operations import accounts

CHUNK = chunks.CHUNK_STEPS


def head_of(lines):
    """The head as a client computes it from its own records."""
    found = [upload.record for upload in noise_log.parse(lines)]
    link = None
    for start in range(0, len(found), CHUNK):
        link = chunks.seal(found[start : start + CHUNK], previous=link).link
    return link


def posted(database, dataset_id):
    with database.read() as session:
        row = (
            session.scalars(select(Account).where(Account.dataset_id == dataset_id)).unique().one()
        )
        return list(row.posted), list(row.pending), row.state


def price_of(database, dataset_id, lines):
    event = replay.replay([upload.record for upload in noise_log.parse(lines)])
    with database.read() as session:
        row = (
            session.scalars(select(Account).where(Account.dataset_id == dataset_id)).unique().one()
        )
        return list(ledger.price(event, accounts.terms_of(row)))


def larger(left, right):
    return [None if a is None or b is None else max(a, b) for a, b in zip(left, right, strict=True)]


# --- beginning --------------------------------------------------------------------------


def test_a_run_begins_open_with_an_empty_log(api):
    run = begin(api, leased=100)
    assert (run["state"], run["head"], run["executed"]) == ("open", None, None)
    assert run["progress"] == {"step": 0, "total_steps": STEPS, "fraction": 0.0, "eta_s": None}
    assert run["reservation"]["leased_steps"] == 100
    assert run["departs_from_reservation"] is None
    assert api.get(f"/v1/runs/{run['id']}").json() == run
    assert api.get("/v1/runs").json()["data"] == [run]


def test_a_mechanism_weaker_than_the_reservation_is_shown(api):
    dataset_id = add_dataset(api)
    body = {
        "dataset_id": dataset_id,
        "reservation_id": reserve(api, dataset_id),
        "mechanism": {**MECHANISM, "noise_multiplier": 2.0},
    }
    run = api.post("/v1/runs", body).json()
    assert "2.0" in run["departs_from_reservation"]
    assert run["mechanism"]["noise_multiplier"] == 2.0


def test_a_reservation_pays_for_one_run(api):
    run = begin(api)
    body = {
        "dataset_id": run["dataset_id"],
        "reservation_id": run["reservation"]["id"],
        "mechanism": MECHANISM,
    }
    problem(api.post("/v1/runs", body), 409, "RESERVATION_HAS_RUN")


def test_a_run_begins_on_an_open_reservation_of_its_own_dataset(api, stranger):
    dataset_id = add_dataset(api)
    reservation_id = reserve(api, dataset_id)
    body = {
        "dataset_id": dataset_id,
        "reservation_id": reservation_id,
        "mechanism": MECHANISM,
    }
    other = add_dataset(api, name="another")
    problem(api.post("/v1/runs", {**body, "dataset_id": other}), 422, "INCONSISTENT")
    problem(stranger.post("/v1/runs", body), 404, "NOT_FOUND")
    gaussian = {"type": "gaussian", "noise_multiplier": 5.0}
    problem(api.post("/v1/runs", {**body, "mechanism": gaussian}), 422, "UNSUPPORTED")
    api.post(f"/v1/reservations/{reservation_id}/release")
    problem(api.post("/v1/runs", body), 409, "ALREADY_SETTLED")


def test_while_a_run_is_open_nobody_settles_past_its_log(api):
    run = begin(api, leased=10)
    path = f"/v1/reservations/{run['reservation']['id']}"
    problem(api.post(f"{path}/settle", {"fencing_token": 1}), 409, "RESERVATION_OF_RUN")
    problem(api.post(f"{path}/release"), 409, "RESERVATION_OF_RUN")
    lease(api, run["reservation"]["id"], 10)
    assert api.get(f"/v1/runs/{run['id']}").json()["reservation"]["leased_steps"] == 20


# --- uploading --------------------------------------------------------------------------


def test_an_upload_extends_the_log_and_the_same_again_changes_nothing(api):
    run = begin(api)
    first = logged(api, run["id"], records(0, 10))
    assert first == {
        "object": "steps_accepted",
        "run_id": run["id"],
        "accepted": 10,
        "duplicates": 0,
        "next_step": 10,
        "head": head_of(records(0, 10)),
    }
    again = logged(api, run["id"], records(0, 10))
    assert again == {**first, "accepted": 0, "duplicates": 10}
    overlapping = logged(api, run["id"], records(5, 15))
    assert (overlapping["accepted"], overlapping["duplicates"]) == (5, 5)
    assert read_log(api, run["id"]) == records(0, 15)


def test_a_gap_says_which_step_comes_next(api):
    run = begin(api)
    logged(api, run["id"], records(0, 10))
    body = problem(log(api, run["id"], records(11, 12)), 409, "SEQUENCE_GAP")
    assert body["expected_step"] == 10
    within = [*records(8, 11), *records(12, 13)]
    assert problem(log(api, run["id"], within), 409, "SEQUENCE_GAP")["expected_step"] == 11
    assert read_log(api, run["id"]) == records(0, 10)


@pytest.mark.parametrize("far", [3, CHUNK + 3])
def test_a_recorded_step_keeps_its_values(api, far):
    run = begin(api)
    logged(api, run["id"], records(0, CHUNK + 10))
    changed = [record(far, noise_multiplier=4.5)]
    body = problem(log(api, run["id"], changed), 409, "STEP_ALREADY_RECORDED")
    assert body["step"] == far
    assert read_log(api, run["id"])[far] == record(far)


cuts = st.lists(st.integers(1, CHUNK + 1000), min_size=1, max_size=6)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(lengths=cuts, overlap=st.integers(0, 50), data=st.data())
def test_the_head_depends_on_the_records_alone(api, database, lengths, overlap, data):
    changes = data.draw(st.lists(st.integers(0, sum(lengths) - 1), max_size=3))
    lines = records(0, sum(lengths))
    for step in changes:
        lines[step]["noise_multiplier"] = 5.0
    run = begin(api)
    ends = [0, *(sum(lengths[: i + 1]) for i in range(len(lengths)))]
    for start, end in pairwise(ends):
        answer = logged(api, run["id"], lines[max(0, start - overlap) : end])
        assert answer["next_step"] == end
        assert answer["head"] == head_of(lines[:end])
    ended = completed(api, run["id"], steps=len(lines))
    assert ended["head"] == head_of(lines)
    assert read_log(api, run["id"]) == lines
    with database.read() as session:
        query = select(NoiseChunk).where(NoiseChunk.subject_id == run["id"])
        rows = session.scalars(query.order_by(NoiseChunk.sequence)).all()
        assert [row.first_step for row in rows] == list(range(0, len(lines), CHUNK))
        assert rows[-1].link == ended["head"]
        assert session.scalars(select(RunBatch).where(RunBatch.run_id == run["id"])).all() == []


def test_one_step_at_a_time_makes_one_object_and_few_rows(api, database, tmp_path):
    run = begin(api)
    for step in range(80):
        logged(api, run["id"], [record(step, sealed={"noise_norm": 1.5 * step})])
    assert not list((tmp_path / "objects").rglob("??/*"))
    with database.read() as session:
        assert len(session.scalars(select(RunBatch)).all()) <= 33
    sealed = api.get(f"/v1/runs/{run['id']}/sealed-log").text
    completed(api, run["id"])
    assert len(list((tmp_path / "objects").rglob("??/*"))) == 2  # one released, one sealed
    assert read_log(api, run["id"]) == records(0, 80)
    norms = [json.loads(line)["sealed"]["noise_norm"] for line in sealed.splitlines()]
    assert norms == [1.5 * step for step in range(80)]
    assert api.get(f"/v1/runs/{run['id']}/sealed-log").text == sealed


def test_epochs_are_logged_and_read_back(api):
    run = begin(api)
    lines = [
        record(s, sampler="shuffle", sampling_rate=1 / 7, epoch=s // 7, updates_per_epoch=7)
        for s in range(40)
    ]
    logged(api, run["id"], lines[:11])
    answer = logged(api, run["id"], lines[11:])
    assert answer["head"] == head_of(lines)
    assert read_log(api, run["id"]) == lines


def test_two_uploaders_leave_every_step_once(api):
    run = begin(api)
    lines = records(0, 2000)
    batches = [lines[start : start + 100] for start in range(0, 2000, 100)]

    def upload_all(_):
        for batch in batches:
            answer = log(api, run["id"], batch)
            while answer.status_code == 409 and answer.json()["code"] == "LOG_BUSY":
                answer = log(api, run["id"], batch)
            assert answer.status_code == 200, answer.text

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(upload_all, range(2)))
    assert read_log(api, run["id"]) == lines
    assert api.get(f"/v1/runs/{run['id']}").json()["head"] == head_of(lines)


# --- what cannot be read ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "status", "code", "pointer"),
    [
        (b"{", 400, "BAD_JSON", "/1"),
        (b"", 400, "BAD_JSON", "/1"),
        (b'{"step": 1, "step": 1}', 400, "DUPLICATE_KEY", "/1"),
        (b'{"step": 1e400}', 400, "NON_FINITE_NUMBER", "/1"),
        (b'{"step": NaN}', 400, "NON_FINITE_NUMBER", "/1"),
        (b"[]", 422, "WRONG_TYPE", "/1"),
        (ndjson([record(1, noise=1)]).strip(), 422, "UNKNOWN_FIELD", "/1/noise"),
        (ndjson([record(1, sampling_rate=2)]).strip(), 422, "OUT_OF_RANGE", "/1/sampling_rate"),
        (ndjson([record(1, at="noon")]).strip(), 422, "OUT_OF_RANGE", "/1/at"),
    ],
)
def test_the_first_bad_line_is_named_and_nothing_is_stored(api, line, status, code, pointer):
    run = begin(api)
    body = ndjson([record(0)]) + line + b"\n" + ndjson([record(2)])
    answer = api.post_raw(
        f"/v1/runs/{run['id']}/steps", body, **{"Content-Type": "application/x-ndjson"}
    )
    found = problem(answer, status, code)
    assert found["errors"][0]["pointer"] == pointer
    assert "Line 1 " in found["detail"]
    assert read_log(api, run["id"]) == []


def test_another_content_type_says_which_header_to_add(api):
    run = begin(api)
    answer = api.post_raw(f"/v1/runs/{run['id']}/steps", ndjson(records(0, 1)))
    found = problem(answer, 415, "UNSUPPORTED_MEDIA_TYPE")
    assert "Content-Type: application/x-ndjson" in found["detail"]


def test_an_upload_has_at_most_ten_thousand_records(api):
    run = begin(api)
    problem(log(api, run["id"], records(0, 10_001)), 413, "BODY_TOO_LARGE")
    huge = [record(0, sealed={"note": "x" * 17 * 2**20})]
    problem(log(api, run["id"], huge), 413, "BODY_TOO_LARGE")
    assert logged(api, run["id"], records(0, 10_000))["next_step"] == 10_000


def test_a_run_of_another_tenant_does_not_exist(api, stranger):
    run = begin(api)
    path = f"/v1/runs/{run['id']}"
    for answer in (
        stranger.get(path),
        stranger.get(f"{path}/noise-log"),
        log(stranger, run["id"], records(0, 1)),
        complete(stranger, run["id"]),
    ):
        problem(answer, 404, "NOT_FOUND")
    assert stranger.get("/v1/runs").json()["data"] == []


def test_logging_needs_its_scope(api):
    run = begin(api)
    made = api.post("/v1/api-keys", {"name": "reader", "scopes": ["jobs:read"]}).json()
    reader = type(api)(api.client, made["secret"])
    assert reader.get(f"/v1/runs/{run['id']}").status_code == 200
    problem(log(reader, run["id"], records(0, 1)), 403, "MISSING_SCOPE")
    problem(complete(reader, run["id"]), 403, "MISSING_SCOPE")
    problem(reader.get(f"/v1/runs/{run['id']}/sealed-log"), 403, "MISSING_SCOPE")


# --- endings ----------------------------------------------------------------------------


def test_R12_what_was_logged_within_the_lease_costs_the_lease(api, database):
    run = begin(api, leased=200)
    logged(api, run["id"], records(0, 150))
    ended = completed(api, run["id"])
    assert (ended["state"], ended["overrun_steps"]) == ("completed", 0)
    assert ended["reservation"]["state"] == "settled"
    assert ended["executed"]["steps"] == 150
    spent, held, state = posted(database, run["dataset_id"])
    assert spent == price_of(database, run["dataset_id"], records(0, 200))
    assert (set(held), state) == ({0}, "open")


def test_R12_steps_never_leased_are_charged_as_logged(api, database):
    run = begin(api, leased=100)
    logged(api, run["id"], records(0, 300))
    assert api.get(f"/v1/runs/{run['id']}").json()["overrun_steps"] == 200
    completed(api, run["id"])
    spent, _, state = posted(database, run["dataset_id"])
    assert spent == price_of(database, run["dataset_id"], records(0, 300))
    assert state == "open"  # within what was reserved


def test_R13_more_steps_than_reserved_are_stored_charged_and_overdraw(api, database):
    run = begin(api, leased=50, steps=50)
    lines = records(0, 60)
    logged(api, run["id"], lines)
    completed(api, run["id"])
    spent, _, state = posted(database, run["dataset_id"])
    assert spent == price_of(database, run["dataset_id"], lines)
    assert state == "overdrawn"


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": 0.5},
        {"noise_multiplier": 0},
        {"sampling_rate": 1, "sampler": "full_batch"},
        {"sampler": "shuffle", "epoch": 0, "updates_per_epoch": 100, "sampling_rate": 0.01},
        {"sampler": "balls_in_bins", "epoch": 0, "updates_per_epoch": 100, "sampling_rate": 0.01},
    ],
)
def test_R13_what_differs_from_the_reservation_is_stored_and_costs_what_it_costs(
    api, database, changes
):
    run = begin(api, leased=100, steps=100)
    lines = [*records(0, 50), *records(50, 100, **changes)]
    logged(api, run["id"], lines)
    ended = completed(api, run["id"])
    assert ended["state"] == "completed"
    spent, held, state = posted(database, run["dataset_id"])
    leased = price_of(database, run["dataset_id"], records(0, 100))
    assert spent == larger(leased, price_of(database, run["dataset_id"], lines))
    assert (set(held), state) == ({0}, "overdrawn")


def test_R13_what_an_account_cannot_price_costs_all_of_it(api, database):
    zcdp = {
        "epsilon": "8.0",
        "delta": "1e-5",
        "neighboring": "add_or_remove_one",
        "composition": "zcdp",
    }
    dataset_id = add_dataset(api, budget=zcdp)
    full = {"sampler": "full_batch", "sampling_rate": 1.0, "noise_multiplier": 20.0, "steps": 10}
    reservation = {k: v for k, v in {**MECHANISM, **full}.items() if k != "sampling_rate"}
    made = api.post(
        "/v1/reservations",
        {"dataset_ids": [dataset_id], "mechanism": reservation, "expires_in_s": 60.0},
    ).json()
    run = api.post(
        "/v1/runs",
        {"dataset_id": dataset_id, "reservation_id": made["id"], "mechanism": reservation},
    ).json()
    logged(api, run["id"], records(0, 10))
    assert completed(api, run["id"])["state"] == "completed"
    assert posted(database, dataset_id) == ([None], [0], "overdrawn")


def test_completing_twice_settles_once(api, database):
    run = begin(api, leased=10)
    logged(api, run["id"], records(0, 10))
    first = complete(api, run["id"], key="done")
    again = complete(api, run["id"], key="done")
    assert first.json() == again.json()
    assert again.headers["idempotency-replayed"] == "true"
    before = posted(database, run["dataset_id"])
    problem(complete(api, run["id"], key="once more"), 409, "RUN_ENDED")
    assert posted(database, run["dataset_id"]) == before


def test_completing_needs_an_idempotency_key(api):
    run = begin(api)
    answer = api.client.post(
        f"/v1/runs/{run['id']}/complete",
        json={},
        headers={"Authorization": f"Bearer {api.token}"},
    )
    problem(answer, 400, "IDEMPOTENCY_KEY_REQUIRED")


def test_a_lost_batch_is_noticed_at_the_end(api):
    run = begin(api, leased=20)
    logged(api, run["id"], records(0, 10))
    body = problem(complete(api, run["id"], steps=20), 409, "LOG_INCOMPLETE")
    assert body["expected_step"] == 10
    logged(api, run["id"], records(10, 20))
    assert completed(api, run["id"], steps=20)["progress"]["step"] == 20


def test_an_ended_run_takes_no_more_steps_but_knows_its_old_ones(api, database):
    run = begin(api, leased=20)
    logged(api, run["id"], records(0, 10))
    completed(api, run["id"])
    problem(log(api, run["id"], records(10, 11)), 409, "RUN_ENDED")
    assert logged(api, run["id"], records(0, 10))["duplicates"] == 10
    with pytest.raises(DBAPIError, match="never changes"), database.write() as session:
        session.execute(text("update runs set next_step = 3"))


def test_a_run_without_a_step_gives_everything_back(api, database):
    run = begin(api)
    ended = completed(api, run["id"])
    assert (ended["state"], ended["executed"]) == ("completed", None)
    spent, held, _ = posted(database, run["dataset_id"])
    assert set(spent) == set(held) == {0}


# --- reading ----------------------------------------------------------------------------


@pytest.mark.parametrize("ended", [False, True])
def test_the_releasable_log_comes_as_parquet_too(api, ended):
    run = begin(api)
    logged(api, run["id"], records(0, CHUNK + 5, sealed={"noise_norm": 1.25}))
    if ended:
        completed(api, run["id"])
    answer = api.get(f"/v1/runs/{run['id']}/noise-log", Accept="application/vnd.apache.parquet")
    table = pq.read_table(io.BytesIO(answer.content))
    assert table.column("step").to_pylist() == list(range(CHUNK + 5))
    assert table.num_columns == 9
    assert read_log(api, run["id"]) == records(0, CHUNK + 5)


def test_the_replayed_log_is_the_event_that_was_reserved(api):
    run = begin(api, steps=500, leased=500)
    logged(api, run["id"], records(0, 500))
    ended = completed(api, run["id"])
    found = noise_log.parse(read_log(api, run["id"]))
    assert replay.replay([u.record for u in found]) == poisson(
        sampling_rate=0.001, noise_multiplier=4.0, steps=500
    )
    assert ended["executed"]["steps"] == 500
    assert json.loads(json.dumps(ended["executed"]))["noise_multiplier"] == 4.0
