"""Dropout by the compiled library: a seed and a value's place tell whether it stays."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.native.library import check, library, serves

PART = 2**20
"""Values of a thread, at least."""


def drop(x: Tensor, seed: int, dropped: int) -> Tensor:
    """`x` with each value zeroed at `dropped` of 2^16 cases, and the others divided by the share of those that stay.

    Args:
        seed: 64 bits; the same seed drops the same places of a tensor of the same shape.
        dropped: below 2^16.
    """
    loaded = library()
    assert loaded is not None
    assert serves(x)
    x = x.detach().contiguous()
    y = torch.empty_like(x)
    threads = min(torch.get_num_threads(), 1 + x.numel() // PART)
    scale = 2**16 / (2**16 - dropped)
    check(loaded.regard_drop(x.data_ptr(), y.data_ptr(), x.numel(), seed, dropped, scale, threads), loaded)
    return y
