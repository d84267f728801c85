"""What kills left in the directory of a run is neither in the way nor there for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.errors import UserError
from runs.small_runs import Killed, carry_out, recipe

LEFT = ".0123456789abcdef.tmp"


def hidden(directory: Path) -> list[str]:
    return [str(path.relative_to(directory)) for path in directory.rglob(".*")]


def test_a_kill_before_there_were_settings(tmp_path: Path) -> None:
    values = recipe(tmp_path, "language-model")
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / LEFT).write_bytes(b"task: langu")
    (directory / "thesis.txt").touch()
    with pytest.raises(UserError, match="is not empty and holds no run"):
        carry_out(directory, values)
    assert (directory / LEFT).exists()
    (directory / "thesis.txt").unlink()
    assert carry_out(directory, values)
    assert hidden(directory) == []


def test_a_kill_in_the_first_save_is_no_run_yet_and_leaves_nothing(tmp_path: Path) -> None:
    values = recipe(tmp_path, "language-model")
    directory = tmp_path / "run"
    with pytest.raises(Killed):
        carry_out(directory, values, kill=1)
    (directory / "checkpoints" / ".step-4.partial").mkdir(parents=True)
    (directory / "checkpoints" / ".step-4.partial" / "model.safetensors").write_bytes(b"half")
    (directory / "data" / LEFT).write_bytes(b"half")
    assert any("vocabulary: 280" in line for line in carry_out(directory, values, tokenizer={"size": 280}))
    assert hidden(directory) == []


def test_a_kill_between_the_last_save_and_its_pruning(tmp_path: Path) -> None:
    """Resumed, the run has no step left, and still the checkpoints of the run that was not killed."""
    values = recipe(tmp_path, "language-model") | {"checkpoints": {"keep_last": 1, "keep_best": 0}}
    directory = tmp_path / "run"
    carry_out(directory, values)
    checkpoints = directory / "checkpoints"
    (checkpoints / "step-12" / LEFT).touch()
    (checkpoints / ".step-4.removed").mkdir()
    (checkpoints / "step-8").mkdir()
    for path in (checkpoints / "step-12").iterdir():
        (checkpoints / "step-8" / path.name).write_bytes(path.read_bytes())
    carry_out(directory, values)
    assert hidden(directory) == []
    assert [path.name for path in checkpoints.iterdir()] == ["step-12"]
