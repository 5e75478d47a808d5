"""Array types, and SciPy's functions with the types that its package does not ship."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import fft, linalg, optimize, special  # pyright: ignore[reportMissingTypeStubs]

Floats = NDArray[np.floating[Any]]
Complexes = NDArray[np.complexfloating[Any, Any]]
Booleans = NDArray[np.bool_]

_Elementwise = Callable[[float | Floats], Floats]

normal_cdf = cast("_Elementwise", special.ndtr)
log_normal_cdf = cast("_Elementwise", special.log_ndtr)
# e^{x²} erfc(x): the normal tail without its exponential.
erfcx = cast("_Elementwise", special.erfcx)
logistic = cast("_Elementwise", special.expit)


def real_transform(values: Floats, size: int) -> Complexes:
    """Σ_j values_j e^{−2πijk/size} for 0 ≤ k ≤ size/2."""
    return np.asarray(fft.rfft(values, size))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def solve_tridiagonal(*, below: Floats, diagonal: Floats, above: Floats, right: Floats) -> Floats:
    """X with below_i x_{i−1} + diagonal_i x_i + above_i x_{i+1} = right_i.

    ``below[0]`` and ``above[-1]`` are not used.
    """
    bands = np.zeros((3, len(diagonal)))
    bands[0, 1:], bands[1], bands[2, :-1] = above[:-1], diagonal, below[1:]
    return np.asarray(linalg.solve_banded((1, 1), bands, right))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def root(function: Callable[[float], float], low: float, high: float, *, xtol: float) -> float:
    """A zero of ``function`` between two points where its signs differ."""
    find = cast("Any", optimize.brentq)  # pyright: ignore[reportUnknownMemberType]
    return float(find(function, low, high, xtol=xtol))
