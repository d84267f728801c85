"""Pairs of a long job: nothing half appears, and an interrupted job goes on where it was saved."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from regard.data.growing import growing_pairs
from regard.errors import JobError, UserError

JOB: dict[str, object] = {"text": "abc", "options": {"beam": 4}}
OUTCOMES: list[tuple[str, str] | str] = [
    ("eins", "one"),
    "empty line",
    ("zwei", "two"),
    ("drei", "three"),
    "empty line",
    ("vier\r", "four"),
]


def write(directory: Path, stop: int | None = None, save: int = 2, job: dict[str, object] = JOB) -> list[int]:
    """Write all outcomes, saving after every so many, stopped before number `stop`; returns where it began."""
    begun = []
    with growing_pairs(directory, job) as writer:
        begun.append(writer.made.read)
        for number, outcome in enumerate(OUTCOMES[writer.made.read :], start=writer.made.read):
            if number == stop:
                raise KeyboardInterrupt
            writer.add(outcome)
            if writer.made.read % save == 0:
                writer.save()
    return begun


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


WHOLE = {"source.txt": b"eins\nzwei\ndrei\nvier\r\r\n", "target.txt": b"one\ntwo\nthree\nfour\n"}


def test_two_files_appear_at_the_end(tmp_path: Path) -> None:
    with growing_pairs(tmp_path / "new" / "pairs", JOB) as writer:
        for outcome in OUTCOMES:
            writer.add(outcome)
        writer.save()
        assert not (tmp_path / "new" / "pairs").exists()
    assert contents(tmp_path / "new" / "pairs") == WHOLE
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["pairs"]
    assert str(writer.made) == "4 pairs of 6 lines; left out 2: empty line (first in line 2)"


@pytest.mark.parametrize("stop", range(6))
@pytest.mark.parametrize("save", [1, 2, 5])
def test_interrupted_anywhere_it_goes_on_from_what_was_saved(tmp_path: Path, stop: int, save: int) -> None:
    directory = tmp_path / "pairs"
    with pytest.raises(KeyboardInterrupt):
        write(directory, stop, save)
    assert not directory.exists()
    assert write(directory, save=save) == [stop // save * save]
    assert contents(directory) == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == ["pairs"]


def test_what_was_counted_before_is_counted_after(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "pairs", stop=4)
    with growing_pairs(tmp_path / "pairs", JOB) as writer:
        for outcome in OUTCOMES[writer.made.read :]:
            writer.add(outcome)
    assert str(writer.made) == "4 pairs of 6 lines; left out 2: empty line (first in line 2)"


def test_what_another_job_began_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "pairs", stop=4)
    with pytest.raises(UserError, match=r"\.pairs\.partial: holds part of another job"):
        write(tmp_path / "pairs", job={"text": "other"})
    assert write(tmp_path / "pairs") == [4]


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    write(tmp_path / "pairs")
    with pytest.raises(UserError, match="pairs: is there already"):
        write(tmp_path / "pairs")
    assert contents(tmp_path / "pairs") == WHOLE


@pytest.mark.parametrize("damage", ["short", "state"])
def test_a_damaged_part_is_refused(tmp_path: Path, damage: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "pairs", stop=4)
    partial = tmp_path / ".pairs.partial"
    if damage == "short":
        (partial / "target.txt").write_bytes(b"one\n")
    else:
        state = (partial / "state.json").read_text("utf-8")
        (partial / "state.json").write_text(state.replace('"bytes"', '"sizes"'), "utf-8")
    with pytest.raises(UserError, match="is damaged; remove it to begin pairs anew"):
        write(tmp_path / "pairs")


def test_a_full_disk_is_a_failed_job_that_can_go_on(tmp_path: Path) -> None:
    def fill() -> None:
        with growing_pairs(tmp_path / "pairs", JOB) as writer:
            writer.add(OUTCOMES[0])
            writer.save()
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(JobError, match="pairs: could not be written"):
        fill()
    assert write(tmp_path / "pairs") == [1]
    assert contents(tmp_path / "pairs") == WHOLE


def test_two_at_once_are_one_too_many(tmp_path: Path) -> None:
    with growing_pairs(tmp_path / "pairs", JOB) as writer:
        writer.add(OUTCOMES[0])
        writer.save()
        with pytest.raises(UserError, match=r"\.pairs\.partial: another process is writing here; wait"):
            write(tmp_path / "pairs")
        for outcome in OUTCOMES[1:]:
            writer.add(outcome)
    assert contents(tmp_path / "pairs") == WHOLE


def test_an_impossible_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="pairs: cannot be written: Not a directory"):
        write(tmp_path / "file" / "pairs")
