"""What a loaded data set looks like."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.core.datasets import BuiltinDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """``pixels`` (n, height·width) and ``labels`` (n,), both bytes."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The two parts of a built-in: ``train`` plays the private data, ``test`` is public."""

    facts: BuiltinDataset
    train: Part
    test: Part
