"""Poisson sampling is independent coins, one a record."""

import numpy as np
import pytest
from scipy import stats

from workers.trainer.noise import open_keystream
from workers.trainer.samplers import poisson_batch


def inclusions(*, n, q, rounds, seed):
    stream = open_keystream("sampling", seed=seed)
    taken = np.zeros((rounds, n), dtype=bool)
    for row in taken:
        row[poisson_batch(n, sampling_rate=q, stream=stream)] = True
    return taken


def test_batch_sizes_follow_the_binomial_law():
    sizes = inclusions(n=200, q=0.25, rounds=20_000, seed=1).sum(axis=1)
    values = np.arange(38, 63)
    observed = [np.sum(sizes < 38), *(np.sum(sizes == v) for v in values), np.sum(sizes > 62)]
    law = (200, 0.25)
    inner = stats.binom.pmf(values, *law)
    expected = np.array([stats.binom.cdf(37, *law), *inner, stats.binom.sf(62, *law)]) * len(sizes)
    assert stats.chisquare(observed, expected).pvalue > 0.001


def test_pairs_of_records_are_taken_independently():
    q, rounds = 0.3, 40_000
    taken = inclusions(n=12, q=q, rounds=rounds, seed=2).astype(float)
    together = taken.T @ taken / rounds
    pairs = together[np.triu_indices(12, k=1)]
    deviation = np.sqrt(q**2 * (1 - q**2) / rounds)
    assert np.abs(pairs - q**2).max() < 4.5 * deviation


def test_every_record_is_equally_likely():
    q, rounds = 0.1, 20_000
    rates = inclusions(n=50, q=q, rounds=rounds, seed=3).mean(axis=0)
    assert np.abs(rates - q).max() < 4.5 * np.sqrt(q * (1 - q) / rounds)


def test_a_rate_of_one_takes_everybody():
    assert poisson_batch(7, sampling_rate=1.0, stream=open_keystream("s", seed=None)).tolist() == [
        *range(7)
    ]


def test_a_tiny_rate_takes_nobody_and_is_no_error():
    assert len(poisson_batch(1000, sampling_rate=1e-15, stream=open_keystream("s", seed=1))) == 0


@pytest.mark.parametrize("rate", [1e-15, 0.5, 1.0])
def test_the_position_of_the_stream_tells_nothing_about_the_batch(rate):
    stream = open_keystream("s", seed=5)
    poisson_batch(100, sampling_rate=rate, stream=stream)
    assert stream.words(1)[0] == open_keystream("s", seed=5).words(101)[100]
