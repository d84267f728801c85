"""Documents cut into windows, and windows put side by side into rows."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.data.budget import Indices, Lengths, Runs


@dataclass(frozen=True, eq=False)
class Windows:
    """Window w holds the positions `starts[w]` to `starts[w] + lengths[w]` of document `documents[w]`."""

    documents: NDArray[np.int32]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.documents)


def cut(sizes: Lengths, width: int, random: np.random.Generator | None = None) -> Windows:
    """Cut documents of so many positions into consecutive windows of at most `width`; each position is in one of them.

    With `random`, the first window of a document that is too long for one is cut short at random, so that its borders
    fall elsewhere each time.
    """
    missing = np.zeros(len(sizes), dtype=np.int64)
    if random is not None:
        long = sizes > width
        missing[long] = random.integers(0, width, np.count_nonzero(long))
    counts = -(-(sizes + missing) // width)
    documents = np.repeat(np.arange(len(sizes), dtype=np.int32), counts)
    number = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    ends = (number + 1) * width - missing[documents]
    starts = np.maximum(ends - width, 0)
    lengths = np.minimum(ends, sizes[documents]) - starts
    return Windows(documents, starts, lengths.astype(np.int32))


def pack(lengths: Lengths, width: int, pool: int, random: np.random.Generator | None = None) -> Runs:
    """Rows of at most `width` positions, which hold each window once: row r holds the windows `rows[r]`.

    Best fit, longest first (Ding et al. 2024, arXiv 2404.10830), among `pool` windows at a time. With `random`, the
    windows of a pool and the order of the rows are random.
    """
    order = np.arange(len(lengths), dtype=np.int32)
    if random is not None:
        random.shuffle(order)
    packed: list[Indices] = []
    for place in range(0, len(order), pool):
        chosen = order[place : place + pool]
        packed += [chosen[row] for row in _best_fit(lengths[chosen], width)]
    ends = np.cumsum([len(row) for row in packed], dtype=np.int64)
    bounds = np.stack((np.concatenate(([0], ends[:-1])), ends), axis=1) if packed else np.empty((0, 2), np.int64)
    if random is not None:
        random.shuffle(bounds)
    return Runs(np.concatenate([*packed, np.empty(0, np.int32)]), bounds)


def _best_fit(lengths: Lengths, width: int) -> list[list[int]]:
    """Put each window, longest first, into the row that it leaves the least room in."""
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(width + 1)]
    rooms: list[int] = []  # those that some row has, in order
    for window in np.argsort(-lengths.astype(np.int64), kind="stable").tolist():
        length = int(lengths[window])
        place = bisect_left(rooms, length)
        if place == len(rooms):
            row, room = len(rows), width
            rows.append([])
        else:
            room = rooms[place]
            row = by_room[room].pop()
            if not by_room[room]:
                del rooms[place]
        rows[row].append(window)
        left = room - length
        if not by_room[left]:
            insort(rooms, left)
        by_room[left].append(row)
    return rows
