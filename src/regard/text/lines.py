"""Files to lines and back, safely.

A line is what stands before an LF, and nothing else ends one: not VT, FF, NEL, U+2028 nor a lone CR. Text is UTF-8
whatever the locale says. What is read is either exactly what the file holds or reported with file and line number,
and `read_lines` gives back exactly what `write_lines` was given.
"""

from __future__ import annotations

import errno
import gzip
import logging
import os
import re
import secrets
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, Literal

from regard.errors import JobError, UserError

if sys.platform != "win32":
    import fcntl

log = logging.getLogger("regard")

GZIP_MAGIC = b"\x1f\x8b"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_UTF8_MARK = b"\xef\xbb\xbf"
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def read_lines(path: Path | str, bad: Literal["error", "replace"] = "error") -> Iterator[str]:
    """The lines of a UTF-8 file, plain or gzip (told by its first bytes), one at a time and without their ends.

    One CR directly before an LF belongs to the line's end. A last line without LF counts. A byte order mark at the
    start is skipped with a warning.

    Args:
        path: the file.
        bad: what to do with bytes that are not UTF-8 and with NUL: refuse the file, or put U+FFFD in their place and
            warn, so that one bad line costs that line only.

    Raises:
        UserError: on the first step if the file cannot be opened, later for bad bytes or a cut-off gzip file.
    """
    with _bytes_of(path) as stream:
        yield from read_stream(stream, str(path), bad)


def count_lines(path: Path | str) -> int:
    """How many lines `read_lines` gives; what stands in them is not looked at.

    Raises:
        UserError: the file cannot be read, or is a gzip file that is cut off.
    """
    with _bytes_of(path) as stream:
        return sum(1 for _ in stream)


@contextmanager
def _bytes_of(path: Path | str) -> Iterator[Iterable[bytes]]:
    try:
        with Path(path).open("rb") as file:
            if file.peek(2)[:2] == GZIP_MAGIC:
                with gzip.open(file) as unpacked:
                    yield unpacked
            else:
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: the gzip file is damaged or cut off ({error}); copy or pack it again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_stream(
    stream: Iterable[bytes], name: str, bad: Literal["error", "replace"] = "error", first: int = 1
) -> Iterator[str]:
    """The lines of a binary stream such as `sys.stdin.buffer`, each as soon as it has arrived.

    The rules are those of `read_lines`, except that gzip is not unpacked; `name` stands in messages for the path, and
    `first` is the number of the first line.
    """
    for number, raw in enumerate(stream, start=first):
        line = raw
        if line.endswith(b"\n"):
            line = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        if number == 1:
            line = _without_mark(line, name)
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            text = line.decode("utf-8", "replace")
            fault = f"byte 0x{line[error.start]:02X} is not UTF-8"
        else:
            if "\0" not in text:
                yield text
                continue
            fault = "a NUL character, which no text file holds"
        if bad == "error":
            raise UserError(f"{name}, line {number}: {fault}; convert the file to UTF-8 or repair that line")
        log.warning("%s, line %d: %s; read as U+FFFD", name, number, fault)
        yield text.replace("\0", "\ufffd")


def _without_mark(first_line: bytes, name: str) -> bytes:
    # FF FE alone may be one bad line; together with NUL bytes it is a whole file in another encoding.
    if first_line.startswith(_UTF16_MARKS) and b"\0" in first_line:
        raise UserError(f"{name}, line 1: is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8")
    if first_line.startswith(_UTF8_MARK):
        log.warning("%s, line 1: the byte order mark at the start was skipped", name)
        return first_line[len(_UTF8_MARK) :]
    return first_line


def read_pairs(source: Path | str, target: Path | str) -> Iterator[tuple[str, str]]:
    """Two files in step: line n of `source` with line n of `target`.

    Raises:
        UserError: as `read_lines`; and at the end of the shorter file, with both counts, if the other goes on.
    """
    sources, targets = read_lines(source), read_lines(target)
    for pairs, (left, right) in enumerate(zip_longest(sources, targets)):
        if left is None or right is None:
            longer = pairs + 1 + sum(1 for _ in (targets if left is None else sources))
            counts = (pairs, longer) if left is None else (longer, pairs)
            raise UserError(
                f"{source} has {counts[0]} lines and {target} has {counts[1]}: "
                "line n of one must belong to line n of the other"
            )
        yield left, right


def read_tsv(path: Path | str) -> Iterator[tuple[str, str]]:
    """Pairs from one file, two columns separated by one TAB.

    Raises:
        UserError: as `read_lines`; and for a line with fewer or more columns, for a third is more often a slip
            (a TAB inside the text) than meant to be ignored.
    """
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise UserError(
                f"{path}, line {number}: {len(columns)} columns where source and target, separated by one TAB, "
                "are expected; `cut -f1,2` keeps the first two"
            )
        yield columns[0], columns[1]


def one_line(text: str) -> str:
    """What a model said, fit for a line of a file: a line feed becomes a space, a NUL character U+FFFD."""
    return text.replace("\n", " ").replace("\0", "\ufffd")


def encode_line(text: str) -> bytes:
    """One line as it stands in a file, end included; `read_stream` turns it back into `text`.

    Raises:
        UserError: for what a line cannot hold: LF, NUL, half of a surrogate pair.
    """
    for character, name in (("\n", "a line feed"), ("\0", "a NUL character")):
        if character in text:
            raise UserError(f"{text[:40]!r} holds {name}, which a line of a text file cannot hold; remove it")
    # One CR before LF is taken as part of the line's end on reading, so a line that ends in CR is given another.
    end = "\r\n" if text.endswith("\r") else "\n"
    try:
        return (text + end).encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{text[:40]!r} holds half of a surrogate pair, which is no character; remove it") from None


def write_lines(path: Path | str, lines: Iterable[str]) -> None:
    """Write a UTF-8 file, every line ended by LF; all of it or nothing (see `atomic_write`).

    Raises:
        UserError: naming file and line for text that a line cannot hold (see `encode_line`).
    """
    with atomic_write(path) as file:
        for number, text in enumerate(lines, start=1):
            try:
                line = encode_line(text)
            except UserError as error:
                raise UserError(f"{path}, line {number}: {error}") from None
            # A text that begins with U+FEFF keeps it: on reading, the first one of a file is skipped.
            if number == 1 and line.startswith(_UTF8_MARK):
                file.write(_UTF8_MARK)
            file.write(line)


@contextmanager
def atomic_write(path: Path | str, draft: Path | None = None) -> Iterator[BinaryIO]:
    """A binary file to write to, which takes the name `path` only when the block ends well.

    Until then, and for ever if the block fails, whatever stood there stays. The bytes go to a hidden `.tmp` file in the
    same folder, reach the disk, and only then take the name. A device or pipe (`/dev/stdout`) is written to directly.

    Args:
        path: the name.
        draft: the file until then, in the same folder, for one who sees to it that no other process writes it: what a
            kill leaves of it is written over.

    Raises:
        UserError: the folder does not exist or cannot be written to.
        JobError: the disk is full or failing.
    """
    # Through a symbolic link the file that it points to is written; the link stays.
    final = Path(path).resolve()
    special = final.exists() and not final.is_file()
    temporary = final if special else draft or final.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        file = temporary.open("wb" if special or draft else "xb")
    except OSError as error:
        raise _write_error(path, error) from None
    try:
        with file:
            if not special:
                _hold(file)
            yield file
            file.flush()
            if not special:
                os.fsync(file.fileno())
        if not special:
            temporary.replace(final)
    except BaseException as error:
        if not special:
            with suppress(OSError):
                temporary.unlink()
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise _write_error(path, error) from None
        raise


def leftovers(folder: Path) -> list[Path]:
    """The hidden files in a folder that writes left when they were killed; those that still go on are none."""
    found = []
    for path in folder.glob(".*.tmp"):
        if _TEMPORARY.fullmatch(path.name):
            with suppress(OSError), path.open("r+b") as file:
                if _hold(file):
                    found.append(path)
    return found


def _hold(file: BinaryIO) -> bool:
    """Lock a file for as long as this process has it open, as far as the system can; whether it was free."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _write_error(path: Path | str, error: OSError) -> UserError | JobError:
    if error.errno in _DISK_ERRORS:
        return JobError(f"{path}: could not be written: {error.strerror}; see to the disk and run again")
    return UserError(f"{path}: cannot be written: {error.strerror}; choose another place")
