"""Input scaling by the record itself: no statistic of the data set, so no privacy cost."""

import torch
from torch import Tensor, nn


class NormaliseRecord(nn.Module):
    """Subtracts each record's own mean and scales it to the Euclidean norm ``norm``."""

    def __init__(self, *, norm: float) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, images: Tensor) -> Tensor:
        """Images (batch, 1, height, width) in, the same shape out."""
        flat = images.flatten(1)
        centred = flat - flat.mean(dim=1, keepdim=True)
        length = torch.linalg.vector_norm(centred, dim=1, keepdim=True).clamp_min(1e-6)
        return (centred * (self.norm / length)).view_as(images)
