"""Masks as values: which keys each query may attend to. True = may attend.

Shapes: B batch, H heads, S key positions, T query positions. A mask broadcasts: any of B, H, T may be 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Mask:
    """Which keys each query may attend to; `a & b` allows what both allow."""

    allowed_BHTS: Bool[Tensor, "B H T S"]
    is_causal: bool = False
    """Exactly the square causal mask, which fused attention knows without reading it."""

    def __and__(self, other: Mask | None) -> Mask:
        return self if other is None else Mask(self.allowed_BHTS & other.allowed_BHTS)

    @cached_property
    def empty_BHT1(self) -> Bool[Tensor, "B H T 1"] | None:
        """The queries that may attend to nothing, or None when there are none."""
        if self.is_causal:
            return None
        empty_BHT1 = ~self.allowed_BHTS.any(dim=-1, keepdim=True)
        return empty_BHT1 if bool(empty_BHT1.any()) else None

    @cached_property
    def bias_BHTS(self) -> Float[Tensor, "B H T S"]:
        """What to add to scores: 0 where allowed, -inf elsewhere.

        A row with nothing to attend to is 0 throughout: its softmax stays finite, forwards and backwards, and
        attention sets its output to zero (`empty_BHT1`).
        """
        hidden_BHTS = ~self.allowed_BHTS
        if self.empty_BHT1 is not None:
            hidden_BHTS = hidden_BHTS & ~self.empty_BHT1
        return torch.zeros_like(hidden_BHTS, dtype=torch.float32).masked_fill_(hidden_BHTS, float("-inf"))


def padding(keys_BS: Bool[Tensor, "B S"]) -> Mask | None:
    """Allow the real keys (True in `keys_BS`) to every query; None when all are real."""
    return None if bool(keys_BS.all()) else Mask(keys_BS[:, None, None, :])


def causal(queries: int, keys: int, device: torch.device | None = None) -> Mask | None:
    """Allow each query the keys up to its own position (section 3.2.3).

    Aligned bottom-right: the last query stands at the last key, so a chunk after a cached prefix stays causal. None
    when nothing is hidden (one query).
    """
    if queries == 1:
        return None
    allowed_TS = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    return Mask(allowed_TS[None, None], is_causal=queries == keys)
