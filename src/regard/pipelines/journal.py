"""A long job from file to file that may be interrupted at any moment: what is done is not done again.

While it runs, all that is done is in an SQLite database `.NAME.partial` beside the output NAME: the answer to each
different text so far, and which text each line holds. At the end the output is written from it, appears as a whole, and
the database goes. Why a database on disk:

* A text that stood in any line before is found again, however long ago, while memory stays the same.
* A window of texts and its answers are saved in one transaction. After a kill, a torn write or a full disk it is there
  as a whole or not at all, and nothing has to be cut or counted to find out how far a job is.
* Two processes cannot have it at once, and the lock ends with its process.

Texts that are worked on together may round each other's numbers differently. So windows are made of the new texts
alone, and each begins where the one before ended, which has been saved: a job that goes on makes the very windows that
it would have made without a break.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import JobError, UserError
from regard.search.engine import WINDOW

log = logging.getLogger("regard")

FORMAT = 1
LINES = 64 * WINDOW
"""A window has at most so many lines, however few of their texts are new."""

_TABLES = (
    "CREATE TABLE IF NOT EXISTS job (name TEXT PRIMARY KEY, value TEXT NOT NULL, decides INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS text (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, answer BLOB NOT NULL,"
    " checksum INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS line (number INTEGER PRIMARY KEY, text INTEGER NOT NULL)",
)
_CACHE_KIB = 32 * 1024
_OPAQUE = ("model", "with", "input", "format")
"""What of a job has values that say nothing to a person."""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT)


class Answer(NamedTuple):
    """What becomes of one text."""

    lines: tuple[str, ...]
    """To be written."""
    finished: bool = True
    """Whether it came to its own end."""


Answerer = Callable[[list[str], list[int]], Iterable[Answer]]
"""Answers some texts, which are all different, in order; it is told in which lines they stand first."""


@contextmanager
def journal(
    output: Path, job: Mapping[str, object], circumstances: Mapping[str, object], restart: bool = False
) -> Iterator[Journal]:
    """The journal of the job that writes `output`, for this process alone.

    When the block ends well, the output should be there, and the journal goes. If it does not, what is done stays for
    the next call with the same job.

    Args:
        job: what decides the answers, beside the input.
        circumstances: what else decides how numbers are rounded: of a difference there, a warning tells.
        restart: begin anew, whatever an earlier call has left.

    Raises:
        UserError: another job was begun there, another process is at it, or the journal is damaged.
        JobError: the disk is full or failing.
    """
    path = journal_of(output)
    with _in_words(output, path):
        if restart:
            _throw_away(output)
        connection = _connect(path)
        keep = True
        try:
            record = Journal(connection, output)
            record.begin(job, circumstances)
            keep = False
            try:
                yield record
            except BaseException as error:
                keep = record.lines > 0
                if keep and isinstance(error, KeyboardInterrupt):
                    again = "the same command without --restart" if restart else "the same command"
                    log.info("%s: %s lines are done; %s goes on from there", output, f"{record.lines:,}", again)
                raise
        finally:
            connection.close()
            if not keep:
                _remove(output)


def journal_of(output: Path) -> Path:
    """Where the journal of the job stands that writes `output`."""
    final = output.resolve()  # as `atomic_write`: a symbolic link stays, and the file that it points to is written
    return final.with_name(f".{final.name}.partial")


def draft_of(output: Path) -> Path:
    """The name under which that output is to be written until it is whole; what a kill leaves of it goes too."""
    path = journal_of(output)
    return path.with_name(f"{path.name}-output")


class Terms(NamedTuple):
    """What a job was begun with."""

    job: Mapping[str, object]
    """What decides the answers."""
    circumstances: Mapping[str, object]
    """What else decides how numbers are rounded."""


def take_up(output: Path, begun: Terms, now: Terms) -> None:
    """Whether a job may go on: of a difference in its circumstances, a warning tells.

    Raises:
        UserError: what was begun is another one.
    """
    if said := difference(begun.job, now.job):
        raise UserError(
            f"{output}: was begun {said}; give the same again to go on, --restart to begin anew, "
            "or choose another --output"
        )
    if said := difference(begun.circumstances, now.circumstances):
        log.warning("%s: was begun %s: what is to come may be rounded otherwise", output, said)


def difference(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    """In words, as in "with beam = 4, not 2"; empty where there is none."""
    names = [name for name in {**before, **now} if str(before.get(name)) != str(now.get(name))]
    return " and ".join(
        f"with another {name}"
        if name in _OPAQUE
        else f"with {name.replace('_', '-')} = {before.get(name)}, not {now.get(name)}"
        for name in names
    )


@dataclass
class _Window:
    """Some lines, and those of their texts that have no answer yet."""

    texts: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """The lines where these stand first."""
    new: dict[bytes, int] = field(default_factory=dict)
    """Their digests, and what they will be called in the table."""
    ids: list[int] = field(default_factory=list)
    """What the text of each line is called there."""


class Journal:
    """What of a job is done. Not for several threads."""

    def __init__(self, connection: sqlite3.Connection, output: Path) -> None:
        self._connection, self._output = connection, output
        self.lines: int = self._number("SELECT coalesce(max(number), 0) FROM line")
        """So many lines of the input are done."""
        self.texts: int = self._number("SELECT coalesce(max(id), 0) FROM text")
        """So many different texts stand in them."""

    def begin(self, job: Mapping[str, object], circumstances: Mapping[str, object]) -> None:
        """Take up a job where it was left.

        Raises:
            UserError: what has begun here is another one.
        """
        now = Terms({"format": FORMAT, **job}, circumstances)
        if not self.lines:
            rows = [(name, str(value), now.job is of) for of in now for name, value in of.items()]
            self._connection.execute("BEGIN")
            self._connection.execute("DELETE FROM job")
            self._connection.executemany("INSERT INTO job VALUES (?, ?, ?)", rows)
            self._connection.execute("COMMIT")
            return
        take_up(self._output, Terms(self._terms(decides=True), self._terms(decides=False)), now)
        log.info("going on at line %s of %s", f"{self.lines + 1:,}", self._output)

    def carry_on(
        self, lines: Iterable[str], answer: Answerer, name: str, size: int = WINDOW, most: int = LINES
    ) -> Iterator[int]:
        """Have all lines answered that are not done, and say after each window how many are.

        Args:
            lines: the input from its beginning. What is done of it is compared with what it was then.
            answer: is asked about each different text once, about `size` at a time.
            name: of the input, for messages.
            most: lines of a window.

        Raises:
            UserError: the input has changed.
        """
        remaining = self._after_what_is_done(iter(lines), name)
        while (window := self._window(remaining, size, most)).ids:
            self._save(window, answer(window.texts, window.numbers) if window.texts else ())
            yield self.lines

    def answers(self) -> Iterator[Answer]:
        """The answer to each line that is done, in order.

        Raises:
            UserError: something of it is not on the disk as it was saved.
        """
        for number, (answer, checksum) in enumerate(self._of_lines("answer, checksum"), start=1):
            if zlib.crc32(answer) != checksum:
                raise _damaged(self._output, f"the answer to line {number} is not what was saved")
            finished, *lines = json.loads(answer)
            yield Answer(tuple(lines), finished)

    def _terms(self, decides: bool) -> dict[str, str]:
        rows = self._connection.execute("SELECT name, value FROM job WHERE decides = ?", (decides,))
        return dict(rows.fetchall())

    def _after_what_is_done(self, lines: Iterator[str], name: str) -> Iterator[str]:
        for number, (digest,) in enumerate(self._of_lines("digest"), start=1):
            text = next(lines, None)
            if text is None or _digest(text) != digest:
                raise UserError(
                    f"{name}, line {number}: is {'missing' if text is None else 'another'} since {self._output} was "
                    "begun; put it back to go on, or begin anew with --restart"
                )
        return lines

    def _of_lines(self, columns: str) -> Iterator[tuple[Any, ...]]:
        """Columns of the text of each line that is done, in order."""
        found = self._connection.execute(
            f"SELECT {columns} FROM line JOIN text ON text.id = line.text ORDER BY line.number"
        )
        count = 0
        for row in found:
            count += 1
            yield row
        if count != self.lines:
            raise _damaged(self._output, f"it lacks {self.lines - count} lines")

    def _window(self, lines: Iterator[str], size: int, most: int) -> _Window:
        window = _Window()
        for text in lines:
            digest = _digest(text)
            known = window.new.get(digest) or self._id(digest)
            if known is None:
                window.texts.append(text)
                window.numbers.append(self.lines + len(window.ids) + 1)
                known = window.new[digest] = self.texts + len(window.texts)
            window.ids.append(known)
            if len(window.texts) == size or len(window.ids) == most:
                break
        return window

    def _id(self, digest: bytes) -> int | None:
        row = self._connection.execute("SELECT id FROM text WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else int(row[0])

    def _save(self, window: _Window, answers: Iterable[Answer]) -> None:
        kept = [json.dumps([answer.finished, *answer.lines], ensure_ascii=False).encode() for answer in answers]
        texts = [
            (number, digest, answer, zlib.crc32(answer))
            for (digest, number), answer in zip(window.new.items(), kept, strict=True)
        ]
        # An error in between ends the connection, and with it the transaction.
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT INTO text VALUES (?, ?, ?, ?)", texts)
        self._connection.executemany("INSERT INTO line VALUES (?, ?)", enumerate(window.ids, start=self.lines + 1))
        self._connection.execute("COMMIT")
        self.lines += len(window.ids)
        self.texts += len(texts)

    def _number(self, question: str) -> int:
        (number,) = self._connection.execute(question).fetchone()
        return int(number)


def _digest(text: str) -> bytes:
    """Stands for a text: 16 bytes, of which no two texts of any corpus have the same."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _connect(path: Path) -> sqlite3.Connection:
    """Open a journal for this process alone, until it is closed."""
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute("BEGIN EXCLUSIVE")
        for table in _TABLES:
            connection.execute(table)
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _throw_away(output: Path) -> None:
    """Remove a journal that no other process has, whatever is in it."""
    try:
        _connect(journal_of(output)).close()
    except sqlite3.DatabaseError as error:
        if _code(error) not in _DAMAGED:
            raise
    _remove(output)


def _remove(output: Path) -> None:
    path = journal_of(output)
    sqlites_own = path.with_name(f"{path.name}-journal")  # which a kill leaves
    for left in (path, sqlites_own, draft_of(output)):
        left.unlink(missing_ok=True)


@contextmanager
def _in_words(output: Path, path: Path) -> Iterator[None]:
    """What SQLite complains of as a sentence for a person."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = _code(error)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            message = f"{output}: another process is writing it; wait for its end, or choose another --output"
            raise UserError(message) from None
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise JobError(f"{path}: could not be written: {error}; see to the disk and run again") from None
        if code == sqlite3.SQLITE_CANTOPEN and not path.parent.is_dir():
            raise UserError(
                f"{output}: cannot be written: its folder does not exist; make it, or choose another place for --output"
            ) from None
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            raise UserError(f"{path}: cannot be written: {error}; choose another place for --output") from None
        if code in _DAMAGED:
            raise _damaged(output, str(error)) from None
        raise


def _damaged(output: Path, why: str) -> UserError:
    return UserError(f"{journal_of(output)}: is damaged ({why}); begin anew with --restart")


def _code(error: sqlite3.DatabaseError) -> int | None:
    """SQLite's number for a kind of error; None where the error is not from SQLite."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF  # what stands above these bits is a finer distinction
