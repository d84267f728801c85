"""Documents cut into windows, and windows fitted into rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from regard.data.rows import framed
from regard.data.windows import cut, pack

SIZES = st.lists(st.integers(0, 30), max_size=30)
SEEDS = st.none() | st.integers(0, 3)


def generator(seed: int | None) -> np.random.Generator | None:
    return None if seed is None else np.random.default_rng(seed)


def test_a_document_by_hand() -> None:
    windows = cut(np.array([3, 0, 8], np.int32), 4)
    assert windows.documents.tolist() == [0, 2, 2]
    assert windows.starts.tolist() == [0, 0, 4]
    assert windows.lengths.tolist() == [3, 4, 4]


@given(SIZES, st.integers(1, 9), SEEDS)
def test_windows_hold_each_position_once_and_in_order(sizes: list[int], width: int, seed: int | None) -> None:
    windows = cut(np.array(sizes, np.int32), width, generator(seed))
    found = [
        (document, position)
        for document, start, length in zip(windows.documents, windows.starts, windows.lengths, strict=True)
        for position in range(start, start + length)
    ]
    assert found == [(document, position) for document, size in enumerate(sizes) for position in range(size)]
    assert all(1 <= length <= width for length in windows.lengths)
    short = [size for size in sizes if 0 < size <= width]
    assert sum(sizes[document] <= width for document in windows.documents) == len(short)


def test_random_borders_fall_everywhere() -> None:
    random = np.random.default_rng(0)
    first = {int(cut(np.array([100], np.int32), 5, random).lengths[0]) for _ in range(100)}
    assert first == {1, 2, 3, 4, 5}


@given(st.lists(st.integers(1, 9), max_size=60), st.integers(1, 70), SEEDS)
def test_rows_hold_each_window_once_within_the_width(lengths: list[int], pool: int, seed: int | None) -> None:
    sizes = np.array(lengths, np.int32)
    rows = [row.tolist() for row in pack(sizes, 9, pool, generator(seed))]
    assert sorted(window for row in rows for window in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[window] for window in row) <= 9 for row in rows)


def test_the_best_fit_by_hand() -> None:
    """Longest first, each into the fullest row that still takes it."""
    rows = pack(np.array([2, 6, 3, 7, 1, 4], np.int32), 10, 100)
    assert [row.tolist() for row in rows] == [[3, 2], [1, 5], [0, 4]]


def test_little_room_is_left() -> None:
    lengths = np.random.default_rng(0).integers(1, 40, 5000).astype(np.int32)
    rows = pack(lengths, 128, 2**16, np.random.default_rng(1))
    assert lengths.sum() / (128 * len(rows)) > 0.999


@given(st.lists(st.integers(10, 99), max_size=6), st.integers(0, 2), st.integers(0, 2), st.integers(0, 9))
def test_a_frame_is_read_like_the_ids(ids: list[int], begin: int, end: int, start: int) -> None:
    whole = [*range(begin), *ids, *range(5, 5 + end)]
    for stop in range(start, len(whole) + 2):
        read = framed(np.array(ids, np.uint16), tuple(range(begin)), tuple(range(5, 5 + end)), start, stop)
        assert read.tolist() == whole[start:stop]
