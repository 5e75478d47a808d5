"""Reading what is sealed: for ``audit:read`` alone, and only once the reading is on record."""

from typing import Literal

from sqlalchemy.orm import Session

from service.core.credentials import Principal
from service.db.ids import new_id
from service.db.session import database_now
from service.db.tables import Job, Run, SealedRead
from service.operations.evidence import AUDIT_SCOPE
from service.operations.owned import get_owned

Purpose = Literal["sealed_log", "compliance_check"]


def record_read(
    session: Session,
    principal: Principal,
    *,
    subject: type[Job] | type[Run],
    subject_id: str,
    purpose: Purpose,
) -> SealedRead:
    """Write down who is about to read which sealed log; nothing is read before it is durable.

    Raises:
        Forbidden: the key lacks ``audit:read``.
        NotFound: no such job or run.
    """
    principal.require(AUDIT_SCOPE)
    row = get_owned(session, principal, subject, subject_id)
    read = SealedRead(
        id=new_id("read"),
        tenant_id=principal.tenant_id,
        key_id=principal.key_id,
        subject_id=row.id,
        purpose=purpose,
        end_step=row.step if isinstance(row, Job) else row.next_step,
        created_at=database_now(session),
    )
    session.add(read)
    session.flush()
    return read
