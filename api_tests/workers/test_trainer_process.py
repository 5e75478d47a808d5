"""The trainer as a real process: what it says, when it says it, and how it ends."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from scipy import stats

from api_tests.workers.scripted_peer import TrainerProcess, digits_spec
from service.core.datasets import builtin_dataset
from service.core.events import Segment, StepwiseDpSgd, poisson
from workers.trainer import datasets
from workers.trainer.models import build

pytestmark = pytest.mark.processes

SCHEDULE = StepwiseDpSgd(
    sampler="poisson",
    schedule=(
        Segment(steps=13, noise_multiplier=1.5, sampling_rate=0.1),
        Segment(steps=17, noise_multiplier=2.5, sampling_rate=0.2),
    ),
)
RECORD_FIELDS = {
    "step",
    "noise_multiplier",
    "max_grad_norm",
    "sampling_rate",
    "sampler",
    "expected_batch_size",
    "at",
    "sealed",
}
SEALED_FIELDS = {
    "realized_batch_size",
    "noise_norm",
    "noise_dimension",
    "clipped_fraction",
    "mean_gradient_norm",
    "loss",
    "nonfinite_records",
}


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    trainer = TrainerProcess(tmp_path_factory.mktemp("run"), digits_spec(mechanism=SCHEDULE))
    try:
        trainer.serve()
        assert trainer.finish() == (0, "")  # the status, and nothing on stderr
        yield trainer
    finally:
        trainer.close()


def test_a_whole_run_ends_with_its_result(whole_run):
    assert [m["type"] for m in whole_run.messages].index("result") == len(whole_run.messages) - 1


def test_ready_comes_first_with_public_facts(whole_run):
    ready = whole_run.messages[0]
    assert ready["type"] == "ready"
    assert ready["total_steps"] == 30
    assert ready["device"] == "cpu"
    assert ready["reproducible"] is False
    assert ready["fingerprint"] == builtin_dataset("digits").fingerprint
    assert set(ready["software"]) == {"python", "torch", "opacus"}


def test_the_records_are_contiguous_and_equal_to_the_schedule(whole_run):
    assert [r["step"] for r in whole_run.records] == [*range(30)]
    for record in whole_run.records:
        segment = SCHEDULE.schedule[0 if record["step"] < 13 else 1]
        assert set(record) == RECORD_FIELDS
        assert set(record["sealed"]) == SEALED_FIELDS
        assert record["noise_multiplier"] == segment.noise_multiplier
        assert record["sampling_rate"] == segment.sampling_rate
        assert record["sampler"] == "poisson"
        assert record["max_grad_norm"] == 0.5
        assert record["expected_batch_size"] == 143.7
        assert datetime.fromisoformat(record["at"]).utcoffset() == timedelta(0)


def test_every_step_is_leased_before_and_stored_right_after(whole_run):
    order = [m for m in whole_run.messages if m["type"] in ("lease", "steps")]
    for lease, steps in zip(order[::2], order[1::2], strict=True):
        assert lease["type"] == "lease"
        assert lease["steps"] <= 8
        first, count = lease["first_step"], lease["steps"]
        assert [r["step"] for r in steps["records"]] == [*range(first, first + count)]


def test_the_noise_norms_fit_chi_square_at_sigma_times_clip(whole_run):
    total = sum(
        (r["sealed"]["noise_norm"] / (r["noise_multiplier"] * r["max_grad_norm"])) ** 2
        for r in whole_run.records
    )
    dimension = whole_run.messages[0]["parameters"]
    assert {r["sealed"]["noise_dimension"] for r in whole_run.records} == {dimension}
    law = stats.chi2(30 * dimension)
    assert 1e-6 < law.cdf(total) < 1 - 1e-6


def test_the_batch_sizes_fit_the_declared_rates(whole_run):
    for record in whole_run.records:
        law = stats.binom(1437, record["sampling_rate"])
        assert 1e-7 < law.cdf(record["sealed"]["realized_batch_size"]) < 1 - 1e-7
    assert len({r["sealed"]["realized_batch_size"] for r in whole_run.records[:13]}) > 1


def test_nothing_outside_the_records_depends_on_the_data(whole_run):
    allowed = {
        "lease": {"type", "first_step", "steps"},
        "progress": {"type", "step"},
        "steps": {"type", "records"},
        "result": {"type", "metrics", "artifacts"},
    }
    for message in whole_run.messages[1:]:
        assert set(message) == allowed[message["type"]]
    assert set(whole_run.messages[-1]["metrics"]) == {"test_accuracy"}


def test_the_model_has_clean_names_and_the_accuracy_that_was_told(whole_run):
    (artifact,) = whole_run.messages[-1]["artifacts"]
    path = whole_run.workdir / "artifacts" / artifact["name"]
    content = path.read_bytes()
    assert artifact == {
        "name": "model.safetensors",
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
    }
    with safe_open(path, "pt") as described:
        options = json.loads(described.metadata()["dpledger"])["model_options"]
    weights = load_file(path)
    assert not any("_module" in name for name in weights)
    split = datasets.load("digits")
    model = build("mlp", options=options, dataset=split.facts)
    model.load_state_dict(weights, strict=True)
    images, labels = datasets.to_tensors(split.test, split.facts)
    with torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).double().mean()
    assert whole_run.messages[-1]["metrics"]["test_accuracy"] == pytest.approx(float(accuracy))
    assert accuracy > 0.3  # thirty noisy steps already learn something


def test_an_empty_batch_is_logged_and_noised(start_trainer):
    tiny = poisson(sampling_rate=1e-12, noise_multiplier=1.5, steps=3)
    trainer = start_trainer(digits_spec(mechanism=tiny, expected_batch_size=100.0))
    assert trainer.serve()["type"] == "result"
    sealed = [r["sealed"] for r in trainer.records]
    assert [s["realized_batch_size"] for s in sealed] == [0, 0, 0]
    assert all(s["noise_norm"] > 0 for s in sealed)
    (artifact,) = trainer.messages[-1]["artifacts"]
    weights = load_file(trainer.workdir / "artifacts" / artifact["name"])
    assert weights["head.weight"].abs().min() > 0  # it started at zero: this is noise alone


def test_two_runs_share_no_noise_unless_a_seed_says_so(start_trainer):
    two = poisson(sampling_rate=1.0, noise_multiplier=1.5, steps=2)
    fresh = {"mechanism": two}
    seeded = fresh | {"seed_policy": "reproducible", "seed": 7}
    norms, digests = [], []
    for changes in (fresh, fresh, seeded, seeded):
        trainer = start_trainer(digits_spec(**changes))
        digests.append(trainer.serve()["artifacts"][0]["sha256"])
        norms.append([r["sealed"]["noise_norm"] for r in trainer.records])
        assert trainer.messages[0]["reproducible"] is ("seed" in changes)
    assert len(np.unique(norms[:3])) == 6  # no step of any run repeats another's
    assert len(set(digests[:3])) == 3
    assert norms[2] == norms[3]
    assert digests[2] == digests[3]


def test_a_shorter_lease_is_kept_to(start_trainer):
    trainer = start_trainer(digits_spec())
    lease = trainer.receive_until("lease")
    trainer.grant(lease, steps=3)
    steps = trainer.receive_until("steps")
    assert [r["step"] for r in steps["records"]] == [0, 1, 2]
    trainer.store(steps)
    assert trainer.receive_until("lease")["first_step"] == 3


def test_a_stop_instead_of_a_lease_ends_without_artifacts(start_trainer):
    trainer = start_trainer(digits_spec())
    trainer.grant(trainer.receive_until("lease"))
    trainer.store(trainer.receive_until("steps"))
    trainer.receive_until("lease")
    trainer.send(type="stop", reason="cancelled")
    assert trainer.receive_until("stopped")["step"] == 8
    assert trainer.finish() == (0, "")
    assert not (trainer.workdir / "artifacts").exists()


def test_no_model_is_written_before_the_last_records_are_stored(start_trainer):
    trainer = start_trainer(digits_spec(lease_steps=20))
    trainer.grant(trainer.receive_until("lease"))
    trainer.receive_until("steps")
    assert not (trainer.workdir / "artifacts").exists()
    trainer.send(type="stop", reason="fenced")
    assert trainer.receive_until("stopped")["step"] == 20
    assert trainer.finish()[0] == 0
    assert not (trainer.workdir / "artifacts").exists()


LONG = poisson(sampling_rate=0.5, noise_multiplier=1.5, steps=100_000)


@pytest.mark.parametrize("way", ["message", "signal"])
def test_a_stop_in_the_middle_of_a_lease_tells_the_steps_that_ran(start_trainer, way):
    trainer = start_trainer(digits_spec(mechanism=LONG, lease_steps=4096))
    trainer.grant(trainer.receive_until("lease"))
    trainer.receive_until("progress")
    if way == "message":
        trainer.send(type="stop", reason="cancelled")
    else:
        trainer.process.send_signal(signal.SIGTERM)
    stopped = trainer.receive_until("stopped")
    assert 0 < stopped["step"] < 4096
    assert [r["step"] for r in trainer.records] == [*range(stopped["step"])]
    assert trainer.finish()[0] == 0
    assert not (trainer.workdir / "artifacts").exists()


def test_progress_is_told_at_most_about_twice_a_second(start_trainer):
    trainer = start_trainer(digits_spec(mechanism=LONG, lease_steps=4096))
    trainer.grant(trainer.receive_until("lease"))
    times = []
    for _ in range(4):
        trainer.receive_until("progress")
        times.append(time.monotonic())
    assert np.diff(times).sum() > 1.0
    told = [m["step"] for m in trainer.of_type("progress")]
    assert told == sorted(told)


def test_the_end_of_the_input_ends_the_process_at_once(start_trainer):
    trainer = start_trainer(digits_spec(mechanism=LONG, lease_steps=4096))
    trainer.grant(trainer.receive_until("lease"))
    trainer.receive_until("progress")
    trainer.input.close()
    assert trainer.process.wait(timeout=20) == 3
    assert trainer.of_type("steps") == []


def test_the_trainer_dies_with_a_killed_parent_though_its_input_stays_open(tmp_path):
    (tmp_path / "spec.json").write_text(
        json.dumps(digits_spec(mechanism=LONG, lease_steps=4096).to_json())
    )
    parent = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-m', 'workers.trainer',"
        f" '--workdir', {str(tmp_path)!r}]); print(p.pid, file=sys.stderr, flush=True); p.wait()"
    )
    replies, ours = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", parent],
        stdin=replies,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as middle:
        assert middle.stdout
        assert middle.stderr
        os.close(replies)
        middle.stderr.readline()
        while json.loads(middle.stdout.readline())["type"] != "lease":
            pass
        os.write(ours, b'{"type":"leased","first_step":0,"end_step":4096}\n')
        assert json.loads(middle.stdout.readline())["type"] == "progress"
        middle.kill()
        # The trainer holds the other end of stdout: it ends when the trainer has ended.
        rest = [json.loads(line)["type"] for line in middle.stdout]
        assert "steps" not in rest
    os.close(ours)


@pytest.mark.parametrize(
    "reply",
    [
        {"type": "leased", "first_step": 1, "end_step": 8},
        {"type": "leased", "first_step": 0, "end_step": 9},
        {"type": "stored", "next_step": 0},
    ],
)
def test_a_reply_that_does_not_fit_ends_the_run_before_a_step(start_trainer, reply):
    trainer = start_trainer(digits_spec())
    trainer.receive_until("lease")
    trainer.send(**reply)
    assert trainer.receive_until("failed")["code"] == "PROTOCOL_ERROR"
    assert trainer.finish()[0] == 1
    assert trainer.records == []


@pytest.mark.parametrize("content", ["", "{}", '{"mechanism": {"type": "gaussian"}}'])
def test_a_spec_that_cannot_be_trained_fails_with_a_code(start_trainer, content):
    trainer = start_trainer(content)
    assert trainer.receive_until("failed")["code"] == "SPEC_INVALID"
    assert trainer.finish()[0] == 1


def test_a_full_batch_run_takes_every_record_in_every_step(start_trainer):
    full = StepwiseDpSgd(
        sampler="full_batch",
        schedule=(Segment(steps=3, noise_multiplier=5.0, sampling_rate=1.0),),
    )
    trainer = start_trainer(digits_spec(mechanism=full, expected_batch_size=1437.0))
    assert trainer.serve()["type"] == "result"
    assert {r["sampler"] for r in trainer.records} == {"full_batch"}
    assert {r["sealed"]["realized_batch_size"] for r in trainer.records} == {1437}
