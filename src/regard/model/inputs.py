"""What a stack reads, as vectors: tokens (section 3.4), image patches or sound frames.

Shapes: B batch, T positions, D d_model, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.model.dropout import dropout
from regard.model.norms import norm
from regard.model.places import Places
from regard.model.positions import POSITIONS
from regard.model.precision import finite
from regard.model.settings import ModelSettings


class Input(nn.Module):
    """What all inputs share: positions, normalisation where there is one, and dropout (sections 3.5, 5.4)."""

    def __init__(self, settings: ModelSettings, *, causal: bool = False, length: int | None = None) -> None:
        super().__init__()
        self.positions = POSITIONS[settings.positions](settings, causal=causal, length=length)
        self.norm = norm(settings) if settings.embedding_norm else None
        self.drop = settings.dropout

    def finish(self, x_BTD: Float[Tensor, "B T D"], places: Places) -> Float[Tensor, "B T D"]:
        x_BTD = finite(self.positions(x_BTD, places))
        if self.norm is not None:
            x_BTD = self.norm(x_BTD)
        return dropout(x_BTD, self.drop, self.training)


class Embedding(Input):
    """Token vectors times sqrt(d_model), plus positions, with dropout (sections 3.4, 3.5, 5.4)."""

    def __init__(
        self, settings: ModelSettings, weight_VD: nn.Parameter, *, causal: bool = False, length: int | None = None
    ) -> None:
        super().__init__(settings, causal=causal, length=length)
        self.weight = weight_VD
        self.segments = embedding_matrix(settings.segments, settings.d_model) if settings.segments else None
        self.scale = math.sqrt(settings.d_model) if settings.embedding_scale is None else settings.embedding_scale

    def forward(
        self, ids_BT: Int[Tensor, "B T"], places: Places, segments_BT: Int[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """`segments_BT` says which part of its input each token belongs to; by default all to the first."""
        x_BTD = functional.embedding(ids_BT, self.weight) * self.scale
        if self.segments is not None:
            x_BTD = x_BTD + (
                self.segments[0] if segments_BT is None else functional.embedding(segments_BT, self.segments)
            )
        return self.finish(x_BTD, places)

    def count(self, ids_BT: Tensor) -> int:
        """How many positions the input takes."""
        return ids_BT.shape[1]


class Patches(Input):
    """Square patches of an image, each a vector by one linear map, after a learned vector for the whole image.

    ViT: Dosovitskiy et al. 2021, arXiv 2010.11929, equation (1). Whatever is classified is read at that first vector.
    """

    def __init__(self, settings: ModelSettings, *, length: int | None = None) -> None:
        """All images are of one size, so that there are as many positions as patches, whatever `length` would allow."""
        super().__init__(settings, length=1 + settings.patches.count)
        size = settings.patches.size
        self.image = settings.patches.channels, settings.patches.height, settings.patches.width
        self.projection = nn.Conv2d(self.image[0], settings.d_model, size, stride=size)
        self.class_token = nn.Parameter(torch.empty(settings.d_model).normal_().mul_(settings.d_model**-0.5))

    def forward(self, images_BCHW: Float[Tensor, "B C Height Width"], places: Places) -> Float[Tensor, "B T D"]:
        if images_BCHW.shape[1:] != self.image:
            raise ValueError(f"images of {tuple(images_BCHW.shape[1:])} where the model reads {self.image}")
        patches_BND = self.projection(images_BCHW).flatten(2).transpose(1, 2)
        first_B1D = self.class_token.expand(len(patches_BND), 1, -1)
        return self.finish(torch.cat((first_B1D, patches_BND), dim=1), places)

    def count(self, images_BCHW: Tensor) -> int:
        """How many positions an image takes."""
        size = self.projection.stride[0]
        return 1 + images_BCHW.shape[2] // size * (images_BCHW.shape[3] // size)


class Frames(Input):
    """Log-mel frames of sound, two convolutions over time, the second halving their number.

    Whisper: Radford et al. 2022, arXiv 2212.04356, section 2.2.
    """

    def __init__(self, settings: ModelSettings, *, length: int | None = None) -> None:
        super().__init__(settings, length=length)
        d_model = settings.d_model
        self.convolutions = nn.ModuleList(
            (
                nn.Conv1d(settings.frames.bins, d_model, 3, padding=1),
                nn.Conv1d(d_model, d_model, 3, stride=2, padding=1),
            )
        )

    def forward(self, frames_BMN: Float[Tensor, "B M N"], places: Places) -> Float[Tensor, "B T D"]:
        x_BDN = frames_BMN
        for convolution in self.convolutions:
            x_BDN = functional.gelu(finite(convolution(x_BDN)))
        return self.finish(x_BDN.transpose(1, 2), places)

    def count(self, frames_BMN: Tensor) -> int:
        """How many positions so many frames take."""
        return (frames_BMN.shape[2] + 1) // 2


INPUTS: dict[str, type[Patches] | type[Frames]] = {"patches": Patches, "frames": Frames}
"""Inputs of an encoder other than tokens."""

Reader = Embedding | Patches | Frames


def embedding_matrix(vocabulary: int, d_model: int) -> nn.Parameter:
    """Normal with variance 1 / d_model: unit variance after the factor sqrt(d_model), and as an output matrix too."""
    return nn.Parameter(torch.empty(vocabulary, d_model).normal_().mul_(d_model**-0.5))
