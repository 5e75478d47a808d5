"""One job from its claim to its end: start the trainer, answer it, watch it, settle.

The supervisor leases steps before they run, stores their records before anything that depends
on them leaves, and renews its own lease on the job. Its transactions are short, and none is
open while it waits. When in doubt it stops the trainer, and what was leased is charged.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError

from service.core.errors import Conflict, Unavailable
from service.core.jobs import TrainingSpec
from service.db.tables import Job
from service.operations import job_runs
from service.operations.job_runs import Claim, KeptFile
from service.operations.jobs import LOG_NAME
from workers.context import WorkerParts
from workers.conversation import Cancelled, Conversation, Failed, Finished, Verdict
from workers.endings import NotWhole, outcome_of
from workers.patience import Lost, Patience
from workers.process import Trainer

_MAX_LOG_BYTES: Final = 16 * 2**20


def run_job(parts: WorkerParts, job_id: str, *, wake_up: int | None = None) -> None:
    """Run a queued job; does nothing if it is not queued any more.

    Args:
        parts: the worker's parts.
        job_id: what the message said.
        wake_up: a file descriptor that becomes readable when the worker is to stop.
    """
    log = structlog.get_logger().bind(job_id=job_id)
    try:
        job = _claim(parts, job_id)
    except (Unavailable, OperationalError, InterfaceError):
        log.warning("claim_failed")  # it stays queued, and the sweeper announces it again
        return
    if job is None:
        log.info("already_claimed")
        return
    held = Claim(job_id=job.id, token=job.fencing_token)
    folder = parts.settings.job_folder(job.id, token=job.fencing_token)
    try:
        verdict, forced = _train(parts, job, held, folder=folder, wake_up=wake_up)
        _close(parts, job, held, verdict, forced=forced, folder=folder)
        log.info("job_ended", verdict=type(verdict).__name__)
    except Lost as error:
        log.warning("job_lost", reason=str(error))  # the trainer is dead; the sweeper settles
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _claim(parts: WorkerParts, job_id: str) -> Job | None:
    with parts.database.write() as session:
        return job_runs.claim(
            session, job_id=job_id, worker=parts.name, lease_s=parts.settings.lease_s
        )


def _train(
    parts: WorkerParts, job: Job, held: Claim, *, folder: Path, wake_up: int | None
) -> tuple[Verdict, bool]:
    """(how it ended, whether it had to be killed); when this returns, the trainer is gone."""
    spec = TrainingSpec.from_json(job.spec)
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        (folder / "spec.json").write_text(json.dumps(job.spec))
        trainer = Trainer(parts.trainer, folder=folder, log=folder / LOG_NAME)
    except OSError as error:
        return Failed(
            "TRAINER_NOT_STARTED", f"No trainer could be started: {error.strerror}."
        ), False
    with trainer:
        conversation = Conversation(parts, held, spec=spec, trainer=trainer, wake_up=wake_up)
        verdict = conversation.hold()
    return verdict, conversation.forced


def _close(
    parts: WorkerParts, job: Job, held: Claim, verdict: Verdict, *, forced: bool, folder: Path
) -> None:
    patience = Patience(parts.database, parts.settings.lease_s)
    files = _kept_log(parts, folder / LOG_NAME)
    if isinstance(verdict, Finished):
        try:
            outcome = outcome_of(parts, job, verdict, folder=folder, log_files=files)
            patience.write(lambda session: job_runs.finish(session, held, outcome))
        except NotWhole as error:
            verdict = Failed(error.code, str(error))
        except Conflict as error:
            verdict = Failed(error.code, error.message)
    if isinstance(verdict, Failed):
        code, message = verdict.code, verdict.message
        patience.write(
            lambda session: job_runs.fail(session, held, code=code, message=message, files=files)
        )
    elif isinstance(verdict, Cancelled):
        patience.write(
            lambda session: job_runs.cancelled(session, held, forced=forced, files=files)
        )


def _kept_log(parts: WorkerParts, path: Path) -> Sequence[KeptFile]:
    """The trainer's log in the store; a log that cannot be kept fails no job."""
    try:
        data = path.read_bytes()[-_MAX_LOG_BYTES:]
        digest = parts.objects.put(data)
    except OSError:
        structlog.get_logger().warning("log_not_kept", path=path.name)
        return ()
    return (KeptFile(name=LOG_NAME, object=digest, size=len(data), media_type="text/plain"),)
