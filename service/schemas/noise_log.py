"""Step records on the wire: the releasable line of a noise log, and the upload beside it."""

from collections.abc import Sequence
from typing import Any, Self

from pydantic import Field, JsonValue

from service.core import noise_log
from service.core.errors import InvalidInput
from service.core.events import MAX_NOISE_MULTIPLIER, MAX_STEPS, Sampler
from service.schemas.base import Wire


def _absent(**limits: Any) -> Any:
    return Field(default=None, exclude_if=lambda value: value is None, **limits)


class StepRecord(Wire):
    """One noised release, in public: configuration and what was private already."""

    step: int = Field(ge=0, lt=MAX_STEPS)
    noise_multiplier: float = Field(ge=0, le=MAX_NOISE_MULTIPLIER)
    max_grad_norm: float = Field(gt=0)
    sampler: Sampler
    sampling_rate: float | None = _absent(gt=0, le=1)
    expected_batch_size: float = Field(gt=0)
    epoch: int | None = _absent(ge=0, lt=MAX_STEPS)
    updates_per_epoch: int | None = _absent(ge=1, le=MAX_STEPS)
    count_noise_stddev: float | None = _absent(gt=0)

    @classmethod
    def from_core(cls, record: noise_log.StepRecord) -> Self:
        """The wire form of a record."""
        return cls(
            step=record.step,
            noise_multiplier=record.noise_multiplier,
            max_grad_norm=record.max_grad_norm,
            sampler=record.sampler,
            sampling_rate=record.sampling_rate,
            expected_batch_size=record.expected_batch_size,
            epoch=record.epoch,
            updates_per_epoch=record.updates_per_epoch,
            count_noise_stddev=record.count_noise_stddev,
        )


class StepUpload(StepRecord):
    """A record as a trainer uploads it; ``at`` and ``sealed`` go to the sealed stream."""

    at: str | None = _absent(description="RFC 3339; stored sealed, shown coarsely per chunk.")
    sealed: dict[str, JsonValue] | None = _absent(
        description="realized_batch_size, noise_norm, dimension, and whatever else was measured."
    )


def to_core(uploads: Sequence[StepUpload], *, pointer: str) -> tuple[noise_log.Upload, ...]:
    """The core's uploads; what fields together make impossible is raised below ``pointer``."""
    try:
        return noise_log.parse([upload.model_dump() for upload in uploads])
    except InvalidInput as error:
        raise InvalidInput(
            error.message, pointer=pointer + error.pointer, code=error.code
        ) from error
