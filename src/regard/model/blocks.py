"""The layers of encoder and decoder (section 3.1), from attention, feed-forward and residual connections.

Shapes: B batch, S source positions, T target positions, D d_model, F d_ff.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from regard.model.attention import MultiHeadAttention
from regard.model.cache import LayerCache
from regard.model.dropout import dropout
from regard.model.masks import Mask
from regard.model.precision import finite
from regard.model.settings import ModelSettings


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, equation (2)."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.expand = nn.Linear(settings.d_model, settings.d_ff)
        self.contract = nn.Linear(settings.d_ff, settings.d_model)
        self.drop = settings.activation_dropout
        for linear in (self.expand, self.contract):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        hidden_BTF = finite(self.expand(x_BTD).relu())
        contracted: Tensor = self.contract(dropout(hidden_BTF, self.drop, self.training))
        return contracted


class Residual(nn.Module):
    """The connection around a sub-layer: LayerNorm(x + Dropout(Sublayer(x))) (sections 3.1 and 5.4).

    With `norm_placement = "pre"` it is x + Dropout(Sublayer(LayerNorm(x))) (Xiong et al. 2020, arXiv 2002.04745).
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(settings.d_model, eps=settings.norm_epsilon)
        self.pre = settings.norm_placement == "pre"
        self.drop = settings.dropout

    def forward(self, x_BTD: Float[Tensor, "B T D"], sublayer: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        output_BTD = sublayer(self.norm(x_BTD) if self.pre else x_BTD)
        sum_BTD = finite(x_BTD + dropout(output_BTD, self.drop, self.training))
        return sum_BTD if self.pre else self.norm(sum_BTD)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each inside a residual connection."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(settings)
        self.feed_forward = FeedForward(settings)
        self.self_attention_residual = Residual(settings)
        self.feed_forward_residual = Residual(settings)

    def forward(self, x_BSD: Float[Tensor, "B S D"], mask: Mask | None) -> Float[Tensor, "B S D"]:
        x_BSD = self.self_attention_residual(x_BSD, lambda x: self.self_attention(x, mask))
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

    def forward(
        self,
        x_RTD: Float[Tensor, "R T D"],
        mask: Mask | None,
        memory_BSD: Float[Tensor, "B S D"],
        memory_mask: Mask | None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "R T D"]:
        x_RTD = self.self_attention_residual(x_RTD, lambda x: self.self_attention(x, mask, cache))
        x_RTD = self.memory_attention_residual(
            x_RTD, lambda x: self.memory_attention.over_memory(x, memory_BSD, memory_mask, cache)
        )
        x_RTD = self.feed_forward_residual(x_RTD, self.feed_forward)
        return x_RTD
