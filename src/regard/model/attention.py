"""Attention (section 3.2): scaled dot-product attention and multi-head attention.

One function, several executions of the same mathematics: `reference_attention` (`reference.py`) says it plainly and
returns every intermediate value; `attention` may hand the work to a fused kernel (`fused.py`, `short_attention.py`).

Shapes: B batch, H query heads, G key and value heads, S key positions, T query positions, D d_model, E width of a head
(d_k or d_v).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.model.cache import LayerCache
from regard.model.fused import fused_attention
from regard.model.linear import linear
from regard.model.masks import Mask
from regard.model.norms import norm
from regard.model.positions import Bias, Relation
from regard.model.precision import finite, product
from regard.model.reference import AttentionValues, reference_attention
from regard.model.settings import ModelSettings
from regard.model.short_attention import short_attention

# On a CPU the fused kernel's backward pass costs more than it saves below about this many scores a head
# (benchmarks/attention.py).
FEW_SCORES = 64 * 64


def attention(
    query_BHTE: Float[Tensor, "B H T E"],
    key_BGSE: Float[Tensor, "B G S E"],
    value_BGSE: Float[Tensor, "B G S Ev"],
    mask: Mask | None = None,
    bias: Bias | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    drop: float = 0.0,
) -> Float[Tensor, "B H T Ev"]:
    """Scaled dot-product attention by the fastest execution for these shapes; arguments as `reference_attention`.

    `drop` is the dropout of this very call: pass 0 outside training.
    """
    inputs = query_BHTE, key_BGSE, value_BGSE, mask, bias
    few = query_BHTE.shape[2] * key_BGSE.shape[2] <= FEW_SCORES
    if query_BHTE.device.type == "cpu" and query_BHTE.dtype == torch.float32 and few:
        output_BHTE = short_attention(*inputs, scale=scale, softcap=softcap, drop=drop)
        if output_BHTE is None:
            output_BHTE = reference_attention(*inputs, scale=scale, softcap=softcap, drop=drop).output_BHTE
    else:
        output_BHTE = fused_attention(*inputs, scale=scale, softcap=softcap, drop=drop)
    watcher = _watcher.get()
    if watcher is not None:
        # Afterwards: a bias keeps its values once they are made, and made first here they would have no gradient.
        with torch.no_grad():
            watcher(reference_attention(*inputs, scale=scale, softcap=softcap))
    return output_BHTE


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
        d_k, d_v, key_heads = settings.key_width, settings.value_width, settings.key_heads
        self.d_key, self.d_value = d_k, d_v
        self.widths = [settings.heads * d_k, key_heads * d_k, key_heads * d_v]
        self.scale, self.softcap = settings.attention_scale, settings.attention_softcap
        self.drop = settings.attention_dropout
        self.in_projection = linear(settings.d_model, self.widths, bias=settings.attention_bias != "none")
        self.biased = settings.attention_bias != "none"
        self.out_projection = linear(settings.heads * d_v, settings.d_model, bias=settings.attention_bias == "all")
        self.query_norm = norm(settings, d_k) if settings.qk_norm else None
        self.key_norm = norm(settings, d_k) if settings.qk_norm else None

    def forward(
        self,
        x_BTD: Float[Tensor, "B T D"],
        mask: Mask | None = None,
        cache: LayerCache | None = None,
        relation: Relation | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Self-attention; with a cache, over the positions it holds and the new ones."""
        query_BTK, key_BTK, value_BTK = torch.split(finite(self.in_projection(x_BTD)), self.widths, dim=-1)
        query, key = _heads(query_BTK, self.d_key, self.query_norm), _heads(key_BTK, self.d_key, self.key_norm)
        value = _heads(value_BTK, self.d_value)
        turns_late = cache is not None and cache.moves
        if relation is not None:
            query = relation.turn_queries(query)
            key = key if turns_late else relation.turn_queries(key)
        if cache is not None:
            key, value = cache.append(key, value)
        if relation is not None and turns_late:
            key = relation.turn_keys(key)
        return self._attend(query, key, value, mask, relation.bias if relation else None)

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
        query_bias, memory_bias = (bias[:query_width], bias[query_width:]) if self.biased else (None, None)
        if cache is not None and cache.memory is not None:
            key, value = cache.memory
        else:
            both = finite(product(memory_BSD, weight[query_width:], memory_bias))
            key_BSK, value_BSK = torch.split(both, self.widths[1:], dim=-1)
            key, value = _heads(key_BSK, self.d_key, self.key_norm), _heads(value_BSK, self.d_value)
            if cache is not None:
                cache.memory = key, value
        folded_BTD = x_RTD.reshape(key.shape[0], -1, *x_RTD.shape[1:]).flatten(1, 2)
        query_BTK = finite(product(folded_BTD, weight[:query_width], query_bias))
        query = _heads(query_BTK, self.d_key, self.query_norm)
        return self._attend(query, key, value, mask).view(x_RTD.shape)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, bias: Bias | None = None) -> Tensor:
        drop = self.drop if self.training else 0.0
        reading = _reading.get()
        if reading is not None and reading.module is self:
            reading.weights_BHTS = self._weights(reading.head, query, key, value, mask, bias)
        heads_BHTE = attention(query, key, value, mask, bias, scale=self.scale, softcap=self.softcap, drop=drop)
        concatenated: Tensor = self.out_projection(heads_BHTE.transpose(1, 2).flatten(2))
        return concatenated

    def _weights(
        self, head: int | None, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, bias: Bias | None
    ) -> Tensor:
        if head is not None:
            shared = head // (query.shape[1] // key.shape[1])
            query, key, value = query[:, [head]], key[:, [shared]], value[:, [shared]]
        values = reference_attention(query, key, value, mask, bias, scale=self.scale, softcap=self.softcap)
        return values.weights_BHTS


@dataclass
class Reading:
    """The weights of one attention, with their gradient, once it has been computed; None before."""

    module: MultiHeadAttention
    head: int | None
    weights_BHTS: Tensor | None = None


_reading: ContextVar[Reading | None] = ContextVar("attention reading", default=None)


@contextmanager
def reading(module: MultiHeadAttention, head: int | None = None) -> Iterator[Reading]:
    """Keep the weights [B, 1, T, S] of one head of this module (or [B, H, T, S] of all) that are computed inside.

    They are computed beside the output, which stays as it is, as does the execution of all other attention. Those of
    one head are for scores without a bias that differs from head to head.
    """
    found = Reading(module, head)
    token = _reading.set(found)
    try:
        yield found
    finally:
        _reading.reset(token)


def _heads(x_BTK: Float[Tensor, "B T K"], width: int, norm: nn.Module | None = None) -> Float[Tensor, "B H T E"]:
    """The heads beside each other in `x`, each of this width, as a dimension of their own, and normalised."""
    heads_BHTE = x_BTK.view(*x_BTK.shape[:2], -1, width).transpose(1, 2)
    return heads_BHTE if norm is None else norm(heads_BHTE)
