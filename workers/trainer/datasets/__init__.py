"""The built-in data sets as arrays, by their names in ``service.core.datasets``."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.core.datasets import BuiltinDataset, builtin_dataset, content_digest, split_order
from workers.trainer.datasets.digits import read_digits
from workers.trainer.datasets.mnist5k import read_mnist5k
from workers.trainer.datasets.parts import Part, Split

DATASETS = {"digits": read_digits, "mnist5k": read_mnist5k}


def load(source: str) -> Split:
    """The private training part and the public test part of a built-in.

    Both keep the order of the original data. Pixels stay whole numbers; ``to_tensors`` scales.
    """
    facts = builtin_dataset(source)
    pixels, labels = DATASETS[source]()
    order = split_order(source, len(labels))
    return Split(
        facts=facts,
        train=_part(pixels, labels, order[facts.test_count :]),
        test=_part(pixels, labels, order[: facts.test_count]),
    )


def fingerprint(part: Part) -> str:
    """The digest that ``service.core.datasets`` states for a built-in's private part."""
    return content_digest(part.pixels.shape, part.pixels.tobytes(), part.labels.tobytes())


def to_tensors(part: Part, facts: BuiltinDataset) -> tuple[Tensor, Tensor]:
    """Images (n, 1, height, width) in [0, 1] by the format's own range, and labels (n,)."""
    shape = (len(part.labels), 1, *facts.image_shape)
    images = torch.from_numpy(part.pixels.reshape(shape)).float() / facts.pixel_max
    return images, torch.from_numpy(part.labels.astype(np.int64))


def _part(pixels: NDArray[np.uint8], labels: NDArray[np.uint8], indices: list[int]) -> Part:
    chosen = sorted(indices)
    return Part(
        pixels=np.ascontiguousarray(pixels[chosen]), labels=np.ascontiguousarray(labels[chosen])
    )
