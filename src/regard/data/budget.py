"""Batches of items of like length, filled up to a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from regard.settings import Settings

Indices = NDArray[np.int32]
Lengths = NDArray[np.int32] | NDArray[np.int64]


class BatchSettings(Settings):
    """How pairs are put together."""

    tokens: int = Field(default=4096, ge=1)
    """Budget of a batch: pairs times positions of its longest side, EOS and padding counted."""
    max_sentences: int | None = Field(default=None, ge=1)
    """Most pairs of a batch; none by default."""
    pool: int = Field(default=2**18, ge=1)
    """So many random pairs at a time are sorted by length and cut into batches."""


class Runs:
    """Batches as runs of one order: batch k holds the items `order[starts[k] : ends[k]]`."""

    def __init__(self, order: Indices, bounds: NDArray[np.int64]) -> None:
        self.order = order
        self.starts, self.ends = bounds[:, 0], bounds[:, 1]

    @classmethod
    def one_by_one(cls, count: int) -> Runs:
        """Each of so many items by itself."""
        each = np.arange(count, dtype=np.int32)
        return cls(each, np.stack((each, each + 1), axis=1).astype(np.int64))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, k: int) -> Indices:
        return self.order[self.starts[k] : self.ends[k]]

    def __iter__(self) -> Iterator[Indices]:
        return map(self.__getitem__, range(len(self)))

    def sums(self, values: Lengths) -> NDArray[np.int64]:
        """The sum of the values of each batch's items."""
        totals = np.concatenate(([0], np.cumsum(values[self.order], dtype=np.int64)))
        sums: NDArray[np.int64] = totals[self.ends] - totals[self.starts]
        return sums

    def padded(self, positions: Lengths) -> int:
        """The positions of all batches together, padding counted, where item i has `positions[i]` itself."""
        by_place = np.argsort(self.starts)
        starts, sizes = self.starts[by_place], (self.ends - self.starts)[by_place]
        return int((np.maximum.reduceat(positions[self.order], starts) * sizes).sum())


def runs_in_order(positions: Lengths, keys: Lengths, settings: BatchSettings) -> Runs:
    """All items by increasing key, cut into batches."""
    order = np.argsort(keys, kind="stable").astype(np.int32)
    return Runs(order, _bounds(list(_cuts(positions[order], settings))))


def shuffled_runs(
    positions: Lengths,
    keys: Lengths,
    settings: BatchSettings,
    random: np.random.Generator,
    items: Indices | None = None,
) -> Runs:
    """Batches of items with like keys, in random order.

    The items are shuffled; each pool of them is sorted by its keys and cut; all batches are shuffled.

    Args:
        positions: what each item takes of a batch's width.
        keys: bring together what belongs together; items with equal keys keep their random order.
        items: which ones, some perhaps several times; by default each once.
    """
    order = np.arange(len(positions), dtype=np.int32) if items is None else items.copy()
    random.shuffle(order)
    cuts = []
    for place in range(0, len(order), settings.pool):
        pool = order[place : place + settings.pool]
        pool[:] = pool[np.argsort(keys[pool], kind="stable")]
        cuts += [(place + start, place + end) for start, end in _cuts(positions[pool], settings)]
    bounds = _bounds(cuts)
    random.shuffle(bounds)
    return Runs(order, bounds)


def _bounds(cuts: list[tuple[int, int]]) -> NDArray[np.int64]:
    return np.array(cuts, dtype=np.int64).reshape(-1, 2)


def _cuts(positions: Lengths, settings: BatchSettings) -> Iterator[tuple[int, int]]:
    """Cut sorted items into runs (start, end), each as long as the budget allows."""
    most = settings.max_sentences or len(positions)
    start = 0
    while start < len(positions):
        window = positions[start : start + min(most, settings.tokens // int(positions[start]))]
        padded = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)
        size = int(np.searchsorted(padded, settings.tokens, side="right"))
        yield start, start + size
        start += size
