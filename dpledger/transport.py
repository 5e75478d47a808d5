"""One request: authorization, an idempotency key, safe retries, problems as exceptions."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import httpx2

from dpledger.errors import ApiError, Unreachable

Json = dict[str, Any]

_TRIES: Final = 6
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
_AWAY: Final = frozenset({429, 503})
_FAILED: Final = 400
_QUIET_STREAM_S: Final = 45.0  # the service sends a comment every 15 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a job."""

    id: str
    type: str
    data: Json


class Transport:
    """Sends requests and tries again where that cannot do a thing twice.

    Every changing request carries an ``Idempotency-Key``, the same at each try, so a lost
    answer is fetched by asking again. Tried again: no connection, 429, 503, and conflicts
    that the service itself calls ``retryable`` (the same key still being worked on).
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None,
        timeout_s: float,
        http: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        headers = {"Accept": "application/json", "User-Agent": "dpledger-client"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._http = httpx2.Client(
            base_url=url, headers=headers, timeout=timeout_s, transport=http, trust_env=http is None
        )
        self._stream_timeout = httpx2.Timeout(timeout_s, read=_QUIET_STREAM_S)
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def get(self, path: str, *, params: Mapping[str, Any] | None = None) -> Json:
        """The JSON object at ``path``."""
        return self._object(self.send("GET", path, params=params))

    def post(self, path: str, body: Mapping[str, Any], *, key: str | None = None) -> Json:
        """Post ``body`` under the idempotency key ``key``, a fresh one if None."""
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        return self._object(self.send("POST", path, json=dict(body), headers=headers))

    def pages(self, path: str, *, params: Mapping[str, Any] | None = None) -> Iterator[Json]:
        """Every item of a list, page by page."""
        query = dict(params or {})
        while True:
            page = self.get(path, params=query)
            yield from page["data"]
            if not page.get("has_more"):
                return
            query["after"] = page["next_cursor"]

    def send(self, method: str, path: str, **request: Any) -> httpx2.Response:
        """Send one request, again while that is safe and may help.

        Args:
            method: The HTTP method.
            path: Below the service's URL.
            request: What ``httpx2.Client.request`` takes. A POST must bring its
                ``Idempotency-Key``, unless its content says itself what it repeats.

        Raises:
            ApiError: The service refused.
            Unreachable: There was no answer.
        """
        for attempt in range(1, _TRIES + 1):
            pause = min(_FIRST_PAUSE_S * 2.0 ** (attempt - 1), _LONGEST_PAUSE_S)
            try:
                answer = self._http.request(method, path, **request)
            except httpx2.TransportError as error:
                if attempt == _TRIES:
                    raise Unreachable(f"{self._http.base_url}: {error}") from error
            else:
                if answer.status_code < _FAILED:
                    return answer
                refusal = _refusal(answer)
                if attempt == _TRIES or not (refusal.retryable or refusal.status in _AWAY):
                    raise refusal
                pause = _asked_pause(answer, default=pause)
            self._sleep(pause)
        raise AssertionError("unreachable: the last try returns or raises")

    def events(self, path: str, *, last_event_id: str = "") -> Iterator[Event]:
        """The events of a stream, until ``done``; a dropped connection is taken up again.

        Raises:
            ApiError: The service refused.
            Unreachable: The stream broke several times without one new event.
        """
        silent_tries = 0
        while True:
            failure: Exception | None = None
            try:
                for event in self._stream(path, last_event_id=last_event_id):
                    silent_tries, last_event_id = 0, event.id or last_event_id
                    yield event
                    if event.type == "done":
                        return
            except httpx2.TransportError as error:
                failure = error
            except ApiError as refusal:
                if refusal.status not in _AWAY:
                    raise
                failure = refusal
            silent_tries += 1
            if silent_tries == _TRIES:
                why = failure or "it ends before its end"
                raise Unreachable(f"{path}: the stream broke {_TRIES} times: {why}") from failure
            self._sleep(min(_FIRST_PAUSE_S * 2.0**silent_tries, _LONGEST_PAUSE_S))

    def _stream(self, path: str, *, last_event_id: str) -> Iterator[Event]:
        headers = {"Accept": "text/event-stream"}
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        stream = self._http.stream("GET", path, headers=headers, timeout=self._stream_timeout)
        with stream as answer:
            if answer.status_code >= _FAILED:
                answer.read()
                raise _refusal(answer)
            for event in httpx2.EventSource(answer):
                data = event.json() if event.data else {}
                yield Event(
                    id=event.id,
                    type=event.event,
                    data=data if isinstance(data, dict) else {"value": data},
                )

    @staticmethod
    def _object(answer: httpx2.Response) -> Json:
        return answer.json() if answer.content else {}


def _refusal(answer: httpx2.Response) -> ApiError:
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    return ApiError(problem if isinstance(problem, dict) else {}, status=answer.status_code)


def _asked_pause(answer: httpx2.Response, *, default: float) -> float:
    """The pause of ``Retry-After`` in seconds, within reason; a date is not read."""
    asked = answer.headers.get("Retry-After", "")
    return min(float(asked), _LONGEST_PAUSE_S) if asked.isdigit() else default
