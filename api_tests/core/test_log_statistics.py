"""Honest logs fit; each forgery of sealed measures is found."""

import numpy as np
import pytest

from service.core.log_statistics import batch_sizes, noise_norms

N, Q, STEPS, DIMENSION = 10_000, 0.01, 2_000, 500


def misfits(outcomes):
    return {outcome.name for outcome in outcomes if not outcome.fits}


def rates(q=Q, steps=STEPS):
    return np.full(steps, q)


def drawn(seed, q=Q, steps=STEPS):
    return np.random.default_rng(seed).binomial(N, q, steps)


def norms(seed, scale=1.1, steps=STEPS, dimension=DIMENSION):
    return scale * np.sqrt(np.random.default_rng(seed).chisquare(dimension, steps))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("q", [1e-4, 0.01, 0.3])
def test_honest_batches_fit(seed, q):
    assert not misfits(batch_sizes(drawn(seed, q), sampling_rate=rates(q), record_count=N))


@pytest.mark.parametrize("seed", range(40))
def test_honest_noise_fits(seed):
    found = noise_norms(norms(seed), noise_stddev=rates(1.1), dimension=DIMENSION)
    assert not misfits(found)


def test_a_schedule_of_rates_and_noise_fits_step_by_step():
    q = np.where(np.arange(STEPS) < 700, 0.01, 0.03)
    sizes = np.random.default_rng(1).binomial(N, q)
    assert not misfits(batch_sizes(sizes, sampling_rate=q, record_count=N))
    sigma = np.linspace(0.5, 2.0, STEPS)
    assert not misfits(
        noise_norms(sigma * norms(2, scale=1.0), noise_stddev=sigma, dimension=DIMENSION)
    )


def test_full_batches_fit_full_batch():
    whole = np.full(50, N)
    assert not misfits(batch_sizes(whole, sampling_rate=rates(1.0, 50), record_count=N))


def test_an_understated_rate_is_found():
    found = batch_sizes(drawn(3, q=0.0105), sampling_rate=rates(), record_count=N)
    assert "batch_mean" in misfits(found)


def test_ignored_accumulation_is_found():
    found = batch_sizes(4 * drawn(4), sampling_rate=rates(), record_count=N)
    assert "batch_mean" in misfits(found)


def test_constant_batches_are_found():
    found = batch_sizes(np.full(STEPS, 100), sampling_rate=rates(), record_count=N)
    assert misfits(found) == {"batch_dispersion", "batch_constant"}


def test_too_regular_batches_are_found():
    sizes = 100 + np.arange(STEPS) % 3 - 1
    found = batch_sizes(sizes, sampling_rate=rates(), record_count=N)
    assert misfits(found) == {"batch_dispersion"}


def test_noise_off_by_one_per_cent_is_found():
    found = noise_norms(0.99 * norms(5), noise_stddev=rates(1.1), dimension=DIMENSION)
    assert "noise_scale" in misfits(found)


def test_weak_noise_on_one_step_is_found():
    forged = norms(6)
    forged[777] *= 0.5
    found = noise_norms(forged, noise_stddev=rates(1.1), dimension=DIMENSION)
    assert "noise_scale_per_step" in misfits(found)


@pytest.mark.parametrize("digits", [15, 4])
def test_noise_used_twice_is_found_whatever_the_digits(digits):
    once = np.round(norms(7, steps=1000), digits)
    found = noise_norms(np.concatenate([once, once]), noise_stddev=rates(1.1), dimension=DIMENSION)
    assert misfits(found) == {"noise_repeated"}


@pytest.mark.parametrize("digits", [2, 3, 5])
def test_rounded_norms_of_fresh_noise_are_not_taken_for_repeats(digits):
    fresh = np.round(norms(8), digits)
    found = noise_norms(fresh, noise_stddev=rates(1.1), dimension=DIMENSION)
    assert "noise_repeated" not in misfits(found)
