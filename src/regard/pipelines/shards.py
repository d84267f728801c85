"""A text file in shards of many lines, each of which is read by itself as it would be in the whole file."""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from regard.errors import JobError, UserError
from regard.text.lines import GZIP_MAGIC, read_stream

BLOCK = 1 << 20
"""Bytes of a line that are looked at together when a file is cut."""


@dataclass(frozen=True)
class Shard:
    """Lines of a file, in a row."""

    number: int
    """From 0."""
    begin: int
    """The first of its bytes."""
    end: int
    """The byte after its last one."""
    first_line: int
    """The number of its first line, from 1."""
    lines: int
    checksum: int
    """CRC-32 of its bytes."""


@dataclass(frozen=True)
class Cut:
    """A file, cut."""

    shards: tuple[Shard, ...]
    digest: str
    """SHA-256 of the whole file."""

    @property
    def lines(self) -> int:
        """So many lines are in all shards."""
        return sum(shard.lines for shard in self.shards)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.shards[-1].end if self.shards else 0


def cut(path: Path, lines: int) -> Cut:
    """Cut a file after every so many lines. It is read once, and no more than a block of it is held.

    Raises:
        UserError: the file cannot be read, or is packed: nobody can begin in the middle of a gzip file.
    """
    shards: list[Shard] = []
    digest = hashlib.sha256()
    begin = end = checksum = seen = 0
    line = 1
    whole = True  # whether the last line has ended
    with _opened(path) as file:
        while piece := file.readline(BLOCK):
            digest.update(piece)
            checksum = zlib.crc32(piece, checksum)
            end += len(piece)
            whole = piece.endswith(b"\n")
            seen += whole
            if seen == lines:
                shards.append(Shard(len(shards), begin, end, line, seen, checksum))
                begin, line, checksum, seen = end, line + seen, 0, 0
    if end > begin:
        shards.append(Shard(len(shards), begin, end, line, seen + (not whole), checksum))
    return Cut(tuple(shards), digest.hexdigest())


def read_shard(path: Path, shard: Shard, name: str, bad: Literal["error", "replace"] = "error") -> Iterator[str]:
    """The lines of a shard, by the rules of `regard.text.lines.read_lines`.

    Args:
        path: the file that was cut.
        name: stands in messages for the path, before the number of the line in the whole file.
        bad: what to do with bytes that are not UTF-8, as for `read_lines`.

    Raises:
        UserError: the file cannot be read, or for bad bytes.
        JobError: this is not what was cut.
    """
    with _opened(path) as file:
        file.seek(shard.begin)
        raw = file.read(shard.end - shard.begin)
    if zlib.crc32(raw) != shard.checksum:
        raise JobError(
            f"{name}, from line {shard.first_line} on: is not what it was; leave the file as it is meanwhile"
        )
    yield from read_stream(io.BytesIO(raw), name, bad, shard.first_line)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            if file.peek(2)[:2] == GZIP_MAGIC:
                raise UserError(
                    f"{path}: is packed, and cannot be read from the middle; unpack it first: gzip -dk {path}"
                )
            yield file
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
