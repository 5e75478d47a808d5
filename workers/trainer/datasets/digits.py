"""1,797 scanned digits that ship inside scikit-learn: 8 x 8 pixels from 0 to 16."""

import numpy as np
from numpy.typing import NDArray


def read_digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels (1797, 64) and labels (1797,) in the order of the original file."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - a second of import, only if used

    pixels, labels = load_digits(return_X_y=True)
    return np.asarray(pixels, dtype=np.uint8), np.asarray(labels, dtype=np.uint8)
