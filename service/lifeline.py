"""Start a program that dies with its supervisor: ``python lifeline.py PID PROGRAM…``.

The supervisor puts this file before every program it starts. It asks the kernel to send
SIGKILL to this process when its parent ends, then becomes the program by exec, which keeps
that wish. So even ``kill -9`` of the supervisor leaves nothing running. It is a program of
its own, and not a ``preexec_fn``, because Python code between fork and exec may deadlock.

Linux only (``PR_SET_PDEATHSIG``); elsewhere the program is started without the wish. The
wish is not inherited: a program that starts processes in sessions of their own asks again.
"""

import ctypes
import os
import signal
import sys

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


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - no shell: the arguments go as they are
