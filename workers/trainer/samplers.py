"""Which records take part in a step: independent coins, never a batch of fixed size."""

import numpy as np
from numpy.typing import NDArray

from workers.trainer.noise import Keystream


def poisson_batch(
    record_count: int, *, sampling_rate: float, stream: Keystream
) -> NDArray[np.int64]:
    """The records whose coin came up, in ascending order; maybe none, never truncated.

    Guarantees: every record is in with a probability of at most ``sampling_rate`` (and less by
    at most 2^-64), independently of all others. One word is drawn per record whatever comes
    up, so the stream's position tells nothing.

    Args:
        record_count: n.
        sampling_rate: q in (0, 1].
        stream: the sampling keystream.
    """
    words = stream.words(record_count)
    # q·2^64 is exact: scaling a double by a power of two changes its exponent only.
    threshold = int(sampling_rate * 2.0**64)
    if threshold >= 2**64:
        return np.arange(record_count, dtype=np.int64)
    return np.flatnonzero(words < np.uint64(threshold))
