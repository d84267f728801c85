"""Attention said plainly (section 3.2.1): the oracle of every faster execution, and what inspection shows.

Shapes: B batch, H query heads, G key and value heads, S key positions, T query positions, E width of a head (d_k or
d_v).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.model.dropout import dropout
from regard.model.masks import Mask
from regard.model.positions import Bias
from regard.model.softmax import softmax


@dataclass(frozen=True)
class AttentionValues:
    """Every value inside one attention: equation (1) step by step."""

    scores_BHTS: Float[Tensor, "B H T S"]
    """Q K^T / sqrt(d_k), with biases; -inf where the mask hides a key."""
    weights_BHTS: Float[Tensor, "B H T S"]
    """softmax(scores): each row sums to 1; a row with nothing to attend to is all zeros. Dropout not applied."""
    output_BHTE: Float[Tensor, "B H T E"]


def reference_attention(
    query_BHTE: Float[Tensor, "B H T E"],
    key_BGSE: Float[Tensor, "B G S E"],
    value_BGSE: Float[Tensor, "B G S Ev"],
    mask: Mask | None = None,
    bias: Bias | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    drop: float = 0.0,
) -> AttentionValues:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, equation (1), with its intermediate values.

    Scores and softmax are in float32 at least, whatever the inputs are. Query head h uses key and value head
    h // (H / G).

    Args:
        bias: what positions add to scores.
        scale: in place of 1 / sqrt(d_k).
        softcap: scores are bent to stay within it, before bias and mask.
        drop: dropout of the weights on their way to the output, and only there.
    """
    wide = torch.promote_types(query_BHTE.dtype, torch.float32)
    if scale is None:
        scale = 1.0 / math.sqrt(query_BHTE.shape[-1])
    shared = query_BHTE.shape[1] // key_BGSE.shape[1]
    if shared > 1:
        key_BGSE, value_BGSE = (each.repeat_interleave(shared, dim=1) for each in (key_BGSE, value_BGSE))
    scores_BHTS = query_BHTE.to(wide) * scale @ key_BGSE.to(wide).transpose(-2, -1)
    if softcap is not None:
        scores_BHTS = softcap * torch.tanh(scores_BHTS / softcap)
    if bias is not None:
        scores_BHTS = scores_BHTS + bias.dense_BHTS
    if mask is not None:
        scores_BHTS = scores_BHTS + mask.bias_BHTS
    weights_BHTS = softmax(scores_BHTS)
    if mask is not None and mask.empty_BHT1 is not None:
        scores_BHTS = scores_BHTS.masked_fill(mask.empty_BHT1, float("-inf"))
        weights_BHTS = weights_BHTS.masked_fill(mask.empty_BHT1, 0.0)
    output_BHTE = dropout(weights_BHTS, drop, training=True).to(value_BGSE.dtype) @ value_BGSE
    return AttentionValues(scores_BHTS, weights_BHTS, output_BHTE)
