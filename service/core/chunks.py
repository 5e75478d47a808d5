"""Sealed chunks of a noise log: canonical bytes, digests, and the chain that orders them.

A chunk's digest covers the canonical bytes of its releasable records and nothing else: they
are public, so a plain hash hides nothing that must be hidden (R25). Each chunk's ``link``
covers the link before it, so that a chunk cannot be changed, dropped, repeated or moved
without changing the head.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service.core.canonical import canonical, number
from service.core.noise_log import Columns, StepRecord, columns
from service.core.replay import Run, runs

CHUNK_STEPS: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The leaf of one chunk.

    Args:
        first_step: the first step in it.
        end_step: the step after the last.
        sha256: hex digest of the canonical bytes of its records.
        summary: its runs of equal records: enough to replay it.
        previous: the link of the chunk before it; None for the first.
    """

    first_step: int
    end_step: int
    sha256: str
    summary: tuple[Run, ...]
    previous: str | None

    @property
    def link(self) -> str:
        """Hex digest of the leaf: the head of the log up to here."""
        return hashlib.sha256(canonical(leaf(self))).hexdigest()


def seal(log: Columns | Sequence[StepRecord] | Sequence[Run], *, previous: str | None) -> Chunk:
    """The chunk of some consecutive records.

    Args:
        log: at least one record, or their runs, merged.
        previous: the link of the chunk before it, None if it is the first.
    """
    summary = _summary(log)
    assert summary, "a chunk holds at least one record"
    return Chunk(
        first_step=summary[0].first_step,
        end_step=summary[-1].end_step,
        sha256=hashlib.sha256(canonical_records(summary)).hexdigest(),
        summary=summary,
        previous=previous,
    )


def leaf(chunk: Chunk) -> dict[str, Any]:
    """The JSON of a chunk's leaf; the shell adds the id of the job."""
    return {
        "first_step": chunk.first_step,
        "end_step": chunk.end_step,
        "sha256": chunk.sha256,
        "previous": chunk.previous,
        "summary": [{"steps": run.steps} | _fields(run.record) for run in chunk.summary],
    }


def parameters(found: Sequence[Run]) -> dict[str, Any]:
    """A few numbers about a chunk, of one size however often its parameters change.

    They are for people: what binds the records is their digest.
    """
    records = [run.record for run in found]
    noise = [record.noise_multiplier for record in records]
    rates = [record.sampling_rate for record in records]
    return {
        "runs": len(found),
        "samplers": sorted({record.sampler for record in records}),
        "noise_multiplier": {"min": min(noise), "max": max(noise)},
        "sampling_rate": {"min": min(rates), "max": max(rates)},
    }


def runs_of(summary: Sequence[Mapping[str, Any]]) -> tuple[Run, ...]:
    """The runs of equal records of a stored leaf: what ``leaf`` wrote as its summary."""
    found: list[Run] = []
    for entry in summary:
        record = StepRecord(**{name: value for name, value in entry.items() if name != "steps"})
        found.append(Run(first_step=record.step, steps=entry["steps"], record=record))
    return tuple(found)


def canonical_records(log: Columns | Sequence[StepRecord] | Sequence[Run]) -> bytes:
    """One line of RFC 8785 JSON per record, each ended by a line feed: what is hashed."""
    return b"".join(_lines(run) for run in _summary(log))


def _summary(log: Columns | Sequence[StepRecord] | Sequence[Run]) -> tuple[Run, ...]:
    if isinstance(log, Columns):
        return runs(log)
    if all(isinstance(item, Run) for item in log):
        return tuple(item for item in log if isinstance(item, Run))
    return runs(columns([item for item in log if isinstance(item, StepRecord)]))


def _fields(record: StepRecord) -> dict[str, Any]:
    """The record as the wire shows it, absent fields left out."""
    return {name: value for name in _NAMES if (value := getattr(record, name)) is not None}


_NAMES: Final = (
    "count_noise_stddev",
    "epoch",
    "expected_batch_size",
    "max_grad_norm",
    "noise_multiplier",
    "sampler",
    "sampling_rate",
    "step",
    "updates_per_epoch",
)


def _lines(run: Run) -> bytes:
    """The lines of a run: only the step and the epoch change from one to the next."""
    parts: list[str] = []
    for name, value in _fields(run.record).items():
        changing = name == "step" or (name == "epoch" and run.record.updates_per_epoch)
        parts.append(f'"{name}":%({name})d' if changing else f'"{name}":{_plain(value)}')
    template = "{" + ",".join(parts) + "}\n"
    return "".join(template % numbers for numbers in _numbers(run)).encode()


def _plain(value: str | float) -> str:
    return f'"{value}"' if isinstance(value, str) else number(float(value))


def _numbers(run: Run) -> Iterator[Mapping[str, int]]:
    size, epoch = run.record.updates_per_epoch, run.record.epoch
    if size is None or epoch is None:
        for step in range(run.first_step, run.end_step):
            yield {"step": step}
        return
    drift = epoch - run.first_step // size
    for step in range(run.first_step, run.end_step):
        yield {"step": step, "epoch": step // size + drift}
