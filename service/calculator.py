"""Slow calculations, away from the request threads: a bounded pool of processes.

Pure questions have one answer, so the newest answers are kept.
"""

import functools
import multiprocessing
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, ProcessPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final, ParamSpec, TypeVar

from service.core.errors import NotCertified, Unavailable

_KEPT: Final = 1024
_CUT_OFF: Final = "The calculation was cut off; try again."

P = ParamSpec("P")
T = TypeVar("T")


class Calculator:
    """Runs pure functions in processes, each call within a time limit."""

    def __init__(self, *, processes: int, timeout_s: float) -> None:
        """Start nothing yet: the first slow question starts the first process."""
        self._processes = processes
        self._timeout_s = timeout_s
        self._pool = self._new_pool()
        # A call waits here for a free process, so that its time limit is its own.
        self._free = threading.BoundedSemaphore(processes)
        self._kept: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.Lock()

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The value of a pure, module-level function of hashable, picklable arguments.

        Raises:
            NotCertified: CALCULATION_TOO_LONG, no answer within the limit.
            Unavailable: no process got free in time, or the process died (out of memory).
        """
        key = (function, args, tuple(sorted(kwargs.items())))
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        value = self._run(functools.partial(function, *args, **kwargs))
        with self._lock:
            self._kept[key] = value
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return value

    def close(self) -> None:
        """Stop all processes."""
        _stop(self._pool)

    def _run(self, call: Callable[[], T]) -> T:
        if not self._free.acquire(timeout=self._timeout_s):
            raise Unavailable("All processes for calculations are busy; try again.")
        try:
            return self._compute(call)
        finally:
            self._free.release()

    def _compute(self, call: Callable[[], T]) -> T:
        pool = self._pool
        try:
            waiting = pool.submit(call)
        except RuntimeError as error:  # shut down or broken since it was looked up
            self._replace(pool)
            raise Unavailable(_CUT_OFF) from error
        try:
            return waiting.result(timeout=self._timeout_s)
        except FutureTimeout as error:
            self._replace(pool)
            raise NotCertified(
                f"The calculation took longer than {self._timeout_s:g} s.",
                code="CALCULATION_TOO_LONG",
            ) from error
        except (BrokenExecutor, CancelledError) as error:
            # Its process died, or a call beside it ran too long and the pool went with it.
            self._replace(pool)
            raise Unavailable(_CUT_OFF) from error

    def _replace(self, pool: ProcessPoolExecutor) -> None:
        if self._pool is pool:  # another thread may have done so already
            self._pool = self._new_pool()
        _stop(pool)

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._processes, mp_context=multiprocessing.get_context("spawn"))


def _stop(pool: ProcessPoolExecutor) -> None:
    running = list((pool._processes or {}).values())  # noqa: SLF001 - no public way to end a busy one
    pool.shutdown(wait=False, cancel_futures=True)
    for process in running:
        process.kill()
