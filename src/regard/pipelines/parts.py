"""What is done of a job that is worked on shard by shard, on one machine or many.

It stands in a directory `.NAME.shards` beside the output NAME, where all machines see it: what the job is, and a file
for each shard that is done. Whoever has done a shard writes its file, which appears as a whole. So a shard that is done
twice, because a machine was lost or taken for lost, has the same bytes in the same place. At the end the files are put
together in order, the output appears as a whole, and the directory goes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from regard.errors import JobError, UserError
from regard.pipelines.journal import Terms, take_up
from regard.pipelines.shards import Shard
from regard.settings import read_json
from regard.text.directories import alone
from regard.text.lines import atomic_write

log = logging.getLogger("regard")

FORMAT = 1
_JOB, _LOCK = "job.json", "lock"


@dataclass(frozen=True)
class Parts:
    """The output of the shards that are done. It may be used on several machines at once."""

    directory: Path
    key: str
    """Stands for the job, so that nothing is taken for its own that another one left or is still writing."""

    def done(self, shards: Sequence[Shard]) -> set[int]:
        """The numbers of those shards that are done."""
        names = {path.name for path in self.directory.iterdir()}
        return {shard.number for shard in shards if self._path(shard).name in names}

    def has(self, shard: Shard) -> bool:
        """Whether that shard is done."""
        return self._path(shard).exists()

    def begin(self, shard: Shard) -> int:
        """Note that someone begins with a shard; how often that was noted since the job was taken up."""
        notes = self._notes(shard)
        with notes.open("ab") as file:
            file.write(b".")
        return notes.stat().st_size

    def write(self, shard: Shard, output: bytes, unfinished: int) -> None:
        """Keep the output of a shard, and in how many of its lines something did not come to its end.

        Raises:
            UserError, JobError: as `atomic_write`.
        """
        head = {"sha256": hashlib.sha256(output).hexdigest(), "unfinished": unfinished}
        with atomic_write(self._path(shard)) as file:
            file.write(json.dumps(head).encode() + b"\n" + output)
        self._notes(shard).unlink(missing_ok=True)

    def read(self, shard: Shard) -> tuple[bytes, int]:
        """What was kept of a shard.

        Raises:
            JobError: it is not there, or not as it was written.
        """
        path = self._path(shard)
        try:
            head, _, output = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            message = f"{path}: is missing; --output should be in a folder that all machines see; run again to go on"
            raise JobError(message) from None
        with suppress(ValueError, KeyError, TypeError):
            kept = json.loads(head)
            if kept["sha256"] == hashlib.sha256(output).hexdigest():
                return output, int(kept["unfinished"])
        raise JobError(f"{path}: is damaged; remove it and run again")

    def join(self, shards: Sequence[Shard], output: Path) -> int:
        """Put the output of all shards together; in how many lines something did not come to its end.

        Raises:
            JobError: a part is missing or damaged, or the disk is full.
        """
        unfinished = 0
        with atomic_write(output, self.directory / "output") as file:
            for shard in shards:
                part, count = self.read(shard)
                file.write(part)
                unfinished += count
        return unfinished

    def _path(self, shard: Shard) -> Path:
        return self.directory / f"{self.key}-{shard.number:08}"

    def _notes(self, shard: Shard) -> Path:
        return self.directory / f"begun.{shard.number:08}"


def directory_of(output: Path) -> Path:
    """Where the parts of that output stand."""
    final = output.resolve()  # as `atomic_write`: a symbolic link stays, and the file that it points to is written
    return final.with_name(f".{final.name}.shards")


@contextmanager
def parts(
    output: Path, job: Mapping[str, object], circumstances: Mapping[str, object], restart: bool = False
) -> Iterator[Parts]:
    """The parts of the job that writes `output`, for this process and those that it sends.

    When the block ends well, the output should be there, and the parts go. If it does not, what is done stays for the
    next call with the same job.

    Args:
        job: what decides the output, and how it is divided.
        circumstances: what else decides how numbers are rounded: of a difference there, a warning tells.
        restart: begin anew, whatever an earlier call has left.

    Raises:
        UserError: another job was begun there, or another process is at it.
        JobError: the directory cannot be made or removed.
    """
    directory = directory_of(output)
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{output}: cannot be written: {error.strerror}; choose another place") from None
    with alone(directory / _LOCK, f"is writing {output}", "--output"):
        begun = _begin(directory, output, Terms({"format": FORMAT, **job}, circumstances), restart)
        try:
            yield begun
        except BaseException as error:
            if not _has_parts(directory):
                _remove(directory)
            elif isinstance(error, KeyboardInterrupt):
                again = "the same command without --restart" if restart else "the same command"
                log.info("%s: what is done is kept; %s goes on from there", output, again)
            raise
        _remove(directory)


def _begin(directory: Path, output: Path, now: Terms, restart: bool) -> Parts:
    """Take up the job of a directory, or make it this one's."""
    record = directory / _JOB
    words = Terms(*({name: str(value) for name, value in of.items()} for of in now))
    key = hashlib.sha256(json.dumps(words.job, sort_keys=True).encode()).hexdigest()[:16]
    if record.exists() and _has_parts(directory) and not restart:
        take_up(output, _begun(record), now)
        for notes in directory.glob("begun.*"):
            notes.unlink(missing_ok=True)
        return Parts(directory, key)
    _empty(directory)
    with atomic_write(record) as file:
        file.write(json.dumps(words._asdict(), ensure_ascii=False, indent=2).encode("utf-8"))
    return Parts(directory, key)


def _begun(record: Path) -> Terms:
    values = read_json(record)
    try:
        return Terms(dict(values["job"]), dict(values["circumstances"]))
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{record}: is damaged; begin anew with --restart") from None


def _has_parts(directory: Path) -> bool:
    return any(directory.glob("*-[0-9]*"))


def _empty(directory: Path) -> None:
    """Remove all but the lock. The record goes first: without it, nothing counts of what a kill leaves of the rest."""
    (directory / _JOB).unlink(missing_ok=True)
    for left in directory.iterdir():
        if left.name != _LOCK:
            left.unlink(missing_ok=True)


def _remove(directory: Path) -> None:
    _empty(directory)
    shutil.rmtree(directory, ignore_errors=True)
