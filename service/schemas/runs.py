"""Runs that train elsewhere, on the wire."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field, JsonValue

from service.core.events import MAX_STEPS
from service.schemas.base import Wire
from service.schemas.jobs import HeldBudget, Progress
from service.schemas.mechanism import AnyMechanism, NoisyMechanism

#: Records of one upload.
MAX_RECORDS: Final = 10_000

State = Literal["open", "completed", "abandoned"]


class RunCreate(Wire):
    """Begin to log a run that is charged to a reservation."""

    dataset_id: str
    reservation_id: str
    mechanism: Annotated[
        NoisyMechanism,
        Field(description="What the run is to do; it may differ from what was reserved."),
    ]
    software: Annotated[
        dict[str, JsonValue] | None,
        Field(max_length=32, description="What trains, such as names and versions."),
    ] = None
    validate_only: bool = False


class RunComplete(Wire):
    """End a run at what its log shows."""

    steps: Annotated[
        int | None,
        Field(ge=0, le=MAX_STEPS, description="Refuse if the log has another number of steps."),
    ] = None


class Run(Wire):
    """A run that trains elsewhere and logs its steps here."""

    object: Literal["run"] = "run"
    id: str
    dataset_id: str
    state: State
    reservation: HeldBudget
    mechanism: AnyMechanism
    departs_from_reservation: Annotated[
        str | None, Field(description="How the mechanism is weaker than what was reserved.")
    ]
    progress: Progress
    overrun_steps: Annotated[
        int, Field(description="Steps logged and not leased; charged when the run ends.")
    ]
    head: Annotated[str | None, Field(description="Covers every releasable record logged so far.")]
    executed: Annotated[AnyMechanism | None, Field(description="What the log shows, at the end.")]
    software: dict[str, Any] | None
    created_at: datetime
    ended_at: datetime | None


class StepsAccepted(Wire):
    """An upload is stored, durably."""

    object: Literal["steps_accepted"] = "steps_accepted"
    run_id: str
    accepted: int
    duplicates: int
    next_step: int
    head: str | None
