"""Two peers as second opinions: prv-accountant and dp-accounting, never as the authority.

Both are imported when first asked, so that the core stays light. Their intervals are their
own claims: "pessimistic" of a peer is not our certificate (R3). Their numbers never enter a
balance (R10).
"""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

from service.core.accounting.kernels import Kernel, is_noiseless, kernels, unsupported
from service.core.accounting.rdp import epsilon_upper
from service.core.errors import InvalidInput
from service.core.events import Event, Neighboring
from service.core.interval import Interval

MAX_CELLS: Final = 2**24  # of a peer's discretised privacy loss: memory and seconds
PLD_MOST_EPSILON: Final = 1000.0  # beyond it the engine takes minutes to say little
PRV_EPSILON_ERROR: Final = 0.01
_NUMERICAL: Final = (
    ArithmeticError,
    AssertionError,
    IndexError,
    MemoryError,
    RuntimeError,
    ValueError,
)


def prv_epsilon(event: Event, *, delta: float, neighboring: Neighboring) -> Interval:
    """ε(δ) by prv-accountant (Gopi, Lee & Wutschitz 2021).

    Raises:
        InvalidInput: code INCONSISTENT for a relation or mechanism it does not know; code
            ACCOUNTANT_NUMERICAL_FAILURE if the engine gives up or would need too much memory.
    """
    _check_delta(delta)
    return _prv(
        event,
        neighboring,
        delta,
        lambda engine, numbers: engine.compute_epsilon(delta, numbers),
        certain=math.inf,
    )


def prv_delta(event: Event, *, epsilon: float, neighboring: Neighboring) -> Interval:
    """δ(ε) by prv-accountant, to an absolute error of 1e-10. Raises: as ``prv_epsilon``."""
    _check_epsilon(epsilon)
    return _prv(
        event,
        neighboring,
        1e-7,
        lambda engine, numbers: engine.compute_delta(epsilon, numbers),
        certain=1.0,
    )


def pld_epsilon(event: Event, *, delta: float, neighboring: Neighboring) -> Interval:
    """ε(δ) by dp-accounting's privacy loss distributions, optimistic to pessimistic.

    Raises:
        InvalidInput: code INCONSISTENT for a mechanism it does not know; code
            ACCOUNTANT_NUMERICAL_FAILURE if the engine gives up or would need too much memory.
    """
    _check_delta(delta)
    return _pld(
        event,
        neighboring,
        delta,
        lambda distribution: distribution.get_epsilon_for_delta(delta),
        certain=math.inf,
    )


def pld_delta(event: Event, *, epsilon: float, neighboring: Neighboring) -> Interval:
    """δ(ε) by dp-accounting, optimistic to pessimistic. Raises: as ``pld_epsilon``."""
    _check_epsilon(epsilon)
    return _pld(
        event,
        neighboring,
        1e-7,
        lambda distribution: distribution.get_delta_for_epsilon(epsilon),
        certain=1.0,
    )


def _prv(
    event: Event,
    neighboring: Neighboring,
    delta: float,
    ask: Callable[[Any, list[int]], tuple[float, float, float]],
    *,
    certain: float,
) -> Interval:
    if neighboring == "replace_one":
        raise unsupported("prv", "replace_one")
    counts = kernels(event, neighboring=neighboring, accountant="prv")
    if any(kernel.kind == "pure" for kernel in counts):
        raise unsupported("prv", "pure mechanisms other than Laplace noise")
    known = _without_noise(counts, certain)
    if known is not None:
        return known
    numbers = list(counts.values())
    # Its mesh (Theorem 5.5 of the paper) against the domain that RDP makes safe.
    mesh = PRV_EPSILON_ERROR / math.sqrt(sum(numbers) / 2 * math.log(12 / (delta / 1000)))
    reach = epsilon_upper(event, delta=delta / 4000, neighboring=neighboring) + 3
    if not 2 * reach / mesh <= MAX_CELLS:
        raise _failed("prv")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            low, _, high = ask(_prv_engine(counts, numbers, delta), numbers)
        except _NUMERICAL as error:
            raise _failed("prv") from error
    return _interval("prv", low, high, certain)


def _prv_engine(counts: Mapping[Kernel, int], numbers: list[int], delta: float) -> Any:
    import prv_accountant  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
    from prv_accountant import (  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
        privacy_random_variables as prv,
    )

    def variable(kernel: Kernel) -> Any:
        if kernel.kind == "laplace":
            return prv.LaplaceMechanism(mu=1 / kernel.scale)
        if kernel.kind == "gaussian":
            return prv.GaussianMechanism(noise_multiplier=kernel.scale)
        return prv.PoissonSubsampledGaussianMechanism(
            sampling_probability=kernel.sampling_rate, noise_multiplier=kernel.scale
        )

    return prv_accountant.PRVAccountant(
        prvs=[variable(kernel) for kernel in counts],
        max_self_compositions=numbers,
        eps_error=PRV_EPSILON_ERROR,
        delta_error=delta / 1000,
    )


def _pld(
    event: Event,
    neighboring: Neighboring,
    delta: float,
    ask: Callable[[Any], float],
    *,
    certain: float,
) -> Interval:
    counts = kernels(event, neighboring=neighboring, accountant="pld")
    known = _without_noise(counts, certain)
    if known is not None:
        return known
    size = epsilon_upper(event, delta=delta, neighboring=neighboring)
    if not size <= PLD_MOST_EPSILON:
        raise _failed("pld")
    # Fine cells for small ε, coarse ones where ε is large: both are relative to the answer.
    step = max(min(1e-4, size / 3e4), size / 1e6, 1e-7)
    ends: list[float] = []
    for pessimistic in (False, True):
        try:
            ends.append(ask(_distribution(counts, neighboring, step, pessimistic=pessimistic)))
        except _NUMERICAL as error:
            raise _failed("pld") from error
    return _interval("pld", min(ends), max(ends), certain)


def _distribution(
    counts: Mapping[Kernel, int], neighboring: Neighboring, step: float, *, pessimistic: bool
) -> Any:
    from dp_accounting import (  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
        NeighboringRelation,
    )
    from dp_accounting.pld import (  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
        privacy_loss_distribution as pld,
    )

    relation = (
        NeighboringRelation.REPLACE_ONE
        if neighboring == "replace_one"
        else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    options: dict[str, Any] = {
        "pessimistic_estimate": pessimistic,
        "value_discretization_interval": step,
    }
    total = pld.identity(**options)
    for kernel, count in counts.items():
        match kernel.kind:
            case "gaussian":
                one = pld.from_gaussian_mechanism(
                    kernel.scale / math.sqrt(count), use_connect_dots=pessimistic, **options
                )
                total = total.compose(one)
                continue
            case "poisson":
                one = pld.from_gaussian_mechanism(
                    kernel.scale,
                    sampling_prob=kernel.sampling_rate,
                    neighboring_relation=relation,
                    use_connect_dots=pessimistic,
                    **options,
                )
            case "laplace":
                one = pld.from_laplace_mechanism(
                    kernel.scale, use_connect_dots=pessimistic, **options
                )
            case "pure":
                # Two buckets: the outcome is uniform with probability 2/(1 + e^ε).
                mixing = 2 / (1 + math.exp(kernel.scale))
                one = pld.from_randomized_response(mixing, 2, **options)
        total = total.compose(one.self_compose(count))
    return total


def _without_noise(counts: Mapping[Kernel, int], certain: float) -> Interval | None:
    """The answer where no engine is needed: nothing was released, or without noise."""
    if not counts:
        return Interval(0.0, 0.0)
    return Interval(certain, certain) if is_noiseless(counts) else None


def _interval(name: str, low: float, high: float, certain: float) -> Interval:
    if math.isnan(low) or math.isnan(high) or high < low:
        raise _failed(name)
    return Interval(min(max(float(low), 0.0), certain), min(max(float(high), 0.0), certain))


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise InvalidInput("delta lies in (0, 1).", pointer="/delta")


def _check_epsilon(epsilon: float) -> None:
    if not 0 <= epsilon < math.inf:
        raise InvalidInput("epsilon is a finite number, at least 0.", pointer="/epsilon")


def _failed(name: str) -> InvalidInput:
    return InvalidInput(
        f"The accountant {name} found no number for this mechanism; use auto or rdp.",
        pointer="/accountant",
        code="ACCOUNTANT_NUMERICAL_FAILURE",
    )
