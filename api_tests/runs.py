"""Runs for tests: a dataset, a reservation on it, and records of what ran."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from api_tests.parts import Api

STEPS = 20_000
MECHANISM: dict[str, Any] = {
    "type": "dp_sgd",
    "sampler": "poisson",
    "sampling_rate": 0.001,
    "noise_multiplier": 4.0,
    "steps": STEPS,
}
DATASET = {
    "name": "elsewhere",
    "privacy_unit": "record",
    "record_count": 60_000,
    "budget": {"epsilon": "8.0", "delta": "1e-5", "neighboring": "add_or_remove_one"},
}


def record(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "step": step,
        "noise_multiplier": 4.0,
        "max_grad_norm": 1.0,
        "sampler": "poisson",
        "sampling_rate": 0.001,
        "expected_batch_size": 60.0,
        **changes,
    }


def records(first: int, end: int, **changes: Any) -> list[dict[str, Any]]:
    return [record(step, **changes) for step in range(first, end)]


def ndjson(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def add_dataset(api: Api, **changes: Any) -> str:
    answer = api.post("/v1/datasets", {**DATASET, **changes})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def reserve(api: Api, dataset_id: str, *, expires_in_s: float = 3600.0, **changes: Any) -> str:
    body = {
        "dataset_ids": [dataset_id],
        "mechanism": {**MECHANISM, **changes},
        "expires_in_s": expires_in_s,
    }
    answer = api.post("/v1/reservations", body)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def lease(api: Api, reservation_id: str, steps: int) -> None:
    answer = api.post(f"/v1/reservations/{reservation_id}/lease", {"steps": steps})
    assert answer.status_code == 200, answer.text


def begin(
    api: Api,
    dataset_id: str | None = None,
    *,
    leased: int = 0,
    expires_in_s: float = 3600.0,
    **changes: Any,
) -> dict[str, Any]:
    """An open run on a reservation of its own."""
    dataset_id = dataset_id or add_dataset(api)
    reservation_id = reserve(api, dataset_id, expires_in_s=expires_in_s, **changes)
    if leased:
        lease(api, reservation_id, leased)
    body = {
        "dataset_id": dataset_id,
        "reservation_id": reservation_id,
        "mechanism": {**MECHANISM, **changes},
    }
    answer = api.post("/v1/runs", body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def log(api: Api, run_id: str, lines: Sequence[Mapping[str, Any]], **headers: str) -> Any:
    given = {"Content-Type": "application/x-ndjson", **headers}
    return api.post_raw(f"/v1/runs/{run_id}/steps", ndjson(lines), **given)


def logged(api: Api, run_id: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    answer = log(api, run_id, lines)
    assert answer.status_code == 200, answer.text
    return answer.json()


def complete(api: Api, run_id: str, *, key: str | None = None, **body: Any) -> Any:
    return api.post(f"/v1/runs/{run_id}/complete", body, key=key)


def completed(api: Api, run_id: str, **body: Any) -> dict[str, Any]:
    answer = complete(api, run_id, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def read_log(api: Api, run_id: str) -> list[dict[str, Any]]:
    answer = api.get(f"/v1/runs/{run_id}/noise-log", Accept="application/x-ndjson")
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]
