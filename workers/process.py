"""The trainer as a process: started in its own session, spoken to in lines, ended for certain."""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

MAX_LINE_BYTES: Final = 64 * 2**20
_BLOCK: Final = 2**16
_EXIT_POLL_S: Final = 0.02
_PR_SET_PDEATHSIG: Final = 1
#: What a trainer needs of our environment; our own settings hold passwords.
_NOT_PASSED: Final = "DPLEDGER_"


class BrokenProtocol(Exception):
    """The trainer said something that is not one JSON object a line."""


class Trainer:
    """A running trainer and its children."""

    def __init__(self, command: Sequence[str], *, folder: Path, log: Path) -> None:
        """Start it; it dies with the thread that called."""
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*command, "--workdir", str(folder), "--parent-pid", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                env=_environment(),
                start_new_session=True,
                preexec_fn=_DIE_WITH_PARENT,  # noqa: PLW1509 - the pool child has one thread
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._write, self._read = self._process.stdin, self._process.stdout
        os.set_blocking(self._read.fileno(), False)
        self._buffer = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill whatever is left."""
        self.kill()
        self._read.close()
        with contextlib.suppress(BrokenPipeError):
            self._write.close()

    def exit_code(self, *, timeout_s: float) -> int | None:
        """How it ended, negative for a signal; None if it still runs when the time is over."""
        deadline = time.monotonic() + timeout_s
        while True:
            # Looked at, not reaped: until ``kill`` its id must not become a stranger's.
            found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                killed = found.si_code != os.CLD_EXITED
                return -found.si_status if killed else found.si_status
            if time.monotonic() >= deadline:
                return None
            time.sleep(_EXIT_POLL_S)

    def send(self, message: Mapping[str, Any]) -> None:
        """Say something; a trainer that is gone hears nothing, which ``receive`` will tell."""
        with contextlib.suppress(BrokenPipeError):
            self._write.write(json.dumps(message, allow_nan=False).encode() + b"\n")

    def receive(self, *, timeout_s: float, wake_up: int | None) -> Mapping[str, Any] | None:
        """The next message; None if none came in time, or ``wake_up`` became readable.

        Raises:
            EOFError: the trainer closed its end: it is gone, or about to be.
            BrokenProtocol: what came is no message.
        """
        message = self._buffered()
        if message is not None:
            return message
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            if wake_up is not None:
                selector.register(wake_up, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                ready = {key.fileobj for key, _ in selector.select(left)}
                if self._read in ready:
                    self._fill()
                    message = self._buffered()
                    if message is not None:
                        return message
                if wake_up in ready:
                    return None
        return None

    def terminate(self) -> None:
        """Ask it to stop at the next step boundary."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and its children, and wait until it is gone."""
        if self._process.returncode is None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        # The group's id is the trainer's own and stays taken until we have waited for it, so
        # this cannot hit a stranger. Children that outlived the trainer are in the group too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _fill(self) -> None:
        block = self._read.read(_BLOCK)
        if block is None:
            return
        if not block:
            raise EOFError
        self._buffer += block
        if len(self._buffer) > MAX_LINE_BYTES:
            raise BrokenProtocol("A message is too long.")

    def _buffered(self) -> Mapping[str, Any] | None:
        end = self._buffer.find(b"\n")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            message = json.loads(line, parse_constant=_refuse)
        except ValueError as error:
            raise BrokenProtocol("A message is not JSON.") from error
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise BrokenProtocol("A message is not an object with a type.")
        return message


def _refuse(token: str) -> Any:
    raise ValueError(token)  # NaN and infinities are no JSON


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_PASSED)}
    return {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **kept}


def _pdeathsig_setter() -> Any:
    """What runs between fork and exec: one system call, looked up before the fork.

    As ``service.lifeline.die_with_parent``, which may do more than is safe in that place. That
    the parent ended before the call is seen by the trainer, at the end of its input.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


_DIE_WITH_PARENT: Final = _pdeathsig_setter()
