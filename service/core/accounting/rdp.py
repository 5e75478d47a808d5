"""Rényi accounting: certified upper bounds that stay valid under any adaptive use.

At a fixed order α the Rényi divergences of adaptively chosen mechanisms add up, whoever
chooses them and whatever the choice depends on (R2). These are therefore the numbers that
the ledger adds. Every function here rounds up; what overflows is ``inf``, never NaN.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from service.core.accounting.rdp_poisson import step_divergence
from service.core.errors import InvalidInput, NotCertified
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

ROUND_UP: Final = 1 + 1e-12  # covers the rounding of every closed form below
MAX_ORDER: Final = 1e6
LEAST_GAP: Final = 1e-6  # least α − 1 of the search
MANY_PAIRS: Final = 500  # distinct (σ, q) pairs of one schedule that are priced one by one
PATIENCE: Final = 7  # grid points, each twice the last, that the search goes past its best

_Curve = Callable[[float], float]


def rdp(event: Event, *, orders: Sequence[float], neighboring: Neighboring) -> tuple[float, ...]:
    """The Rényi divergence of ``event`` at each order, from above.

    Guarantees: each value is at least the Rényi divergence of order α for both directions of
    every neighboring pair, also if outputs chose among the parts; ``inf`` where it is
    unbounded or overflows; monotone in steps, 1/σ and q up to the stated margins.

    Args:
        event: any event.
        orders: each α > 1.
        neighboring: the relation. zero_out has the pair of add_or_remove_one, except for
            shuffle (R4).

    Returns:
        One value per order, in the order given.

    Raises:
        InvalidInput: an order is not above 1.
        NotCertified: a part states δ > 0, which no Rényi account can carry.
    """
    for index, alpha in enumerate(orders):
        if not 1 < alpha < math.inf:
            raise InvalidInput("An order is a finite number above 1.", pointer=f"/orders/{index}")
    costs = tuple(_parts(event, 1))
    return tuple(_total(costs, alpha, neighboring, {}) for alpha in orders)


def epsilon_upper(
    event: Event,
    *,
    delta: float,
    neighboring: Neighboring,
    orders: Sequence[float] | None = None,
) -> float:
    """The least ε that Rényi accounting proves at ``delta``; ``inf`` if there is none.

    Guarantees: at least the true ε(δ). Without ``orders`` the order is searched over
    1 + 10⁻⁶ to 10⁶, so that no grid edge decides.

    Args:
        event: any event that states no δ of its own.
        delta: in (0, 1).
        neighboring: the relation.
        orders: fixed orders to choose from, each above 1.

    Source: Canonne, Kamath & Steinke 2020, arXiv 2004.00010, Proposition 12.
    """
    if not 0 < delta < 1:
        raise InvalidInput("delta lies in (0, 1).", pointer="/delta")
    log_delta = math.log(delta)

    def objective(alpha: float, divergence: float) -> float:
        # ε = R(α) + ln(1 − 1/α) − (ln δ + ln α)/(α − 1)
        return divergence + conversion(alpha, log_delta)

    best = _minimise(event, objective, neighboring=neighboring, orders=orders)
    return max(0.0, best + abs(best) * 1e-14)


def delta_upper(
    event: Event,
    *,
    epsilon: float,
    neighboring: Neighboring,
    orders: Sequence[float] | None = None,
) -> float:
    """The least δ that Rényi accounting proves at ``epsilon``, at most 1.

    Guarantees: at least the true δ(ε).

    Args:
        event: any event that states no δ of its own.
        epsilon: finite, at least 0.
        neighboring: the relation.
        orders: fixed orders to choose from, each above 1.

    Source: as ``epsilon_upper``, solved for δ.
    """
    if not 0 <= epsilon < math.inf:
        raise InvalidInput("epsilon is a finite number, at least 0.", pointer="/epsilon")

    def objective(alpha: float, divergence: float) -> float:
        # ln δ = (α − 1)(R(α) − ε + ln(1 − 1/α)) − ln α
        log_delta = (alpha - 1) * (divergence - epsilon + math.log1p(-1 / alpha))
        rounding = (alpha - 1) * (abs(divergence) + epsilon) * 1e-15
        return log_delta + rounding - math.log(alpha)

    best = _minimise(event, objective, neighboring=neighboring, orders=orders)
    return min(1.0, math.exp(min(best, 0.0)) * ROUND_UP)


def conversion(alpha: float, log_delta: float) -> float:
    """What ε(δ) adds to the divergence of order α: ln(1 − 1/α) − (ln δ + ln α)/(α − 1).

    Guarantees: rounded up. In the notation of R9 it is [ln(1/δ) + ln c_α]/(α − 1) with
    c_α = (1/α)(1 − 1/α)^(α−1).
    """
    first = math.log1p(-1 / alpha)
    second = (log_delta + math.log(alpha)) / (alpha - 1)
    return first - second + (abs(first) + abs(second)) * 1e-14


def pure_divergence(alpha: float, epsilon: float) -> float:
    """The largest D_α of any pure ε-DP mechanism, from above: that of randomised response.

    Source: Bun & Steinke 2016, Proposition 3.3, before its simplification to αε²/2.
    """
    # A − 1 = (e^{αε} − 1)(1 − e^{−(α−1)ε}) / (1 + e^ε): no cancellation.
    fall = -math.expm1(-(alpha - 1) * epsilon)
    if alpha * epsilon > 600:
        log_moment = (alpha - 1) * epsilon + math.log1p(math.exp(-(2 * alpha - 1) * epsilon))
    else:
        log_moment = math.log1p(math.expm1(alpha * epsilon) * fall / (1 + math.exp(epsilon)))
    return min(log_moment / (alpha - 1), epsilon) * ROUND_UP


def combined_noise_multiplier(noise_multiplier: float, count_noise_stddev: float | None) -> float:
    """The σ of the joint release of gradient and clipping count: z⁻² = σ⁻² + (2σ_b)⁻² (R22).

    Guarantees: rounded down. Source: Andrew et al. 2021, Theorem 1; it holds for every
    relation, because the centred count moves by ½ where the gradient moves by one norm.
    """
    if count_noise_stddev is None or noise_multiplier <= 0:
        return noise_multiplier
    return (
        noise_multiplier / math.hypot(1.0, noise_multiplier / (2 * count_noise_stddev)) / ROUND_UP
    )


def epoch_shift(event: EpochDpSgd, *, neighboring: Neighboring) -> float:
    """The shift of the one unamplified Gaussian that dominates an epoch, from above.

    Guarantees: valid for any order of the batches, redrawn or not (R4). For balls_in_bins it
    forgoes the amplification of random allocation: an upper bound, not a tight value.
    """
    sigma = combined_noise_multiplier(event.noise_multiplier, event.count_noise_stddev)
    if sigma <= 0:
        return math.inf
    if neighboring == "replace_one":
        distance = 2.0
    elif event.sampler == "balls_in_bins" or neighboring == "zero_out":
        distance = 1.0
    else:
        # Adding a record shifts the permutation: one batch swaps a record (2C); a kept ragged
        # batch gains one besides (C), √(2² + 1²).
        distance = 2.0 if event.remainder == "dropped" else math.sqrt(5.0)
    return distance / sigma


def _parts(event: Event, times: int) -> Iterable[tuple[Event, int]]:
    """The leaves of an event with their multiplicities."""
    match event:
        case Composed():
            for part in event.parts:
                yield from _parts(part, times)
        case Repeated():
            yield from _parts(event.of, times * event.times)
        case _:
            yield event, times


_Steps = dict[tuple[float, float], float]


def _total(
    costs: Sequence[tuple[Event, int]], alpha: float, neighboring: Neighboring, steps: _Steps
) -> float:
    """The sum over the leaves; ``steps`` remembers equal steps of this order."""
    terms = [_scaled(_leaf(leaf, alpha, neighboring, steps), times) for leaf, times in costs]
    return _sum_up(terms)


def _scaled(value: float, times: int) -> float:
    if value <= 0:
        return 0.0
    try:
        return value * times
    except OverflowError:
        return math.inf


def _sum_up(terms: Sequence[float]) -> float:
    if any(math.isinf(term) for term in terms):
        return math.inf
    try:
        total = math.fsum(terms)
    except OverflowError:
        return math.inf
    return total * (1 + 4e-16)


def _leaf(leaf: Event, alpha: float, neighboring: Neighboring, steps: _Steps) -> float:
    replace = neighboring == "replace_one"
    shift = 2.0 if replace else 1.0
    match leaf:
        case StepwiseDpSgd():
            return _stepwise(leaf, alpha, neighboring, steps)
        case EpochDpSgd():
            return leaf.epochs * _gaussian(alpha, epoch_shift(leaf, neighboring=neighboring))
        case Gaussian() | DiscreteGaussian():
            # Discrete: Canonne, Kamath & Steinke 2020, Proposition 5 (whole shifts).
            return leaf.count * _gaussian(alpha, _ratio(shift, leaf.noise_multiplier))
        case Laplace():
            return leaf.count * _laplace(alpha, _ratio(shift, leaf.noise_multiplier))
        case RandomizedResponse():
            return leaf.count * pure_divergence(alpha, leaf.epsilon)
        case ApproximateDp():
            if leaf.delta > 0:
                raise NotCertified(
                    "An (ε, δ) statement with δ > 0 cannot be carried in a Rényi account.",
                    pointer="/mechanism/delta",
                )
            return leaf.count * pure_divergence(alpha, leaf.epsilon)
        case Zcdp():
            # Stated by another system for its relation; the booker answers for the match.
            return leaf.count * alpha * leaf.rho * ROUND_UP
        case Composed() | Repeated():
            raise AssertionError("a leaf has no parts")


def _stepwise(event: StepwiseDpSgd, alpha: float, neighboring: Neighboring, steps: _Steps) -> float:
    terms: list[float] = []
    for (sigma, q), count in _distinct(event).items():
        key = (sigma, q)
        if key not in steps:
            steps[key] = (
                math.inf
                if sigma <= 0
                else step_divergence(
                    alpha,
                    sampling_rate=q,
                    noise_multiplier=sigma,
                    replace=neighboring == "replace_one",
                )
            )
        terms.append(count * steps[key])
    return _sum_up(terms)


def _distinct(event: StepwiseDpSgd) -> dict[tuple[float, float], int]:
    """The (σ, q) pairs of a schedule with their steps, both against the spender if many.

    A schedule of more than ``MANY_PAIRS`` pairs is rounded to a grid of 0.14 %: σ down, q up.
    A longer prefix of a schedule therefore still never costs less than a shorter one.
    """
    pairs: dict[tuple[float, float], int] = {}
    for segment in event.schedule:
        sigma = combined_noise_multiplier(segment.noise_multiplier, event.count_noise_stddev)
        key = (sigma, segment.sampling_rate)
        pairs[key] = pairs.get(key, 0) + segment.steps
    if len(pairs) <= MANY_PAIRS:
        return pairs
    rounded: dict[tuple[float, float], int] = {}
    for (sigma, q), count in pairs.items():
        key = (_on_grid(sigma, math.floor, min), min(_on_grid(q, math.ceil, max), 1.0))
        rounded[key] = rounded.get(key, 0) + count
    return rounded


def _on_grid(
    value: float, whole: Callable[[float], int], safe: Callable[[float, float], float]
) -> float:
    if value <= 0:
        return value
    return safe(value, 2.0 ** (whole(math.log2(value) * 512) / 512))


def _ratio(numerator: float, denominator: float) -> float:
    return math.inf if denominator <= 0 else numerator / denominator


def _gaussian(alpha: float, shift: float) -> float:
    return alpha * shift * shift / 2 * ROUND_UP


def _laplace(alpha: float, epsilon: float) -> float:
    """Mironov 2017, Proposition 6: A = α/(2α−1) e^{(α−1)ε} + (α−1)/(2α−1) e^{−αε}."""
    if math.isinf(epsilon):
        return math.inf
    first = (alpha - 1) * epsilon
    if first > 600:
        inner = math.exp(-first - alpha * epsilon) * (alpha - 1) / alpha
        log_moment = first + math.log(alpha / (2 * alpha - 1)) + math.log1p(inner)
    else:
        rest = alpha * _exp_rest(first) + (alpha - 1) * _exp_rest(-alpha * epsilon)
        log_moment = math.log1p(rest / (2 * alpha - 1))
    return min(log_moment / (alpha - 1), epsilon) * ROUND_UP


def _exp_rest(x: float) -> float:
    """e^x − 1 − x ≥ 0 without cancellation."""
    if abs(x) > 0.1:
        return math.expm1(x) - x
    total = 0.0
    for k in range(14, 2, -1):
        total = (total + 1.0) * x / k
    return (total + 1.0) * x * x / 2


def _minimise(
    event: Event,
    objective: Callable[[float, float], float],
    *,
    neighboring: Neighboring,
    orders: Sequence[float] | None,
) -> float:
    """The least objective over ``orders``, or over a search from 1 + 10⁻⁶ to 10⁶."""
    costs = tuple(_parts(event, 1))
    if orders is not None:
        divergences = rdp(event, orders=orders, neighboring=neighboring)
        return min(map(objective, orders, divergences), default=math.inf)

    def at(log_gap: float) -> float:
        alpha = 1 + math.exp(log_gap)
        alpha = round(alpha) if alpha > 32 else alpha  # whole orders are cheap and near enough
        value = objective(alpha, _total(costs, alpha, neighboring, {}))
        return math.inf if math.isnan(value) else value

    lowest, highest = math.log(LEAST_GAP), math.log(MAX_ORDER - 1)
    points = 41
    grid = [lowest + (highest - lowest) * i / (points - 1) for i in range(points)]
    values: list[float] = []
    best = 0
    for index, point in enumerate(grid):
        values.append(at(point))
        best = index if values[index] < values[best] else best
        # Far above the best order the sums are long and the values only rise.
        if math.isfinite(values[best]) and index - best > PATIENCE:
            break
    if not math.isfinite(values[best]):
        return values[best]
    refined = _golden_section(at, grid[max(best - 1, 0)], grid[min(best + 1, points - 1)])
    return min(values[best], refined)


def _golden_section(function: _Curve, left: float, right: float) -> float:
    """The least value seen in 24 steps; any value seen is a valid bound."""
    ratio = (math.sqrt(5.0) - 1) / 2
    low, high = right - ratio * (right - left), left + ratio * (right - left)
    at_low, at_high = function(low), function(high)
    best = min(at_low, at_high)
    for _ in range(24):
        if at_low < at_high:
            right, high, at_high = high, low, at_low
            low = right - ratio * (right - left)
            at_low = function(low)
        else:
            left, low, at_low = low, high, at_high
            high = left + ratio * (right - left)
            at_high = function(high)
        best = min(best, at_low, at_high)
    return best
