"""/v1/accounting: ε, δ, σ and steps as certified intervals."""

import time
from importlib.metadata import version

from fastapi import APIRouter

from service import __version__
from service.api.deps import AnyKey
from service.api.strict import StrictRoute
from service.calculator import Calculator
from service.core.accounting import answers, calibration
from service.core.errors import InvalidInput
from service.core.events import Event, Neighboring, part_count
from service.schemas.accounting import (
    Accountant,
    Accountants,
    CrossCheck,
    CrossChecker,
    DeltaAnswer,
    DeltaRequest,
    EpsilonAnswer,
    EpsilonRequest,
    NoiseMultiplierAnswer,
    NoiseMultiplierRequest,
    StepsAnswer,
    StepsRequest,
)
from service.schemas.base import Interval

router = APIRouter(prefix="/v1/accounting", tags=["Accounting"], route_class=StrictRoute)
_SLOW = ("prv", "pld")
_MANY_PARTS = 64  # more would hold a request's thread for longer than its neighbours like


@router.post("/epsilon")
def epsilon(body: EpsilonRequest, caller: AnyKey) -> EpsilonAnswer:
    """The least ε at a δ: a certified interval, with other accountants beside it."""
    start = time.perf_counter()
    event = body.mechanism.to_core()
    calculator = caller.parts.calculator
    answer = _epsilon(calculator, event, body.delta, body.neighboring, body.accountant)
    others = [
        _cross_check(calculator, name, event, body.delta, body.neighboring)
        for name in dict.fromkeys(body.cross_checks)
        if name != body.accountant
    ]
    return EpsilonAnswer.from_core(
        answer, request=body, cross_checks=others, elapsed_ms=_since(start)
    )


@router.post("/delta")
def delta(body: DeltaRequest, caller: AnyKey) -> DeltaAnswer:
    """The least δ at an ε."""
    start = time.perf_counter()
    event = body.mechanism.to_core()
    ask = {
        "epsilon": float(body.epsilon),
        "neighboring": body.neighboring,
        "accountant": body.accountant,
    }
    if body.accountant in _SLOW or part_count(event) > _MANY_PARTS:
        answer = caller.parts.calculator.run(answers.delta, event, **ask)
    else:
        answer = answers.delta(event, **ask)
    return DeltaAnswer.from_core(answer, request=body, elapsed_ms=_since(start))


@router.post("/noise-multiplier")
def noise_multiplier(body: NoiseMultiplierRequest, caller: AnyKey) -> NoiseMultiplierAnswer:
    """The least noise that keeps the certified ε within a target, rounded up."""
    start = time.perf_counter()
    found = caller.parts.calculator.run(
        calibration.noise_multiplier,
        body.mechanism.to_core(),
        target_epsilon=float(body.target_epsilon),
        delta=float(body.delta),
        neighboring=body.neighboring,
        accountant=body.accountant,
    )
    return NoiseMultiplierAnswer.from_core(
        found,
        request=body,
        elapsed_ms=_since(start),
    )


@router.post("/steps")
def steps(body: StepsRequest, caller: AnyKey) -> StepsAnswer:
    """The most steps whose certified ε stays within a target."""
    start = time.perf_counter()
    found = caller.parts.calculator.run(
        calibration.steps,
        body.mechanism.to_core(),
        target_epsilon=float(body.target_epsilon),
        delta=float(body.delta),
        neighboring=body.neighboring,
        accountant=body.accountant,
    )
    return StepsAnswer.from_core(
        found,
        request=body,
        elapsed_ms=_since(start),
    )


@router.get("/accountants")
def accountants(caller: AnyKey) -> Accountants:  # noqa: ARG001 - any good key may ask
    """Who can be asked, and what their numbers are worth."""
    return Accountants(
        data=[
            Accountant(
                name="auto",
                version=__version__,
                certified=True,
                bounds="both",
                valid_for="every mechanism; fixed parameters; delta from 1e-30 to 1",
            ),
            Accountant(
                name="rdp",
                version=__version__,
                certified=True,
                bounds="upper",
                valid_for="every mechanism without a delta of its own; any adaptive use",
            ),
            Accountant(
                name="prv",
                version=version("prv-accountant"),
                certified=False,
                bounds="both",
                valid_for="Poisson, Gaussian and Laplace under add_or_remove_one; delta > 1e-10",
            ),
            Accountant(
                name="pld",
                version=version("dp-accounting"),
                certified=False,
                bounds="both",
                valid_for="Poisson, Gaussian and Laplace; delta > 1e-10",
            ),
            Accountant(
                name="gdp",
                version=__version__,
                certified=False,
                bounds="both",
                valid_for="exact for Gaussian mechanisms without subsampling, an estimate "
                "(too low at times) elsewhere",
            ),
        ]
    )


def _epsilon(
    calculator: Calculator,
    event: Event,
    delta: float,
    neighboring: Neighboring,
    accountant: answers.Accountant,
) -> answers.EpsilonAnswer:
    if accountant in _SLOW or part_count(event) > _MANY_PARTS:
        return calculator.run(
            answers.epsilon,
            event,
            delta=float(delta),
            neighboring=neighboring,
            accountant=accountant,
        )
    return answers.epsilon(
        event, delta=float(delta), neighboring=neighboring, accountant=accountant
    )


def _cross_check(
    calculator: Calculator,
    name: CrossChecker,
    event: Event,
    delta: float,
    neighboring: Neighboring,
) -> CrossCheck:
    try:
        answer = _epsilon(calculator, event, delta, neighboring, name)
    except InvalidInput as error:  # it has no answer here: that is worth knowing, not a failure
        return CrossCheck(accountant=name, epsilon=None, certified=False, detail=error.message)
    if not answer.certified and answer.estimate is not None:
        detail = f"An estimate without a bound: {answer.estimate:.6g}."
        return CrossCheck(accountant=name, epsilon=None, certified=False, detail=detail)
    return CrossCheck(
        accountant=name, epsilon=Interval.from_core(answer.epsilon), certified=name == "rdp"
    )


def _since(start: float) -> float:
    return round((time.perf_counter() - start) * 1e3, 3)
