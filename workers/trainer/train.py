"""DP-SGD, step by step: sample, clip, sum, draw noise, record, apply.

The schedule of the spec is followed exactly. An empty batch is a step like any other: its noise
is drawn, recorded and applied. The noised sum is divided by the public expected batch size,
never by the realised one. Momentum, Adam and weight decay see noised gradients only.
"""

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch
from opacus import GradSampleModule
from safetensors.torch import save
from torch import Tensor, nn

from service.core.datasets import BuiltinDataset
from service.core.errors import Conflict
from service.core.events import Segment
from service.core.jobs import Optimizer, TrainingSpec
from workers.trainer import datasets
from workers.trainer.clipping import ClippedSum, clipped_sum, per_sample
from workers.trainer.models import build
from workers.trainer.noise import FLOAT_SAFETY, Keystream, open_keystream
from workers.trainer.protocol import Peer, Stopped
from workers.trainer.samplers import poisson_batch
from workers.trainer.self_test import check_sensitivity

MODEL_FILE: Final = "model.safetensors"


def train(spec: TrainingSpec, *, workdir: Path, peer: Peer) -> None:
    """Run the spec to its end, or to the stop that the supervisor asks for.

    Raises:
        DomainError: the run must not begin; its message may be shown.
        ProtocolError: the supervisor broke the protocol.
    """
    run = _prepare(spec)
    peer.ready(_facts(run))
    step = 0
    segments = _steps(spec)
    try:
        while step < spec.total_steps:
            asked = min(spec.lease_steps, spec.total_steps - step)
            end = peer.lease(step, steps=asked)
            records: list[dict[str, Any]] = []
            try:
                while step < end:
                    peer.check_stop()
                    records.append(_step(run, step=step, segment=next(segments)))
                    step += 1
                    peer.progress(step)
            finally:
                # What ran is told, also when the next step failed.
                if records:
                    peer.send_records(records)
            peer.await_stored(end)
        peer.check_stop()
    except Stopped:
        peer.stopped(step)
        return
    # Only now, with every record stored, may something that depends on the steps leave.
    metrics = {"test_accuracy": _test_accuracy(run)}
    peer.result(metrics=metrics, artifacts=[_save_model(run, workdir / "artifacts")])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    spec: TrainingSpec
    facts: BuiltinDataset
    network: nn.Module
    hooked: GradSampleModule
    optimizer: torch.optim.Optimizer
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    device: torch.device
    sampling: Keystream
    noise: Keystream


def _prepare(spec: TrainingSpec) -> _Run:
    device = _device(spec.device)
    split = datasets.load(spec.dataset_source)
    if datasets.fingerprint(split.train) != split.facts.fingerprint:
        raise Conflict(
            f"The installed {spec.dataset_source} is not the data set that was registered.",
            code="DATASET_MISMATCH",
        )
    init = open_keystream("init", seed=spec.seed)
    torch.manual_seed(int(init.words(1)[0] >> 1))  # initial weights alone; public in any case
    network = build(spec.model, options=spec.model_options, dataset=split.facts).to(device)
    hooked = per_sample(network)
    check_sensitivity(hooked, split.facts, max_grad_norm=spec.max_grad_norm, device=device)
    images, labels = datasets.to_tensors(split.train, split.facts)
    return _Run(
        spec=spec,
        facts=split.facts,
        network=network,
        hooked=hooked,
        optimizer=_optimizer(spec.optimizer, network),
        train=(images.to(device), labels.to(device)),
        test=datasets.to_tensors(split.test, split.facts),
        device=device,
        sampling=open_keystream("sampling", seed=spec.seed),
        noise=open_keystream("noise", seed=spec.seed),
    )


def _device(wanted: str) -> torch.device:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise Conflict("This worker has no CUDA device.", code="DEVICE_UNAVAILABLE")
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def _optimizer(settings: Optimizer, network: nn.Module) -> torch.optim.Optimizer:
    parameters = [p for p in network.parameters() if p.requires_grad]
    if settings.name == "adam":
        return torch.optim.AdamW(
            parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
    return torch.optim.SGD(parameters, lr=settings.learning_rate, momentum=settings.momentum)


def _facts(run: _Run) -> Mapping[str, Any]:
    return {
        "total_steps": run.spec.total_steps,
        "device": run.device.type,
        "reproducible": run.spec.seed is not None,
        "parameters": _dimension(run.network),
        "fingerprint": run.facts.fingerprint,
        "float_safety": FLOAT_SAFETY,
        "software": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "opacus": version("opacus"),
        },
    }


def _dimension(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters() if p.requires_grad)


def _steps(spec: TrainingSpec) -> Iterator[Segment]:
    for segment in spec.mechanism.schedule:
        for _ in range(segment.steps):
            yield segment


def _step(run: _Run, *, step: int, segment: Segment) -> dict[str, Any]:
    """Execute one step and give its record."""
    spec = run.spec
    batch = torch.from_numpy(
        poisson_batch(spec.record_count, sampling_rate=segment.sampling_rate, stream=run.sampling)
    ).to(run.device)
    images, labels = run.train
    total = clipped_sum(run.hooked, images[batch], labels[batch], max_grad_norm=spec.max_grad_norm)
    # σ·C is the standard deviation on the SUM of records clipped to the same C.
    scale = segment.noise_multiplier * spec.max_grad_norm
    noise = torch.from_numpy(run.noise.normals(len(total.total))).mul_(scale)
    _apply(run, (total.total + noise) / spec.expected_batch_size)
    return {
        "step": step,
        "noise_multiplier": segment.noise_multiplier,
        "max_grad_norm": spec.max_grad_norm,
        "sampling_rate": segment.sampling_rate,
        "sampler": spec.mechanism.sampler,
        "expected_batch_size": spec.expected_batch_size,
        "at": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "sealed": _sealed(total, noise_norm=float(noise.norm())),
    }


def _sealed(total: ClippedSum, *, noise_norm: float) -> dict[str, float | int]:
    """What only an auditor may see; means over no records are 0, told apart by the counts."""
    finite = total.record_count - total.nonfinite
    return {
        "realized_batch_size": total.record_count,
        "noise_norm": noise_norm,
        "noise_dimension": len(total.total),
        "clipped_fraction": total.clipped / max(1, finite),
        "mean_gradient_norm": total.norm_total / max(1, finite),
        "loss": total.loss_total / max(1, finite),
        "nonfinite_records": total.nonfinite,
    }


def _apply(run: _Run, gradient: Tensor) -> None:
    """One optimiser step along the noised, normalised gradient (float64, CPU)."""
    settings = run.spec.optimizer
    parameters = [p for p in run.network.parameters() if p.requires_grad]
    pieces = gradient.split([p.numel() for p in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        parameter.grad = piece.view_as(parameter).to(run.device, parameter.dtype)
    if settings.name == "sgd" and settings.weight_decay > 0:
        with torch.no_grad():
            for parameter in parameters:
                parameter.mul_(1 - settings.learning_rate * settings.weight_decay)
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)


def _test_accuracy(run: _Run) -> float:
    """The share of the public test part that the final model gets right."""
    images, labels = run.test
    run.network.eval()
    with torch.no_grad():
        guesses = torch.cat(
            [run.network(part.to(run.device)).argmax(1).cpu() for part in images.split(512)]
        )
    return float((guesses == labels).double().mean())


def _save_model(run: _Run, folder: Path) -> dict[str, Any]:
    """Write the weights under the model's own names, as data and never as pickle."""
    weights = {name: value.cpu().contiguous() for name, value in run.network.state_dict().items()}
    # One key: the format keeps several in no fixed order, and equal models shall be equal bytes.
    described = json.dumps(
        {
            "model": run.spec.model,
            "model_options": dict(run.spec.model_options),
            "dataset_source": run.spec.dataset_source,
            "total_steps": run.spec.total_steps,
        },
        sort_keys=True,
    )
    content = save(weights, metadata={"dpledger": described})
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{MODEL_FILE}.part"
    unfinished.write_bytes(content)
    unfinished.replace(folder / MODEL_FILE)
    return {
        "name": MODEL_FILE,
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
    }
