"""Windows of what has arrived, batches of like length."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.search.windows import batches, windows


@given(st.integers(0, 30), st.integers(1, 7), st.sampled_from([None, 5.0]))
def test_every_item_once_and_in_order(count, size, patience):
    found = list(windows(iter(range(count)), size, patience))
    assert [item for window in found for item in window] == list(range(count))
    assert all(len(window) == size for window in found[:-1])
    assert all(found)


def test_what_has_arrived_is_given_out_before_more_comes():
    answered = threading.Event()

    def typing() -> Iterator[str]:
        yield "first"
        assert answered.wait(timeout=20), "the first line was held back until the second came"
        yield "second"

    arriving = windows(typing(), size=100, patience=0.01)
    assert next(arriving) == ["first"]
    answered.set()
    assert list(arriving) == [["second"]]


@pytest.mark.parametrize("patience", [None, 5.0])
def test_an_error_of_the_input_comes_after_what_stood_before_it(patience):
    def failing() -> Iterator[int]:
        yield from range(5)
        raise RuntimeError("line 6 is bad")

    found = windows(failing(), 3, patience)
    assert [next(found), next(found)] == [[0, 1, 2], [3, 4]]
    with pytest.raises(RuntimeError, match="line 6 is bad"):
        next(found)


def test_an_abandoned_stream_leaves_no_thread_behind():
    def endless() -> Iterator[int]:
        while True:
            yield 0

    before = set(threading.enumerate())
    stream = windows(endless(), 4, patience=0.01)
    next(stream)
    (reader,) = set(threading.enumerate()) - before
    stream.close()
    reader.join(timeout=20)
    assert not reader.is_alive()


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 120))
def test_batches_hold_each_index_once_within_the_budget(lengths, budget):
    found = list(batches(lengths, budget))
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    for batch in found:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or len(batch) * longest <= budget
    for batch, following in pairwise(found):
        assert min(lengths[index] for index in batch) >= max(lengths[index] for index in following)
        longest = max(lengths[index] for index in batch)
        assert (len(batch) + 1) * longest > budget, "there was room for another"
