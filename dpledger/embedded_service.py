"""A whole service for the length of one ``with`` block: what ``dpledger demo`` runs against."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dpledger.errors import ClientError


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the service and its data are, and the key of its administrator."""

    url: str
    api_key: str
    data_dir: Path


_LAST_LINES: Final = 10
_UP: Final = (sys.executable, "-m", "dpledger", "up")


@contextlib.contextmanager
def embedded_service(command: Sequence[str] = _UP) -> Iterator[Address]:
    """Start ``dpledger up`` on a free port with a fresh data directory, and remove both.

    Args:
        command: What is started in place of it.

    Raises:
        ClientError: It did not start, did not stop cleanly, or left a process running.
    """
    with tempfile.TemporaryDirectory(prefix="dpledger-demo-") as name:
        data_dir = Path(name).resolve() / "data"
        up = subprocess.Popen(  # noqa: S603 - our own program
            [*command, "--port", "0", "--data-dir", str(data_dir)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            url = _read_url(up)
            api_key = (data_dir / "admin-key").read_text().strip()
            yield Address(url=url, api_key=api_key, data_dir=data_dir)
        except ClientError as error:  # the logs go with the directory
            raise ClientError(f"{error}\n{_last_words(data_dir)}") from error
        finally:
            up.send_signal(signal.SIGTERM)
            up.communicate()
        left = _running_on(data_dir)
        if up.returncode or left:
            raise ClientError(f"dpledger up ended with {up.returncode}; still running: {left}")


def _read_url(up: subprocess.Popen[str]) -> str:
    said: list[str] = []
    for line in up.stdout or ():
        said.append(line)
        if line.startswith("dpledger is ready at "):
            return line.split()[4]
    raise ClientError("dpledger up did not start:\n" + "".join(said))


def _last_words(data_dir: Path) -> str:
    """The ends of the logs."""
    ends: list[str] = []
    for log in sorted(data_dir.glob("logs/*.log")):
        lines = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        ends += [f"--- {log.name}", *lines]
    return "\n".join(ends)


def _running_on(data_dir: Path) -> list[int]:
    """Processes that were started for this data directory; looked for where /proc exists."""
    mark = os.fsencode(f"DPLEDGER_DATA_DIR={data_dir}")
    found: list[int] = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's, or gone by now
            if mark in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found
