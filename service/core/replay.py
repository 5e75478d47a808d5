"""Replay: from the records of a log to the event that truly ran, and how it departs from a plan.

``replay`` is what a claim is charged for: an epoch that has begun counts whole (R12), and an
epoch with several noise multipliers counts at the smallest. ``certain_part`` is the part of
it that is known exactly: a lower bound may be computed from that part alone, because leaving
releases out is post-processing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

from service.core.events import (
    MAX_PARTS,
    MAX_SEGMENTS,
    NOTHING,
    Composed,
    EpochDpSgd,
    Event,
    Repeated,
    Sampler,
    Segment,
    StepwiseDpSgd,
)
from service.core.noise_log import EPOCH_SAMPLERS, Columns, StepRecord, columns, records, rows

Remainder = Literal["dropped", "kept"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """``steps`` consecutive records that differ in their step (and epoch) alone.

    Args:
        first_step: the step of the first record.
        steps: how many.
        record: the first record.
    """

    first_step: int
    steps: int
    record: StepRecord

    @property
    def end_step(self) -> int:
        """The step after the last."""
        return self.first_step + self.steps


def runs(log: Columns | Sequence[StepRecord]) -> tuple[Run, ...]:
    """The shortest list of runs with the same records: the parameter summary of a log.

    Guarantees: exact; one record that differs makes a run of its own. Steps must follow each
    other within a run; an epoch must be the step's own number over M, up to a constant.
    """
    table = log if isinstance(log, Columns) else columns(log)
    if not len(table):
        return ()
    starts = np.flatnonzero(_changes(table))
    lengths = np.diff(np.append(starts, len(table))).tolist()
    return tuple(
        Run(first_step=record.step, steps=steps, record=record)
        for record, steps in zip(records(rows(table, starts)), lengths, strict=True)
    )


def merged(parts: Iterable[Run]) -> tuple[Run, ...]:
    """The runs of a log whose runs were found piece by piece: however it was cut, the same.

    Guarantees: ``merged`` of the runs of consecutive pieces equals ``runs`` of the whole.
    """
    found: list[Run] = []
    for part in parts:
        last = found[-1] if found else None
        if (
            last is not None
            and last.end_step == part.first_step
            and _record_at(last, part.first_step) == part.record
        ):
            found[-1] = replace(last, steps=last.steps + part.steps)
        else:
            found.append(part)
    return tuple(found)


def between(parts: Iterable[Run], *, first_step: int, end_step: int) -> tuple[Run, ...]:
    """What of the runs lies in the steps from ``first_step`` to before ``end_step``."""
    found: list[Run] = []
    for part in parts:
        begin, end = max(part.first_step, first_step), min(part.end_step, end_step)
        if begin < end:
            found.append(Run(first_step=begin, steps=end - begin, record=_record_at(part, begin)))
    return tuple(found)


def expanded(parts: Iterable[Run]) -> Iterator[StepRecord]:
    """The records of the runs, one for each step."""
    for part in parts:
        for step in range(part.first_step, part.end_step):
            yield _record_at(part, step)


def _record_at(run: Run, step: int) -> StepRecord:
    epoch, size = run.record.epoch, run.record.updates_per_epoch
    if epoch is not None and size is not None:
        epoch += step // size - run.first_step // size
    return replace(run.record, step=step, epoch=epoch)


def replay(
    log: Columns | Sequence[StepRecord] | Sequence[Run], *, remainder: Remainder | None = None
) -> Event:
    """The event that a log shows, at what it costs.

    Guarantees: an upper event: its ε under any relation is at least that of the steps
    recorded. Exact for ``poisson`` and ``full_batch``. An epoch that has begun counts whole,
    at the smallest noise multiplier seen in it; more steps in an epoch than it has room for
    are further epochs. The order of the steps is kept.

    Args:
        log: records, their columns, or their runs.
        remainder: what a shuffled run was declared to do with the last, short batch; records
            do not show it, and None charges the worse of the two.

    Returns:
        ``NOTHING`` for no steps; one dp_sgd event, or several composed where the sampler,
        M or the count noise changes.
    """
    return _composed(
        part for group in _groups(_as_runs(log)) for part in _charged(group, remainder)
    )


def certain_part(
    log: Columns | Sequence[StepRecord] | Sequence[Run], *, remainder: Remainder | None = None
) -> Event:
    """The part of ``replay`` that happened exactly as it says: whole epochs at one σ.

    Guarantees: a lower event: its ε is at most that of the steps recorded.
    """
    return _composed(
        part for group in _groups(_as_runs(log)) for part in _certain(group, remainder)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Epochs:
    """The epochs of a group: parallel columns, in order of first appearance."""

    count: NDArray[np.int64]  # steps recorded with this label
    weakest: NDArray[np.float64]  # smallest σ
    strongest: NDArray[np.float64]  # largest σ


def _changes(table: Columns) -> NDArray[np.bool_]:
    changed = np.ones(len(table), dtype=np.bool_)
    epochal = table.updates_per_epoch > 0
    # Within an honest log epoch − ⌊step / M⌋ is constant, so that all epochs are one run.
    drift = np.where(
        epochal, table.epoch - table.step // np.maximum(table.updates_per_epoch, 1), table.epoch
    )
    same = np.diff(table.step) == 1
    for column in (
        table.noise_multiplier,
        table.max_grad_norm,
        table.sampler,
        table.sampling_rate,
        table.expected_batch_size,
        table.updates_per_epoch,
        table.count_noise_stddev,
        drift,
    ):
        same &= column[1:] == column[:-1]
    changed[1:] = ~same
    return changed


def _as_runs(log: Columns | Sequence[StepRecord] | Sequence[Run]) -> Sequence[Run]:
    if isinstance(log, Columns):
        return runs(log)
    if all(isinstance(item, Run) for item in log):
        return cast("Sequence[Run]", log)
    return runs(cast("Sequence[StepRecord]", log))


def _groups(items: Sequence[Run]) -> Iterator[list[Run]]:
    """Neighbouring runs that one dp_sgd event can hold."""
    group: list[Run] = []
    for item in items:
        if group and _kind(item.record) != _kind(group[-1].record):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def _kind(record: StepRecord) -> tuple[Sampler, int | None, float | None]:
    return record.sampler, record.updates_per_epoch, record.count_noise_stddev


def _charged(
    group: Sequence[Run], remainder: Remainder | None
) -> Iterator[StepwiseDpSgd | EpochDpSgd]:
    first = group[0].record
    if first.sampler not in EPOCH_SAMPLERS:
        yield from _stepwise(group)
        return
    assert first.updates_per_epoch is not None
    epochs = _epochs(group)
    begun = -(-epochs.count // first.updates_per_epoch)
    yield from _epochal(first, begun, epochs.weakest, remainder)


def _certain(
    group: Sequence[Run], remainder: Remainder | None
) -> Iterator[StepwiseDpSgd | EpochDpSgd]:
    first = group[0].record
    if first.sampler not in EPOCH_SAMPLERS:
        yield from _stepwise(group)
        return
    epochs = _epochs(group)
    whole = (epochs.count == first.updates_per_epoch) & (epochs.weakest == epochs.strongest)
    yield from _epochal(first, whole.astype(np.int64), epochs.weakest, remainder)


def _stepwise(group: Sequence[Run]) -> Iterator[StepwiseDpSgd]:
    first = group[0].record
    assert first.sampler in ("poisson", "full_batch")
    segments = _segments(group)
    for start in range(0, len(segments), MAX_SEGMENTS):
        yield StepwiseDpSgd(
            sampler=first.sampler,
            schedule=tuple(segments[start : start + MAX_SEGMENTS]),
            count_noise_stddev=first.count_noise_stddev,
        )


def _segments(group: Sequence[Run]) -> list[Segment]:
    """Segments of the runs, neighbours of equal (σ, q) joined whatever else differs."""
    lengths: list[tuple[float, float, int]] = []
    for run in group:
        noise, rate = run.record.noise_multiplier, run.record.sampling_rate
        if lengths and lengths[-1][:2] == (noise, rate):
            lengths[-1] = (noise, rate, lengths[-1][2] + run.steps)
        else:
            lengths.append((noise, rate, run.steps))
    return [
        Segment(steps=steps, noise_multiplier=noise, sampling_rate=rate)
        for noise, rate, steps in lengths
    ]


def _epochs(group: Sequence[Run]) -> _Epochs:
    size = group[0].record.updates_per_epoch
    assert size is not None
    labels: list[NDArray[np.int64]] = []
    counts: list[NDArray[np.int64]] = []
    noises: list[NDArray[np.float64]] = []
    for run in group:
        assert run.record.epoch is not None
        slots = np.arange(run.first_step // size, (run.end_step - 1) // size + 1)
        begins = np.maximum(slots * size, run.first_step)
        ends = np.minimum((slots + 1) * size, run.end_step)
        labels.append(slots + (run.record.epoch - run.first_step // size))
        counts.append(ends - begins)
        noises.append(np.full(len(slots), run.record.noise_multiplier))
    noise = np.concatenate(noises)
    found, first, where = np.unique(np.concatenate(labels), return_index=True, return_inverse=True)
    count = np.zeros(len(found), dtype=np.int64)
    weakest, strongest = np.full(len(found), np.inf), np.full(len(found), -np.inf)
    np.add.at(count, where, np.concatenate(counts))
    np.minimum.at(weakest, where, noise)
    np.maximum.at(strongest, where, noise)
    order = np.argsort(first)
    return _Epochs(count=count[order], weakest=weakest[order], strongest=strongest[order])


def _epochal(
    first: StepRecord,
    epochs: NDArray[np.int64],
    noise: NDArray[np.float64],
    remainder: Remainder | None,
) -> Iterator[EpochDpSgd]:
    assert first.sampler in ("shuffle", "balls_in_bins")
    assert first.updates_per_epoch is not None
    kept = epochs > 0
    epochs, noise = epochs[kept], noise[kept]
    if not len(epochs):
        return
    starts = np.flatnonzero(np.append(True, noise[1:] != noise[:-1]))
    for total, sigma in zip(np.add.reduceat(epochs, starts), noise[starts], strict=True):
        yield EpochDpSgd(
            sampler=first.sampler,
            updates_per_epoch=first.updates_per_epoch,
            epochs=int(total),
            noise_multiplier=float(sigma),
            remainder=remainder,
            count_noise_stddev=first.count_noise_stddev,
        )


def _composed(parts: Iterator[StepwiseDpSgd | EpochDpSgd]) -> Event:
    found: tuple[Event, ...] = tuple(parts)
    while len(found) > MAX_PARTS:
        found = tuple(
            Composed(parts=found[i : i + MAX_PARTS]) for i in range(0, len(found), MAX_PARTS)
        )
    if not found:
        return NOTHING
    return found[0] if len(found) == 1 else Composed(parts=found)


# --- a log against the mechanism it was meant to follow ------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """Where what ran is weaker than what was planned.

    Args:
        kind: ``sampler``, ``noise_multiplier``, ``sampling_rate``, ``updates_per_epoch``,
            ``count_noise_stddev`` or ``steps``.
        step: the first step at fault.
        detail: one sentence with both values.
    """

    kind: str
    step: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    steps: int
    sampler: Sampler
    noise_multiplier: float
    sampling_rate: float | None
    updates_per_epoch: int | None
    count_noise_stddev: float | None


def departure(ran: Event, *, planned: Event) -> Departure | None:
    """The first way in which ``ran`` is weaker than ``planned``, or None.

    Guarantees: None means that step by step the noise is at least, the sampling rate at most
    as planned, by the planned sampler, and that there are not more steps; fewer steps and
    stronger ones are no departure.

    Raises:
        ValueError: one of the two is not made of dp_sgd events alone.
    """
    left, right = _pieces(ran), _pieces(planned)
    step = 0
    while left:
        if not right:
            total = step + sum(p.steps for p in left)
            return Departure(
                kind="steps", step=step, detail=f"{total} steps ran, {step} were planned."
            )
        a, b = left[-1], right[-1]
        found = _weaker(a, b, step)
        if found is not None:
            return found
        common = min(a.steps, b.steps)
        _take(left, common)
        _take(right, common)
        step += common
    return None


def step_count(event: Event) -> int:
    """The noised releases of an event made of dp_sgd events alone.

    Raises:
        ValueError: there is something else in it.
    """
    return sum(p.steps for p in _pieces(event))


_MAX_PIECES: Final = 2_000_000


def _pieces(event: Event) -> list[_Piece]:
    """The pieces in reverse order: the end of the list is the next to run."""
    found: list[_Piece] = []
    stack = [event]
    while stack:
        item = stack.pop()
        match item:
            case StepwiseDpSgd():
                found += [
                    _Piece(
                        steps=s.steps,
                        sampler=item.sampler,
                        noise_multiplier=s.noise_multiplier,
                        sampling_rate=s.sampling_rate,
                        updates_per_epoch=None,
                        count_noise_stddev=item.count_noise_stddev,
                    )
                    for s in item.schedule
                ]
            case EpochDpSgd():
                found.append(
                    _Piece(
                        steps=item.steps,
                        sampler=item.sampler,
                        noise_multiplier=item.noise_multiplier,
                        sampling_rate=None,
                        updates_per_epoch=item.updates_per_epoch,
                        count_noise_stddev=item.count_noise_stddev,
                    )
                )
            case Composed():
                stack += reversed(item.parts)
            case Repeated() if item.times <= _MAX_PIECES:
                stack += [item.of] * item.times
            case _:
                raise ValueError(f"not made of DP-SGD steps alone: {type(item).__name__}")
        if len(found) + len(stack) > _MAX_PIECES:
            raise ValueError("too many pieces to compare")
    found.reverse()
    return found


def _take(pieces: list[_Piece], steps: int) -> None:
    last = pieces.pop()
    if last.steps > steps:
        pieces.append(
            _Piece(
                steps=last.steps - steps,
                sampler=last.sampler,
                noise_multiplier=last.noise_multiplier,
                sampling_rate=last.sampling_rate,
                updates_per_epoch=last.updates_per_epoch,
                count_noise_stddev=last.count_noise_stddev,
            )
        )


def _weaker(ran: _Piece, planned: _Piece, step: int) -> Departure | None:
    def found(kind: str, was: object, meant: object) -> Departure:
        return Departure(
            kind=kind,
            step=step,
            detail=f"From step {step} on, {kind} was {was}; {meant} was planned.",
        )

    if ran.sampler != planned.sampler:
        return found("sampler", ran.sampler, planned.sampler)
    if ran.noise_multiplier < planned.noise_multiplier:
        return found("noise_multiplier", ran.noise_multiplier, planned.noise_multiplier)
    if (ran.sampling_rate or 0) > (planned.sampling_rate or 0):
        return found("sampling_rate", ran.sampling_rate, planned.sampling_rate)
    if ran.updates_per_epoch != planned.updates_per_epoch:
        return found("updates_per_epoch", ran.updates_per_epoch, planned.updates_per_epoch)
    if (ran.count_noise_stddev or 0) < (planned.count_noise_stddev or 0):
        return found("count_noise_stddev", ran.count_noise_stddev, planned.count_noise_stddev)
    if ran.count_noise_stddev is not None and planned.count_noise_stddev is None:
        return found("count_noise_stddev", ran.count_noise_stddev, None)
    return None
