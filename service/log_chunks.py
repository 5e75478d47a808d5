"""Chunks of the noise log as stored objects: Parquet for everybody, sealed Parquet for auditors.

The releasable object holds the fields of ``StepRecord`` and nothing else: a field is public
because it is named here, so a trainer that sends something new sends it to nobody. Times and
all that a trainer measured go to the sealed object (R25). A log belongs to its subject: a
training job, or a run that trains elsewhere. Records of a run that do not fill a chunk yet are
its tail; the sealed part of the tail is a blob of its own, encrypted all the same.
"""

import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
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
#: A chunk with more names than this keeps its measures as one column of JSON.
_MAX_SEALED_COLUMNS: Final = 64
_SAFE_INTEGER: Final = 2**53
_PLAIN: Final = "sealed."
_AS_JSON: Final = "json."
_ALL_AS_JSON: Final = "all"
_DELTA: Final = {"step": "DELTA_BINARY_PACKED", "epoch": "DELTA_BINARY_PACKED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChunk:
    """What the database keeps of a chunk: its range, its objects, its runs of equal steps."""

    first_step: int
    end_step: int
    released_object: str
    sealed_object: str | None
    summary: Sequence[Mapping[str, Any]]

    def link_after(self, previous: str | None) -> str:
        """The chunk's link in a chain whose newest link is ``previous``."""
        return chunks.seal(chunks.runs_of(self.summary), previous=previous).link


def store(
    uploads: Sequence[Upload], *, subject_id: str, objects: ObjectStore, sealer: Sealer
) -> StoredChunk:
    """Put the two objects of consecutive records into the store, durably.

    Args:
        uploads: at least one record, contiguous.
        subject_id: the job or run whose log this is; the sealed object opens for it alone.
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
        place = _place(subject_id, chunk.first_step)
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


def lines(
    objects: ObjectStore, digests: Iterable[str], *, tail: Iterable[StepRecord] = ()
) -> Iterator[Mapping[str, Any]]:
    """The releasable records of a log as JSON objects, absent fields left out."""
    stored = chain.from_iterable(records_of(objects, digest) for digest in digests)
    for record in chain(stored, tail):
        fields = ((name, getattr(record, name)) for name in _SCHEMA.names)
        yield {name: value for name, value in fields if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedPart:
    """Where the sealed part of some consecutive steps is: an object, or a blob of the tail.

    Args:
        first_step: the first of the steps.
        end_step: the step after the last.
        object: the sealed object of a chunk.
        blob: the sealed part of a batch; None beside ``object``.
    """

    first_step: int
    end_step: int
    object: str | None
    blob: bytes | None = None


def sealed_log(
    objects: ObjectStore, parts: Iterable[SealedPart], *, subject_id: str, sealer: Sealer
) -> Iterator[Mapping[str, Any]]:
    """The sealed stream as JSON objects: step, ``at`` and ``sealed``, as they were uploaded."""
    for part in parts:
        if part.object is not None:
            rows = sealed_lines(
                objects,
                part.object,
                subject_id=subject_id,
                first_step=part.first_step,
                sealer=sealer,
            )
        elif part.blob is not None:
            rows = _opened(part, subject_id=subject_id, sealer=sealer)
        else:
            continue
        for row in rows:
            measures = {
                name.removeprefix(_PLAIN): value
                for name, value in row.items()
                if name.startswith(_PLAIN) and value is not None
            }
            yield {"step": row["step"], "at": row["at"], "sealed": measures}


def sealed_lines(
    objects: ObjectStore, digest: str, *, subject_id: str, first_step: int, sealer: Sealer
) -> list[dict[str, Any]]:
    """The sealed part of one chunk, a row for each of its steps."""
    data = sealer.open(objects.get(digest), place=_place(subject_id, first_step))
    return [_decoded(row) for row in pq.read_table(io.BytesIO(data)).to_pylist()]


def hide(uploads: Sequence[Upload], *, subject_id: str, sealer: Sealer) -> bytes | None:
    """The sealed part of records that wait for their chunk, encrypted; None if there is none."""
    if _nothing_hidden(uploads):
        return None
    data = json.dumps([[u.at, u.sealed] for u in uploads]).encode()
    place = _tail_place(subject_id, uploads[0].record.step, uploads[-1].record.step + 1)
    return sealer.seal(zlib.compress(data), place=place)


def unhide(
    blob: bytes | None,
    records: Sequence[StepRecord],
    *,
    subject_id: str,
    sealer: Sealer,
) -> tuple[Upload, ...]:
    """The uploads whose sealed part ``hide`` made ``blob`` of, and whose records these are.

    Raises:
        OSError: the blob is damaged, or another one.
    """
    if blob is None:
        return tuple(Upload(record=record) for record in records)
    place = _tail_place(subject_id, records[0].step, records[-1].step + 1)
    parts = json.loads(zlib.decompress(sealer.open(blob, place=place)))
    return tuple(
        Upload(record=record, at=at, sealed=sealed)
        for record, (at, sealed) in zip(records, parts, strict=True)
    )


def joined(
    objects: ObjectStore, digests: Iterable[str], *, tail: Iterable[StepRecord] = ()
) -> bytes:
    """All releasable chunks as one Parquet file, a row group for each, then the tail."""
    sink = io.BytesIO()
    with _writer(sink, _SCHEMA) as writer:
        for digest in digests:
            writer.write_table(pq.read_table(io.BytesIO(objects.get(digest)), schema=_SCHEMA))
        rest = _table(tail)
        if rest.num_rows:
            writer.write_table(rest)
    return sink.getvalue()


def _released(uploads: Sequence[Upload]) -> bytes:
    return _parquet(_table(u.record for u in uploads))


def _table(records: Iterable[StepRecord]) -> pa.Table:
    rows = list(records)
    found = {name: [getattr(row, name) for row in rows] for name in _SCHEMA.names}
    return pa.table(found, schema=_SCHEMA)


def _nothing_hidden(uploads: Sequence[Upload]) -> bool:
    return all(u.at is None and not u.sealed for u in uploads)


def _hidden(uploads: Sequence[Upload]) -> pa.Table | None:
    """The sealed columns; whatever JSON a trainer measured has a place in them.

    What is acknowledged must be storable later, when the chunk is full: a field whose values
    are of no one plain type is kept as JSON, and so are all fields where there are too many.
    """
    if _nothing_hidden(uploads):
        return None
    measures = [dict(u.sealed or {}) for u in uploads]
    found: dict[str, pa.Array] = {
        "step": pa.array([u.record.step for u in uploads], pa.int64()),
        "at": pa.array([u.at for u in uploads], pa.string()),
    }
    names = sorted({name for one in measures for name in one})
    if len(names) > _MAX_SEALED_COLUMNS:
        found[_ALL_AS_JSON] = _json_column(measures)
        return pa.table(found)
    for name in names:
        values = [one.get(name) for one in measures]
        kind = _plain_type(values)
        if kind is None:
            found[_AS_JSON + name] = _json_column(values)
        else:
            found[_PLAIN + name] = pa.array(values, kind)
    return pa.table(found)


def _plain_type(values: Sequence[Any]) -> pa.DataType | None:
    kinds = {type(value) for value in values if value is not None}
    whole = [value for value in values if type(value) is int]
    if any(abs(value) > _SAFE_INTEGER for value in whole):
        return None
    if kinds <= {int}:
        return pa.int64()
    if kinds <= {int, float}:
        return pa.float64()
    if kinds == {bool}:
        return pa.bool_()
    return pa.string() if kinds == {str} else None


def _json_column(values: Sequence[Any]) -> pa.Array:
    texts = [None if value is None else json.dumps(value) for value in values]
    return pa.array(texts, pa.string())


def _decoded(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the fields that were kept as JSON in their own form."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if name == _ALL_AS_JSON:
            found |= {_PLAIN + key: one for key, one in json.loads(value).items()}
        elif name.startswith(_AS_JSON):
            found[_PLAIN + name.removeprefix(_AS_JSON)] = (
                None if value is None else json.loads(value)
            )
        else:
            found[name] = value
    return found


def _opened(part: SealedPart, *, subject_id: str, sealer: Sealer) -> list[dict[str, Any]]:
    assert part.blob is not None
    place = _tail_place(subject_id, part.first_step, part.end_step)
    parts = json.loads(zlib.decompress(sealer.open(part.blob, place=place)))
    return [
        {"step": part.first_step + i, "at": at}
        | {_PLAIN + name: value for name, value in (sealed or {}).items()}
        for i, (at, sealed) in enumerate(parts)
    ]


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


def _place(subject_id: str, first_step: int) -> str:
    return f"{subject_id}/{first_step}"


def _tail_place(subject_id: str, first_step: int, end_step: int) -> str:
    return f"{subject_id}/{first_step}-{end_step}"
