"""The client against a service that is a function."""

import json

import httpx2
import pytest

from dpledger import ApiError, Client, Unreachable
from dpledger.transport import Event


class Service:
    """Answers each request with the next of ``answers``; an exception is raised instead."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.seen: list[httpx2.Request] = []
        self.pauses: list[float] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.seen.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self) -> Client:
        return Client(
            "http://test", "dpl_k", http=httpx2.MockTransport(self), sleep=self.pauses.append
        )


def ok(status=200, **body):
    return httpx2.Response(status, json=body)


def problem(status, code, *, retryable=False, **fields):
    return httpx2.Response(
        status, json={"code": code, "detail": "why", "retryable": retryable, **fields}
    )


def stream(text, *, then=None):
    class Body(httpx2.SyncByteStream):
        def __iter__(self):
            yield text.encode()
            if then is not None:
                raise then

    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Body())


BUDGET = {"epsilon": "8.0", "delta": "1e-5", "neighboring": "add_or_remove_one"}


def test_a_lost_answer_is_asked_for_again_under_the_same_idempotency_key():
    service = Service(httpx2.ReadError("cut"), ok(201, id="ds_1"))
    dataset = service.client().create_dataset("d", privacy_unit="record", budget=BUDGET)
    assert dataset == {"id": "ds_1"}
    first, second = service.seen
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.content == second.content
    assert json.loads(first.content)["budget"]["epsilon"] == "8.0"
    assert first.headers["authorization"] == "Bearer dpl_k"


def test_two_calls_have_two_idempotency_keys():
    service = Service(ok(), ok())
    client = service.client()
    client.cancel("job_1")
    client.cancel("job_1")
    assert len({request.headers["idempotency-key"] for request in service.seen}) == 2


def test_a_service_that_is_away_for_a_moment_is_waited_for():
    service = Service(
        httpx2.Response(503, headers={"retry-after": "2"}),
        problem(409, "IDEMPOTENCY_IN_FLIGHT", retryable=True),
        ok(state="released"),
    )
    assert service.client().release("res_1") == {"state": "released"}
    assert service.pauses == [2.0, 0.4]


def test_a_refusal_is_not_repeated_and_carries_its_code_and_fields():
    service = Service(problem(409, "PRIVACY_BUDGET_EXCEEDED", shortfall="0.5"))
    with pytest.raises(ApiError, match="PRIVACY_BUDGET_EXCEEDED: why") as caught:
        service.client().submit("ds_1", training={"model": "mlp"}, privacy={})
    assert caught.value.status == 409
    assert caught.value.fields["shortfall"] == "0.5"
    assert len(service.seen) == 1


def test_a_service_that_never_answers_is_unreachable():
    service = Service(*[httpx2.ConnectError("refused")] * 6)
    with pytest.raises(Unreachable, match="refused"):
        service.client().meta()


def test_an_answer_that_is_no_problem_document_still_becomes_an_api_error():
    with pytest.raises(ApiError) as caught:
        Service(httpx2.Response(502, text="<html>")).client().meta()
    assert (caught.value.status, caught.value.code) == (502, "HTTP_ERROR")


def test_lists_are_read_to_their_last_page():
    service = Service(
        ok(data=[{"id": "a"}], has_more=True, next_cursor="c"),
        ok(data=[{"id": "b"}], has_more=False, next_cursor=None),
    )
    assert [item["id"] for item in service.client().jobs()] == ["a", "b"]
    assert service.seen[1].url.params["after"] == "c"


def test_a_dropped_event_stream_goes_on_after_the_last_event():
    service = Service(
        stream('id: 1\nevent: progress\ndata: {"step": 1}\n\n', then=httpx2.ReadError("cut")),
        problem(503, "UNAVAILABLE"),
        stream('id: 2\nevent: progress\ndata: {"step": 2}\n\n'),
        stream('id: 3\nevent: done\ndata: {"state": "succeeded"}\n\n'),
    )
    events = list(service.client().events("job_1"))
    assert [event.id for event in events] == ["1", "2", "3"]
    assert events[-1] == Event(id="3", type="done", data={"state": "succeeded"})
    heads = [request.headers.get("last-event-id") for request in service.seen]
    assert heads == [None, "1", "1", "2"]


def test_an_event_stream_that_only_breaks_is_given_up():
    service = Service(*[stream(": nothing\n\n") for _ in range(6)])
    with pytest.raises(Unreachable, match="broke 6 times"):
        list(service.client().events("job_1"))


def test_a_wait_ends_with_the_final_state_and_not_before():
    service = Service(ok(state="running"), ok(state="succeeded"))
    assert service.client().wait("job_1")["state"] == "succeeded"
    assert [request.url.params["timeout_s"] for request in service.seen] == ["25", "25"]


def test_a_wait_with_a_limit_returns_the_job_as_it_is_then():
    assert Service(ok(state="running")).client().wait("job_1", timeout_s=0)["state"] == "running"


MECHANISM = {"type": "gaussian", "noise_multiplier": 4.0, "count": 10}


@pytest.mark.parametrize(
    ("call", "asked", "body"),
    [
        (lambda c: c.meta(), "GET /v1/meta", None),
        (lambda c: c.dataset("ds_1"), "GET /v1/datasets/ds_1", None),
        (lambda c: list(c.budget_entries("ds_1")), "GET /v1/datasets/ds_1/budget/entries", None),
        (
            lambda c: c.reserve(["ds_1"], mechanism=MECHANISM, expires_in_s=60),
            "POST /v1/reservations",
            {"dataset_ids": ["ds_1"], "mechanism": MECHANISM, "expires_in_s": 60},
        ),
        (lambda c: c.reservation("res_1"), "GET /v1/reservations/res_1", None),
        (lambda c: c.lease("res_1", steps=5), "POST /v1/reservations/res_1/lease", {"steps": 5}),
        (
            lambda c: c.heartbeat("res_1", fencing_token=7),
            "POST /v1/reservations/res_1/heartbeat",
            {"fencing_token": 7},
        ),
        (
            lambda c: c.settle("res_1", fencing_token=7, executed={"mechanism": MECHANISM}),
            "POST /v1/reservations/res_1/settle",
            {"fencing_token": 7, "executed": {"mechanism": MECHANISM}},
        ),
        (lambda c: c.noise_log("job_1"), "GET /v1/training-jobs/job_1/noise-log", None),
        (lambda c: c.artifacts("job_1"), "GET /v1/training-jobs/job_1/artifacts", None),
        (lambda c: c.rotate_api_key("key_1"), "POST /v1/api-keys/key_1/rotate", {}),
        (lambda c: c.delete_api_key("key_1"), "DELETE /v1/api-keys/key_1", None),
    ],
)
def test_each_method_sends_what_the_contract_says(call, asked, body):
    service = Service(ok(data=[], has_more=False))
    call(service.client())
    (request,) = service.seen
    assert f"{request.method} {request.url.path}" == asked
    assert (json.loads(request.content) if request.content else None) == body


def test_an_artifact_is_saved_byte_by_byte(tmp_path):
    service = Service(httpx2.Response(200, content=b"\x00\xff"))
    saved = service.client().download("job_1", "model.safetensors", to=tmp_path / "m")
    assert saved.read_bytes() == b"\x00\xff"


def test_steps_are_sent_in_batches_and_a_lost_answer_is_asked_for_again():
    def answer(accepted, duplicates, next_step):
        return ok(accepted=accepted, duplicates=duplicates, next_step=next_step, head="h")

    service = Service(answer(3, 0, 3), httpx2.ReadError("cut"), answer(0, 3, 6), answer(1, 0, 7))
    records = ({"step": step} for step in range(7))
    found = service.client().log_steps("run_1", records, batch_size=3)
    assert found == {"accepted": 4, "duplicates": 3, "next_step": 7, "head": "h"}
    assert {r.headers["content-type"] for r in service.seen} == {"application/x-ndjson"}
    sent = [[json.loads(line)["step"] for line in r.content.splitlines()] for r in service.seen]
    assert sent == [[0, 1, 2], [3, 4, 5], [3, 4, 5], [6]]


def test_a_busy_log_is_tried_again_and_a_gap_is_not():
    service = Service(
        problem(409, "LOG_BUSY", retryable=True),
        ok(accepted=1, duplicates=0, next_step=1, head="h"),
        problem(409, "SEQUENCE_GAP", expected_step=1),
    )
    client = service.client()
    assert client.log_steps("run_1", [{"step": 0}])["accepted"] == 1
    with pytest.raises(ApiError) as refusal:
        client.log_steps("run_1", [{"step": 5}])
    assert refusal.value.code == "SEQUENCE_GAP"
    assert len(service.seen) == 3


def test_a_run_is_begun_and_completed_under_idempotency_keys():
    service = Service(ok(201, id="run_1"), ok(id="run_1", state="completed"))
    client = service.client()
    run = client.create_run("ds_1", reservation_id="res_1", mechanism={"type": "dp_sgd"})
    assert client.complete_run(run["id"], steps=7)["state"] == "completed"
    first, second = service.seen
    assert first.url.path == "/v1/runs"
    assert second.url.path == "/v1/runs/run_1/complete"
    assert json.loads(second.content) == {"steps": 7}
    assert all(r.headers["idempotency-key"] for r in service.seen)
