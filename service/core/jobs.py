"""Training jobs: their states, what a trainer is told to do, and the recipes that fill it in.

Pure data shared by the gateway (which checks and prices a job), the supervisor (which moves
it) and the trainer (which obeys a ``TrainingSpec``). What must hold:

* A terminal state never changes (``check_move``).
* A ``TrainingSpec`` that exists can be trained: everything the trainer cannot do is refused
  here, with a pointer to the field, before any budget is reserved.
* Nothing here depends on the content of a private record: rates, normalisers, clip norms and
  defaults are functions of public numbers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from service.core.datasets import BUILTIN_DATASETS, BuiltinDataset, DatasetSource
from service.core.errors import Conflict, InvalidInput
from service.core.events import Neighboring, StepwiseDpSgd, from_json, to_json

JobState = Literal[
    "queued", "starting", "running", "cancelling", "succeeded", "failed", "cancelled"
]
SeedPolicy = Literal["os_entropy", "reproducible"]
Device = Literal["auto", "cpu", "cuda"]

TERMINAL: Final = frozenset[JobState]({"succeeded", "failed", "cancelled"})

MOVES: Final[Mapping[JobState, frozenset[JobState]]] = MappingProxyType(
    {
        # A queued job has touched nothing: it can end at once.
        "queued": frozenset[JobState]({"starting", "cancelled", "failed"}),
        # Back to queued only by the sweeper, for a claim that died before its first lease.
        "starting": frozenset[JobState]({"running", "queued", "cancelling", "failed"}),
        "running": frozenset[JobState]({"succeeded", "cancelling", "failed"}),
        # The last step may have been done when the cancel arrived.
        "cancelling": frozenset[JobState]({"cancelled", "succeeded", "failed"}),
        "succeeded": frozenset[JobState](),
        "failed": frozenset[JobState](),
        "cancelled": frozenset[JobState](),
    }
)

MAX_LEASE_STEPS: Final = 4096
MAX_SEED: Final = 2**53 - 1
MAX_TRAINER_STEPS: Final = 1_000_000


def check_move(old: JobState, new: JobState) -> None:
    """Refuse a change of state that the table of moves does not allow.

    Raises:
        Conflict: ``INVALID_STATE``; terminal states in particular never change.
    """
    if new not in MOVES[old]:
        raise Conflict(
            f"A job that is {old} cannot become {new}.",
            code="INVALID_STATE",
            fields={"state": old, "requested": new},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """How noised gradients become updates: post-processing, so free of privacy cost.

    Args:
        name: ``sgd`` or ``adam``.
        learning_rate: > 0.
        momentum: [0, 1), for ``sgd``; ``adam`` uses 0.9 and 0.999 and wants 0 here.
        weight_decay: ≥ 0, decoupled from the gradient.
    """

    name: Literal["sgd", "adam"] = "sgd"
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("sgd", "adam"):
            raise InvalidInput(
                "An optimizer is sgd or adam.", pointer="/training/optimizer/name", code="UNKNOWN"
            )
        _check_positive("/training/optimizer/learning_rate", self.learning_rate)
        if not 0 <= self.momentum < 1:
            raise InvalidInput("momentum lies in [0, 1).", pointer="/training/optimizer/momentum")
        if self.name == "adam" and self.momentum > 0:
            raise InvalidInput(
                "adam has its own moments: leave momentum at 0.",
                pointer="/training/optimizer/momentum",
                code="INCONSISTENT",
            )
        if not 0 <= self.weight_decay < 1:
            raise InvalidInput(
                "weight_decay lies in [0, 1).", pointer="/training/optimizer/weight_decay"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOption:
    """A whole-number option of a built-in model: its default and its limits, both inclusive."""

    default: int
    minimum: int
    maximum: int


MODELS: Final[Mapping[str, Mapping[str, ModelOption]]] = MappingProxyType(
    {
        "mlp": MappingProxyType(
            {
                "hidden": ModelOption(default=32, minimum=1, maximum=4096),
                "layers": ModelOption(default=1, minimum=0, maximum=8),
            }
        ),
        "hog_linear": MappingProxyType(
            {"orientations": ModelOption(default=8, minimum=4, maximum=16)}
        ),
        "small_resnet": MappingProxyType(
            {
                "width": ModelOption(default=16, minimum=4, maximum=128),
                "blocks": ModelOption(default=1, minimum=1, maximum=4),
            }
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """All that a trainer process is told: complete, public and checked.

    Args:
        dataset_source: a built-in dataset.
        record_count: n, the public size of the private training part.
        model: a key of ``MODELS``.
        model_options: whole numbers by option name; missing ones take their defaults.
        optimizer: what turns noised gradients into updates.
        mechanism: ``poisson`` or ``full_batch``, every σ > 0; the schedule is executed exactly.
        max_grad_norm: C, the L2 bound of one record's gradient, > 0.
        expected_batch_size: the public number the noised sum is divided by, usually q·n; never
            the realised batch size, which is private.
        neighboring: the relation the job is priced under; it changes no step.
        seed_policy: ``os_entropy``, or ``reproducible`` with ``seed``: repeatable by whoever
            knows the seed, and so worth no more than the evidence level "declared" (R26).
        seed: 0 to 2^53 − 1, exactly when the policy is ``reproducible``.
        device: where to train.
        max_runtime_s: the deadline, > 0.
        lease_steps: steps asked for per lease, 1 to 4096; an interrupted run is charged for at
            most one lease more than it executed.

    Raises:
        InvalidInput: the pointer names the field in the body of ``POST /v1/training-jobs``.
    """

    dataset_source: DatasetSource
    record_count: int
    model: str
    model_options: Mapping[str, int] = field(default_factory=dict[str, int])
    optimizer: Optimizer
    mechanism: StepwiseDpSgd
    max_grad_norm: float
    expected_batch_size: float
    neighboring: Neighboring
    seed_policy: SeedPolicy = "os_entropy"
    seed: int | None = None
    device: Device = "auto"
    max_runtime_s: float = 3600.0
    lease_steps: int = 64

    def __post_init__(self) -> None:
        _check_source(self.dataset_source, self.record_count)
        object.__setattr__(
            self, "model_options", complete_model_options(self.model, self.model_options)
        )
        _check_mechanism(self.mechanism)
        _check_positive("/privacy/max_grad_norm", self.max_grad_norm)
        _check_positive("/training/expected_batch_size", self.expected_batch_size)
        _check_choice("/privacy/neighboring", self.neighboring, get_args(Neighboring))
        _check_choice("/training/device", self.device, get_args(Device))
        _check_seed(self.seed_policy, self.seed)
        _check_positive("/limits/max_runtime_s", self.max_runtime_s)
        if not 1 <= self.lease_steps <= MAX_LEASE_STEPS:
            raise InvalidInput(
                f"lease_steps lies between 1 and {MAX_LEASE_STEPS}.", pointer="/limits/lease_steps"
            )

    @property
    def total_steps(self) -> int:
        """T, the number of noised releases of a run that is not interrupted."""
        return self.mechanism.steps

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON; ``from_json`` gives the equal spec back."""
        return {
            "dataset_source": self.dataset_source,
            "record_count": self.record_count,
            "model": self.model,
            "model_options": dict(self.model_options),
            "optimizer": {
                "name": self.optimizer.name,
                "learning_rate": self.optimizer.learning_rate,
                "momentum": self.optimizer.momentum,
                "weight_decay": self.optimizer.weight_decay,
            },
            "mechanism": to_json(self.mechanism),
            "max_grad_norm": self.max_grad_norm,
            "expected_batch_size": self.expected_batch_size,
            "neighboring": self.neighboring,
            "seed_policy": self.seed_policy,
            "seed": self.seed,
            "device": self.device,
            "max_runtime_s": self.max_runtime_s,
            "lease_steps": self.lease_steps,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TrainingSpec":
        """The spec of a stored JSON object.

        Raises:
            InvalidInput: a value the trainer cannot honour, other mechanisms included.
        """
        fields = dict(data)
        mechanism = from_json(fields.pop("mechanism"))
        optimizer = Optimizer(**fields.pop("optimizer"))
        return cls(mechanism=trainable(mechanism), optimizer=optimizer, **fields)


def trainable(mechanism: object) -> StepwiseDpSgd:
    """The mechanism, if the trainer can execute it exactly.

    Raises:
        InvalidInput: anything but Poisson or full-batch DP-SGD with a fixed clip norm and σ > 0.
    """
    if not isinstance(mechanism, StepwiseDpSgd):
        raise InvalidInput(
            "The trainer runs dp_sgd with sampler poisson or full_batch.",
            pointer="/privacy/mechanism",
            code="UNSUPPORTED",
        )
    _check_mechanism(mechanism)
    return mechanism


def complete_model_options(model: str, options: Mapping[str, int]) -> dict[str, int]:
    """``options`` with the defaults of ``model`` filled in.

    Raises:
        InvalidInput: unknown model or option, or a value outside its limits.
    """
    known = MODELS.get(model)
    if known is None:
        raise InvalidInput(
            f"Unknown model {model!r}; there are {', '.join(MODELS)}.",
            pointer="/training/model",
            code="UNKNOWN",
        )
    for name, value in options.items():
        pointer = f"/training/model_options/{name}"
        option = known.get(name)
        if option is None:
            raise InvalidInput(
                f"{model} has no option {name!r}; it has {', '.join(known)}.",
                pointer=pointer,
                code="UNKNOWN",
            )
        # A bool is an int in Python; on the wire it is not.
        if type(value) is not int or not option.minimum <= value <= option.maximum:
            raise InvalidInput(
                f"{name} is a whole number from {option.minimum} to {option.maximum}.",
                pointer=pointer,
            )
    return {name: options.get(name, option.default) for name, option in known.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """A documented starting point for one dataset and model; σ is solved from the target ε.

    Args:
        sampling_rate: q of Poisson sampling.
        steps: T.
        expected_batch_size: q·n.
        max_grad_norm: C.
        optimizer: with a learning rate that suits C and T.
        model_options: complete.
        lease_steps: about a twentieth of the run.
        max_runtime_s: generous for a CPU.
    """

    sampling_rate: float
    steps: int
    expected_batch_size: float
    max_grad_norm: float
    optimizer: Optimizer
    model_options: Mapping[str, int]
    lease_steps: int
    max_runtime_s: float


def defaults_for(
    source: str,
    model: str,
    *,
    model_options: Mapping[str, int] | None = None,
    target_epsilon: float = 3.0,
) -> Defaults:
    """Good settings for a built-in dataset and model.

    They were found by trying on the built-in (public) data and are fixed before a run, so they
    cost a job nothing. Large batches and few, well-noised steps win on small data; the more
    noise a small ε asks for, the smaller the steps.

    Args:
        source: a built-in dataset.
        model: a key of ``MODELS``.
        model_options: as in ``TrainingSpec``.
        target_epsilon: the ε aimed at, > 0; scales the learning rate and nothing else.

    Raises:
        InvalidInput: unknown dataset, model or option.
    """
    dataset = _known_dataset(source)
    options = complete_model_options(model, model_options or {})
    _check_positive("/privacy/target_epsilon", target_epsilon)
    preset = _PRESETS[source, model]
    slower = min(1.0, max(0.4, target_epsilon / 4))
    return Defaults(
        sampling_rate=preset.sampling_rate,
        steps=preset.steps,
        expected_batch_size=preset.sampling_rate * dataset.record_count,
        max_grad_norm=preset.max_grad_norm,
        optimizer=Optimizer(
            name="sgd", learning_rate=preset.learning_rate * slower, momentum=preset.momentum
        ),
        model_options=options,
        lease_steps=default_lease_steps(preset.steps),
        max_runtime_s=3600.0,
    )


def default_lease_steps(steps: int) -> int:
    """About a twentieth of ``steps``, between 1 and 512: what an interruption may cost extra."""
    return max(1, min(512, math.ceil(steps / 20)))


def recipes() -> dict[str, Any]:
    """Built-in datasets, models, optimisers and defaults, as plain JSON for clients."""
    return {
        "datasets": [
            {
                "source": d.source,
                "title": d.title,
                "record_count": d.record_count,
                "test_count": d.test_count,
                "image_shape": list(d.image_shape),
                "classes": d.classes,
                "fingerprint": d.fingerprint,
            }
            for d in BUILTIN_DATASETS.values()
        ],
        "models": [
            {
                "model": model,
                "options": {
                    name: {"default": o.default, "minimum": o.minimum, "maximum": o.maximum}
                    for name, o in options.items()
                },
            }
            for model, options in MODELS.items()
        ],
        "optimizers": ["sgd", "adam"],
        "samplers": ["poisson", "full_batch"],
        "presets": [
            {
                "source": source,
                "model": model,
                "sampling_rate": preset.sampling_rate,
                "steps": preset.steps,
                "max_grad_norm": preset.max_grad_norm,
                # For ε of 4 and more; ``defaults_for`` takes smaller steps below.
                "optimizer": {
                    "name": "sgd",
                    "learning_rate": preset.learning_rate,
                    "momentum": preset.momentum,
                },
            }
            for (source, model), preset in _PRESETS.items()
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Preset:
    sampling_rate: float
    steps: int
    learning_rate: float
    momentum: float
    max_grad_norm: float


_PRESETS: Final[Mapping[tuple[str, str], _Preset]] = MappingProxyType(
    {
        ("digits", "mlp"): _Preset(
            sampling_rate=0.5, steps=100, learning_rate=1.0, momentum=0.9, max_grad_norm=0.5
        ),
        ("digits", "hog_linear"): _Preset(
            sampling_rate=0.5, steps=100, learning_rate=1.0, momentum=0.9, max_grad_norm=0.5
        ),
        ("digits", "small_resnet"): _Preset(
            sampling_rate=0.5, steps=100, learning_rate=1.0, momentum=0.9, max_grad_norm=0.5
        ),
        ("mnist5k", "mlp"): _Preset(
            sampling_rate=0.25, steps=100, learning_rate=2.0, momentum=0.9, max_grad_norm=0.5
        ),
        ("mnist5k", "hog_linear"): _Preset(
            sampling_rate=0.25, steps=100, learning_rate=3.0, momentum=0.9, max_grad_norm=0.5
        ),
        ("mnist5k", "small_resnet"): _Preset(
            sampling_rate=0.25, steps=100, learning_rate=1.0, momentum=0.9, max_grad_norm=0.5
        ),
    }
)


def _known_dataset(source: str) -> BuiltinDataset:
    found = BUILTIN_DATASETS.get(source)
    if found is None:
        raise InvalidInput(
            f"The trainer knows the built-in datasets {', '.join(BUILTIN_DATASETS)}.",
            pointer="/dataset_id",
            code="UNSUPPORTED",
        )
    return found


def _check_source(source: str, record_count: int) -> None:
    known = _known_dataset(source).record_count
    if record_count != known:
        raise InvalidInput(
            f"{source} has {known} private training records, not {record_count}.",
            pointer="/dataset_id",
            code="INCONSISTENT",
        )


def _check_mechanism(mechanism: StepwiseDpSgd) -> None:
    if mechanism.count_noise_stddev is not None:
        raise InvalidInput(
            "The trainer clips at a fixed max_grad_norm.",
            pointer="/privacy/adaptive_clipping",
            code="UNSUPPORTED",
        )
    if any(segment.noise_multiplier <= 0 for segment in mechanism.schedule):
        raise InvalidInput(
            "A step without noise is not private: noise_multiplier is above 0.",
            pointer="/privacy/mechanism/noise_multiplier",
        )
    if mechanism.steps > MAX_TRAINER_STEPS:
        raise InvalidInput(
            f"The trainer runs at most {MAX_TRAINER_STEPS} steps.",
            pointer="/privacy/mechanism/steps",
        )


def _check_seed(policy: str, seed: int | None) -> None:
    _check_choice("/seed_policy", policy, get_args(SeedPolicy))
    if (policy == "reproducible") != (seed is not None):
        raise InvalidInput(
            "A seed belongs to seed_policy reproducible, and to no other.",
            pointer="/seed",
            code="INCONSISTENT",
        )
    if seed is not None and not 0 <= seed <= MAX_SEED:
        raise InvalidInput(f"A seed lies between 0 and {MAX_SEED}.", pointer="/seed")


def _check_choice(pointer: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidInput(
            f"Unknown value {value!r}; there are {', '.join(choices)}.",
            pointer=pointer,
            code="UNKNOWN",
        )


def _check_positive(pointer: str, value: float) -> None:
    if not 0 < value < math.inf:
        name = pointer.rsplit("/", 1)[-1]
        raise InvalidInput(f"{name} is a finite number above 0.", pointer=pointer)
