"""A supervisor for tests: real trainer process, real pipes, replies from a script."""

import json
import os
import subprocess
import sys
from pathlib import Path

from service.core.events import poisson
from service.core.jobs import Optimizer, TrainingSpec


def digits_spec(**changes):
    fields = {
        "dataset_source": "digits",
        "record_count": 1437,
        "model": "mlp",
        "optimizer": Optimizer(learning_rate=0.5, momentum=0.9),
        "mechanism": poisson(sampling_rate=0.1, noise_multiplier=1.5, steps=20),
        "max_grad_norm": 0.5,
        "expected_batch_size": 143.7,
        "neighboring": "add_or_remove_one",
        "device": "cpu",
        "lease_steps": 8,
    }
    return TrainingSpec(**(fields | changes))


class TrainerProcess:
    """``python -m workers.trainer`` with both ends of its pipes in our hands."""

    def __init__(self, workdir: Path, spec) -> None:
        self.workdir = workdir
        content = spec if isinstance(spec, str) else json.dumps(spec.to_json())
        (workdir / "spec.json").write_text(content)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "workers.trainer", "--workdir", str(workdir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdin
        assert self.process.stdout
        assert self.process.stderr
        self.input, self.output = self.process.stdin, self.process.stdout
        self.error_output = self.process.stderr
        self.messages = []

    def receive(self):
        line = self.output.readline()
        if not line:
            return None
        message = json.loads(line)
        self.messages.append(message)
        return message

    def receive_until(self, *types):
        while (message := self.receive()) is not None:
            if message["type"] in types:
                return message
        raise AssertionError(f"the trainer ended without {types}: {self.messages[-3:]}")

    def send(self, **reply):
        self.input.write(json.dumps(reply).encode() + b"\n")
        self.input.flush()

    def grant(self, lease, steps=None):
        first = lease["first_step"]
        self.send(type="leased", first_step=first, end_step=first + (steps or lease["steps"]))

    def store(self, message):
        self.send(type="stored", next_step=message["records"][-1]["step"] + 1)

    def serve(self):
        """Grant and store everything; the last message."""
        while True:
            message = self.receive_until("lease", "steps", "result", "stopped", "failed")
            match message["type"]:
                case "lease":
                    self.grant(message)
                case "steps":
                    self.store(message)
                case _:
                    return message

    def of_type(self, kind):
        return [m for m in self.messages if m["type"] == kind]

    @property
    def records(self):
        return [record for m in self.of_type("steps") for record in m["records"]]

    def finish(self):
        """Read to the end; the exit status and what stood on stderr."""
        while self.receive() is not None:
            pass
        self.input.close()
        status = self.process.wait(timeout=60)
        return status, self.error_output.read().decode()

    def close(self):
        for pipe in (self.input, self.output, self.error_output):
            pipe.close()
        self.process.kill()
        self.process.wait()
