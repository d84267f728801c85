"""Rows of text to rows of token ids: in order, in bounded memory, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from regard.data.arrow import id_type
from regard.errors import JobError
from regard.text.tokenizer import Tokenizer

T = TypeVar("T")

CHUNK_ROWS = 8192
"""Most rows of a record batch. What a chunk holds depends on the input alone, so the file does too."""
CHUNK_CHARACTERS = 2**22

Row = tuple[str, ...]
"""A text for each column."""


@dataclass
class Skipped:
    """How many rows were left out for one reason, and the number of the first."""

    count: int
    first_line: int


class PackedLists(NamedTuple):
    """Lists of ids as Arrow lays them out: list i is `values[offsets[i] : offsets[i + 1]]`."""

    offsets: NDArray[np.int32]
    values: NDArray[Any]

    @classmethod
    def of(cls, lists: list[list[int]], dtype: Any) -> PackedLists:
        offsets = np.zeros(len(lists) + 1, dtype=np.int32)
        np.cumsum([len(ids) for ids in lists], out=offsets[1:])
        return cls(offsets, np.fromiter(chain.from_iterable(lists), dtype, offsets[-1]))

    def arrow(self) -> pa.ListArray:
        return pa.ListArray.from_arrays(pa.array(self.offsets), pa.array(self.values))


class Encoded(NamedTuple):
    """Consecutive rows, encoded."""

    rows: int
    columns: tuple[PackedLists, ...]
    skipped: dict[str, Skipped]
    """By reason; the first lines count from 1 at the start of the chunk."""


@dataclass(frozen=True)
class Encoder:
    """Encodes chunks of rows, and leaves out the rows that cannot be used."""

    names: tuple[str, ...]
    """What the columns are called in reasons."""
    tokenizers: tuple[Tokenizer, ...]
    """One for each column."""
    max_length: int | None = None
    """Rows with more tokens in a column are left out."""
    first: tuple[int, ...] = ()
    """Ids before those of the first column of each row."""

    def __call__(self, rows: list[Row]) -> Encoded:
        columns = self._columns(rows)
        kept: list[int] = []
        skipped: dict[str, Skipped] = {}
        for index, row in enumerate(rows):
            reason = self._reason(row, [len(column[index]) for column in columns])
            if reason is None:
                kept.append(index)
            else:
                skipped.setdefault(reason, Skipped(0, index + 1)).count += 1
        packed = (
            PackedLists.of([column[index] for index in kept], id_type(tokenizer.size).to_pandas_dtype())
            for column, tokenizer in zip(columns, self.tokenizers, strict=True)
        )
        return Encoded(len(rows), tuple(packed), skipped)

    def keeps(self, rows: list[Row]) -> list[bool]:
        """Which rows are not left out."""
        columns = self._columns(rows)
        lengths = ([len(column[index]) for column in columns] for index in range(len(rows)))
        return [self._reason(row, each) is None for row, each in zip(rows, lengths, strict=True)]

    def _columns(self, rows: list[Row]) -> list[list[list[int]]]:
        columns = [tokenizer.encode([row[index] for row in rows]) for index, tokenizer in enumerate(self.tokenizers)]
        if self.first:
            columns[0] = [[*self.first, *ids] for ids in columns[0]]
        return columns

    def _reason(self, row: Row, lengths: list[int]) -> str | None:
        """Why a row cannot be used, or None."""
        for name, text, length in zip(self.names, row, lengths, strict=True):
            if length == 0 or not text.strip():
                return f"empty {name}"
            if self.max_length is not None and length > self.max_length:
                return f"{name} longer than {self.max_length} tokens"
        return None


def encode_all(rows: Iterable[Row], encoder: Encoder, processes: int) -> Generator[Encoded]:
    """Encode the rows in order, chunk by chunk.

    By itself this process encodes with threads on all cores; further ones are started afresh and end with this one.
    Raises `JobError` when one of them dies.
    """
    if processes == 1:
        yield from map(encoder, _chunks(rows))
    else:
        yield from _encode_in_workers(_chunks(rows), encoder, processes)


def in_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, the last one perhaps shorter."""
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    chunk: list[Row] = []
    characters = 0
    for row in rows:
        chunk.append(row)
        characters += sum(map(len, row))
        if len(chunk) == CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _encode_in_workers(chunks: Iterator[list[Row]], encoder: Encoder, processes: int) -> Generator[Encoded]:
    context = multiprocessing.get_context("spawn")
    waiting: deque[Future[Encoded]] = deque()
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        paths = tuple(Path(folder) / f"{index}.json" for index in range(len(encoder.tokenizers)))
        for path, tokenizer in zip(paths, encoder.tokenizers, strict=True):
            tokenizer.save(path)
        pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_start_worker)
        try:
            for chunk in chunks:
                waiting.append(pool.submit(_work, paths, encoder.names, encoder.max_length, encoder.first, chunk))
                if len(waiting) > 2 * processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise JobError(
                "a worker process of the binarisation died: out of memory, or started from a script without "
                "'if __name__ == \"__main__\":'; fewer processes need less memory, and 1 needs no other process"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """For a thread of a worker, which would otherwise outlive a parent that was killed."""
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        os._exit(1)


def _work(
    paths: tuple[Path, ...], names: tuple[str, ...], max_length: int | None, first: tuple[int, ...], chunk: list[Row]
) -> Encoded:
    return Encoder(names, tuple(map(_load, paths)), max_length, first)(chunk)


_load = cache(Tokenizer.load)
