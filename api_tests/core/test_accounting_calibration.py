"""Least noise and most steps: tight, and never past the target at the digits shown."""

import math

import pytest

from service.core.accounting import answers, calibration
from service.core.errors import InvalidInput
from service.core.events import (
    Composed,
    EpochDpSgd,
    Gaussian,
    Neighboring,
    RandomizedResponse,
    Segment,
    StepwiseDpSgd,
    poisson,
)


def calibrate(rate, steps, target, delta, relation: Neighboring = "add_or_remove_one"):
    template = poisson(sampling_rate=rate, noise_multiplier=1.0, steps=steps)
    return calibration.noise_multiplier(
        template, target_epsilon=target, delta=delta, neighboring=relation
    )


@pytest.mark.parametrize(
    ("rate", "steps", "target", "delta", "optimum"),
    [
        (0.01, 3000, 2.0, 1e-5, 1.3133),
        (0.001, 1000, 0.02, 1e-6, 5.2202),
        (0.001, 1000, 0.1, 1e-6, 1.3932),
        (0.001, 1000, 1.0, 1e-6, 0.6972),
        (0.01, 2000, 50.0, 1e-5, 0.3712),
        (0.02, 2500, 200.0, 1e-5, 0.3067),
        (0.01, 1000, 1000.0, 1e-5, 0.1085),
        (1.0, 1, 0.01, 1e-5, 243.785),
    ],
)
def test_the_least_noise_is_found_and_meets_its_target(rate, steps, target, delta, optimum):
    found = calibrate(rate, steps, target, delta)
    assert found.achieved.upper <= target
    assert found.noise_multiplier == pytest.approx(optimum, abs=6e-5 * max(1, optimum / 10))
    just_less = calibration.scaled(found.event, 1 - 1e-5)
    missed = answers.epsilon(just_less, delta=delta, neighboring="add_or_remove_one").epsilon
    assert missed.upper > target * (1 - 1e-8)


def test_rounding_to_nearest_would_have_missed_the_target():
    found = calibrate(0.01, 3000, 2.0, 1e-5)
    assert found.noise_multiplier > 1.3133
    nearest = poisson(sampling_rate=0.01, noise_multiplier=1.3133, steps=3000)
    answer = answers.epsilon(nearest, delta=1e-5, neighboring="add_or_remove_one")
    assert answer.epsilon.lower > 2.00005


def test_a_whole_schedule_is_scaled_by_one_factor():
    template = StepwiseDpSgd(
        sampler="poisson",
        schedule=(
            Segment(steps=500, noise_multiplier=1.5, sampling_rate=0.01),
            Segment(steps=500, noise_multiplier=1.0, sampling_rate=0.01),
        ),
    )
    found = calibration.noise_multiplier(
        template, target_epsilon=1.0, delta=1e-5, neighboring="add_or_remove_one"
    )
    assert isinstance(found.event, StepwiseDpSgd)
    first, second = found.event.schedule
    assert first.noise_multiplier == pytest.approx(1.5 * second.noise_multiplier)
    assert 0.999 < found.achieved.upper <= 1.0


@pytest.mark.parametrize(
    "template",
    [
        poisson(sampling_rate=0.9, noise_multiplier=1.0, steps=1_000_000_000),
        Composed(parts=(RandomizedResponse(epsilon=1.0, count=9), Gaussian(noise_multiplier=1.0))),
    ],
)
def test_a_target_out_of_reach_is_refused(template):
    with pytest.raises(InvalidInput) as refused:
        calibration.noise_multiplier(
            template, target_epsilon=1e-3, delta=1e-9, neighboring="add_or_remove_one"
        )
    assert refused.value.code == "TARGET_UNREACHABLE"


def test_a_mechanism_without_noise_cannot_be_calibrated():
    with pytest.raises(InvalidInput):
        calibration.noise_multiplier(
            RandomizedResponse(epsilon=1.0),
            target_epsilon=1.0,
            delta=1e-5,
            neighboring="add_or_remove_one",
        )


def test_the_most_steps_fit_and_one_more_does_not():
    template = poisson(sampling_rate=0.01, noise_multiplier=1.1, steps=1)
    found = calibration.steps(
        template, target_epsilon=2.0, delta=1e-5, neighboring="add_or_remove_one"
    )
    assert found.achieved.upper <= 2.0
    one_more = poisson(sampling_rate=0.01, noise_multiplier=1.1, steps=found.steps + 1)
    over = answers.epsilon(one_more, delta=1e-5, neighboring="add_or_remove_one").epsilon
    assert over.upper > 2.0


def test_shuffled_steps_come_in_whole_epochs():
    template = EpochDpSgd(sampler="shuffle", updates_per_epoch=100, epochs=1, noise_multiplier=10.0)
    found = calibration.steps(template, target_epsilon=3.0, delta=1e-5, neighboring="zero_out")
    assert found.steps % 100 == 0
    assert found.steps >= 100


@pytest.mark.parametrize("target", [0.0, -1.0, math.inf, math.nan])
def test_a_target_that_is_no_positive_number_is_refused(target):
    with pytest.raises(InvalidInput):
        calibrate(0.01, 100, target, 1e-5)
