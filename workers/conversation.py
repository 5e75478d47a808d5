"""The conversation with a trainer, and an eye on everything else that can end it.

The protocol (workers/trainer/protocol.py) is one JSON object a line, strictly in turn. Nothing
the trainer says is believed beyond what a wrong word could cost: ranges and records are
checked, and more than was leased is charged as it ran.
"""

import bisect
import itertools
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service import log_chunks
from service.core import noise_log
from service.core.errors import Conflict, InvalidInput
from service.core.jobs import TrainingSpec
from service.core.noise_log import StepRecord, Upload
from service.operations import job_runs
from service.operations.job_runs import Claim
from workers.context import WorkerParts
from workers.patience import Patience
from workers.process import BrokenProtocol, Trainer

_TICK_S: Final = 0.25
_LOOK_EVERY_S: Final = 0.5
_RENEWALS_PER_LEASE: Final = 3
_STOP_GRACE_S: Final = 0.8  # of a worker that is to stop: whoever stops it is in a hurry
_EXIT_WAIT_S: Final = 2.0
_MAX_CHUNK_STEPS: Final = 4096
_MAX_TEXT: Final = 500


@dataclass(frozen=True, slots=True)
class Finished:
    """All steps ran and are in the log; what the trainer left is in its folder."""

    metrics: Mapping[str, Any]
    artifacts: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Failed:
    """The run ended otherwise."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job's owner wanted its end."""


Verdict = Finished | Failed | Cancelled


class Conversation:
    """One trainer from its first word to its last."""

    def __init__(
        self,
        parts: WorkerParts,
        held: Claim,
        *,
        spec: TrainingSpec,
        trainer: Trainer,
        wake_up: int | None,
    ) -> None:
        self._parts = parts
        self._held = held
        self._spec = spec
        self._plan = _Plan(spec)
        self._trainer = trainer
        self._wake_up = wake_up
        self._patience = Patience(parts.database, parts.settings.lease_s)
        self._leased_until = 0
        self._next_step = 0
        self._ending: Verdict | None = None
        now = time.monotonic()
        self._deadline = now + spec.max_runtime_s
        self._next_look = now
        self._next_renewal = now + self._renew_every_s
        self._kill_at = float("inf")
        self.forced = False

    def hold(self) -> Verdict:
        """Talk until the trainer has said its last word, is gone, or must be killed.

        Raises:
            Lost: the job is not ours any more; its trainer must die and nothing be changed.
        """
        while True:
            try:
                message = self._trainer.receive(timeout_s=_TICK_S, wake_up=self._wake_up)
                verdict = self._answer(message) if message is not None else None
            except EOFError:
                return self._gone()
            except (BrokenProtocol, InvalidInput) as error:
                return Failed("TRAINER_PROTOCOL", f"The trainer broke the protocol: {error}")
            verdict = verdict or self._look_around()
            if verdict is not None:
                return verdict

    @property
    def _renew_every_s(self) -> float:
        return self._parts.settings.lease_s / _RENEWALS_PER_LEASE

    def _answer(self, message: Mapping[str, Any]) -> Verdict | None:
        match message["type"]:
            case "ready":
                facts = {k: v for k, v in message.items() if k != "type"}
                self._patience.write(
                    lambda session: job_runs.start_running(session, self._held, software=facts)
                )
            case "lease":
                return self._lease(_whole(message, "first_step"), _whole(message, "steps"))
            case "steps":
                return self._record(message.get("records"))
            case "progress":
                # Not kept: the times of single steps are sealed (R25). Chunks tell enough.
                pass
            case "result":
                return Finished(_object(message.get("metrics")), _objects(message.get("artifacts")))
            case "stopped":
                return self._ending or Failed("TRAINER_STOPPED", "The trainer was stopped.")
            case "failed":
                return self._ending or Failed(
                    str(message.get("code"))[:_MAX_TEXT], str(message.get("message"))[:_MAX_TEXT]
                )
            case _:
                raise BrokenProtocol("A message of no known type.")
        return None

    def _lease(self, first_step: int, steps: int) -> Verdict | None:
        if self._ending is not None:
            self._trainer.send({"type": "stop", "reason": "ending"})
            return None
        if first_step != self._next_step or not 0 < steps <= _MAX_CHUNK_STEPS:
            raise BrokenProtocol("A lease begins at the next step that has no record.")
        try:
            self._leased_until = self._patience.write(
                lambda session: job_runs.lease_steps(
                    session, self._held, first_step=first_step, steps=steps
                )
            )
        except Conflict as error:
            if error.code == "CANCEL_REQUESTED":
                self._begin_end(Cancelled())
                return None
            return Failed(error.code, error.message)
        self._trainer.send(
            {"type": "leased", "first_step": first_step, "end_step": self._leased_until}
        )
        return None

    def _record(self, records: Any) -> Verdict | None:
        if not isinstance(records, list) or not records:
            raise BrokenProtocol("records is a list that is not empty.")
        try:
            accepted = noise_log.accept(noise_log.parse(records), next_step=self._next_step)
        except Conflict as error:
            raise BrokenProtocol(error.message) from error
        if accepted.duplicates:
            raise BrokenProtocol("A step is recorded once.")
        try:
            for start in range(0, len(accepted.fresh), _MAX_CHUNK_STEPS):
                self._store(accepted.fresh[start : start + _MAX_CHUNK_STEPS])
        except OSError as error:
            return Failed(
                "LOG_STORAGE_FAILED",
                f"The noise log could not be stored ({error.strerror or 'damaged'}).",
            )
        if self._next_step > self._leased_until:
            return Failed("OVER_RUN", "The trainer ran steps that it had not leased.")
        if not all(self._plan.agrees(upload.record) for upload in accepted.fresh):
            return Failed("LOG_DEVIATES", "The trainer ran other steps than those planned.")
        self._trainer.send({"type": "stored", "next_step": self._next_step})
        return None

    def _store(self, uploads: Sequence[Upload]) -> None:
        chunk = log_chunks.store(
            uploads,
            subject_id=self._held.job_id,
            objects=self._parts.objects,
            sealer=self._parts.sealer,
        )
        self._next_step = self._patience.write(
            lambda session: job_runs.record_chunk(session, self._held, chunk)
        )

    def _look_around(self) -> Verdict | None:
        """Shutdown, deadline, cancel, lease: in the order of their haste."""
        now = time.monotonic()
        if self._wake_up is not None and select.select([self._wake_up], [], [], 0)[0]:
            self._wake_up = None
            self._begin_end(Failed("WORKER_STOPPED", "The worker was stopped."), _STOP_GRACE_S)
        if now >= self._deadline:
            limit = f"{self._spec.max_runtime_s:g}"
            self._begin_end(Failed("DEADLINE_EXCEEDED", f"It ran for longer than {limit} s."))
        if now >= self._next_look:
            self._next_look = now + _LOOK_EVERY_S
            if self._patience.read(lambda s: job_runs.cancel_requested(s, self._held)):
                self._begin_end(Cancelled())
        if now >= self._next_renewal:
            lease_s = self._parts.settings.lease_s
            self._patience.write(lambda s: job_runs.renew(s, self._held, lease_s=lease_s))
            self._next_renewal = now + self._renew_every_s
        if now >= self._kill_at:
            self.forced = True
            return self._ending
        return None

    def _begin_end(self, verdict: Verdict, grace_s: float | None = None) -> None:
        """Ask the trainer to stop; the first reason is the verdict, the shortest grace counts."""
        grace_s = self._parts.settings.kill_grace_s if grace_s is None else grace_s
        self._kill_at = min(self._kill_at, time.monotonic() + grace_s)
        if self._ending is None:
            self._ending = verdict
            self._trainer.terminate()

    def _gone(self) -> Verdict:
        if self._ending is not None:
            return self._ending
        code = self._trainer.exit_code(timeout_s=_EXIT_WAIT_S)
        how = "closed its output" if code is None else f"ended with {_described(code)}"
        return Failed("TRAINER_DIED", f"The trainer {how} before its last word.")


class _Plan:
    """What the spec says of each step."""

    def __init__(self, spec: TrainingSpec) -> None:
        self._spec = spec
        self._ends = list(itertools.accumulate(s.steps for s in spec.mechanism.schedule))

    def agrees(self, record: StepRecord) -> bool:
        """Whether a step ran as planned: equal to the bit, for both sides copy the numbers."""
        index = bisect.bisect_right(self._ends, record.step)
        if index == len(self._ends):
            return False
        spec, segment = self._spec, self._spec.mechanism.schedule[index]
        return record == StepRecord(
            step=record.step,
            noise_multiplier=segment.noise_multiplier,
            max_grad_norm=spec.max_grad_norm,
            sampler=spec.mechanism.sampler,
            sampling_rate=segment.sampling_rate,
            expected_batch_size=spec.expected_batch_size,
        )


def _whole(message: Mapping[str, Any], name: str) -> int:
    value = message.get(name)
    if type(value) is not int or value < 0:
        raise BrokenProtocol(f"{name} is a whole number.")
    return value


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BrokenProtocol("metrics is an object.")
    return value


def _objects(value: Any) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BrokenProtocol("artifacts is a list of objects.")
    return value


def _described(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
