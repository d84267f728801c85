"""Linear maps as all parts of the model begin with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.model.precision import product


class Linear(nn.Linear):
    """A linear map, in half precision where products are."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        return product(x, self.weight, self.bias)


def linear(inputs: int, outputs: int | Sequence[int], bias: bool = True) -> Linear:
    """A linear map, Xavier-uniform (Glorot and Bengio 2010), with biases of zero.

    Several `outputs` are maps of their own that stand below each other in one matrix.
    """
    parts = [outputs] if isinstance(outputs, int) else list(outputs)
    layer = Linear(inputs, sum(parts), bias=bias)
    for weight in torch.split(layer.weight, parts):
        nn.init.xavier_uniform_(weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
