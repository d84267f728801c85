"""Scaled dot-product attention of short sequences by the compiled library, forward and back.

`model/reference.py` says the mathematics.

Shapes: B batch, H heads, S key positions, T query positions, E width of a head, of values Ev.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from regard.native.library import check, library, serves

WIDTH = 16
"""Widths of heads have to be multiples of it: numbers in the widest vector."""


class _Shape(ctypes.Structure):
    """`AttentionShape` of `short_attention.h`."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "heads", "queries", "keys", "d_key", "d_value")),
        *((name, ctypes.c_int64 * 3) for name in ("query", "key", "value", "output")),
        ("mask", ctypes.c_int64 * 2),
        ("scale", ctypes.c_float),
    ]


def fits(query_BHTE: Tensor, key_BHSE: Tensor, value_BHSE: Tensor) -> bool:
    """Whether the library is there and can do this; the lengths are the caller's choice."""
    tensors = query_BHTE, key_BHSE, value_BHSE
    return (
        query_BHTE.shape[1] == key_BHSE.shape[1]
        and all(each.shape[-1] % WIDTH == 0 and each.stride(-1) == 1 for each in tensors)
        and min(query_BHTE.shape[0], query_BHTE.shape[2], key_BHSE.shape[2]) > 0
        and serves(*tensors)
    )


def attend(
    query_BHTE: Float[Tensor, "B H T E"],
    key_BHSE: Float[Tensor, "B H S E"],
    value_BHSE: Float[Tensor, "B H S Ev"],
    bias_BHTS: Float[Tensor, "#B 1 #T #S"] | None,
    scale: float,
) -> tuple[Float[Tensor, "B H T Ev"], Float[Tensor, "B H T filled"]]:
    """Output, in memory [B, T, H, Ev], and weights, whose rows are filled up with zeros to whole vectors.

    `bias_BHTS` is what is added to the scores; every query sees a key.
    """
    loaded = library()
    assert loaded is not None
    assert fits(query_BHTE, key_BHSE, value_BHSE)
    assert bias_BHTS is None or bias_BHTS.dtype == torch.float32
    batch, heads, queries, _ = query_BHTE.shape
    keys = key_BHSE.shape[2]
    output_BTHE = query_BHTE.new_empty(batch, queries, heads, value_BHSE.shape[3])
    weights = query_BHTE.new_empty(batch, heads, queries, -(-keys // loaded.regard_lanes()) * loaded.regard_lanes())
    if bias_BHTS is not None:
        if bias_BHTS.shape[-1] != keys or bias_BHTS.stride(-1) != 1:  # its rows are read as they stand in memory
            bias_BHTS = bias_BHTS.expand(*bias_BHTS.shape[:3], keys).contiguous()
        bias_BHTS = bias_BHTS.expand(batch, 1, queries, keys)
    check(
        loaded.regard_attention(
            _shape(query_BHTE, key_BHSE, value_BHSE, output_BTHE, bias_BHTS, scale),
            query_BHTE.data_ptr(),
            key_BHSE.data_ptr(),
            value_BHSE.data_ptr(),
            None if bias_BHTS is None else bias_BHTS.data_ptr(),
            weights.data_ptr(),
            output_BTHE.data_ptr(),
            _threads(query_BHTE, key_BHSE),
        ),
        loaded,
    )
    return output_BTHE.transpose(1, 2), weights


def attend_back(
    query_BHTE: Tensor, key_BHSE: Tensor, value_BHSE: Tensor, weights: Tensor, scale: float, gradient_BHTE: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, from that of the output and the weights that `attend` gave."""
    loaded = library()
    assert loaded is not None
    gradient_BTHE = gradient_BHTE.transpose(1, 2)
    if gradient_BTHE.stride(-1) != 1:
        gradient_BTHE = gradient_BTHE.contiguous()
    inputs = query_BHTE, key_BHSE, value_BHSE
    gradients = [each.new_empty(*(each.shape[i] for i in (0, 2, 1, 3))) for each in inputs]
    check(
        loaded.regard_attention_back(
            _shape(*inputs, gradient_BTHE, None, scale),
            *(each.data_ptr() for each in (*inputs, weights, gradient_BTHE, *gradients)),
            _threads(query_BHTE, key_BHSE),
        ),
        loaded,
    )
    to_query, to_key, to_value = (each.transpose(1, 2) for each in gradients)
    return to_query, to_key, to_value


def _threads(query_BHTE: Tensor, key_BHSE: Tensor) -> int:
    """Torch's number, as far as there is work for them: to start one takes as long as a million multiplications."""
    return min(torch.get_num_threads(), 1 + query_BHTE.numel() * key_BHSE.shape[2] // 2**21)


def _shape(query: Tensor, key: Tensor, value: Tensor, output_BTHE: Tensor, bias: Tensor | None, scale: float) -> object:
    batch, queries, heads, _ = output_BTHE.stride()
    strides = (*(each.stride()[:3] for each in (query, key, value)), (batch, heads, queries))
    mask = (0, 0) if bias is None else (bias.stride(0), bias.stride(2))
    return _kept_shape((*query.shape[:3], *key.shape[2:], value.shape[3]), strides, mask, scale)


@lru_cache(maxsize=4096)
def _kept_shape(
    sizes: tuple[int, ...], strides: tuple[tuple[int, ...], ...], mask: tuple[int, int], scale: float
) -> object:
    """The layers of a model ask for the same one again."""
    places = [(ctypes.c_int64 * 3)(*each) for each in strides]
    return ctypes.byref(_Shape(*sizes, *places, (ctypes.c_int64 * 2)(*mask), scale))
