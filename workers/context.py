"""The parts of a worker, made from settings in the process that uses them."""

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from service.db.session import Database
from service.objects import FolderStore, ObjectStore
from service.sealing import FileSealer, Sealer
from service.settings import Settings

TRAINER: Final = (sys.executable, "-m", "workers.trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """What the supervisor of one job works with.

    Args:
        settings: lease, grace and folders.
        database: short transactions only.
        objects: where chunks, artifacts and logs go.
        sealer: encrypts the sealed stream.
        trainer: the command that trains; ``--workdir DIR --parent-pid PID`` is appended.
        name: who holds a lease, for people.
    """

    settings: Settings
    database: Database
    objects: ObjectStore
    sealer: Sealer
    trainer: Sequence[str]
    name: str


@contextmanager
def open_parts(settings: Settings) -> Iterator[WorkerParts]:
    """The real parts, for the length of one job: nothing crosses a fork."""
    database = Database(settings.database_url, pool_size=2)
    try:
        yield WorkerParts(
            settings=settings,
            database=database,
            objects=FolderStore(settings.data_dir / "objects"),
            sealer=FileSealer(settings.data_dir / "sealed-log.key"),
            trainer=TRAINER,
            name=f"{socket.gethostname()}/{os.getpid()}",
        )
    finally:
        database.close()
