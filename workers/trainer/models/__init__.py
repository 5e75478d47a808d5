"""The built-in models, by their names in ``service.core.jobs.MODELS``."""

from collections.abc import Mapping

from torch import nn

from service.core.datasets import BuiltinDataset
from workers.trainer.models.hog import hog_linear
from workers.trainer.models.mlp import mlp
from workers.trainer.models.residual import small_resnet


def build(model: str, *, options: Mapping[str, int], dataset: BuiltinDataset) -> nn.Module:
    """A fresh model for inputs (batch, 1, height, width) with pixels in [0, 1].

    Args:
        model: a checked model name.
        options: complete (``complete_model_options``).
        dataset: gives the image shape and the number of classes.
    """
    match model:
        case "mlp":
            return mlp(
                pixels=dataset.image_shape[0] * dataset.image_shape[1],
                classes=dataset.classes,
                hidden=options["hidden"],
                layers=options["layers"],
            )
        case "hog_linear":
            return hog_linear(
                side=dataset.image_shape[0],
                classes=dataset.classes,
                orientations=options["orientations"],
            )
        case "small_resnet":
            return small_resnet(
                classes=dataset.classes, width=options["width"], blocks=options["blocks"]
            )
        case _:
            raise AssertionError(model)
