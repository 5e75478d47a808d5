"""The separation κ of a run: every bound that is proven for its sampler, and the best of each.

κ = TV/√2 is the largest distance between the run's trade-off curve and the line of random
guessing; TV is the largest advantage of a membership test, worst case over data, for an
adversary who sees every update. The clipping norm cancels: only σ, M, E matter.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from service.core.bounds import lower, upper
from service.core.bounds.characteristic import allocation_bracket
from service.core.bounds.published import (
    DOWN,
    LARGEST_KAPPA,
    SOURCE,
    UP,
    BoundedSampler,
    PublishedBound,
    derived_shuffle_floor,
    published_bound,
)
from service.core.errors import InvalidInput
from service.core.events import MAX_NOISE_MULTIPLIER, Neighboring
from service.core.interval import Interval

MAX_UPDATES: Final = 1_000_000_000
MAX_EPOCHS: Final = 1_000_000
SAMPLERS: Final = ("shuffle", "balls_in_bins", "poisson")
HERE: Final = "derived here, not peer reviewed"
ERTAN: Final = "Ertan & van Dijk 2026, arXiv 2605.06259"
BRACKET: Final = "characteristic function of the pair"
CLASSIC: Final = "two Gaussians, textbook"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundLine:
    """One bound of κ: its side, value, method, the samplers it is proven for, its source."""

    side: Literal["lower", "upper"]
    value: float
    method: str
    proven_for: tuple[BoundedSampler, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """A remark that must be shown with the answer."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Separation:
    """What is certified of a run's κ and TV, and what the published theorem says of it.

    ``implied_epsilon_floor`` is the least ε that the run can have at ``delta``, by κ.lower.
    """

    kappa: Interval
    total_variation: Interval
    published: PublishedBound
    bounds: tuple[BoundLine, ...]
    implied_epsilon_floor: float
    delta: float
    warnings: tuple[Warn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The parameters of a question, checked."""

    noise_multiplier: float
    updates_per_epoch: int
    epochs: int
    sampler: BoundedSampler
    neighboring: Neighboring

    def __post_init__(self) -> None:
        if not 0 < self.noise_multiplier <= MAX_NOISE_MULTIPLIER:
            raise InvalidInput(
                f"noise_multiplier lies in (0, {MAX_NOISE_MULTIPLIER:g}].",
                pointer="/noise_multiplier",
            )
        if not 1 <= self.updates_per_epoch <= MAX_UPDATES:
            raise InvalidInput(
                f"updates_per_epoch lies in [1, {MAX_UPDATES}].", pointer="/updates_per_epoch"
            )
        if not 1 <= self.epochs <= MAX_EPOCHS:
            raise InvalidInput(f"epochs lies in [1, {MAX_EPOCHS}].", pointer="/epochs")
        if self.sampler not in SAMPLERS:
            raise InvalidInput(f"sampler is one of {', '.join(SAMPLERS)}.", pointer="/sampler")

    @property
    def t(self) -> float:
        """1/σ."""
        return 1 / self.noise_multiplier


def separation(
    *,
    noise_multiplier: float,
    updates_per_epoch: int,
    epochs: int = 1,
    sampler: BoundedSampler,
    neighboring: Neighboring = "zero_out",
    delta: float = 1e-5,
) -> Separation:
    """Certified bounds of κ and TV of a DP-SGD run.

    Guarantees: lower ends are rounded down, upper ends up; each line is proven for the
    sampler asked for; no bound of random allocation is used for shuffle.

    Args:
        noise_multiplier: σ in (0, 10⁴], the noise on the sum over the clipping norm.
        updates_per_epoch: M in [1, 10⁹]; Poisson sampling has the rate 1/M.
        epochs: E in [1, 10⁶].
        sampler: shuffle, balls_in_bins or poisson. The lower ends of shuffle take every
            record to take part in every epoch (n = M·B, or a kept short batch); with a
            dropped remainder only the share M·B/n of one epoch's TV is proven.
        neighboring: the relation. For shuffle under add_or_remove_one the last, short batch
            is taken to be kept, the worse case (R4).
        delta: where the implied ε floor is taken, in (0, 1).

    Raises:
        InvalidInput: a value out of range.
    """
    if not 0 < delta < 1:
        raise InvalidInput("delta lies in (0, 1).", pointer="/delta")
    run = Run(
        noise_multiplier=noise_multiplier,
        updates_per_epoch=updates_per_epoch,
        epochs=epochs,
        sampler=sampler,
        neighboring=neighboring,
    )
    published = published_bound(
        noise_multiplier=noise_multiplier,
        updates_per_epoch=updates_per_epoch,
        sampler=sampler,
        neighboring=neighboring,
    )
    exact = pair_bracket(run)
    lines = (*_lower_lines(run, published, exact), *upper_lines(run, exact))
    best_lower = max((b.value for b in lines if b.side == "lower"), default=0.0)
    best_upper = least_upper(lines)
    kappa = Interval(min(best_lower, best_upper), best_upper)
    variation = Interval(
        kappa.lower * math.sqrt(2) * DOWN, min(kappa.upper * math.sqrt(2) * UP, 1.0)
    )
    return Separation(
        kappa=kappa,
        total_variation=variation,
        published=published,
        bounds=lines,
        implied_epsilon_floor=epsilon_floor(variation.lower, delta=delta),
        delta=delta,
        warnings=tuple(_warnings(run, published)),
    )


def upper_lines(run: Run, exact: Interval | None) -> tuple[BoundLine, ...]:
    """Every upper bound of κ that is proven for the run's sampler, given ``pair_bracket``."""
    lines = closed_upper_lines(run)
    if exact is None or run.epochs > 1:
        return lines
    return (*lines, _line("upper", exact.upper, BRACKET, ("balls_in_bins",), HERE))


def pair_bracket(run: Run) -> Interval | None:
    """TV of one epoch of the dominating pair, where a certified bracket of it is known."""
    if run.sampler != "balls_in_bins":
        return None
    replace = run.neighboring == "replace_one"
    return allocation_bracket(run.t, updates_per_epoch=run.updates_per_epoch, replace=replace)


def closed_upper_lines(run: Run) -> tuple[BoundLine, ...]:
    """The upper bounds among them that have a closed form."""
    every: tuple[BoundedSampler, ...] = ("shuffle", "balls_in_bins", "poisson")
    sampler, replace = run.sampler, run.neighboring == "replace_one"
    plain = upper.unamplified(
        run.noise_multiplier, epochs=run.epochs, sampler=sampler, neighboring=run.neighboring
    )
    lines = [_line("upper", plain, "unamplified Gaussian, 2Φ(s√E/2) − 1", every, CLASSIC)]
    if sampler != "shuffle":
        chi = upper.chi_square(
            run.t, updates_per_epoch=run.updates_per_epoch, epochs=run.epochs, sampler=sampler
        )
        method = "χ² of the pair, √c/2 or c/(1+c)"
        if replace:
            chi, method = 2 * chi, f"{method}, twice by the triangle inequality"
        source = f"{ERTAN}, Theorem 3.3" if sampler == "balls_in_bins" else HERE
        lines.append(_line("upper", chi, method, (sampler,), source))
    if sampler == "poisson":
        used = upper.participation(updates_per_epoch=run.updates_per_epoch, epochs=run.epochs)
        lines.append(_line("upper", used, "participation, 1 − (1−q)^{ME}", ("poisson",), SOURCE))
    return tuple(lines)


def least_upper(lines: Iterable[BoundLine]) -> float:
    """The best upper end among ``lines``; never above 1/√2."""
    return min((line.value for line in lines if line.side == "upper"), default=_CAP)


def epsilon_floor(total_variation: float, *, delta: float) -> float:
    """The least ε of any (ε, δ) claim for a pair with at least this TV, rounded down.

    Source: (ε, δ)-DP implies TV ≤ (e^ε − 1 + 2δ)/(e^ε + 1).
    """
    ratio = (total_variation - delta) * 2 / (1 - total_variation) if total_variation < 1 else 1e300
    return max(math.log1p(ratio) * DOWN, 0.0) if ratio > 0 else 0.0


_CAP: Final = LARGEST_KAPPA * UP


def _line(
    side: Literal["lower", "upper"],
    total_variation: float,
    method: str,
    proven_for: tuple[BoundedSampler, ...],
    source: str,
) -> BoundLine:
    if side == "upper":
        value = min(total_variation * LARGEST_KAPPA * UP, _CAP)
    else:
        value = min(total_variation, 1.0) * LARGEST_KAPPA * DOWN
    return BoundLine(side=side, value=value, method=method, proven_for=proven_for, source=source)


def _lower_lines(
    run: Run, published: PublishedBound, exact: Interval | None
) -> Iterable[BoundLine]:
    if published.kappa_floor is not None:
        yield BoundLine(
            side="lower",
            value=published.kappa_floor,
            method="published floor for σ ≤ 1/√(2 ln M)",
            proven_for=(run.sampler,),
            source=SOURCE,
        )
    match run.sampler:
        case "poisson":
            yield from _poisson_lower(run)
        case "balls_in_bins":
            yield from _allocation_lower(run, exact)
        case "shuffle":
            yield from _shuffle_lower(run)


def _poisson_lower(run: Run) -> Iterable[BoundLine]:
    low = -1.0 if run.neighboring == "replace_one" else 0.0
    m, steps = run.updates_per_epoch, run.updates_per_epoch * run.epochs
    if m == 1:
        yield _exact(run, 1.0 - low)
        return
    q, source = 1 / m, SOURCE if low >= 0 else HERE
    found = lower.poisson_max_test(run.t, sampling_rate=q, steps=steps, high=1.0, low=low)
    yield _line("lower", found, "largest of all coordinates", ("poisson",), source)
    found = lower.poisson_count_test(run.t, sampling_rate=q, steps=steps, high=1.0, low=low)
    yield _line("lower", found, "count of large coordinates", ("poisson",), HERE)
    if low >= 0:
        found = lower.poisson_moment_bound(run.t, sampling_rate_inverse=m, steps=steps)
        yield _line("lower", found, "second and fourth moments", ("poisson",), ERTAN)


def _allocation_lower(run: Run, exact: Interval | None) -> Iterable[BoundLine]:
    low = -1.0 if run.neighboring == "replace_one" else 0.0
    yield from _pair_lower(run, 1.0, low, SOURCE if low >= 0 else HERE)
    # One epoch is post-processing of many.
    if exact is not None:
        yield _line("lower", exact.lower, BRACKET, ("balls_in_bins",), HERE)
    if low >= 0:
        found = lower.moment_bound(run.t, draws=run.updates_per_epoch, rounds=run.epochs)
        method = "second and fourth moments"
        yield _line("lower", found, method, ("balls_in_bins",), f"{ERTAN}, Appendix C.4")


def _shuffle_lower(run: Run) -> Iterable[BoundLine]:
    match run.neighboring:
        case "zero_out":
            # The other gradients all −C, or all 0: the worse of two data sets.
            yield from _pair_lower(run, 2.0, 1.0, HERE)
            yield from _pair_lower(run, 1.0, 0.0, SOURCE)
            floor = derived_shuffle_floor(
                noise_multiplier=run.noise_multiplier, updates_per_epoch=run.updates_per_epoch
            )
            if floor is not None:
                yield BoundLine(
                    side="lower",
                    value=floor,
                    method="floor for σ ≤ √(2/ln M), the published proof for MoG(2), MoG(1)",
                    proven_for=("shuffle",),
                    source=HERE,
                )
        case "replace_one":
            yield from _pair_lower(run, 2.0, 0.0, HERE)
            yield from _pair_lower(run, 1.0, -1.0, HERE)
        case "add_or_remove_one":
            # All other gradients 0. With a dropped remainder the record takes part with
            # p = MB/n ≥ M/(M+1) in an epoch: of the first epoch alone, TV × p.
            share = run.updates_per_epoch / (run.updates_per_epoch + 1)
            found = lower.max_test(
                run.t, updates_per_epoch=run.updates_per_epoch, high=1.0, low=0.0
            )
            method = "largest coordinate of one epoch, record present with M/(M+1)"
            yield _line("lower", found * share, method, ("shuffle",), HERE)


def _pair_lower(run: Run, high: float, low: float, source: str) -> Iterable[BoundLine]:
    """Tests of MoG(high) against MoG(low), for any number of epochs."""
    if run.updates_per_epoch == 1:
        yield _exact(run, high - low)
        return
    sampler, m, pair = run.sampler, run.updates_per_epoch, f"MoG({high:g}) vs MoG({low:g})"
    found = lower.max_test(run.t, updates_per_epoch=m, high=high, low=low)
    yield _line("lower", found, f"largest coordinate of one epoch, {pair}", (sampler,), source)
    found = lower.sum_test(run.t, updates_per_epoch=m, epochs=run.epochs, distance=high - low)
    yield _line("lower", found, f"sum of all coordinates, {pair}", (sampler,), HERE)
    if run.epochs == 1:
        return
    found = lower.count_test(run.t, updates_per_epoch=m, epochs=run.epochs, high=high, low=low)
    method = f"count of epochs with a large coordinate, {pair}"
    if sampler == "shuffle":
        # Valid whether the permutation is redrawn (count) or kept (σ/√E on the epochs' sum).
        kept = lower.max_test(
            run.t * math.sqrt(run.epochs), updates_per_epoch=m, high=high, low=low
        )
        found, method = min(found, kept), f"{method}, redrawn or not"
    yield _line("lower", found, method, (sampler,), HERE)


def _exact(run: Run, distance: float) -> BoundLine:
    """M = 1: every step has every record, so the pair is two Gaussians."""
    value = math.erf(distance * run.t * math.sqrt(run.epochs / 8)) * DOWN
    return _line("lower", value, "exact for M = 1, 2Φ(s√E/2) − 1", (run.sampler,), CLASSIC)


def _warnings(run: Run, published: PublishedBound) -> Iterable[Warn]:
    if run.sampler == "shuffle":
        yield Warn(
            code="NO_PROVEN_AMPLIFICATION",
            message="Fixed-size shuffled batches have no proven amplification: the upper end "
            "takes every batch as known.",
        )
    if published.verdict == "silent":
        yield Warn(
            code="THRESHOLD_IS_NO_CERTIFICATE",
            message="Above its threshold the published theorem says nothing; only the interval "
            "of κ does.",
        )
    if run.sampler == "shuffle" and run.neighboring == "add_or_remove_one":
        yield Warn(
            code="REMAINDER_UNKNOWN",
            message="The last, short batch is taken to be kept, the worse case.",
        )
