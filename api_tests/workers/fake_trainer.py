"""A scripted trainer: speaks the protocol without training; its first argument says how badly.

honest          does all steps, leaves model.bin
slow            as honest, a fifth of a second a step; SIGTERM stops it between steps
dies            is killed by its own hand after the first lease, nothing recorded
dies_recorded   as dies, after the second lease, the first one recorded
weak            records less noise than planned at step 3
over_run        runs more steps than it leased
deaf            ignores SIGTERM and goes on for ever after the first lease
gap             leaves step 1 out of its records
short           claims a result after the first lease
noise           says something that is no message
nan             sends NaN as a metric
liar            describes an artifact with another digest
silent          never says anything
asks_itself     says failed with a code of its own
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

MODE = sys.argv[1]
WORKDIR = Path(sys.argv[sys.argv.index("--workdir") + 1])
SPEC = json.loads((WORKDIR / "spec.json").read_text())


class Terminated(Exception):
    pass


def say(**message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def ask(**message):
    say(**message)
    reply = sys.stdin.readline()
    if not reply:
        os._exit(3)
    return json.loads(reply)


def record(step):
    mechanism = SPEC["mechanism"]
    sigma = mechanism["noise_multiplier"]
    if MODE == "weak" and step == 3:
        sigma *= 0.99
    return {
        "step": step,
        "noise_multiplier": sigma,
        "max_grad_norm": SPEC["max_grad_norm"],
        "sampling_rate": mechanism["sampling_rate"],
        "sampler": mechanism["sampler"],
        "expected_batch_size": SPEC["expected_batch_size"],
        "at": "2030-01-01T00:00:00.000001Z",
        "sealed": {
            "realized_batch_size": 700 + step,
            "noise_norm": 81.5,
            "loss": 0.125,
            "seed": 40414243444546,
        },
    }


def on_term(*_):
    raise Terminated


def main():
    signal.signal(signal.SIGTERM, signal.SIG_IGN if MODE == "deaf" else on_term)
    sys.stderr.write(f"fake trainer, {MODE}\n")
    sys.stderr.flush()
    begin()
    try:
        train()
    except Terminated as stop:
        say(type="stopped", step=stop.args[0] if stop.args else 0)
        sys.exit(0)
    finish()


def begin():
    if MODE == "silent":
        time.sleep(600)
    if MODE == "noise":
        sys.stdout.write("this is not JSON\n")
        sys.stdout.flush()
        time.sleep(600)
    say(
        type="ready",
        total_steps=SPEC["mechanism"]["steps"],
        device="cpu",
        software={"fake": "1"},
    )
    if MODE == "asks_itself":
        say(type="failed", code="OUT_OF_MEMORY", message="Not enough memory on the device.")
        sys.exit(1)


def train():
    total = SPEC["mechanism"]["steps"]
    step = 0
    while step < total:
        reply = ask(type="lease", first_step=step, steps=min(SPEC["lease_steps"], total - step))
        if reply["type"] == "stop":
            raise Terminated(step)
        end = reply["end_step"] + (MODE == "over_run")
        misbehave(step)
        records = [run_step(step) for step in range(step, end)]
        if MODE == "gap":
            del records[1]
        step = end
        reply = ask(type="steps", records=records)
        if reply["type"] == "stop":
            raise Terminated(step)
        if MODE == "short":
            return


def misbehave(step):
    """Right after a lease."""
    if MODE == "dies" or (MODE == "dies_recorded" and step > 0):
        os.kill(os.getpid(), signal.SIGKILL)
    if MODE == "deaf":
        time.sleep(600)


def run_step(step):
    if MODE == "slow":
        time.sleep(0.2)
    return record(step)


def finish():
    folder = WORKDIR / "artifacts"
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"weights")
    digest = hashlib.sha256(b"other" if MODE == "liar" else b"weights").hexdigest()
    accuracy = float("nan") if MODE == "nan" else 0.9
    say(
        type="result",
        metrics={"test_accuracy": accuracy},
        artifacts=[{"name": "model.bin", "sha256": digest, "bytes": 7}],
    )


main()
