"""What a check may rest on: facts as they are, and lower ends that hold for every record."""

import pytest

from service.core.bounds import separation
from service.core.events import EpochDpSgd, poisson
from service.operations.evidence import separation_of


def a_shuffle(remainder, *, epochs=2, updates=10):
    return EpochDpSgd(
        sampler="shuffle",
        updates_per_epoch=updates,
        epochs=epochs,
        noise_multiplier=0.5,
        remainder=remainder,
    )


def bound(sampler, epochs):
    return separation(
        noise_multiplier=0.5,
        updates_per_epoch=10,
        epochs=epochs,
        sampler=sampler,
        neighboring="zero_out",
    ).kappa


@pytest.mark.parametrize("remainder", ["dropped", None])
def test_a_record_that_may_be_dropped_lowers_the_separation(remainder):
    found = separation_of(a_shuffle(remainder), neighboring="zero_out")
    assert found is not None
    assert found.lower == pytest.approx(bound("shuffle", 1).lower * 10 / 11)
    assert found.upper == bound("shuffle", 2).upper


def test_a_kept_remainder_has_every_record_in_every_epoch():
    assert separation_of(a_shuffle("kept"), neighboring="zero_out") == bound("shuffle", 2)


def test_poisson_is_separated_by_whole_epochs_of_its_rate():
    event = poisson(sampling_rate=0.1, noise_multiplier=0.5, steps=20)
    assert separation_of(event, neighboring="zero_out") == bound("poisson", 2)
    odd = poisson(sampling_rate=0.1, noise_multiplier=0.5, steps=21)
    assert separation_of(odd, neighboring="zero_out") is None
