# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# scipy ships without type stubs.
"""Statistical checks of a sealed log: does what was measured fit what was recorded?

Every outcome here is a function of sealed data and stays with the auditor (R25). The tests
of one run share one chance of a false alarm, ``ALPHA``, split evenly over ``TESTS``, so that
an honest run is flagged once in a million.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special  # pyright: ignore[reportMissingTypeStubs]

ALPHA: Final = 1e-6
TESTS: Final = 6
_EACH: Final = ALPHA / TESTS

Name = Literal[
    "batch_mean",
    "batch_dispersion",
    "batch_constant",
    "noise_scale",
    "noise_scale_per_step",
    "noise_repeated",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one test: ``fits`` at a false alarm rate of ALPHA / TESTS.

    Args:
        name: which test.
        fits: False if an honest run would look like this at most so rarely.
        detail: what was found, with figures of sealed data.
    """

    name: Name
    fits: bool
    detail: str


def batch_sizes(
    realized: NDArray[np.int64], *, sampling_rate: NDArray[np.float64], record_count: int
) -> tuple[Outcome, ...]:
    """Do realised batch sizes fit independent Binomial(n, q) draws?

    Args:
        realized: batch sizes, one per step, of shape (steps,).
        sampling_rate: the recorded q of the same steps, in (0, 1].
        record_count: n, the records that could be drawn.

    Returns:
        batch_mean (a rate other than recorded, accumulation ignored), batch_dispersion (more
        or less regular than Poisson sampling), batch_constant (fixed-size batches).

    Source: Binomial(n, q) has mean nq, variance nq(1 − q) and excess kurtosis
        (1 − 6q(1 − q)) / (nq(1 − q)); the total over steps of one q is Binomial(n·steps, q).
    """
    assert len(realized) == len(sampling_rate) > 0
    return (
        _batch_mean(realized, sampling_rate, record_count),
        _batch_dispersion(realized, sampling_rate, record_count),
        _batch_constant(realized, sampling_rate, record_count),
    )


def noise_norms(
    norms: NDArray[np.float64], *, noise_stddev: NDArray[np.float64], dimension: int
) -> tuple[Outcome, ...]:
    """Do the norms of the noise fit N(0, σ²C² I), freshly drawn at every step?

    Args:
        norms: L2 norm of the noise added to the sum of clipped gradients, of shape (steps,).
        noise_stddev: the recorded σ·C of the same steps, > 0.
        dimension: the number of coordinates, ≥ 1.

    Returns:
        noise_scale (over all steps), noise_scale_per_step (the worst step), noise_repeated
        (a stretch of norms that comes twice).

    Source: ‖z‖² / (σC)² follows χ² with ``dimension`` degrees of freedom.
    """
    assert len(norms) == len(noise_stddev) > 0
    with np.errstate(over="ignore"):  # an absurd norm is infinitely implausible
        squares = (norms / noise_stddev) ** 2
    return (
        _noise_scale(squares, dimension),
        _noise_scale_per_step(squares, dimension),
        _noise_repeated(norms),
    )


def _batch_mean(
    realized: NDArray[np.int64], rate: NDArray[np.float64], record_count: int
) -> Outcome:
    rates = np.unique(rate)
    worst, detail = 1.0, ""
    for q in rates:
        chosen = realized[rate == q]
        draws = record_count * len(chosen)
        total = int(chosen.sum())
        p = _two_sided(*_binomial_tails(total, draws, float(q)))
        if p <= worst:
            worst = p
            seen = chosen.mean() / record_count
            detail = f"recorded rate {q:.6g}, realised rate {seen:.6g}, p = {p:.3g}"
    return Outcome(name="batch_mean", fits=worst >= _EACH / len(rates), detail=detail)


def _batch_dispersion(
    realized: NDArray[np.int64], rate: NDArray[np.float64], record_count: int
) -> Outcome:
    drawn = rate < 1
    if not drawn.any():
        return Outcome(name="batch_dispersion", fits=True, detail="every record in every step")
    q = rate[drawn]
    variance = record_count * q * (1 - q)
    total = float((((realized[drawn] - record_count * q) ** 2) / variance).sum())
    count = int(drawn.sum())
    # The sum has mean ``count`` and variance Σ (2 + excess kurtosis): a Gamma of the same two
    # moments, whose upper tail is heavier than that of the sum for batches of a few records.
    spread = float((2 + (1 - 6 * q * (1 - q)) / variance).sum())
    shape, scale = count**2 / spread, spread / count
    p = _two_sided(
        float(special.gammainc(shape, total / scale)),
        float(special.gammaincc(shape, total / scale)),
    )
    detail = f"variance {total / count:.6g} times that of Binomial(n, q), p = {p:.3g}"
    return Outcome(name="batch_dispersion", fits=p >= _EACH, detail=detail)


def _batch_constant(
    realized: NDArray[np.int64], rate: NDArray[np.float64], record_count: int
) -> Outcome:
    drawn = rate < 1
    sizes = realized[drawn]
    if len(sizes) < 2 or (sizes != sizes[0]).any():
        return Outcome(name="batch_constant", fits=True, detail="batch sizes vary")
    # All equal to the first: the others each hit one value, of chance at most the mode's.
    q = rate[drawn]
    log_mode = _log_binomial_mass(np.floor((record_count + 1) * q), record_count, q)
    log_p = float(log_mode[1:].sum())
    detail = f"every batch has {int(sizes[0])} records, p ≤ {math.exp(max(log_p, -700)):.3g}"
    return Outcome(name="batch_constant", fits=log_p >= math.log(_EACH), detail=detail)


def _noise_scale(squares: NDArray[np.float64], dimension: int) -> Outcome:
    total, freedom = float(squares.sum()), dimension * len(squares)
    p = _two_sided(float(special.chdtr(freedom, total)), float(special.chdtrc(freedom, total)))
    detail = f"noise {math.sqrt(total / freedom):.6g} times the recorded, p = {p:.3g}"
    return Outcome(name="noise_scale", fits=p >= _EACH, detail=detail)


def _noise_scale_per_step(squares: NDArray[np.float64], dimension: int) -> Outcome:
    low, high = special.chdtr(dimension, squares), special.chdtrc(dimension, squares)
    p = np.minimum(1.0, 2 * np.minimum(low, high))
    worst = int(np.argmin(p))
    ratio = math.sqrt(float(squares[worst]) / dimension)
    detail = f"row {worst}: noise {ratio:.6g} times the recorded, p = {p[worst]:.3g}"
    return Outcome(
        name="noise_scale_per_step", fits=bool(p[worst] >= _EACH / len(squares)), detail=detail
    )


def _noise_repeated(norms: NDArray[np.float64]) -> Outcome:
    """Look for a stretch of norms that comes twice.

    Single norms may coincide, the more so the fewer digits they have. If two equal norms
    are as likely as the log itself shows, two equal stretches of length k are that to the
    power of k: k is chosen so that none is expected.
    """
    count = len(norms)
    _, rank, sizes = np.unique(norms, return_inverse=True, return_counts=True)
    pairs = count * (count - 1) / 2
    if pairs == 0 or len(sizes) == count:
        return Outcome(name="noise_repeated", fits=True, detail="all norms differ")
    equal = float((sizes * (sizes - 1.0)).sum() / 2 / pairs)
    # Runs of one constant value say nothing about chance: the scale tests judge those.
    length = 2
    if equal < 1:
        length = max(2, math.ceil(math.log(_EACH / pairs) / math.log(equal)))
    if length > count // 2:
        return Outcome(name="noise_repeated", fits=True, detail="too few digits to tell")
    code = rank.astype(np.int64)
    for shift in range(1, length):
        joined = code[: count - shift] * (count + 1) + rank[shift:]
        code = np.unique(joined, return_inverse=True)[1].astype(np.int64)
    _, first, again = np.unique(code, return_index=True, return_counts=True)
    if (again == 1).all():
        return Outcome(name="noise_repeated", fits=True, detail="no stretch comes twice")
    row = int(first[np.argmax(again > 1)])
    detail = f"{length} norms from row {row} on come again later"
    return Outcome(name="noise_repeated", fits=False, detail=detail)


def _binomial_tails(total: int, draws: int, q: float) -> tuple[float, float]:
    """(P[X ≤ total], P[X ≥ total]) of X ~ Binomial(draws, q), by incomplete beta functions."""
    low = 1.0 if total >= draws else float(special.betaincc(total + 1, draws - total, q))
    high = 1.0 if total <= 0 else float(special.betainc(total, draws - total + 1, q))
    return low, high


def _log_binomial_mass(
    successes: NDArray[np.float64], count: int, q: NDArray[np.float64]
) -> NDArray[np.float64]:
    choices = (
        special.gammaln(count + 1.0)
        - special.gammaln(successes + 1.0)
        - special.gammaln(count - successes + 1.0)
    )
    return choices + special.xlogy(successes, q) + special.xlog1py(count - successes, -q)


def _two_sided(low: float, high: float) -> float:
    return min(1.0, 2 * min(low, high))
