"""Accounts: their terms and balances as the core sees them, and the one way to post.

An account row holds the running sums of its entries. ``post`` is the only function that
changes them, and it appends the entry that explains the change in the same breath.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.core import ledger
from service.core.credentials import Principal
from service.core.errors import InvalidInput
from service.core.events import Event, Neighboring, to_json
from service.db.ids import new_id
from service.db.tables import Account, Dataset, LedgerEntry
from service.operations import log
from service.operations.owned import Page, get_owned


def make_terms(
    *,
    epsilon: Decimal,
    delta: Decimal | None,
    neighboring: Neighboring,
    privacy_unit: str,
    records_per_unit: int,
    composition: ledger.Composition,
    planned: Event | None,
    orders: Sequence[float] | None,
    weights: Sequence[Decimal] | None,
) -> ledger.AccountTerms:
    """The terms of a new account: given orders, or those of a planned workload, or the default.

    Raises:
        InvalidInput: a missing or contradicting choice, with a pointer below ``/budget``.
    """
    if delta is None:
        if composition != "pure":
            raise InvalidInput(
                f"A {composition} budget needs delta.",
                pointer="/budget/delta",
                code="MISSING_FIELD",
            )
        delta = Decimal(0)
    chosen = [n for n, v in (("planned", planned), ("orders", orders)) if v is not None]
    if len(chosen) == 2 or (chosen and composition != "renyi") or (weights and not orders):  # noqa: PLR2004
        raise InvalidInput(
            "Give planned, or orders (with weights), or neither; both belong to renyi alone.",
            pointer=f"/budget/{chosen[0] if chosen else 'weights'}",
            code="INCONSISTENT",
        )
    if planned is not None:
        return ledger.planned_terms(
            planned,
            epsilon=epsilon,
            delta=delta,
            neighboring=neighboring,
            privacy_unit=privacy_unit,
            records_per_unit=records_per_unit,
        )
    if orders is not None:
        shares = weights or ledger.equal_weights(len(orders))
        return ledger.AccountTerms(
            epsilon=epsilon,
            delta=delta,
            neighboring=neighboring,
            privacy_unit=privacy_unit,
            records_per_unit=records_per_unit,
            composition=composition,
            orders=tuple(float(order) for order in orders),
            weights=tuple(shares),
        )
    return ledger.default_terms(
        epsilon=epsilon,
        delta=delta,
        neighboring=neighboring,
        privacy_unit=privacy_unit,
        records_per_unit=records_per_unit,
        composition=composition,
    )


def terms_of(account: Account) -> ledger.AccountTerms:
    """The terms that were fixed when the account was opened."""
    return ledger.AccountTerms(
        epsilon=Decimal(account.epsilon),
        delta=Decimal(account.delta),
        neighboring=cast("Neighboring", account.neighboring),
        privacy_unit=account.dataset.privacy_unit,
        composition=cast("ledger.Composition", account.composition),
        orders=tuple(account.orders),
        weights=tuple(Decimal(weight) for weight in account.weights),
        records_per_unit=account.dataset.max_records_per_unit,
    )


def balance_of(account: Account) -> ledger.Balance:
    """The running sums of the account's entries."""
    return ledger.Balance(posted=tuple(account.posted), pending=tuple(account.pending))


def account_of(session: Session, principal: Principal, *, dataset_id: str) -> Account:
    """The account that new work on the dataset is charged to.

    Raises:
        NotFound: no such dataset, or another tenant's.
    """
    return get_owned(session, principal, Dataset, dataset_id).accounts[-1]


def lock_accounts(
    session: Session, principal: Principal, *, dataset_ids: Sequence[str]
) -> list[Account]:
    """The accounts of all the datasets, held to the end of the transaction, in id order.

    Raises:
        NotFound: a dataset is unknown, or another tenant's.
        InvalidInput: a dataset is named twice.
    """
    if len(set(dataset_ids)) < len(dataset_ids):
        raise InvalidInput("A dataset is named twice.", pointer="/dataset_ids", code="INCONSISTENT")
    ids = [account_of(session, principal, dataset_id=d).id for d in dataset_ids]
    return lock_accounts_by_id(session, ids)


def lock_accounts_by_id(session: Session, account_ids: Sequence[str]) -> list[Account]:
    """As ``lock_accounts``, for ids of accounts that the caller is known to own."""
    query = (
        select(Account)
        .where(Account.id.in_(account_ids))
        .order_by(Account.id)
        .with_for_update(of=Account)
        .execution_options(populate_existing=True)
    )
    return list(session.scalars(query).unique().all())


def post(
    session: Session,
    account: Account,
    entry: ledger.Entry,
    *,
    reservation_id: str | None,
    event: Event | None,
    by: str,
    steps: range | None = None,
) -> None:
    """Append ``entry`` to the locked account and move its running sums.

    Guarantees: the balance stays the sum of the entries; an account whose posted amounts
    pass every cap, or whose reservation over-ran, becomes overdrawn (R13). The Merkle log
    gets a leaf that says the same.

    Args:
        session: the transaction.
        account: the locked row.
        entry: what changes.
        reservation_id: for which reservation.
        event: what was reserved, or what ran.
        by: whose key.
        steps: the steps that a lease hands out.
    """
    before = balance_of(account)
    after = ledger.apply(before, entry)
    account.posted, account.pending = list(after.posted), list(after.pending)
    account.last_sequence += 1
    account.version += 1
    caps = ledger.caps(terms_of(account))
    if account.state == "open" and (entry.overruns or ledger.is_overdrawn(caps, after.posted)):
        account.state = "overdrawn"
    row = LedgerEntry(
        id=new_id("ent"),
        tenant_id=account.tenant_id,
        account_id=account.id,
        sequence=account.last_sequence,
        reservation_id=reservation_id,
        kind=entry.kind,
        posted_change=list(entry.posted),
        pending_change=_net(entry),
        mechanism=None if event is None else to_json(event),
        created_at=datetime.now(UTC),
        created_by=by,
    )
    session.add(row)
    _log(session, row, kind=entry.kind, state=account.state, steps=steps)


def last_reserved(session: Session, account: Account) -> LedgerEntry | None:
    """The newest reservation on the account: what "one more like the last" means."""
    return session.scalars(
        select(LedgerEntry)
        .where(LedgerEntry.account_id == account.id, LedgerEntry.kind == "reserve")
        .order_by(LedgerEntry.sequence.desc())
        .limit(1)
    ).first()


def entries_of(
    session: Session, account: Account, *, limit: int, after: str | None
) -> Page[LedgerEntry]:
    """The ``limit`` newest entries that are older than the cursor ``after``.

    Raises:
        InvalidInput: ``after`` is not a cursor.
    """
    query = select(LedgerEntry).where(LedgerEntry.account_id == account.id)
    if after is not None:
        if not (after.isascii() and after.isdigit() and len(after) < 19):  # noqa: PLR2004
            raise InvalidInput("after is the next_cursor of a list.", pointer="/after")
        query = query.where(LedgerEntry.sequence < int(after))
    found = session.scalars(query.order_by(LedgerEntry.sequence.desc()).limit(limit + 1)).all()
    rows = found[:limit]
    return Page(rows, str(rows[-1].sequence) if len(found) > limit else None)


def _log(
    session: Session,
    row: LedgerEntry,
    *,
    kind: ledger.EntryKind,
    state: str,
    steps: range | None,
) -> None:
    body = {
        "entry_id": row.id,
        "account_id": row.account_id,
        "account_state": state,
        "sequence": row.sequence,
        "reservation_id": row.reservation_id,
        "mechanism": row.mechanism,
        "steps": None if steps is None else {"first": steps.start, "end": steps.stop},
        "posted_change": _strings(row.posted_change),
        "pending_change": _strings(row.pending_change),
        "created_by": row.created_by,
    }
    subject = row.reservation_id or row.account_id
    log.append(session, kind, body, tenant_id=row.tenant_id, subject_id=subject)


def _strings(amounts: Sequence[int | None]) -> list[str | None]:
    """Amounts as decimal strings: JSON's numbers end at 2^53."""
    return [None if amount is None else str(amount) for amount in amounts]


def _net(entry: ledger.Entry) -> list[int | None]:
    return [
        None if gained is None or freed is None else gained - freed
        for gained, freed in zip(entry.pending, entry.pending_freed, strict=True)
    ]
