"""Reading an upload of steps: strict NDJSON whose first bad line is named.

Nothing of a line's content goes into a problem: a line may hold what is sealed.
"""

from fastapi import Request

from service.api.media_types import NDJSON
from service.api.problems import BadRequest
from service.api.strict import parse_json
from service.core import noise_log
from service.core.errors import InvalidInput
from service.schemas.runs import MAX_RECORDS


async def read_lines(request: Request) -> bytes:
    """The body of a request that says it is NDJSON.

    Raises:
        BadRequest: 415, another content type.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != NDJSON:
        raise BadRequest(
            415,
            code="UNSUPPORTED_MEDIA_TYPE",
            detail=f"Got {given or 'no content type'}; send the header Content-Type: {NDJSON}.",
        )
    return await request.body()


def parse_steps(body: bytes) -> tuple[noise_log.Upload, ...]:
    """The records of an upload, one a line; the last line may end with a line feed or not.

    Raises:
        BadRequest: 413, more than 10,000 records; 400, a line is not strict JSON.
        InvalidInput: a line is no step record.
    """
    lines = body.removesuffix(b"\n").split(b"\n")
    if len(lines) > MAX_RECORDS:
        raise BadRequest(
            413,
            code="BODY_TOO_LARGE",
            detail=f"An upload has at most {MAX_RECORDS} records; this one has {len(lines)}.",
        )
    values = [_value(line, index) for index, line in enumerate(lines)]
    try:
        return noise_log.parse(values)
    except InvalidInput as error:
        line = error.pointer.split("/")[1]
        raise InvalidInput(
            f"Line {line} (the first is 0): {error.message}", pointer=error.pointer, code=error.code
        ) from error


def _value(line: bytes, index: int) -> object:
    try:
        return parse_json(line)
    except BadRequest as error:
        # The cause stays out: it may show a number or a name of the line.
        raise BadRequest(
            400,
            code=error.code,
            detail=f"Line {index} (the first is 0) is not a strict JSON object.",
            pointer=f"/{index}",
        ) from None
