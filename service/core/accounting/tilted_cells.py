"""Rigorous bounds on one tilted Poisson step: strips, and decay of its transform.

The tilted law of one step has the density p(z) = φ(z) e^{g(z)} / M in noise space, with
g = log(dP′/dN₀) + θL. On cells of width d its logarithm is enclosed by Taylor's formula

    log p(z) ∈ log p(m) + (log p)′(m)(z − m) ± C d²/8,   m the middle, C ≥ |(log p)″|,

with C from f″ = r(1−r)/σ² ≤ 1/(4σ²) and (log χ)″ ∈ [−1/w², 0]. Everything below needs no
more than that enclosure (docs/accounting.md, "Contour").
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from service.core.accounting.arrays import Floats, log_normal_cdf
from service.core.accounting.poisson_pair import CUT_WIDTH, PoissonPair

_MAX_CELLS: Final = 6000
_LOG_SQRT_2PI: Final = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, slots=True)
class TiltedCells:
    """Cells of one tilted step: enclosures of the mass, and of the loss at the edges."""

    pair: PoissonPair
    theta: float
    width: float
    edges: Floats
    log_density: Floats
    slope: Floats
    curvature: float

    @property
    def middles(self) -> Floats:
        """The middle of each cell."""
        return 0.5 * (self.edges[1:] + self.edges[:-1])

    @property
    def bend(self) -> float:
        """C d²/8, what the second derivative can add to the logarithm inside a cell."""
        return self.curvature * self.width**2 / 8

    @property
    def log_masses(self) -> Floats:
        """Log of each cell's mass as if log p were linear in it; true to ± ``bend``."""
        return self.log_density + _log_sinhc(self.slope * self.width / 2) + math.log(self.width)


def _log_sinhc(x: Floats) -> Floats:
    """Log of sinh x / x, the integral of a tilted uniform law."""
    x = np.abs(x)
    safe = np.maximum(x, 1e-3)
    return np.where(x < 1e-3, x * x / 6, safe + np.log(-np.expm1(-2 * safe) / (2 * safe)))


def tilted_cells(pair: PoissonPair, *, theta: float, moment: float) -> TiltedCells:
    """The cells of ``pair`` under tilt ``theta``; ``moment`` is its K(θ)."""
    low, high = pair.window(theta)
    low -= pair.shift  # the density of the *loss* peaks further left than that of z
    if pair.direction == "replace":
        low = min(low, -high)
    curvature = 1 + (2 * theta + 1) * pair.shift**2 / 4
    if math.isfinite(pair.cut):
        curvature += CUT_WIDTH**-2
    width = max(min(0.05, 0.25 / math.sqrt(curvature)), (high - low) / _MAX_CELLS)
    edges = low + width * np.arange(math.ceil((high - low) / width) + 1)
    middle = 0.5 * (edges[1:] + edges[:-1])
    log_density = pair.log_tilted(middle, theta=theta) - 0.5 * middle**2 - _LOG_SQRT_2PI - moment
    slope = _log_slope(pair, middle, theta=theta)
    return TiltedCells(pair, theta, width, edges, log_density, slope, curvature)


def _log_slope(pair: PoissonPair, z: Floats, *, theta: float) -> Floats:
    """(log p)′."""
    right = pair.hit_share(z) * pair.shift
    if pair.direction == "add":
        return -z - theta * right
    slope = -z + (theta + 1) * right
    if pair.direction == "replace":
        slope += theta * pair.hit_share(-z) * pair.shift
    if math.isfinite(pair.cut):
        ratio = (pair.cut - z) / CUT_WIDTH
        hazard = np.exp(-0.5 * ratio**2 - _LOG_SQRT_2PI - log_normal_cdf(ratio))
        slope -= hazard / CUT_WIDTH
    return slope


def strip_integral(cells: TiltedCells, *, height: float, frequency: float) -> float:
    """Log of a bound of ∫ |p(x + ia) e^{itL(x + ia)}| dx, for |t| ≤ ``frequency``.

    |φ(x+ia)| = φ(x) e^{a²/2}; |1−q+qe^{u}| ≤ 1−q+qe^{Re u}, and ≥ that times cos(a/2σ);
    |χ(x+ia)| ≤ χ(x) e^{a²/2w²}; and e^{itL} grows with the argument of 1−q+qe^u, which is
    rising in x. Needs a/σ < π/2.
    """
    pair, height_of_u = cells.pair, height * cells.pair.shift
    assert 0 < height_of_u < math.pi / 2
    factor = height**2 / 2
    if math.isfinite(pair.cut):
        factor += height**2 / (2 * CUT_WIDTH**2)
    if pair.direction != "remove":
        factor -= cells.theta * math.log(math.cos(height_of_u / 2))
    turn = _argument(pair, cells.edges[1:], height_of_u)
    if pair.direction == "replace":
        turn = turn + _argument(pair, -cells.edges[:-1], height_of_u)
    exponent = cells.log_masses + cells.bend + frequency * turn
    top = float(exponent.max())
    return factor + top + math.log(float(np.exp(exponent - top).sum()))


def _argument(pair: PoissonPair, x: Floats, height_of_u: float) -> Floats:
    """arg(1 − q + q e^{u + ib}) for 0 < b < π/2."""
    share = pair.hit_share(x)
    sine, cosine = math.sin(height_of_u), math.cos(height_of_u)
    return np.arctan2(share * sine, 1 - share * (1 - cosine))


@dataclass(frozen=True, slots=True)
class Decay:
    """Bounds of |φ(t)|, φ the transform of one tilted step, at large t."""

    losses: Floats
    masses: Floats
    excluded: Floats
    variation: Floats

    def log_bound(self, low: Floats, high: Floats) -> Floats:
        """Log of a bound of |φ| over each [low_i, high_i], at most 0."""
        by_parts = np.array([float((self.excluded + self.variation / t).min()) for t in low])
        by_spread = np.zeros_like(low)
        for reach in (math.pi, 1.2):
            strength = 2 * (1 - math.cos(reach)) / reach**2
            gain = strength * low**2 * self._spread(reach / high)
            by_spread = np.minimum(by_spread, 0.5 * np.log1p(-np.minimum(gain, 1 - 1e-16)))
        return np.minimum(np.log(np.minimum(by_parts, 1.0)), by_spread)

    def _spread(self, distances: Floats) -> Floats:
        """Half of E[D²; |D| ≤ c] from below, D the difference of two independent losses."""
        x, p = self.losses, self.masses
        lower, upper = x[:-1], x[1:]
        sums: list[Floats] = [np.insert(np.cumsum(p * upper**k), 0, 0.0) for k in range(3)]
        own = np.arange(len(p))
        out = np.zeros_like(distances)
        for i, c in enumerate(distances):
            fits = np.asarray(np.searchsorted(lower, upper - float(c), side="left"), np.intp)
            first = np.minimum(fits, own)
            s0, s1, s2 = (s[own] - s[first] for s in sums)
            square = lower**2 * s0 - 2 * lower * s1 + s2
            # What cancels in the square is at most 1e-13 of its terms.
            lost = 1e-13 * (lower**2 * s0 + np.abs(s2))
            out[i] = float(p @ np.maximum(square - lost, 0.0))
        return out


def decay(cells: TiltedCells) -> Decay:
    """Two bounds of |φ(t)|: by symmetrisation, and by parts.

    Symmetrisation: |φ(t)|² = E cos tD ≤ 1 − ((1 − cos b)/b²) t² E[D²; |D| ≤ b/t] for b ≤ π.
    By parts: where L is monotone, |∫ p e^{itL} dz| ≤ Var(p/L′)/t with Var the total
    variation; the set of small L′ is left out and counted with its mass.
    """
    pair = cells.pair
    loss = pair.loss(cells.edges)
    masses = np.exp(cells.log_masses - cells.bend)
    if pair.direction == "add":
        loss, masses = loss[::-1], masses[::-1]
    centre = float(masses @ loss[:-1]) / max(float(masses.sum()), 1e-300)
    excluded, variation = _integration_by_parts(cells)
    return Decay(loss - centre, masses, excluded, variation)


def _integration_by_parts(cells: TiltedCells) -> tuple[Floats, Floats]:
    """For each cell, leaving out all cells before it: their mass, and Var of the rest."""
    pair, z, d = cells.pair, cells.middles, cells.width
    m = pair.shift
    share, log_speed = pair.hit_share(z), math.log(m) + pair.log_hit_share(z)
    # log L′ = log(m r), or log(m (r(z) + r(−z))): slope and bend at most m and 2m².
    if pair.direction == "replace":
        other = pair.hit_share(-z)
        log_speed = np.logaddexp(log_speed, math.log(m) + pair.log_hit_share(-z))
        bend = m * (share * (1 - share) - other * (1 - other)) / (share + other)
    else:
        bend = m * (1 - share)
    curvature = cells.curvature + 2 * m * m
    slope, bow = cells.slope - bend, curvature * d * d / 8
    log_middle = cells.log_density - log_speed
    top = np.exp(np.minimum(log_middle + np.abs(slope) * d / 2 + bow, 700.0))
    # ∫ |F′| = ∫ F |(log F)′| over each cell.
    log_integral = log_middle + _log_sinhc(slope * d / 2) + bow + math.log(d)
    with np.errstate(over="ignore"):  # an infinite variation bounds nothing, and rightly so
        change = np.exp(np.minimum(log_integral, 700.0)) * (np.abs(slope) + curvature * d / 2)
    order = np.argsort(np.abs(z) if pair.direction == "replace" else z, kind="stable")
    kept = np.cumsum(np.exp(cells.log_masses - cells.bend)[order][::-1])[::-1]
    change, top = change[order], top[order]
    edge = 2 * top if pair.direction == "replace" else top
    # Beyond the window the density is monotone: it adds its end on either side that is kept.
    ends = np.full(len(top), float(top[-1]))
    if pair.direction == "replace":
        ends += float(top[-2])
    ends[0] += float(top[0])
    variation = np.cumsum(change[::-1])[::-1] + edge + ends
    return np.maximum(1 - kept, 0.0), variation
