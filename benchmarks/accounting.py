"""ε of twelve settings: this engine beside prv-accountant and dp-accounting, in one run.

    python benchmarks/accounting.py [--repeats N] [--json]

CPU seconds of this process; each engine computes what it would answer a user, from the event
to ε. Ratios are what counts: absolute times belong to the machine. "wrong" is a bracket that
misses the truth, which was certified elsewhere (api_tests/golden/benchmark_cases.json).
"""

import argparse
import json
import math
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from service.core.accounting import answers, peers
from service.core.errors import DomainError
from service.core.events import Composed, Gaussian, Segment, StepwiseDpSgd
from service.core.interval import Interval

CASES = Path(__file__).parents[1] / "api_tests" / "golden" / "benchmark_cases.json"
SLACK = 1e-6  # the truth itself is a bracket of about this width


def main() -> None:
    """Print a row a case, and the geometric means of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the peers' own
    rows = [measure(case, options.repeats) for case in json.loads(CASES.read_text())["cases"]]
    if options.json:
        print(json.dumps({"machine": platform.machine(), "rows": rows}, indent=1))
        return
    print(f"{'setting':24}{'here ms':>9}{'width':>10}{'prv ×':>9}{'pld ×':>9}  wrong")
    for row in rows:
        print(
            f"{row['setting']:24}{row['here_ms']:9.1f}{row['width']:10.1e}"
            f"{shown(row['prv_ratio']):>9}{shown(row['pld_ratio']):>9}  {', '.join(row['wrong'])}"
        )
    for name in ("prv", "pld"):
        ratios = [row[f"{name}_ratio"] for row in rows if row[f"{name}_ratio"]]
        print(f"{name}: geometric mean {statistics.geometric_mean(ratios):.0f} times our time")


def measure(case: dict, repeats: int) -> dict:
    """One setting by all engines."""
    event = event_of(case["phases"])
    asked = {"delta": case["delta"], "neighboring": case["neighboring"]}
    here, ours = timed(lambda: answers.epsilon_interval(event, **asked), repeats)
    prv, by_prv = timed(lambda: peers.prv_epsilon(event, **asked), 1)
    pld, by_pld = timed(lambda: peers.pld_epsilon(event, **asked), 1)
    assert ours is not None
    low, high = case["truth"]
    brackets = {"here": ours, "prv": by_prv, "pld": by_pld}
    return {
        "setting": case["id"],
        "here_ms": here * 1e3,
        "width": ours.width,
        "prv_ratio": prv / here if by_prv else None,
        "pld_ratio": pld / here if by_pld else None,
        "wrong": [
            name
            for name, bracket in brackets.items()
            if bracket and not (bracket.lower <= high + SLACK and bracket.upper >= low - SLACK)
        ],
    }


def timed(ask: Callable[[], Interval], repeats: int) -> tuple[float, Interval | None]:
    """(least CPU seconds, answer); no answer if the engine has none here."""
    best, answer = math.inf, None
    for _ in range(repeats):
        start = time.process_time()
        try:
            answer = ask()
        except DomainError:
            return math.inf, None
        best = min(best, time.process_time() - start)
    return best, answer


def event_of(phases: list[dict]) -> Composed:
    """The event of a case."""
    parts = [
        Gaussian(noise_multiplier=p["sigma"], count=p["steps"])
        if p["mech"] == "gauss"
        else StepwiseDpSgd(
            sampler="poisson",
            schedule=(
                Segment(steps=p["steps"], noise_multiplier=p["sigma"], sampling_rate=p["q"]),
            ),
        )
        for p in phases
    ]
    return Composed(parts=tuple(parts))


def shown(ratio: float | None) -> str:
    """A ratio, or a dash where the peer has no answer."""
    return "-" if ratio is None else f"{ratio:.0f}"


if __name__ == "__main__":
    main()
