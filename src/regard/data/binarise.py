"""From pairs of text to an Arrow file of token ids (see `regard.data.dataset` for the format)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from regard.data.corpus import Pair
from regard.data.dataset import id_type, pair_schema
from regard.errors import JobError, UserError
from regard.text.lines import atomic_write
from regard.text.tokenizer import Tokenizer, TokenizerPair

CHUNK_LINES = 8192
"""Most lines of a record batch. What a chunk holds depends on the input alone, so the file does too."""
CHUNK_CHARACTERS = 2**22


@dataclass
class Skipped:
    """How many pairs were left out for one reason, and the line number of the first."""

    count: int
    first_line: int


@dataclass
class BinariseReport:
    """What went into the file, and what could not."""

    read: int = 0
    pairs: int = 0
    """Pairs in the file."""
    source_tokens: int = 0
    target_tokens: int = 0
    skipped: dict[str, Skipped] = field(default_factory=dict)
    """By reason."""

    def __str__(self) -> str:
        parts = [
            f"{self.pairs:,} of {self.read:,} pairs, "
            f"{self.source_tokens:,} source and {self.target_tokens:,} target tokens"
        ]
        parts += [
            f"skipped {skipped.count:,}: {reason} (first in line {skipped.first_line:,})"
            for reason, skipped in self.skipped.items()
        ]
        return "; ".join(parts)


def binarise(
    pairs: Iterable[Pair],
    tokenizers: TokenizerPair,
    path: Path,
    *,
    processes: int = 1,
    max_length: int = 512,
    progress: Callable[[int], None] | None = None,
) -> BinariseReport:
    """Write the token ids of `pairs` to an Arrow file, which appears at `path` once it is complete.

    A pair with an empty side, or with more than `max_length` tokens on a side, cannot be trained on: it is skipped and
    reported. Memory does not grow with the corpus. `progress` is told the number of lines done so far.

    By itself this process encodes with threads on all cores, which is as quick as other processes on a few cores; on
    many, more `processes` are quicker. They are started afresh, so a script that asks for them needs the usual
    `if __name__ == "__main__":`. The file is the same for any number of them.

    Raises `UserError` when no pair is left, `JobError` when a worker dies or the disk is full.
    """
    schema = pair_schema(tokenizers)
    report = BinariseReport()
    chunks = _encode_all(_chunks(pairs), _Encoder(tokenizers, max_length), processes)
    with closing(chunks), atomic_write(path) as file, pa.ipc.new_file(file, schema) as writer:
        for chunk in chunks:
            _account(report, chunk)
            writer.write_batch(pa.record_batch([_arrow(chunk.source), _arrow(chunk.target)], schema=schema))
            if progress:
                progress(report.read)
        if not report.pairs:
            raise UserError(f"{path}: not written, there is no pair to train on ({report})")
    return report


class _Lists(NamedTuple):
    """Lists of ids as Arrow lays them out: list i is `values[offsets[i] : offsets[i + 1]]`."""

    offsets: NDArray[np.int32]
    values: NDArray[np.unsignedinteger[Any]]


class _Chunk(NamedTuple):
    """Consecutive lines, encoded."""

    lines: int
    source: _Lists
    target: _Lists
    skipped: dict[str, Skipped]
    """First lines count from 1 at the start of the chunk."""


@dataclass(frozen=True)
class _Encoder:
    tokenizers: TokenizerPair
    max_length: int

    def __call__(self, pairs: list[Pair]) -> _Chunk:
        sources = self.tokenizers.source.encode([source for source, _ in pairs])
        targets = self.tokenizers.target.encode([target for _, target in pairs])
        kept: list[int] = []
        skipped: dict[str, Skipped] = {}
        for index, pair in enumerate(pairs):
            reason = self._reason(pair, len(sources[index]), len(targets[index]))
            if reason is None:
                kept.append(index)
            else:
                skipped.setdefault(reason, Skipped(0, index + 1)).count += 1
        return _Chunk(
            len(pairs),
            _pack([sources[index] for index in kept], self.tokenizers.source),
            _pack([targets[index] for index in kept], self.tokenizers.target),
            skipped,
        )

    def _reason(self, pair: Pair, source_length: int, target_length: int) -> str | None:
        """Why a pair cannot be trained on, or None."""
        for side, text, length in zip(("source", "target"), pair, (source_length, target_length), strict=True):
            if length == 0 or not text.strip():
                return f"empty {side}"
            if length > self.max_length:
                return f"{side} longer than {self.max_length} tokens"
        return None


def _pack(lists: list[list[int]], tokenizer: Tokenizer) -> _Lists:
    offsets = np.zeros(len(lists) + 1, dtype=np.int32)
    np.cumsum([len(ids) for ids in lists], out=offsets[1:])
    values = np.fromiter(chain.from_iterable(lists), id_type(tokenizer.size).to_pandas_dtype(), offsets[-1])
    return _Lists(offsets, values)


def _arrow(lists: _Lists) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(lists.offsets), pa.array(lists.values))


def _account(report: BinariseReport, chunk: _Chunk) -> None:
    for reason, skipped in chunk.skipped.items():
        first = report.read + skipped.first_line
        report.skipped.setdefault(reason, Skipped(0, first)).count += skipped.count
    report.read += chunk.lines
    report.pairs += len(chunk.source.offsets) - 1
    report.source_tokens += len(chunk.source.values)
    report.target_tokens += len(chunk.target.values)


def _chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    chunk: list[Pair] = []
    characters = 0
    for pair in pairs:
        chunk.append(pair)
        characters += len(pair[0]) + len(pair[1])
        if len(chunk) == CHUNK_LINES or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _encode_all(chunks: Iterator[list[Pair]], encoder: _Encoder, processes: int) -> Generator[_Chunk]:
    """Encode the chunks in order."""
    if processes == 1:
        yield from map(encoder, chunks)
    else:
        yield from _encode_in_workers(chunks, encoder, processes)


def _encode_in_workers(chunks: Iterator[list[Pair]], encoder: _Encoder, processes: int) -> Generator[_Chunk]:
    context = multiprocessing.get_context("spawn")
    waiting: deque[Future[_Chunk]] = deque()
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        encoder.tokenizers.save(Path(folder))
        pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_start_worker)
        try:
            for chunk in chunks:
                waiting.append(pool.submit(_work, Path(folder), encoder.max_length, chunk))
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
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker waits for work for ever: without this it would outlive a parent that was killed."""
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        os._exit(1)


def _work(tokenizers: Path, max_length: int, chunk: list[Pair]) -> _Chunk:
    return _Encoder(_load(tokenizers), max_length)(chunk)


_load = cache(TokenizerPair.load)
