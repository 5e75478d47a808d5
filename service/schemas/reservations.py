"""Reservations and leases on the wire."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from service.schemas.base import Wire
from service.schemas.mechanism import AnyMechanism, NoisyMechanism

State = Literal["pending", "leased", "settled", "released", "expired"]


class ReservationCreate(Wire):
    """A claim on the budgets of all the datasets, or of none."""

    dataset_ids: Annotated[list[str], Field(min_length=1, max_length=100)]
    mechanism: NoisyMechanism
    expires_in_s: Annotated[float, Field(gt=0, le=30 * 86400)] = 3600.0
    validate_only: bool = False


class Charge(Wire):
    """What one reservation holds of one account, rounded up."""

    dataset_id: str
    account_id: str
    epsilon: Annotated[
        str | None, Field(description="What was reserved, alone, at the account's delta.")
    ]
    spent: Annotated[
        str | None, Field(description="What of it is posted for good, alone; null is unbounded.")
    ]


class Reservation(Wire):
    """Budget that is held for a run and then posted or given back."""

    object: Literal["reservation"] = "reservation"
    id: str
    state: State
    dataset_ids: list[str]
    mechanism: AnyMechanism
    total_steps: int
    leased_steps: int
    charges: list[Charge]
    expires_at: datetime | None
    settled_at: datetime | None
    executed: AnyMechanism | None
    created_at: datetime


class LeaseCreate(Wire):
    """Ask for the next steps; they are charged now, run or not."""

    steps: Annotated[int, Field(ge=1, le=10**9)]


class Lease(Wire):
    """A range of steps, end exclusive."""

    object: Literal["lease"] = "lease"
    reservation_id: str
    first_step: int
    end_step: int
    fencing_token: int
    expires_at: datetime | None


class Heartbeat(Wire):
    """The holder of the lease is alive."""

    fencing_token: Annotated[int, Field(ge=1)]


class Executed(Wire):
    """What really ran."""

    mechanism: NoisyMechanism


class Settlement(Wire):
    """Post what ran; without ``executed`` exactly what was leased is posted."""

    fencing_token: Annotated[int | None, Field(ge=1)] = None
    executed: Executed | None = None
