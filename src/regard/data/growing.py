"""Parallel files that grow as a long job makes them: nothing half appears, and what was made is not made again.

While the job runs, all is in `.NAME.partial` beside the directory NAME: the two files, and `state.json`, which says how
far they are sound and what job they belong to. At the end it takes the name.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

from regard.data.corpus import Pair
from regard.data.encoding import Skipped
from regard.errors import JobError, UserError
from regard.settings import read_json
from regard.text.directories import alone
from regard.text.lines import atomic_write, encode_line

FILES = ("source.txt", "target.txt")
STATE = "state.json"


@dataclass
class Made:
    """How far a job is."""

    read: int = 0
    """Lines of its input that are dealt with."""
    written: int = 0
    """Pairs made of them."""
    left_out: dict[str, Skipped] = field(default_factory=dict)
    """The others, by reason."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From what `asdict` gave."""
        left_out = {reason: Skipped(**each) for reason, each in values["left_out"].items()}
        return cls(values["read"], values["written"], left_out)

    def __str__(self) -> str:
        reasons = [
            f"left out {each.count:,}: {reason} (first in line {each.first_line:,})"
            for reason, each in self.left_out.items()
        ]
        return "; ".join([f"{self.written:,} pairs of {self.read:,} lines", *reasons])


class PairWriter:
    """Writes what becomes of each line of an input, in order."""

    def __init__(self, directory: Path, files: tuple[BinaryIO, BinaryIO], job: Mapping[str, Any], made: Made) -> None:
        self.made = made
        """What an earlier sitting did is in it: so many lines of the input are not read again."""
        self._directory, self._files, self._job = directory, files, job

    def add(self, outcome: Pair | str) -> None:
        """Write the pair that a line gave, or note why it gave none."""
        self.made.read += 1
        if isinstance(outcome, str):
            self.made.left_out.setdefault(outcome, Skipped(0, self.made.read)).count += 1
            return
        lines = [encode_line(text) for text in outcome]
        for file, line in zip(self._files, lines, strict=True):
            file.write(line)
        self.made.written += 1

    def save(self) -> None:
        """Bring all so far to the disk, for a later sitting to go on from."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
        state = {"job": self._job, "bytes": [file.tell() for file in self._files], "made": asdict(self.made)}
        with atomic_write(self._directory / STATE) as file:
            file.write(json.dumps(state, indent=1).encode())


@contextmanager
def growing_pairs(directory: Path, job: Mapping[str, Any]) -> Iterator[PairWriter]:
    """Write `source.txt` and `target.txt`, which appear in `directory` when the block ends well.

    If it does not, what was saved stays, and the next call with the same job goes on from there.

    Args:
        directory: does not exist yet.
        job: what decides each line, as JSON has it.

    Raises:
        UserError: the directory is there already, cannot be made, was begun by another job, or is being written.
        JobError: the disk is full.
    """
    partial = directory.with_name(f".{directory.name}.partial")
    if directory.exists():
        raise UserError(f"{directory}: is there already; choose another --out, or remove it first")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        with alone(partial, "is writing here"):
            try:
                made, sizes = _begun(partial, job, directory)
                with _opened(partial / FILES[0], sizes[0]) as source, _opened(partial / FILES[1], sizes[1]) as target:
                    writer = PairWriter(partial, (source, target), job, made)
                    yield writer
                    writer.save()
                (partial / STATE).unlink()
                partial.rename(directory)
            finally:
                if partial.is_dir() and not (partial / STATE).exists():  # nothing that a later sitting could use
                    shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise JobError(f"{directory}: could not be written: {error.strerror}; make room and run again") from None
        raise UserError(f"{directory}: cannot be written: {error.strerror or error}; choose another --out") from None


def _opened(path: Path, size: int) -> BinaryIO:
    """A file to append to, cut to its sound bytes."""
    path.touch()
    os.truncate(path, size)
    return path.open("ab")


def _begun(partial: Path, job: Mapping[str, Any], directory: Path) -> tuple[Made, tuple[int, int]]:
    """What an earlier sitting made, and the bytes of its files that are sound."""
    state = read_json(partial / STATE, missing={})
    if not state:
        return Made(), (0, 0)
    if state.get("job") != job:
        raise UserError(
            f"{partial}: holds part of another job, of another text, model or other options; finish that one, "
            "remove it, or choose another --out"
        )
    try:
        source, target = (int(size) for size in state["bytes"])
        made = Made.of(state["made"])
        if any((partial / name).stat().st_size < size for name, size in zip(FILES, (source, target), strict=True)):
            raise ValueError("a file is too short")
    except (KeyError, TypeError, ValueError, OSError):
        raise UserError(f"{partial}: is damaged; remove it to begin {directory.name} anew") from None
    return made, (source, target)
