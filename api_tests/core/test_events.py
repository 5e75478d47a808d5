"""Events keep their meaning: JSON round trips, prefixes, limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core import events
from service.core.errors import InvalidInput
from service.core.events import (
    NOTHING,
    ApproximateDp,
    Composed,
    DiscreteGaussian,
    EpochDpSgd,
    Gaussian,
    Laplace,
    RandomizedResponse,
    Repeated,
    Segment,
    StepwiseDpSgd,
    Zcdp,
    from_json,
    merge_segments,
    poisson,
    prefix,
    to_json,
)

SCHEDULE = StepwiseDpSgd(
    sampler="poisson",
    schedule=(
        Segment(steps=10, noise_multiplier=0.9, sampling_rate=0.01),
        Segment(steps=5, noise_multiplier=1.2, sampling_rate=0.02),
    ),
    count_noise_stddev=10.0,
)


@pytest.mark.parametrize(
    "event",
    [
        poisson(sampling_rate=0.01, noise_multiplier=1.1, steps=3000),
        SCHEDULE,
        StepwiseDpSgd(
            sampler="full_batch",
            schedule=(Segment(steps=3, noise_multiplier=2.0, sampling_rate=1.0),),
        ),
        EpochDpSgd(
            sampler="shuffle",
            updates_per_epoch=100,
            epochs=30,
            noise_multiplier=1.1,
            remainder="dropped",
        ),
        Gaussian(noise_multiplier=4.0, count=10),
        Laplace(noise_multiplier=2.0),
        DiscreteGaussian(noise_multiplier=4.0),
        RandomizedResponse(epsilon=1.0),
        ApproximateDp(epsilon=0.5, delta=1e-7),
        Zcdp(rho=0.1),
        Composed(parts=(Gaussian(noise_multiplier=1.0), Repeated(of=Zcdp(rho=0.1), times=100))),
        NOTHING,
    ],
)
def test_an_event_survives_its_json(event):
    assert from_json(to_json(event)) == event


@given(st.integers(0, 15))
def test_the_prefix_of_a_schedule_has_exactly_the_steps_asked_for(steps):
    part = prefix(SCHEDULE, steps)
    assert (part.steps if isinstance(part, StepwiseDpSgd) else 0) == steps


def test_an_epoch_that_has_begun_counts_whole():
    run = EpochDpSgd(sampler="shuffle", updates_per_epoch=100, epochs=3, noise_multiplier=1.0)
    begun = prefix(run, 101)
    assert isinstance(begun, EpochDpSgd)
    assert begun.epochs == 2


def test_equal_neighbours_collapse_into_one_segment():
    one = Segment(steps=1, noise_multiplier=1.0, sampling_rate=0.1)
    other = Segment(steps=1, noise_multiplier=2.0, sampling_rate=0.1)
    merged = merge_segments([one, one, other, one])
    assert [s.steps for s in merged] == [2, 1, 1]


@pytest.mark.parametrize(
    ("build", "pointer"),
    [
        (lambda: poisson(sampling_rate=0.0, noise_multiplier=1.0, steps=1), "/sampling_rate"),
        (lambda: poisson(sampling_rate=1.5, noise_multiplier=1.0, steps=1), "/sampling_rate"),
        (lambda: poisson(sampling_rate=0.1, noise_multiplier=-1.0, steps=1), "/noise_multiplier"),
        (lambda: poisson(sampling_rate=0.1, noise_multiplier=2e4, steps=1), "/noise_multiplier"),
        (
            lambda: poisson(sampling_rate=0.1, noise_multiplier=float("nan"), steps=1),
            "/noise_multiplier",
        ),
        (lambda: poisson(sampling_rate=0.1, noise_multiplier=1.0, steps=0), "/steps"),
        (lambda: Gaussian(noise_multiplier=1.0, count=events.MAX_STEPS + 1), "/count"),
        (lambda: Zcdp(rho=float("inf")), "/rho"),
        (lambda: ApproximateDp(epsilon=1.0, delta=1.0), "/delta"),
    ],
)
def test_a_value_outside_its_limits_names_its_field(build, pointer):
    with pytest.raises(InvalidInput) as caught:
        build()
    assert caught.value.pointer == pointer
