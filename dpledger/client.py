"""``Client``: the wire contract as methods; answers are the service's JSON objects."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self

import httpx2

from dpledger.errors import ClientError
from dpledger.transport import Event, Json, Transport

FINAL_STATES: Final = frozenset({"succeeded", "failed", "cancelled"})
_WAIT_S: Final = 25
_DEFAULT_URL: Final = "http://127.0.0.1:8000"


class Client:
    """A connection to one dpledger service.

    Requests that change something carry an ``Idempotency-Key`` and are repeated safely
    when the connection or the service fails for a moment.

    Args:
        url: The service; default ``DPLEDGER_URL``, else this machine, port 8000.
        api_key: ``dpl_…``; default ``DPLEDGER_API_KEY``.
        timeout_s: For one try of one request.
        http: Another httpx2 transport, for tests and proxies.
        sleep: Waits between two tries.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = 60.0,
        http: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url or os.environ.get("DPLEDGER_URL") or _DEFAULT_URL
        api_key = api_key or os.environ.get("DPLEDGER_API_KEY")
        self._sleep = sleep
        self._to = Transport(self.url, api_key=api_key, timeout_s=timeout_s, http=http, sleep=sleep)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._to.close()

    def meta(self) -> Json:
        """What the service is: version and limits."""
        return self._to.get("/v1/meta")

    # Datasets and budgets

    def create_dataset(
        self, name: str, *, privacy_unit: str, budget: Mapping[str, Any], **fields: Any
    ) -> Json:
        """Register a dataset and open its budget account.

        Args:
            name: For people.
            privacy_unit: Who is protected, such as ``record`` or ``patient``.
            budget: ``{epsilon: "8.0", delta: "1e-5", neighboring, …}``; amounts are strings.
            fields: ``source``, ``record_count``, ``fingerprint``, ``max_records_per_unit``, …
        """
        body = {"name": name, "privacy_unit": privacy_unit, "budget": dict(budget), **fields}
        return self._to.post("/v1/datasets", body)

    def dataset(self, dataset_id: str) -> Json:
        """One dataset."""
        return self._to.get(f"/v1/datasets/{dataset_id}")

    def datasets(self) -> Iterator[Json]:
        """All datasets of the tenant."""
        return self._to.pages("/v1/datasets")

    def budget(self, dataset_id: str) -> Json:
        """Limit, spent and reserved of a dataset's account."""
        return self._to.get(f"/v1/datasets/{dataset_id}/budget")

    def budget_entries(self, dataset_id: str) -> Iterator[Json]:
        """The ledger entries of a dataset's account, never changed once written."""
        return self._to.pages(f"/v1/datasets/{dataset_id}/budget/entries")

    # Reservations

    def reserve(
        self,
        dataset_ids: Sequence[str],
        *,
        mechanism: Mapping[str, Any],
        expires_in_s: int,
        **fields: Any,
    ) -> Json:
        """Set budget aside for a mechanism that is yet to run."""
        body = {"dataset_ids": list(dataset_ids), "mechanism": dict(mechanism)}
        return self._to.post("/v1/reservations", {**body, "expires_in_s": expires_in_s, **fields})

    def reservation(self, reservation_id: str) -> Json:
        """One reservation."""
        return self._to.get(f"/v1/reservations/{reservation_id}")

    def lease(self, reservation_id: str, *, steps: int) -> Json:
        """Take the right to run the next ``steps`` steps; they are charged if never heard of."""
        return self._to.post(f"/v1/reservations/{reservation_id}/lease", {"steps": steps})

    def heartbeat(self, reservation_id: str, *, fencing_token: int) -> Json:
        """Keep a lease alive."""
        body = {"fencing_token": fencing_token}
        return self._to.post(f"/v1/reservations/{reservation_id}/heartbeat", body)

    def settle(
        self, reservation_id: str, *, fencing_token: int, executed: Mapping[str, Any]
    ) -> Json:
        """Charge what was run, ``{mechanism}``, and free the rest."""
        body = {"fencing_token": fencing_token, "executed": dict(executed)}
        return self._to.post(f"/v1/reservations/{reservation_id}/settle", body)

    def release(self, reservation_id: str) -> Json:
        """Give an unused reservation back."""
        return self._to.post(f"/v1/reservations/{reservation_id}/release", {})

    # Training jobs

    def submit(
        self,
        dataset_id: str,
        *,
        training: Mapping[str, Any],
        privacy: Mapping[str, Any],
        **fields: Any,
    ) -> Json:
        """Queue a training job; its worst case is reserved before this returns."""
        body = {"dataset_id": dataset_id, "training": dict(training), "privacy": dict(privacy)}
        return self._to.post("/v1/training-jobs", {**body, **fields})

    def job(self, job_id: str) -> Json:
        """One training job."""
        return self._to.get(f"/v1/training-jobs/{job_id}")

    def jobs(self) -> Iterator[Json]:
        """All training jobs of the tenant."""
        return self._to.pages("/v1/training-jobs")

    def wait(self, job_id: str, *, timeout_s: float | None = None) -> Json:
        """Wait until a job is ``succeeded``, ``failed`` or ``cancelled``.

        Args:
            job_id: The job.
            timeout_s: The longest wait; None waits as long as it takes.

        Returns:
            The job as it is then: at the end of the time it may still be running.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _WAIT_S if deadline is None else min(_WAIT_S, deadline - time.monotonic())
            params = {"timeout_s": max(0, int(left))}
            job = self._to.get(f"/v1/training-jobs/{job_id}/wait", params=params)
            if job["state"] in FINAL_STATES or (deadline and time.monotonic() >= deadline):
                return job
            if left < 1:
                self._sleep(max(0.0, left))

    def cancel(self, job_id: str) -> Json:
        """Ask a job to stop; what it has spent stays spent."""
        return self._to.post(f"/v1/training-jobs/{job_id}/cancel", {})

    def events(self, job_id: str, *, last_event_id: str = "") -> Iterator[Event]:
        """The events of a job as they happen, each once, until ``done``."""
        return self._to.events(f"/v1/training-jobs/{job_id}/events", last_event_id=last_event_id)

    def logs(self, job_id: str) -> str:
        """What the trainer wrote."""
        headers = {"Accept": "text/plain, */*"}
        return self._to.send("GET", f"/v1/training-jobs/{job_id}/logs", headers=headers).text

    def noise_log(self, job_id: str) -> bytes:
        """The public noise log, one JSON record a line."""
        headers = {"Accept": "application/x-ndjson"}
        return self._to.send(
            "GET", f"/v1/training-jobs/{job_id}/noise-log", headers=headers
        ).content

    def artifacts(self, job_id: str) -> Json:
        """The list of what a settled job produced."""
        return self._to.get(f"/v1/training-jobs/{job_id}/artifacts")

    def download(self, job_id: str, name: str, *, to: Path) -> Path:
        """Save one artifact under the path ``to``."""
        headers = {"Accept": "*/*"}
        path = f"/v1/training-jobs/{job_id}/artifacts/{name}"
        to.write_bytes(self._to.send("GET", path, headers=headers).content)
        return to

    # Runs that train elsewhere

    def create_run(
        self,
        dataset_id: str,
        *,
        reservation_id: str,
        mechanism: Mapping[str, Any],
        **fields: Any,
    ) -> Json:
        """Begin to log a run that trains elsewhere and is charged to a reservation."""
        body = {"dataset_id": dataset_id, "reservation_id": reservation_id}
        return self._to.post("/v1/runs", {**body, "mechanism": dict(mechanism), **fields})

    def run(self, run_id: str) -> Json:
        """One run; ``progress.step`` is the step that its log wants next."""
        return self._to.get(f"/v1/runs/{run_id}")

    def runs(self) -> Iterator[Json]:
        """All runs of the tenant."""
        return self._to.pages("/v1/runs")

    def log_steps(
        self, run_id: str, records: Iterable[Mapping[str, Any]], *, batch_size: int = 2000
    ) -> Json:
        """Append step records to a run's log, in batches.

        Safe to repeat: steps that the log has already are counted as duplicates, so after a
        lost answer or a restart send the same records again, or go on from ``run``'s
        ``progress.step``.

        Args:
            run_id: the run.
            records: consecutive step records, ``{step, noise_multiplier, max_grad_norm, …}``;
                taken one batch at a time, so that a generator will do.
            batch_size: records a request, at most 10,000.

        Returns:
            ``accepted`` and ``duplicates`` of all batches; ``next_step`` and ``head`` now.

        Raises:
            ApiError: the service refused a batch; the batches before it are stored.
        """
        found: Json = {"accepted": 0, "duplicates": 0}
        waiting = iter(records)
        while batch := list(islice(waiting, batch_size)):
            lines = "".join(f"{json.dumps(dict(record), allow_nan=False)}\n" for record in batch)
            answer = self._to.send(
                "POST",
                f"/v1/runs/{run_id}/steps",
                content=lines.encode(),
                headers={"Content-Type": "application/x-ndjson"},
            ).json()
            for name in ("accepted", "duplicates"):
                answer[name] += found[name]
            found = answer
        return found

    def complete_run(self, run_id: str, *, steps: int | None = None) -> Json:
        """Seal the log and settle the reservation at the larger of what was leased and logged.

        Args:
            run_id: the run.
            steps: how many steps were logged; another number in the log is refused.
        """
        body = {} if steps is None else {"steps": steps}
        return self._to.post(f"/v1/runs/{run_id}/complete", body)

    # Compliance checks

    def check(self, *, claim: Mapping[str, Any], subject: Mapping[str, Any]) -> Json:
        """Judge a privacy claim against the evidence; a false claim is an answer."""
        body = {"claim": dict(claim), "subject": dict(subject)}
        return self._to.post("/v1/compliance-checks", body)

    # Certificates and the log

    def certify(self, check_id: str, **fields: Any) -> Json:
        """Issue a certificate on a supported check."""
        return self._to.post("/v1/certificates", {"check_id": check_id, **fields})

    def certificate(self, certificate_id: str) -> Json:
        """One certificate."""
        return self._to.get(f"/v1/certificates/{certificate_id}")

    def certificates(self) -> Iterator[Json]:
        """All certificates of the tenant."""
        return self._to.pages("/v1/certificates")

    def revoke_certificate(self, certificate_id: str, *, reason: str) -> Json:
        """Say that a certificate does not hold."""
        return self._to.post(f"/v1/certificates/{certificate_id}/revoke", {"reason": reason})

    def bundle(self, certificate_id: str, *, to: Path) -> Path:
        """Save what verifies a certificate offline under the path ``to``."""
        path = f"/v1/certificates/{certificate_id}/bundle"
        to.write_bytes(self._to.send("GET", path, headers={"Accept": "*/*"}).content)
        return to

    def signing_keys(self) -> Json:
        """The service's list of public signing keys."""
        return self._to.get("/.well-known/dpledger-keys.json")

    def log_entries(self, *, after: int | None = None) -> Iterator[Json]:
        """The leaves of the log, oldest first, from the one after the index ``after`` on."""
        params = {"limit": 100} | ({} if after is None else {"after": str(after)})
        return self._to.pages("/v1/log/entries", params=params)

    def checkpoint(self) -> str:
        """The log's newest signed checkpoint."""
        headers = {"Accept": "text/plain"}
        return self._to.send("GET", "/v1/log/checkpoint", headers=headers).text

    def consistency_proof(self, *, old: int, new: int) -> Json:
        """Proof that the log of ``old`` leaves is the beginning of that of ``new``."""
        return self._to.get("/v1/log/proofs/consistency", params={"from": old, "to": new})

    # Pure calculations: /v1/accounting/… and /v1/bounds/…

    def account(self, what: str, **body: Any) -> Json:
        """Certified accounting.

        Args:
            what: ``epsilon``, ``delta``, ``noise-multiplier``, ``steps``, ``curve`` or ``risk``.
            body: The fields of that call, such as ``mechanism`` and ``delta``.
        """
        return self._to.post(f"/v1/accounting/{what}", body)

    def bound(self, what: str, **body: Any) -> Json:
        """Bounds on what any analysis of a sampler can promise.

        Args:
            what: ``separation``, ``minimum-noise``, ``tradeoff`` or ``claim-floor``.
            body: The fields of that call, such as ``updates_per_epoch``.
        """
        return self._to.post(f"/v1/bounds/{what}", body)

    # API keys

    def create_api_key(self, name: str, *, scopes: Sequence[str], **fields: Any) -> Json:
        """Make a key; the secret is in this answer and nowhere else."""
        return self._to.post("/v1/api-keys", {"name": name, "scopes": list(scopes), **fields})

    def api_keys(self) -> Iterator[Json]:
        """All keys of the tenant, without their secrets."""
        return self._to.pages("/v1/api-keys")

    def rotate_api_key(self, key_id: str) -> Json:
        """Replace a key's secret."""
        return self._to.post(f"/v1/api-keys/{key_id}/rotate", {})

    def delete_api_key(self, key_id: str) -> None:
        """End a key."""
        self._to.send("DELETE", f"/v1/api-keys/{key_id}")


__all__ = ["FINAL_STATES", "Client", "ClientError", "Event", "Json"]
