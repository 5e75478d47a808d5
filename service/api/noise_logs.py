"""Noise logs as answers: the releasable one for its readers, the sealed one for auditors."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from fastapi import Response
from fastapi.responses import StreamingResponse

from service import log_chunks
from service.api.deps import Caller
from service.api.media_types import NDJSON, PARQUET, chosen
from service.core import replay
from service.db import tables
from service.operations import run_logs, sealed_reads

_BLOCK_LINES: Final = 1000


def answer_noise_log(
    caller: Caller,
    digests: Sequence[str],
    *,
    tail: Iterable[replay.Run] = (),
    accept: str,
) -> Response:
    """The releasable records, streamed line by line, or as one Parquet file."""
    objects = caller.parts.objects
    rest = replay.expanded(tail)
    if chosen(accept, [NDJSON, PARQUET]) == PARQUET:
        return Response(log_chunks.joined(objects, digests, tail=rest), media_type=PARQUET)
    return StreamingResponse(
        _ndjson(log_chunks.lines(objects, digests, tail=rest)), media_type=NDJSON
    )


def answer_sealed_log(
    caller: Caller, *, subject: type[tables.Job] | type[tables.Run], subject_id: str
) -> Response:
    """The sealed stream, for ``audit:read``; the reading is on record before the first byte."""
    with caller.parts.database.write() as session:
        sealed_reads.record_read(
            session,
            caller.principal,
            subject=subject,
            subject_id=subject_id,
            purpose="sealed_log",
        )
    parts = caller.read(lambda session: run_logs.sealed_parts(session, subject_id))
    lines = log_chunks.sealed_log(
        caller.parts.objects, parts, subject_id=subject_id, sealer=caller.parts.sealer
    )
    return StreamingResponse(
        _ndjson(lines), media_type=NDJSON, headers={"Cache-Control": "no-store"}
    )


def _ndjson(records: Iterator[Any]) -> Iterator[bytes]:
    """Lines in blocks: a hand-over between threads for every line would cost the most."""
    while block := list(islice(records, _BLOCK_LINES)):
        yield "".join(f"{json.dumps(line, allow_nan=False)}\n" for line in block).encode()
