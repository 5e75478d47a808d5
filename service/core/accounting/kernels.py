"""The few noise kernels that every peer accountant knows, read off an event.

A kernel is one release repeated ``count`` times, already in the units of its neighboring
pair: its noise is divided by the pair's distance, except for Poisson sampling under
replace_one, which has a pair of its own and no such scaling.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from service.core.accounting.rdp import combined_noise_multiplier, epoch_shift
from service.core.errors import InvalidInput
from service.core.events import (
    ApproximateDp,
    Composed,
    DiscreteGaussian,
    EpochDpSgd,
    Event,
    Gaussian,
    Laplace,
    Neighboring,
    RandomizedResponse,
    Repeated,
    StepwiseDpSgd,
    Zcdp,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """``count`` releases. ``scale`` is σ, Laplace's b, or ε of a pure mechanism."""

    kind: Literal["gaussian", "poisson", "laplace", "pure"]
    scale: float
    sampling_rate: float = 1.0


def kernels(event: Event, *, neighboring: Neighboring, accountant: str) -> dict[Kernel, int]:
    """The kernels of ``event`` and how often each is applied, equal ones joined.

    Guarantees: ``shuffle`` and ``balls_in_bins`` become their unamplified upper bound, one
    Gaussian per epoch (R4); every other kernel is the pair itself.

    Raises:
        InvalidInput: a part is none of the kernels; ``accountant`` is named in the text.
    """
    found: dict[Kernel, int] = {}
    for kernel, count in _walk(event, 1, neighboring, accountant):
        found[kernel] = found.get(kernel, 0) + count
    return found


def is_noiseless(counts: Iterable[Kernel]) -> bool:
    """True if a kernel releases its value as it is."""
    return any(kernel.kind != "pure" and kernel.scale <= 0 for kernel in counts)


def unsupported(accountant: str, what: str) -> InvalidInput:
    """The refusal of an accountant that does not cover the request."""
    return InvalidInput(
        f"The accountant {accountant} does not support {what}.",
        pointer="/accountant",
        code="INCONSISTENT",
    )


def _walk(
    event: Event, times: int, neighboring: Neighboring, accountant: str
) -> Iterable[tuple[Kernel, int]]:
    match event:
        case Composed():
            for part in event.parts:
                yield from _walk(part, times, neighboring, accountant)
        case Repeated():
            yield from _walk(event.of, times * event.times, neighboring, accountant)
        case StepwiseDpSgd():
            for kernel, count in _of_steps(event, neighboring):
                yield kernel, count * times
        case EpochDpSgd():
            shift = epoch_shift(event, neighboring=neighboring)
            sigma = 0.0 if math.isinf(shift) else 1 / shift
            yield Kernel(kind="gaussian", scale=sigma), event.epochs * times
        case _:
            yield _of_release(event, neighboring, accountant), event.count * times


def _of_steps(event: StepwiseDpSgd, neighboring: Neighboring) -> Iterable[tuple[Kernel, int]]:
    for segment in event.schedule:
        sigma = combined_noise_multiplier(segment.noise_multiplier, event.count_noise_stddev)
        if segment.sampling_rate < 1:
            kernel = Kernel(kind="poisson", scale=sigma, sampling_rate=segment.sampling_rate)
        else:
            kernel = Kernel(kind="gaussian", scale=sigma / _distance(neighboring))
        yield kernel, segment.steps


_Release = Gaussian | Laplace | DiscreteGaussian | RandomizedResponse | ApproximateDp | Zcdp


def _of_release(event: _Release, neighboring: Neighboring, accountant: str) -> Kernel:
    match event:
        case Gaussian():
            return Kernel(kind="gaussian", scale=event.noise_multiplier / _distance(neighboring))
        case Laplace():
            return Kernel(kind="laplace", scale=event.noise_multiplier / _distance(neighboring))
        case RandomizedResponse():
            return Kernel(kind="pure", scale=event.epsilon)
        case ApproximateDp() if event.delta <= 0:
            return Kernel(kind="pure", scale=event.epsilon)
        case _:
            raise unsupported(accountant, f"the mechanism {type(event).__name__}")


def _distance(neighboring: Neighboring) -> float:
    return 2.0 if neighboring == "replace_one" else 1.0
