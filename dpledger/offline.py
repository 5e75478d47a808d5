"""The pure calculations without a service: the same core, the same fields as the wire."""

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from dpledger.errors import ClientError
from dpledger.transport import Json
from service.core.accounting import answers, calibration
from service.core.errors import DomainError
from service.core.events import Neighboring
from service.schemas.base import Interval
from service.schemas.mechanism import Mechanism, MechanismWithoutNoise, MechanismWithoutSteps


def account(
    what: str, *, mechanism: Mapping[str, Any], neighboring: Neighboring, **given: float
) -> Json:
    """Certified accounting on this machine.

    Args:
        what: ``epsilon``, ``delta``, ``noise-multiplier`` or ``steps``.
        mechanism: The mechanism's JSON, without the field that is asked for.
        neighboring: The relation of the claim.
        given: ``delta``, ``epsilon`` or ``target_epsilon``, as the question needs.

    Returns:
        What ``POST /v1/accounting/{what}`` answers, less the fields of the service alone.

    Raises:
        ClientError: The question makes no sense, or no answer can be certified.
    """
    if neighboring not in get_args(Neighboring):
        raise ClientError(f"neighboring is one of {', '.join(get_args(Neighboring))}.")
    try:
        return _ANSWERS[what](mechanism, neighboring=neighboring, **given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise ClientError(f"mechanism {where}: {first['msg']}") from error
    except DomainError as error:
        raise ClientError(f"{error.code}: {error.message}") from error


def _epsilon(mechanism: Mapping[str, Any], *, neighboring: Neighboring, delta: float) -> Json:
    event = TypeAdapter[Any](Mechanism).validate_python(mechanism).to_core()
    answer = answers.epsilon(event, delta=delta, neighboring=neighboring)
    return _described(answer, epsilon=_interval(answer.epsilon), neighboring=neighboring)


def _delta(mechanism: Mapping[str, Any], *, neighboring: Neighboring, epsilon: float) -> Json:
    event = TypeAdapter[Any](Mechanism).validate_python(mechanism).to_core()
    answer = answers.delta(event, epsilon=epsilon, neighboring=neighboring)
    return _described(answer, delta=_interval(answer.delta), neighboring=neighboring)


def _described(answer: answers.EpsilonAnswer | answers.DeltaAnswer, **fields: Any) -> Json:
    warnings = [str(warning.value) for warning in answer.warnings]
    return {**fields, "accountant": answer.accountant, "certified": True, "warnings": warnings}


def _noise(
    mechanism: Mapping[str, Any], *, neighboring: Neighboring, delta: float, target_epsilon: float
) -> Json:
    template = TypeAdapter[Any](MechanismWithoutNoise).validate_python(mechanism).to_core()
    found = calibration.noise_multiplier(
        template, target_epsilon=target_epsilon, delta=delta, neighboring=neighboring
    )
    achieved = {"epsilon": _interval(found.achieved)}
    return {"noise_multiplier": found.noise_multiplier, "achieved": achieved}


def _steps(
    mechanism: Mapping[str, Any], *, neighboring: Neighboring, delta: float, target_epsilon: float
) -> Json:
    template = TypeAdapter[Any](MechanismWithoutSteps).validate_python(mechanism).to_core()
    found = calibration.steps(
        template, target_epsilon=target_epsilon, delta=delta, neighboring=neighboring
    )
    return {"steps": found.steps, "achieved": {"epsilon": _interval(found.achieved)}}


def _interval(interval: Any) -> Json:
    return Interval.from_core(interval).model_dump()


_ANSWERS = {"epsilon": _epsilon, "delta": _delta, "noise-multiplier": _noise, "steps": _steps}
