"""``python -m service serve | migrate | bootstrap | …-signing-key``: the gateway's own verbs."""

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import uvicorn
from sqlalchemy import func, select

from service.app import make_app
from service.db.migrations.run import migrate
from service.db.session import Database
from service.db.tables import ApiKey
from service.operations import signing_keys
from service.operations.keys import create_first_key
from service.settings import Settings
from service.signing import FileSigner
from service.telemetry import configure_logging


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb."""
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    serve = verbs.add_parser("serve", help="answer HTTP requests")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000)
    verbs.add_parser("migrate", help="bring the database to this version's tables")
    verbs.add_parser("bootstrap", help="make the first key, once, in <data_dir>/admin-key")
    verbs.add_parser("rotate-signing-key", help="sign with a fresh key from now on")
    revocation = verbs.add_parser("revoke-signing-key", help="nothing it ever signed counts")
    revocation.add_argument("key_id")
    revocation.add_argument("--reason", required=True)
    options = parser.parse_args(arguments)
    settings = Settings()
    configure_logging(settings.log_level)
    if options.verb == "serve":
        return _serve(settings, host=options.host, port=options.port)
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = Database(settings.database_url, pool_size=2)
    try:
        match options.verb:
            case "migrate":
                migrate(database)
            case "bootstrap":
                bootstrap(database, key_file=settings.data_dir / "admin-key")
            case "rotate-signing-key":
                with database.write() as session:
                    signer = FileSigner(settings.data_dir / "signing.key")
                    sys.stdout.write(f"{signing_keys.rotate(session, signer)}\n")
            case _:
                with database.write() as session:
                    signing_keys.revoke(session, key_id=options.key_id, reason=options.reason)
    finally:
        database.close()
    return 0


def bootstrap(database: Database, *, key_file: Path) -> None:
    """Create the administrator's key if the installation has no key at all.

    The file is written before the key is committed: a crash between the two leaves a file
    with a key that does not work and is replaced at the next start, never a lost key.
    """
    with database.write() as session:
        if session.scalar(select(func.count()).select_from(ApiKey)):
            return
        fresh = create_first_key(session)
        beside = key_file.with_suffix(".new")
        beside.unlink(missing_ok=True)
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(fresh.token + "\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(key_file)


def _serve(settings: Settings, *, host: str, port: int) -> int:
    app = make_app(settings)
    server = _Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=3,
            server_header=False,
        ),
        stopping=app.state.stopping,
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again at its end
        server.run()
    return 0 if server.started else 1


class _Server(uvicorn.Server):
    """Tells the open streams to end as soon as the signal arrives, not after the grace."""

    def __init__(self, config: uvicorn.Config, *, stopping: threading.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._stopping.set()
        super().handle_exit(sig, frame)


if __name__ == "__main__":
    sys.exit(main())
