"""The life of ``dpledger up`` with small stand-ins for the programs and the real broker."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from service.embedded import STOP_GRACES_S

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux'"),
]

# A gateway that answers /readyz, and a program that only waits; both note their process id.
GATEWAY = """
import http.server, os, pathlib, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args): pass
pathlib.Path(os.environ["DPLEDGER_DATA_DIR"], "gateway.pid").write_text(str(os.getpid()))
http.server.HTTPServer((sys.argv[2], int(sys.argv[4])), Handler).serve_forever()
"""
WAITER = """
import os, pathlib, signal, sys
pathlib.Path(os.environ["DPLEDGER_DATA_DIR"], sys.argv[1] + ".pid").write_text(str(os.getpid()))
signal.pause()
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + WAITER
# A program that also starts a process of its own, as a pool does.
PARENT = "import subprocess; subprocess.Popen(['sleep', '1000'])" + WAITER
BOOTSTRAP = """
import os, pathlib
path = pathlib.Path(os.environ["DPLEDGER_DATA_DIR"], "admin-key")
path.exists() or path.write_text("dpl_test")
"""
# SIGHUP as a terminal leaves it: whoever runs the tests may have it ignored (nohup).
UP = """
import os, pathlib, signal, sys
from service.embedded import Commands, up
signal.signal(signal.SIGHUP, signal.SIG_DFL)
run = lambda code, *rest: (sys.executable, "-c", code, *rest)
gateway, worker, sweeper, migrate, bootstrap, data_dir, port = sys.argv[1:]
commands = Commands(
    migrate=run(migrate), bootstrap=run(bootstrap),
    gateway=run(gateway), worker=run(worker, "worker"), sweeper=run(sweeper, "sweeper"),
)
sys.exit(up(
    pathlib.Path(data_dir), host="127.0.0.1", port=int(port), environ=os.environ,
    announce=lambda text: print(text, flush=True), commands=commands,
))
"""


class Up:
    """A supervisor in a process of its own."""

    def __init__(
        self, data_dir: Path, *, port=0, gateway=GATEWAY, worker=WAITER, migrate="", environ=None
    ):
        self.data_dir = data_dir
        arguments = [gateway, worker, WAITER, migrate, BOOTSTRAP, str(data_dir), str(port)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", UP, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environ or {})},
        )

    def read_until(self, words: str) -> str:
        assert self.process.stdout is not None
        text = ""
        while words not in text:
            line = self.process.stdout.readline()
            assert line, f"ended without {words!r}: {text}"
            text += line
        return text

    def finish(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out

    def pid_of(self, name: str) -> int:
        return int((self.data_dir / f"{name}.pid").read_text())

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture
def start(tmp_path):
    with contextlib.ExitStack() as stack:

        def _start(name="data", **options):
            up = Up(tmp_path / name, **options)
            stack.callback(up.process.communicate)
            stack.callback(up.process.kill)
            return up

        yield _start


def gone(family: list[psutil.Process], *, within_s: float) -> bool:
    _, alive = psutil.wait_procs(family, timeout=within_s)
    return not alive


def wait_for(condition, *, within_s=20.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_a_first_start_shows_the_address_and_the_admin_key_and_a_later_one_only_the_address(start):
    first = start()
    text = first.read_until("data:")
    assert "http://127.0.0.1:" in text
    assert "dpl_test" in text
    first.process.send_signal(signal.SIGINT)
    assert first.finish()[0] == 0
    assert "dpl_test" not in start().read_until("data:")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_one_signal_stops_everything_even_the_deaf(start, number):
    up = start(worker=DEAF)
    up.read_until("data:")
    family = up.family()
    assert len(family) == len(["broker", "gateway", "guard", "sweeper", "worker"])
    up.process.send_signal(number)
    assert up.process.wait(timeout=60) == 0
    assert gone(family, within_s=10)


def test_the_graces_of_all_programs_leave_a_stop_within_five_seconds():
    assert sum(STOP_GRACES_S.values()) <= 4.5


@pytest.mark.parametrize("worker", [DEAF, PARENT])
def test_kill_9_of_the_supervisor_leaves_nothing_running(start, worker):
    up = start(worker=worker)
    up.read_until("data:")
    wait_for((up.data_dir / "worker.pid").exists)
    family = up.family()
    up.process.kill()
    assert gone(family, within_s=30)


def test_what_a_dead_program_left_in_its_group_is_killed_before_it_is_started_again(start):
    up = start(worker=PARENT)
    up.read_until("data:")
    wait_for((up.data_dir / "worker.pid").exists)
    old = psutil.Process(up.pid_of("worker"))
    children = old.children()
    assert children
    old.kill()
    wait_for(lambda: up.pid_of("worker") != old.pid)
    assert gone(children, within_s=30)


def test_a_dead_broker_is_started_again_with_what_it_had(start):
    up = start()
    up.read_until("data:")
    path = str(up.data_dir / "broker" / "socket")
    assert say(path, b"SET kept yes\r\n") == b"+OK\r\n"
    time.sleep(1.2)  # appendfsync everysec
    (broker,) = [p for p in up.family() if p.name() == "valkey-server"]
    broker.kill()
    broker.wait()

    def answers():
        with contextlib.suppress(OSError):
            return say(path, b"GET kept\r\n") == b"$3\r\nyes\r\n"
        return False

    wait_for(answers)
    assert say(path, b"CONFIG GET maxmemory-policy\r\n").endswith(b"noeviction\r\n")


def say(path: str, command: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(path)
        connection.sendall(command)
        return connection.recv(4096)


def test_a_program_that_never_stays_up_ends_all_with_its_last_words(start):
    code, text = start(gateway="raise SystemExit('no such table: jobs')").finish()
    assert code == 1
    assert "gateway ended 5 times" in text
    assert "no such table: jobs" in text


def test_a_failed_migration_starts_nothing(start):
    up = start(migrate="raise SystemExit('bad revision')")
    code, text = up.finish()
    assert code == 1
    assert "migrate failed" in text
    assert "bad revision" in text
    assert not (up.data_dir / "gateway.pid").exists()


def test_a_second_supervisor_on_one_directory_is_refused_and_the_first_goes_on(start):
    first = start()
    first.read_until("data:")
    code, text = start().finish()
    assert code == 1
    assert f"process {first.process.pid}" in text
    assert first.process.poll() is None


def test_a_taken_port_is_named(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, text = start(port=port).finish()
    assert code == 1
    assert f"Port {port} on 127.0.0.1 is taken" in text


def test_a_data_directory_too_deep_for_a_unix_socket_works_and_is_private(start):
    up = start("deep/" * 30 + "data")
    up.read_until("data:")
    assert up.data_dir.stat().st_mode & 0o777 == 0o700
    assert (up.data_dir / "admin-key").stat().st_mode & 0o077 == 0


def test_with_a_redis_url_no_broker_is_started(start):
    up = start(environ={"REDIS_URL": "redis://127.0.0.1:1/0"})
    up.read_until("data:")
    assert len(up.family()) == len(["gateway", "guard", "sweeper", "worker"])
