"""Lines in and out of a command: arguments, standard input, files and standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from regard.errors import JobError, UserError
from regard.text.lines import atomic_write, encode_line, one_line, read_stream


def given_text(argument: str) -> str:
    """An argument as the UTF-8 text that was typed, also where the locale made Python take it for something else."""
    return os.fsencode(argument).decode("utf-8", "replace")


def keep_apart(output: Path | None, *sources: Path | None) -> None:
    """Raises `UserError` if a file that is read would be written over: its text would be gone."""
    for source in sources:
        if source is not None and output is not None and output.is_file() and _same(source, output):
            raise UserError(f"--output {output}: is what is read, {source}; choose another file, to keep that text")


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # whoever reads it, says what is wrong
        return False


def standard_input() -> Iterator[str]:
    """The lines of standard input as they arrive. Bytes that are not UTF-8 become U+FFFD, with a warning.

    It is read through an object of its own: at the end of the program, Python would wait for `sys.stdin` while a
    thread still reads from it.
    """
    return read_stream(open(0, "rb", closefd=False), "standard input", bad="replace")


@contextmanager
def line_writer(path: Path | None, draft: Path | None = None) -> Iterator[Callable[[str], None]]:
    """A function that writes a line of text: to a file that appears when all is well, or at once to standard output.

    `draft` is what `atomic_write` has it for.
    """
    if path is not None:
        with atomic_write(path, draft) as file:
            yield lambda text: _write(file, text)
        return

    def write(text: str) -> None:
        try:
            _write(sys.stdout.buffer, text)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise JobError(f"standard output cannot be written: {error.strerror}") from None

    yield write


def _write(file: BinaryIO, text: str) -> None:
    file.write(encode_line(one_line(text)))
