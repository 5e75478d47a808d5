"""Training jobs over HTTP: what is shown, what is refused, and how to watch."""

import io
import json
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from api_tests.http.test_conventions import DATASET, problem
from api_tests.jobs import STEPS
from service.objects import FolderStore
from service.sealing import FileSealer
from service.settings import Settings
from workers.context import WorkerParts
from workers.supervisor import run_job

FAKE = Path(__file__).parent.parent / "workers" / "fake_trainer.py"
MECHANISM = {
    "type": "dp_sgd",
    "sampler": "poisson",
    "sampling_rate": 0.5,
    "noise_multiplier": 8.0,
    "steps": STEPS,
}


@pytest.fixture
def dataset(api):
    return api.post("/v1/datasets", DATASET).json()["id"]


@pytest.fixture
def run(database, tmp_path):
    """Run a queued job with a scripted trainer, here and now."""

    def run_it(job_id, mode="honest"):
        parts = WorkerParts(
            settings=Settings(data_dir=tmp_path, lease_s=5.0),
            database=database,
            objects=FolderStore(tmp_path / "objects"),
            sealer=FileSealer(tmp_path / "sealed-log.key"),
            trainer=[sys.executable, str(FAKE), mode],
            name="test",
        )
        run_job(parts, job_id)

    return run_it


def body(dataset, **changes):
    return {
        "dataset_id": dataset,
        "training": {"model": "mlp"},
        "privacy": {"mechanism": MECHANISM, "max_grad_norm": 1.0},
        "limits": {"lease_steps": 5},
        **changes,
    }


def submit(api, dataset, **changes):
    answer = api.post("/v1/training-jobs", body(dataset, **changes))
    assert answer.status_code == 201, answer.text
    return answer


def frames(text):
    """The events of an event stream, as (id, event, data)."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "event" in fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def test_a_job_of_three_required_fields_is_answered_with_all_its_settings(api, queue, dataset):
    answer = api.post(
        "/v1/training-jobs",
        {
            "dataset_id": dataset,
            "training": {"model": "mlp"},
            "privacy": {"target_epsilon": 3.0, "delta": 1e-5, "max_grad_norm": 1.0},
        },
    )
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert answer.headers["location"] == f"/v1/training-jobs/{job['id']}"
    assert queue.rung == [job["id"]]
    assert (job["object"], job["state"]) == ("training_job", "queued")
    assert job["reservation"]["state"] == "pending"
    assert 2.9 < job["forecast"]["epsilon"]["upper"] <= 3.0
    assert job["forecast"]["noise_multiplier"] > 0
    assert job["privacy"]["neighboring"] == "add_or_remove_one"
    assert job["privacy"]["mechanism"]["sampler"] == "poisson"
    assert job["training"]["optimizer"]["learning_rate"] > 0
    assert job["limits"]["max_runtime_s"] > 0
    assert job["progress"] == {
        "step": 0,
        "total_steps": job["forecast"]["steps"],
        "fraction": 0.0,
        "eta_s": None,
    }
    assert job["result"] is None


def test_validate_only_checks_everything_and_does_nothing(api, queue, dataset):
    answer = api.post("/v1/training-jobs", body(dataset, validate_only=True))
    assert answer.status_code == 200, answer.text
    assert answer.json()["id"] is None
    assert answer.json()["reservation"]["id"] is None
    assert queue.rung == []
    assert api.get("/v1/training-jobs").json()["data"] == []
    budget = api.get(f"/v1/datasets/{dataset}/budget").json()
    assert budget["reserved"]["epsilon"] == "0"
    refused = api.post(
        "/v1/training-jobs",
        body(dataset, validate_only=True, training={"model": "gpt"}),
    )
    problem(refused, 422, "UNKNOWN")


def test_the_same_idempotency_key_makes_one_job(api, queue, dataset):
    first = api.post("/v1/training-jobs", body(dataset), key="once")
    again = api.post("/v1/training-jobs", body(dataset), key="once")
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert len(queue.rung) == 1


@pytest.mark.parametrize(
    ("changes", "code", "pointer"),
    [
        ({"privacy": {"max_grad_norm": 1.0}}, "MISSING_FIELD", "/privacy/target_epsilon"),
        ({"privacy": {"target_epsilon": 3.0}}, "MISSING_FIELD", "/privacy/delta"),
        (
            {"privacy": {"target_epsilon": 3.0, "delta": 1e-5, "mechanism": MECHANISM}},
            "INCONSISTENT",
            "/privacy/target_epsilon",
        ),
        (
            {"privacy": {"mechanism": {**MECHANISM, "noise_multiplier": 0}}},
            "OUT_OF_RANGE",
            "/privacy/mechanism/noise_multiplier",
        ),
        (
            {"privacy": {"mechanism": {"type": "gaussian", "noise_multiplier": 4.0}}},
            "UNSUPPORTED",
            "/privacy/mechanism",
        ),
        ({"training": {"model": "mlp", "lr": 1.0}}, "UNKNOWN_FIELD", "/training/lr"),
        ({"training": {"model": "mlp", "steps": True}}, "WRONG_TYPE", "/training/steps"),
        (
            {"training": {"model": "mlp", "optimizer": {"learning_rate": 0}}},
            "OUT_OF_RANGE",
            "/training/optimizer/learning_rate",
        ),
        ({"seed_policy": "reproducible"}, "INCONSISTENT", "/seed"),
        ({"limits": {"max_runtime_s": -1}}, "OUT_OF_RANGE", "/limits/max_runtime_s"),
        ({"metadata": {"a": 1}}, "WRONG_TYPE", "/metadata/a"),
    ],
)
def test_a_bad_job_is_refused_with_the_place_of_the_fault(api, dataset, changes, code, pointer):
    answer = api.post("/v1/training-jobs", body(dataset, **changes))
    assert problem(answer, 422, code)["errors"][0]["pointer"] == pointer


def test_a_job_over_the_budget_is_refused_with_what_would_fit(api, queue):
    small = {**DATASET, "budget": {**DATASET["budget"], "epsilon": "0.5"}}
    dataset = api.post("/v1/datasets", small).json()["id"]
    refused = problem(api.post("/v1/training-jobs", body(dataset)), 409, "PRIVACY_BUDGET_EXCEEDED")
    assert refused["suggestions"]
    assert queue.rung == []


def test_data_that_no_trainer_has_is_refused(api):
    other = {**DATASET, "source": None, "record_count": 1000}
    dataset = api.post("/v1/datasets", other).json()["id"]
    refused = problem(api.post("/v1/training-jobs", body(dataset)), 422, "UNSUPPORTED")
    assert refused["errors"][0]["pointer"] == "/dataset_id"


def test_a_foreign_tenants_job_does_not_exist(api, stranger, dataset):
    job_id = submit(api, dataset).json()["id"]
    for path in ("", "/wait", "/events", "/noise-log", "/artifacts", "/logs"):
        problem(stranger.get(f"/v1/training-jobs/{job_id}{path}"), 404, "NOT_FOUND")
    problem(stranger.post(f"/v1/training-jobs/{job_id}/cancel"), 404, "NOT_FOUND")
    problem(stranger.post("/v1/training-jobs", body(dataset)), 404, "NOT_FOUND")


def test_a_queued_job_is_cancelled_at_once_and_its_budget_comes_back(api, dataset):
    job_id = submit(api, dataset).json()["id"]
    cancelled = api.post(f"/v1/training-jobs/{job_id}/cancel")
    assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelled")
    assert cancelled.json()["reservation"]["state"] == "released"
    problem(api.post(f"/v1/training-jobs/{job_id}/cancel"), 409, "INVALID_STATE")


def test_a_job_that_ran_shows_its_result_and_gives_its_files(api, dataset, run):
    job_id = submit(api, dataset, metadata={"team": "blue"}).json()["id"]
    path = f"/v1/training-jobs/{job_id}"
    problem(api.get(f"{path}/artifacts"), 409, "NOT_SETTLED")
    problem(api.get(f"{path}/artifacts/model.bin"), 409, "NOT_SETTLED")
    assert api.get(f"{path}/logs").status_code == 200
    run(job_id)
    job = api.get(path).json()
    assert job["state"] == "succeeded"
    assert job["metadata"] == {"team": "blue"}
    assert job["progress"]["fraction"] == 1.0
    assert job["result"]["metrics"] == {"test_accuracy": 0.9}
    assert job["result"]["epsilon"]["upper"] == job["forecast"]["epsilon"]["upper"]
    assert job["result"]["certificate_id"] is None
    assert api.get(f"{path}/artifacts/model.bin").content == b"weights"
    problem(api.get(f"{path}/artifacts/none"), 404, "NOT_FOUND")
    assert "fake trainer" in api.get(f"{path}/logs").text


def test_an_unchanged_job_is_not_sent_again(api, dataset):
    job_id = submit(api, dataset).json()["id"]
    seen = api.get(f"/v1/training-jobs/{job_id}")
    again = api.get(f"/v1/training-jobs/{job_id}", **{"If-None-Match": seen.headers["etag"]})
    assert again.status_code == 304


def test_a_failed_job_says_why(api, dataset, run):
    job_id = submit(api, dataset).json()["id"]
    run(job_id, "asks_itself")
    job = api.get(f"/v1/training-jobs/{job_id}").json()
    assert (job["state"], job["error"]["code"]) == ("failed", "OUT_OF_MEMORY")
    assert job["result"] is None


def test_the_noise_log_comes_as_lines_or_as_parquet_and_holds_no_sealed_value(api, dataset, run):
    job_id = submit(api, dataset).json()["id"]
    run(job_id)
    path = f"/v1/training-jobs/{job_id}/noise-log"
    lines = api.get(path)
    assert lines.headers["content-type"].startswith("application/x-ndjson")
    records = [json.loads(line) for line in lines.text.splitlines()]
    assert [record["step"] for record in records] == list(range(STEPS))
    assert "sealed" not in lines.text
    assert "2030" not in lines.text
    columns = api.get(path, Accept="application/vnd.apache.parquet")
    table = pq.read_table(io.BytesIO(columns.content))
    assert table["step"].to_pylist() == list(range(STEPS))
    assert table["noise_multiplier"].to_pylist() == [8.0] * STEPS
    problem(api.get(path, Accept="image/png"), 406, "NOT_ACCEPTABLE")


def test_events_stream_to_the_end_and_resume_after_any_of_them(api, dataset, run):
    job_id = submit(api, dataset).json()["id"]
    run(job_id)
    path = f"/v1/training-jobs/{job_id}/events"
    stream = api.get(path)
    assert stream.headers["content-type"].startswith("text/event-stream")
    events = frames(stream.text)
    assert [number for number, _, _ in events] == list(range(1, len(events) + 1))
    assert events[-1][1] == "done"
    rest = frames(api.get(path, **{"Last-Event-ID": "3"}).text)
    assert rest == events[3:]
    assert frames(api.get(path, **{"Last-Event-ID": "99"}).text) == []
    listed = api.get(path, Accept="application/json").json()["data"]
    assert [event["sequence"] for event in listed] == [number for number, _, _ in events]
    problem(api.get(path, **{"Last-Event-ID": "x"}), 422, "WRONG_TYPE")


def test_a_stream_shows_a_job_as_it_runs(api, dataset, run):
    job_id = submit(api, dataset).json()["id"]
    thread = threading.Thread(target=run, args=(job_id,))
    thread.start()
    events = frames(api.get(f"/v1/training-jobs/{job_id}/events").text)
    thread.join()
    states = [data["state"] for _, kind, data in events if kind == "state"]
    assert states == ["queued", "starting", "running", "succeeded"]


def test_waiting_returns_the_job_when_it_has_ended_or_the_time_is_over(api, dataset, run):
    job_id = submit(api, dataset).json()["id"]
    assert api.get(f"/v1/training-jobs/{job_id}/wait?timeout_s=0").json()["state"] == "queued"
    thread = threading.Thread(target=run, args=(job_id,))
    thread.start()
    assert api.get(f"/v1/training-jobs/{job_id}/wait?timeout_s=30").json()["state"] == "succeeded"
    thread.join()
    answer = api.get(f"/v1/training-jobs/{job_id}/wait?timeout_s=NaN")
    assert answer.status_code == 422


def test_streams_end_when_the_server_stops(api, dataset):
    job_id = submit(api, dataset).json()["id"]
    app = api.client.app
    timer = threading.Timer(1.0, app.state.stopping.set)
    timer.start()
    stream = api.get(f"/v1/training-jobs/{job_id}/events")
    assert frames(stream.text)[-1][2]["state"] == "queued"
    begun = time.monotonic()
    assert api.get(f"/v1/training-jobs/{job_id}/wait?timeout_s=30").json()["state"] == "queued"
    assert time.monotonic() - begun < 20


def test_open_streams_hold_no_database_connection(api, dataset, database):
    job_id = submit(api, dataset).json()["id"]
    threads = [
        threading.Thread(target=api.get, args=(f"/v1/training-jobs/{job_id}/events",))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    free = 0
    for _ in range(50):
        time.sleep(0.02)
        free += database.engine.pool.checkedout() == 0
    api.client.app.state.stopping.set()
    for thread in threads:
        thread.join()
    assert free > 10, "most of the time nothing is held"


def test_the_recipes_name_every_dataset_and_model(api):
    recipes = api.get("/v1/training-recipes").json()
    assert {d["source"] for d in recipes["datasets"]} == {"digits", "mnist5k"}
    assert {m["model"] for m in recipes["models"]} >= {"mlp", "small_resnet"}


def test_a_key_without_the_scope_neither_submits_nor_reads(api, dataset):
    answer = api.post("/v1/api-keys", {"name": "poor", "scopes": ["datasets:read"]})
    poor = type(api)(api.client, answer.json()["secret"])
    problem(poor.post("/v1/training-jobs", body(dataset)), 403, "MISSING_SCOPE")
    problem(poor.get("/v1/training-jobs"), 403, "MISSING_SCOPE")


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("release", None),
        ("settle", {}),
        ("lease", {"steps": 1}),
        ("heartbeat", {"fencing_token": 1}),
    ],
)
def test_nobody_but_its_worker_moves_the_reservation_of_a_job(api, dataset, action, body):
    job = submit(api, dataset).json()
    path = f"/v1/reservations/{job['reservation']['id']}"
    problem(api.post(f"{path}/{action}", body), 409, "RESERVATION_OF_JOB")
    assert api.get(path).json()["state"] == "pending"
    assert api.get(f"/v1/training-jobs/{job['id']}").json()["state"] == "queued"


@pytest.mark.parametrize("number", [str(2**63), "9" * 40])
def test_a_last_event_id_beyond_any_number_is_refused(api, dataset, number):
    path = f"/v1/training-jobs/{submit(api, dataset).json()['id']}/events"
    problem(api.get(f"{path}?after={number}"), 422, "OUT_OF_RANGE")
    problem(api.get(path, **{"Last-Event-ID": number}), 422, "OUT_OF_RANGE")
