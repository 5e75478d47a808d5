"""The main job, from an empty directory to judged claims, as a person runs it."""

import subprocess
import sys

import pytest


@pytest.mark.processes
def test_the_demo_trains_spends_and_judges_both_claims():
    demo = [sys.executable, "-m", "dpledger", "demo", "--embedded"]
    done = subprocess.run(demo, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accuracy on the public test part: 0." in done.stdout
    assert "ledger, spent: ε = 0 -> ε = " in done.stdout
    assert ": supported (expected: supported)" in done.stdout
    assert ": refuted (expected: refuted)" in done.stdout
