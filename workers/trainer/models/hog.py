"""Histograms of oriented gradients and a linear classifier: few weights, so little noise.

The features are fixed and computed from one record at a time, so they cost no privacy (R24);
only the linear layer is trained. On small data such features beat a network that must learn
its own (Dalal and Triggs 2005; Tramèr and Boneh 2021).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from workers.trainer.models.normalise import NormaliseRecord


class OrientedGradients(nn.Module):
    """Gradient strength per direction, pooled over cells that overlap by half.

    Images (batch, 1, side, side) in [0, 1] to (batch, orientations, cells, cells). The square
    root tames strong strokes.
    """

    def __init__(self, *, orientations: int, cell: int) -> None:
        super().__init__()
        self.cell = cell
        slope = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 8  # Sobel
        angles = torch.arange(orientations) * (2 * math.pi / orientations)
        across = torch.cos(angles).view(-1, 1, 1) * slope
        down = torch.sin(angles).view(-1, 1, 1) * slope.T
        # A constant, neither trained nor saved.
        self.register_buffer("filters", (across + down).unsqueeze(1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """See the class."""
        strengths = functional.relu(
            functional.conv2d(images, self.get_buffer("filters"), padding=1)
        )
        return functional.avg_pool2d(strengths, 2 * self.cell, stride=self.cell).sqrt()


def hog_linear(*, side: int, classes: int, orientations: int) -> nn.Sequential:
    """Oriented gradients of a square image, scaled to norm 6, and a linear layer from zero."""
    cell = 4 if side >= 16 else 2  # noqa: PLR2004 - half of a pooling window
    cells = (side - 2 * cell) // cell + 1
    head = nn.Linear(orientations * cells * cells, classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(
        OrientedGradients(orientations=orientations, cell=cell),
        NormaliseRecord(norm=6.0),
        nn.Flatten(),
        head,
    )
