"""Dropout whose random bits cost little on a CPU, and where they come from.

Section 5.4; Srivastava et al. 2014: each value is zeroed with probability p, the others are divided by 1 - p.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.native import dropout as native
from regard.native.library import serves

_source: ContextVar[torch.Generator | None] = ContextVar("random source", default=None)


def random_source() -> torch.Generator | None:
    """What decides here, on a CPU, which values are dropped; None: torch's default generator."""
    return _source.get()


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Draw from `generator` inside: threads that work at the same time have one each, so that none disturbs another."""
    token = _source.set(generator)
    try:
        yield
    finally:
        _source.reset(token)


class _CountedDropout(torch.autograd.Function):
    """By the compiled library, from one seed a call: nothing but the seed is kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        ctx.seed, ctx.dropped = int(_random_words(1)) % 2**64, dropped
        return native.drop(x, ctx.seed, dropped)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return native.drop(gradients[0], ctx.seed, ctx.dropped), None


class _SixteenBitDropout(torch.autograd.Function):
    """Four decisions from each random 64-bit number: about ten times as fast as one Bernoulli draw each.

    What is kept for the backward pass are factors, not bits: a product of numbers and bits costs five times as much.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        bits = _random_words((x.numel() + 3) // 4).view(torch.int16)[: x.numel()].view(x.shape)
        factors = torch.ge(bits, dropped - 2**15, out=torch.empty(x.shape, dtype=x.dtype))
        factors *= 2**16 / (2**16 - dropped)
        ctx.save_for_backward(factors)
        return x * factors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (factors,) = ctx.saved_tensors
        return gradients[0] * factors, None


def _random_words(count: int) -> Tensor:
    """Whole numbers of 64 random bits."""
    return torch.empty(count, dtype=torch.int64).random_(-(2**63), None, generator=random_source())


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Zero each value of `x` with `probability` while `training`, and scale the rest to keep the mean.

    On a CPU the probability is rounded to a multiple of 2^-16 below 1, and the scale is that of the rounded one.
    """
    if not training or probability == 0.0:
        return x
    if x.device.type != "cpu":
        return functional.dropout(x, probability)
    function: type[torch.autograd.Function] = _CountedDropout if serves(x) else _SixteenBitDropout
    dropped: Tensor = function.apply(x, min(round(probability * 2**16), 2**16 - 1))
    return dropped
