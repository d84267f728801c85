"""A directory that appears as a whole, as `text.lines.atomic_write` has it for a file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import JobError


@contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """A directory to write into, which takes the place of `directory` when all is written, or of nothing.

    A process that is killed between two names leaves what was there under a hidden one; the next call puts it back.

    Raises:
        JobError: the disk is full or does not let itself be written.
    """
    partial, before = (directory.with_name(f".{directory.name}.{what}") for what in ("partial", "before"))
    try:
        if before.exists() and not directory.exists():  # a run that was killed between two names
            before.rename(directory)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        _take_place(partial, directory, before)
    except OSError as error:
        raise JobError(f"{directory}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _take_place(partial: Path, directory: Path, before: Path) -> None:
    shutil.rmtree(before, ignore_errors=True)
    if directory.exists():
        directory.rename(before)
    try:
        partial.rename(directory)
    except OSError:
        if before.exists():
            before.rename(directory)
        raise
    shutil.rmtree(before, ignore_errors=True)
