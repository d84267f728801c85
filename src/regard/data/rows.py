"""Rows of ids as tensors: what stands around a text, and the padding after it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.arrow import Ids


def padded(lines: Sequence[Ids], begin: tuple[int, ...], end: tuple[int, ...], padding: int) -> tuple[Tensor, Tensor]:
    """Begin, line, end and padding as a row of ids for each line, and which of them are not padding."""
    lengths = np.array([len(line) for line in lines])[:, None]
    positions = np.arange(-len(begin), lengths.max() + len(end))
    ids = np.full((len(lines), len(positions)), padding, dtype=np.int64)
    ids[:, : len(begin)] = begin
    ids[(positions >= 0) & (positions < lengths)] = np.concatenate(lines)
    for place, number in enumerate(end):
        ids[positions == lengths + place] = number
    return torch.from_numpy(ids), torch.from_numpy(positions < lengths + len(end))


def framed(ids: Ids, begin: tuple[int, ...], end: tuple[int, ...], start: int, stop: int) -> NDArray[np.int64]:
    """The positions from `start` to `stop` of a document with `begin` before and `end` after its ids."""
    offset, after = len(begin), len(begin) + len(ids)
    inner = ids[max(start - offset, 0) : max(stop - offset, 0)]
    tail = end[max(start - after, 0) : max(stop - after, 0)]
    return np.concatenate((begin[start:stop], inner, tail)).astype(np.int64)
