"""Datasets: register one with its budget, rename it, look at what its budget has left."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from service.core.credentials import Principal
from service.core.datasets import BUILTIN_DATASETS
from service.core.errors import Conflict, InvalidInput
from service.core.ledger import AccountTerms
from service.db.ids import new_id
from service.db.session import insert_unless_present
from service.db.tables import Account, Dataset
from service.operations import log
from service.operations.owned import get_owned, owned


def create_dataset(
    session: Session,
    principal: Principal,
    *,
    name: str,
    privacy_unit: str,
    max_records_per_unit: int,
    record_count: int | None,
    record_count_is_public: bool,
    source: str | None,
    fingerprint: str | None,
    allowed_sources: Sequence[str],
    terms: AccountTerms,
) -> Dataset:
    """Register personal data and open its account.

    Raises:
        Conflict: DATASET_EXISTS, the tenant has registered the same records before; one set of
            records has one budget.
        InvalidInput: a source off the allow-list, or numbers that contradict a built-in.
    """
    count, known = _identity(
        source,
        record_count=record_count,
        fingerprint=fingerprint,
        records_per_unit=max_records_per_unit,
        allowed=allowed_sources,
    )
    now = datetime.now(UTC)
    dataset_id = new_id("ds")
    fresh = insert_unless_present(
        session,
        Dataset,
        id=dataset_id,
        tenant_id=principal.tenant_id,
        created_at=now,
        created_by=principal.key_id,
        version=1,
        name=name,
        privacy_unit=privacy_unit,
        max_records_per_unit=max_records_per_unit,
        record_count=count,
        record_count_is_public=record_count_is_public,
        source=source,
        fingerprint=known,
        updated_at=now,
    )
    if not fresh:
        _refuse_second(session, principal, fingerprint=known)
    _open_account(session, principal, dataset_id=dataset_id, terms=terms, now=now)
    session.flush()
    return get_owned(session, principal, Dataset, dataset_id)


def rename_dataset(
    session: Session, principal: Principal, *, dataset_id: str, name: str
) -> Dataset:
    """Change the one thing about a dataset that carries no promise."""
    row = get_owned(session, principal, Dataset, dataset_id, lock=True)
    row.name = name
    row.updated_at = datetime.now(UTC)
    row.version += 1
    return row


def _open_account(
    session: Session,
    principal: Principal,
    *,
    dataset_id: str,
    terms: AccountTerms,
    now: datetime,
) -> None:
    account = Account(
        id=new_id("blk"),
        tenant_id=principal.tenant_id,
        created_at=now,
        created_by=principal.key_id,
        version=1,
        dataset_id=dataset_id,
        epsilon=format(terms.epsilon, "f"),
        delta=format(terms.delta, "f"),
        neighboring=terms.neighboring,
        composition=terms.composition,
        orders=list(terms.orders),
        weights=[format(w, "f") for w in terms.weights],
        posted=[0] * terms.dimensions,
        pending=[0] * terms.dimensions,
        state="open",
        last_sequence=0,
    )
    session.add(account)
    _log_opening(session, account, terms=terms)


def _log_opening(session: Session, account: Account, *, terms: AccountTerms) -> None:
    """Leave a leaf about a new account: what it promises, for ever (R7)."""
    body = {
        "account_id": account.id,
        "dataset_id": account.dataset_id,
        "epsilon": account.epsilon,
        "delta": account.delta,
        "neighboring": terms.neighboring,
        "privacy_unit": terms.privacy_unit,
        "max_records_per_unit": terms.records_per_unit,
        "composition": terms.composition,
        "theorem": terms.theorem,
        "orders": list(terms.orders),
        "weights": account.weights,
        "created_by": account.created_by,
    }
    log.append(session, "account", body, tenant_id=account.tenant_id, subject_id=account.id)


def _identity(
    source: str | None,
    *,
    record_count: int | None,
    fingerprint: str | None,
    records_per_unit: int,
    allowed: Sequence[str],
) -> tuple[int, str | None]:
    """(record count, fingerprint): a built-in knows its own, other data is declared."""
    builtin = BUILTIN_DATASETS.get(source) if source is not None else None  # pyright: ignore[reportArgumentType,reportCallIssue]
    if builtin is not None:
        if record_count not in (None, builtin.record_count):
            raise InvalidInput(
                f"{source} has {builtin.record_count} private records.",
                pointer="/record_count",
                code="INCONSISTENT",
            )
        if fingerprint not in (None, builtin.fingerprint):
            raise InvalidInput(
                f"{source} has another fingerprint.", pointer="/fingerprint", code="INCONSISTENT"
            )
        if records_per_unit != 1:
            raise InvalidInput(
                f"Each record of {source} is a unit of its own.",
                pointer="/max_records_per_unit",
                code="INCONSISTENT",
            )
        return builtin.record_count, builtin.fingerprint
    if source is not None and not any(source.startswith(prefix) for prefix in allowed):
        built_in = ", ".join(BUILTIN_DATASETS)
        raise InvalidInput(
            f"A source is a built-in ({built_in}) or an address on the allow-list "
            "DPLEDGER_ALLOWED_SOURCES.",
            pointer="/source",
            code="URL_NOT_ALLOWED",
        )
    if record_count is None:
        raise InvalidInput(
            "State the number of records; only built-ins know theirs.",
            pointer="/record_count",
            code="MISSING_FIELD",
        )
    return record_count, fingerprint


def _refuse_second(session: Session, principal: Principal, *, fingerprint: str | None) -> None:
    first = (
        session.scalars(owned(principal, Dataset).where(Dataset.fingerprint == fingerprint))
        .unique()
        .one()
    )
    raise Conflict(
        f"These records are registered already, as {first.id}; they have one budget.",
        code="DATASET_EXISTS",
        fields={"dataset_id": first.id},
    )
