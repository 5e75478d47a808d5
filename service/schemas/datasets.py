"""Datasets and their budgets on the wire. Ledger amounts are decimal strings."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from service.core.events import Neighboring
from service.schemas.base import Wire
from service.schemas.mechanism import NoisyMechanism

Composition = Literal["renyi", "zcdp", "pure"]


_LEAST, _MOST = Decimal("1e-30"), Decimal("1e9")


def _in_range(text: str) -> str:
    if not _LEAST <= Decimal(text) <= _MOST:
        raise ValueError(f"an amount lies between {_LEAST} and {_MOST}")
    return text


Amount = Annotated[
    str,
    Field(
        pattern=r"^[0-9]{1,20}(\.[0-9]{1,40})?([eE][-+]?[0-9]{1,3})?$",
        max_length=64,
        description="A decimal number as a string.",
        examples=["8.0"],
    ),
    AfterValidator(_in_range),
]


class PlannedWorkload(Wire):
    """The work that the Rényi orders are chosen for (R9)."""

    mechanism: NoisyMechanism


class BudgetCreate(Wire):
    """The terms of a new account; fixed for ever (R7)."""

    epsilon: Amount
    delta: Amount | None = None
    neighboring: Neighboring
    composition: Composition = "renyi"
    planned: PlannedWorkload | None = None
    orders: Annotated[list[float] | None, Field(min_length=1, max_length=64)] = None
    weights: Annotated[list[Amount] | None, Field(min_length=1, max_length=64)] = None


_EXAMPLE: dict[str, Any] = {
    "name": "digits",
    "privacy_unit": "record",
    "source": "digits",
    "budget": {"epsilon": "8.0", "delta": "1e-5", "neighboring": "add_or_remove_one"},
}


class DatasetCreate(Wire):
    """Personal data that gets a budget; the data itself stays where it is."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    name: Annotated[str, Field(min_length=1, max_length=200)]
    privacy_unit: Annotated[
        str,
        Field(
            pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
            description="What one person contributes at most, as a slug compared exactly.",
            examples=["record"],
        ),
    ]
    max_records_per_unit: Annotated[int, Field(ge=1, le=10**9)] = 1
    record_count: Annotated[int | None, Field(ge=1, le=10**15)] = None
    record_count_is_public: bool = True
    source: Annotated[
        str | None,
        Field(max_length=2000, description="A built-in dataset, or an address on the allow-list."),
    ] = None
    fingerprint: Annotated[str | None, Field(min_length=8, max_length=128)] = None
    budget: BudgetCreate
    validate_only: bool = False


class DatasetChange(Wire):
    """What may change: the name alone. Terms of a budget never do."""

    name: Annotated[str, Field(min_length=1, max_length=200)]


class BudgetTerms(Wire):
    """The fixed terms of an account."""

    account_id: str
    epsilon: str
    delta: str
    neighboring: Neighboring
    composition: Composition
    orders: list[float]
    weights: list[str]
    theorem: str


class Dataset(Wire):
    """A dataset and the terms of its budget."""

    object: Literal["dataset"] = "dataset"
    id: str
    name: str
    privacy_unit: str
    max_records_per_unit: int
    record_count: int
    record_count_is_public: bool
    source: str | None
    fingerprint: str | None
    budget: BudgetTerms
    created_at: datetime
    updated_at: datetime


class Spend(Wire):
    """An (ε, δ) view of ledger amounts, rounded up."""

    epsilon: str | None
    delta: str


class Budget(Wire):
    """What an account promises and what has gone. Only the limit is a promise (R10)."""

    object: Literal["budget"] = "budget"
    id: str
    dataset_id: str
    limit: Spend
    spent: Spend
    reserved: Spend
    state: Literal["open", "overdrawn", "closed"]
    theorem: str
    fits: Annotated[int | None, Field(description="How many more runs like the last one fit.")]
    neighboring: Neighboring
    composition: Composition


class BudgetEntry(Wire):
    """One posting: per Rényi order, in units of 1e-9; null is an order that is used up."""

    object: Literal["budget_entry"] = "budget_entry"
    id: str
    sequence: int
    kind: str
    reservation_id: str | None
    orders: list[float]
    posted_change: list[str | None]
    pending_change: list[str | None]
    mechanism: Annotated[dict[str, Any] | None, Field(description="What was priced.")]
    created_at: datetime
    created_by: str
