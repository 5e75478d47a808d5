"""The one start of every query on tenant data: a foreign tenant's row does not exist."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from service.core.credentials import Principal
from service.core.errors import InvalidInput, NotFound
from service.db.ids import is_id
from service.db.tables import Owned

T = TypeVar("T", bound=Owned)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """One page of a list, newest first; ``next_cursor`` is what ``after`` takes."""

    rows: Sequence[R]
    next_cursor: str | None

    @property
    def has_more(self) -> bool:
        """True if there is a next page."""
        return self.next_cursor is not None


def owned(principal: Principal, table: type[T]) -> Select[T]:
    """All rows of ``table`` that belong to the caller's tenant."""
    return select(table).where(table.tenant_id == principal.tenant_id)


def get_owned(
    session: Session, principal: Principal, table: type[T], row_id: str, *, lock: bool = False
) -> T:
    """The caller's row with this id.

    Args:
        lock: hold the row until the end of the transaction, and read it afresh.

    Raises:
        NotFound: no such row, or another tenant's.
    """
    query = owned(principal, table).where(table.id == row_id)
    if lock:
        query = query.with_for_update(of=table).execution_options(populate_existing=True)
    row = session.execute(query).unique().scalar_one_or_none() if is_id(row_id) else None
    if row is None:
        raise NotFound(f"There is no {row_id!r} here.")
    return row


def page_of(
    session: Session, query: Select[T], table: type[T], *, limit: int, after: str | None
) -> Page[T]:
    """The ``limit`` newest rows of ``query`` that are older than the row ``after``.

    Raises:
        InvalidInput: ``after`` is not a cursor.
    """
    if after is not None:
        if not is_id(after):
            raise InvalidInput("after is the next_cursor of a list.", pointer="/after")
        query = query.where(table.id < after)
    newest = query.order_by(table.id.desc()).limit(limit + 1)
    found = session.execute(newest).unique().scalars().all()
    rows = found[:limit]
    return Page(rows, rows[-1].id if len(found) > limit else None)
