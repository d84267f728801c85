"""The best of many, the same on any device.

Shapes: R rows, V values of each, C of them taken.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor


def largest(values_RV: Float[Tensor, "R V"], count: int) -> tuple[Float[Tensor, "R C"], Int[Tensor, "R C"]]:
    """The `count` largest values of each row and where they stand; of equal values the first ones, on any device."""
    if count == 1:
        value_R1, place_R1 = values_RV.max(dim=1, keepdim=True)
        return value_R1, place_R1
    most = min(count + 1, values_RV.shape[1])
    top_RC, places_RC = values_RV.topk(most)
    if most > count and bool((top_RC[:, count - 1] == top_RC[:, count]).any()):
        # topk takes any of equal values; rarely do equal ones stand on both sides of the edge.
        top_RC, places_RC = values_RV.sort(dim=1, descending=True, stable=True)
    places_RC, order_RC = places_RC[:, :count].sort(dim=1)
    top_RC, rank_RC = top_RC[:, :count].gather(1, order_RC).sort(dim=1, descending=True, stable=True)
    return top_RC, places_RC.gather(1, rank_RC)
