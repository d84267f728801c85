"""Directories that appear as a whole, as `text.lines.atomic_write` has it for a file, or that one process has alone."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import JobError, UserError

if sys.platform != "win32":
    import fcntl

log = logging.getLogger("regard")


@contextmanager
def alone(place: Path, doing: str, option: str = "--out") -> Iterator[None]:
    """Refuse a second process in a directory, where two would spoil each other's files. The lock ends with its process.

    Args:
        place: the directory, or a file in it, which is made: network file systems lock no directories.
        doing: says in the message what the other one does, as in "is training here".
        option: of the command, to choose another directory with.

    Raises:
        UserError: there is another process.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(place, os.O_RDONLY if place.is_dir() else os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{place}: another process {doing}; wait, or choose another {option}") from None
        except OSError as error:  # some network file systems know no locks
            log.warning("%s: cannot be locked (%s): start no second process there", place, error.strerror)
        yield
    finally:
        os.close(descriptor)


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
