"""The noise is Gaussian, fresh, and made from a cryptographic keystream."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from scipy import stats

from workers.trainer.noise import Keystream, open_keystream

# Streams of a fixed seed make every statistic below a constant: no test can flicker.


def test_a_million_draws_fit_the_normal_law():
    draws = open_keystream("noise", seed=1).normals(1_000_000)
    assert stats.kstest(draws, "norm").pvalue > 0.01
    assert abs(draws.mean()) < 4e-3
    assert abs(draws.std() - 1) < 3e-3
    assert abs(stats.kurtosis(draws)) < 0.03


@pytest.mark.parametrize("limit", [2.0, 3.0, 4.0])
def test_both_tails_are_as_heavy_as_they_must_be(limit):
    draws = open_keystream("noise", seed=2).normals(4_000_000)
    expected = len(draws) * stats.norm.sf(limit)
    for count in (np.sum(draws > limit), np.sum(draws < -limit)):
        assert abs(count - expected) < 5 * np.sqrt(expected)


def test_neighbouring_draws_are_uncorrelated():
    draws = open_keystream("noise", seed=3).normals(1_000_000)
    half = len(draws) // 2  # the two halves are the two outputs of each Box-Muller pair
    for other in (draws[1:], np.concatenate([draws[half:], draws[:half]])):
        same = draws[: len(other)]
        assert abs(np.corrcoef(same, other)[0, 1]) < 5e-3
        assert abs(np.corrcoef(same**2, other**2)[0, 1]) < 5e-3


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_any_number_of_draws_can_be_had(count):
    draws = open_keystream("noise", seed=None).normals(count)
    assert draws.shape == (count,)
    assert np.isfinite(draws).all()


def test_the_keystream_is_aes_in_counter_mode():
    key = bytes(range(32))
    counters = b"".join(i.to_bytes(16, "big") for i in range(4))
    block = Cipher(AES(key), ECB()).encryptor().update(counters)  # noqa: S305 - counter mode by hand
    assert Keystream(key).words(8).tobytes() == block


def test_a_keystream_never_starts_again():
    whole = open_keystream("noise", seed=4).words(300_000)
    parts = open_keystream("noise", seed=4)
    assert np.array_equal(np.concatenate([parts.words(17), parts.words(299_983)]), whole)


def test_streams_of_the_operating_system_never_agree():
    first, second = (open_keystream("noise", seed=None).words(8) for _ in range(2))
    assert not np.any(first == second)


def test_purposes_and_seeds_have_streams_of_their_own():
    names = [("noise", 1), ("sampling", 1), ("init", 1), ("noise", 2)]
    assert len({open_keystream(p, seed=s).words(1)[0] for p, s in names}) == len(names)
