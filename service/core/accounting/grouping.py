"""Schedules with many distinct steps: bounded by few groups of equal ones.

ε(δ) and δ(ε) fall in σ and rise in the sampling rate, step by step (a larger rate or less
noise is post-processed into a smaller one). So moving every step to the worst (σ, q) of its
group bounds from above, to the best from below.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from service.core.accounting.pairs import Pair, Part
from service.core.accounting.poisson_pair import PoissonPair

MAX_DISTINCT: Final = 24


def grouped(parts: Sequence[Part], *, pessimistic: bool) -> list[Part]:
    """At most 24 or so distinct Poisson parts that bound ``parts`` from one side."""
    poisson = [(p, n) for p, n in parts if isinstance(p, PoissonPair)]
    others: list[Part] = [(p, n) for p, n in parts if not isinstance(p, PoissonPair)]
    ratio = 1.002
    while True:
        cells: dict[tuple[int, int], list[tuple[PoissonPair, int]]] = {}
        for pair, count in poisson:
            key = (
                math.floor(math.log(pair.noise_multiplier) / math.log(ratio)),
                math.floor(math.log(pair.sampling_rate) / math.log(ratio)),
            )
            cells.setdefault(key, []).append((pair, count))
        if len(cells) + len(others) <= MAX_DISTINCT or len(cells) == 1:
            break
        ratio **= 1.5
    merged: dict[Pair, int] = {}
    for members in cells.values():
        noise = [pair.noise_multiplier for pair, _ in members]
        rates = [pair.sampling_rate for pair, _ in members]
        bound = replace(
            members[0][0],
            noise_multiplier=min(noise) if pessimistic else max(noise),
            sampling_rate=max(rates) if pessimistic else min(rates),
        )
        merged[bound] = merged.get(bound, 0) + sum(count for _, count in members)
    return [*merged.items(), *others]
