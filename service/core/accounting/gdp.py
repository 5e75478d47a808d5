"""Gaussian differential privacy: exact for Gaussian noise, an estimate by CLT otherwise.

The CLT value can lie *below* the truth (2.5412 against 2.6755 for q=0.01, σ=1.1, 3,000
steps, δ=1e-5). It is for what-if answers with a warning, never for a claim (R2).
"""

import math
from collections.abc import Callable
from typing import Final

from scipy import special  # pyright: ignore[reportMissingTypeStubs]

from service.core.accounting.kernels import Kernel, is_noiseless, kernels, unsupported
from service.core.errors import InvalidInput
from service.core.events import Composed, EpochDpSgd, Event, Neighboring, Repeated
from service.core.interval import Interval

_ROUNDING: Final = 1e-13  # of ln Φ relative to its size, several times scipy's error


def epsilon_estimate(
    event: Event, *, delta: float, neighboring: Neighboring
) -> tuple[Interval | None, float]:
    """ε(δ) by Gaussian differential privacy.

    Guarantees: the interval, where there is one, contains the true ε (for ``shuffle`` and
    ``balls_in_bins`` its lower end is 0, since only an upper bound is Gaussian). The float
    alone guarantees nothing; it is never negative.

    Args:
        event: Gaussian or DP-SGD releases.
        delta: in (0, 1).
        neighboring: the relation.

    Returns:
        The exact interval if every part is Gaussian noise without sampling, else None; and
        the estimate.

    Raises:
        InvalidInput: the event has parts that are not Gaussian.

    Source: Dong, Roth & Su 2022, Corollary 2.13 (exact); Bu, Dong, Long & Su 2020,
        Corollary 4 (CLT, add_or_remove_one); the value for replace_one follows in the same
        way from the χ² of its pair.
    """
    if not 0 < delta < 1:
        raise InvalidInput("delta lies in (0, 1).", pointer="/delta")
    counts = kernels(event, neighboring=neighboring, accountant="gdp")
    if any(kernel.kind not in ("gaussian", "poisson") for kernel in counts):
        raise unsupported("gdp", "noise that is not Gaussian")
    if not counts:
        return Interval(0.0, 0.0), 0.0
    if is_noiseless(counts):
        return Interval(math.inf, math.inf), math.inf
    squares = [
        count * _squared_mu(kernel, replace_one=neighboring == "replace_one")
        for kernel, count in counts.items()
    ]
    mu = math.sqrt(math.fsum(squares))
    if math.isinf(mu):
        estimate = math.inf
        exact = Interval(0.0, math.inf)
    else:
        exact = gaussian_epsilon(mu * (1 - 1e-12), mu * (1 + 1e-12), delta=delta)
        estimate = (exact.lower + exact.upper) / 2
    if any(kernel.kind == "poisson" for kernel in counts):
        return None, estimate
    if _has_epochs(event):
        return Interval(0.0, exact.upper), exact.upper
    return exact, estimate


def gaussian_epsilon(mu_low: float, mu_high: float, *, delta: float) -> Interval:
    """ε(δ) of every μ-GDP Gaussian pair with μ in [mu_low, mu_high], 0 < mu_low.

    Source: δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2) (Balle & Wang 2018, Theorem 8).
    """
    log_delta = math.log(delta)
    lower = _solve(lambda epsilon: _log_delta(epsilon, mu_low)[0] > log_delta, mu_low)[0]
    upper = _solve(lambda epsilon: _log_delta(epsilon, mu_high)[1] > log_delta, mu_high)[1]
    return Interval(min(lower, upper), upper)


def _squared_mu(kernel: Kernel, *, replace_one: bool) -> float:
    t = 1 / kernel.scale
    if kernel.kind == "gaussian":
        return t * t
    q = kernel.sampling_rate
    try:
        # χ² of the pair for small q: e^{t²} − 1, and 4 sinh t² for ±1.
        return q * q * (4 * math.sinh(t * t) if replace_one else math.expm1(t * t))
    except OverflowError:
        return math.inf


def _has_epochs(event: Event) -> bool:
    match event:
        case Composed():
            return any(_has_epochs(part) for part in event.parts)
        case Repeated():
            return _has_epochs(event.of)
        case _:
            return isinstance(event, EpochDpSgd)


def _log_delta(epsilon: float, mu: float) -> tuple[float, float]:
    """Bounds of ln δ(ε), −inf to +0."""
    first = float(special.log_ndtr(-epsilon / mu + mu / 2))
    second = epsilon + float(special.log_ndtr(-epsilon / mu - mu / 2))
    error = _ROUNDING * (1 + abs(first) + epsilon + abs(second - epsilon))
    gap = second - first
    low, high = gap + error, gap - error  # a wider gap is a larger δ
    least = -math.inf if low >= 0 else first - error + math.log(-math.expm1(low))
    most = first + error + math.log(-math.expm1(min(high, -error)))
    return least, most


def _solve(is_above: Callable[[float], bool], mu: float) -> tuple[float, float]:
    """Neighbouring ε around the last at which δ(ε) is above its target; 0 if it never is."""
    if not is_above(0.0):
        return 0.0, 0.0
    low, high = 0.0, mu * mu / 2 + mu + 1
    while is_above(high):
        low, high = high, 2 * high
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if is_above(middle):
            low = middle
        else:
            high = middle
    return low, high
