"""The noise log: what a run says it did, step by step, and the event that follows from it.

Two streams. ``StepRecord`` is releasable: public configuration and outputs that were private
already. What an upload carries beside it (``Upload.at``, ``Upload.sealed``) is as sensitive as
the data and goes to the sealed stream (R25); nothing in this module puts it into a digest,
a summary or an error text.

Steps of a log are numbered 0, 1, 2, … without a gap. A step that was run again after a resume
is a new step with its own number: its noise was fresh and it is charged again (R6).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

from service.core.errors import Conflict, InvalidInput
from service.core.events import MAX_NOISE_MULTIPLIER, MAX_STEPS, Sampler

Accepts = Literal["number", "whole", "sampler"]

SAMPLERS: Final[tuple[Sampler, ...]] = ("poisson", "balls_in_bins", "shuffle", "full_batch")
EPOCH_SAMPLERS: Final = frozenset[str]({"shuffle", "balls_in_bins"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """The releasable record of one noised release.

    Args:
        step: 0, 1, 2, …
        noise_multiplier: σ as used, ≥ 0; 0 is recorded as it happened and never private.
        max_grad_norm: C, > 0.
        sampler: how the batch was drawn.
        sampling_rate: q in (0, 1]; 1 for ``full_batch``, 1/updates_per_epoch for the samplers
            that work an epoch at a time.
        expected_batch_size: the public normaliser, > 0.
        epoch: 0, 1, 2, … for the samplers that work an epoch at a time.
        updates_per_epoch: M, for the same samplers.
        count_noise_stddev: σ_b of private adaptive clipping (R22), if it was used.
    """

    step: int
    noise_multiplier: float
    max_grad_norm: float
    sampler: Sampler
    sampling_rate: float
    expected_batch_size: float
    epoch: int | None = None
    updates_per_epoch: int | None = None
    count_noise_stddev: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """One uploaded line: the releasable record, and what goes to the sealed stream.

    Args:
        record: the releasable part.
        at: when the step happened, RFC 3339; sealed.
        sealed: realised batch size, noise norm and whatever else the trainer measured.
    """

    record: StepRecord
    at: str | None = None
    sealed: Mapping[str, Any] | None = None


class SequenceGap(Conflict):
    """The next record is not the next step; ``expected_step`` says which one is."""

    code = "SEQUENCE_GAP"

    def __init__(self, *, expected_step: int, found_step: int, line: int) -> None:
        super().__init__(
            f"Line {line} has step {found_step}, but step {expected_step} comes next.",
            fields={"expected_step": expected_step, "found_step": found_step, "line": line},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What of an upload is new: ``fresh`` extends the log, ``duplicates`` were there before."""

    fresh: tuple[Upload, ...]
    duplicates: int
    next_step: int


def parse(lines: Sequence[Any]) -> tuple[Upload, ...]:
    """Uploaded JSON values as records, the first bad line refused by name.

    Args:
        lines: one JSON value per line, in the order of the upload.

    Raises:
        InvalidInput: with a pointer such as ``/17/noise_multiplier`` (lines count from 0);
            codes WRONG_TYPE, UNKNOWN_FIELD, MISSING_FIELD, OUT_OF_RANGE, INCONSISTENT.
    """
    return tuple(_upload(line, pointer=f"/{i}") for i, line in enumerate(lines))


def accept(
    uploads: Sequence[Upload], *, next_step: int, stored: Sequence[StepRecord] = ()
) -> Accepted:
    """Split an upload into what is new and what was there already.

    Guarantees: the log stays contiguous; a step once recorded never changes.

    Args:
        uploads: parsed lines.
        next_step: the first step that the log does not have.
        stored: the log's records at the steps of the upload below ``next_step``, in order.

    Raises:
        SequenceGap: a step is left out, or comes twice within the upload.
        Conflict: STEP_ALREADY_RECORDED, a step was recorded with other values before.
    """
    duplicates = 0
    if uploads:
        duplicates = min(max(next_step - uploads[0].record.step, 0), len(uploads))
    expected = uploads[0].record.step if duplicates else next_step
    for line, upload in enumerate(uploads):
        found = upload.record.step
        if found != expected:
            raise SequenceGap(expected_step=expected, found_step=found, line=line)
        expected += 1
    known = {record.step: record for record in stored}
    for line, upload in enumerate(uploads[:duplicates]):
        if known.get(upload.record.step) != upload.record:
            raise Conflict(
                f"Line {line}: step {upload.record.step} was recorded with other values before.",
                code="STEP_ALREADY_RECORDED",
                fields={"step": upload.record.step, "line": line},
            )
    return Accepted(
        fresh=tuple(uploads[duplicates:]),
        duplicates=duplicates,
        next_step=max(expected, next_step),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """Step records as columns of one length: a million steps without a million objects.

    Args:
        step: int64.
        noise_multiplier, max_grad_norm, sampling_rate, expected_batch_size: float64.
        sampler: uint8, an index into ``SAMPLERS``.
        epoch: int64, −1 where there is none.
        updates_per_epoch: int64, 0 where there is none.
        count_noise_stddev: float64, 0 where there is none.
    """

    step: NDArray[np.int64]
    noise_multiplier: NDArray[np.float64]
    max_grad_norm: NDArray[np.float64]
    sampler: NDArray[np.uint8]
    sampling_rate: NDArray[np.float64]
    expected_batch_size: NDArray[np.float64]
    epoch: NDArray[np.int64]
    updates_per_epoch: NDArray[np.int64]
    count_noise_stddev: NDArray[np.float64]

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, f.name)) for f in fields(self)}
        assert len(lengths) == 1, lengths

    def __len__(self) -> int:
        return len(self.step)


def columns(records: Sequence[StepRecord]) -> Columns:
    """The columns of ``records``, in their order."""
    code = {name: i for i, name in enumerate(SAMPLERS)}
    return Columns(
        step=np.array([r.step for r in records], dtype=np.int64),
        noise_multiplier=np.array([r.noise_multiplier for r in records], dtype=np.float64),
        max_grad_norm=np.array([r.max_grad_norm for r in records], dtype=np.float64),
        sampler=np.array([code[r.sampler] for r in records], dtype=np.uint8),
        sampling_rate=np.array([r.sampling_rate for r in records], dtype=np.float64),
        expected_batch_size=np.array([r.expected_batch_size for r in records], dtype=np.float64),
        epoch=np.array([-1 if r.epoch is None else r.epoch for r in records], dtype=np.int64),
        updates_per_epoch=np.array([r.updates_per_epoch or 0 for r in records], dtype=np.int64),
        count_noise_stddev=np.array(
            [r.count_noise_stddev or 0.0 for r in records], dtype=np.float64
        ),
    )


def records(table: Columns) -> tuple[StepRecord, ...]:
    """The records of ``table``; ``columns`` gives equal columns back."""
    lists: list[list[Any]] = [getattr(table, f.name).tolist() for f in fields(table)]
    lines: Iterator[tuple[Any, ...]] = zip(*lists, strict=True)
    return tuple(
        StepRecord(
            step=step,
            noise_multiplier=noise,
            max_grad_norm=clip,
            sampler=SAMPLERS[int(sampler)],
            sampling_rate=rate,
            expected_batch_size=batch,
            epoch=None if epoch < 0 else epoch,
            updates_per_epoch=updates or None,
            count_noise_stddev=count_noise or None,
        )
        for step, noise, clip, sampler, rate, batch, epoch, updates, count_noise in lines
    )


def rows(table: Columns, chosen: NDArray[np.int64]) -> Columns:
    """The rows of ``table`` at the indices ``chosen``."""
    return Columns(**{f.name: getattr(table, f.name)[chosen] for f in fields(table)})


def is_contiguous(table: Columns, *, first_step: int = 0) -> bool:
    """True if the steps are first_step, first_step + 1, … without a gap or a repeat."""
    return bool(np.array_equal(table.step, first_step + np.arange(len(table))))


def times_go_forward(times: Sequence[str | None]) -> bool | None:
    """True if no time is before an earlier one; None if there are fewer than two.

    Args:
        times: RFC 3339 with an offset, in the order of the steps; None is left out.
    """
    known = [datetime.fromisoformat(at) for at in times if at is not None]
    if len(known) < 2:
        return None
    return all(a <= b for a, b in pairwise(known))


_REQUIRED: Final = ("step", "noise_multiplier", "max_grad_norm", "sampler", "expected_batch_size")
_KINDS: Final[Mapping[str, Accepts]] = {
    "step": "whole",
    "noise_multiplier": "number",
    "max_grad_norm": "number",
    "sampler": "sampler",
    "sampling_rate": "number",
    "expected_batch_size": "number",
    "epoch": "whole",
    "updates_per_epoch": "whole",
    "count_noise_stddev": "number",
}


def _upload(line: Any, *, pointer: str) -> Upload:
    if not isinstance(line, Mapping):
        raise InvalidInput("A step record is a JSON object.", pointer=pointer, code="WRONG_TYPE")
    data = dict(cast("Mapping[str, Any]", line))
    at, sealed = data.pop("at", None), data.pop("sealed", None)
    _check_time(at, pointer=f"{pointer}/at")
    _check_sealed(sealed, pointer=f"{pointer}/sealed")
    return Upload(record=_record(data, pointer=pointer), at=at, sealed=sealed)


def _record(data: Mapping[str, Any], *, pointer: str) -> StepRecord:
    for name in data:
        if name not in _KINDS:
            raise InvalidInput(
                "A step record has no such field.",
                pointer=f"{pointer}/{name}",
                code="UNKNOWN_FIELD",
            )
    given = {name: value for name, value in data.items() if value is not None}
    for name, value in given.items():
        _check_type(_KINDS[name], value, pointer=f"{pointer}/{name}")
    needed: list[str] = list(_REQUIRED)
    if given.get("sampler") in EPOCH_SAMPLERS:
        needed += ["epoch", "updates_per_epoch"]
    elif given.get("sampler") == "poisson":
        needed.append("sampling_rate")
    for name in needed:
        if name not in given:
            raise InvalidInput(
                "This field is required.", pointer=f"{pointer}/{name}", code="MISSING_FIELD"
            )
    _check_ranges(given, pointer=pointer)
    values: dict[str, Any] = {
        name: float(value) if _KINDS[name] == "number" else value for name, value in given.items()
    }
    sampler = cast("Sampler", values["sampler"])
    if sampler in EPOCH_SAMPLERS:
        values.setdefault("sampling_rate", 1 / values["updates_per_epoch"])
    values.setdefault("sampling_rate", 1.0)
    _check_consistent(sampler, values, pointer=pointer)
    return StepRecord(**values)


def _check_type(kind: Accepts, value: Any, *, pointer: str) -> None:
    match kind:
        case "whole":
            good = isinstance(value, int) and not isinstance(value, bool)
        case "number":
            good = isinstance(value, (int, float)) and not isinstance(value, bool)
        case "sampler":
            good = isinstance(value, str)
    if not good:
        expected = {"whole": "a whole number", "number": "a number", "sampler": "a string"}[kind]
        raise InvalidInput(f"This is {expected}.", pointer=pointer, code="WRONG_TYPE")


_LARGEST: Final = math.nextafter(math.inf, 0)
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "step": (0, MAX_STEPS - 1),
    "noise_multiplier": (0, MAX_NOISE_MULTIPLIER),
    "max_grad_norm": (math.ulp(0.0), _LARGEST),
    "sampling_rate": (math.ulp(0.0), 1),
    "expected_batch_size": (math.ulp(0.0), _LARGEST),
    "epoch": (0, MAX_STEPS - 1),
    "updates_per_epoch": (1, MAX_STEPS),
    "count_noise_stddev": (math.ulp(0.0), _LARGEST),
}


def _check_ranges(values: Mapping[str, Any], *, pointer: str) -> None:
    if values["sampler"] not in SAMPLERS:
        raise InvalidInput(
            f"sampler is one of {', '.join(SAMPLERS)}.", pointer=f"{pointer}/sampler"
        )
    for name, (low, high) in _RANGES.items():
        if name in values and not low <= values[name] <= high:
            raise InvalidInput(f"{name} lies in [{low:g}, {high:g}].", pointer=f"{pointer}/{name}")


def _check_consistent(sampler: Sampler, values: Mapping[str, Any], *, pointer: str) -> None:
    # Trainers count epochs under any sampler, but only here M steps share one allocation.
    if sampler not in EPOCH_SAMPLERS and "updates_per_epoch" in values:
        raise InvalidInput(
            f"{sampler} draws each step alone: it has no updates_per_epoch.",
            pointer=f"{pointer}/updates_per_epoch",
            code="INCONSISTENT",
        )
    if sampler == "full_batch" and values["sampling_rate"] < 1:
        raise InvalidInput(
            "full_batch uses every record in every step: sampling_rate is 1.",
            pointer=f"{pointer}/sampling_rate",
            code="INCONSISTENT",
        )


def _check_time(at: Any, *, pointer: str) -> None:
    if at is None:
        return
    if not isinstance(at, str):
        raise InvalidInput("A time is an RFC 3339 string.", pointer=pointer, code="WRONG_TYPE")
    try:
        good = datetime.fromisoformat(at).tzinfo is not None
    except ValueError:
        good = False
    if not good:
        raise InvalidInput("A time is RFC 3339 with its offset from UTC.", pointer=pointer)


def _check_sealed(sealed: Any, *, pointer: str) -> None:
    if sealed is None:
        return
    if not isinstance(sealed, Mapping):
        raise InvalidInput("sealed is a JSON object.", pointer=pointer, code="WRONG_TYPE")
    for name, value in cast("Mapping[str, Any]", sealed).items():
        measured = isinstance(value, (int, float)) and not isinstance(value, bool)
        if measured and not -_LARGEST <= value <= _LARGEST:
            raise InvalidInput("A finite number.", pointer=f"{pointer}/{name}")
        if name in _MEASURES and (not measured or value < 0):
            raise InvalidInput("A number from 0 on.", pointer=f"{pointer}/{name}")


# What the statistical checks read; anything else is kept, and not examined.
_MEASURES: Final = ("realized_batch_size", "noise_norm", "dimension")
