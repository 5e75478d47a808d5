"""The service that the demo starts for itself, with a stand-in for ``dpledger up``."""

import os
import subprocess
import sys

import pytest

from dpledger import ClientError
from dpledger.embedded_service import embedded_service

pytestmark = pytest.mark.processes

STARTS = """
import pathlib, signal, subprocess, sys
data = pathlib.Path(sys.argv[4])
data.mkdir()
(data / "admin-key").write_text("dpl_test\\n")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("dpledger is ready at http://127.0.0.1:9 (Ctrl-C stops it)", flush=True)
while True:
    signal.pause()
"""


def command(code):
    return (sys.executable, "-c", code)


def test_the_address_is_read_and_everything_is_stopped():
    with embedded_service(command(STARTS)) as address:
        assert (address.url, address.api_key) == ("http://127.0.0.1:9", "dpl_test")


def test_a_service_that_does_not_start_tells_why():
    never = embedded_service(command("print('Port 9 is taken.')"))
    with pytest.raises(ClientError, match="Port 9 is taken"), never:
        pass


def test_the_ends_of_the_logs_outlive_a_failure_inside():
    with pytest.raises(ClientError, match=r"no verdict\n--- worker.log\nout of memory"):  # noqa: SIM117, PT012
        with embedded_service(command(STARTS)) as address:
            (address.data_dir / "logs").mkdir()
            (address.data_dir / "logs" / "worker.log").write_text("out of memory\n")
            raise ClientError("no verdict")


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc")
def test_a_process_that_is_left_running_is_an_error():
    service = embedded_service(command(STARTS))
    mark = {"DPLEDGER_DATA_DIR": str(service.__enter__().data_dir)}
    left = subprocess.Popen(["sleep", "100"], env={**os.environ, **mark})
    with pytest.raises(ClientError, match="still running") as caught:
        service.__exit__(None, None, None)
    left.kill()
    left.wait()
    assert str(left.pid) in str(caught.value)
