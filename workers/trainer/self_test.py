"""Before the first step: does one record really move the clipped sum by no more than C?

Tried on the very model, loss and clipping code that will run, with synthetic records: plain,
far outside the pixel range, and not finite. It finds layers that mix the records of a batch,
whatever their class is called, and state that changes under way (R6).
"""

from typing import Final

import torch
from opacus import GradSampleModule
from torch import Tensor

from service.core.datasets import BuiltinDataset
from service.core.errors import InvalidInput
from workers.trainer.clipping import clipped_sum

TOLERANCE: Final = 1e-4
_RECORDS: Final = 8


def check_sensitivity(
    model: GradSampleModule, facts: BuiltinDataset, *, max_grad_norm: float, device: torch.device
) -> None:
    """Refuse a model whose clipped sum is more sensitive than the accounting assumes.

    Guarantees: the model's weights are afterwards what they were.

    Raises:
        InvalidInput: ``SELF_TEST_FAILED``.
    """
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)  # synthetic records need no secrecy
    shape = (_RECORDS + 1, 1, *facts.image_shape)
    images = torch.rand(shape, generator=generator).to(device)
    labels = torch.randint(facts.classes, (_RECORDS + 1,), generator=generator).to(device)
    _check_all(model, images, labels, max_grad_norm)
    # A zero head hides every layer below it: try again where gradients flow everywhere.
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise.to(device), alpha=0.3)
    moved = {name: value.clone() for name, value in model.state_dict().items()}
    _check_all(model, images, labels, max_grad_norm)
    _check_all(model, images, labels, max_grad_norm / 16)
    after = model.state_dict()
    if any(not torch.equal(moved[name], after[name]) for name in after):
        raise _failed("the model keeps state of the records that it has seen")
    model.load_state_dict(before)


def _check_all(model: GradSampleModule, images: Tensor, labels: Tensor, bound: float) -> None:
    for last in (images[-1:], images[-1:] * 1e3, images[-1:] * torch.nan):
        records = torch.cat([images[:-1], last])

        def total(chosen: list[int], records: Tensor = records) -> Tensor:
            return clipped_sum(model, records[chosen], labels[chosen], max_grad_norm=bound).total

        base = total([*range(_RECORDS)])
        added = total([*range(_RECORDS + 1)])
        swapped = total([*range(_RECORDS - 1), _RECORDS])
        if not bool(torch.isfinite(torch.stack([base, added, swapped])).all()):
            raise _failed("a record makes the clipped sum infinite or undefined")
        if float((added - base).norm()) > bound * (1 + TOLERANCE):
            raise _failed("adding one record moves the clipped sum by more than max_grad_norm")
        if float((swapped - base).norm()) > 2 * bound * (1 + TOLERANCE):
            raise _failed("swapping one record moves the clipped sum by over twice max_grad_norm")


def _failed(reason: str) -> InvalidInput:
    return InvalidInput(
        f"The sensitivity self-test failed: {reason}.",
        pointer="/training/model",
        code="SELF_TEST_FAILED",
    )
