"""Chunks of the noise log as stored objects: Parquet for everybody, sealed Parquet for auditors.

The releasable object holds the fields of ``StepRecord`` and nothing else: a field is public
because it is named here, so a trainer that sends something new sends it to nobody. Times and
all that a trainer measured go to the sealed object (R25).
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from service.core import chunks
from service.core.noise_log import StepRecord, Upload
from service.objects import ObjectStore
from service.sealing import Sealer

_SCHEMA: Final = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("noise_multiplier", pa.float64(), nullable=False),
        pa.field("max_grad_norm", pa.float64(), nullable=False),
        pa.field("sampler", pa.string(), nullable=False),
        pa.field("sampling_rate", pa.float64(), nullable=False),
        pa.field("expected_batch_size", pa.float64(), nullable=False),
        pa.field("epoch", pa.int64()),
        pa.field("updates_per_epoch", pa.int64()),
        pa.field("count_noise_stddev", pa.float64()),
    ]
)
_DICTIONARY: Final = [name for name in _SCHEMA.names if name not in ("step", "epoch")]
_DELTA: Final = {"step": "DELTA_BINARY_PACKED", "epoch": "DELTA_BINARY_PACKED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChunk:
    """What the database keeps of a chunk: its range, its objects, its runs of equal steps."""

    first_step: int
    end_step: int
    released_object: str
    sealed_object: str | None
    summary: Sequence[Mapping[str, Any]]


def store(
    uploads: Sequence[Upload], *, job_id: str, objects: ObjectStore, sealer: Sealer
) -> StoredChunk:
    """Put the two objects of consecutive records into the store, durably.

    Args:
        uploads: at least one record, contiguous.
        job_id: the job whose log this is; the sealed object opens for it alone.
        objects: where to.
        sealer: encrypts the sealed stream.

    Raises:
        OSError: the store did not take them; the records count as not stored.
    """
    chunk = chunks.seal([u.record for u in uploads], previous=None)
    released = objects.put(_released(uploads))
    hidden = _hidden(uploads)
    sealed = None
    if hidden is not None:
        place = _place(job_id, chunk.first_step)
        sealed = objects.put(sealer.seal(_parquet(hidden), place=place))
    return StoredChunk(
        first_step=chunk.first_step,
        end_step=chunk.end_step,
        released_object=released,
        sealed_object=sealed,
        summary=chunks.leaf(chunk)["summary"],
    )


def records_of(objects: ObjectStore, digest: str) -> tuple[StepRecord, ...]:
    """The releasable records of one chunk, checked against its digest."""
    table = pq.read_table(io.BytesIO(objects.get(digest)))
    return tuple(StepRecord(**row) for row in table.to_pylist())


def lines(objects: ObjectStore, digests: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """The releasable records of a log as JSON objects, absent fields left out."""
    for digest in digests:
        for record in records_of(objects, digest):
            yield {name: value for name, value in asdict(record).items() if value is not None}


def sealed_lines(
    objects: ObjectStore, digest: str, *, job_id: str, first_step: int, sealer: Sealer
) -> list[dict[str, Any]]:
    """The sealed part of one chunk, a row for each of its steps."""
    data = sealer.open(objects.get(digest), place=_place(job_id, first_step))
    return pq.read_table(io.BytesIO(data)).to_pylist()


def joined(objects: ObjectStore, digests: Iterable[str]) -> bytes:
    """All releasable chunks as one Parquet file, a row group for each."""
    sink = io.BytesIO()
    with _writer(sink, _SCHEMA) as writer:
        for digest in digests:
            writer.write_table(pq.read_table(io.BytesIO(objects.get(digest)), schema=_SCHEMA))
    return sink.getvalue()


def _released(uploads: Sequence[Upload]) -> bytes:
    rows = [asdict(u.record) for u in uploads]
    return _parquet(pa.Table.from_pylist(rows, schema=_SCHEMA))


def _hidden(uploads: Sequence[Upload]) -> pa.Table | None:
    if all(u.at is None and not u.sealed for u in uploads):
        return None
    rows = [{"step": u.record.step, "at": u.at, "sealed": dict(u.sealed or {})} for u in uploads]
    names = sorted({name for row in rows for name in row["sealed"]})
    fields: dict[str, list[Any]] = {
        "step": [row["step"] for row in rows],
        "at": [row["at"] for row in rows],
    }
    fields |= {f"sealed.{name}": [row["sealed"].get(name) for row in rows] for name in names}
    try:
        return pa.table(fields)
    except pa.ArrowException as error:  # one field, two types
        raise OSError("the sealed part of a chunk has no columns") from error


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with _writer(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _writer(sink: io.BytesIO, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        use_dictionary=[n for n in _DICTIONARY if n in schema.names],  # pyright: ignore[reportArgumentType] - its stub is too narrow
        column_encoding={name: way for name, way in _DELTA.items() if name in schema.names},
        store_schema=False,
    )


def _place(job_id: str, first_step: int) -> str:
    return f"{job_id}/{first_step}"
