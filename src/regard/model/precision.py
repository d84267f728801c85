"""What half precision cannot hold."""

from __future__ import annotations

import torch
from torch import Tensor


def finite(x: Tensor) -> Tensor:
    """In float16, bring values beyond its largest (65,504) back to it; other dtypes reach far enough."""
    if x.dtype != torch.float16:
        return x
    largest = torch.finfo(torch.float16).max
    return x.clamp(-largest, largest)
