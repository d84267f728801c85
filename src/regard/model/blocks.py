"""The layers of encoder and decoder (section 3.1), from attention, feed-forward and residual connections.

Shapes: B batch, R rows of a search, S source positions, T target positions, D d_model.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.model.attention import MultiHeadAttention
from regard.model.cache import LayerCache
from regard.model.dropout import dropout, random_source
from regard.model.feed_forward import FeedForward
from regard.model.masks import Mask
from regard.model.norms import norm
from regard.model.positions import Relation
from regard.model.precision import finite
from regard.model.settings import ModelSettings


class Residual(nn.Module):
    """The connection around a sub-layer: LayerNorm(x + Dropout(Sublayer(x))) (sections 3.1 and 5.4).

    With `norm_placement = "pre"` it is x + Dropout(Sublayer(LayerNorm(x))) (Xiong et al. 2020, arXiv 2002.04745), with
    "both" x + Dropout(LayerNorm(Sublayer(LayerNorm(x)))) (Ding et al. 2021, arXiv 2105.13290).
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.norm = norm(settings)
        self.before = settings.norm_placement != "post"
        self.norm_after = norm(settings) if settings.norm_placement == "both" else None
        self.drop = settings.dropout

    def forward(self, x_BTD: Float[Tensor, "B T D"], sublayer: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        output_BTD = sublayer(self.norm(x_BTD) if self.before else x_BTD)
        if self.norm_after is not None:
            output_BTD = self.norm_after(finite(output_BTD))
        sum_BTD = finite(x_BTD + dropout(output_BTD, self.drop, self.training))
        return sum_BTD if self.before else self.norm(sum_BTD)


def left_out(probability: float, training: bool) -> bool:
    """Whether a layer is left out of this pass: LayerDrop (Fan et al. 2020, arXiv 1909.11556, section 3.2).

    On every device the random numbers of the CPU decide.
    """
    if not training or probability == 0.0:
        return False
    return bool(torch.rand((), device="cpu", generator=random_source()) < probability)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each inside a residual connection.

    Under a causal mask, and with a cache, it is the layer of a decoder that has no memory to attend to.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(settings)
        self.feed_forward = FeedForward(settings)
        self.self_attention_residual = Residual(settings)
        self.feed_forward_residual = Residual(settings)
        self.layer_drop = settings.layer_dropout

    def forward(
        self,
        x_BSD: Float[Tensor, "B S D"],
        mask: Mask | None,
        relation: Relation | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "B S D"]:
        if left_out(self.layer_drop, self.training):
            return x_BSD
        x_BSD = self.self_attention_residual(x_BSD, lambda x: self.self_attention(x, mask, cache, relation))
        x_BSD = self.feed_forward_residual(x_BSD, self.feed_forward)
        return x_BSD


class DecoderLayer(nn.Module):
    """Self-attention, attention over the encoder's output, then feed-forward, each inside a residual connection."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(settings)
        self.memory_attention = MultiHeadAttention(settings)
        self.feed_forward = FeedForward(settings)
        self.self_attention_residual = Residual(settings)
        self.memory_attention_residual = Residual(settings)
        self.feed_forward_residual = Residual(settings)
        self.layer_drop = settings.layer_dropout

    def forward(
        self,
        x_RTD: Float[Tensor, "R T D"],
        mask: Mask | None,
        memory_BSD: Float[Tensor, "B S D"],
        memory_mask: Mask | None,
        relation: Relation | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "R T D"]:
        if left_out(self.layer_drop, self.training):
            return x_RTD
        x_RTD = self.self_attention_residual(x_RTD, lambda x: self.self_attention(x, mask, cache, relation))
        x_RTD = self.memory_attention_residual(
            x_RTD, lambda x: self.memory_attention.over_memory(x, memory_BSD, memory_mask, cache)
        )
        x_RTD = self.feed_forward_residual(x_RTD, self.feed_forward)
        return x_RTD
