"""The constants of the built-in data sets are recomputed from the data."""

import pytest

from service.core.datasets import BUILTIN_DATASETS
from workers.trainer import datasets


@pytest.mark.parametrize("source", BUILTIN_DATASETS)
def test_the_constants_are_those_of_the_data(source):
    facts = BUILTIN_DATASETS[source]
    split = datasets.load(source)
    assert datasets.fingerprint(split.train) == facts.fingerprint
    assert datasets.fingerprint(split.test) != facts.fingerprint
    assert split.train.pixels.shape == (facts.record_count, 64 if source == "digits" else 784)
    assert len(split.test.labels) == facts.test_count
    assert set(split.train.labels) == set(range(facts.classes))
    assert max(split.train.pixels.max(), split.test.pixels.max()) <= facts.pixel_max


@pytest.mark.parametrize("source", BUILTIN_DATASETS)
def test_no_record_lies_in_both_parts(source):
    split = datasets.load(source)
    private = {row.tobytes() for row in split.train.pixels}
    assert not any(row.tobytes() in private for row in split.test.pixels)


@pytest.mark.parametrize("source", BUILTIN_DATASETS)
def test_pixels_are_scaled_by_the_range_of_the_format(source):
    split = datasets.load(source)
    images, labels = datasets.to_tensors(split.test, split.facts)
    assert images.shape == (split.facts.test_count, 1, *split.facts.image_shape)
    pixel = split.test.pixels[0].max()
    assert images[0].max() == pytest.approx(pixel / split.facts.pixel_max)
    assert labels.dtype.is_signed
