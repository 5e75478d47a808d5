"""A multilayer perceptron with tanh units: few, bounded, and kind to clipping."""

from collections import OrderedDict

from torch import nn

from workers.trainer.models.normalise import NormaliseRecord


def mlp(*, pixels: int, classes: int, hidden: int, layers: int) -> nn.Sequential:
    """``layers`` hidden layers of ``hidden`` tanh units; none makes it a linear classifier.

    The last layer starts at zero: the first predictions are uniform, and no step is spent on
    unlearning a random guess. Records are scaled to a norm (2.0 for 64 pixels, 3.7 for 784) at
    which gradients are about as long as a clip norm of 1/2.
    """
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        normalise=NormaliseRecord(norm=pixels**0.25 / 2**0.5), flatten=nn.Flatten()
    )
    width = pixels
    for index in range(layers):
        parts[f"hidden{index}"] = nn.Linear(width, hidden)
        parts[f"tanh{index}"] = nn.Tanh()
        width = hidden
    head = nn.Linear(width, classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    parts["head"] = head
    return nn.Sequential(parts)
