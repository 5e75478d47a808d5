"""The clipped sum: one record moves it by at most C, whatever the record is.

Per-sample gradients come from Opacus' hooks; clipping, summing and the treatment of bad
records are ours. A gradient is one vector over all parameters: clipped once, not per layer.
Norms and sums are float64. Micro-batches bound memory and change nothing else.

Limits of floating point: a record's float32 gradient may differ in its last bits with the
company it is computed in, because matrix kernels choose their order by shape. The self-test
allows 1e-4 of C for this.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from opacus import GradSampleModule
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.nn import functional

from service.core.errors import InvalidInput

_MICRO_BATCH_FLOATS: Final = 8_000_000
_MICRO_BATCH_RECORDS: Final = 512
# Leaves room for the rounding of the float64 product, so that clipped norms stay ≤ C.
_BELOW: Final = 1.0 - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedSum:
    """The sum of clipped per-record gradients, and what the sealed log says of it.

    Args:
        total: float64 vector of all trainable parameters, in the order of the model, on the CPU.
        record_count: records in the batch, the zeroed ones included.
        clipped: how many were longer than C.
        nonfinite: how many had a NaN or an infinity and count as zero.
        norm_total: sum of the norms before clipping, finite records only.
        loss_total: sum of the losses, finite records only.
    """

    total: Tensor
    record_count: int
    clipped: int
    nonfinite: int
    norm_total: float
    loss_total: float


def per_sample(model: nn.Module) -> GradSampleModule:
    """The model with hooks that give per-record gradients.

    Raises:
        InvalidInput: the model mixes records (BatchNorm and its kin), or Opacus has no exact
            per-record gradient for one of its layers.
    """
    for name, module in model.named_modules():
        tracks = getattr(module, "track_running_stats", False)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) or tracks:  # noqa: SLF001
            raise InvalidInput(
                f"{type(module).__name__} at {name!r} mixes the records of a batch and keeps "
                "their statistics, even when its weights are frozen; use GroupNorm.",
                pointer="/training/model",
                code="UNSUPPORTED",
            )
    model.train()
    problems = ModuleValidator.validate(model, strict=False)
    if problems:
        raise InvalidInput(
            f"No exact per-record gradient for this model: {problems[0]}",
            pointer="/training/model",
            code="UNSUPPORTED",
        )
    # Opacus unfolds activations as if they were contiguous: with channels_last it gives gradients
    # of other images.
    model.to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]
    return GradSampleModule(model, loss_reduction="sum", strict=True)


def clipped_sum(
    model: GradSampleModule, inputs: Tensor, labels: Tensor, *, max_grad_norm: float
) -> ClippedSum:
    """Σ over records of g·min(1, C/‖g‖), g the gradient of that record's own loss.

    Guarantees: each record's contribution has an L2 norm of at most C; a record whose gradient
    is not finite contributes zero; an empty batch gives the zero vector.

    Args:
        model: made by ``per_sample``; left with its gradients cleared.
        inputs: (batch, …) on the model's device.
        labels: (batch,) class numbers.
        max_grad_norm: C > 0.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    dimension = sum(p.numel() for p in parameters)
    total = torch.zeros(dimension, dtype=torch.float64, device=inputs.device)
    clipped = nonfinite = 0
    norm_total = loss_total = 0.0
    inputs = inputs.contiguous()
    size = max(1, min(_MICRO_BATCH_RECORDS, _MICRO_BATCH_FLOATS // dimension))
    for start in range(0, len(inputs), size):
        chunk = slice(start, start + size)
        losses, gradients = _gradients(model, parameters, inputs[chunk], labels[chunk])
        norms = torch.stack(
            [torch.linalg.vector_norm(g, dim=1, dtype=torch.float64) for g in gradients], dim=1
        ).norm(dim=1)
        good = torch.isfinite(norms) & torch.isfinite(losses)
        scale = (max_grad_norm * _BELOW / norms.clamp_min(1e-300)).clamp_max(1.0)
        total += _weighted_sum(gradients, torch.where(good, scale, 0.0), good)
        clipped += int((norms[good] > max_grad_norm).sum())
        nonfinite += int((~good).sum())
        norm_total += float(norms[good].sum())
        loss_total += float(losses[good].sum())
    return ClippedSum(
        total=total.cpu(),
        record_count=len(inputs),
        clipped=clipped,
        nonfinite=nonfinite,
        norm_total=norm_total,
        loss_total=loss_total,
    )


def _gradients(
    model: GradSampleModule, parameters: Sequence[nn.Parameter], inputs: Tensor, labels: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Losses (batch,) in float64 and, per parameter, gradients (batch, numel) in float32."""
    # reduction="none" and a plain sum: no weight or mean can tie a record's loss to another's.
    losses = functional.cross_entropy(model(inputs), labels, reduction="none")
    losses.sum().backward()
    gradients: list[Tensor] = []
    for parameter in parameters:
        sample = parameter.grad_sample  # type: ignore[attr-defined]
        assert isinstance(sample, Tensor), "a parameter took part more than once, or not at all"
        assert len(sample) == len(inputs)
        gradients.append(sample.flatten(1))
    model.zero_grad(set_to_none=True)
    return losses.detach().double(), gradients


def _weighted_sum(gradients: Sequence[Tensor], weights: Tensor, good: Tensor) -> Tensor:
    all_good = bool(good.all())
    parts: list[Tensor] = []
    for gradient in gradients:
        wide = gradient.double()
        if not all_good:  # zero times infinity is no zero
            wide = torch.where(good[:, None], wide, 0.0)
        parts.append(weights @ wide)
    return torch.cat(parts)
