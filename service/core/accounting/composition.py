"""What an event costs, as compositions of dominating pairs.

``compose`` turns an event and a neighboring relation into one list of (pair, count) per
direction. Where no tight pair is known (shuffled and randomly allocated batches, zCDP
statements), the list bounds from above only, and what remains provable from below is kept
apart: the tight parts, and one test per epoch-sampled part. Composition only adds loss, so
any subset of the parts is a lower bound of the whole.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from service.core.accounting.pairs import (
    DiscreteGaussianPair,
    GaussianPair,
    LaplacePair,
    Pair,
    Part,
    TwoPointPair,
)
from service.core.accounting.poisson_pair import Direction, PoissonPair
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

# Below these σ a release is charged as if it had no noise: nothing is hidden that
# floating point could still tell from nothing.
LEAST_NOISE: Final = 1e-9
LEAST_DISCRETE_NOISE: Final = 0.02


@dataclass(slots=True)
class Composition:
    """The parts of an event under one neighboring relation.

    ``unnoised`` is the P-mass that releases without noise put at L = ∞.
    """

    tight: dict[Direction, dict[Pair, int]]
    above: dict[Direction, dict[Pair, int]]
    epoch_parts: dict[EpochDpSgd, int] = field(default_factory=dict[EpochDpSgd, int])
    has_zcdp: bool = False
    log_kept: float = 0.0
    has_full_batch: bool = False
    # Some noise, too little to count: "no noise" is then an upper bound and nothing from below.
    has_tiny_noise: bool = False

    @property
    def unnoised(self) -> float:
        """1 − Π (1 − q_i)^{n_i} over the steps without noise."""
        return -math.expm1(self.log_kept)

    @property
    def is_tight(self) -> bool:
        """True if the parts are the whole event, from above and from below."""
        return not self.epoch_parts and not self.has_zcdp

    def upper_parts(self, direction: Direction) -> list[Part]:
        """Pairs that dominate the event (its zCDP statements left out)."""
        merged = dict(self.tight[direction])
        for pair, count in self.above[direction].items():
            merged[pair] = merged.get(pair, 0) + count
        return _gaussians_joined(merged)

    def lower_parts(self, direction: Direction) -> list[Part]:
        """Pairs that the event contains exactly."""
        return _gaussians_joined(self.tight[direction])


def compose(event: Event, *, neighboring: Neighboring) -> Composition:
    """The composition of ``event`` under ``neighboring``.

    zero_out costs what add_or_remove_one costs for every sampler but ``shuffle``: an absent
    record and a zeroed one contribute the same to a sum. replace_one moves a sum by up to
    twice a contribution; statements in ε, δ or ρ are taken to be made for the relation asked.
    """
    names: tuple[Direction, ...] = (
        ("replace",) if neighboring == "replace_one" else ("remove", "add")
    )
    out = Composition(tight={n: {} for n in names}, above={n: {} for n in names})
    for leaf, times in _leaves(event, times=1):
        _add(out, leaf, times=times, neighboring=neighboring)
    return out


Leaf = (
    StepwiseDpSgd
    | EpochDpSgd
    | Gaussian
    | Laplace
    | DiscreteGaussian
    | RandomizedResponse
    | ApproximateDp
    | Zcdp
)


def _leaves(event: Event, *, times: int) -> Iterator[tuple[Leaf, int]]:
    if isinstance(event, Composed):
        for part in event.parts:
            yield from _leaves(part, times=times)
    elif isinstance(event, Repeated):
        yield from _leaves(event.of, times=times * event.times)
    else:
        yield event, times


def _add(out: Composition, leaf: Leaf, *, times: int, neighboring: Neighboring) -> None:
    reach = 2.0 if neighboring == "replace_one" else 1.0
    match leaf:
        case StepwiseDpSgd():
            _add_steps(out, leaf, times=times, reach=reach)
        case EpochDpSgd():
            _add_epochs(out, leaf, times=times, neighboring=neighboring)
        case Gaussian():
            _add_gaussian(out, out.tight, sigma=leaf.noise_multiplier / reach, n=times * leaf.count)
        case DiscreteGaussian() if leaf.noise_multiplier > LEAST_DISCRETE_NOISE:
            pair = DiscreteGaussianPair(leaf.noise_multiplier, int(reach))
            _put(out.tight, pair, times * leaf.count)
        case Laplace() if leaf.noise_multiplier > LEAST_NOISE:
            _put(out.tight, LaplacePair(reach / leaf.noise_multiplier), times * leaf.count)
        case RandomizedResponse() | ApproximateDp():
            missed = leaf.delta if isinstance(leaf, ApproximateDp) else 0.0
            _put(out.tight, TwoPointPair(leaf.epsilon, missed), times * leaf.count)
        case Zcdp():
            out.has_zcdp = True
        case Laplace() | DiscreteGaussian():
            _release(out, leaf.noise_multiplier, log_kept=-math.inf)


def _put(target: dict[Direction, dict[Pair, int]], pair: Pair, count: int) -> None:
    for parts in target.values():
        parts[pair] = parts.get(pair, 0) + count


def _release(out: Composition, noise: float, *, log_kept: float) -> None:
    """Charge a release as if it had no noise."""
    out.log_kept += log_kept
    out.has_tiny_noise = out.has_tiny_noise or noise > 0


def _add_gaussian(
    out: Composition, target: dict[Direction, dict[Pair, int]], *, sigma: float, n: int
) -> None:
    if sigma <= LEAST_NOISE:
        _release(out, sigma, log_kept=-math.inf)
    else:
        _put(target, GaussianPair(sigma**-2), n)


def _add_steps(out: Composition, event: StepwiseDpSgd, *, times: int, reach: float) -> None:
    for segment in event.schedule:
        count = times * segment.steps
        sigma = charged_noise(segment.noise_multiplier, event.count_noise_stddev)
        rate = segment.sampling_rate
        if rate >= 1:
            out.has_full_batch = True
            _add_gaussian(out, out.tight, sigma=sigma / reach, n=count)
        elif sigma <= LEAST_NOISE:
            _release(out, sigma, log_kept=count * math.log1p(-rate))
        else:
            for direction, parts in out.tight.items():
                pair = PoissonPair(rate, sigma, direction)
                parts[pair] = parts.get(pair, 0) + count


def charged_noise(noise_multiplier: float, count_noise_stddev: float | None) -> float:
    """Return z of rule R22: z⁻² = σ⁻² + (2σ_b)⁻², the multiplier of the joint release.

    The centred count b − ½ has sensitivity ½, so its noise multiplier is 2σ_b.
    """
    if count_noise_stddev is None or noise_multiplier <= 0:
        return noise_multiplier
    return noise_multiplier / math.hypot(1, noise_multiplier / (2 * count_noise_stddev))


def _add_epochs(
    out: Composition, event: EpochDpSgd, *, times: int, neighboring: Neighboring
) -> None:
    sigma = charged_noise(event.noise_multiplier, event.count_noise_stddev)
    count = times * event.epochs
    if sigma <= LEAST_NOISE:
        _release(out, sigma, log_kept=-math.inf)
        return
    # R4: one unamplified Gaussian per epoch; joint convexity over the hidden allocation.
    _add_gaussian(out, out.above, sigma=sigma / epoch_shift(event, neighboring), n=count)
    out.epoch_parts[event] = out.epoch_parts.get(event, 0) + times


def epoch_shift(event: EpochDpSgd, neighboring: Neighboring) -> float:
    """The farthest that one record moves an epoch's releases, in units of C (R4)."""
    if neighboring == "replace_one":
        return 2.0
    if event.sampler == "balls_in_bins" or neighboring == "zero_out":
        return 1.0
    # A record that leaves lets another take its place (2C); a kept short batch also
    # loses one of its own (C): √(2² + 1²).
    return 2.0 if event.remainder == "dropped" else math.sqrt(5)


def _gaussians_joined(parts: dict[Pair, int]) -> list[Part]:
    """All Gaussian parts as one: their μ² add up."""
    squares = [p.mu_squared * n for p, n in parts.items() if isinstance(p, GaussianPair)]
    rest: list[Part] = [(p, n) for p, n in parts.items() if not isinstance(p, GaussianPair)]
    if squares:
        rest.append((GaussianPair(math.fsum(squares)), 1))
    return rest
