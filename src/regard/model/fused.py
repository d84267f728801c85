"""Fused executions of attention: the mathematics of `reference_attention`, without all scores in memory.

* whole: torch's scaled dot-product attention (SDPA), for no mask, a causal one, or one of padding;
* flex: FlexAttention, compiled, for masks by rule, biases by distance and soft-capped scores on a GPU;
* blocks: the same there where FlexAttention is slow or absent (CPUs): SDPA, or the plain formula where scores are
  soft-capped, for so many queries at a time, over the keys that any of them may see.

Shapes: B batch, H query heads, G key and value heads, S key positions, T query positions, E width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import cast
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from regard.model.masks import Mask, PlaceMask
from regard.model.positions import Bias, PlaceBias
from regard.model.reference import reference_attention

BLOCK_SCORES = 2**21
"""So many scores of a head are held at a time."""
EDGE = 512
"""Ranges of keys begin and end at multiples of this: freed memory of slightly different sizes is not used again."""


def fused_attention(
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
    """Attention by the fused execution that fits; arguments as `reference_attention`."""
    by_rule = isinstance(mask, PlaceMask) and not mask.is_causal
    inputs = query_BHTE, key_BGSE, value_BGSE, mask, bias
    if not (by_rule or bias is not None or softcap is not None or _draws_itself(query_BHTE, drop)):
        return whole(*inputs, scale=scale, drop=drop)
    if flex_fits(query_BHTE, mask, bias, drop):
        return flex(*inputs, scale=scale, softcap=softcap)
    return blocks(*inputs, scale=scale, softcap=softcap, drop=drop)


def whole(
    query_BHTE: Float[Tensor, "B H T E"],
    key_BGSE: Float[Tensor, "B G S E"],
    value_BGSE: Float[Tensor, "B G S Ev"],
    mask: Mask | None = None,
    bias: Bias | None = None,
    *,
    scale: float | None = None,
    drop: float = 0.0,
) -> Float[Tensor, "B H T Ev"]:
    """All queries at once through `torch.nn.functional.scaled_dot_product_attention`."""
    causal = mask is not None and mask.is_causal and bias is None
    added = None if bias is None else bias.dense_BHTS
    if mask is not None and not causal:
        added = mask.bias_BHTS if added is None else added + mask.bias_BHTS
    output_BHTE = functional.scaled_dot_product_attention(
        query_BHTE,
        key_BGSE,
        value_BGSE,
        None if added is None else added.to(query_BHTE.dtype),
        dropout_p=drop,
        is_causal=causal,
        scale=scale,
        enable_gqa=query_BHTE.shape[1] != key_BGSE.shape[1],
    )
    if mask is not None and mask.empty_BHT1 is not None:
        output_BHTE = output_BHTE.masked_fill(mask.empty_BHT1, 0.0)
    return output_BHTE


def blocks(
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
    """Some queries at a time, over the keys that any of them may see."""
    queries, keys = query_BHTE.shape[2], key_BGSE.shape[2]
    rows = max(1, BLOCK_SCORES // keys)
    if rows >= queries:
        return _block(query_BHTE, key_BGSE, value_BGSE, mask, bias, scale, softcap, drop)
    outputs = []
    # Without gradients parts go where they belong: kept one by one they would leave holes between what is freed.
    output_BHTE = None if torch.is_grad_enabled() else query_BHTE.new_empty(*query_BHTE.shape[:3], value_BGSE.shape[3])
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        part_mask = None if mask is None else mask.rows(start, stop)
        part_bias = None if bias is None else bias.rows(start, stop)
        query = query_BHTE[:, :, start:stop]
        part = _block(query, key_BGSE, value_BGSE, part_mask, part_bias, scale, softcap, drop)
        if output_BHTE is None:
            outputs.append(part)
        else:
            output_BHTE[:, :, start:stop] = part
    return torch.cat(outputs, dim=2) if output_BHTE is None else output_BHTE


def _block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None,
    bias: Bias | None,
    scale: float | None,
    softcap: float | None,
    drop: float,
) -> Tensor:
    if mask is not None and mask.allowed_BHTS.shape[2] > 1:
        seen = _seen(mask)
        key, value, mask = key[:, :, seen], value[:, :, seen], mask.columns(seen)
        bias = bias if bias is None else bias.columns(seen)
    if softcap is None and not _draws_itself(query, drop):
        return whole(query, key, value, mask, bias, scale=scale, drop=drop)
    return reference_attention(query, key, value, mask, bias, scale=scale, softcap=softcap, drop=drop).output_BHTE


def _draws_itself(query: Tensor, drop: float) -> bool:
    """Whether weights are dropped by our own dropout: torch's kernel cannot be told where to draw from."""
    return drop > 0.0 and query.device.type == "cpu"


def _seen(mask: Mask) -> slice | Tensor:
    """The keys that any query may attend to, and some more where that makes them a range; at least one."""
    columns = mask.allowed_BHTS.flatten(0, 2).any(dim=0).nonzero().squeeze(1)
    if len(columns) == 0:
        return slice(0, 1)
    first, last = int(columns[0]) // EDGE * EDGE, -(-(int(columns[-1]) + 1) // EDGE) * EDGE
    return columns if len(columns) < (last - first) // 2 else slice(first, last)


def flex(
    query_BHTE: Float[Tensor, "B H T E"],
    key_BGSE: Float[Tensor, "B G S E"],
    value_BGSE: Float[Tensor, "B G S Ev"],
    mask: Mask | None = None,
    bias: Bias | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    compiled: bool = True,
) -> Float[Tensor, "B H T Ev"]:
    """All queries at once through FlexAttention, which skips blocks of hidden keys and computes biases as it goes.

    Uncompiled it holds all scores: for comparison only.
    """
    kernel = _compiled_flex() if compiled else cast(Callable[..., Tensor], flex_attention)
    return kernel(
        query_BHTE,
        key_BGSE,
        value_BGSE,
        score_mod=_score_function(bias, softcap),
        block_mask=None if mask is None else _block_mask(mask, query_BHTE, key_BGSE, compiled),
        scale=scale,
        enable_gqa=query_BHTE.shape[1] != key_BGSE.shape[1],
    )


def flex_fits(query_BHTE: Tensor, mask: Mask | None, bias: Bias | None, drop: float) -> bool:
    """Whether FlexAttention can do this, and is the fastest for it: on CPUs it is not (benchmarks/attention.py)."""
    several = query_BHTE.is_cuda and query_BHTE.shape[2] >= 128
    return several and drop == 0.0 and (bias is None or isinstance(bias, PlaceBias))


@cache
def _compiled_flex() -> Callable[..., Tensor]:
    return torch.compile(flex_attention)


_BLOCK_MASKS: WeakKeyDictionary[Mask, BlockMask] = WeakKeyDictionary()


def _block_mask(mask: Mask, query_BHTE: Tensor, key_BGSE: Tensor, compiled: bool) -> BlockMask:
    """Which blocks of keys each block of queries sees: the layers of a stack share a mask, and this with it."""
    if mask not in _BLOCK_MASKS:
        batch, heads, queries, _ = query_BHTE.shape
        lengths = queries, key_BGSE.shape[2]
        _BLOCK_MASKS[mask] = create_block_mask(
            _mask_function(mask), batch, heads, *lengths, device=str(query_BHTE.device), _compile=compiled
        )
    return _BLOCK_MASKS[mask]


# Functions of the numbers of row, head, query and key. The kernel counts their arguments, which only lambdas show when
# types are checked at run time. None holds the mask itself: block masks hold them, and live as long as their mask.


def _mask_function(mask: Mask) -> Callable[..., Tensor]:
    """Whether a query sees a key."""
    if not isinstance(mask, PlaceMask):
        return _entry(mask.allowed_BHTS)
    rule, queries, keys = mask.rule, mask.queries, mask.keys
    return lambda b, h, q, k: rule(queries.at(b, q), keys.at(b, k))


def _score_function(bias: Bias | None, softcap: float | None) -> Callable[..., Tensor] | None:
    """A score as it is bent, and with what positions add."""
    if bias is None:
        return None if softcap is None else lambda score, b, h, q, k: _bent(score, softcap)
    added = _entry(bias.dense_BHTS) if not isinstance(bias, PlaceBias) else _by_distance(bias)
    return lambda score, b, h, q, k: _bent(score, softcap) + added(b, h, q, k)


def _by_distance(bias: PlaceBias) -> Callable[..., Tensor]:
    queries, keys, added = bias.queries, bias.keys, bias.scheme.bias
    return lambda b, h, q, k: added(keys.at(b, k).position - queries.at(b, q).position, h)


def _entry(tensor_BHTS: Tensor) -> Callable[..., Tensor]:
    """One value of a tensor, any of whose dimensions but the last may be 1 in place of many."""
    rows, heads, queries, _ = (size > 1 for size in tensor_BHTS.shape)
    return lambda b, h, q, k: tensor_BHTS[b if rows else 0, h if heads else 0, q if queries else 0, k]


def _bent(score: Tensor, softcap: float | None) -> Tensor:
    return score if softcap is None else softcap * torch.tanh(score / softcap)
