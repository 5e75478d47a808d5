"""What makes ``kill -9`` of the supervisor leave nothing running; two small programs.

``lifeline.py run PID PROGRAM…`` asks the kernel to send SIGKILL to this process when its
parent ends, then becomes the program by exec, which keeps that wish. It is a program, and
not a ``preexec_fn``, because Python code between fork and exec may deadlock. Linux only
(``PR_SET_PDEATHSIG``); elsewhere the program is started without the wish. The wish is not
inherited: what the program itself starts (a pool, say) is the guard's.

``lifeline.py guard`` reads the numbers of process groups, ``+N`` and ``-N``, from a pipe that
only the supervisor holds. When that ends, it kills the groups that are left: on a stop in
good order there are none.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent``, its parent process, ends.

    Args:
        parent: The process id of the parent, as the parent itself knew it.

    Raises:
        ProcessLookupError: If the parent has ended before the wish was recorded.
        OSError: If the kernel refuses the wish.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:
        raise ProcessLookupError(f"the parent {parent} is gone")


def guard(lines: Iterable[str]) -> None:
    """Kill the process groups that were named with ``+`` and not with ``-`` until the end."""
    groups: set[int] = set()
    for line in lines:
        group = int(line[1:])
        (groups.add if line.startswith("+") else groups.discard)(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1] == "guard":
        guard(sys.stdin)
    else:
        die_with_parent(int(sys.argv[2]))
        os.execvp(sys.argv[3], sys.argv[3:])  # noqa: S606 - no shell: the arguments as they are
