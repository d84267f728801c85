"""A directory appears as a whole or not at all, and what was there is never lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.errors import JobError
from regard.text.directories import whole_directory


def write(directory: Path, text: str) -> None:
    with whole_directory(directory) as partial:
        (partial / "a").write_text(text, encoding="utf-8")


def read(directory: Path) -> str:
    return (directory / "a").read_text(encoding="utf-8")


def fail_while_writing(directory: Path, expected: str) -> None:
    with whole_directory(directory) as partial:
        assert read(directory) == expected
        (partial / "a").write_text("half", encoding="utf-8")
        raise KeyError


def test_it_takes_the_place_of_what_was_there_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    for text in ("one", "two"):
        write(tmp_path / "model", text)
        assert read(tmp_path / "model") == text
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failure_inside_leaves_what_was_there(tmp_path: Path) -> None:
    write(tmp_path / "model", "one")
    with pytest.raises(KeyError):
        fail_while_writing(tmp_path / "model", "one")
    assert read(tmp_path / "model") == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_a_kill_between_two_names_left_is_put_back_first(tmp_path: Path) -> None:
    write(tmp_path / "model", "one")
    (tmp_path / "model").rename(tmp_path / ".model.before")
    with pytest.raises(KeyError):
        fail_while_writing(tmp_path / "model", "one")
    assert read(tmp_path / "model") == "one"


def test_a_name_that_cannot_be_taken_brings_back_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "model", "one")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(JobError, match="model: cannot be written: No space left on device"):
        write(tmp_path / "model", "two")
    assert read(tmp_path / "model") == "one"
