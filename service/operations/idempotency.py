"""One effect per ``Idempotency-Key``: the answer is stored in the effect's transaction.

Rows are kept for ever: a key that moved budget must never move it twice. Refusals roll back
and leave nothing, so the same key may be tried again after a refusal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import update
from sqlalchemy.orm import Session

from service.core.credentials import Principal
from service.core.errors import InvalidInput
from service.db.session import insert_unless_present
from service.db.tables import IdempotentAnswer


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer as it left."""

    status: int
    headers: Mapping[str, str]
    body: str


def claim(session: Session, principal: Principal, *, key: str, request_hash: str) -> Answer | None:
    """Take ``key`` for this request, or give the answer that an equal request got.

    A second request with the key waits for the first one's transaction.

    Raises:
        InvalidInput: IDEMPOTENCY_KEY_REUSED, the key belongs to another request.
    """
    fresh = insert_unless_present(
        session,
        IdempotentAnswer,
        tenant_id=principal.tenant_id,
        key=key,
        request_hash=request_hash,
        created_at=datetime.now(UTC),
    )
    if fresh:
        return None
    row = session.get_one(IdempotentAnswer, (principal.tenant_id, key))
    if row.request_hash != request_hash:
        raise InvalidInput(
            "This Idempotency-Key was used with another request.",
            pointer="",
            code="IDEMPOTENCY_KEY_REUSED",
        )
    assert row.status is not None, "an answer is stored with its key or not at all"
    return Answer(status=row.status, headers=row.headers or {}, body=row.body or "")


def store(session: Session, principal: Principal, *, key: str, answer: Answer) -> None:
    """Keep the answer beside the effect, in the same transaction."""
    session.execute(
        update(IdempotentAnswer)
        .where(IdempotentAnswer.tenant_id == principal.tenant_id, IdempotentAnswer.key == key)
        .values(status=answer.status, headers=dict(answer.headers), body=answer.body)
    )
