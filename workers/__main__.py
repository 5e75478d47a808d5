"""``python -m workers worker | sweep``: run training jobs, or look after them."""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence

from service.settings import Settings
from service.telemetry import configure_logging
from workers.app import make_worker_app
from workers.sweeper import sweep_until


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m workers", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("worker", help="run training jobs, one at a time")
    verbs.add_parser("sweep", help="announce forgotten jobs again and end lost ones")
    options = parser.parse_args(arguments)
    settings = Settings()
    configure_logging(settings.log_level)
    if options.verb == "worker":
        return _work(settings)
    return _sweep(settings)


def _work(settings: Settings) -> int:
    make_worker_app(settings).worker_main(
        [
            "worker",
            "--pool=prefork",
            "--concurrency=1",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
            "--loglevel=warning",
            f"--hostname=trainer-{os.getpid()}@%h",
        ]
    )
    return 0


def _sweep(settings: Settings) -> int:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    sweep_until(stop, settings)
    return 0


if __name__ == "__main__":
    code = main()
    # Nothing is left to do, and taking large libraries apart would take seconds of a stop.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
