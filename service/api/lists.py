"""Lists as answers: ``?limit=&after=``."""

import json
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Query, Response
from sqlalchemy import Select

from service.api.deps import Caller
from service.db.tables import Owned
from service.operations.owned import Page, page_of
from service.schemas.base import Wire

T = TypeVar("T", bound=Owned)
R = TypeVar("R")

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
        return answer_rows(page_of(session, query, table, limit=limit, after=after), shape)


def answer_rows(page: Page[R], shape: Callable[[R], Wire]) -> Response:
    """A page of rows as an answer; call it while their session is open."""
    body = {
        "object": "list",
        "data": [shape(row).model_dump(mode="json") for row in page.rows],
        "has_more": page.has_more,
        "next_cursor": page.next_cursor,
    }
    return Response(json.dumps(body, allow_nan=False), media_type="application/json")
