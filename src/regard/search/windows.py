"""Many inputs at once: windows of what has arrived, batches of like length in a window, threads that share them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from queue import Empty, Queue
from threading import Event, Thread
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class _End:
    """What the reading thread sends last, with the error that stopped it, if one did."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def windows(items: Iterable[T], size: int, patience: float | None = None) -> Iterator[list[T]]:
    """Cut `items` into lists of at most `size`.

    With `patience`, a list is given out as soon as no further item has come for so many seconds, so that a line typed
    is answered at once; `items` is then read ahead by a thread, at most `size` items. Without it, all lists but the
    last are full. An error of `items` is raised after what came before it has been given out.
    """
    if patience is not None:
        yield from _arriving(items, size, patience)
        return
    iterator = iter(items)
    failure: list[Exception] = []
    while window := list(_until_failure(islice(iterator, size), failure)):
        yield window
        if failure:
            break
    if failure:
        raise failure[0]


def _until_failure(items: Iterator[T], failure: list[Exception]) -> Iterator[T]:
    try:
        yield from items
    except Exception as error:
        failure.append(error)


def _arriving(items: Iterable[T], size: int, patience: float) -> Iterator[list[T]]:
    arrived: Queue[T | _End] = Queue(maxsize=size)
    unwanted = Event()

    def read() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                arrived.put(item)
                if unwanted.is_set():
                    return
        except BaseException as raised:  # handed over to the thread that asked
            error = raised
        arrived.put(_End(error))

    Thread(target=read, daemon=True, name="regard input").start()
    end: _End | None = None
    try:
        while end is None:
            window: list[T] = []
            while len(window) < size and end is None:
                try:
                    item = arrived.get(timeout=patience if window else None)
                except Empty:
                    break
                if isinstance(item, _End):
                    end = item
                else:
                    window.append(item)
            if window:
                yield window
        if end.error is not None:
            raise end.error
    finally:
        unwanted.set()
        while not arrived.empty():  # a put that waits for room goes through, and its thread ends
            arrived.get_nowait()


def batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices of `lengths` in batches of like length, the longest first.

    The members of a batch times its longest length stay within `budget`, except where a single one exceeds it.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def side_by_side(function: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[R]:
    """`map(function, items)` in order, by several threads.

    On a CPU, several batches at once with one torch thread each (`torch.set_num_threads(1)`) go faster than one batch
    with several: the threads of one operation wait for each other, the more so the busier the machine is.
    """
    if workers == 1 or len(items) < 2:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(function, items)
