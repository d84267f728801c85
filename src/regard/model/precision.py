"""Half precision: where a CPU computes in it, and what it cannot hold.

On a GPU torch's autocast decides operation by operation. On a CPU that would lose more than it wins: what is not a
matrix product only becomes slower. Here, between `half_products`, nothing but the factors of products is rounded to
bfloat16; their sums, and all else, are float32.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


class _Asked(threading.local):
    half = False


_asked = _Asked()


@contextmanager
def half_products() -> Iterator[None]:
    """A context in which products with weights have factors in bfloat16. Each thread has its own."""
    before, _asked.half = _asked.half, True
    try:
        yield
    finally:
        _asked.half = before


def products_are_half() -> bool:
    """Whether this thread is in such a context."""
    return _asked.half


@cache
def faster_in_half() -> bool:
    """Whether this CPU multiplies bfloat16 numbers faster than float32 ones: with AVX512_BF16, twice as fast."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older releases of torch cannot say
    return torch.backends.mkldnn.is_available() and bool(capabilities.get("avx512_bf16", False))


def product(x: Float[Tensor, "... I"], weight_OI: Tensor, bias_O: Tensor | None = None) -> Float[Tensor, "... O"]:
    """x W^T + b."""
    if not (_asked.half and x.dtype == weight_OI.dtype == torch.float32):
        return functional.linear(x, weight_OI, bias_O)
    function: type[torch.autograd.Function] = _HalfProduct
    y: Tensor = function.apply(x, weight_OI)
    return y if bias_O is None else y + bias_O


def filled(count: int) -> int:
    """As many rows as a product of `count` rows is given: the next multiple of an eighth of the power of two below.

    oneDNN compiles code for each shape that it meets and keeps it. With batches of any size that takes time and ever
    more memory; with these there are eight sizes from one power of two to the next.
    """
    unit = max(1, (1 << count.bit_length()) // 16)
    return -(-count // unit) * unit


class _HalfProduct(torch.autograd.Function):
    """Torch's products of bfloat16 numbers add in float32, and round the sum once more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor) -> Tensor:
        x_RI, weight_OI = _rows(x), weight_OI.bfloat16()
        ctx.save_for_backward(x_RI, weight_OI)
        return _like(x_RI @ weight_OI.T, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x_RI, weight_OI = ctx.saved_tensors
        (gradient,) = gradients
        gradient_RO = _rows(gradient)
        to_x, to_weight = ctx.needs_input_grad
        return (
            _like(gradient_RO @ weight_OI, gradient) if to_x else None,
            (gradient_RO.T @ x_RI).float() if to_weight else None,
        )


def _rows(x: Tensor) -> Tensor:
    """[..., I] as rows in bfloat16, filled up with zeros."""
    x_NI = x.reshape(-1, x.shape[-1])
    count = len(x_NI)
    rows = torch.empty(filled(count), x.shape[-1], dtype=torch.bfloat16)
    rows[:count] = x_NI
    rows[count:] = 0
    return rows


def _like(y_RO: Tensor, x: Tensor) -> Tensor:
    """Rows without those that filled up, in float32 and in the order of `x`."""
    return y_RO[: x[..., 0].numel()].float().view(*x.shape[:-1], y_RO.shape[1])


def finite(x: Tensor) -> Tensor:
    """In float16, bring values beyond its largest (65,504) back to it; other dtypes reach far enough."""
    if x.dtype != torch.float16:
        return x
    largest = torch.finfo(torch.float16).max
    return x.clamp(-largest, largest)
