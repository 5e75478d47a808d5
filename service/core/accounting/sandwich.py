"""Certified δ(ε) on a grid of losses: one pair that dominates, one that is dominated.

*Above*, connect the dots: the mass of a cell (x, x + h) of losses is split between its two
ends so that both its P-mass and its Q-mass are kept. The likelihood ratio becomes a
mean-preserving spread, so δ(ε) = E_Q[(R − e^ε)₊] can only grow. *Below*, garbled cells:
neighbouring cells are merged in such shares that the merged likelihood ratio lies exactly
on the grid; forgetting which cell it was is post-processing, so δ(ε) can only fall.

Both are composed by one discrete Fourier transform of the exponentially tilted masses, and
δ(ε) is read from the frequencies that matter, without transforming back. Gaussian parts
enter by their exact transform.

Sources: Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022 (connect the dots); data
processing for the lower side; docs/accounting.md, "Sandwich".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from service.core.accounting.arrays import (
    Booleans,
    Complexes,
    Floats,
    real_transform,
    solve_tridiagonal,
)
from service.core.accounting.loss_cells import LossCells, cell_masses, grid_offset, loss_span
from service.core.accounting.pairs import GaussianPair, Part
from service.core.accounting.poisson_pair import PoissonPair
from service.core.accounting.tilting import Tilt
from service.core.errors import NotCertified
from service.core.interval import Interval

_UNIT: Final = 2.0**-53
_LEAST_GRID: Final = 1 << 14
_MAX_GRID: Final = 1 << 18
_WIDTH_GOAL: Final = 3e-4
_ALIASING_GOAL: Final = 1e-10
_LEAST_LOG: Final = -46.0

Side = Literal["above", "below"]


@dataclass(frozen=True, slots=True)
class SandwichProfile:
    """A certified profile: δ of the dominated pair below, of the dominating one above."""

    below: "_GridLaw"
    above: "_GridLaw"

    def __call__(self, epsilon: float, /) -> Interval:
        """The certified interval of δ(ε); [0, 1] where the tilt says nothing."""
        exponent = self.above.moment - self.above.tilt.theta * epsilon
        if exponent > 300:
            return Interval(0.0, 1.0)
        upper, error = self.above.delta(epsilon - self.above.shift)
        upper = min(max(upper + error, 0.0), 1.0)
        lower, error = self.below.delta(epsilon + self.below.shift)
        grid = self.below.grid
        # Chernoff's bounds hold for the garbled law too: garbling cannot raise its K.
        lower -= error + self.below.tilt.folded_mass(epsilon, period=grid.spacing * grid.size)
        return Interval(float(min(max(lower, 0.0), upper)), float(upper))


def sandwich_profile(parts: Sequence[Part], *, tilt: Tilt) -> SandwichProfile:
    """The profile of Poisson and Gaussian parts around the tilt's saddle point.

    Args:
        parts: Poisson pairs (a cut is ignored: all of P counts) and Gaussian pairs.
        tilt: from ``tilting``, for the same parts without cuts.

    Raises:
        NotCertified: another kind of part, or a grid beyond the fixed limit.
    """
    if not any(isinstance(pair, PoissonPair) for pair, _ in parts) or not all(
        isinstance(pair, PoissonPair | GaussianPair) for pair, _ in parts
    ):
        raise NotCertified("The grid sandwich knows Poisson and Gaussian parts only.")
    grid = _grid(parts, tilt=tilt)
    # With hardly any noise losses pass the range of doubles; then nothing is said.
    with np.errstate(over="ignore", invalid="ignore"):
        profile = SandwichProfile(
            below=_grid_law(parts, tilt=tilt, grid=grid, side="below"),
            above=_grid_law(parts, tilt=tilt, grid=grid, side="above"),
        )
    if not (profile.below.is_finite and profile.above.is_finite):
        raise NotCertified("The losses are beyond the range of the grid.")
    return profile


@dataclass(frozen=True, slots=True)
class _Grid:
    spacing: float
    size: int
    tail: float


def _grid(parts: Sequence[Part], *, tilt: Tilt) -> _Grid:
    """A spacing whose discretisation costs about 3e-4 in ε, and a period free of aliasing."""
    theta, steps = tilt.theta, sum(n for p, n in parts if isinstance(p, PoissonPair))
    tail = max(math.exp(tilt.log_delta) * 1e-7 / steps, 1e-300)
    # Rounding to the grid adds about h²/8 of variance a step: (θ+1) n h²/8 in ε.
    wanted = min(math.sqrt(8 * _WIDTH_GOAL / (steps * (theta + 1))), 0.02)
    single = 0.0
    full = 0.0
    for pair, count in parts:
        if isinstance(pair, PoissonPair):
            low, high = loss_span(pair, tail=tail)
            single = max(single, high - low)
            full += count * (high - low + 6 * wanted)
        elif isinstance(pair, GaussianPair):
            full += 20 * math.sqrt(pair.mu_squared * count)
    period = min(1.1 * tilt.quiet_period(_ALIASING_GOAL), 1.01 * full)
    # A coarser grid than wanted is still certified, only wider.
    spacing = max(min(wanted, period / _LEAST_GRID), period / _MAX_GRID, single / _MAX_GRID)
    size = 2 ** math.ceil(math.log2(max(period / spacing, _LEAST_GRID)))
    return _Grid(spacing, min(size, _MAX_GRID), tail)


# ------------------------------------------------------------------------ composition


@dataclass(frozen=True, slots=True)
class _GridLaw:
    """The composed law of one side, as its tilted transform at the grid's frequencies.

    The losses are spacing · (offset + integers); ``shift`` is what rounding in the cells'
    masses may have moved the total loss.
    """

    tilt: Tilt
    grid: _Grid
    moment: float
    frequencies: Floats
    transform: Complexes
    offset: float
    infinite: float
    relative_error: float
    shift: float
    has_gaussian: bool

    @property
    def is_finite(self) -> bool:
        """True if no number of the law has overflown."""
        numbers = (self.moment, self.offset, self.infinite, self.relative_error, self.shift)
        return all(map(math.isfinite, numbers)) and bool(np.isfinite(self.transform).all())

    def delta(self, epsilon: float) -> tuple[float, float]:
        """δ of the discrete law at ``epsilon``, and a bound of what rounding did to it."""
        h, size, theta = self.grid.spacing, self.grid.size, self.tilt.theta
        t = self.frequencies
        w = theta + 1j * t
        if self.has_gaussian:
            # The composed law has a density: the same integral as in contour.py.
            kernel = 1 / (w * (w + 1))
            turn = 1j * t * (h * self.offset - epsilon)
            lead = math.exp(self.moment - theta * epsilon)
            scale = 2 / (size * h)
        else:
            first = math.floor(epsilon / h - self.offset) + 1
            point = h * (first + self.offset)
            kernel = -1 / np.expm1(-w * h) + math.exp(epsilon - point) / np.expm1(-(w + 1) * h)
            turn = -1j * t * h * first
            lead = math.exp(self.moment - theta * point)
            scale = 2 / size
        values = self.transform * np.exp(turn) * kernel
        value = lead * scale * float(values.real.sum())
        reach = float(t[-1]) * (epsilon + h) if len(t) else 0.0
        rounding = 16 * _UNIT * (4 + reach + abs(self.moment) + theta * epsilon)
        error = lead * scale * float(np.abs(values).sum()) * rounding
        error += (
            lead
            * scale
            * float(np.abs(kernel).sum() + size * abs(kernel[-1]))
            * (self.relative_error)
        )
        return self.infinite + value, error


def _grid_law(parts: Sequence[Part], *, tilt: Tilt, grid: _Grid, side: Side) -> _GridLaw:
    h, size, theta = grid.spacing, grid.size, tilt.theta
    frequencies = 2 * math.pi / (size * h) * np.arange(size // 2 + 1)
    log_transform = np.zeros(len(frequencies), np.complex128)
    moment = offset = log_finite = error = shift = 0.0
    has_gaussian = False
    for pair, count in parts:
        if isinstance(pair, GaussianPair):
            mu2 = pair.mu_squared * count
            moment += mu2 * theta * (theta + 1) / 2
            log_transform += -mu2 * frequencies**2 / 2 + 1j * mu2 * (theta + 0.5) * frequencies
            has_gaussian = True
            if mu2 * (math.pi / h) ** 2 < 2 * -_LEAST_LOG:
                raise NotCertified("The grid is too coarse for the Gaussian part.")
            continue
        assert isinstance(pair, PoissonPair)
        step = _step_law(pair, grid=grid, side=side)
        exponents = np.log(np.maximum(step.masses, 1e-320)) + theta * step.losses
        top = float(exponents.max())
        tilted = np.where(step.masses > 0, np.exp(exponents - top), 0.0)
        total = float(tilted.sum())
        if not (0 < total < math.inf and math.isfinite(top) and step.infinite < 1):
            raise NotCertified("The losses of one step leave the range of numbers.")
        moment += count * (math.log(total) + top)
        tilted /= total
        shift += count * float(tilted @ step.loss_errors)
        folded = tilted
        if len(folded) > size:
            folded = np.pad(folded, (0, -len(folded) % size)).reshape(-1, size).sum(axis=0)
        transform = np.conj(real_transform(folded, size))
        transform = np.where(np.abs(transform) < 1e-150, 1e-150, transform)
        log_transform += count * np.log(transform)
        error += count * 8 * _UNIT * (math.log2(size) + float(tilted @ np.abs(exponents)))
        offset += count * step.first
        log_finite += count * math.log1p(-step.infinite)
    if not all(map(math.isfinite, (moment, offset, shift, error, log_finite))):
        raise NotCertified("The composed losses leave the range of numbers.")
    keep = log_transform.real > _LEAST_LOG
    error += math.exp(_LEAST_LOG)
    edge = (frequencies == 0) | (np.arange(len(frequencies)) == size // 2)
    return _GridLaw(
        tilt=tilt,
        grid=grid,
        moment=moment,
        frequencies=frequencies[keep],
        transform=(np.where(edge, 0.5, 1.0) * np.exp(log_transform))[keep],
        offset=offset,
        infinite=-math.expm1(log_finite),
        relative_error=error,
        shift=shift,
        has_gaussian=has_gaussian,
    )


# ------------------------------------------------------------------------ one step


@dataclass(frozen=True, slots=True)
class _StepLaw:
    """Masses of P at losses = spacing · (first + 0, 1, 2, …), and the mass at ∞."""

    first: float
    losses: Floats
    masses: Floats
    loss_errors: Floats
    infinite: float


def _step_law(pair: PoissonPair, *, grid: _Grid, side: Side) -> _StepLaw:
    low, high = loss_span(pair, tail=grid.tail)
    h, offset = grid.spacing, grid_offset(pair, spacing=grid.spacing)
    first, last = math.floor((low - offset) / h) - 2, math.ceil((high - offset) / h) + 2
    losses = offset + h * np.arange(first, last + 1)
    if side == "above":
        cells = cell_masses(pair, np.pad(losses, 1, constant_values=(-np.inf, np.inf)))
        masses, infinite = _connect_the_dots(cells, losses, h=h)
    else:
        masses, cells = _garble(pair, losses, h=h)
        infinite = 0.0
    errors = np.zeros(len(losses))
    inner = cells.loss_errors[1:-1] if side == "above" else cells.loss_errors
    errors[: len(inner)] = np.minimum(inner, h)
    return _StepLaw(first + offset / h, losses, masses, errors, infinite)


def _connect_the_dots(cells: LossCells, losses: Floats, *, h: float) -> tuple[Floats, float]:
    masses = np.zeros(len(losses))
    masses[0] = cells.p[0]  # everything below the grid is rounded up to its first point
    inner_p, inner_q = cells.p[1:-1], cells.q[1:-1]
    raised = (inner_p - inner_q * np.exp(losses[:-1])) / -math.expm1(-h)
    raised = np.clip(raised, 0.0, inner_p)
    masses[:-1] += inner_p - raised
    masses[1:] += raised
    return masses, max(float(cells.p[-1]), 0.0)


def _garble(pair: PoissonPair, losses: Floats, *, h: float) -> tuple[Floats, LossCells]:
    """Cells around the grid points, merged until every likelihood ratio is on the grid.

    First the edges are moved so that the cells' ratios come close; then a share of the
    neighbour is merged into each cell: with e_k the excess of cell k's loss over its point,
    c_k = (e^{−e_k} − 1)/(1 − e^{−h−e_{k+1}}) of the cell above where e_k < 0, and the mirror
    image where e_k > 0. The kept masses solve a tridiagonal system. Where that would take
    too much of a neighbour, the cell is rounded down by one point instead.
    """
    edges = np.append(losses - h / 2, losses[-1] + h / 2)
    cells, excess, usable = _cells_at(pair, edges, losses, h=h)
    for _ in range(2):
        move = np.clip(excess, -h / 8, h / 8)
        edges[1:-1] -= 0.5 * (move[1:] + move[:-1])
        cells, excess, usable = _cells_at(pair, edges, losses, h=h)
    p = np.where(usable, cells.p, 0.0)
    rounded = np.zeros(len(losses), bool)
    rounded[[0, -1]] = True
    for _ in range(12):
        above, below = _merge_shares(excess, rounded, h=h)
        kept = solve_tridiagonal(
            below=np.insert(above[:-1], 0, 0.0),
            diagonal=np.ones(len(losses)),
            above=np.append(below[1:], 0.0),
            right=p,
        )
        bad = kept < 0.2 * p
        if not bad.any():
            break
        rounded |= np.append(bad[1:], False) & (excess < 0)
        rounded |= np.insert(bad[:-1], 0, False) & (excess > 0)
    else:
        above = below = np.zeros(len(losses))
        kept, rounded = p, np.ones(len(losses), bool)
    total = np.maximum(kept * (1 + above + below), 0.0)
    lowered = np.where(rounded & (excess < 0), total, 0.0)
    masses = total - lowered
    masses[:-1] += lowered[1:]
    masses[0] += lowered[0]
    masses[0] = max(masses[0] + 1 - float(masses.sum()), 0.0)
    return masses, cells


def _cells_at(
    pair: PoissonPair, edges: Floats, losses: Floats, *, h: float
) -> tuple[LossCells, Floats, Booleans]:
    cells = cell_masses(pair, edges)
    usable = (cells.p > 1e-40) & (cells.q > 1e-300)
    ratio = np.log(np.where(usable, cells.p, 1.0)) - np.log(np.where(usable, cells.q, 1.0))
    excess = np.where(usable, np.clip(ratio - losses, -h / 2, h / 2), 0.0)
    return cells, excess, usable


def _merge_shares(excess: Floats, rounded: Booleans, *, h: float) -> tuple[Floats, Floats]:
    next_excess = np.append(excess[1:], 0.0)
    previous = np.insert(excess[:-1], 0, 0.0)
    above = np.where((excess < 0) & ~rounded, np.expm1(-excess) / -np.expm1(-h - next_excess), 0.0)
    below = np.where((excess > 0) & ~rounded, -np.expm1(-excess) / np.expm1(h - previous), 0.0)
    return above, below
