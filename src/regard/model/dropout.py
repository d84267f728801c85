"""Dropout whose random bits cost little on a CPU.

Section 5.4; Srivastava et al. 2014: each value is zeroed with probability p, the others are divided by 1 - p.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class _SixteenBitDropout(torch.autograd.Function):
    """Four decisions from each random 64-bit number: about ten times as fast as one Bernoulli draw each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        keep = (words.view(torch.int16)[: x.numel()] >= dropped - 2**15).view(x.shape)
        ctx.save_for_backward(keep)
        ctx.scale = 2**16 / (2**16 - dropped)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return (gradients[0] * keep).mul_(ctx.scale), None


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Zero each value of `x` with `probability` while `training`, and scale the rest to keep the mean.

    On a CPU the probability is rounded to a multiple of 2^-16 below 1, and the scale is that of the rounded one.
    """
    if not training or probability == 0.0:
        return x
    if x.device.type != "cpu":
        return functional.dropout(x, probability)
    return _SixteenBitDropout.apply(x, min(round(probability * 2**16), 2**16 - 1))  # type: ignore[no-any-return, no-untyped-call]
