"""The conversation with the supervisor: one JSON object a line, strictly in turn.

    → ready      total_steps, device, reproducible, …           no reply
    → lease      first_step, steps                              ← leased first_step, end_step | stop
    → steps      records                                        ← stored next_step            | stop
    → progress   step                                           no reply, at most two a second
    → result     metrics, artifacts                             last, exit 0
    → stopped    step (executed so far)                         last, exit 0
    → failed     code, message                                  last, exit 1

A ``stop`` may also come unasked, and SIGTERM counts as one: it takes effect at the next step
boundary, the records of executed steps are sent (their reply is not awaited) and ``stopped``
follows. The end of the input means that the supervisor is gone: the process ends at once, for
without a supervisor nothing is leased and nothing is stored.
"""

import json
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final, NoReturn

EXIT_ORPHANED: Final = 3
PROGRESS_EVERY_S: Final = 0.5


class Stopped(Exception):
    """The supervisor, or a signal, asked for an end."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ProtocolError(Exception):
    """The supervisor said something that has no place here."""


class Peer:
    """The supervisor's end of the pipe, seen from the trainer."""

    def __init__(self, *, read: BinaryIO, write: BinaryIO) -> None:
        self._read = read
        self._write = write
        # SimpleQueue.put is reentrant, so a signal handler may call it.
        self._inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._stop_reason: str | None = None
        self._ended = False
        self._last_progress = -PROGRESS_EVERY_S

    def listen(self) -> None:
        """Read replies from now on; the end of the input ends the process."""
        threading.Thread(target=self._listen, name="supervisor", daemon=True).start()

    def ready(self, facts: Mapping[str, Any]) -> None:
        """Tell that training can begin, with public facts about this run."""
        self._send({"type": "ready", **facts})

    def lease(self, first_step: int, *, steps: int) -> int:
        """Ask for ``steps`` steps from ``first_step`` on; the end (exclusive) of what was granted.

        Raises:
            Stopped: no lease, the run is to end.
            ProtocolError: another range than the one asked for.
        """
        self._send({"type": "lease", "first_step": first_step, "steps": steps})
        reply = self._reply("leased")
        end = reply.get("end_step")
        if (
            reply.get("first_step") != first_step
            or not isinstance(end, int)
            or not first_step < end <= first_step + steps
        ):
            raise ProtocolError("The lease is not the one asked for.")
        return end

    def send_records(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Send the records of executed steps without waiting for the reply."""
        self._send({"type": "steps", "records": records})

    def await_stored(self, next_step: int) -> None:
        """Wait until every step before ``next_step`` is stored.

        Raises:
            Stopped: the run is to end.
            ProtocolError: the supervisor stored something else.
        """
        if self._reply("stored").get("next_step") != next_step:
            raise ProtocolError("The supervisor stored other steps than those sent.")

    def progress(self, step: int) -> None:
        """Tell how far the run is; most calls say nothing, to stay coarse."""
        now = time.monotonic()
        if now - self._last_progress >= PROGRESS_EVERY_S:
            self._last_progress = now
            self._send({"type": "progress", "step": step})

    def result(
        self, *, metrics: Mapping[str, float], artifacts: Sequence[Mapping[str, Any]]
    ) -> None:
        """Say the last word of a run that did all its steps."""
        self._end({"type": "result", "metrics": metrics, "artifacts": artifacts})

    def stopped(self, step: int) -> None:
        """Say the last word of a run that was asked to stop after ``step`` steps."""
        self._end({"type": "stopped", "step": step})

    def failed(self, *, code: str, message: str) -> None:
        """Say the last word of a run that failed; the message holds no private value."""
        self._end({"type": "failed", "code": code, "message": message})

    def request_stop(self, reason: str) -> None:
        """Ask for an end at the next step boundary; safe in a signal handler."""
        self._stop_reason = reason
        self._inbox.put({"type": "stop", "reason": reason})

    def check_stop(self) -> None:
        """Raise ``Stopped`` if an end was asked for."""
        if self._stop_reason is not None:
            raise Stopped(self._stop_reason)

    def _reply(self, expected: str) -> dict[str, Any]:
        self.check_stop()
        message = self._inbox.get()
        if message.get("type") == "stop":
            raise Stopped(str(message.get("reason", "stop")))
        if message.get("type") != expected:
            raise ProtocolError(f"Expected a reply of type {expected}.")
        return message

    def _end(self, message: Mapping[str, Any]) -> None:
        self._ended = True  # from here on the supervisor may close its end
        self._send(message)

    def _send(self, message: Mapping[str, Any]) -> None:
        line = json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            self._write.write(line)
            self._write.flush()
        except BrokenPipeError:
            _leave()

    def _listen(self) -> None:
        for line in self._read:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                message = {"type": "unreadable"}
            if message.get("type") == "stop":
                self.request_stop(str(message.get("reason", "stop")))
            else:
                self._inbox.put(message)
        if not self._ended:
            _leave()


def _leave() -> NoReturn:
    # No clean-up on purpose: whoever would read it is gone, and the step in hand must not finish.
    os._exit(EXIT_ORPHANED)
