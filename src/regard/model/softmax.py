"""Softmax over rows of any length at the same speed.

On a CPU torch's own kernel works value by value on rows shorter than its vectors: the attention weights of a sentence
of 14 tokens took six times as long as those of one of 22 (docs/decisions/003-speed-on-a-cpu.md).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VECTOR = 16
"""Numbers in the widest vector of a CPU."""


class _ShortSoftmax(torch.autograd.Function):
    """p_i = exp(x_i - max x) / sum_j exp(x_j - max x); the gradient of x is p * (g - sum_j g_j p_j)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        p = (x - x.amax(dim=-1, keepdim=True)).exp_()
        p /= p.sum(dim=-1, keepdim=True)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (p,) = ctx.saved_tensors
        weighted = gradients[0] * p
        gradient: Tensor = weighted - p * weighted.sum(dim=-1, keepdim=True)
        return gradient


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension."""
    if x.device.type == "cpu" and 0 < x.shape[-1] < VECTOR and x.dtype == torch.float32:
        function: type[torch.autograd.Function] = _ShortSoftmax
        p: Tensor = function.apply(x)
        return p
    return x.softmax(dim=-1)
