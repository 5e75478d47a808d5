"""Training jobs on the wire."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from service.core.events import MAX_STEPS, Neighboring
from service.core.jobs import Device, JobState, SeedPolicy
from service.schemas.base import Interval, Wire
from service.schemas.mechanism import (
    AdaptiveClipping,
    AnyMechanism,
    Delta,
    NoisyMechanism,
    Positive,
    SamplingRate,
)
from service.schemas.refusals import refusal

Metadata = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=50, description="Yours; kept and shown, never read."),
]


class OptimizerRequest(Wire):
    """What turns noised gradients into updates; what is left out takes the preset's value."""

    name: Literal["sgd", "adam"] | None = None
    learning_rate: Positive | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    weight_decay: Annotated[float, Field(ge=0, lt=1)] | None = None


class TrainingRequest(Wire):
    """What to train; only the model must be named."""

    model: Annotated[str, Field(max_length=64, examples=["mlp"])]
    model_options: Annotated[dict[str, int], Field(max_length=32)] | None = None
    optimizer: OptimizerRequest | None = None
    sampling_rate: Annotated[
        SamplingRate | None, Field(description="With target_epsilon: q of Poisson sampling.")
    ] = None
    steps: Annotated[
        int | None, Field(ge=1, le=MAX_STEPS, description="With target_epsilon: T.")
    ] = None
    expected_batch_size: Annotated[
        Positive | None,
        Field(description="The public number that the noised sum is divided by; default q·n."),
    ] = None
    device: Device = "auto"


class PrivacyRequest(Wire):
    """A mechanism as it shall run, or the target that its noise is solved for."""

    mechanism: NoisyMechanism | None = None
    target_epsilon: Annotated[float | None, Field(gt=0, le=1e6)] = None
    delta: Annotated[
        Delta | None, Field(description="Default with a mechanism: the budget's δ.")
    ] = None
    max_grad_norm: Annotated[
        Positive | None, Field(description="L2 bound of one record's gradient.")
    ] = None
    adaptive_clipping: AdaptiveClipping | None = None
    neighboring: Annotated[
        Neighboring | None, Field(description="Default: the budget's relation.")
    ] = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.mechanism is None) == (self.target_epsilon is None):
            raise refusal(
                "missing" if self.mechanism is None else "inconsistent",
                "target_epsilon",
                reason="State a mechanism or a target_epsilon, and not both.",
            )
        if self.target_epsilon is not None and self.delta is None:
            raise refusal("missing", "delta", reason="A target_epsilon needs its delta.")
        if self.max_grad_norm is not None and self.adaptive_clipping is not None:
            raise refusal(
                "inconsistent",
                "adaptive_clipping",
                reason="Clip at a fixed max_grad_norm, or adaptively.",
            )
        return self


class LimitsRequest(Wire):
    """Where a run ends at the latest, and how much an interruption may cost."""

    max_runtime_s: Annotated[float | None, Field(gt=0, le=30 * 86400)] = None
    lease_steps: Annotated[
        int | None,
        Field(ge=1, description="Steps charged at once, ahead of running them."),
    ] = None


_EXAMPLE: dict[str, Any] = {
    "dataset_id": "ds_01JD0000000000000000000000",
    "training": {"model": "mlp"},
    "privacy": {"target_epsilon": 3.0, "delta": 1e-5, "max_grad_norm": 0.5},
}


class TrainingJobCreate(Wire):
    """A training job; the answer shows the complete settings."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    dataset_id: Annotated[str, Field(min_length=1, max_length=64)]
    training: TrainingRequest
    privacy: PrivacyRequest
    limits: LimitsRequest = LimitsRequest()
    seed_policy: SeedPolicy = "os_entropy"
    seed: int | None = None
    metadata: Metadata = Field(default_factory=dict)
    validate_only: bool = False


class Optimizer(Wire):
    """The optimiser as it runs."""

    name: Literal["sgd", "adam"]
    learning_rate: float
    momentum: float
    weight_decay: float


class Training(Wire):
    """What is trained, complete."""

    model: str
    model_options: Mapping[str, int]
    optimizer: Optimizer
    expected_batch_size: float
    device: Device


class Privacy(Wire):
    """The mechanism as it runs."""

    mechanism: AnyMechanism
    target_epsilon: float | None
    delta: float
    max_grad_norm: float
    neighboring: Neighboring


class Limits(Wire):
    """The limits as they hold."""

    max_runtime_s: float
    lease_steps: int


class Forecast(Wire):
    """What the whole run will cost by itself, certified before it begins."""

    epsilon: Interval
    delta: float
    neighboring: Neighboring
    noise_multiplier: Annotated[
        float | None, Field(description="σ; null for a schedule of several.")
    ]
    sampling_rate: Annotated[float | None, Field(description="q; null for several.")]
    steps: int
    expected_batch_size: float
    sampler: str


class HeldBudget(Wire):
    """The reservation that pays for the job."""

    id: str
    state: str
    total_steps: int
    leased_steps: int


class Progress(Wire):
    """How far the log reaches: only recorded steps count."""

    step: int
    total_steps: int
    fraction: float
    eta_s: float | None


class ResultEpsilon(Wire):
    """The certified ε of the run that the log shows."""

    lower: float | None
    upper: float | None
    is_unbounded: bool = False
    delta: float
    neighboring: Neighboring


class Result(Wire):
    """What a job that succeeded has to show."""

    metrics: Mapping[str, Any]
    epsilon: ResultEpsilon
    certificate_id: str | None = None


class JobError(Wire):
    """Why a job failed."""

    code: str
    message: str


class TrainingJob(Wire):
    """A training job."""

    object: Literal["training_job"] = "training_job"
    id: str
    dataset_id: str
    state: JobState
    state_reason: str | None
    reservation: HeldBudget
    forecast: Forecast
    training: Training
    privacy: Privacy
    limits: Limits
    seed_policy: SeedPolicy
    metadata: Mapping[str, str]
    progress: Progress
    result: Result | None
    error: JobError | None
    software: Mapping[str, Any] | None
    created_at: datetime
    cancel_requested_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


class JobEvent(Wire):
    """Something that happened to a job."""

    object: Literal["event"] = "event"
    id: str
    sequence: int
    type: str
    data: Mapping[str, Any]
    created_at: datetime


class JobEvents(Wire):
    """A job's events, oldest first."""

    object: Literal["list"] = "list"
    data: list[JobEvent]
    has_more: bool
    next_cursor: str | None


class Artifact(Wire):
    """A file that a job left."""

    object: Literal["artifact"] = "artifact"
    name: str
    size_bytes: int
    sha256: str
    media_type: str
    url: str
    created_at: datetime


class Artifacts(Wire):
    """All files that a job left."""

    object: Literal["list"] = "list"
    data: list[Artifact]
    has_more: bool = False
    next_cursor: str | None = None
