"""Single mechanisms, epoch samplers, edges: against closed forms and mpmath."""

import math

import mpmath
import numpy as np
import pytest

from service.core.accounting import answers
from service.core.accounting.notices import Notice
from service.core.errors import InvalidInput
from service.core.events import (
    NOTHING,
    ApproximateDp,
    Composed,
    DiscreteGaussian,
    EpochDpSgd,
    Gaussian,
    Laplace,
    Neighboring,
    RandomizedResponse,
    Segment,
    StepwiseDpSgd,
    poisson,
)


def eps(event, delta, relation: Neighboring = "add_or_remove_one"):
    return answers.epsilon(event, delta=delta, neighboring=relation).epsilon


def delta_of(event, epsilon, relation: Neighboring = "add_or_remove_one"):
    return answers.delta(event, epsilon=epsilon, neighboring=relation).delta


def exact_gaussian_delta(epsilon, mu):
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize("sigma", [1e-4, 0.05, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("delta", [0.9, 1e-3, 1e-12, 1e-30])
def test_gaussian_epsilon_agrees_with_sixty_digits(sigma, delta):
    bracket = eps(Gaussian(noise_multiplier=sigma), delta)
    assert exact_gaussian_delta(bracket.upper, 1 / sigma) <= delta
    if bracket.lower > 0:
        assert exact_gaussian_delta(bracket.lower, 1 / sigma) > delta
    assert bracket.width <= 1e-9 * (1 + bracket.upper)


def test_two_poisson_steps_agree_with_direct_quadrature():
    q, sigma, epsilon = 0.2, 1.0, 0.8
    z = np.linspace(-9, 12, 8401)
    h = z[1] - z[0]
    bell = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    ratio = 1 - q + q * np.exp(z / sigma - 0.5 / sigma**2)
    p = ratio * bell * h
    loss = np.log(ratio)
    total = sum(
        float(mass * (p @ np.maximum(-np.expm1(epsilon - one - loss), 0.0)))
        for mass, one in zip(p, loss, strict=True)
    )
    bracket = delta_of(poisson(sampling_rate=q, noise_multiplier=sigma, steps=2), epsilon)
    assert bracket.lower <= total * (1 + 1e-5)
    assert bracket.upper >= total * (1 - 1e-5)
    assert bracket.width < 0.02 * bracket.upper


@pytest.mark.parametrize("rate", [0.1, 1e-3, 1e-7])
@pytest.mark.parametrize("epsilon", [0.0, 1e-8, 0.05, 2.0, 40.0])
def test_one_poisson_step_agrees_with_sixty_digits(rate, epsilon):
    with mpmath.workdps(60):
        q, e = mpmath.mpf(rate), mpmath.mpf(epsilon)
        remove = q * exact_gaussian_delta(mpmath.log(1 + (mpmath.exp(e) - 1) / q), 1.25)
        c = 1 - mpmath.exp(e) * (1 - q)
        add = c * exact_gaussian_delta(mpmath.log(mpmath.exp(e) * q / c), 1.25) if c > 0 else 0
        exact = max(remove, add)
    bracket = delta_of(poisson(sampling_rate=rate, noise_multiplier=0.8, steps=1), epsilon)
    assert bracket.lower <= exact <= bracket.upper
    assert bracket.width <= 1e-9 * float(exact) + 1e-300


def test_laplace_randomised_response_and_stated_spends_match_their_closed_forms():
    laplace = eps(Laplace(noise_multiplier=2.0), 0.01)
    assert laplace.contains(0.5 + 2 * math.log1p(-0.01)) or laplace.width < 1e-9
    assert laplace.upper == pytest.approx(0.5 + 2 * math.log1p(-0.01), rel=1e-9)
    response = eps(RandomizedResponse(epsilon=1.0), 0.1)
    assert response.upper == pytest.approx(math.log(math.e - 0.1 * (1 + math.e)), rel=1e-9)
    stated = ApproximateDp(epsilon=0.5, delta=1e-6)
    assert eps(stated, 1e-6).upper == pytest.approx(0.5, rel=1e-6)
    assert eps(stated, 1e-7).lower == math.inf
    assert delta_of(stated, 0.5).upper == pytest.approx(1e-6, rel=1e-9)


def test_many_stated_spends_lie_between_binomial_bounds():
    count, epsilon = 30, 0.1
    event = ApproximateDp(epsilon=epsilon, delta=1e-8, count=count)
    bracket = eps(event, 1e-5)

    def exact(at):
        finite = (1 - 1e-8) ** count
        up = 1 / (1 + math.exp(-epsilon))
        total = 0.0
        for k in range(count + 1):
            loss = (2 * k - count) * epsilon
            mass = math.comb(count, k) * up**k * (1 - up) ** (count - k)
            total += mass * max(1 - math.exp(at - loss), 0.0)
        return 1 - finite + finite * total

    assert exact(bracket.upper) <= 1e-5 <= exact(bracket.lower * (1 - 1e-9)) * (1 + 1e-9)
    assert bracket.width < 0.01
    assert bracket.upper < count * epsilon


@pytest.mark.parametrize("sigma", [0.4, 1.0, 4.0, 50.0])
def test_the_discrete_gaussian_is_its_own_mechanism(sigma):
    single = eps(DiscreteGaussian(noise_multiplier=sigma), 1e-5)
    reach = math.ceil(15 * sigma)
    total = sum(math.exp(-x * x / (2 * sigma**2)) for x in range(-reach, reach + 1))

    def exact(at):
        return sum(
            math.exp(-x * x / (2 * sigma**2))
            / total
            * max(-math.expm1(at - (1 - 2 * x) / (2 * sigma**2)), 0.0)
            for x in range(-reach, reach + 1)
        )

    assert exact(single.upper) <= 1e-5 * (1 + 1e-9)
    assert exact(single.lower * (1 - 1e-9)) >= 1e-5 * (1 - 1e-9)
    many = eps(DiscreteGaussian(noise_multiplier=sigma, count=10), 1e-5)
    alike = eps(Gaussian(noise_multiplier=sigma, count=10), 1e-5)
    assert single.upper < many.upper
    assert many.upper == pytest.approx(alike.upper, rel=0.25)


@pytest.mark.parametrize(
    ("sigma", "shift", "count", "epsilon"),
    [
        (1.1, 1, 3, 9.0),
        (1.1, 1, 3, 11.017),
        (1.1, 2, 2, 21.75),
        (2.4, 1, 2, 2.057),
        (3.2, 2, 3, 8.62),
        (0.7, 1, 4, 12.3),
        (0.4, 1, 2, 11.0),
    ],
)
def test_several_discrete_gaussians_hold_their_direct_sum(sigma, shift, count, epsilon):
    reach = math.ceil(14 * sigma) + 2
    xs = np.arange(-reach, reach + 1)
    one = np.exp(-(xs**2) / (2 * sigma**2))
    law = one = one / one.sum()
    for _ in range(count - 1):
        law = np.convolve(law, one)
    total = np.arange(-count * reach, count * reach + 1)
    losses = (count * shift**2 - 2 * shift * total) / (2 * sigma**2)
    truth = float((law * np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)).sum())
    relation = "replace_one" if shift == 2 else "zero_out"
    found = delta_of(DiscreteGaussian(noise_multiplier=sigma, count=count), epsilon, relation)
    assert found.lower <= truth * (1 + 1e-9)
    assert found.upper >= truth * (1 - 1e-9)
    assert found.width <= 0.02 * truth


def test_shuffled_batches_are_never_charged_as_poisson():
    event = EpochDpSgd(
        sampler="shuffle",
        updates_per_epoch=10_000,
        epochs=1,
        noise_multiplier=0.5,
        remainder="kept",
    )
    answer = answers.epsilon(event, delta=1e-6, neighboring="zero_out")
    assert answer.epsilon.lower == pytest.approx(10.9948, abs=5e-5)
    assert answer.epsilon.upper == pytest.approx(10.9972, abs=5e-5)
    assert Notice.SHUFFLE_NOT_AMPLIFIED in answer.warnings


@pytest.mark.parametrize("relation", ["replace_one", "zero_out"])
def test_a_dropped_remainder_may_leave_the_record_out(relation):
    # M = 1: nearly half of the records may be dropped, and then nothing of them is released.
    def lower(remainder):
        event = EpochDpSgd(
            sampler="shuffle",
            updates_per_epoch=1,
            epochs=1,
            noise_multiplier=1.0,
            remainder=remainder,
        )
        return answers.epsilon(event, delta=1e-5, neighboring=relation).epsilon.lower

    shift = 2.0 if relation == "replace_one" else 1.0
    assert exact_gaussian_delta(lower("kept"), shift) >= 1e-5
    assert lower("dropped") < lower("kept")
    assert lower(None) == lower("dropped")


@pytest.mark.parametrize("sampler", ["shuffle", "balls_in_bins"])
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one", "zero_out"])
@pytest.mark.parametrize("remainder", [None, "dropped", "kept"])
def test_epoch_samplers_get_a_bracket_under_every_relation(sampler, relation, remainder):
    event = EpochDpSgd(
        sampler=sampler,
        updates_per_epoch=100,
        epochs=3,
        noise_multiplier=0.8,
        remainder=remainder,
    )
    bracket = eps(event, 1e-5, relation)
    assert 0 < bracket.lower < bracket.upper < math.inf
    at = delta_of(event, bracket.lower, relation)
    assert at.upper >= 1e-5


def test_an_unknown_remainder_costs_the_worse_of_the_two():
    def run(remainder):
        return EpochDpSgd(
            sampler="shuffle",
            updates_per_epoch=100,
            epochs=30,
            noise_multiplier=1.1,
            remainder=remainder,
        )

    unknown = answers.epsilon(run(None), delta=1e-5, neighboring="add_or_remove_one")
    assert unknown.epsilon.upper == eps(run("kept"), 1e-5).upper
    assert unknown.epsilon.upper > eps(run("dropped"), 1e-5).upper
    assert unknown.epsilon.lower <= eps(run("dropped"), 1e-5).lower
    assert Notice.SHUFFLE_REMAINDER_UNKNOWN in unknown.warnings
    assert eps(run(None), 1e-5, "zero_out").upper == pytest.approx(32.91, abs=0.005)


def test_private_adaptive_clipping_charges_the_joint_noise():
    segment = Segment(steps=1000, noise_multiplier=1.0, sampling_rate=0.01)
    adaptive = StepwiseDpSgd(sampler="poisson", schedule=(segment,), count_noise_stddev=10.0)
    joint = (1.0**-2 + (2 * 10.0) ** -2) ** -0.5
    flat = poisson(sampling_rate=0.01, noise_multiplier=joint, steps=1000)
    assert eps(adaptive, 1e-5).upper == pytest.approx(eps(flat, 1e-5).upper, rel=1e-9)
    assert (
        eps(adaptive, 1e-5).upper
        > eps(poisson(sampling_rate=0.01, noise_multiplier=1.0, steps=1000), 1e-5).upper
    )


def test_no_noise_is_unbounded_and_nothing_done_costs_nothing():
    bare = eps(Gaussian(noise_multiplier=0.0), 1e-5)
    assert bare.lower == bare.upper == math.inf
    assert eps(poisson(sampling_rate=0.1, noise_multiplier=0.0, steps=5), 1e-5).lower == math.inf
    assert eps(NOTHING, 1e-5).upper == 0.0


def test_a_large_delta_gives_zero_and_never_less():
    answer = answers.epsilon(
        poisson(sampling_rate=0.001, noise_multiplier=10.0, steps=10),
        delta=0.1,
        neighboring="add_or_remove_one",
    )
    assert answer.epsilon.upper == 0.0
    assert Notice.DELTA_EXCEEDS_TOTAL_VARIATION in answer.warnings


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, 1e-31, math.nan])
def test_a_delta_out_of_range_is_refused(delta):
    with pytest.raises(InvalidInput):
        eps(Gaussian(noise_multiplier=1.0), delta)


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta", "truth"),
    [
        (0.2, 3.0, 50, 1 / 48000, 1.960811),  # three accountants disagree on this run
        (0.1, 1.0, 100, 1e-5, 7.046603),
        (0.01, 0.5, 10_000, 1e-5, 43.36649),
        (0.00033, 4.0, 10_000, 1e-10, 0.044539),
        (0.00033, 4.0, 10_000, 1e-12, 0.051084),
        (0.00033, 4.0, 10_000, 1.13e-18, 0.067185),
        (0.01, 0.6, 1000, 1e-5, 7.433614),
        (250 / 15000, 1.3, 900, 1e-5, 1.891519),
        (1.0, 20.0, 10_000, 1e-12, 47.049232),
        (1e-4, 1.0, 1_000_000, 1e-12, 0.86119),
    ],
)
def test_settings_that_other_libraries_get_wrong_come_out_right(rate, sigma, steps, delta, truth):
    sampler = "full_batch" if rate == 1 else "poisson"
    segment = Segment(steps=steps, noise_multiplier=sigma, sampling_rate=rate)
    event = StepwiseDpSgd(sampler=sampler, schedule=(segment,))
    bracket = eps(event, delta)
    assert bracket.upper == pytest.approx(truth, rel=2e-5)
    assert bracket.lower == pytest.approx(truth, rel=2e-5)


def test_ten_steps_of_nothing_but_rare_records_stay_above_their_floor():
    event = poisson(sampling_rate=1e-4, noise_multiplier=0.5, steps=100)
    bracket = eps(event, 1e-5)
    assert bracket.lower >= 0.1789
    assert bracket.upper <= 0.1797


@pytest.mark.parametrize("rate", [0.125, 0.2])
def test_settings_that_made_another_library_fail_get_a_finite_bracket(rate):
    bracket = eps(poisson(sampling_rate=rate, noise_multiplier=0.8, steps=1000), 1e-6)
    assert 0 < bracket.lower <= bracket.upper < math.inf


def test_a_schedule_of_many_distinct_steps_is_bracketed_closely():
    schedule = tuple(
        Segment(steps=1, noise_multiplier=0.9 + 0.3 * i / 999, sampling_rate=0.01)
        for i in range(1000)
    )
    bracket = eps(StepwiseDpSgd(sampler="poisson", schedule=schedule), 1e-5)
    between = [
        eps(poisson(sampling_rate=0.01, noise_multiplier=s, steps=1000), 1e-5) for s in (1.2, 0.9)
    ]
    assert between[0].lower < bracket.lower < bracket.upper < between[1].upper
    assert bracket.width < 0.05 * bracket.upper


def test_parts_add_up_to_more_than_any_of_them():
    parts = (
        poisson(sampling_rate=0.01, noise_multiplier=1.0, steps=500),
        Gaussian(noise_multiplier=8.0),
        Laplace(noise_multiplier=5.0, count=2),
        RandomizedResponse(epsilon=0.2),
        ApproximateDp(epsilon=0.1, delta=1e-8),
    )
    whole = eps(Composed(parts=parts), 1e-5)
    assert whole.lower <= whole.upper
    assert whole.lower >= max(eps(part, 1e-5).lower for part in parts)


def test_hardly_any_noise_is_charged_as_none_and_bounds_nothing_from_below():
    # The discrete Gaussian of σ = 0.01 has an ε of 5,000 at δ = 1e-5: not unbounded.
    found = eps(DiscreteGaussian(noise_multiplier=0.01), 1e-5)
    assert (found.lower, found.upper) == (0.0, math.inf)
    assert eps(DiscreteGaussian(noise_multiplier=0.0), 1e-5).lower == math.inf
    assert delta_of(Gaussian(noise_multiplier=1e-10), 1.0).lower == 0.0


def test_losses_beyond_the_grid_leave_a_wide_bracket():
    found = eps(poisson(sampling_rate=1e-9, noise_multiplier=1e-3, steps=2), 1e-10)
    assert 0 < found.lower < found.upper < math.inf
