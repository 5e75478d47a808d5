"""Lists as answers: ``?limit=&after=``."""

import json
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Query, Response
from sqlalchemy import Select

from service.api.deps import Caller
from service.db.tables import Owned
from service.operations.owned import page_of
from service.schemas.base import Wire

T = TypeVar("T", bound=Owned)

After = Annotated[str | None, Query(description="next_cursor of the page before.")]


def answer_list(
    caller: Caller,
    query: Select[T],
    table: type[T],
    shape: Callable[[T], Wire],
    limit: int,
    after: str | None,
) -> Response:
    """One page of ``query``, newest first."""
    with caller.parts.database.read() as session:
        page = page_of(session, query, table, limit=limit, after=after)
        data = [shape(row).model_dump(mode="json") for row in page.rows]
    body = {
        "object": "list",
        "data": data,
        "has_more": page.has_more,
        "next_cursor": page.next_cursor,
    }
    return Response(json.dumps(body, allow_nan=False), media_type="application/json")
