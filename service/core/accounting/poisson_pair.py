"""The Poisson-subsampled Gaussian, one step, one direction, in noise space.

With u(z) = z/σ − 1/(2σ²) and f(z) = log(1 − q + q e^{u(z)}), z standard normal under N₀:

    remove       P = (1−q)N(0) + qN(1/σ),  Q = N(0):               L = f(z)
    add          P = N(0),  Q = (1−q)N(0) + qN(1/σ):               L = −f(z)
    replace      P = (1−q)N(0) + qN(1/σ),  Q with −1/σ:            L = f(z) − f(−z)

Far to the right P may be thinned by the smooth factor χ(z) = Φ((c − z)/w): a
sub-probability P′ ≤ P, which lowers δ(ε) by at most the mass taken away. Without it, a
rare hit of a tiny q would have to be resolved although it is far below δ.

Source: Zhu, Dong & Wang 2022 (dominating pairs of Poisson sampling) for remove and add;
docs/accounting.md, "Pairs", for replace_one: derived there, not peer reviewed.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from service.core.accounting.arrays import Floats, log_normal_cdf, normal_cdf, root

Direction = Literal["remove", "add", "replace"]

CUT_WIDTH: Final = 0.35
_REACH: Final = 9.4  # e^{−9.4²/2} = 6e-20: what lies outside a window of this many σ
_LOG_SQRT_2PI: Final = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, slots=True)
class PoissonPair:
    """One step of the Poisson-subsampled Gaussian with rate q and noise multiplier σ."""

    sampling_rate: float
    noise_multiplier: float
    direction: Direction
    cut: float = math.inf
    infinite_mass: float = 0.0

    @property
    def shift(self) -> float:
        """1/σ, the distance of the two Gaussians in standard deviations."""
        return 1 / self.noise_multiplier

    @property
    def dropped_mass(self) -> float:
        """P-mass that the cut takes away, rounded up."""
        return 0.0 if math.isinf(self.cut) else 1.000001 * self._mass_cut_at(self.cut)

    def with_cut(self, mass: float) -> "PoissonPair":
        """The pair thinned so that at most about ``mass`` of P is lost."""
        if self.direction == "add":
            return self
        farthest = 38 * math.hypot(1, CUT_WIDTH) + self.shift

        def excess(cut: float) -> float:
            return math.log(max(self._mass_cut_at(cut), 1e-320) / mass)

        if excess(0.0) <= 0 or excess(farthest) >= 0:
            return self
        return replace(self, cut=root(excess, 0.0, farthest, xtol=1e-6))

    def _mass_cut_at(self, cut: float) -> float:
        # z + wξ with ξ standard normal is N(mean, 1 + w²): E χ is one normal tail.
        spread = math.hypot(1, CUT_WIDTH)
        q = self.sampling_rate
        missed, hit = (
            float(normal_cdf(-cut / spread)),
            float(normal_cdf((self.shift - cut) / spread)),
        )
        return (1 - q) * missed + q * hit

    # ---------------------------------------------------------------- densities on a line

    def log_mixture(self, z: Floats) -> Floats:
        """f(z), stable on both sides."""
        q, u = self.sampling_rate, self._exponent(z)
        far = u > 1
        near_part = np.log1p(q * np.expm1(np.where(far, 0.0, u)))
        far_part = u + np.log(q + (1 - q) * np.exp(-np.where(far, u, 0.0)))
        return np.where(far, far_part, near_part)

    def hit_share(self, z: Floats) -> Floats:
        """r(z) = f′(z) σ: the posterior probability that the record was sampled."""
        return np.exp(np.maximum(self.log_hit_share(z), -700.0))

    def log_hit_share(self, z: Floats) -> Floats:
        """Log r(z), which r itself underflows for small σ."""
        return math.log(self.sampling_rate) + self._exponent(z) - self.log_mixture(z)

    def _exponent(self, z: Floats) -> Floats:
        return z * self.shift - 0.5 * self.shift**2

    def log_thinning(self, z: Floats) -> Floats:
        """Log χ(z), zero without a cut."""
        if math.isinf(self.cut):
            return np.zeros_like(z)
        return log_normal_cdf((self.cut - z) / CUT_WIDTH)

    def loss(self, z: Floats) -> Floats:
        """L(z): rising in z for remove and replace, falling for add."""
        f = self.log_mixture(z)
        if self.direction == "remove":
            return f
        return -f if self.direction == "add" else f - self.log_mixture(-z)

    def log_tilted(self, z: Floats, *, theta: float) -> Floats:
        """Log of (dP′/dN₀) e^{θL} at z: the tilted law without its normal factor."""
        f = self.log_mixture(z)
        if self.direction == "remove":
            return (theta + 1) * f + self.log_thinning(z)
        if self.direction == "add":
            return -theta * f
        return (theta + 1) * f - theta * self.log_mixture(-z) + self.log_thinning(z)

    # ---------------------------------------------------------------- windows and moments

    def window(self, theta: float) -> tuple[float, float]:
        """[lo, hi] beyond which the tilted density falls at least like e^{−9.4|z|}.

        The slope of its logarithm is −z plus the pull of the tilt: at most (θ+1)/σ to the
        right for remove, (2θ+1)/σ for replace, none for add, and θr(z)/σ to the left for
        add; r is rising. With a cut, at least (z − c)/w² more pulls back.
        """
        if self.direction == "add":
            end = np.array(-_REACH)
            return -_REACH - theta * self.shift * float(self.hit_share(end)), _REACH
        pull = ((theta + 1) if self.direction == "remove" else (2 * theta + 1)) * self.shift
        high = _REACH + pull
        if math.isfinite(self.cut):
            stiffness = 1 + CUT_WIDTH**-2
            reach = _REACH * math.sqrt(stiffness)
            high = min(high, (reach + pull + self.cut * CUT_WIDTH**-2) / stiffness)
        return -_REACH, max(high, _REACH)

    def cumulants(self, theta: float) -> tuple[float, float, float]:
        """K, K′, K″ of one step at a real tilt; K to about 1e-15 relative."""
        low, high = self.window(theta)
        spacing = min(0.35, 0.4 * self.noise_multiplier)
        z = np.arange(low, high + spacing, spacing)
        log_p, moment = self.normalised(z, spacing=spacing, theta=theta)
        p, x = np.exp(log_p), self.loss(z)
        mean = float(p @ x)
        return moment, mean, float(p @ (x - mean) ** 2)

    def normalised(self, z: Floats, *, spacing: float, theta: float) -> tuple[Floats, float]:
        """Log weights of the nodes z under the tilted law, and K(θ), by the trapezoid rule.

        Where K is small it is summed as E[e^g − 1], so that a billion steps of a tiny q
        keep its digits.
        """
        tilt = self.log_tilted(z, theta=theta)
        log_node = -0.5 * z * z + (math.log(spacing) - _LOG_SQRT_2PI)
        exponent = tilt + log_node
        top = float(exponent.max())
        if float((tilt - 0.5 * z * z).max()) < 1:
            excess = np.where(
                tilt < 1,
                np.expm1(np.minimum(tilt, 1)) * np.exp(log_node),
                np.exp(exponent) - np.exp(log_node),
            )
            moment = math.log1p(float(excess.sum()))
        else:
            moment = top + math.log(float(np.exp(exponent - top).sum()))
        return exponent - moment, moment
