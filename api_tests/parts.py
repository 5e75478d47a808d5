"""Parts that tests hand to the gateway in place of those that need a network."""

from dataclasses import dataclass, field
from typing import Any

from starlette.testclient import TestClient

from service.calculator import Calculator


@dataclass
class RecordingQueue:
    """Remembers which jobs were announced."""

    rung: list[str] = field(default_factory=list)

    def ring(self, job_id: str) -> None:
        self.rung.append(job_id)

    def close(self) -> None:
        """Nothing to stop."""


class SharedCalculator(Calculator):
    """Outlives the gateways that use it: a process takes a second to start."""

    def close(self) -> None:
        """The next gateway needs it, too."""

    def stop(self) -> None:
        super().close()


@dataclass
class Api:
    """A client with a key, and a fresh Idempotency-Key for each POST."""

    client: TestClient
    token: str
    sent: int = 0

    def get(self, path: str, **headers: str) -> Any:
        return self.client.get(path, headers={**self._auth(), **headers})

    def post(self, path: str, body: Any = None, *, key: str | None = None, **headers: str) -> Any:
        self.sent += 1
        auto = key or f"test-{id(self)}-{self.sent}"
        given = {**self._auth(), "Idempotency-Key": auto, **headers}
        return self.client.post(path, json=body, headers=given)

    def patch(self, path: str, body: Any, **headers: str) -> Any:
        return self.client.patch(path, json=body, headers={**self._auth(), **headers})

    def delete(self, path: str) -> Any:
        return self.client.delete(path, headers=self._auth())

    def post_raw(self, path: str, body: bytes, **headers: str) -> Any:
        given = {**self._auth(), "Content-Type": "application/json", "Idempotency-Key": "raw"}
        return self.client.post(path, content=body, headers={**given, **headers})

    def _auth(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}
