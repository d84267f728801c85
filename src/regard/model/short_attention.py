"""Attention of short sequences on a CPU by the compiled library, where it is there and knows the case.

Shapes: B batch, H heads, S key positions, T query positions, E width of a head (d_k or d_v).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.model.masks import Mask
from regard.model.positions import Bias
from regard.native import attention as native


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, added: Tensor | None, scale: float) -> Tensor:
        output, weights = native.attend(query, key, value, added, scale)
        ctx.save_for_backward(query, key, value, weights)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights = ctx.saved_tensors
        return *native.attend_back(query, key, value, weights, ctx.scale, gradients[0]), None, None


def short_attention(
    query_BHTE: Float[Tensor, "B H T E"],
    key_BGSE: Float[Tensor, "B G S E"],
    value_BGSE: Float[Tensor, "B G S Ev"],
    mask: Mask | None = None,
    bias: Bias | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    drop: float = 0.0,
) -> Float[Tensor, "B H T Ev"] | None:
    """The output as of `reference_attention`, or None: the library cannot give it."""
    if bias is not None or softcap is not None or drop or not native.fits(query_BHTE, key_BGSE, value_BGSE):
        return None
    added = None
    if mask is not None:
        added = mask.bias_BHTS
        if mask.empty_BHT1 is not None or added.shape[1] != 1:
            return None
    if scale is None:
        scale = 1.0 / math.sqrt(query_BHTE.shape[-1])
    function: type[torch.autograd.Function] = _ShortAttention
    output: Tensor = function.apply(query_BHTE, key_BGSE, value_BGSE, added, scale)
    return output
