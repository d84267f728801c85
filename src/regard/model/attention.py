"""Attention (section 3.2): scaled dot-product attention and multi-head attention.

One function, two executions of the same mathematics: `reference_attention` says it plainly and returns every
intermediate value; `attention` may hand the work to a fused kernel. The reference is the oracle in tests and what
inspection shows.

Shapes: B batch, H heads, S key positions, T query positions, D d_model, E width of a head (d_k or d_v).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.model.cache import LayerCache
from regard.model.dropout import dropout
from regard.model.masks import Mask
from regard.model.precision import finite
from regard.model.settings import ModelSettings

# On a CPU the fused kernel's backward pass costs more than it saves below about this many scores a head
# (benchmarks/attention.py).
FEW_SCORES = 64 * 64


@dataclass(frozen=True)
class AttentionValues:
    """Every value inside one attention: equation (1) step by step."""

    scores_BHTS: Float[Tensor, "B H T S"]
    """Q K^T / sqrt(d_k), -inf where the mask hides a key."""
    weights_BHTS: Float[Tensor, "B H T S"]
    """softmax(scores): each row sums to 1; a row with nothing to attend to is all zeros. Dropout not applied."""
    output_BHTE: Float[Tensor, "B H T E"]


def reference_attention(
    query_BHTE: Float[Tensor, "B H T E"],
    key_BHSE: Float[Tensor, "B H S E"],
    value_BHSE: Float[Tensor, "B H S Ev"],
    mask: Mask | None = None,
    *,
    drop: float = 0.0,
) -> AttentionValues:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, equation (1), with its intermediate values.

    Scores and softmax are in float32 at least, whatever the inputs are. `drop` is applied to the weights on their way
    to the output only.
    """
    wide = torch.promote_types(query_BHTE.dtype, torch.float32)
    scale = 1.0 / math.sqrt(query_BHTE.shape[-1])
    scores_BHTS = query_BHTE.to(wide) * scale @ key_BHSE.to(wide).transpose(-2, -1)
    if mask is not None:
        scores_BHTS = scores_BHTS + mask.bias_BHTS
    weights_BHTS = scores_BHTS.softmax(dim=-1)
    if mask is not None and mask.empty_BHT1 is not None:
        scores_BHTS = scores_BHTS.masked_fill(mask.empty_BHT1, float("-inf"))
        weights_BHTS = weights_BHTS.masked_fill(mask.empty_BHT1, 0.0)
    output_BHTE = dropout(weights_BHTS, drop, training=True).to(value_BHSE.dtype) @ value_BHSE
    return AttentionValues(scores_BHTS, weights_BHTS, output_BHTE)


def fused_attention(
    query_BHTE: Float[Tensor, "B H T E"],
    key_BHSE: Float[Tensor, "B H S E"],
    value_BHSE: Float[Tensor, "B H S Ev"],
    mask: Mask | None = None,
    *,
    drop: float = 0.0,
) -> Float[Tensor, "B H T Ev"]:
    """The same through `torch.nn.functional.scaled_dot_product_attention`."""
    causal = mask is not None and mask.is_causal
    bias = None if mask is None or causal else mask.bias_BHTS.to(query_BHTE.dtype)
    output_BHTE = functional.scaled_dot_product_attention(
        query_BHTE, key_BHSE, value_BHSE, bias, dropout_p=drop, is_causal=causal
    )
    if mask is not None and mask.empty_BHT1 is not None:
        output_BHTE = output_BHTE.masked_fill(mask.empty_BHT1, 0.0)
    return output_BHTE


def attention(
    query_BHTE: Float[Tensor, "B H T E"],
    key_BHSE: Float[Tensor, "B H S E"],
    value_BHSE: Float[Tensor, "B H S Ev"],
    mask: Mask | None = None,
    *,
    drop: float = 0.0,
) -> Float[Tensor, "B H T Ev"]:
    """Scaled dot-product attention by the faster execution for these shapes.

    `drop` is the dropout of this very call: pass 0 outside training.
    """
    watcher = _watcher.get()
    if watcher is not None:
        with torch.no_grad():
            watcher(reference_attention(query_BHTE, key_BHSE, value_BHSE, mask))
    few = query_BHTE.shape[2] * key_BHSE.shape[2] <= FEW_SCORES
    if query_BHTE.device.type == "cpu" and query_BHTE.dtype == torch.float32 and few:
        return reference_attention(query_BHTE, key_BHSE, value_BHSE, mask, drop=drop).output_BHTE
    return fused_attention(query_BHTE, key_BHSE, value_BHSE, mask, drop=drop)


_watcher: ContextVar[Callable[[AttentionValues], None] | None] = ContextVar("attention watcher", default=None)


@contextmanager
def watching(watcher: Callable[[AttentionValues], None]) -> Iterator[None]:
    """Call `watcher` with the values of every attention computed inside. The computation itself stays as it is."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1 .. head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V) (section 3.2.2).

    The matrices W^Q, W^K, W^V of all heads stand below each other in one parameter, so that self-attention is one
    matrix product; attention over a memory takes its rows apart without copying.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.heads = settings.heads
        self.widths = [settings.heads * settings.key_width] * 2 + [settings.heads * settings.value_width]
        self.drop = settings.attention_dropout
        self.in_projection = nn.Linear(settings.d_model, sum(self.widths))
        self.out_projection = nn.Linear(self.widths[2], settings.d_model)
        for weight in torch.split(self.in_projection.weight, self.widths):
            nn.init.xavier_uniform_(weight)
        nn.init.xavier_uniform_(self.out_projection.weight)
        nn.init.zeros_(self.in_projection.bias)
        nn.init.zeros_(self.out_projection.bias)

    def forward(
        self, x_BTD: Float[Tensor, "B T D"], mask: Mask | None = None, cache: LayerCache | None = None
    ) -> Float[Tensor, "B T D"]:
        """Self-attention; with a cache, over the positions it holds and the new ones."""
        projected = finite(self.in_projection(x_BTD))
        query, key, value = (self._split(part) for part in torch.split(projected, self.widths, dim=-1))
        if cache is not None:
            key, value = cache.append(key, value)
        return self._attend(query, key, value, mask)

    def over_memory(
        self,
        x_RTD: Float[Tensor, "R T D"],
        memory_BSD: Float[Tensor, "B S D"],
        mask: Mask | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "R T D"]:
        """Attention over an encoder's output ("encoder-decoder attention", section 3.2.3).

        There may be k rows of `x` for each row of the memory (the hypotheses of a beam, side by side): they are folded
        into the query positions, so that the memory's keys and values are never copied.
        """
        query_width = self.widths[0]
        weight, bias = self.in_projection.weight, self.in_projection.bias
        if cache is not None and cache.memory is not None:
            key, value = cache.memory
        else:
            both = finite(functional.linear(memory_BSD, weight[query_width:], bias[query_width:]))
            key, value = (self._split(part) for part in torch.split(both, self.widths[1:], dim=-1))
            if cache is not None:
                cache.memory = key, value
        folded_BTD = x_RTD.reshape(key.shape[0], -1, *x_RTD.shape[1:]).flatten(1, 2)
        query = self._split(finite(functional.linear(folded_BTD, weight[:query_width], bias[:query_width])))
        return self._attend(query, key, value, mask).view(x_RTD.shape)

    def _split(self, x_BTK: Float[Tensor, "B T K"]) -> Float[Tensor, "B H T E"]:
        return x_BTK.view(*x_BTK.shape[:2], self.heads, -1).transpose(1, 2)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None) -> Tensor:
        heads_BHTE = attention(query, key, value, mask, drop=self.drop if self.training else 0.0)
        concatenated: Tensor = self.out_projection(heads_BHTE.transpose(1, 2).flatten(2))
        return concatenated
