"""What comes in more than one form, and which one ``Accept`` asks for."""

from typing import Annotated, Final

from fastapi import Header

from service.api.problems import BadRequest

NDJSON: Final = "application/x-ndjson"
PARQUET: Final = "application/vnd.apache.parquet"

Accept = Annotated[str, Header(description="The media type wanted.")]


def chosen(accept: str, offered: list[str]) -> str:
    """The first type of ``Accept`` that is offered; the first offered for a wildcard.

    Raises:
        BadRequest: 406, none of them is offered.
    """
    for part in accept.split(","):
        wanted = part.partition(";")[0].strip().lower()
        for have in offered:
            if wanted in (have, "*/*", have.partition("/")[0] + "/*"):
                return have
    raise BadRequest(406, code="NOT_ACCEPTABLE", detail=f"This comes as {' or '.join(offered)}.")
