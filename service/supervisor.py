"""Keep a handful of programs running, and stop all of them together.

What must hold: a program that dies is started again, with growing pauses; one that dies
again and again ends everything; SIGTERM or one Ctrl-C stops all within five seconds,
in the order given; when the supervisor itself is killed, lifeline.py ends the programs and
what they started. Only the standard library is used here, and there are no threads.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from service import lifeline

_READY_WITHIN_S: Final = 90.0
_POLL_S: Final = 0.05
_FIRST_PAUSE_S: Final = 0.25
_CRASH_LOOP_DEATHS: Final = 5
_CRASH_LOOP_WINDOW_S: Final = 60.0
_LOG_BYTES: Final = 10_000_000
_LIFELINE: Final = (sys.executable, "-I", "-S", lifeline.__file__)


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program to keep running. The graces of all programs sum to less than five seconds."""

    name: str
    command: tuple[str, ...]
    stop_grace_s: float = 1.0
    is_ready: Callable[[], bool] = _always


class SupervisionFailed(Exception):
    """A program cannot be started, or does not stay up; the text is for the operator."""


@dataclass(slots=True)
class _Child:
    """A program and its present process, if it has one."""

    program: Program
    process: subprocess.Popen[bytes] | None = None
    retry_at: float = 0.0
    deaths: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _StopRequest:
    """How often a stop was asked for."""

    count: int = 0

    @property
    def is_urgent(self) -> bool:
        """True after a second Ctrl-C: the graces are over."""
        return self.count > 1


@dataclass(frozen=True, slots=True)
class Guard:
    """The process that outlives a killed supervisor, and ends what it leaves behind."""

    process: subprocess.Popen[str]

    def watch(self, group: int) -> None:
        """Have this process group killed if the supervisor ends without ``forget``."""
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """The group has ended in good order."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody killed it: the kernel's wish is left
            self.process.stdin.write(line)
            self.process.stdin.flush()


@contextlib.contextmanager
def guarded() -> Iterator[Guard]:
    """A guard for as long as the block runs."""
    process = subprocess.Popen(  # noqa: S603 - our own program, no shell
        [*_LIFELINE, "guard"], stdin=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield Guard(process)
    finally:
        process.communicate()


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervisor:
    """Where programs run: their environment, the directory of their logs, their guard."""

    environ: Mapping[str, str]
    log_dir: Path
    guard: Guard

    def run(self, programs: Sequence[Program], *, started: Callable[[], None]) -> None:
        """Run ``programs`` until SIGTERM, SIGHUP or Ctrl-C, then stop all of them.

        Args:
            programs: In the order in which they are stopped; they start in reverse, each
                before the next as soon as it is ready.
            started: Called once, when all are ready.

        Raises:
            SupervisionFailed: If a program does not get ready or does not stay up. All
                others are stopped first.
        """
        crew = [_Child(program) for program in programs]
        with _stop_requests() as stop:
            try:
                for child in reversed(crew):
                    self._start(child)
                    self._await_ready(child, crew=crew, stop=stop)
                if not stop.count:
                    started()
                while not stop.count:
                    self._restart_the_dead(crew)
                    time.sleep(_POLL_S)
            finally:
                for child in crew:
                    self._stop(child, stop=stop)

    def run_once(self, program: Program) -> None:
        """Run ``program`` to its end.

        Raises:
            SupervisionFailed: If it fails, or a stop was asked for meanwhile.
        """
        child = _Child(program)
        with _stop_requests() as stop:
            try:
                process = self._start(child)
                while not stop.count and not _has_ended(process):
                    time.sleep(_POLL_S)
            finally:
                code = self._stop(child, stop=stop)
        if stop.count:
            raise SupervisionFailed("Stopped.")
        if code:
            raise SupervisionFailed(f"{program.name} failed. {self._last_words(program)}")

    def _start(self, child: _Child) -> subprocess.Popen[bytes]:
        shim = (*_LIFELINE, "run", str(os.getpid()))
        with self._open_log(child.program) as log:
            child.process = subprocess.Popen(  # noqa: S603 - our own programs, no shell
                [*shim, *child.program.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self.environ),
                start_new_session=True,  # Ctrl-C at the terminal reaches the supervisor alone
                umask=0o077,
            )
        self.guard.watch(child.process.pid)
        return child.process

    def _open_log(self, program: Program) -> BinaryIO:
        path = self._log_path(program)
        if path.exists() and path.stat().st_size > _LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        return path.open("ab")

    def _log_path(self, program: Program) -> Path:
        return self.log_dir / f"{program.name}.log"

    def _await_ready(self, child: _Child, *, crew: Sequence[_Child], stop: _StopRequest) -> None:
        deadline = time.monotonic() + _READY_WITHIN_S
        while not stop.count and not child.program.is_ready():
            if time.monotonic() > deadline:
                raise SupervisionFailed(
                    f"{child.program.name} is not ready after {_READY_WITHIN_S:.0f} s. "
                    f"{self._last_words(child.program)}"
                )
            self._restart_the_dead(crew)
            time.sleep(_POLL_S)

    def _restart_the_dead(self, crew: Sequence[_Child]) -> None:
        now = time.monotonic()
        for child in crew:
            if child.process is not None and _has_ended(child.process):
                self._bury(child)
                self._plan_restart(child, now=now)
            elif child.process is None and child.deaths and now >= child.retry_at:
                self._start(child)

    def _plan_restart(self, child: _Child, *, now: float) -> None:
        recent = [t for t in child.deaths if now - t < _CRASH_LOOP_WINDOW_S]
        child.deaths = [*recent, now]
        if len(child.deaths) >= _CRASH_LOOP_DEATHS:
            raise SupervisionFailed(
                f"{child.program.name} ended {len(child.deaths)} times within "
                f"{_CRASH_LOOP_WINDOW_S:.0f} s; giving up. {self._last_words(child.program)}"
            )
        child.retry_at = now + _FIRST_PAUSE_S * 2.0 ** (len(child.deaths) - 1)

    def _stop(self, child: _Child, *, stop: _StopRequest) -> int | None:
        """Ask, wait for the grace, then kill; returns the exit status, None if not running."""
        if child.process is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + child.program.stop_grace_s
        while not _has_ended(child.process) and not stop.is_urgent and time.monotonic() < deadline:
            time.sleep(_POLL_S / 5)
        return self._bury(child)

    def _bury(self, child: _Child) -> int:
        """Kill what is left of the child's group, the child too if it lives, and reap it."""
        process, child.process = child.process, None
        assert process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        self.guard.forget(process.pid)  # before its number is free for others
        return process.wait()

    def _last_words(self, program: Program) -> str:
        path = self._log_path(program)
        lines = path.read_text(errors="replace").splitlines()[-5:] if path.exists() else []
        return "\n  ".join([f"Its log, {path}, ends with:", *lines])


@contextlib.contextmanager
def _stop_requests() -> Iterator[_StopRequest]:
    """Turn SIGTERM, SIGHUP and Ctrl-C into a count for as long as the block runs."""
    stop = _StopRequest()

    def note(_number: int, _frame: object) -> None:
        stop.count += 1

    wanted = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # started with nohup
        wanted.remove(signal.SIGHUP)
    before = [(number, signal.signal(number, note)) for number in wanted]
    try:
        yield stop
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """True if the process has ended. It is not reaped, so its group's number stays taken."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, flags) is not None
