"""A head that learns to align: its attention over the source is drawn towards links that are known.

Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models" (arXiv 1909.02074): with G the links
of the target tokens, each row's sum being 1, and A the weights of one head, they add

    lambda / T sum_t L_t,       L_t = -sum_s G_ts log A_ts,

to the loss of the T tokens. Tokens without a link add nothing.

Shapes: B batch, T target positions, S source positions.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from regard.model.settings import AlignmentHead
from regard.settings import Settings


class GuidedSettings(Settings):
    """A head that learns to align."""

    weight: float = Field(0.05, gt=0, allow_inf_nan=False)
    """Of its loss (lambda), beside that of the tokens."""
    layer: int | None = Field(None, ge=0)
    """Layer of the decoder, counted from 0; unset: the last but one."""
    head: int = Field(0, ge=0)
    """Head of it, counted from 0."""

    def among(self, layers: int) -> AlignmentHead:
        """The head of a decoder of so many layers."""
        return AlignmentHead(layer=max(layers - 2, 0) if self.layer is None else self.layer, head=self.head)


def guided_loss(weights_BTS: Float[Tensor, "B T S"], aligned_BTS: Float[Tensor, "B T S"]) -> Float[Tensor, ""]:
    """The sum of L_t over all target tokens, in nats."""
    logarithms_BTS = weights_BTS.float().clamp(min=torch.finfo(torch.float32).tiny).log()
    return -(aligned_BTS * logarithms_BTS).sum()
