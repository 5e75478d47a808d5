"""A small residual network with GroupNorm, which looks at one record at a time."""

import torch
from torch import Tensor, nn

from workers.trainer.models.normalise import NormaliseRecord


class Residual(nn.Module):
    """Two 3 x 3 convolutions around a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(4, width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(4, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, width, height, width') in and out."""
        inner = self.conv1(torch.tanh(self.norm1(images)))
        # Not in place: Opacus keeps the activations of every layer.
        return images + self.conv2(torch.tanh(self.norm2(inner)))


def small_resnet(*, classes: int, width: int, blocks: int) -> nn.Sequential:
    """A strided stem, ``blocks`` residual blocks, pooling to 2 x 2, a zero-initialised head."""
    width -= width % 4  # GroupNorm splits the channels into four groups
    head = nn.Linear(4 * width, classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(
        NormaliseRecord(norm=8.0),
        nn.Conv2d(1, width, 5, stride=2, padding=2),
        *(Residual(width) for _ in range(blocks)),
        nn.GroupNorm(4, width),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        head,
    )
