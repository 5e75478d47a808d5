"""From a request to a complete plan: defaults filled in, noise solved, the whole run priced.

Everything slow happens here, before any transaction: a plan is a function of the request and
of public facts about the dataset, never of a record.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from service.calculator import Calculator
from service.core import accounting
from service.core.errors import InvalidInput
from service.core.events import DpSgd, Event, Neighboring, StepwiseDpSgd, poisson
from service.core.interval import Interval
from service.core.jobs import (
    Defaults,
    Optimizer,
    TrainingSpec,
    default_lease_steps,
    defaults_for,
    trainable,
)
from service.db.tables import Dataset
from service.schemas import base
from service.schemas.jobs import (
    Forecast,
    Limits,
    OptimizerRequest,
    Privacy,
    PrivacyRequest,
    Training,
    TrainingJobCreate,
    TrainingRequest,
)
from service.schemas.jobs import Optimizer as WireOptimizer
from service.schemas.mechanism import from_core


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run that can begin.

    Args:
        spec: what the trainer will be told.
        request: the complete settings and the forecast as the answers show them.
    """

    spec: TrainingSpec
    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a plan must know of a dataset: public numbers and the terms of its budget."""

    source: str | None
    record_count: int
    delta: float
    neighboring: Neighboring


def facts_of(dataset: Dataset) -> Facts:
    """The facts of a row, to be kept after its session has ended."""
    account = dataset.accounts[-1]
    return Facts(
        source=dataset.source,
        record_count=dataset.record_count,
        delta=float(account.delta),
        neighboring=cast("Neighboring", account.neighboring),
    )


def plan(body: TrainingJobCreate, *, dataset: Facts, calculator: Calculator) -> Plan:
    """The complete, priced plan of a request.

    Guarantees: the forecast's ``epsilon.upper`` bounds the run's ε at the stated δ and
    relation; with a target it is at most the target.

    Raises:
        InvalidInput: what the trainer cannot do, with the pointer into the request.
        NotCertified: no certified price within the limits.
    """
    if body.privacy.adaptive_clipping is not None:
        raise InvalidInput(
            "The trainer clips at a fixed max_grad_norm.",
            pointer="/privacy/adaptive_clipping",
            code="UNSUPPORTED",
        )
    neighboring = body.privacy.neighboring or dataset.neighboring
    delta = dataset.delta if body.privacy.delta is None else float(body.privacy.delta)
    preset = defaults_for(
        dataset.source or "", body.training.model, model_options=body.training.model_options
    )
    mechanism = _mechanism(
        body, preset, delta=delta, neighboring=neighboring, calculator=calculator
    )
    spec = _spec(body, preset, dataset=dataset, mechanism=mechanism, neighboring=neighboring)
    epsilon = calculator.run(
        accounting.epsilon_interval, spec.mechanism, delta=delta, neighboring=neighboring
    )
    return Plan(spec=spec, request=_shown(body, spec, delta=delta, epsilon=epsilon))


def _mechanism(
    body: TrainingJobCreate,
    preset: Defaults,
    *,
    delta: float,
    neighboring: Neighboring,
    calculator: Calculator,
) -> StepwiseDpSgd:
    privacy, training = body.privacy, body.training
    if privacy.mechanism is not None:
        _forbid_beside_mechanism(training)
        return trainable(privacy.mechanism.to_core(pointer="/privacy/mechanism"))
    template = poisson(
        sampling_rate=float(training.sampling_rate or preset.sampling_rate),
        noise_multiplier=1.0,
        steps=training.steps or preset.steps,
    )
    return trainable(
        calculator.run(
            solve_noise,
            template,
            target_epsilon=_target(privacy),
            delta=delta,
            neighboring=neighboring,
        )
    )


def solve_noise(
    template: DpSgd, *, target_epsilon: float, delta: float, neighboring: Neighboring
) -> Event:
    """``template`` at the least noise that meets the target; module-level, for a process."""
    return accounting.noise_multiplier(
        template, target_epsilon=target_epsilon, delta=delta, neighboring=neighboring
    ).event


def _target(privacy: PrivacyRequest) -> float:
    assert privacy.target_epsilon is not None, "the wire model checks it"
    return float(privacy.target_epsilon)


def _forbid_beside_mechanism(training: TrainingRequest) -> None:
    for name in ("sampling_rate", "steps"):
        if getattr(training, name) is not None:
            raise InvalidInput(
                f"The mechanism says it all: leave {name} out, or state a target_epsilon.",
                pointer=f"/training/{name}",
                code="INCONSISTENT",
            )


def _spec(
    body: TrainingJobCreate,
    preset: Defaults,
    *,
    dataset: Facts,
    mechanism: StepwiseDpSgd,
    neighboring: Neighboring,
) -> TrainingSpec:
    training, limits = body.training, body.limits
    batch = training.expected_batch_size
    if batch is None:
        # Public numbers alone: the rate of the first segment times the public n.
        batch = mechanism.schedule[0].sampling_rate * dataset.record_count
    return TrainingSpec(
        dataset_source=dataset.source,  # pyright: ignore[reportArgumentType] - the spec checks it
        record_count=dataset.record_count,
        model=training.model,
        model_options=preset.model_options,
        optimizer=_optimizer(training.optimizer or OptimizerRequest(), preset),
        mechanism=mechanism,
        max_grad_norm=float(body.privacy.max_grad_norm or preset.max_grad_norm),
        expected_batch_size=float(batch),
        neighboring=neighboring,
        seed_policy=body.seed_policy,
        seed=body.seed,
        device=training.device,
        max_runtime_s=float(limits.max_runtime_s or preset.max_runtime_s),
        lease_steps=limits.lease_steps or default_lease_steps(mechanism.steps),
    )


def _optimizer(asked: OptimizerRequest, preset: Defaults) -> Optimizer:
    """The preset's optimiser with what was asked for; another optimiser starts from scratch."""
    name = asked.name or preset.optimizer.name
    same = name == preset.optimizer.name
    rate = asked.learning_rate
    if rate is None:
        rate = preset.optimizer.learning_rate if same else _ADAM_LEARNING_RATE
    momentum = asked.momentum
    if momentum is None:
        momentum = preset.optimizer.momentum if same else 0.0
    return Optimizer(
        name=name,
        learning_rate=float(rate),
        momentum=float(momentum),
        weight_decay=float(asked.weight_decay or 0.0),
    )


_ADAM_LEARNING_RATE = 0.01


def _shown(
    body: TrainingJobCreate, spec: TrainingSpec, *, delta: float, epsilon: Interval
) -> dict[str, Any]:
    return {
        "training": Training(
            model=spec.model,
            model_options=dict(spec.model_options),
            optimizer=WireOptimizer(
                name=spec.optimizer.name,
                learning_rate=spec.optimizer.learning_rate,
                momentum=spec.optimizer.momentum,
                weight_decay=spec.optimizer.weight_decay,
            ),
            expected_batch_size=spec.expected_batch_size,
            device=spec.device,
        ).model_dump(mode="json"),
        "privacy": Privacy(
            mechanism=from_core(spec.mechanism),
            target_epsilon=body.privacy.target_epsilon,
            delta=delta,
            max_grad_norm=spec.max_grad_norm,
            neighboring=spec.neighboring,
        ).model_dump(mode="json"),
        "limits": Limits(max_runtime_s=spec.max_runtime_s, lease_steps=spec.lease_steps).model_dump(
            mode="json"
        ),
        "seed_policy": spec.seed_policy,
        "metadata": dict(body.metadata),
        "forecast": _forecast(spec, delta=delta, epsilon=epsilon).model_dump(mode="json"),
    }


def _forecast(spec: TrainingSpec, *, delta: float, epsilon: Interval) -> Forecast:
    schedule = spec.mechanism.schedule
    one = schedule[0] if len(schedule) == 1 else None
    return Forecast(
        epsilon=base.Interval.from_core(epsilon),
        delta=delta,
        neighboring=spec.neighboring,
        noise_multiplier=one.noise_multiplier if one else None,
        sampling_rate=one.sampling_rate if one else None,
        steps=spec.total_steps,
        expected_batch_size=spec.expected_batch_size,
        sampler=spec.mechanism.sampler,
    )
