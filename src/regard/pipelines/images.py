"""An encoder that reads images as a Python object: `ImageClassifier`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.images import as_input
from regard.errors import UserError
from regard.model import store
from regard.model.transformer import BidirectionalEncoder
from regard.pipelines.classifier import Label, ranked
from regard.pipelines.directory import ModelDirectory, Pipeline

BATCH = 64
"""Images that are read at a time."""


class ImageClassifier(Pipeline):
    """Labels images. Threads may share one: a call changes nothing on it."""

    kinds = ("images",)
    settings = None
    tokenizers = None

    def __init__(self, model: BidirectionalEncoder, languages: store.Languages | None = None) -> None:
        """From the model; `load` reads it from a directory. It is put into evaluation mode."""
        assert model.head_settings is not None
        self.model: BidirectionalEncoder = model.eval()
        self.labels = model.head_settings.labels
        self.languages = languages or store.Languages()

    @classmethod
    def of(cls, directory: ModelDirectory) -> Self:
        assert isinstance(directory.model, BidirectionalEncoder)
        return cls(directory.model, directory.config.languages)

    def classify(self, images: NDArray[Any]) -> list[tuple[Label, ...]]:
        """All labels and their probabilities, best first, of each image.

        Args:
            images: [N, H, W] or [N, C, H, W], whole numbers up to 255 or what the model has learned from.

        Raises:
            UserError: the images are not of the model's size.
        """
        if images.ndim not in (3, 4):
            raise UserError(f"images of shape {images.shape}: should be [N, H, W] or [N, C, H, W]")
        inputs, wanted = as_input(images), self.model.settings.patches
        size = wanted.channels, wanted.height, wanted.width
        if inputs.shape[1:] != size:
            raise UserError(f"images of {_size(inputs.shape[1:])} where the model reads {_size(size)}")
        results: list[tuple[Label, ...]] = []
        for start in range(0, len(inputs), BATCH):
            with torch.inference_mode():
                part = torch.from_numpy(np.ascontiguousarray(inputs[start : start + BATCH])).to(self.device)
                probabilities_BL = self.model.logits(self.model.encode(part)).float().softmax(dim=-1)
            results += ranked(self.labels, probabilities_BL)
        return results


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
