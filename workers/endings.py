"""What a complete run has to show: its log read back, its price, its files checked."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from service import log_chunks
from service.core import replay
from service.core.events import StepwiseDpSgd, merge_segments
from service.core.jobs import TrainingSpec
from service.db.tables import Job
from service.operations.job_runs import KeptFile, Outcome
from service.operations.jobs import LOG_NAME
from service.operations.noise_chunks import chunks_of
from workers.context import WorkerParts
from workers.conversation import Finished

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_MEDIA_TYPES: Final = {".json": "application/json", ".txt": "text/plain"}


class NotWhole(Exception):
    """A run that claims to be complete and is not."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def outcome_of(
    parts: WorkerParts, job: Job, finished: Finished, *, folder: Path, log_files: Sequence[KeptFile]
) -> Outcome:
    """Read the stored log back, compare it with the plan, and keep the files.

    Guarantees: the ε is the forecast's, which was certified for the very event that the log
    shows; any other log is refused here and charged as it ran.

    Raises:
        NotWhole: the log is not the plan's, an object is damaged, or a file is not as said.
    """
    spec = TrainingSpec.from_json(job.spec)
    executed = _replayed(parts, job)
    if executed != _normal(spec.mechanism):
        raise NotWhole("LOG_INCOMPLETE", "The log does not show every step as planned.")
    forecast = job.request["forecast"]
    files = [_kept(parts, folder / "artifacts", described) for described in finished.artifacts]
    return Outcome(
        executed=executed,
        epsilon={
            **forecast["epsilon"],
            "delta": forecast["delta"],
            "neighboring": forecast["neighboring"],
        },
        metrics=finished.metrics,
        files=[*files, *log_files],
    )


def _replayed(parts: WorkerParts, job: Job) -> Any:
    with parts.database.read() as session:
        digests = [chunk.released_object for chunk in chunks_of(session, job.id)]
    runs: list[replay.Run] = []
    try:
        for digest in digests:
            runs += replay.runs(log_chunks.records_of(parts.objects, digest))
    except OSError as error:
        raise NotWhole("LOG_STORAGE_FAILED", "The stored log cannot be read back.") from error
    return replay.replay(runs)


def _normal(mechanism: StepwiseDpSgd) -> StepwiseDpSgd:
    return StepwiseDpSgd(sampler=mechanism.sampler, schedule=merge_segments(mechanism.schedule))


def _kept(parts: WorkerParts, folder: Path, described: Mapping[str, Any]) -> KeptFile:
    name = described.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == LOG_NAME:
        raise NotWhole("TRAINER_PROTOCOL", "An artifact has an unusable name.")
    try:
        data = (folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != described.get("sha256"):
            raise NotWhole("TRAINER_PROTOCOL", f"The artifact {name} is not as described.")
        digest = parts.objects.put(data)
    except OSError as error:
        raise NotWhole("ARTIFACT_STORAGE_FAILED", f"{name} could not be kept.") from error
    media_type = _MEDIA_TYPES.get(Path(name).suffix, "application/octet-stream")
    return KeptFile(name=name, object=digest, size=len(data), media_type=media_type)
