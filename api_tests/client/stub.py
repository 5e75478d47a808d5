"""A service of canned answers on a real port, for the command line and the demo."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

EVENTS = """id: 1
event: progress
data: {"step": 1, "total_steps": 2}

id: 2
event: progress
data: {"step": 2, "total_steps": 2}

id: 3
event: done
data: {"state": "succeeded"}

"""


class Stub:
    """Answers by ``(method, path)``; compliance checks are judged against ``epsilon``."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        self.epsilon = {"lower": 2.9, "upper": 2.9991}
        self.job: dict[str, Any] = {
            "object": "training_job",
            "id": "job_1",
            "state": "succeeded",
            "dataset_id": "ds_1",
            "result": {"metrics": {"test_accuracy": 0.91}, "epsilon": self.epsilon},
        }
        self.refusal: Mapping[str, Any] | None = None

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """The status and the body of one answer; a string is an event stream."""
        self.requests.append((method, path, body))
        if self.refusal:
            return self.refusal["status"], self.refusal
        claim = (body or {}).get("claim", {"epsilon": 0})
        canned: dict[str, Any] = {
            "POST /v1/datasets": {"id": "ds_1"},
            "GET /v1/datasets/ds_1": {"id": "ds_1", "privacy_unit": "patient"},
            "GET /v1/datasets/ds_1/budget": {"spent": {"epsilon": "2.9"}, "reserved": None},
            "POST /v1/training-jobs": {
                "id": "job_1",
                "state": "queued",
                "forecast": {"noise_multiplier": 1.3, "steps": 2},
            },
            "GET /v1/training-jobs": {"data": [self.job], "has_more": False},
            "GET /v1/training-jobs/job_1": self.job,
            "GET /v1/training-jobs/job_1/events": EVENTS,
            "GET /v1/training-jobs/job_1/wait": self.job,
            "POST /v1/compliance-checks": {"verdict": self.judge(claim)},
            "POST /v1/accounting/epsilon": {"epsilon": self.epsilon},
        }
        nothing = {"data": [], "has_more": False}
        return 200, canned.get(f"{method} {path.split('?', maxsplit=1)[0]}", nothing)

    def judge(self, claim: Mapping[str, Any]) -> str:
        if claim["epsilon"] >= self.epsilon["upper"]:
            return "supported"
        return "refuted" if claim["epsilon"] < self.epsilon["lower"] else "undetermined"


@contextlib.contextmanager
def serve(stub: Stub) -> Iterator[str]:
    """The URL of a running server that answers as ``stub`` says."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def _do(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, answer = stub.answer(self.command, self.path, body)
            is_stream = isinstance(answer, str)
            self.send_response(status)
            self.send_header(
                "content-type", "text/event-stream" if is_stream else "application/json"
            )
            self.end_headers()
            self.wfile.write((answer if is_stream else json.dumps(answer)).encode())

        do_GET = do_POST = _do  # noqa: N815 - http.server looks for these names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base
            """Stay silent."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
