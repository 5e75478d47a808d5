"""Lists: one shape for all of them."""

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import Field

from service.schemas.base import Wire

T = TypeVar("T", bound=Wire)

Limit = Annotated[int, Field(ge=1, le=100, description="Rows a page.")]


class ListOf(Wire, Generic[T]):
    """A page of a list, newest first; ``next_cursor`` is what ``after`` takes."""

    object: Literal["list"] = "list"
    data: list[T]
    has_more: bool
    next_cursor: str | None
