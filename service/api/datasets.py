"""/v1/datasets: personal data and the budgets that it owns."""

from decimal import Decimal

from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from service.api.deps import Caller, holds
from service.api.lists import After, answer_list, answer_rows
from service.api.strict import StrictRoute
from service.core import ledger
from service.core.errors import InvalidInput
from service.core.events import from_json
from service.db import tables
from service.operations import accounts, datasets
from service.operations.owned import get_owned, owned
from service.schemas.datasets import (
    Budget,
    BudgetEntry,
    BudgetTerms,
    Dataset,
    DatasetChange,
    DatasetCreate,
    Spend,
)
from service.schemas.lists import Limit, ListOf

router = APIRouter(prefix="/v1/datasets", tags=["Datasets and budgets"], route_class=StrictRoute)
READ = holds("datasets:read")
WRITE = holds("datasets:write")


@router.post("", status_code=201, response_model=Dataset)
def create_dataset(body: DatasetCreate, caller: Caller = WRITE) -> Response:
    """Register personal data and fix the terms of its budget for ever."""
    caller.principal.require("budgets:write")
    terms = _terms(body)
    return caller.write(
        lambda session: datasets.create_dataset(
            session,
            caller.principal,
            **body.model_dump(exclude={"budget", "validate_only"}),
            allowed_sources=caller.parts.settings.allowed_sources,
            terms=terms,
        ),
        shape=_shape,
        dry_run=body.validate_only,
    )


@router.get("", response_model=ListOf[Dataset])
def list_datasets(limit: Limit = 20, after: After = None, caller: Caller = READ) -> Response:
    """The tenant's datasets, newest first."""
    return answer_list(
        caller, owned(caller.principal, tables.Dataset), tables.Dataset, _shape, limit, after
    )


@router.get("/{dataset_id}", response_model=Dataset)
def get_dataset(dataset_id: str, caller: Caller = READ) -> Response:
    """One dataset."""
    return caller.show(
        lambda session: get_owned(session, caller.principal, tables.Dataset, dataset_id),
        shape=_shape,
    )


@router.patch("/{dataset_id}", response_model=Dataset)
def change_dataset(dataset_id: str, body: DatasetChange, caller: Caller = WRITE) -> Response:
    """Rename a dataset; nothing else about it ever changes."""

    def change(session: Session) -> tables.Dataset:
        row = get_owned(session, caller.principal, tables.Dataset, dataset_id, lock=True)
        caller.check_version(row, required=False)
        return datasets.rename_dataset(
            session, caller.principal, dataset_id=dataset_id, name=body.name
        )

    return caller.write(change, shape=_shape, status=200, key_required=False)


@router.get("/{dataset_id}/budget", response_model=Budget)
def get_budget(dataset_id: str, caller: Caller = READ) -> Response:
    """What the budget promises, what has gone, and how many more runs like the last fit."""
    with caller.parts.database.read() as session:
        account = accounts.account_of(session, caller.principal, dataset_id=dataset_id)
        last = accounts.last_reserved(session, account)
        return caller.answer(_budget(account, last), version=account.version)


@router.get("/{dataset_id}/budget/entries", response_model=ListOf[BudgetEntry])
def list_entries(
    dataset_id: str, limit: Limit = 20, after: After = None, caller: Caller = READ
) -> Response:
    """Every posting on the budget, newest first; the balance is their sum."""
    with caller.parts.database.read() as session:
        account = accounts.account_of(session, caller.principal, dataset_id=dataset_id)
        page = accounts.entries_of(session, account, limit=limit, after=after)
        return answer_rows(page, lambda entry: _entry(entry, account))


def _terms(body: DatasetCreate) -> ledger.AccountTerms:
    budget = body.budget
    planned = budget.planned
    try:
        return accounts.make_terms(
            epsilon=Decimal(budget.epsilon),
            delta=Decimal(budget.delta) if budget.delta else None,
            neighboring=budget.neighboring,
            privacy_unit=body.privacy_unit,
            records_per_unit=body.max_records_per_unit,
            composition=budget.composition,
            planned=None if planned is None else planned.mechanism.to_core(),
            orders=budget.orders,
            weights=[Decimal(w) for w in budget.weights] if budget.weights else None,
        )
    except InvalidInput as error:
        if error.pointer.startswith("/mechanism"):
            pointer = f"/budget/planned{error.pointer}"
            raise InvalidInput(error.message, pointer=pointer, code=error.code) from error
        raise


def _shape(row: tables.Dataset) -> Dataset:
    account = row.accounts[-1]
    return Dataset(
        id=row.id,
        name=row.name,
        privacy_unit=row.privacy_unit,
        max_records_per_unit=row.max_records_per_unit,
        record_count=row.record_count,
        record_count_is_public=row.record_count_is_public,
        source=row.source,
        fingerprint=row.fingerprint,
        budget=BudgetTerms(
            account_id=account.id,
            epsilon=account.epsilon,
            delta=account.delta,
            neighboring=account.neighboring,  # pyright: ignore[reportArgumentType]
            composition=account.composition,  # pyright: ignore[reportArgumentType]
            orders=account.orders,
            weights=account.weights,
            theorem=accounts.terms_of(account).theorem,
        ),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _budget(account: tables.Account, last: tables.LedgerEntry | None) -> Budget:
    terms = accounts.terms_of(account)
    balance = accounts.balance_of(account)
    fits = None if account.state == "open" else 0
    if account.state == "open" and last is not None and last.mechanism is not None:
        charge = ledger.price(from_json(last.mechanism), terms)
        fits = ledger.fits(ledger.caps(terms), balance, charge)
    return Budget(
        id=account.id,
        dataset_id=account.dataset_id,
        limit=Spend(epsilon=account.epsilon, delta=account.delta),
        spent=Spend(
            epsilon=_amount(ledger.spent_epsilon(terms, balance.posted)), delta=account.delta
        ),
        reserved=Spend(
            epsilon=_amount(ledger.spent_epsilon(terms, balance.pending)), delta=account.delta
        ),
        state=account.state,  # pyright: ignore[reportArgumentType]
        theorem=terms.theorem,
        fits=fits,
        neighboring=terms.neighboring,
        composition=terms.composition,
    )


def _amount(value: Decimal | None) -> str | None:
    return None if value is None else format(value, "f")


def _entry(entry: tables.LedgerEntry, account: tables.Account) -> BudgetEntry:
    return BudgetEntry(
        id=entry.id,
        sequence=entry.sequence,
        kind=entry.kind,
        reservation_id=entry.reservation_id,
        orders=account.orders,
        posted_change=[None if v is None else str(v) for v in entry.posted_change],
        pending_change=[None if v is None else str(v) for v in entry.pending_change],
        mechanism=entry.mechanism,
        created_at=entry.created_at,
        created_by=entry.created_by,
    )
